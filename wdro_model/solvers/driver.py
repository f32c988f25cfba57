"""The one loop behind all Frank-Wolfe methods: an iteration, its state, and why it ended.

Each iteration: a gradient, the oracle's vertex, the gap, a direction, a step. Rules say how each
of them is chosen; the loop keeps time, status, trace and callbacks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from numbers import Real
from typing import Any

import numpy as np

from wdro_model.errors import blaming
from wdro_model.sets.deadlines import OutOfTime, deadline, seconds_left
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.solvers.directions import ActiveSet, DirectionRule, GradientSource, Move
from wdro_model.solvers.gradients import DualRule, GradientRule
from wdro_model.solvers.objective import (
    Array,
    Certificate,
    Line,
    Point,
    certificate,
    optional_part,
    refuse_beaten,
)
from wdro_model.solvers.steps import StepRule, looks_along, rule_name, start_rule
from wdro_model.solvers.trace import Display, Record, Trace

__all__ = ["ABSOLUTE_GAP", "Limits", "Outcome", "Rules", "State", "Stop", "relative_gap", "run"]


ABSOLUTE_GAP = 1e-12
"""A gap under this is small whatever the value."""


def tolerance(relative: float, value: float, scale: float = 0.0) -> float:
    """The absolute gap that a relative one allows; values below `scale` are not told apart."""
    return max(relative * max(abs(value), scale), ABSOLUTE_GAP)


def relative_gap(gap: float, value: float) -> float:
    """The gap as a share of |value|, or the gap itself where the value is next to nothing."""
    return gap / max(abs(value), ABSOLUTE_GAP)


class Stop(Enum):
    """The reason why a run ended.

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
    """The iterate that a callback sees before each step.

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
# One iteration of a Frank-Wolfe run: evaluate, judge, choose a step, take it


@dataclass(frozen=True)
class Rules:
    """The rules of a run, one for each part of the loop."""

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
    """The limits of a run."""

    iterations: int
    gap: float
    """Relative Frank-Wolfe gap, gap / max(|value|, tiny); checked where the gap is certified."""
    seconds: float | None = None


@dataclass(frozen=True)
class Iterate:
    """A decision of the run, the objective there, the oracle's answer and the gap."""

    state: State
    point: Point
    certificate: Certificate
    """The gap of x alone, without the dual's share."""


@dataclass(frozen=True)
class Step:
    """A step that was chosen: its length, its end, and the objective there if it is known."""

    length: float
    x: Array
    dual: float | None
    point: Point | None


