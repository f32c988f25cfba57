"""What discrete decisions are judged by: the objective of the solve that they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wdro_model.model import Model, RobustModel
from wdro_model.objectives import exact
from wdro_model.objectives.dual import DualMinimum
from wdro_model.solve.certify import Solution
from wdro_model.solve.options import Options
from wdro_model.solve.plan import empirical_with_convexity
from wdro_model.solve.smoothed import prepare
from wdro_model.solve.temperature import first_dual
from wdro_model.solve.true_risk import robust_value, worst_distribution
from wdro_model.solvers import FrankWolfe
from wdro_model.solvers.objective import Array

MEAN, ROBUST, SMOOTHED = (
    "mean loss over the samples",
    "worst-case risk",
    "smoothed worst-case risk",
)
FEW = 40
"""Evaluations that a search may take of a criterion without a closed form."""
LONG, SOME = 2000, 300
"""The same for decisions of more coordinates than this, and a smooth criterion."""


@dataclass(frozen=True)
class Criterion:
    """A function of the flat decision, and the method of `solve` that minimises it."""

    name: str
    method: str
    value: Callable[[Array], float]
    slope: Callable[[Array], Array]
    """A gradient of the value, or a subgradient where there is none."""
    convex: bool
    most: int | None = None
    """Evaluations that a search may take; None where they cost little."""
    options: Options = field(default_factory=Options)
    """What `solve` is to be asked for beside the method."""
    known: dict[bytes, float] = field(default_factory=dict, repr=False, compare=False)

    def __call__(self, x: Array) -> float:
        key = x.tobytes()
        if key not in self.known:
            self.known[key] = float(self.value(x))
        return self.known[key]

    @property
    def gradient(self) -> Callable[[Array], Array] | None:
        """The slope, if the criterion is convex, so that it bounds what exchanges can gain."""
        return self.slope if self.convex else None


def criterion_of(model: Model, solution: Solution | None, x: Array) -> Criterion:
    """The mean loss after ERM and without a ball, else the worst-case risk.

    The risk is exact where a formula is known, smooth or not; elsewhere it is the smoothed one, at
    the scales of the solution.
    """
    averaged = model.radius == 0 or (solution is not None and solution.method == "erm")
    if averaged or not isinstance(model, RobustModel):
        mean = empirical_with_convexity(model)
        return of_objective(MEAN, "erm", mean, most=most_of(model))
    if not exact.has_counterpart(model):
        return smoothed_risk(model, solution, x)
    found = exact.counterpart(model)
    if found.has_objective(model):
        return of_objective(ROBUST, "exact", found.objective(model), most=most_of(model))
    return Criterion(
        ROBUST,
        "exact",
        lambda y: robust_value(model, y, found),
        lambda y: slope_at_worst_case(model, found, y),
        model.convex_in_decision,
        FEW,
    )


def of_objective(name: str, method: str, objective: Any, **details: Any) -> Criterion:
    """A criterion that is smooth in the decision."""
    return Criterion(
        name,
        method,
        lambda x: objective.evaluate(x).value,
        lambda x: np.asarray(objective.evaluate(x).gradient),
        objective.convex,
        **details,
    )


def most_of(model: Model) -> int | None:
    """Evaluations that a search may take of a smooth criterion: fewer for long decisions."""
    return None if model.loss.dimension <= LONG else SOME


def smoothed_risk(model: RobustModel, solution: Solution | None, x: Array) -> Criterion:
    """The smoothed objective with the draws of no run."""
    scales = (None, None) if solution is None else (solution.epsilon, solution.sigma)
    options = Options(epsilon=scales[0], sigma=scales[1], progress=False)
    solver = FrankWolfe()
    recipe = prepare(model, solver, options)
    objective = recipe.objective(solver.samples, 0)
    dual = None if solution is None else solution.dual
    objective.minimum = DualMinimum(dual or first_dual(model, x), np.nan)
    settled = Options(epsilon=recipe.epsilon, sigma=recipe.sigma, progress=False)
    return of_objective(SMOOTHED, "smoothed", objective, most=FEW, options=settled)


def slope_at_worst_case(model: RobustModel, found: exact.Counterpart, x: Array) -> Array:
    """The gradient of the expected loss under the worst distribution at x: a subgradient."""
    worst = worst_distribution(model, x, found)
    _, pullback = model.loss(x, worst.rows)
    return np.asarray(pullback(worst.weights))
