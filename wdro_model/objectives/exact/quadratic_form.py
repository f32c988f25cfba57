"""Quadratic forms whose matrix is uncertain: their convexity, and their exact counterpart.

For the loss a x' Xi x + g(x), a > 0, and a squared cost with one weight w, B(x) = a x x'. The worst
case adds to the diagonal of the mean M of the samples,

    a x' (M + sqrt(radius / w) I) x + g(x),

and robust and smoothed objectives are a x' M x + psi(a |x|^2) + g(x), psi convex and increasing.
Their Hessian is at least 2 a (sym(M) + psi'(a |x|^2) I). They are convex over a set on which
psi'(a |x|^2) outweighs the smallest eigenvalue of M, although CVXPY's rules do not see it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss.atoms.quadratic import QuadraticForm
from wdro_model.loss.batched import FlatLoss
from wdro_model.loss.expressions import split_factor, summands
from wdro_model.loss.polynomial import degree
from wdro_model.model import RobustModel
from wdro_model.objectives.dual import minimise_dual
from wdro_model.objectives.empirical import Program
from wdro_model.objectives.exact.affine import AffineLoss, RobustAffine
from wdro_model.objectives.exact.counterpart import (
    first_refusal,
    needs_affine,
    needs_quadratic_cost,
)
from wdro_model.objectives.integration.closed_form import isotropic
from wdro_model.solvers import FrankWolfe
from wdro_model.solvers.objective import Array, Point

LENGTH_STEPS = 50
"""Steps of Frank-Wolfe for a lower bound on |x|^2; fewer find less convexity."""
MOST_EIGENVALUES = 1500
"""Variables up to which eigenvalues are computed: about a second."""


@dataclass(frozen=True)
class QuadraticTerm:
    """A loss factor * x' Xi x + g(x), x a variable and Xi the only data."""

    variable: Any
    factor: float
    """Positive."""
    rest: Any | None
    """g(x), None for zero."""


def quadratic_term(model: RobustModel) -> QuadraticTerm | None:
    """The loss as a multiple of quadratic_form(x, Xi) and terms without data, if it is one."""
    if model.expression is None or len(model.joint.parameters) != 1:
        return None
    terms = summands(model.expression)
    uncertain = [t for t in terms if degree(t, model.joint.parameters) > 0]
    rest = [t for t in terms if degree(t, model.joint.parameters) == 0]
    if len(uncertain) != 1:
        return None
    factor, form = split_factor(uncertain[0])
    if factor <= 0 or not isinstance(form, QuadraticForm):
        return None
    variable, matrix = form.args
    if not isinstance(variable, cp.Variable) or matrix is not model.joint.parameters[0]:
        return None
    return QuadraticTerm(variable, factor, sum(rest[1:], rest[0]) if rest else None)


def known_term(model: RobustModel) -> QuadraticTerm:
    """The quadratic term of a loss that has one."""
    term = quadratic_term(model)
    assert term is not None
    return term


# ------------------------------------------------------------------ convexity
def smallest_eigenvalue(matrix: Array) -> float:
    """The smallest eigenvalue of the symmetric part of a square matrix."""
    return float(np.linalg.eigvalsh((matrix + matrix.T) / 2)[0])


def is_positive_semidefinite(matrix: Array, tolerance: float = 1e-9) -> bool:
    """True up to a tolerance relative to the largest entry."""
    scale = max(1e-300, float(np.abs(matrix).max(initial=0.0)))
    return smallest_eigenvalue(matrix) >= -tolerance * scale * len(matrix)


def hessian_of_quadratic(loss: FlatLoss, scenario: Array) -> Array:
    """The Hessian of x -> f(x, scenario), f quadratic in x: differences of gradients are exact."""
    one = np.ones(1)
    origin = loss(np.zeros(loss.dimension), scenario[None])[1](one)
    rows = [loss(unit, scenario[None])[1](one) - origin for unit in np.eye(loss.dimension)]
    return np.array(rows)


def has_one_weight(model: RobustModel) -> bool:
    """Does a squared cost weigh all entries alike?"""
    if not (model.cost.is_quadratic and model.cost.is_separable):
        return False
    weights = model.cost.coordinate_weights
    return bool(np.all(weights == weights[0]) and np.isfinite(weights[0]))


def smoothed_form_is_convex(model: RobustModel, epsilon: float, sigma: float | Array) -> bool:
    """Is the smoothed objective of a quadratic form convex over the feasible set?

    psi(t) = min_l [ l rho + sigma^2 t^2/(2 eps q) - eps d/2 log q ], q = 1 + 2 l w sigma^2/eps, is
    the minimum over l of a jointly convex function; psi'(t) = sigma^2 t/(eps q) grows with t, so
    the smallest |x|^2 over the set decides, of which Frank-Wolfe gives a lower bound.
    """
    term = quadratic_term(model)
    if term is None or not has_one_weight(model) or isinstance(sigma, np.ndarray):
        return False
    variable = term.variable
    if not model.joint.everywhere or variable.size > MOST_EIGENVALUES:
        return False
    if term.rest is not None and not term.rest.is_convex():
        return False
    (mean,) = model.mean_values().values()
    smallest = model.remember("smallest eigenvalue", lambda: smallest_eigenvalue(mean))
    if smallest >= 0:
        return True
    spread = sigma**2
    weight = float(model.cost.coordinate_weights[0])
    where = model.feasible.layout.slices[variable]
    length = term.factor * model.remember("shortest", lambda: shortest_squared(model, where))
    if length <= 0:
        return False
    product, d = weight * spread, model.joint.dimension
    best = minimise_dual(
        lambda dual: isotropic(dual, spread * length**2, product, d, epsilon), model.radius
    )
    return smallest + spread * length / (epsilon + 2 * best.dual * product) >= 0


class SquaredLength:
    """|x|^2 over some coordinates of the decision, as an objective."""

    convex = True

    def __init__(self, where: slice) -> None:
        self.where = where

    def evaluate(self, x: Array, dual: float | None = None) -> Point:
        gradient = np.zeros_like(x)
        gradient[self.where] = 2 * x[self.where]
        return Point(float(x[self.where] @ x[self.where]), gradient)

    def describe(self) -> str:
        return "|x|^2"


def shortest_squared(model: RobustModel, where: slice) -> float:
    """A lower bound on |x|^2 over the feasible set, by a few steps of Frank-Wolfe."""
    oracle = model.feasible.oracle()
    if oracle.nonnegative_directions and not np.all(model.feasible.bounds()[0][where] >= 0):
        return 0.0
    start = oracle.vertex(np.ones(oracle.dimension))
    solver = FrankWolfe(max_iterations=LENGTH_STEPS, direction="plain")
    run = solver.run(
        SquaredLength(where), oracle, start, rng=np.random.default_rng(0), progress=False
    )
    return max(0.0, run.lower_bound)


# ------------------------------------------------------------------ the counterpart
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
            model.loss.dimension <= MOST_EIGENVALUES
            and is_positive_semidefinite(worst_matrix(model))
            and (rest is None or rest.is_convex())
        )
        return replace(super().objective(model), convex=convex)


def needs_quadratic_form(model: RobustModel) -> str | None:
    # A loss without the atom is not looked at any further.
    if QuadraticForm not in model.expression.atoms() or quadratic_term(model) is None:
        return "the loss is not a multiple of quadratic_form(x, Xi) plus terms without data"
    return None


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
