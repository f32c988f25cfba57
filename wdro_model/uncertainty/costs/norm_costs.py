"""The built-in costs: a norm of the stretched move, or its square.

    Norm               c = |w * delta|_p           order 1
    SquaredEuclidean   c = |sqrt(w) * delta|_2^2   order 2
    Mahalanobis        c = |L' delta|_2^2          order 2, P = L L'

With T the stretching, c = |T delta|_p^order; the dual norm of a slope b is |T^-T b|_q, where
1/p + 1/q = 1.
"""

from __future__ import annotations

import math
import numbers
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from scipy.linalg import solve_triangular
from scipy.special import gamma

from wdro_model.checks import number, real_array
from wdro_model.display.tables import brief_fields
from wdro_model.uncertainty.costs.ground_cost import Array, BoundCost, GroundCost
from wdro_model.uncertainty.costs.weights import own_weights, resolve_weights, weighted_formula
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.parameter import UncertainParameter
from wdro_model.uncertainty.samples import (
    column_names,
    in_order,
    label_order,
    one_if_equal,
    read_only,
)


class NormCost(BoundCost):
    """c = |T delta|_p^order, for an invertible T on the coordinates that move."""

    p: float = 2.0

    @property
    def q(self) -> float:
        """The exponent of the dual norm, 1/p + 1/q = 1."""
        if self.p == 1.0:
            return math.inf
        return 1.0 if math.isinf(self.p) else self.p / (self.p - 1.0)

    @property
    def is_conic(self) -> bool:  # type: ignore[override]
        return self.p in (1.0, 2.0, math.inf)

    @property
    def has_smooth_dual_norm(self) -> bool:  # type: ignore[override]
        return 1 < self.p < math.inf

    # ------------------------------------------------------------------ T, by subclasses
    @property
    @abstractmethod
    def stretching(self) -> Any:
        """S (d, d), dense or sparse, with T delta = delta S; 0 for frozen coordinates."""

    @property
    @abstractmethod
    def shrinking(self) -> Any:
        """F (d, d), dense or sparse, with T^-T b = b F; 0 for frozen coordinates."""

    @abstractmethod
    def shrunk(self, rows: Array) -> Array:
        """T^-T b for each row b (..., d), a slope."""

    @abstractmethod
    def unstretched(self, rows: Array) -> Array:
        """T^-1 y for each row y (..., d), a stretched move."""

    # ------------------------------------------------------------------ operations
    def dual_norm(self, slope: Any) -> Any:
        return cp.norm(self.whitened(slope), self.q)

    def dual_norms(self, slopes: Array) -> Array:
        return np.linalg.norm(self.shrunk(slopes), ord=self.q, axis=-1)

    def combined(self, rates: list[Any]) -> Any:
        return cp.norm(cp.hstack(rates), self.q)

    def steepest_move(self, slope: Array) -> Array:
        plain, size, q = self.shrunk(slope), float(self.dual_norms(slope)), self.q
        if size == 0:
            return np.zeros_like(slope)
        if np.isinf(q):
            move = np.zeros_like(plain)
            largest = int(np.argmax(np.abs(plain)))
            move[largest] = np.sign(plain[largest])
        else:
            move = np.sign(plain) * (np.abs(plain) / size) ** (q - 1.0)
            move[self.frozen] = 0.0
        return self.unstretched(move)

    def conjugate(self, slopes: Any, price: Any) -> tuple[Any | None, list[Any]]:
        """|u|_2^2 / (4 l) for order 2, and 0 under |u|_q <= l for order 1, l the price."""
        plain = slopes @ self.shrinking
        if self.order == 1.0:
            return None, [cp.norm(plain, self.q, axis=1) <= price]
        bonus = cp.Variable(slopes.shape[0], nonneg=True)
        # |u|^2 <= 4 l s as a second-order cone.
        cone = cp.hstack([plain, cp.reshape(price - bonus, (bonus.size, 1), order="C")])
        return bonus, [cp.SOC(price + bonus, cone, axis=1)]

    def perspective(self, moves: Any, shares: Any) -> tuple[Any, list[Any]]:
        """sum_k |v_k|_p for order 1, sum_k |v_k|^2 / q_k for order 2, v_k the stretched moves."""
        plain = moves @ self.stretching
        if self.order == 1.0:
            return cp.sum(cp.norm(plain, self.p, axis=1)), []
        price = cp.Variable(moves.shape[0], nonneg=True)
        last = cp.reshape(shares - price, (price.size, 1), order="C")
        return cp.sum(price), [cp.SOC(shares + price, cp.hstack([2 * plain, last]), axis=1)]

    def restricted(self, where: Array) -> BoundCost:
        return self if np.array_equal(where, np.arange(self.dimension)) else self._part(where)

    @abstractmethod
    def _part(self, where: Array) -> BoundCost:
        """The same formula on some of the coordinates."""


