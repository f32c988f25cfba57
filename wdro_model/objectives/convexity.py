"""Convexity of quadratic objectives, where CVXPY's rules do not see it.

For the loss a x' Xi x + g(x), a > 0, and a squared cost with one weight, robust and smoothed
objectives are

    a x' M x + psi(a |x|^2) + g(x),   M the mean of the samples, psi convex and increasing,

whose Hessian is at least 2 a (sym(M) + psi'(a |x|^2) I). They are convex over a set on which
psi'(a |x|^2) outweighs the smallest eigenvalue of M, although x' Xi x alone is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss.atoms.quadratic import QuadraticForm
from wdro_model.loss.batched import FlatLoss
from wdro_model.loss.expressions import factored, summands
from wdro_model.loss.polynomial import degree
from wdro_model.model import RobustModel
from wdro_model.objectives.dual import minimise_dual
from wdro_model.objectives.integration.closed_form import isotropic
from wdro_model.solvers import FrankWolfe
from wdro_model.solvers.objective import Array, Point

STEPS = 50
"""Of Frank-Wolfe, for a bound on |x|^2."""
LARGEST = 1500
"""Eigenvalues are computed up to this many variables."""


def smallest_eigenvalue(matrix: Array) -> float:
    """Of the symmetric part of a square matrix."""
    return float(np.linalg.eigvalsh((matrix + matrix.T) / 2)[0])


def hessian_of_quadratic(loss: FlatLoss, scenario: Array) -> Array:
    """The Hessian of x -> f(x, scenario), f quadratic in x: differences of gradients are exact."""
    size, one = loss.dimension, np.ones(1)
    origin = loss(np.zeros(size), scenario[None])[1](one)
    rows = [loss(unit, scenario[None])[1](one) - origin for unit in np.eye(size)]
    return np.array(rows)


def is_positive_semidefinite(matrix: Array, tolerance: float = 1e-9) -> bool:
    """Up to a tolerance relative to the largest entry."""
    scale = max(1e-300, float(np.abs(matrix).max(initial=0.0)))
    return smallest_eigenvalue(matrix) >= -tolerance * scale * len(matrix)


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
    factor, form = factored(uncertain[0])
    if factor <= 0 or not isinstance(form, QuadraticForm):
        return None
    variable, matrix = form.args
    if not isinstance(variable, cp.Variable) or matrix is not model.joint.parameters[0]:
        return None
    return QuadraticTerm(variable, factor, sum(rest[1:], rest[0]) if rest else None)


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
    if not model.joint.everywhere or variable.size > LARGEST:
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
    solver = FrankWolfe(max_iterations=STEPS, direction="plain")
    found = solver.run(
        SquaredLength(where), oracle, start, rng=np.random.default_rng(0), progress=False
    )
    return max(0.0, found.lower_bound)
