"""c = || w * (xi - zeta) ||_p."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import cvxpy as cp
import numpy as np
from scipy.special import gamma

from wdro_model.checks import number
from wdro_model.display.tables import brief_fields
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


@dataclass(frozen=True, eq=False)
class BoundNorm(WeightedCost):
    """A weighted p-norm of the move, of dual |b / w|_q, 1/p + 1/q = 1.

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
    def is_conic(self) -> bool:  # type: ignore[override]
        return self.p in (1.0, 2.0, math.inf)

    @property
    def exponent(self) -> float:
        return self.p

    @property
    def has_smooth_dual_norm(self) -> bool:  # type: ignore[override]
        return 1 < self.p < math.inf

    @cached_property
    def is_separable(self) -> bool:
        """With p = 1, or if only one coordinate moves."""
        return self.p == 1.0 or int((~self.frozen).sum()) <= 1

    def finite_costs(self, delta: Array) -> Array:
        return _norms(delta, self.finite_weights, self.p)

    def describe(self) -> str:
        return f"||w * (xi - zeta)||_{self.p:g}, {self.describe_weights()}"

    def gradient(self, delta: Array) -> Array:
        weights = 1.0 if self.finite_weights is None else self.finite_weights
        plain = weights * delta
        if self.p == 1.0:
            return weights * np.sign(plain)
        size = np.linalg.norm(plain, ord=self.p, axis=1, keepdims=True)
        share = np.abs(plain) / np.where(size > 0, size, 1.0)
        if np.isinf(self.p):
            return weights * np.sign(plain) * (share >= 1.0)
        return weights * np.sign(plain) * share ** (self.p - 1.0)

    @cached_property
    def coordinate_scales(self) -> Array:
        return self.coordinate_weights

    def dual_norm(self, slope: Any) -> Any:
        return cp.norm(self.whitened(slope), self._q)

    def dual_norms(self, slopes: Array) -> Array:
        return np.linalg.norm(np.abs(self.whitened_numbers(slopes)), ord=self._q, axis=-1)

    def combined(self, rates: list[Any]) -> Any:
        return cp.norm(cp.hstack(rates), self._q)

    def steepest_move(self, slope: Array) -> Array:
        size = float(self.dual_norms(slope))
        if size == 0:
            return np.zeros_like(slope)
        plain, q = self.whitened_numbers(slope), self._q
        if np.isinf(q):
            move = np.zeros_like(plain)
            largest = int(np.argmax(np.abs(plain)))
            move[largest] = np.sign(plain[largest])
        else:
            move = np.sign(plain) * (np.abs(plain) / size) ** (q - 1.0)
            move[self.frozen] = 0.0
        return move / self.coordinate_scales

    def conjugate(self, slopes: Any, price: Any) -> tuple[Any | None, list[Any]]:
        plain = slopes @ self.shrinking
        if self.p == 1.0:
            return None, [cp.abs(plain) <= price]
        if self.p == math.inf:
            return None, [cp.sum(cp.abs(plain), axis=1) <= price]
        if self.p != 2.0:
            self._unknown("conjugate", "use a norm with p = 1, 2 or inf.")
        return None, [cp.SOC(price * np.ones(slopes.shape[0]), plain, axis=1)]

    def perspective(self, moves: Any, shares: Any) -> tuple[Any, list[Any]]:
        plain = moves @ self.stretching
        if self.p == 1.0:
            return cp.sum(cp.abs(plain)), []
        if self.p == math.inf:
            return cp.sum(cp.max(cp.abs(plain), axis=1)), []
        if self.p != 2.0:
            self._unknown("perspective", "use a norm with p = 1, 2 or inf.")
        return cp.sum(cp.norm(plain, 2, axis=1)), []

    def rounded(self, moves: Array, rounding: Array) -> tuple[Array, Array]:
        """|| w sqrt(y^2 + r^2) ||_p and its gradient: the norm without its kinks, p at most 8."""
        p, size = min(self.p, 8.0), np.sqrt(moves**2 + rounding**2)
        steps = self.coordinate_weights * size
        largest = steps.max(axis=1, keepdims=True, initial=1e-300)
        scaled = steps / largest
        total = (scaled**p).sum(axis=1, keepdims=True) ** (1 / p)
        slope = (scaled / np.maximum(total, 1e-300)) ** (p - 1)
        return (largest * total)[:, 0], slope * self.coordinate_weights * moves / size

    def quadratic_model(self, moves: Array, variance: Array) -> Array:
        p, weights = min(self.p, 3.0), self.coordinate_weights
        # Around 0 the density is exp(-rate ||y||): its variance, by the moments of ||y||.
        tail = 1 + max(1, self.dimension) ** (2 / p - 2)
        steps = weights * np.sqrt(moves**2 + tail * variance)
        largest = np.maximum(steps.max(axis=1, keepdims=True), 1e-300)
        norm = largest * ((steps / largest) ** p).sum(axis=1, keepdims=True) ** (1 / p)
        return 0.5 * weights**2 * (steps / norm) ** (p - 2) / norm

    def default_sigma(self, radius: float, joint: JointSamples) -> float | Array:
        """sigma_i = radius / (2 w_i E|z|_p), z standard normal in the coordinates that move."""
        free = max(1, self.dimension - int(self.frozen.sum()))
        weights = np.ones(1) if self.weights is None else self.weights
        sigma = radius / (2 * normal_norm(self.p, free) * weights)
        return one_if_equal(sigma)

    def rescaled(self, units: Array, unit: float) -> BoundCost:
        return BoundNorm(self.dimension, self.coordinate_weights * units / unit, self.p)

    def with_weights(self, dimension: int, weights: Array | None) -> BoundCost:
        return BoundNorm(dimension, weights, self.p)

    @cached_property
    def _q(self) -> float:
        """1/p + 1/q = 1."""
        if self.p == 1.0:
            return math.inf
        return 1.0 if math.isinf(self.p) else self.p / (self.p - 1.0)


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
        return BoundNorm(
            joint.dimension, resolve_weights(self.weights, joint, power=1), float(self.p)
        )

    def describe(self) -> str:
        return weighted_formula(f"||{{w}}(xi - zeta)||_{float(self.p):g}", self.weights)


def normal_norm(p: float, dimension: int) -> float:
    """E |z|_p for z standard normal in R^d, to a few percent."""
    if np.isinf(p):
        return float(np.sqrt(2 * np.log(2 * dimension))) if dimension > 1 else np.sqrt(2 / np.pi)
    moment = 2 ** (p / 2) * gamma((p + 1) / 2) / np.sqrt(np.pi)
    return float((dimension * moment) ** (1 / p))


def _norms(delta: Array, weights: Array | None, p: float) -> Array:
    if p == 2.0 and weights is None:
        return np.sqrt(np.einsum("bi,bi->b", delta, delta))
    moves = np.abs(delta)
    if weights is not None:
        moves *= weights
    if p in (1.0, 2.0, math.inf):
        return np.linalg.norm(moves, ord=p, axis=1)
    # The largest move is taken out: powers of small or large numbers leave the floating range.
    largest = moves.max(axis=1, keepdims=True)
    moves /= np.where(largest > 0, largest, 1.0)
    return largest[:, 0] * (moves**p).sum(axis=1) ** (1 / p)
