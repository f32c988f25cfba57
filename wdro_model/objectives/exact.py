"""Exact robust counterparts: a table keyed by the loss's structure, the cost and the support.

An entry says whether it applies to a model, and gives the worst-case risk as a CVXPY expression,
as a smooth objective for Frank-Wolfe, or as both. Adding one is a class and a line in ENTRIES.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import cvxpy as cp
import numpy as np

from wdro_model.errors import NoReformulationError
from wdro_model.loss.structure import affine_parts
from wdro_model.loss.substitution import substitute
from wdro_model.model import Model
from wdro_model.objectives.convexity import (
    LARGEST,
    has_one_weight,
    is_positive_semidefinite,
    quadratic_term,
)
from wdro_model.objectives.robust_affine import RobustAffine


class Entry(Protocol):
    """One exact counterpart."""

    formula: str

    def refusal(self, model: Model) -> str | None:
        """Why the entry does not apply; None if it does."""
        ...

    def program(self, model: Model) -> Any | None:
        """The worst-case risk as a convex CVXPY expression, or None."""
        ...

    def objective(self, model: Model) -> RobustAffine:
        """The worst-case risk as a smooth function of the flat decision."""
        ...


@dataclass(frozen=True)
class QuadraticFormLoss:
    """x' Xi x + g(x), squared cost with one weight w, R^d (or orthant, for x of one sign)."""

    formula = "x' (mean + sqrt(radius/w) I) x + g(x)"

    def refusal(self, model: Model) -> str | None:
        reason = quadratic_cost_refusal(model)
        if reason is not None:
            return reason
        if quadratic_term(model) is None:
            return "the loss is not quadratic_form(x, Xi) plus terms without data"
        if not has_one_weight(model):
            return "the cost does not weigh all entries of the matrix alike"
        if not moves_stay_inside(model):
            return "the worst-case move may leave the support"
        return None

    def matrix(self, model: Model) -> np.ndarray:
        """mean + sqrt(radius/w) I, symmetrised."""
        assert model.cost is not None
        (mean,) = model.mean_values().values()
        weight = 1.0 if model.cost.weights is None else float(model.cost.weights[0])
        shifted = mean + np.sqrt(model.radius / weight) * np.eye(len(mean))
        return (shifted + shifted.T) / 2

    def program(self, model: Model) -> Any | None:
        matrix = self.matrix(model)
        if not is_positive_semidefinite(matrix):
            return None
        term, rest = quadratic_term(model) or (None, None)
        assert term is not None
        # The shift makes the form convex up to rounding; CVXPY need not look at it again.
        quadratic = cp.quad_form(term.args[0], cp.psd_wrap(matrix))
        total = quadratic if rest is None else quadratic + rest
        return total if total.is_convex() else None

    def objective(self, model: Model) -> RobustAffine:
        small = model.loss.dimension <= LARGEST
        _, rest = quadratic_term(model) or (None, None)
        convex = model.convex_in_decision or (
            small
            and is_positive_semidefinite(self.matrix(model))
            and (rest is None or rest.is_convex())
        )
        return robust_affine(model, convex)


@dataclass(frozen=True)
class AffineLoss:
    """a(x) + <B(x), xi>, squared or Mahalanobis cost, R^d or a box."""

    formula = "mean f + sqrt(radius) * |B(x)| in the dual norm of the cost"

    def refusal(self, model: Model) -> str | None:
        reason = quadratic_cost_refusal(model)
        if reason is not None:
            return reason
        assert model.joint is not None
        assert model.cost is not None
        if not model.joint.everywhere and model.joint.bounds is None:
            return "the support has no coordinate structure"
        if not model.joint.everywhere and model.cost.kind == "mahalanobis":
            return "a Mahalanobis cost couples the coordinates of a box support"
        return None

    def program(self, model: Model) -> Any | None:
        assert model.joint is not None
        parts = affine_parts(model.expression, model.joint.parameters)
        if not model.joint.everywhere and not signs_stay_inside(model, parts.slopes):
            return None
        slopes = [cp.vec(parts.slopes[p], order="C") for p in model.joint.parameters]
        slope = cp.hstack(slopes) if len(slopes) > 1 else slopes[0]
        mean = substitute(model.expression, model.mean_values())
        total = mean + np.sqrt(model.radius) * dual_norm(model, slope)
        return total if total.is_convex() else None

    def objective(self, model: Model) -> RobustAffine:
        return robust_affine(model, model.convex_in_decision)


