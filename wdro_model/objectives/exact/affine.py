"""A loss that is affine in the data, with a quadratic cost: every sample moves the same way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.loss.polynomial import affine_parts
from wdro_model.loss.rewriting import substitute
from wdro_model.model import RobustModel
from wdro_model.objectives.exact.box import BoxLoss
from wdro_model.objectives.exact.counterpart import Counterpart, Extremal, unmoved
from wdro_model.objectives.exact.pieces import flat_slope
from wdro_model.objectives.exact.refusals import first_refusal, needs_affine, needs_quadratic_cost
from wdro_model.objectives.exact.support import moves_freely
from wdro_model.objectives.programs import Program
from wdro_model.objectives.robust_affine import RobustAffine
from wdro_model.solvers.objective import Array

LARGEST = 50_000
"""On a box, a conic program is written for at most so many entries N d of the data."""


@dataclass(frozen=True)
class AffineLoss(Counterpart):
    """a(x) + <B(x), xi>, squared or Mahalanobis cost, R^d or a box."""

    formula = "mean f + sqrt(radius) * |B(x)| in the dual norm of the cost"

    def refusal(self, model: RobustModel) -> str | None:
        reason = first_refusal(
            model, needs_affine, needs_quadratic_cost("dual_norm", "inverse_times")
        )
        if reason is not None:
            return reason
        if not model.joint.everywhere and model.joint.bounds is None:
            return "the support has no coordinate structure"
        if not model.joint.everywhere and not model.cost.is_separable:
            return "the ground cost couples the coordinates of a box support"
        return None

    def program(self, model: RobustModel) -> Program | None:
        parts = affine_parts(model.expression, model.joint.parameters)
        if not moves_freely(model) and not signs_stay_inside(model, parts.slopes):
            # Large programs are left to Frank-Wolfe, whose steps need no multipliers.
            return BoxLoss().program(model) if is_small(model) else None
        mean = substitute(model.expression, model.mean_values())
        norm = model.cost.dual_norm(flat_slope(model, parts.slopes))
        return Program.if_convex(mean + np.sqrt(model.radius) * norm)

    def writes_samples(self, model: RobustModel) -> bool:
        return not moves_freely(model) and is_small(model)

    def has_objective(self, model: RobustModel) -> bool:
        return True

    def objective(self, model: RobustModel) -> RobustAffine:
        return robust_affine(model, model.convex_in_decision)

    def value(self, model: RobustModel, x: Array) -> float:
        return robust_affine(model, convex=False).evaluate(x).value

    def extremal(self, model: RobustModel, x: Array) -> Extremal:
        return moved_samples(model, x)


def is_small(model: RobustModel) -> bool:
    """Can a multiplier be written out for each entry of the samples?"""
    return model.joint.size * model.joint.dimension <= LARGEST


def robust_affine(model: RobustModel, convex: bool) -> RobustAffine:
    """The worst-case risk as a smooth function of x."""
    return RobustAffine(model.loss, model.joint, model.cost, model.radius, convex=convex)


def moved_samples(model: RobustModel, x: Array) -> Extremal:
    """Every sample moved by the worst shift, clipped on boxes."""
    found = robust_affine(model, convex=False).moves(x)
    still = unmoved(model)
    return Extremal(still.rows + found.moves, still.weights, still.source, found.dual)


def signs_stay_inside(model: RobustModel, slopes: dict[Any, Any]) -> bool:
    """Do slopes of known sign move the samples only where their supports are unbounded?"""
    if model.joint.bounds is None:
        return False
    lower, upper = model.joint.bounds
    for parameter, where in model.joint.slices.items():
        slope = slopes[parameter]
        up, down = np.all(np.isposinf(upper[where])), np.all(np.isneginf(lower[where]))
        if not ((up and down) or (up and slope.is_nonneg()) or (down and slope.is_nonpos())):
            return False
    return True