# ------------------------------------------------------------------ a weight for each coordinate
@dataclass(frozen=True, eq=False)
class WeightedCost(NormCost):
    """A norm cost with a weight for each coordinate; an infinite weight holds it fixed."""

    dimension: int
    weights: Array | None = None
    """(d,), None for 1."""

    @cached_property
    def frozen(self) -> Array:
        if self.weights is None:
            return np.broadcast_to(False, (self.dimension,))
        return np.isinf(self.weights)

    @cached_property
    def coordinate_weights(self) -> Array:
        return np.ones(self.dimension) if self.weights is None else self.weights

    @cached_property
    def coordinate_scales(self) -> Array:
        assert self.order is not None
        return self.coordinate_weights ** (1.0 / self.order)

    @cached_property
    def _finite_weights(self) -> Array | None:
        """The weights, with 0 for frozen coordinates: `of_displacements` adds the cost inf."""
        if self.weights is None:
            return None
        return np.where(self.frozen, 0.0, self.weights)

    def of_displacements(self, delta: Array) -> Array:
        costs = self._finite_costs(delta, self._finite_weights)
        if self.frozen.any():
            costs[np.any(delta[:, self.frozen] != 0, axis=1)] = np.inf
        return costs

    @abstractmethod
    def _finite_costs(self, delta: Array, weights: Array | None) -> Array:
        """The cost (B,) of the moves (B, d) of coordinates that are not frozen."""

    @cached_property
    def stretching(self) -> Any:
        return sp.diags_array(np.where(self.frozen, 0.0, self.coordinate_scales))

    @cached_property
    def shrinking(self) -> Any:
        return sp.diags_array(1.0 / self.coordinate_scales)

    def shrunk(self, rows: Array) -> Array:
        return rows if self.weights is None else rows / self.coordinate_scales

    unstretched = shrunk

    def whitened(self, slope: Any) -> Any:
        moving = np.flatnonzero(~self.frozen)
        if len(moving) < self.dimension:
            slope = slope[moving] if len(moving) else cp.Constant(np.zeros(1))
        if self.weights is None or not len(moving):
            return slope
        return cp.multiply(1.0 / self.coordinate_scales[moving], slope)

    def default_sigma(self, radius: float, joint: JointSamples) -> float | Array:
        """sigma_i = (radius / (2 E|z|_p^order))^(1/order) / s_i, z standard normal."""
        assert self.order is not None
        free = max(1, int((~self.frozen).sum()))
        mean = normal_norm(self.p, free) if self.order == 1.0 else float(free)
        scales = np.ones(1) if self.weights is None else self.coordinate_scales
        return one_if_equal((radius / (2 * mean)) ** (1.0 / self.order) / scales)

    def rescaled(self, units: Array, unit: float) -> BoundCost:
        return replace(self, weights=self.coordinate_weights * units**self.order / unit)

    def _part(self, where: Array) -> BoundCost:
        weights = None if self.weights is None else self.weights[where]
        return replace(self, dimension=len(where), weights=weights)

    def _describe_weights(self) -> str:
        """The span of the weights, and how many coordinates are held."""
        if self.weights is None:
            return "weights 1"
        moving = self.weights[~self.frozen]
        if moving.size == 0:
            return "all coordinates held fixed"
        low, high = float(moving.min()), float(moving.max())
        span = f"weights {low:g}" if low == high else f"weights from {low:.3g} to {high:.3g}"
        held = self.dimension - moving.size
        return f"{span}, {held} coordinates held fixed" if held else span