ENTRIES: tuple[Entry, ...] = (QuadraticFormLoss(), AffineLoss())


def find_entry(model: Model) -> Entry:
    """The first entry that applies; a NoReformulationError that says what was found if none."""
    reasons = []
    for entry in ENTRIES:
        reason = entry.refusal(model)
        if reason is None:
            return entry
        if reason not in reasons:
            reasons.append(reason)
    raise NoReformulationError(
        f"no exact robust counterpart is known for this model: {'; '.join(reasons)}. "
        "What applies: method='smoothed' (any differentiable loss) or method='erm'."
    )


def has_entry(model: Model) -> bool:
    """Does some entry apply?"""
    return any(entry.refusal(model) is None for entry in ENTRIES)


def robust_value(model: Model, x: np.ndarray) -> float | None:
    """The worst-case risk of a decision over the ball; None where no formula is known."""
    if not has_entry(model):
        return None
    return robust_affine(model, convex=False).evaluate(x).value


def quadratic_cost_refusal(model: Model) -> str | None:
    """What every entry for affine losses and quadratic costs asks for."""
    if model.joint is None or model.cost is None:
        return "there is no uncertain parameter and no ambiguity set"
    if model.structure is None:
        return "the loss is a callable, its dependence on the data is not known"
    if not model.affine_in_data:
        return f"the loss is not affine in the data ({model.structure.describe()})"
    if model.cost.kind not in ("squared", "mahalanobis"):
        return f"the ground cost is not quadratic ({model.cost.describe()})"
    return None


def robust_affine(model: Model, convex: bool) -> RobustAffine:
    assert model.joint is not None
    assert model.cost is not None
    return RobustAffine(model.loss, model.joint, model.cost, model.radius, convex=convex)


def moves_stay_inside(model: Model) -> bool:
    """For B = x x': is the support R^d, or unbounded above with x of one sign?"""
    assert model.joint is not None
    if model.joint.everywhere:
        return True
    if model.joint.bounds is None:
        return False
    term, _ = quadratic_term(model) or (None, None)
    assert term is not None
    lower, upper = model.feasible.bounds()
    where = model.feasible.layout.slices[term.args[0]]
    one_sign = bool(np.all(lower[where] >= 0) or np.all(upper[where] <= 0))
    return one_sign and bool(np.all(np.isposinf(model.joint.bounds[1])))


def signs_stay_inside(model: Model, slopes: dict[Any, Any]) -> bool:
    """Do slopes of known sign move the samples only where their supports are unbounded?"""
    assert model.joint is not None
    if model.joint.bounds is None:
        return False
    lower, upper = model.joint.bounds
    for parameter, where in model.joint.slices.items():
        slope = slopes[parameter]
        up, down = np.all(np.isposinf(upper[where])), np.all(np.isneginf(lower[where]))
        if not ((up and down) or (up and slope.is_nonneg()) or (down and slope.is_nonpos())):
            return False
    return True


def dual_norm(model: Model, slope: Any) -> Any:
    """|slope| in the dual norm of the cost, as a CVXPY expression."""
    assert model.cost is not None
    if model.cost.kind == "mahalanobis":
        assert model.cost.matrix is not None
        factor = np.linalg.cholesky(np.linalg.inv(model.cost.matrix))
        return cp.norm(factor.T @ slope, 2)
    if model.cost.weights is None:
        return cp.norm(slope, 2)
    return cp.norm(cp.multiply(1.0 / np.sqrt(model.cost.weights), slope), 2)
