"""A loss that is affine in the data, with a quadratic cost: every sample moves the same way.

A quadratic form whose matrix is uncertain is one of them, B(x) = x x', which CVXPY does not see to
be convex: its worst case adds to the diagonal of the matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss.atoms.quadratic import QuadraticForm
from wdro_model.loss.expressions import substitute
from wdro_model.loss.polynomial import affine_parts
from wdro_model.model import RobustModel
from wdro_model.objectives.convexity import (
    LARGEST,
    QuadraticTerm,
    has_one_weight,
    is_positive_semidefinite,
    quadratic_term,
)
from wdro_model.objectives.empirical import Program, flat_slope
from wdro_model.objectives.exact.counterpart import (
    Counterpart,
    Extremal,
    first_refusal,
    moves_freely,
    needs_affine,
    needs_quadratic_cost,
)
from wdro_model.objectives.exact.max_affine_on_box import MaxAffineOnBox
from wdro_model.objectives.exact.robust_affine import RobustAffine
from wdro_model.solvers.objective import Array

MOST_ENTRIES = 50_000
"""On a box, a conic program is written for at most so many entries N d of the data."""


@dataclass(frozen=True)
class AffineLoss(Counterpart):
    """a(x) + <B(x), xi>, squared or Mahalanobis cost, R^d or a box."""

    is_proven = True
    formula = (
        "mean f + sqrt(radius) * |B(x)| in the dual norm of the cost, moves clipped to the support"
    )

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
            return MaxAffineOnBox().program(model) if is_small(model) else None
        mean = substitute(model.expression, model.mean_values())
        norm = model.cost.dual_norm(flat_slope(model, parts.slopes))
        return Program.if_convex(mean + model.written_root * norm)

    def writes_samples(self, model: RobustModel) -> bool:
        return not moves_freely(model) and is_small(model)

    def has_objective(self, model: RobustModel) -> bool:
        return True

    def objective(self, model: RobustModel) -> RobustAffine:
        return RobustAffine(model, model.convex_in_decision)

    def value(self, model: RobustModel, x: Array) -> float:
        return RobustAffine(model, convex=False).evaluate(x).value

    def extremal(self, model: RobustModel, x: Array) -> Extremal:
        return RobustAffine(model, convex=False).extremal(x)


def is_small(model: RobustModel) -> bool:
    """Can a multiplier be written out for each entry of the samples?"""
    return model.joint.size * model.joint.dimension <= MOST_ENTRIES


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


# ------------------------------------------------------------------ quadratic forms
@dataclass(frozen=True)
class QuadraticFormLoss(AffineLoss):
    """a x' Xi x + g(x), squared cost with one weight w, R^d (or orthant, for x of one sign)."""

    formula = "a x' (mean + sqrt(radius/w) I) x + g(x)"

    def refusal(self, model: RobustModel) -> str | None:
        reason = first_refusal(
            model, needs_affine, needs_quadratic_cost("inverse_times"), needs_quadratic_form
        )
        if reason is not None:
            return reason
        if not has_one_weight(model):
            return "the cost does not weigh all entries of the matrix alike"
        if not moves_stay_inside(model):
            return "the worst-case move may leave the support"
        return None

    def program(self, model: RobustModel) -> Program | None:
        matrix, term = worst_matrix(model), known_term(model)
        if not is_positive_semidefinite(matrix):
            return None
        # The shift makes the form convex up to rounding; CVXPY need not look at it again.
        quadratic = cp.quad_form(term.variable, cp.psd_wrap(term.factor * matrix))
        return Program.if_convex(quadratic if term.rest is None else quadratic + term.rest)

    def writes_samples(self, model: RobustModel) -> bool:
        return False

    def objective(self, model: RobustModel) -> RobustAffine:
        rest = known_term(model).rest
        convex = model.convex_in_decision or (
            model.loss.dimension <= LARGEST
            and is_positive_semidefinite(worst_matrix(model))
            and (rest is None or rest.is_convex())
        )
        return RobustAffine(model, convex)


def needs_quadratic_form(model: RobustModel) -> str | None:
    # A loss without the atom is not looked at any further.
    if QuadraticForm not in model.expression.atoms() or quadratic_term(model) is None:
        return "the loss is not a multiple of quadratic_form(x, Xi) plus terms without data"
    return None


def known_term(model: RobustModel) -> QuadraticTerm:
    """The quadratic term of a loss that has one."""
    term = quadratic_term(model)
    assert term is not None
    return term


def worst_matrix(model: RobustModel) -> Array:
    """mean + sqrt(radius/w) I, symmetrised."""
    (mean,) = model.mean_values().values()
    weight = float(model.cost.coordinate_weights[0])
    shifted = mean + np.sqrt(model.radius / weight) * np.eye(len(mean))
    return (shifted + shifted.T) / 2


def moves_stay_inside(model: RobustModel) -> bool:
    """For B = x x': is the support R^d, or unbounded above with x of one sign?"""
    if model.joint.everywhere:
        return True
    if model.joint.bounds is None:
        return False
    lower, upper = model.feasible.bounds()
    where = model.feasible.layout.slices[known_term(model).variable]
    one_sign = bool(np.all(lower[where] >= 0) or np.all(upper[where] <= 0))
    return one_sign and bool(np.all(np.isposinf(model.joint.bounds[1])))
