"""A quadratic form whose matrix is uncertain: the worst case adds to its diagonal."""

from __future__ import annotations

from dataclasses import dataclass

import cvxpy as cp
import numpy as np

from wdro_model.model import RobustModel
from wdro_model.objectives.convexity import (
    LARGEST,
    has_one_weight,
    is_positive_semidefinite,
    quadratic_term,
)
from wdro_model.objectives.exact.affine import moved_samples, robust_affine
from wdro_model.objectives.exact.counterpart import Counterpart, Extremal
from wdro_model.objectives.exact.refusals import first_refusal, needs_affine, needs_quadratic_cost
from wdro_model.objectives.programs import Program
from wdro_model.objectives.robust_affine import RobustAffine
from wdro_model.solvers.objective import Array


@dataclass(frozen=True)
class QuadraticFormLoss(Counterpart):
    """a x' Xi x + g(x), squared cost with one weight w, R^d (or orthant, for x of one sign)."""

    formula = "a x' (mean + sqrt(radius/w) I) x + g(x)"

    def refusal(self, model: RobustModel) -> str | None:
        reason = first_refusal(model, needs_affine, needs_quadratic_cost("inverse_times"))
        if reason is not None:
            return reason
        if quadratic_term(model) is None:
            return "the loss is not a multiple of quadratic_form(x, Xi) plus terms without data"
        if not has_one_weight(model):
            return "the cost does not weigh all entries of the matrix alike"
        if not moves_stay_inside(model):
            return "the worst-case move may leave the support"
        return None

    def matrix(self, model: RobustModel) -> np.ndarray:
        """mean + sqrt(radius/w) I, symmetrised."""
        (mean,) = model.mean_values().values()
        weight = float(model.cost.coordinate_weights[0])
        shifted = mean + np.sqrt(model.radius / weight) * np.eye(len(mean))
        return (shifted + shifted.T) / 2

    def program(self, model: RobustModel) -> Program | None:
        matrix = self.matrix(model)
        if not is_positive_semidefinite(matrix):
            return None
        term = quadratic_term(model)
        assert term is not None
        # The shift makes the form convex up to rounding; CVXPY need not look at it again.
        quadratic = cp.quad_form(term.variable, cp.psd_wrap(term.factor * matrix))
        return Program.if_convex(quadratic if term.rest is None else quadratic + term.rest)

    def writes_samples(self, model: RobustModel) -> bool:
        return False

    def has_objective(self, model: RobustModel) -> bool:
        return True

    def objective(self, model: RobustModel) -> RobustAffine:
        small = model.loss.dimension <= LARGEST
        term = quadratic_term(model)
        assert term is not None
        convex = model.convex_in_decision or (
            small
            and is_positive_semidefinite(self.matrix(model))
            and (term.rest is None or term.rest.is_convex())
        )
        return robust_affine(model, convex)

    def value(self, model: RobustModel, x: Array) -> float:
        return robust_affine(model, convex=False).evaluate(x).value

    def extremal(self, model: RobustModel, x: Array) -> Extremal:
        return moved_samples(model, x)


def moves_stay_inside(model: RobustModel) -> bool:
    """For B = x x': is the support R^d, or unbounded above with x of one sign?"""
    if model.joint.everywhere:
        return True
    if model.joint.bounds is None:
        return False
    term = quadratic_term(model)
    assert term is not None
    lower, upper = model.feasible.bounds()
    where = model.feasible.layout.slices[term.variable]
    one_sign = bool(np.all(lower[where] >= 0) or np.all(upper[where] <= 0))
    return one_sign and bool(np.all(np.isposinf(model.joint.bounds[1])))