class Loop:
    """The state of a run between iterations."""

    def __init__(
        self,
        objective: Any,
        feasible: FeasibleSet,
        start: Array | None,
        rules: Rules,
        limits: Limits,
        rng: np.random.Generator,
        active: ActiveSet | None,
    ) -> None:
        self.objective, self.feasible, self.rules, self.limits = objective, feasible, rules, limits
        self.began = time.perf_counter()
        self.x = self.clip(starting_point(start, active, feasible))
        self.dual = rules.dual.start()
        self.trace = Trace()
        self.bound = -np.inf
        self.oracle_calls = 0
        self.known: Point | None = None
        """The objective at x, if the last step has evaluated it."""
        self.gradient_at = rules.gradient.start(objective, rng)
        self.step_rule = start_rule(rules.step)
        gradients = GradientSource(
            lambda y: self.evaluate(y, self.dual).gradient,
            optional_part(objective, "is_exact"),
            lambda: optional_part(objective, "fixed_adversary_gradient")(self.clip(self.x)),
            lambda: optional_part(objective, "replying_adversary_gradient")(self.clip(self.x)),
        )
        if active is None:
            self.direction = rules.direction.start(self.x, gradients)
        else:
            self.direction = rules.direction.resume(active, gradients)

    def evaluate(self, x: Array, dual: float | None) -> Point:
        return self.objective.evaluate(self.clip(x), dual)

    def clip(self, x: Array) -> Array:
        """The decision within the set's bounds, which rounding may have left."""
        return x if self.feasible.bounds is None else np.clip(x, *self.feasible.bounds)

    def evaluate_iterate(self, t: int) -> Iterate:
        """Gradient, vertex and gap at the present decision."""
        point = self.gradient_at(t, self.x, self.dual) if self.known is None else self.known
        self.known = point
        check_finite(point, t)
        certified = certificate(self.feasible, self.x, point.gradient)
        self.oracle_calls += 1
        gap = certified.gap + self.rules.dual.gap(point)
        if self.rules.gradient.certified:
            self.bound = max(self.bound, point.value - gap)
        vertex, seconds = certified.vertex, self.seconds()
        state = State(t, seconds, self.x, point.value, gap, point.dual, point.gradient, vertex)
        return Iterate(state, point, certified)

    def stop_reason(self, here: Iterate) -> Stop | None:
        """Why the run is over at an iterate; None if it goes on."""
        state, limits = here.state, self.limits
        allowed = tolerance(limits.gap, state.value, optional_part(self.objective, "scale"))
        if self.rules.gradient.certified and state.gap <= allowed:
            active = self.direction.active
            known = [] if active is None else [active.matrix]
            if self.feasible.witness is not None and self.feasible.is_bounded:
                known.append(self.feasible.witness[None])
            for points in known:  # the gap proves nothing if a known point beats the oracle's
                refuse_beaten(self.feasible, here.certificate, state.gradient, points)
            return Stop.GAP
        left = seconds_left()  # also of a solve that this run is a part of
        if left is not None and left <= 0:
            return Stop.TIME
        return Stop.ITERATIONS if state.iteration == limits.iterations else None

    def choose_step(self, here: Iterate) -> Step | None:
        """The rules' step, else a plain one; None if neither improves the objective."""
        state = here.state
        move = self.direction.propose(self.x, state.gradient, state.vertex, here.certificate.slope)
        step = self.search_along(move, here)
        if step is None and not move.is_plain:
            step = self.search_along(self.direction.retreat(self.x, state.vertex), here)
        return step

    def search_along(self, move: Move, here: Iterate) -> Step | None:
        """The step along a move, the dual variable moving with it; None if it is zero."""
        x, point, rule = self.x, here.point, self.rules.dual

        def evaluate(s: float) -> Point:
            return self.evaluate(x + s * move.direction, rule.step(point, s))

        noise = optional_part(self.objective, "noise")
        ahead = (rule.direction(point), move.suggested, noise)
        line = Line(evaluate, point, move.direction, move.longest, *ahead)
        length = checked_step(self.step_rule(here.state.iteration, line), self.rules.step)
        if length <= 0:
            return None
        length = min(length, move.longest)
        end = self.clip(x + length * move.direction)
        return Step(length, end, rule.step(point, length), line.point(length))

    def take(self, step: Step) -> None:
        """Go to the end of a step."""
        exact = self.direction.accept(step.length)
        self.known = step.point if exact is None else None
        self.x = step.x if exact is None else self.clip(exact)
        self.dual = step.dual

    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def record(self, here: Iterate, step: Step | None) -> Record:
        """Append the line of an iterate to the trace, with the step that is taken from it."""
        state = here.state
        record = Record(
            state.iteration,
            state.time,
            state.value,
            state.gap,
            np.nan if state.dual is None else state.dual,
            np.nan if step is None else step.length,
            self.oracle_calls,
        )
        self.trace.records.append(record)
        return record

    def outcome(self, here: Iterate | None, stop: Stop) -> Outcome:
        """The outcome at an iterate; without one the first point, if that was evaluated."""
        if here is None:
            if self.known is None:
                raise KeyboardInterrupt if stop is Stop.INTERRUPT else OutOfTime
            x, point, gap, t, seconds, calls = self.x, self.known, np.inf, 0, self.seconds(), 0
        else:
            x, point, gap = here.state.x, here.point, here.state.gap
            t, seconds, calls = here.state.iteration, here.state.time, self.oracle_calls
        active = None if stop is Stop.INTERRUPT else self.direction.active
        bound, dual = self.bound, point.dual
        return Outcome(x, point, gap, bound, stop, t, seconds, calls, self.trace, dual, active)


def checked_step(length: Any, rule: StepRule) -> float:
    """The answer of a step rule, if it is a number."""
    if not isinstance(length, Real) or not float(length) >= 0:
        raise ValueError(
            f"the step rule {rule_name(rule)} answered {length!r}; it must return a number, the "
            "length of the step, in [0, line.longest]."
        )
    return float(length)


def check_finite(point: Point, iteration: int) -> None:
    """Refuse a value or gradient that is not finite, naming the coordinate."""
    name, value = "objective", point.value
    infinite = np.flatnonzero(~np.isfinite(point.gradient))
    if infinite.size:
        value = point.gradient[infinite[0]]
        name = f"gradient of the objective in coordinate {infinite[0]}"
    if not np.isfinite(value):
        raise FloatingPointError(
            f"the {name} is {value} at iteration {iteration}; keep the decision inside the domain "
            "of the loss."
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
    loop = Loop(objective, feasible, start, rules, limits, rng, active_set)
    last: Iterate | None = None
    with Display(verbose, progress, limits.iterations, title) as display, deadline(limits.seconds):
        try:
            for t in range(limits.iterations + 1):
                here = loop.evaluate_iterate(t)
                stop = loop.stop_reason(here) or asked_to_stop(callbacks, here.state)
                step = None if stop else loop.choose_step(here)
                display.show(loop.record(here, step), last=step is None)
                last = here
                if step is None:
                    break
                loop.take(step)
            stop = stop or Stop.STALLED
        except KeyboardInterrupt:
            stop = Stop.INTERRUPT
        except OutOfTime:
            stop = Stop.TIME
        outcome = loop.outcome(last, stop)
        display.end(stop.value)
    return outcome


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
