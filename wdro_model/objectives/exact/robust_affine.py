"""The exact worst-case risk of a loss that is affine in the data, as a smooth function of x.

With f = a(x) + <B(x), xi>, a quadratic ground cost c = |xi - zeta|_W^2 and radius rho,

    sup over the ball of E f = mean_k f(x, xi_k) + sqrt(rho) |B(x)|_{W^-1}           on R^d,

attained by moving every sample by sqrt(rho) W^-1 B / |B|_{W^-1}. On a box each coordinate of the
move is clipped to the support and the multiplier is the root of one monotone equation. Since f is
affine in the data, the worst case is one scenario, the mean of the moved samples, and by Danskin's
theorem the gradient in x is the loss's own gradient there. With a norm as the cost and the dual
norm smooth, it is radius |B(x)|_dual that is added.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from wdro_model.model import RobustModel
from wdro_model.objectives.exact.counterpart import Extremal, unmoved
from wdro_model.solvers.objective import Array, Point

CHUNK_ENTRIES = 2**22


@dataclass(frozen=True)
class Shift:
    """The worst-case move of the samples for one slope B."""

    mean_move: Array
    """Mean over the samples of their moves, (d,)."""
    dual: float
    """The multiplier of the transport budget; 0 where the radius does not bind."""


class AtMovedMean(ABC):
    """A worst-case risk that is the loss at the mean of the moved samples."""

    def __init__(self, model: RobustModel, convex: bool) -> None:
        self.model, self.joint, self.cost = model, model.joint, model.cost
        self.radius, self.size = model.radius, model.joint.size
        self.convex = convex

    @abstractmethod
    def worst_shift(self, slope: Array) -> Shift:
        """The mean of the worst-case moves for f = a + <slope, xi>, and its multiplier."""

    @abstractmethod
    def describe(self) -> str:
        """The formula."""

    def slope(self, x: Array) -> Array:
        """B(x), (d,)."""
        return self.model.loss(x, self.joint.mean[None])[1].in_data(np.ones(1))[0]

    def evaluate(self, x: Array, dual: float | None = None) -> Point:
        shift = self.worst_shift(self.slope(x))
        values, pullback = self.model.loss(x, (self.joint.mean + shift.mean_move)[None])
        return Point(float(values[0]), pullback(np.ones(1)), dual=shift.dual)


class RobustAffine(AtMovedMean):
    """mean f + sqrt(radius) |B(x)|_dual for a quadratic cost, with moves clipped on a box."""

    def extremal(self, x: Array) -> Extremal:
        """Every sample moved by the worst shift, clipped on boxes."""
        slope = self.slope(x)
        shift, still = self.worst_shift(slope), unmoved(self.model)
        moves = self._moves(slope, shift)
        return Extremal(still.rows + moves, still.weights, still.source, shift.dual)

    def _moves(self, slope: Array, shift: Shift) -> Array:
        """The move of each sample, (N, d), or one that all of them share, (1, d)."""
        bounds = None if self.joint.everywhere else self.joint.bounds
        if bounds is None or self.radius == 0 or not may_leave(slope, *bounds):
            return shift.mean_move[None]
        weights = self.cost.coordinate_weights
        active = (slope != 0) & np.isfinite(weights)
        wanted = np.where(slope > 0, np.inf, -np.inf)
        if shift.dual > 0:
            wanted = slope / (2 * shift.dual * weights)
        rows = self.joint.matrix
        clipped = np.clip(np.where(active, wanted, 0.0), bounds[0] - rows, bounds[1] - rows)
        return np.where(active, clipped, 0.0)

    def worst_shift(self, slope: Array) -> Shift:
        if self.radius == 0 or not slope.any():
            return Shift(np.zeros_like(slope), 0.0)
        bounds = None if self.joint.everywhere else self.joint.bounds
        if bounds is None or not may_leave(slope, *bounds):
            direction = self.cost.inverse_times(slope)
            size = float(np.sqrt(slope @ direction))
            if size == 0:
                return Shift(np.zeros_like(slope), 0.0)
            return Shift(np.sqrt(self.radius) / size * direction, size / (2 * np.sqrt(self.radius)))
        return self._clipped_shift(slope, *bounds)

    def _clipped_shift(self, slope: Array, lower: Array, upper: Array) -> Shift:
        """Moves clip(B_i / (2 l w_i), lower_i - xi_i, upper_i - xi_i), l from the budget."""
        weights = self.cost.coordinate_weights
        active = (slope != 0) & np.isfinite(weights)
        if not active.any():
            return Shift(np.zeros_like(slope), 0.0)
        step = max(1, CHUNK_ENTRIES // slope.size)
        rows, shares = self.joint.matrix, self.joint.shares

        def spend(inverse: float) -> tuple[float, Array]:
            """Mean transport cost and mean move at l = 1 / inverse."""
            cost, move = 0.0, np.zeros(slope.size)
            wanted = np.where(slope > 0, np.inf, -np.inf)[active]
            if np.isfinite(inverse):
                wanted = inverse * slope[active] / (2 * weights[active])
            for start in range(0, self.size, step):
                some = slice(start, start + step)
                xi = rows[some][:, active]
                delta = np.clip(wanted, lower[active] - xi, upper[active] - xi)
                counted = shares.some(some).multiple(delta)
                cost += float(np.einsum("ki,ki,i->", counted, delta, weights[active]))
                move[active] += counted.sum(axis=0)
            return cost / self.size, move / self.size

        free = self.cost.inverse_times(slope)
        start = 2 * np.sqrt(self.radius) / float(np.sqrt(slope @ free))
        # Clipping only shortens the moves: the budget is spent at 1/l >= its value on R^d.
        towards = np.where(slope > 0, upper, lower)[active]
        if np.isfinite(towards).all():
            cost, move = spend(np.inf)
            if cost <= self.radius:
                return Shift(move, 0.0)
        high = start
        while spend(high)[0] < self.radius:
            high *= 4.0
        inverse = brentq(
            lambda u: spend(u)[0] - self.radius, start * 0.999, high, xtol=1e-14 * high
        )
        return Shift(spend(inverse)[1], 1.0 / inverse)

    def describe(self) -> str:
        where = "" if self.joint.everywhere else ", moves clipped to the support"
        return f"mean f + sqrt(radius) * |B(x)| (dual norm of the cost){where}"


class RobustAffineNorm(AtMovedMean):
    """mean f + radius |B(x)|_dual, for a norm as the cost and on R^d."""

    def worst_shift(self, slope: Array) -> Shift:
        move = self.radius * self.cost.steepest_move(slope)
        return Shift(move, float(self.cost.dual_norms(slope)))

    def describe(self) -> str:
        return "mean f + radius * |B(x)| (dual norm of the cost)"


def may_leave(slope: Array, lower: Array, upper: Array) -> bool:
    """Could a move along the slope leave the box?"""
    return bool(
        np.any((slope > 0) & np.isfinite(upper)) or np.any((slope < 0) & np.isfinite(lower))
    )
