"""Carrying out a plan: run, certify, report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy import settings
from cvxpy.error import SolverError

from wdro_model.feasible import meets
from wdro_model.methods import Plan, empirical, plan
from wdro_model.model import Model
from wdro_model.objectives import exact
from wdro_model.objectives.ascent import climb
from wdro_model.objectives.base import Array, Point
from wdro_model.options import Options
from wdro_model.rescaling import solve_in_units
from wdro_model.sets.base import FeasibleSet
from wdro_model.solution import STATIONARY, Solution
from wdro_model.solvers import Conic, FrankWolfe, MomentumFrankWolfe, Outcome
from wdro_model.solvers.directions import ActiveSet
from wdro_model.solvers.driver import ABSOLUTE_GAP


def run_conic(model: Model, chosen: Plan, solver: Conic, options: Options) -> Solution:
    """Hand the convex program to a conic solver."""
    began = time.perf_counter()
    assert chosen.program is not None
    layout = model.feasible.layout
    try:
        judge = judge_of(model, chosen.method)
        answer = solve_in_units(model, chosen.program, solver, judge, verbose=options.verbose)
    except SolverError as error:
        if not model.feasible.is_integer:
            raise
        raise ValueError(
            "no installed solver takes this mixed-integer program (installed: "
            f"{', '.join(cp.installed_solvers())}); install one that does (pip install pyscipopt), "
            "keep the program linear (a cost such as Norm(1)), or drop integer=True."
        ) from error
    x = layout.join({v: v.value for v in layout.variables if v.value is not None})
    value = answer.value
    return Solution(
        method=chosen.method,
        status=answer.status,
        value=value,
        decision=layout.split(x),
        solver=f"conic solver {answer.solver}",
        seconds=time.perf_counter() - began,
        stop="the conic solver finished",
        convex=True,
        iterations=answer.iterations,
        **evaluations(model, x, value if chosen.method == "exact" else None),
    )


def judge_of(model: Model, method: str) -> Callable[[Array], float]:
    """The true objective of a decision: the mean loss, or its worst-case risk."""
    if method == "exact" and model.radius > 0:
        found = exact.counterpart(model)
        return found.value
    return lambda x: empirical(model).evaluate(x).value


def run_first_order(
    model: Model, chosen: Plan, solver: FrankWolfe | MomentumFrankWolfe, options: Options
) -> Solution:
    """Frank-Wolfe on an objective without Monte Carlo error."""
    began = time.perf_counter()
    assert chosen.objective is not None
    objective: Any = chosen.objective()
    oracle = bounded_oracle(model)
    rng = np.random.default_rng(options.seed)
    start = first_point(model, objective, options, rng)
    shown: dict[str, Any] = display(options, chosen)
    if isinstance(solver, FrankWolfe):
        shown["active_set"] = warm_active_set(model, options.start)
    outcome = solver.run(objective, oracle, start, rng=rng, **shown)
    point, gap = outcome.point, outcome.gap
    if isinstance(solver, MomentumFrankWolfe):
        point, gap = certified(objective, oracle, outcome.x, None)
    return report(
        model,
        chosen,
        solver,
        outcome,
        point,
        gap,
        convex=objective.convex,
        began=began,
        same_objective=True,
    )


def run_empirical(model: Model, options: Options) -> Array:
    """The ERM decision, as a flat vector."""
    model = replace(model, ambiguity=None)  # its worst-case risk is not asked for
    chosen = plan(model, "erm", None)
    quiet = replace(options, verbose=False, start=None, seed=0)
    with model.feasible.layout.holding():
        if isinstance(chosen.solver, Conic):
            solution = run_conic(model, chosen, chosen.solver, quiet)
        else:
            solution = run_first_order(model, chosen, chosen.solver, quiet)
    return model.feasible.layout.join(solution.decision)


def report(
    model: Model,
    chosen: Plan,
    solver: FrankWolfe | MomentumFrankWolfe,
    outcome: Outcome,
    point: Point,
    gap: float,
    *,
    convex: bool,
    began: float,
    same_objective: bool,
    reliable: bool = True,
    **details: Any,
) -> Solution:
    """The solution of a Frank-Wolfe run.

    same_objective: the bounds of the run hold for the reported value, which was not re-estimated.
    reliable: the Monte Carlo error of the value is within the tolerance.
    """
    value, gap = point.value, max(gap, 0.0)  # oracles are exact up to rounding
    close = gap <= max(solver.gap * abs(value), ABSOLUTE_GAP)
    solved = settings.OPTIMAL if convex else STATIONARY
    if not reliable:
        solved = settings.OPTIMAL_INACCURATE if convex else settings.USER_LIMIT
    error = 0.0 if point.diagnostics is None else point.diagnostics.standard_error
    # F is below the worst-case risk at the dual that minimises it.
    below = value - 2 * error - (point.dual_residual if point.dual_gradient is None else gap)
    bound = max(outcome.lower_bound, value - gap) if same_objective else value - gap - 2 * error
    return Solution(
        method=chosen.method,
        status=solved if close else settings.USER_LIMIT,
        value=value,
        decision=model.feasible.layout.split(outcome.x),
        solver=solver.describe(model.feasible.oracle()),
        seconds=time.perf_counter() - began,
        stop=outcome.stop.value,
        convex=convex,
        iterations=outcome.iterations,
        oracle_calls=outcome.oracle_calls,
        gap=gap,
        lower_bound=float(bound) if convex and reliable else None,
        dual=point.dual,
        trace=outcome.trace,
        active_set=outcome.active_set,
        **details,
        **evaluations(model, outcome.x, dual=point.dual, known=below if reliable else -np.inf),
    )


# ------------------------------------------------------------------ parts
def bounded_oracle(model: Model) -> FeasibleSet:
    """The oracle of the feasible set: bounded, and with no memory of earlier solves."""
    oracle = model.feasible.oracle()
    oracle.check_bounded()
    oracle.reset()
    return oracle


def display(options: Options, chosen: Plan) -> dict[str, Any]:
    """How a run shows itself."""
    return {"verbose": options.verbose, "progress": options.progress, "title": chosen.method}


def first_point(model: Model, objective: Any, options: Options, rng: np.random.Generator) -> Array:
    """The user's start, else a random vertex, improved by an oracle call given an objective."""
    oracle = model.feasible.oracle()
    if options.start is not None:
        start = user_start(model, options.start)
        refuse_outside(model, start)
        return start
    direction = rng.standard_normal(oracle.dimension)
    x = oracle.minimize(np.abs(direction) if oracle.nonnegative_directions else direction)
    return x if objective is None else oracle.minimize(objective.evaluate(x).gradient)


