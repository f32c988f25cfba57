"""The closed-form integral over the block of the data in which the loss is affine.

With f = a + <B, zeta_A>, a squared cost and a (truncated) Gaussian reference, per coordinate

    q_i = 1/(1 + 2 l w_i sigma_i^2/eps),   v_i = sigma_i^2 q_i,   m_i = v_i B_i/eps,
    log E exp(.../eps) = f(xi_A)/eps + sum_i [ m_i^2/(2 v_i) + log(q_i)/2 + log masses ].

Without the masses the slopes enter only through the sums of sigma_i^2 B_i^2 over the coordinates
that share w_i sigma_i^2: all of them, where sigma is the default. These sums are taken once for
a decision, and the dual variable then costs nothing that grows with the block. Masses are computed
for the samples and coordinates that come near a bound at one node at least.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from wdro_model.objectives.integration.importance.frame import Frame
from wdro_model.objectives.integration.importance.proposals import Bounds
from wdro_model.objectives.integration.kernel.normal import TruncatedNormal, truncated_normal
from wdro_model.solvers.objective import Array

VISIBLE = 6.5
"""A bound this many deviations away takes a mass of 4e-11."""
LEVELS = 8
"""At most so many values of w_i sigma_i^2 are told apart by sums of their own."""
BLOCK_ENTRIES = 2**20


@dataclass(frozen=True)
class Slopes:
    """Slopes B of K samples at S nodes, as the integrals over the dual variable see them."""

    owners: Array
    """(K,)"""
    squares: Array
    """Sums of sigma_i^2 B_i^2 over the coordinates of each level, (K, S, levels)."""
    values: Array | None
    """B, (K, S, r); None where they are too many to keep."""
    bounds: Bounds | None
    """Bounds (K, r) of the moves; None on R^d."""
    extremes: tuple[Array, Array] | None
    """The least and the largest slopes over the nodes, (K, r); None on R^d."""


@dataclass(frozen=True)
class Near:
    """Coordinates near a bound: tilted means at the nodes in place of those on R^d."""

    samples: Array
    """Positions (P,) among the K samples, in order."""
    coordinates: Array
    """(P,)"""
    means: Array
    """(P, S)"""


@dataclass(frozen=True)
class BlockIntegral:
    """The integral over the block at S nodes of K samples, relative to exp(f(xi_A)/eps)."""

    log_value: Array
    """(K, S)"""
    cost: Array
    """E[c_A], (K, S)."""
    cost_variance: Array | None
    """Var(c_A), (K, S); None where a bound is near."""
    variance: Array
    """Variances v of the tilted distribution on R^d, (r,)."""
    near: Near | None


class AffineBlock:
    """Closed-form integration over the moves of a block."""

    def __init__(self, frame: Frame, epsilon: float) -> None:
        assert frame.weights is not None
        self.frame, self.epsilon = frame, epsilon
        self.weights: Array = frame.weights
        self.levels, self._level, self._count = levels_of(frame.weights * frame.spread)
        self._fold: Array | None = None
        if len(self.levels) <= LEVELS:
            self._fold = np.zeros((frame.dimension, len(self.levels)))
            self._fold[np.arange(frame.dimension), self._level] = frame.spread

    def slopes(self, owners: Array, values: Array, keep: bool = True) -> Slopes:
        """What the integrals need of the slopes B (K, S, r) of the samples `owners` (K,)."""
        bounds = self.frame.bounds(owners)
        extremes = None if bounds is None else (values.min(axis=1), values.max(axis=1))
        squares = values**2
        squares = squares * self.frame.spread if self._fold is None else squares @ self._fold
        return Slopes(owners, squares, values if keep else None, bounds, extremes)

    def integrate(self, slopes: Slopes, dual: float, values: Array | None = None) -> BlockIntegral:
        """The integral at a dual variable; values: B, where the slopes do not keep it."""
        level, epsilon = self.levels, self.epsilon
        q = 1.0 / (1.0 + 2 * dual * level / epsilon)
        factors = np.stack([0.5 * q, level * q**2, 4 * level**2 * q**3], axis=1) / epsilon**2
        sums = slopes.squares @ factors
        log_value = sums[..., 0] + 0.5 * self._count @ np.log(q)
        cost = sums[..., 1] + self._count @ (level * q)
        cost_variance = sums[..., 2] + 2 * self._count @ (level * q) ** 2
        variance = self.frame.spread * q[self._level]
        if slopes.bounds is None:
            return BlockIntegral(log_value, cost, cost_variance, variance, None)
        log_value -= self.reference_log_mass[slopes.owners, None]
        where = self._near(slopes, variance)
        if len(where[0]) == 0:
            return BlockIntegral(log_value, cost, cost_variance, variance, None)
        values = slopes.values if values is None else values
        assert values is not None
        near = self._truncate(slopes.bounds, values, variance, where, log_value, cost)
        return BlockIntegral(log_value, cost, None, variance, near)

    def needs_values(self, slopes: Slopes, dual: float) -> bool:
        """Does the integral at this dual variable look at the slopes themselves?"""
        if slopes.values is not None or slopes.bounds is None:
            return False
        q = 1.0 / (1.0 + 2 * dual * self.levels / self.epsilon)
        return len(self._near(slopes, self.frame.spread * q[self._level])[0]) > 0

    def moves(self, integral: BlockIntegral, values: Array) -> Array:
        """E[zeta_A - xi_A] under the tilted distribution, (K, S, r), for slopes B."""
        moves = values * (integral.variance / self.epsilon)
        if integral.near is not None:
            near = integral.near
            moves[near.samples, :, near.coordinates] = near.means
        return moves

    def _near(self, slopes: Slopes, variance: Array) -> tuple[Array, Array]:
        """Samples and coordinates that a bound can be seen from, at one node at least."""
        assert slopes.bounds is not None
        assert slopes.extremes is not None
        (lower, upper), (least, most) = slopes.bounds, slopes.extremes
        reach, factor = VISIBLE * np.sqrt(variance), variance / self.epsilon
        samples, coordinates = np.nonzero(
            (least * factor - lower < reach) | (upper - most * factor < reach)
        )
        return samples, coordinates

    def _truncate(
        self,
        bounds: Bounds,
        values: Array,
        variance: Array,
        where: tuple[Array, Array],
        log_value: Array,
        cost: Array,
    ) -> Near:
        """Correct log value and cost (in place) for the mass and moments inside the bounds."""
        samples, coordinates = where
        v = variance[coordinates, None]
        deviation = np.sqrt(v)
        lower, upper = (side[samples, coordinates][:, None] for side in bounds)
        move = values[samples, :, coordinates] * (v / self.epsilon)
        low, high = (lower - move) / deviation, (upper - move) / deviation
        seen = (low > -VISIBLE) | (high < VISIBLE)
        law = one_or_two_sided(low[seen], high[seen])
        # Moments from the end of the interval where most of the mass lies.
        lower, upper, deviation = (
            np.broadcast_to(a, seen.shape)[seen] for a in (lower, upper, deviation)
        )
        end = np.where(law.from_lower, lower, upper)
        inward = np.where(law.from_lower, deviation, -deviation)
        log_mass, change, mean = np.zeros(seen.shape), np.zeros(seen.shape), move
        log_mass[seen] = law.log_mass
        square = end**2 + 2 * end * inward * law.depth + inward**2 * law.depth_square
        change[seen] = square - (move[seen] ** 2 + deviation**2)
        mean[seen] = np.clip(end + inward * law.depth, lower, upper)
        first = np.flatnonzero(np.diff(samples, prepend=-1))
        log_value[samples[first]] += np.add.reduceat(log_mass, first, axis=0)
        change *= self.weights[coordinates, None]
        cost[samples[first]] += np.add.reduceat(change, first, axis=0)
        return Near(samples, coordinates, mean)

    @cached_property
    def reference_log_mass(self) -> Array:
        """For each sample the log mass of the reference in the box, (N,)."""
        size, width = self.frame.joint.size, max(1, self.frame.dimension)
        found, deviation = np.zeros(size), np.sqrt(self.frame.spread)
        step = max(1, BLOCK_ENTRIES // width)
        for start in range(0, size, step):
            some = np.arange(start, min(start + step, size))
            bounds = self.frame.bounds(some)
            if bounds is None:
                break
            low, high = bounds[0] / deviation, bounds[1] / deviation
            finite = (low > -np.inf) | (high < np.inf)
            masses = np.zeros(low.shape)
            masses[finite] = truncated_normal(low[finite], high[finite]).log_mass
            found[some] = masses.sum(axis=1)
        return found


def levels_of(products: Array) -> tuple[Array, Array, Array]:
    """Distinct values of w_i sigma_i^2 up to rounding, the index of each, and how often it occurs.

    Where they are many, every coordinate is a level of its own.
    """
    scale = max(float(products.max(initial=0.0)), 1e-300)
    _, first, index, count = np.unique(
        np.round(products / scale, 12), return_index=True, return_inverse=True, return_counts=True
    )
    if len(first) > LEVELS:
        return products, np.arange(len(products)), np.ones(len(products))
    return products[first], index, count.astype(float)


def one_or_two_sided(a: Array, b: Array) -> TruncatedNormal:
    """Truncated normals on [a, b], leaving out the end that is too far to be seen."""
    sides = (np.where(a > -VISIBLE, a, -np.inf), np.where(b < VISIBLE, b, np.inf))
    below, above = np.isneginf(sides[0]), np.isposinf(sides[1])
    parts = [np.empty(a.shape), np.empty(a.shape), np.empty(a.shape)]
    from_lower = np.empty(a.shape, dtype=bool)
    for where in (below, above, ~below & ~above):
        if where.any():
            law = truncated_normal(sides[0][where], sides[1][where])
            for part, values in zip(parts, (law.log_mass, law.depth, law.depth_square)):
                part[where] = values
            from_lower[where] = law.from_lower
    return TruncatedNormal(parts[0], parts[1], parts[2], from_lower)
