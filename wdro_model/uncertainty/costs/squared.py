"""Quadratic costs: sum_i w_i (xi_i - zeta_i)^2 and (xi - zeta)' P (xi - zeta)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import cvxpy as cp
import numpy as np
from scipy.linalg import cho_solve, solve_triangular

from wdro_model.checks import real_array
from wdro_model.display.tables import brief_fields
from wdro_model.uncertainty.costs.ground_cost import Array, BoundCost, GroundCost
from wdro_model.uncertainty.costs.weighted_cost import (
    WeightedCost,
    own_weights,
    resolve_weights,
    weighted_formula,
)
from wdro_model.uncertainty.parameter import UncertainParameter, one_if_equal
from wdro_model.uncertainty.samples import column_names, in_order, label_order

if TYPE_CHECKING:
    from wdro_model.uncertainty.joint import JointSamples


class QuadraticCost(BoundCost):
    """c = |delta S|^2 for a matrix S (d, d): a second-order cone in moves stretched by it."""

    is_quadratic = True
    is_conic = True
    has_smooth_dual_norm = True

    @property
    @abstractmethod
    def stretching(self) -> Any:
        """S."""

    @property
    @abstractmethod
    def shrinking(self) -> Any:
        """F with |slope F| the dual norm: F F' = (S S')^-1."""

    def dual_norm(self, slope: Any) -> Any:
        return cp.norm(self.whitened(slope), 2)

    def dual_norms(self, slopes: Array) -> Array:
        return np.linalg.norm(self.whitened_numbers(slopes), axis=-1)

    def steepest_move(self, slope: Array) -> Array:
        size = float(self.dual_norms(slope))
        return np.zeros_like(slope) if size == 0 else self.inverse_times(slope) / size

    def conjugate(self, slopes: Any, price: Any) -> tuple[Any | None, list[Any]]:
        """|u|^2 / (4 l) for each row u of the shrunk slopes, l the price."""
        count = slopes.shape[0]
        bonus = cp.Variable(count, nonneg=True)
        stretched = price * np.ones(count)
        last = cp.reshape(stretched - bonus, (count, 1), order="C")
        # |u|^2 <= 4 l s as a second-order cone.
        cone = cp.hstack([slopes @ self.shrinking, last])
        return bonus, [cp.SOC(stretched + bonus, cone, axis=1)]

    def perspective(self, moves: Any, shares: Any) -> tuple[Any, list[Any]]:
        """sum_k |v_k|^2 / q_k for rows v_k of the stretched moves and shares q."""
        count = moves.shape[0]
        price = cp.Variable(count, nonneg=True)
        last = cp.reshape(shares - price, (count, 1), order="C")
        cone = cp.hstack([2 * (moves @ self.stretching), last])
        return cp.sum(price), [cp.SOC(shares + price, cone, axis=1)]


@dataclass(frozen=True, eq=False)
class BoundSquared(WeightedCost, QuadraticCost):
    """The weighted squared distance: its norm is |sqrt(w) * delta|, of dual |b / sqrt(w)|.

    Examples
    --------
    >>> cost = wdro.costs.BoundSquared(2, weights=np.array([1.0, 4.0]))
    >>> cost.of_displacements(np.array([[1.0, 1.0], [3.0, 0.0]]))
    array([5., 9.])
    >>> cost.dual_norms(np.array([[3.0, 8.0]]))             # |(3 / 1, 8 / 2)|
    array([5.])
    """

    @property
    def is_separable(self) -> bool:
        return True

    @property
    def largest_weight(self) -> float:
        return 1.0 if self.finite_weights is None else float(self.finite_weights.max())

    def finite_costs(self, delta: Array) -> Array:
        weights = self.finite_weights
        if weights is None:
            return np.einsum("bi,bi->b", delta, delta)
        return np.einsum("bi,bi,i->b", delta, delta, weights)

    def describe(self) -> str:
        return f"sum_i w_i (xi_i - zeta_i)^2, {self.describe_weights()}"

    def gradient(self, delta: Array) -> Array:
        weights = self.finite_weights
        return 2.0 * delta if weights is None else 2.0 * weights * delta

    @cached_property
    def coordinate_scales(self) -> Array:
        return np.ones(self.dimension) if self.weights is None else np.sqrt(self.weights)

    @cached_property
    def matrix(self) -> Array:
        return np.diag(self.coordinate_weights)

    def combined(self, rates: list[Any]) -> Any:
        return cp.norm(cp.hstack(rates), 2)

    def inverse_times(self, slopes: Array) -> Array:
        return slopes if self.weights is None else slopes / self.weights

    def default_sigma(self, radius: float, joint: JointSamples) -> float | Array:
        """sigma_i^2 = radius / (2 d w_i), shared equally by the d coordinates that move."""
        free = max(1, self.dimension - int(self.frozen.sum()))
        weights = np.ones(1) if self.weights is None else self.weights
        sigma = np.sqrt(radius / (2 * free * weights))
        return one_if_equal(sigma)

    def rescaled(self, units: Array, unit: float) -> BoundCost:
        return BoundSquared(self.dimension, self.coordinate_weights * units**2 / unit)

    def with_weights(self, dimension: int, weights: Array | None) -> BoundCost:
        return BoundSquared(dimension, weights)


@dataclass(frozen=True, eq=False)
class SquaredEuclidean(GroundCost):
    """c = sum_i w_i (xi_i - zeta_i)^2, the cost of the 2-Wasserstein distance squared.

    Parameters
    ----------
    weights
        None (1), a positive number, an array of the parameter's shape or of length d, a dict
        {parameter: number or array}, or "standardize" (one over the sample variance). The weight
        np.inf keeps a coordinate at its observed value. Data that do not vary cannot be
        standardized: entries whose support is one point are kept there, others are refused;
        "standardize_or_hold" keeps them too.

    Examples
    --------
    >>> import numpy as np, wdro_model as wdro
    >>> price = wdro.UncertainParameter(2, "price", samples=[[1.0, 10.0], [3.0, 30.0]])
    >>> ball = wdro.WassersteinBall(0.5, wdro.costs.SquaredEuclidean(weights="standardize"))
    >>> wdro.costs.SquaredEuclidean(weights={price: [1.0, np.inf]})         # the second one stays
    SquaredEuclidean(...)
    """

    weights: Any = None
    order = 2.0
    bound = BoundSquared

    __repr__ = brief_fields

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", own_weights(self.weights))

    def bind(self, joint: JointSamples) -> BoundSquared:
        return BoundSquared(joint.dimension, resolve_weights(self.weights, joint, power=2))

    def describe(self) -> str:
        return weighted_formula("sum_i {w}(xi_i - zeta_i)^2", self.weights)


# ------------------------------
# c = (xi - zeta)' P (xi - zeta)


@dataclass(frozen=True, eq=False)
class BoundMahalanobis(QuadraticCost):
    """A quadratic form of the move: its norm is |L' delta|, P = L L', of dual |L^-1 b|.

    Examples
    --------
    >>> cost = wdro.costs.BoundMahalanobis(2, precision=np.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> cost.of_displacements(np.array([[1.0, 0.0], [1.0, 1.0]]))
    array([2., 6.])
    """

    dimension: int
    precision: Array
    """P, (d, d), symmetric and positive definite."""

    @property
    def largest_weight(self) -> float:
        return float(self._eigenvalues[-1])

    def of_displacements(self, delta: Array) -> Array:
        moved = delta @ self.stretching
        return np.einsum("bi,bi->b", moved, moved)

    def describe(self) -> str:
        values = self._eigenvalues
        return (
            f"(xi - zeta)' P (xi - zeta), eigenvalues of P from {values[0]:.3g} to {values[-1]:.3g}"
        )

    def gradient(self, delta: Array) -> Array:
        return 2.0 * delta @ self.precision

    @cached_property
    def coordinate_scales(self) -> Array:
        return np.sqrt(np.diag(self.precision))

    @property
    def matrix(self) -> Array:
        return self.precision

    @cached_property
    def couplings(self) -> Array:
        return self.precision

    def whitened(self, slope: Any) -> Any:
        return self.shrinking.T @ slope

    def whitened_numbers(self, slopes: Array) -> Array:
        flat = np.reshape(slopes, (-1, self.dimension))
        return solve_triangular(self.stretching, flat.T, lower=True).T.reshape(np.shape(slopes))

    def inverse_times(self, slopes: Array) -> Array:
        flat = np.reshape(slopes, (-1, self.dimension))
        return cho_solve((self.stretching, True), flat.T).T.reshape(np.shape(slopes))

    def quadratic_model(self, moves: Array, variance: Array) -> Array:
        """A diagonal below P: tails of proposals that follow it are then the wider ones."""
        return self._smallest_diagonal[None]

    def default_sigma(self, radius: float, joint: JointSamples) -> float:
        """sigma^2 = radius / (2 tr P)."""
        return float(np.sqrt(radius / (2 * np.trace(self.precision))))

    def rescaled(self, units: Array, unit: float) -> BoundCost:
        return BoundMahalanobis(self.dimension, units[:, None] * self.precision * units / unit)

    def restricted(self, where: Array) -> BoundCost:
        if np.array_equal(where, np.arange(self.dimension)):
            return self
        return BoundMahalanobis(len(where), self.precision[np.ix_(where, where)])

    @cached_property
    def _eigenvalues(self) -> Array:
        return np.linalg.eigvalsh(self.precision)

    @cached_property
    def stretching(self) -> Array:
        """L with P = L L', so that the cost is |L' delta|^2 and never negative."""
        return np.linalg.cholesky(self.precision)

    @cached_property
    def shrinking(self) -> Array:
        """F with P^-1 = F F'."""
        return np.linalg.cholesky(np.linalg.inv(self.precision))

    @cached_property
    def _smallest_diagonal(self) -> Array:
        scale = np.sqrt(np.diag(self.precision))
        least = np.linalg.eigvalsh(self.precision / np.outer(scale, scale))[0]
        return max(float(least), 0.0) * scale**2


@dataclass(frozen=True, eq=False)
class Mahalanobis(GroundCost):
    """c = (xi - zeta)' P (xi - zeta) for a positive definite P, the inverse of a covariance.

    Give exactly one of covariance and precision, of shape (d, d), d counting all coordinates.

    Examples
    --------
    >>> import numpy as np, wdro_model as wdro
    >>> data = np.random.default_rng(0).normal(size=(100, 3))
    >>> cost = wdro.costs.Mahalanobis(covariance=np.cov(data, rowvar=False))
    >>> ball = wdro.WassersteinBall.order(2, 0.1, cost)
    >>> round(ball.radius, 3)
    0.01
    """

    covariance: Any = None
    precision: Any = None
    _labels: Any = field(default=None, init=False, repr=False)
    """The labels of the columns of a frame."""
    order = 2.0
    bound = BoundMahalanobis

    __repr__ = brief_fields

    def __post_init__(self) -> None:
        if (self.covariance is None) == (self.precision is None):
            raise ValueError(
                "Mahalanobis needs exactly one of covariance= and precision=, got "
                + ("neither." if self.covariance is None else "both.")
            )
        name = "precision" if self.covariance is None else "covariance"
        _refuse_blocks(getattr(self, name), name)
        columns = column_names(getattr(self, name), name, numbered=True)
        if columns is not None:  # its rows go with its columns
            ordered = in_order(getattr(self, name), columns, f"the rows of the {name}")
            object.__setattr__(self, name, ordered)
        object.__setattr__(self, "_labels", columns)
        object.__setattr__(self, name, _positive_definite(getattr(self, name), name))

    def bind(self, joint: JointSamples) -> BoundMahalanobis:
        matrix = self.precision if self.covariance is None else _inverse(self.covariance)
        if len(matrix) != joint.dimension:
            raise ValueError(
                f"Mahalanobis has a matrix of shape {matrix.shape} but the uncertain parameters "
                f"have {joint.dimension} coordinates together; give one row per coordinate of "
                f"{', '.join(repr(p.name()) for p in joint.parameters)}."
            )
        what = "covariance or precision of Mahalanobis"
        order = label_order(self._labels, joint.labels, what, "column")
        return BoundMahalanobis(
            joint.dimension, matrix if order is None else matrix[order][:, order]
        )

    def describe(self) -> str:
        return "(xi - zeta)' P (xi - zeta)"


def _refuse_blocks(given: Any, name: str) -> None:
    """Refuse a dictionary of matrices; one of columns {label: (d,)} is a frame."""
    if isinstance(given, Mapping) and any(
        isinstance(key, UncertainParameter) or np.ndim(value) != 1 for key, value in given.items()
    ):
        raise ValueError(
            f"{name} of Mahalanobis is one matrix of the joint data, got a dictionary: matrices by "
            "parameter are not taken. Pass one matrix over the coordinates of all uncertain "
            "parameters, in the order of problem.uncertain_parameters(), block diagonal by "
            "scipy.linalg.block_diag(first, second, ...); or, where a number for each coordinate "
            "does, SquaredEuclidean(weights={parameter: ...})."
        )


def _positive_definite(given: Any, name: str) -> np.ndarray:
    matrix = real_array(f"{name} of Mahalanobis", given).copy()
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name} of Mahalanobis must be square, got shape {matrix.shape}.")
    gap = float(np.abs(matrix - matrix.T).max())
    if gap > 1e-9 * float(np.abs(matrix).max()):
        raise ValueError(
            f"{name} of Mahalanobis must be symmetric, it differs from its transpose by {gap:.3g}; "
            "pass (M + M.T) / 2."
        )
    matrix = (matrix + matrix.T) / 2
    smallest = np.linalg.eigvalsh(matrix)[0]
    # A price beside a volume: definiteness is judged in units in which the diagonal is one.
    scale = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    definite = bool(np.all(scale > 0))
    if not definite or np.linalg.eigvalsh(matrix / np.outer(scale, scale))[0] <= 1e-14:
        raise ValueError(
            f"{name} of Mahalanobis must be positive definite, its smallest eigenvalue is "
            f"{smallest:.3g}; add a multiple of the identity."
        )
    matrix.flags.writeable = False
    return matrix


def _inverse(covariance: np.ndarray) -> np.ndarray:
    inverse = np.linalg.inv(covariance)
    return (inverse + inverse.T) / 2
