"""What is reported of a decision: its certificate, its status, and its true risk."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from cvxpy import settings

from wdro_model.model import Model, RobustModel
from wdro_model.objectives import exact
from wdro_model.objectives.ascent import climb
from wdro_model.objectives.empirical import Empirical
from wdro_model.objectives.exact import Counterpart, Extremal
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.solve.plan import Plan
from wdro_model.solve.solution import STATIONARY, Solution
from wdro_model.solve.units import Units, in_units
from wdro_model.solvers import FrankWolfe, MomentumFrankWolfe, Outcome
from wdro_model.solvers.certificate import certificate
from wdro_model.solvers.objective import Array, Point
from wdro_model.solvers.outcome import tolerance

FALSE = 1e-5
"""How far a counterpart of one's own may be below what is known, relative to that."""


def certified(
    objective: Any, oracle: FeasibleSet, x: Array, dual: float | None
) -> tuple[Point, float]:
    """A full evaluation at x and its Frank-Wolfe gap."""
    point = objective.evaluate(x, dual)
    return point, certificate(oracle, x, point.gradient).gap


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
    asked: int,
    reliable: bool = True,
    **details: Any,
) -> Solution:
    """The solution of a Frank-Wolfe run.

    same_objective: the bounds of the run hold for the reported value, which was not re-estimated.
    asked: the calls of the oracle before the solve.
    reliable: the Monte Carlo error of the value is within the tolerance.
    """
    value = point.value
    if chosen.counterpart is not None and not chosen.counterpart.is_proven:
        assert isinstance(model, RobustModel)
        refuse_false_value(model, outcome.x, value, chosen.counterpart)
    close = gap <= tolerance(solver.gap, value, details.get("epsilon") or 0.0)
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
        oracle_calls=model.feasible.oracle().calls - asked,
        gap=gap,
        lower_bound=float(bound) if convex and reliable else None,
        dual=point.dual,
        trace=outcome.trace,
        active_set=outcome.active_set,
        **details,
        **evaluations(model, outcome.x, dual=point.dual, known=below if reliable else -np.inf),
    )


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
    mean = Empirical(model).evaluate(x).value
    if not isinstance(model, RobustModel) or not model.has_ball:
        return {"empirical_value": mean, "robust_value": robust}
    if robust is None:
        robust = mean if model.radius == 0 else known_robust_value(model, x)
    if robust is not None or dual is None:
        return {"empirical_value": mean, "robust_value": robust}
    found = climb(model, x, dual)
    bound = max(known, -np.inf if found is None else found.expected_loss)
    return {
        "empirical_value": mean,
        "robust_value": float(bound) if np.isfinite(bound) else None,
        "robust_value_is_bound": bool(np.isfinite(bound)),
    }


def known_robust_value(model: RobustModel, x: Array) -> float | None:
    """The worst-case risk of a decision over the ball; None where no formula is known."""
    found = exact.counterpart(model) if exact.has_counterpart(model) else None
    return None if found is None else robust_value(model, x, found)


def robust_value(model: RobustModel, x: Array, found: Counterpart) -> float:
    """The worst-case risk of a decision, by its counterpart, worked out in the model's units."""
    units = _units(model, found)
    value = units.loss * found.value(units.model, x)
    if not found.is_proven:
        refuse_false_value(model, x, value, found)
    return value


def refuse_false_value(model: RobustModel, x: Array, value: Any, found: Counterpart) -> None:
    """A ValueError where a counterpart's risk is below that of a distribution of the ball."""
    mean = Empirical(model).evaluate(x).value
    moved = climb(model, x)
    known = mean if moved is None else max(mean, moved.expected_loss)
    number = np.ndim(value) == 0 and np.isfinite(value)
    if number and value >= known - FALSE * max(abs(known), abs(known - mean), 1e-3):
        return
    raise ValueError(
        f"the counterpart {type(found).__name__} gives the worst-case risk {value!r}, but some "
        f"distribution of the ball has the expected loss {known:.8g} at this decision (the data "
        f"itself has {mean:.8g}); correct its formula, or its refusal."
    )


def refuse_false_distribution(model: RobustModel, worst: Extremal, found: Counterpart) -> None:
    """A ValueError where what a counterpart calls its worst case is no distribution of the ball."""
    size, count = len(model.rows), len(worst.weights)
    shapes = np.shape(worst.rows) == (count, model.rows.shape[1]) and len(worst.source) == count
    if shapes and np.all(np.isin(worst.source, np.arange(size))) and np.all(worst.weights >= 0):
        shares = np.bincount(worst.source, worst.weights, minlength=size)
        cost = float(worst.weights @ model.cost(model.rows[worst.source], worst.rows))
        fair = np.allclose(shares, 1.0 / size, rtol=1e-6)
        if fair and cost <= model.radius * (1 + 1e-5):
            return
    raise ValueError(
        f"the worst case of the counterpart {type(found).__name__} is no distribution of the ball: "
        "rows (K, d) come from the samples `source` (K,) with `weights` (K,), which add up to 1/N "
        "for each sample, and move them at a mean cost of at most the radius."
    )


def worst_distribution(model: RobustModel, x: Array, found: Counterpart) -> Extremal:
    """A distribution of the ball that attains it."""
    units = _units(model, found)
    worst = found.extremal(units.model, x)
    if units.model is not model:
        dual = worst.dual * units.loss / units.cost
        worst = Extremal(worst.rows * units.data, worst.weights, worst.source, dual)
    if not found.is_proven:
        refuse_false_distribution(model, worst, found)
    return worst


def _units(model: RobustModel, found: Counterpart) -> Units:
    """The model in its own units, where samples are written out and the counterpart allows it."""
    units = in_units(model) if found.writes_samples(model) else Units.of(model)
    return units if found.refusal(units.model) is None else Units.of(model)
