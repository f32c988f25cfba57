"""The clock of a solve: its time limit, Ctrl-C, and the decision that comes back after them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy import settings
from cvxpy.error import SolverError

from wdro_model.model import Model
from wdro_model.model.feasible import meets
from wdro_model.sets.deadlines import OutOfTime, more_time
from wdro_model.solve.certify import Solution, evaluations
from wdro_model.solve.options import Options
from wdro_model.solve.plan import Plan
from wdro_model.solve.start import refuse_outside, user_start
from wdro_model.solve.true_risk import true_objective
from wdro_model.solvers import Conic, Stop
from wdro_model.solvers.objective import Array

PROJECTION_SECONDS = 0.3
"""Seconds for the way into the feasible set once the time is over."""
FEASIBILITY_TOLERANCE = 1e-6
"""Largest violation of a constraint at a decision that is called feasible."""
NO_GAP = "how far its value is from the optimum is not known."
REACHED = f"the conic solver was stopped: the decision is the point that it had reached; {NO_GAP}"
START = f"the conic solver was stopped: the decision is the start; {NO_GAP}"
NEAREST_TO_ZERO = (
    "the time was over before the conic solver had a point: the decision is the feasible one "
    f"nearest to zero; {NO_GAP}"
)
NO_VALUE = "its value was not computed for want of time."


class Clock:
    """When a solve began, the time that is left of its limit, and what has stopped it.

    limit: seconds; None where the solve ends by itself, or by a deadline around it.
    """

    def __init__(self, limit: float | None = None) -> None:
        self.began, self.limit = time.perf_counter(), limit
        self.error: OutOfTime | KeyboardInterrupt | None = None
        """What has ended the last block of `until_stopped`; None if it came to its end."""

    @property
    def seconds(self) -> float:
        """The seconds since the solve began."""
        return time.perf_counter() - self.began

    @property
    def seconds_left(self) -> float | None:
        """The seconds that are left, a positive number; None without a limit."""
        return None if self.limit is None else max(1e-9, self.limit - self.seconds)

    @property
    def is_over(self) -> bool:
        """Has the limit passed?"""
        return self.limit is not None and self.seconds >= self.limit

    @property
    def stop(self) -> Stop | None:
        """Time limit or Ctrl-C, where one of them has ended the last block."""
        if self.error is None:
            return None
        return Stop.TIME if isinstance(self.error, OutOfTime) else Stop.INTERRUPT

    def limited(self, solver: Any, *, used: int = 0, share: float = 1.0) -> Any:
        """The solver with a share of the time that is left, and the iterations after `used`."""
        limits: dict[str, Any] = {"max_iterations": max(0, solver.max_iterations - used)}
        if (left := self.seconds_left) is not None:
            limits["time_limit"] = share * left
        return replace(solver, **limits)

    @contextmanager
    def until_stopped(self) -> Iterator[None]:
        """Run a block that the end of the time and Ctrl-C may end early; `stop` tells which."""
        self.error = None
        try:
            yield
        except (OutOfTime, KeyboardInterrupt) as error:
            self.error = error


# ------------------------------------------------------------------ without an answer
def best_known_solution(
    model: Model, chosen: Plan, solver: Any, options: Options, clock: Clock, reached: Array | None
) -> Solution:
    """The best feasible decision that is known; the error of the clock where there is none.

    reached: the point at which a solver was stopped.
    """
    assert clock.error is not None
    assert clock.stop is not None
    decisions = feasible_decisions(model, options, reached)
    if not decisions and clock.stop is Stop.TIME and not model.feasible.is_integer:
        nearest = nearest_feasible(model, np.zeros(model.feasible.layout.dimension))
        decisions = [] if nearest is None else [(nearest, NEAREST_TO_ZERO)]
    if not decisions:
        raise clock.error
    valued = [(_value_in_time(model, chosen, x), x, why) for x, why in decisions]
    value, x, why = min(valued, key=lambda one: (np.isnan(one[0]), one[0]))
    is_robust = chosen.method == "exact" and np.isfinite(value)
    return Solution(
        method=chosen.method,
        status=settings.USER_LIMIT,
        value=value,
        decision=model.feasible.layout.split(x),
        solver=solver.describe(),
        seconds=clock.seconds,
        stop=clock.stop.value,
        convex=True,
        notes=(why,) if np.isfinite(value) else (why, NO_VALUE),
        **evaluations(model, x, value if is_robust else None, late=True),
    )


def feasible_decisions(
    model: Model, options: Options, reached: Array | None
) -> list[tuple[Array, str]]:
    """Feasible decisions that are known, each with a note on where it comes from."""
    decisions = []
    if reached is not None and np.isfinite(reached).all():
        integer = model.feasible.is_integer
        x = _rounded(model, reached) if integer else nearest_feasible(model, reached)
        decisions += [] if x is None else [(x, REACHED)]
    if options.start is not None:
        start = user_start(model, options.start)
        refuse_outside(model, start)
        decisions.append((start, START))
    return decisions


def nearest_feasible(model: Model, x: Array) -> Array | None:
    """The point of the feasible set that is nearest to x; None where it is not found in time.

    Constraints with samples of their own are programs as large as the one that took too long.
    """
    if (rounded := _rounded(model, x)) is not None or model.feasible.uncertain:
        return rounded
    layout = model.feasible.layout
    with model.feasible.holding():
        parts = layout.split(x)
        distance = cp.sum([cp.sum_squares(v - parts[v]) for v in layout.variables])
        problem = cp.Problem(cp.Minimize(distance), model.feasible.conic_constraints())
        try:
            with more_time(PROJECTION_SECONDS):
                answer = Conic(cp.CLARABEL).run_again(problem)
        except (SolverError, OutOfTime):
            return None
        return None if answer is None else layout.join({v: v.value for v in layout.variables})


def _rounded(model: Model, x: Array) -> Array | None:
    """x with its integers rounded, if that meets all constraints."""
    rounded = np.where(model.feasible.discrete, np.rint(x), x)
    lower, upper = model.feasible.bounds()
    slack = FEASIBILITY_TOLERANCE
    if np.any(rounded < lower - slack) or np.any(rounded > upper + slack):
        return None
    with model.feasible.layout.holding(rounded):
        return rounded if meets(model.feasible.conic_constraints(), slack) else None


def _value_in_time(model: Model, chosen: Plan, x: Array) -> float:
    """The objective of the method at x; NaN where that takes too long."""
    try:
        return true_objective(model, chosen)(x)
    except (OutOfTime, SolverError):
        return np.nan
