"""What comes back where a conic solver was stopped: a feasible decision and what it is worth."""

from __future__ import annotations

import time

import cvxpy as cp
import numpy as np
from cvxpy import settings
from cvxpy.error import SolverError

from wdro_model.model import Model
from wdro_model.model.feasible import meets
from wdro_model.sets.deadlines import OutOfTime, more_time
from wdro_model.solve.certify import Solution, evaluations
from wdro_model.solve.first_order import refuse_outside, user_start
from wdro_model.solve.judges import judge_of
from wdro_model.solve.options import Options
from wdro_model.solve.plan import Plan
from wdro_model.solvers import Stop
from wdro_model.solvers.cone_solver import Conic
from wdro_model.solvers.objective import Array

ROOM = 0.3
"""Seconds for the way into the feasible set."""
NEAR = 1e-6
"""Points that are closer to holding all constraints are feasible."""
NO_GAP = "how far its value is from the optimum is not known."
REACHED = f"the conic solver was stopped: the decision is the point that it had reached; {NO_GAP}"
GIVEN = f"the conic solver was stopped: the decision is the start; {NO_GAP}"
SOME = (
    "the time was over before the conic solver had a point: the decision is the feasible one "
    f"nearest to zero; {NO_GAP}"
)
NO_VALUE = "its value was not computed for want of time."


def unfinished(
    model: Model,
    chosen: Plan,
    solver: Conic,
    options: Options,
    error: OutOfTime | KeyboardInterrupt,
    reached: Array | None,
    began: float,
) -> Solution:
    """The best feasible decision that is known; the error itself where there is none."""
    found = [(value_of(model, chosen, x), x, why) for x, why in known(model, options, reached)]
    if not found and isinstance(error, OutOfTime) and not model.feasible.is_integer:
        some = nearest_feasible(model, np.zeros(model.feasible.layout.dimension))
        found = [] if some is None else [(value_of(model, chosen, some), some, SOME)]
    if not found:
        raise error
    value, x, why = min(found, key=lambda one: (np.isnan(one[0]), one[0]))
    stop = Stop.TIME if isinstance(error, OutOfTime) else Stop.INTERRUPT
    is_robust = chosen.method == "exact" and np.isfinite(value)
    return Solution(
        method=chosen.method,
        status=settings.USER_LIMIT,
        value=value,
        decision=model.feasible.layout.split(x),
        solver=solver.describe(),
        seconds=time.perf_counter() - began,
        stop=stop.value,
        convex=True,
        notes=(why,) if np.isfinite(value) else (why, NO_VALUE),
        **evaluations(model, x, value if is_robust else None, late=True),
    )


def known(model: Model, options: Options, reached: Array | None) -> list[tuple[Array, str]]:
    """Feasible decisions, and where they come from."""
    found = []
    if reached is not None and np.isfinite(reached).all():
        integer = model.feasible.is_integer
        x = inside(model, reached) if integer else nearest_feasible(model, reached)
        if x is not None:
            found.append((x, REACHED))
    if options.start is not None:
        start = user_start(model, options.start)
        refuse_outside(model, start)
        found.append((start, GIVEN))
    return found


def inside(model: Model, x: Array) -> Array | None:
    """x with its integers rounded, if that meets all constraints."""
    whole = np.where(model.feasible.discrete, np.rint(x), x)
    lower, upper = model.feasible.bounds()
    if np.any(whole < lower - NEAR) or np.any(whole > upper + NEAR):
        return None
    with model.feasible.layout.holding(whole):
        return whole if meets(model.feasible.conic_constraints(), NEAR) else None


def nearest_feasible(model: Model, x: Array) -> Array | None:
    """The point of the feasible set that is nearest to x; None where it is not found in time.

    Constraints with samples of their own are programs as large as the one that took too long.
    """
    if (within := inside(model, x)) is not None or model.feasible.uncertain:
        return within
    layout = model.feasible.layout
    with model.feasible.holding():
        parts = layout.split(x)
        distance = cp.sum([cp.sum_squares(v - parts[v]) for v in layout.variables])
        problem = cp.Problem(cp.Minimize(distance), model.feasible.conic_constraints())
        try:
            with more_time(ROOM):
                found = Conic(cp.CLARABEL).run_again(problem)
        except (SolverError, OutOfTime):
            return None
        if found is None:
            return None
        return layout.join({v: v.value for v in layout.variables})


def value_of(model: Model, chosen: Plan, x: Array) -> float:
    """The objective of the method at x; NaN where that takes too long."""
    try:
        return judge_of(model, chosen)(x)
    except (OutOfTime, SolverError):
        return np.nan
