"""Step rules: how far to go along a direction.

A rule is called with the iteration t and a `Line`, and returns a step in [0, line.longest]. The
step 0 means that no step along the line improves the objective. A rule needs no more; it may have

    needs_line = True   the rule evaluates the objective along the line, so that any direction suits
                        it (without this, Frank-Wolfe takes plain directions)
    start()             returns the rule's state for one run, which is then called in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from wdro_model.registry import Register, refuse_signature
from wdro_model.solvers.objective import ROUNDING, Line, Sample

SUGGESTED = 0.5
"""The tolerance of a line search whose first trial is the step of a model: Newton steps are good
before they are exact."""


class StepState(Protocol):
    """A step rule during one run."""

    def __call__(self, t: int, line: Line) -> float: ...


StepRule = Any
"""A choice of step: a StepState, or something whose start() returns one."""


def looks_along(rule: StepRule) -> bool:
    """Does the rule evaluate the objective along the line? (It then needs exact gradients.)"""
    return bool(getattr(rule, "needs_line", False))


def start_rule(rule: StepRule) -> StepState:
    """The rule as it is called during one run."""
    state = rule.start() if hasattr(rule, "start") else rule
    if not callable(state):
        raise ValueError(
            f"start() of the step rule {rule_name(rule)} returned {state!r}; it must return a "
            "function (t, line) -> step."
        )
    return state


def rule_name(rule: StepRule) -> str:
    """The rule in words: a function by its name."""
    return getattr(rule, "__name__", None) or str(rule)


def check_step(name: str, rule: Any) -> StepRule:
    """A step rule, or a class of one that needs no arguments."""
    if isinstance(rule, type):
        try:
            rule = rule()
        except TypeError as error:
            raise ValueError(
                f"the step rule {name!r} needs defaults for all its fields, so that it can be "
                f"chosen by name: {error}; or register an instance."
            ) from error
    if not callable(getattr(rule, "start", rule)):
        raise ValueError(
            f"{name} must be a name or a rule object, got {type(rule).__name__}; a rule is called "
            "as rule(t, line) -> step: define __call__(self, t, line)."
        )
    if hasattr(rule, "start"):
        refuse_signature(f"start of the step rule {name!r}", rule.start)
    else:
        refuse_signature(f"the step rule {name!r}", rule, "t", "line")
    return rule


STEPS: Register[StepRule] = Register("step", "wdro_model.steps", check_step)
"""Step rules by name."""


def register_step(name: str, rule: Any = None, *, replace: bool = False) -> Any:
    """Offer a step rule as `FrankWolfe(step=name)`: a class, an object or a function of (t, line).

    As a decorator, `@register_step("harmonic")` above a class or a function. An entry point in the
    group `wdro_model.steps` does the same from another package.

    Examples
    --------
    >>> import cvxpy as cp, wdro_model as wdro
    >>> @wdro.solvers.register_step("slow")
    ... def slow(t, line):
    ...     return 1 / (t + 1)
    >>> x, point = cp.Variable(2), wdro.UncertainParameter(2, samples=[[0.2, 0.3], [0.4, 0.5]])
    >>> problem = wdro.Problem(cp.Minimize(cp.sum_squares(x - point)), [x >= 0, x <= 1])
    >>> round(problem.solve(solver=wdro.solvers.FrankWolfe(step="slow", gap=0.05)), 2)
    0.02
    """
    register = STEPS.decorator(name, replace)
    return register if rule is None else register(rule)


@register_step("open_loop")
@dataclass(frozen=True)
class OpenLoop:
    """Step 2/(t + offset): no line search, no Lipschitz constant.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> step = wdro.solvers.OpenLoop(offset=7)
    >>> [round(step(t, None), 3) for t in range(3)]
    [0.286, 0.25, 0.222]
    >>> solver = wdro.solvers.FrankWolfe(step=step, direction="plain")
    """

    offset: float = 2.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.offset) and self.offset > 0):
            raise ValueError(f"offset must be a positive finite number, got {self.offset!r}.")

    def __call__(self, t: int, line: Line) -> float:
        return 2.0 / (t + self.offset)


@register_step("line_search")
@dataclass(frozen=True)
class LineSearch:
    """Exact line search: |phi'(s)| <= tolerance |phi'(0)|, or the longest step.

    The first trial is the step that a direction suggests, with half of the slope as tolerance, or
    the minimiser of the quadratic with the curvature of the last line; then secants, safeguarded by
    a bracket. On a quadratic the second trial is the minimiser. The step
    is one of the trials, so that the objective there is known.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> wdro.solvers.FrankWolfe(step=wdro.solvers.LineSearch(tolerance=1e-3)).step
    LineSearch(tolerance=0.001, evaluations=12)
    """

    tolerance: float = 1e-2
    evaluations: int = 12
    """The most that one search may take."""
    needs_line = True

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"tolerance must be in [0, 1), got {self.tolerance!r}.")
        if self.evaluations < 2:
            raise ValueError(f"evaluations must be at least 2, got {self.evaluations!r}.")

    def start(self) -> StepState:
        return _LineSearch(self)


class _LineSearch:
    def __init__(self, rule: LineSearch) -> None:
        self.rule = rule
        self.curvature = 0.0
        """phi'' / |d|^2 on the last line."""

    def __call__(self, t: int, line: Line) -> float:
        if not line.slope < 0:
            return 0.0
        end = self._search(line)
        if end.step > 0:
            rise = (end.slope - line.slope) / end.step
            self.curvature = rise / line.squared_length
        return end.step

    def _search(self, line: Line) -> Sample:
        bracket = StepBracket(line)
        trial, allowed = quadratic_step(line, self.curvature), self.rule.tolerance
        if line.suggested is not None:
            trial, allowed = min(line.suggested, line.longest), max(allowed, SUGGESTED)
        for _ in range(self.rule.evaluations):
            here = line.at(trial)
            bracket.add(here)
            flat = abs(here.slope) <= allowed * abs(line.slope)
            if bracket.low is here and (flat or trial == line.longest):
                return here
            if flat and no_higher(here, line):
                return here
            trial = bracket.next()
            if not bracket.contains(trial):
                break
        return bracket.best()


@register_step("adaptive")
@dataclass(frozen=True)
class Adaptive:
    """Short steps from a local Lipschitz constant M, found by backtracking.

    s = min(longest, -phi'(0) / (M |d|^2)), M raised (at most `growth` times) until phi(s) is under
    the parabola phi(0) + s phi'(0) + s^2 M |d|^2 / 2, and lowered by `decay` before each iteration
    (Pedregosa, Negiar, Askari and Jaggi, 2020). A step before the minimum of the line, where
    phi'(s) <= 0, is good as well: this decides where values differ by rounding errors only.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> wdro.solvers.FrankWolfe(step="adaptive").step_rule
    Adaptive(growth=2.0, decay=0.9)
    """

    growth: float = 2.0
    decay: float = 0.9
    needs_line = True

    def __post_init__(self) -> None:
        if not (np.isfinite(self.growth) and self.growth > 1 and 0 < self.decay <= 1):
            raise ValueError(
                "an adaptive step needs growth > 1 and decay in (0, 1], got "
                f"growth={self.growth!r}, decay={self.decay!r}."
            )

    def start(self) -> StepState:
        return _Adaptive(self)


class _Adaptive:
    TRIALS = 60
    """Steps that are tried on one line, at most."""
    HARDLY = 1.05
    """A measured curvature below this multiple of the estimate is not used: it changes nothing."""

    def __init__(self, rule: Adaptive) -> None:
        self.rule = rule
        self.smoothness = 0.0
        """M, 0 before the first line."""

    def __call__(self, t: int, line: Line) -> float:
        if not line.slope < 0:
            return 0.0
        estimate = self.smoothness * self.rule.decay
        if estimate == 0.0:
            far = line.at(line.longest)
            rise = far.slope - line.slope
            if no_higher(far, line) and far.slope <= 0:
                return line.longest
            shortest = -line.slope / line.longest
            estimate = max(rise if np.isfinite(rise) else 0.0, shortest) / line.squared_length
        for _ in range(self.TRIALS):
            here = line.at(quadratic_step(line, estimate))
            if self._is_under_parabola(here, line, estimate):
                self.smoothness = estimate
                return here.step
            estimate = self._raised(estimate, here, line)
        return 0.0

    def _raised(self, estimate: float, here: Sample, line: Line) -> float:
        """The curvature that the failed trial has seen, within what `growth` allows.

        A curvature hardly above the estimate, as near the minimum of the line, leads nowhere.
        """
        seen = (here.slope - line.slope) / (here.step * line.squared_length)
        most = self.rule.growth * estimate
        return seen if self.HARDLY * estimate < seen < most else most

    def _is_under_parabola(self, here: Sample, line: Line, estimate: float) -> bool:
        s = here.step
        parabola = line.start.value + s * line.slope + 0.5 * s**2 * estimate * line.squared_length
        parabola += ROUNDING * abs(line.start.value)
        return bool(here.value <= parabola) or (here.slope <= 0 and no_higher(here, line))


# ------------------------------------------------------------------ parts
def quadratic_step(line: Line, curvature: float) -> float:
    """The minimiser over [0, longest] of phi(0) + s phi'(0) + s^2 curvature |d|^2 / 2."""
    second = curvature * line.squared_length
    return min(line.longest, -line.slope / second) if second > 0 else line.longest


def no_higher(here: Sample, line: Line) -> bool:
    """Is the objective there at most that of the start, up to rounding and noise?"""
    return bool(here.value <= line.highest)


def middle(low: float, high: float) -> float:
    """Between two steps: the geometric mean where their orders of magnitude differ."""
    if low == 0:
        return 0.1 * high
    return float(np.sqrt(low) * np.sqrt(high)) if high > 10 * low else 0.5 * (low + high)


class StepBracket:
    """Steps low < high around a minimiser: phi falls at low, and has risen at high."""

    REACH = 100.0
    """An extrapolation goes at most so many times as far as the last trial."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.before, self.low = line.start, line.start
        self.high: Sample | None = None
        self._stale = 0
        """How often in a row the same end has been replaced: negative for the low end."""
        self._slow = False
        """Has the last trial left most of the bracket?"""

    def add(self, here: Sample) -> None:
        """Make a trial the new low or high end."""
        width = self._width()
        if here.slope <= 0 and no_higher(here, self.line):
            self.before, self.low = self.low, here
            self._stale = min(self._stale, 0) - 1
        else:
            self.high = here
            self._stale = max(self._stale, 0) + 1
        self._slow = bool(np.isfinite(width)) and self._width() > 0.5 * width

    def _width(self) -> float:
        return np.inf if self.high is None else self.high.step - self.low.step

    def contains(self, step: float) -> bool:
        """Is the step strictly between the ends?"""
        last = self.line.longest if self.high is None else self.high.step
        return self.low.step < step < last or (self.high is None and step == last > self.low.step)

    def next(self) -> float:
        """The next trial: a secant, or the middle where a secant says nothing."""
        low, high = self.low, self.high
        if high is None:
            rise, run = low.slope - self.before.slope, low.step - self.before.step
            root = low.step - low.slope * run / rise if rise > 0 else np.inf
            return float(min(root, self.line.longest, self.REACH * low.step))
        if self._slow or not (np.isfinite(high.slope) and high.slope > 0):
            return middle(low.step, high.step)
        # Illinois: an end that has stayed twice counts half, so that both ends close in.
        falls = -low.slope * (0.5 if self._stale >= 2 else 1.0)
        rises = high.slope * (0.5 if self._stale <= -2 else 1.0)
        return low.step + (high.step - low.step) * falls / (falls + rises)

    def best(self) -> Sample:
        """The best trial that is no higher than the start, else the start itself."""
        high, start = self.high, self.line.start
        if self.low is not start:
            return self.low
        return high if high is not None and high.value < start.value else start
