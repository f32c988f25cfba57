"""The one loop behind all Frank-Wolfe methods: an iteration, its state, and why it ended.

Each iteration: a gradient, the oracle's vertex, the gap, a direction, a step. Rules say how each
of them is chosen; the loop keeps time, status, trace and callbacks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from numbers import Real
from typing import Any

import numpy as np

from wdro_model.errors import blaming
from wdro_model.sets.deadlines import OutOfTime, deadline, seconds_left
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.solvers.directions import ActiveSet, DirectionRule, Move
from wdro_model.solvers.gradients import DualRule, GradientRule
from wdro_model.solvers.objective import Array, Certificate, Line, Point, certificate, refuse_beaten
from wdro_model.solvers.steps import StepRule, begun, looks_along, shown
from wdro_model.solvers.trace import Display, Record, Trace

__all__ = ["ABSOLUTE_GAP", "Limits", "Outcome", "Rules", "State", "Stop", "relative_gap", "run"]


ABSOLUTE_GAP = 1e-12
"""A gap under this is small whatever the value."""


def tolerance(relative: float, value: float, scale: float = 0.0) -> float:
    """What a relative tolerance allows at a value: nothing under `scale` is told apart."""
    return max(relative * max(abs(value), scale), ABSOLUTE_GAP)


def relative_gap(gap: float, value: float) -> float:
    """gap / |value|, and the gap itself where the value is next to nothing."""
    return gap / max(abs(value), ABSOLUTE_GAP)


class Stop(Enum):
    """Why a run ended.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> wdro.solvers.Stop.TIME.value
    'time limit'
    """

    GAP = "the gap is under the tolerance"
    ITERATIONS = "iteration limit"
    TIME = "time limit"
    CALLBACK = "a callback asked to stop"
    INTERRUPT = "interrupted from the keyboard"
    DRAWS = "the gap is under the tolerance on the draws of the run, not on fresh ones"
    NOISE = "the gap is under the tolerance, the Monte Carlo error is not"
    STALLED = "no step along the direction improves the objective"


@dataclass(frozen=True)
class State:
    """What a callback sees before each step.

    Examples
    --------
    >>> import cvxpy as cp, wdro_model as wdro
    >>> seen = []
    >>> def remember(state):                          # True would stop the run
    ...     seen.append(state.gap)
    >>> x, point = cp.Variable(2), wdro.UncertainParameter(2, samples=[[0.2, 0.3], [0.4, 0.5]])
    >>> problem = wdro.Problem(cp.Minimize(cp.sum_squares(x - point)), [x >= 0, x <= 1])
    >>> value = problem.solve(solver=wdro.solvers.FrankWolfe(callbacks=[remember]))
    >>> seen[-1] < seen[0]
    True
    """

    iteration: int
    time: float
    x: Array
    value: float
    gap: float
    dual: float | None
    gradient: Array
    vertex: Array


@dataclass(frozen=True)
class Outcome:
    """The last point of a run that was evaluated.

    Examples
    --------
    >>> import numpy as np, wdro_model as wdro
    >>> from wdro_model.counterparts import Point
    >>> class Distance:
    ...     convex = True
    ...     def evaluate(self, x, dual=None):
    ...         return Point(float((x - 0.3) @ (x - 0.3)), 2 * (x - 0.3))
    ...     def describe(self):
    ...         return "|x - 0.3|^2"
    >>> rng, box = np.random.default_rng(0), wdro.sets.Box(np.zeros(2), 1.0)
    >>> outcome = wdro.solvers.FrankWolfe(gap=1e-6).run(Distance(), box, np.ones(2), rng=rng)
    >>> outcome.x.round(3), outcome.stop.name
    (array([0.3, 0.3]), 'GAP')
    """

    x: Array
    point: Point
    gap: float
    """Infinite where the run was interrupted before the first answer of the oracle."""
    lower_bound: float
    """The best bound F(x_t) - gap_t over the run; -inf where gaps are not certified."""
    stop: Stop
    iterations: int
    seconds: float
    oracle_calls: int
    trace: Trace
    dual: float | None
    active_set: ActiveSet | None = None
    """The vertices of which x is a combination, for rules that keep them; None after an interrupt.
    Another run can start from it."""


# ------------------------------
# One iteration of a Frank-Wolfe run: look, judge, choose a step, take it


@dataclass(frozen=True)
class Rules:
    """One choice for each part of the loop."""

    direction: DirectionRule
    step: StepRule
    gradient: GradientRule
    dual: DualRule

    def __post_init__(self) -> None:
        if self.direction.needs_line_search and not looks_along(self.step):
            raise ValueError(
                f"{self.direction} needs a step rule that looks along the line, got {self.step}; "
                "use step='line_search' or 'adaptive', or direction='plain'."
            )
        if looks_along(self.step) and not self.gradient.certified:
            raise ValueError(
                f"{self.step} needs full gradients, got {self.gradient}; use an open-loop step."
            )


@dataclass(frozen=True)
class Limits:
    """When to stop."""

    iterations: int
    gap: float
    """Relative Frank-Wolfe gap, gap / max(|value|, tiny); checked where the gap is certified."""
    seconds: float | None = None


@dataclass(frozen=True)
class Look:
    """An iterate, its gradient, the oracle's answer and the gap."""

    state: State
    point: Point
    certificate: Certificate
    """The gap of x alone, without the dual's share."""
    oracle_calls: int

    def record(self, stride: Stride | None) -> Record:
        """The line of the trace, with the step that is taken from here."""
        state = self.state
        return Record(
            state.iteration,
            state.time,
            state.value,
            state.gap,
            np.nan if state.dual is None else state.dual,
            np.nan if stride is None else stride.step,
            self.oracle_calls,
        )