@dataclass(frozen=True, eq=False)
class BoundNorm(WeightedCost):
    """A weighted p-norm of the move; the dual norm of b is |b / w|_q, 1/p + 1/q = 1.

    Examples
    --------
    >>> cost = wdro.costs.BoundNorm(2, p=1.0)
    >>> cost.of_displacements(np.array([[3.0, -4.0]]))
    array([7.])
    >>> cost.dual_norms(np.array([[3.0, -4.0]]))            # the largest entry
    array([4.])
    """

    p: float = 2.0

    is_norm = True

    @property
    def exponent(self) -> float:
        return self.p

    @cached_property
    def is_separable(self) -> bool:
        """True for p = 1, and if at most one coordinate moves."""
        return self.p == 1.0 or int((~self.frozen).sum()) <= 1

    def _finite_costs(self, delta: Array, weights: Array | None) -> Array:
        if self.p == 2.0 and weights is None:
            return np.sqrt(np.einsum("bi,bi->b", delta, delta))
        moves = np.abs(delta)
        if weights is not None:
            moves *= weights
        if self.is_conic:
            return np.linalg.norm(moves, ord=self.p, axis=1)
        # Divided by the largest move, powers neither overflow nor underflow.
        largest = moves.max(axis=1, keepdims=True)
        moves /= np.where(largest > 0, largest, 1.0)
        return largest[:, 0] * (moves**self.p).sum(axis=1) ** (1 / self.p)

    def describe(self) -> str:
        return f"||w * (xi - zeta)||_{self.p:g}, {self._describe_weights()}"

    def gradient(self, delta: Array) -> Array:
        weights = 1.0 if self._finite_weights is None else self._finite_weights
        plain = weights * delta
        if self.p == 1.0:
            return weights * np.sign(plain)
        size = np.linalg.norm(plain, ord=self.p, axis=1, keepdims=True)
        share = np.abs(plain) / np.where(size > 0, size, 1.0)
        if np.isinf(self.p):
            return weights * np.sign(plain) * (share >= 1.0)
        return weights * np.sign(plain) * share ** (self.p - 1.0)

    def rounded(self, moves: Array, rounding: Array) -> tuple[Array, Array]:
        """|| w sqrt(y^2 + r^2) ||_p and its gradient, with p at most 8: a norm without kinks."""
        p, size = min(self.p, 8.0), np.sqrt(moves**2 + rounding**2)
        steps = self.coordinate_weights * size
        largest = steps.max(axis=1, keepdims=True, initial=1e-300)
        scaled = steps / largest
        total = (scaled**p).sum(axis=1, keepdims=True) ** (1 / p)
        slope = (scaled / np.maximum(total, 1e-300)) ** (p - 1)
        return (largest * total)[:, 0], slope * self.coordinate_weights * moves / size

    def quadratic_model(self, moves: Array, variance: Array) -> Array:
        p, weights = min(self.p, 3.0), self.coordinate_weights
        # Around 0 the density is exp(-rate ||y||), with the variance that moments of ||y|| give.
        tail = 1 + max(1, self.dimension) ** (2 / p - 2)
        steps = weights * np.sqrt(moves**2 + tail * variance)
        largest = np.maximum(steps.max(axis=1, keepdims=True), 1e-300)
        norm = largest * ((steps / largest) ** p).sum(axis=1, keepdims=True) ** (1 / p)
        return 0.5 * weights**2 * (steps / norm) ** (p - 2) / norm


@dataclass(frozen=True, eq=False)
class Norm(GroundCost):
    """c = || w * (xi - zeta) ||_p, the cost of the 1-Wasserstein distance.

    Parameters
    ----------
    p
        In [1, inf]; "inf" as in CVXPY for np.inf.
    weights
        As for `SquaredEuclidean`, "standardize" being one over the sample standard deviation.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> wdro.WassersteinBall(0.1, wdro.costs.Norm(1)).describe()
    'W_c <= 0.1 with c(xi, zeta) = ||(xi - zeta)||_1 (1-Wasserstein distance <= 0.1)'
    """

    p: float | Literal["inf"] = 2
    weights: Any = None
    order = 1.0
    bound = BoundNorm

    __repr__ = brief_fields

    def __post_init__(self) -> None:
        p: Any = np.inf if isinstance(self.p, str) and self.p.lower() == "inf" else self.p
        if not (isinstance(p, numbers.Real) and p == np.inf):
            p = number("p of a Norm cost", p, low=1, hint="or inf")
        object.__setattr__(self, "p", float(p))
        object.__setattr__(self, "weights", own_weights(self.weights))

    def bind(self, joint: JointSamples) -> BoundNorm:
        weights = resolve_weights(self.weights, joint, power=1)
        return BoundNorm(joint.dimension, weights, float(self.p))

    def describe(self) -> str:
        return weighted_formula(f"||{{w}}(xi - zeta)||_{float(self.p):g}", self.weights)