def user_start(model: Model, start: Any, name: str = "start") -> Array:
    """A decision of the user, {variable: value} or a solution, as a flat vector."""
    layout = model.feasible.layout
    values = start.decision if isinstance(start, Solution) else start
    if not hasattr(values, "items"):
        raise ValueError(
            f"{name} must be a dict {{variable: value}} or a solution, got {type(start).__name__}."
        )
    for variable in layout.variables:
        if variable not in values:
            raise ValueError(f"{name} has no value for the variable {variable.name()!r}.")
        value = np.asarray(values[variable], dtype=float)
        if value.shape != variable.shape:
            raise ValueError(
                f"{name} for {variable.name()!r} must have shape {variable.shape}, "
                f"got {value.shape}."
            )
        if not np.isfinite(value).all():
            where = tuple(map(int, np.argwhere(~np.isfinite(value))[0]))
            raise ValueError(
                f"{name} for {variable.name()!r} must be finite, got {value[where]} at {where}."
            )
    return layout.join(values)


def refuse_outside(model: Model, x: Array, tolerance: float = 1e-5) -> None:
    """A start outside the feasible set would carry a certificate that is none."""
    lower, upper = model.feasible.bounds()
    outside = bool(np.any(x < lower - tolerance) or np.any(x > upper + tolerance))
    with model.feasible.layout.holding(x):
        outside = outside or not meets(model.feasible.constraints, tolerance)
    if outside:
        raise ValueError(
            "start lies outside the feasible set; give a point that meets the constraints, such as "
            "an earlier solution."
        )


def warm_active_set(model: Model, start: Any) -> ActiveSet | None:
    """The active set of a solution that is given as a start, if it has one that fits."""
    active = start.active_set if isinstance(start, Solution) else None
    fits = active is not None and active.dimension == model.feasible.layout.dimension
    return active if fits else None


def certified(
    objective: Any, oracle: FeasibleSet, x: Array, dual: float | None
) -> tuple[Point, float]:
    """A full evaluation at x and its Frank-Wolfe gap."""
    point = objective.evaluate(x, dual)
    return point, float(point.gradient @ (x - oracle.minimize(point.gradient)))


def evaluations(
    model: Model,
    x: Array,
    robust: float | None = None,
    dual: float | None = None,
    known: float = -np.inf,
) -> dict[str, Any]:
    """Mean loss and worst-case risk of a decision: by a formula, or a bound where there is none.

    robust: the worst-case risk, where the solve was exact and gave it.
    dual: the price of transport that a smoothed solve found.
    known: a lower bound on the worst-case risk that it gave.
    """
    mean = empirical(model).evaluate(x).value
    if robust is None and model.joint is not None and model.ambiguity is not None:
        robust = mean if model.radius == 0 else exact.robust_value(model, x)
    if robust is not None or dual is None:
        return {"empirical_value": mean, "robust_value": robust}
    found = climb(model, x, dual)
    bound = max(known, -np.inf if found is None else found.expected_loss)
    return {
        "empirical_value": mean,
        "robust_value": float(bound) if np.isfinite(bound) else None,
        "robust_value_is_bound": bool(np.isfinite(bound)),
    }