@dataclass(frozen=True)
class Stride:
    """A step that was chosen: where it leads, and the objective there if it is known."""

    step: float
    x: Array
    dual: float | None
    point: Point | None


class Loop:
    """The state of a run between iterations."""

    def __init__(
        self, objective: Any, feasible: FeasibleSet, x: Array, rules: Rules, limits: Limits
    ) -> None:
        self.objective, self.feasible, self.rules, self.limits = objective, feasible, rules, limits
        self.began = time.perf_counter()
        self.x = self.clipped(x)
        self.dual = rules.dual.start()
        self.trace = Trace()
        self.bound = -np.inf
        self.oracle_calls = 0
        self.known: Point | None = None
        """The objective at x, if the last step has evaluated it."""

    def prepare(self, rng: np.random.Generator, active: ActiveSet | None) -> None:
        """Start the rules; one that keeps an active set goes on from the given one."""
        self.gradient_at = self.rules.gradient.start(self.objective, rng)
        self.step_rule = begun(self.rules.step)
        rule: Any = self.rules.direction

        def gradient_at(y: Array) -> Array:
            return self.evaluate(y, self.dual).gradient

        if active is not None and hasattr(rule, "resume"):
            self.direction = rule.resume(active)
        else:
            self.direction = rule.start(self.x, gradient_at)
        if hasattr(self.direction, "gradient_at") and getattr(self.objective, "is_exact", True):
            self.direction.gradient_at = gradient_at

    @property
    def active_set(self) -> ActiveSet | None:
        return getattr(self.direction, "active", None)

    def evaluate(self, x: Array, dual: float | None) -> Point:
        return self.objective.evaluate(self.clipped(x), dual)

    def clipped(self, x: Array) -> Array:
        """x within the set's bounds, which rounding may have left."""
        return x if self.feasible.bounds is None else np.clip(x, *self.feasible.bounds)

    def look(self, t: int) -> Look:
        """Gradient, vertex and gap at the iterate."""
        point = self.gradient_at(t, self.x, self.dual) if self.known is None else self.known
        self.known = point
        check_finite(point, t)
        found = certificate(self.feasible, self.x, point.gradient)
        self.oracle_calls += 1
        gap = found.gap + self.rules.dual.gap(point)
        if self.rules.gradient.certified:
            self.bound = max(self.bound, point.value - gap)
        state = State(
            t, self.seconds(), self.x, point.value, gap, point.dual, point.gradient, found.vertex
        )
        return Look(state, point, found, self.oracle_calls)

    def verdict(self, here: Look) -> Stop | None:
        """Is the run over?"""
        state, limits = here.state, self.limits
        allowed = tolerance(limits.gap, state.value, getattr(self.objective, "scale", 0.0))
        if self.rules.gradient.certified and state.gap <= allowed:
            known = [] if self.active_set is None else [self.active_set.matrix]
            if self.feasible.witness is not None and self.feasible.is_bounded:
                known.append(self.feasible.witness[None])
            for some in known:
                refuse_beaten(self.feasible, here.certificate, state.gradient, some)
            return Stop.GAP
        left = seconds_left()  # also of a solve that this run is a part of
        if left is not None and left <= 0:
            return Stop.TIME
        return Stop.ITERATIONS if state.iteration == limits.iterations else None

    def stride(self, here: Look) -> Stride | None:
        """The rules' step, else a plain one; None if neither improves the objective."""
        state = here.state
        for name in ("held", "replied"):  # what the objective knows of decisions around this one
            if hasattr(self.direction, name):
                tell = getattr(self.objective, name, None)
                setattr(self.direction, name, tell and tell(self.clipped(self.x)))
        move = self.direction.propose(self.x, state.gradient, state.vertex, here.certificate.slope)
        stride = self.along(move, here)
        if stride is None and not move.is_plain:
            stride = self.along(self.direction.retreat(self.x, state.vertex), here)
        return stride

    def along(self, move: Move, here: Look) -> Stride | None:
        """The step along a move, the dual variable moving with it; None if it is zero."""
        x, point, rule = self.x, here.point, self.rules.dual

        def evaluate(s: float) -> Point:
            return self.evaluate(x + s * move.direction, rule.step(point, s))

        ahead = (rule.direction(point), move.suggested, getattr(self.objective, "noise", 0.0))
        line = Line(evaluate, point, move.direction, move.longest, *ahead)
        step = checked_step(self.step_rule(here.state.iteration, line), self.rules.step)
        if step <= 0:
            return None
        step = min(step, move.longest)
        reached = self.clipped(x + step * move.direction)
        return Stride(step, reached, rule.step(point, step), line.point(step))

    def take(self, stride: Stride) -> None:
        """Go there."""
        exact = self.direction.accept(stride.step)
        self.known = stride.point if exact is None else None
        self.x = stride.x if exact is None else self.clipped(exact)
        self.dual = stride.dual

    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def outcome(self, here: Look, stop: Stop) -> Outcome:
        state = here.state
        return Outcome(
            state.x,
            here.point,
            state.gap,
            self.bound,
            stop,
            state.iteration,
            state.time,
            self.oracle_calls,
            self.trace,
            state.dual,
        )

    def unfinished(self) -> Outcome | None:
        """The first point, if the run was interrupted while the oracle looked at it."""
        if self.known is None:
            return None
        point, now = self.known, self.seconds()
        return Outcome(
            self.x, point, np.inf, -np.inf, Stop.INTERRUPT, 0, now, 0, self.trace, point.dual
        )


