"""A ground cost on the coordinates of given samples, with its weights resolved."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from wdro_model.errors import blaming

Function = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class BoundCost:
    """A ground cost on the d coordinates of joint samples.

    kind: "squared", "mahalanobis", "norm" or "callable"; dimension: d.
    weights: (d,), None for 1; matrix: P of shape (d, d); p: of the norm; function: of the user.
    """

    kind: str
    dimension: int
    weights: np.ndarray | None = None
    matrix: np.ndarray | None = None
    p: float | None = None
    function: Function | None = None

    def __call__(self, origins: np.ndarray, points: np.ndarray) -> np.ndarray:
        """c(origin, point) row by row: (B, d), (B, d) -> (B,)."""
        if self.function is not None:
            return _checked(self.function, origins, points)
        return self.of_displacements(points - origins)

    def of_displacements(self, delta: np.ndarray) -> np.ndarray:
        """The cost of moving by each row of delta (B, d), for costs that depend on it alone."""
        if self.kind == "callable":
            raise ValueError("a callable cost depends on the points, not on displacements alone.")
        if self.kind == "mahalanobis":
            moved = delta @ self._factor
            return np.einsum("bi,bi->b", moved, moved)
        weights = self._finite_weights
        if self.kind == "norm":
            costs = _norms(delta, weights, self.p or 2.0)
        elif weights is None:
            costs = np.einsum("bi,bi->b", delta, delta)
        else:
            costs = np.einsum("bi,bi,i->b", delta, delta, weights)
        if self._holds_some:
            costs[np.any(delta[:, self.frozen] != 0, axis=1)] = np.inf
        return costs

    @cached_property
    def largest_weight(self) -> float:
        """The smallest L with c(xi, zeta) <= L |xi - zeta|^2 on moves of finite cost, or inf."""
        if self.kind == "mahalanobis":
            assert self.matrix is not None
            return float(np.linalg.eigvalsh(self.matrix)[-1])
        if self.kind == "squared":
            return 1.0 if self._finite_weights is None else float(self._finite_weights.max())
        return math.inf

    @cached_property
    def frozen(self) -> np.ndarray:
        """Which coordinates (d,) keep their observed value: those of infinite weight."""
        if self.weights is None:
            return np.broadcast_to(False, (self.dimension,))
        return np.isinf(self.weights)

    def describe(self) -> str:
        """The formula with what was resolved."""
        if self.function is not None:
            return f"{function_name(self.function)}(xi, zeta)"
        if self.matrix is not None:
            values = np.linalg.eigvalsh(self.matrix)
            return (
                f"(xi - zeta)' P (xi - zeta), eigenvalues of P from {values[0]:.3g} to "
                f"{values[-1]:.3g}"
            )
        body = (
            f"||w * (xi - zeta)||_{self.p:g}"
            if self.kind == "norm"
            else ("sum_i w_i (xi_i - zeta_i)^2")
        )
        return f"{body}, {self._describe_weights()}"

    def _describe_weights(self) -> str:
        if self.weights is None:
            return "weights 1"
        moving = self.weights[~self.frozen]
        if moving.size == 0:
            return "all coordinates held fixed"
        low, high = float(moving.min()), float(moving.max())
        span = f"weights {low:g}" if low == high else f"weights from {low:.3g} to {high:.3g}"
        held = self.dimension - moving.size
        return f"{span}, {held} coordinates held fixed" if held else span

    @cached_property
    def _holds_some(self) -> bool:
        return self.weights is not None and bool(self.frozen.any())

    @cached_property
    def _finite_weights(self) -> np.ndarray | None:
        """The weights with 0 for frozen coordinates, whose moves are priced apart."""
        if self.weights is None or not self._holds_some:
            return self.weights
        return np.where(self.frozen, 0.0, self.weights)

    @cached_property
    def _factor(self) -> np.ndarray:
        """L with P = L L', so that the cost is |L' delta|^2 and never negative."""
        assert self.matrix is not None
        return np.linalg.cholesky(self.matrix)


def function_name(function: Any) -> str:
    """The name of a callable, for messages."""
    return getattr(function, "__name__", repr(function))


def _checked(function: Function, origins: np.ndarray, points: np.ndarray) -> np.ndarray:
    with blaming(f"the cost {function_name(function)}"):
        returned = function(origins, points)
    costs = np.asarray(returned, dtype=np.float64)
    if costs.shape != (len(points),):
        raise ValueError(
            f"cost {function_name(function)} must return {len(points)} numbers, shape "
            f"({len(points)},), for points of shape {points.shape}; it returned shape "
            f"{costs.shape}."
        )
    if not np.all(costs >= 0):
        row = int(np.argmin(costs >= 0))
        raise ValueError(
            f"cost {function_name(function)} must be nonnegative, got {float(costs[row])} in row "
            f"{row}; a transport cost is zero at rest and positive otherwise."
        )
    return costs


def _norms(delta: np.ndarray, weights: np.ndarray | None, p: float) -> np.ndarray:
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
