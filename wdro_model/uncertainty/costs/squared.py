"""c = sum_i w_i (xi_i - zeta_i)^2, and what it shares with other quadratic costs."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import cvxpy as cp
import numpy as np

from wdro_model.display.factual import brief_fields
from wdro_model.uncertainty.costs.ground_cost import Array, BoundCost, GroundCost
from wdro_model.uncertainty.costs.weighted_cost import (
    WeightedCost,
    own_weights,
    resolve_weights,
    weighted_formula,
)
from wdro_model.uncertainty.parameter import one_if_equal

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
    >>> import numpy as np, wdro_model as wdro
    >>> cost = wdro.costs.BoundSquared(2, weights=np.array([1.0, 4.0]))
    >>> cost.of_displacements(np.array([[1.0, 1.0], [3.0, 0.0]]))
    array([5., 9.])
    >>> cost.dual_norms(np.array([[3.0, 8.0]]))             # |(3 / 1, 8 / 2)|
    array([5.])
    """

    is_proven = True

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