def checked_step(step: Any, rule: StepRule) -> float:
    """The answer of a step rule, if it is a number."""
    if not isinstance(step, Real) or not float(step) >= 0:
        raise ValueError(
            f"the step rule {shown(rule)} answered {step!r}; it must return a number, the length "
            "of the step, in [0, line.longest]."
        )
    return float(step)


def check_finite(point: Point, iteration: int) -> None:
    """Refuse a value or gradient that is not finite, naming the coordinate."""
    gradient = point.gradient
    if not np.isfinite(gradient).all():
        where = int(np.flatnonzero(~np.isfinite(gradient))[0])
        raise FloatingPointError(
            f"the gradient of the objective is {gradient[where]} in coordinate {where} at "
            f"iteration {iteration}; keep the decision inside the domain of the loss."
        )
    if not np.isfinite(point.value):
        raise FloatingPointError(
            f"the objective is {point.value} at iteration {iteration}; keep the decision inside "
            "the domain of the loss."
        )


# ------------------------------
# The one loop behind all Frank-Wolfe methods


def run(
    objective: Any,
    feasible: FeasibleSet,
    start: Array | None,
    rules: Rules,
    limits: Limits,
    *,
    rng: np.random.Generator,
    callbacks: Sequence[Callable[[State], bool | None]] = (),
    verbose: bool = False,
    progress: bool = True,
    title: str = "Frank-Wolfe",
    active_set: ActiveSet | None = None,
) -> Outcome:
    """Minimise an objective over a set from a point in it, or from the active set of a run."""
    loop = Loop(objective, feasible, starting_point(start, active_set, feasible), rules, limits)
    loop.prepare(rng, active_set)
    outcome: Outcome | None = None
    with Display(verbose, progress, limits.iterations, title) as display, deadline(limits.seconds):
        try:
            for t in range(limits.iterations + 1):
                here = loop.look(t)
                stop = loop.verdict(here) or asked_to_stop(callbacks, here.state)
                stride = loop.stride(here) if stop is None else None
                if stop is None and stride is None:
                    stop = Stop.STALLED
                outcome = loop.outcome(here, stop or Stop.INTERRUPT)
                record = here.record(stride)
                loop.trace.records.append(record)
                display.show(record, last=stop is not None)
                if stop is not None or stride is None:
                    break
                loop.take(stride)
        except KeyboardInterrupt:
            outcome = outcome or loop.unfinished()
            if outcome is None:
                raise
        except OutOfTime:
            outcome = outcome or loop.unfinished()
            if outcome is None:
                raise
            outcome = replace(outcome, stop=Stop.TIME)
        assert outcome is not None
        display.end(outcome.stop.value)
    if outcome.stop is Stop.INTERRUPT:
        return outcome
    return replace(outcome, active_set=loop.active_set)


def starting_point(start: Array | None, active: ActiveSet | None, feasible: FeasibleSet) -> Array:
    """A fresh copy of the starting point: that of the active set where there is one."""
    if active is not None:
        start = active.x
    if start is None:
        raise ValueError("a run needs a starting point: give start or active_set.")
    x = np.array(start, dtype=np.float64)
    if x.shape != (feasible.dimension,):
        raise ValueError(
            f"the starting point must have shape ({feasible.dimension},), got {x.shape}."
        )
    return x


def asked_to_stop(callbacks: Sequence[Callable[[State], bool | None]], state: State) -> Stop | None:
    """Call all callbacks; one that returns True stops the run."""
    answers = []
    for callback in callbacks:
        with blaming(f"the callback {getattr(callback, '__name__', repr(callback))}"):
            answers.append(callback(state))
    asked = any(isinstance(answer, (bool, np.bool_)) and answer for answer in answers)
    return Stop.CALLBACK if asked else None