def normal_norm(p: float, dimension: int) -> float:
    """E |z|_p for z standard normal in R^d, to a few percent."""
    if np.isinf(p):
        return float(np.sqrt(2 * np.log(2 * dimension))) if dimension > 1 else np.sqrt(2 / np.pi)
    moment = 2 ** (p / 2) * gamma((p + 1) / 2) / np.sqrt(np.pi)
    return float((dimension * moment) ** (1 / p))


@dataclass(frozen=True, eq=False)
class BoundSquared(WeightedCost):
    """The weighted squared distance |sqrt(w) * delta|^2; the dual norm of b is |b / sqrt(w)|.

    Examples
    --------
    >>> cost = wdro.costs.BoundSquared(2, weights=np.array([1.0, 4.0]))
    >>> cost.of_displacements(np.array([[1.0, 1.0], [3.0, 0.0]]))
    array([5., 9.])
    >>> cost.dual_norms(np.array([[3.0, 8.0]]))             # |(3 / 1, 8 / 2)|
    array([5.])
    """

    is_quadratic = True
    is_separable = True

    def _finite_costs(self, delta: Array, weights: Array | None) -> Array:
        if weights is None:
            return np.einsum("bi,bi->b", delta, delta)
        return np.einsum("bi,bi,i->b", delta, delta, weights)

    def describe(self) -> str:
        return f"sum_i w_i (xi_i - zeta_i)^2, {self._describe_weights()}"

    def gradient(self, delta: Array) -> Array:
        weights = self._finite_weights
        return 2.0 * delta if weights is None else 2.0 * weights * delta

    @cached_property
    def matrix(self) -> Array:
        return np.diag(self.coordinate_weights)

    def inverse_times(self, slopes: Array) -> Array:
        return slopes if self.weights is None else slopes / self.weights


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


# ------------------------------------------------------------------ a matrix
@dataclass(frozen=True, eq=False)
class BoundMahalanobis(NormCost):
    """The quadratic form |L' delta|^2 of the move, P = L L'; the dual norm of b is |L^-1 b|.

    Examples
    --------
    >>> cost = wdro.costs.BoundMahalanobis(2, precision=np.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> cost.of_displacements(np.array([[1.0, 0.0], [1.0, 1.0]]))
    array([2., 6.])
    """

    dimension: int
    precision: Array
    """P, (d, d), symmetric and positive definite."""

    is_quadratic = True

    def of_displacements(self, delta: Array) -> Array:
        moved = delta @ self.stretching
        return np.einsum("bi,bi->b", moved, moved)

    def describe(self) -> str:
        values = np.linalg.eigvalsh(self.precision)
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
    def stretching(self) -> Array:
        """L with P = L L', so that the cost is |L' delta|^2 and never negative."""
        return np.linalg.cholesky(self.precision)

    @cached_property
    def shrinking(self) -> Array:
        """F with P^-1 = F F'."""
        return np.linalg.cholesky(np.linalg.inv(self.precision))

    def whitened(self, slope: Any) -> Any:
        return self.shrinking.T @ slope

    def shrunk(self, rows: Array) -> Array:
        return self._solve(rows, transposed=False)

    def unstretched(self, rows: Array) -> Array:
        return self._solve(rows, transposed=True)

    def _solve(self, rows: Array, transposed: bool) -> Array:
        """L^-1 times each row (..., d), or L'^-1 times it."""
        flat = np.reshape(rows, (-1, self.dimension)).T
        solved = solve_triangular(self.stretching, flat, lower=True, trans=int(transposed))
        return solved.T.reshape(np.shape(rows))

    def inverse_times(self, slopes: Array) -> Array:
        return self.unstretched(self.shrunk(slopes))

    def quadratic_model(self, moves: Array, variance: Array) -> Array:
        """A diagonal matrix below P: proposals drawn by it have heavier tails."""
        return self._diagonal_below[None]

    @cached_property
    def _diagonal_below(self) -> Array:
        """The largest multiple of the diagonal of P that is below P."""
        scale = self.coordinate_scales
        least = np.linalg.eigvalsh(self.precision / np.outer(scale, scale))[0]
        return max(float(least), 0.0) * scale**2

    def default_sigma(self, radius: float, joint: JointSamples) -> float:
        """sigma^2 = radius / (2 tr P)."""
        return float(np.sqrt(radius / (2 * np.trace(self.precision))))

    def rescaled(self, units: Array, unit: float) -> BoundCost:
        return BoundMahalanobis(self.dimension, units[:, None] * self.precision * units / unit)

    def _part(self, where: Array) -> BoundCost:
        return BoundMahalanobis(len(where), self.precision[np.ix_(where, where)])


@dataclass(frozen=True, eq=False)
class Mahalanobis(GroundCost):
    """c = (xi - zeta)' P (xi - zeta) for a positive definite P, the inverse of a covariance.

    Give either the covariance or the precision, (d, d) over the coordinates of all parameters.

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
        matrix = getattr(self, name)
        if isinstance(matrix, Mapping) and any(
            isinstance(key, UncertainParameter) or np.ndim(value) != 1
            for key, value in matrix.items()
        ):
            raise ValueError(
                f"{name} of Mahalanobis is one matrix of the joint data, got a dictionary; pass "
                "one matrix over the coordinates of all uncertain parameters, in the order of "
                "problem.uncertain_parameters(): scipy.linalg.block_diag(first, second, ...); or, "
                "where a number for each does, SquaredEuclidean(weights={parameter: ...})."
            )
        columns = column_names(matrix, name, numbered=True)
        if columns is not None:  # rows in the order of the columns
            matrix = in_order(matrix, columns, f"the rows of the {name}")
        object.__setattr__(self, "_labels", columns)
        object.__setattr__(self, name, _positive_definite(matrix, name))

    def bind(self, joint: JointSamples) -> BoundMahalanobis:
        matrix = self.precision
        if matrix is None:
            inverse = np.linalg.inv(self.covariance)
            matrix = (inverse + inverse.T) / 2
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


def _positive_definite(given: Any, name: str) -> np.ndarray:
    matrix = real_array(f"{name} of Mahalanobis", given)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name} of Mahalanobis must be square, got shape {matrix.shape}.")
    gap = float(np.abs(matrix - matrix.T).max())
    if gap > 1e-9 * float(np.abs(matrix).max()):
        raise ValueError(
            f"{name} of Mahalanobis must be symmetric, it differs from its transpose by {gap:.3g}; "
            "pass (M + M.T) / 2."
        )
    matrix = (matrix + matrix.T) / 2
    # Coordinates may have different units: definiteness is tested with a diagonal of ones.
    scale = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    definite = bool(np.all(scale > 0))
    if not definite or np.linalg.eigvalsh(matrix / np.outer(scale, scale))[0] <= 1e-14:
        raise ValueError(
            f"{name} of Mahalanobis must be positive definite, its smallest eigenvalue is "
            f"{np.linalg.eigvalsh(matrix)[0]:.3g}; add a multiple of the identity."
        )
    return read_only(matrix)


def cost_on(
    cost: GroundCost, own: Sequence[UncertainParameter], every: Sequence[UncertainParameter]
) -> GroundCost:
    """The cost for an expression that contains some of the parameters of a problem.

    Exact where moves of the other parameters add to the cost, as in weighted norms and squares; a
    ValueError for costs that couple parameters.
    """
    ids = {p.id for p in own}
    others = [p for p in every if p.id not in ids]
    weights: Any = getattr(cost, "weights", None)
    if not others:
        return cost
    if not issubclass(getattr(cost, "bound", object), WeightedCost):
        names, absent = (", ".join(repr(p.name()) for p in some) for some in (own, others))
        raise ValueError(
            f"the cost {cost.describe()} may couple the parameters of the problem, of which an "
            f"expression contains {names} and not {absent}; use a cost that does not, such as "
            "SquaredEuclidean or Norm with weights, or give the constraint a ball of its own "
            "(ambiguity=)."
        )
    if isinstance(weights, Mapping):
        left_out = {p.id for p in others}
        known = {p: w for p, w in weights.items() if getattr(p, "id", None) not in left_out}
        return replace(cost, weights=known or None)  # type: ignore[type-var]
    return cost
