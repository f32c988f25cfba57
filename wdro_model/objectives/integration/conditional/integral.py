"""The closed-form integral over block A, truncated where a bound of its support matters.

With f = a + <B, zeta_A>, a squared cost and a (truncated) Gaussian reference, per coordinate

    q_i = 1/(1 + 2 l w_i sigma_i^2/eps),   v_i = sigma_i^2 q_i,   m_i = v_i B_i/eps,
    log E exp(.../eps) = f(xi_A)/eps + sum_i [ m_i^2/(2 v_i) + log(q_i)/2 + log masses ].

Without the masses the slopes enter only through the sums of sigma_i^2 B_i^2 over the coordinates
that share w_i sigma_i^2: all of them, where sigma is the default. These sums are taken once for
a decision, and the dual variable then costs nothing that grows with the block. Masses are computed
for the samples and coordinates that come near a bound at one node at least.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from wdro_model.objectives.integration.frame import Frame
from wdro_model.objectives.integration.normal import TruncatedNormal, truncated_normal
from wdro_model.objectives.integration.proposals import Bounds
from wdro_model.solvers.objective import Array

VISIBLE = 6.5
"""A bound this many deviations away takes a mass of 4e-11."""
ALL = 9.0
"""A bound so many deviations away takes less than rounding."""
LEVELS = 8
"""At most so many values of w_i sigma_i^2 are told apart by sums of their own."""
BLOCK_ENTRIES = 2**20


Pairs = tuple[Array, Array]
"""Positions of samples, in order, and coordinates of each, (P,) both."""


@dataclass(frozen=True)
class Sight:
    """How far moves go, and how far around them a bound is seen, at one dual variable."""

    dual: float
    factor: Array
    """Of the slopes in the moves, v/eps, (r,)."""
    reach: Array
    """(r,)"""

    def lacks_room(self, least: Array, most: Array, lower: Array, upper: Array) -> Array:
        """Where slopes between two values lead so near to bounds of the moves, (K, r)."""
        low, high = least * self.factor - self.reach, most * self.factor + self.reach
        return (low < lower) | (high > upper)


@dataclass(frozen=True)
class Slopes:
    """Slopes B of K samples at S nodes, as the integrals over the dual variable see them."""

    owners: Array
    """(K,)"""
    squares: Array
    """Sums of sigma_i^2 B_i^2 over the coordinates of each level, (K, S, levels)."""
    near: Callable[[Sight], Pairs]
    """Samples and coordinates that a bound can be seen from, at one node at least."""
    entries: Callable[[Array, Array], Array]
    """Positions of samples and coordinates, (P,) each -> B there at all nodes, (P, S)."""


@dataclass(frozen=True)
class Near:
    """Coordinates near a bound: tilted means at the nodes in place of those on R^d."""

    samples: Array
    """Positions (P,) among the K samples, in order."""
    coordinates: Array
    """(P,)"""
    means: Array
    """(P, S)"""
    beyond: Array
    """How far these are from the means on R^d, (P, S)."""


@dataclass(frozen=True)
class BlockIntegral:
    """The integral over the block at S nodes of K samples, relative to exp(f(xi_A)/eps)."""

    log_value: Array
    """(K, S)"""
    cost: Array
    """E[c_A], (K, S)."""
    cost_variance: Array | None
    """Var(c_A), (K, S); None where a bound is near."""
    shrinkage: Array
    """q of each level, (levels,)."""
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
        self.fold: Array | None = None
        """Adds up sigma_i^2 B_i^2 by levels, (r, levels); None where each is a level of its own."""
        if len(self.levels) <= LEVELS:
            self.fold = np.zeros((frame.dimension, len(self.levels)))
            self.fold[np.arange(frame.dimension), self._level] = frame.spread

    def slopes(
        self,
        owners: Array,
        values: Array,
        entries: Callable[[Array, Array], Array] | None = None,
    ) -> Slopes:
        """What the integrals need of the slopes B (K, S, r) of the samples `owners` (K,).

        entries: that of the slopes, where the values are not to be kept for it.
        """
        squares = values**2
        squares = squares * self.frame.spread if self.fold is None else squares @ self.fold
        near = seen_from(self.frame.bounds(owners), values)
        return Slopes(owners, squares, near, entries or entries_of(values))

    def integrate(self, slopes: Slopes, dual: float) -> BlockIntegral:
        """The integral at a dual variable."""
        level, epsilon = self.levels, self.epsilon
        q = 1.0 / (1.0 + 2 * dual * level / epsilon)
        factors = np.stack([0.5 * q, level * q**2, 4 * level**2 * q**3], axis=1) / epsilon**2
        sums = slopes.squares @ factors
        log_value = sums[..., 0] + 0.5 * self._count @ np.log(q)
        cost = sums[..., 1] + self._count @ (level * q)
        cost_variance = sums[..., 2] + 2 * self._count @ (level * q) ** 2
        variance = self.frame.spread * q[self._level]
        if not self.frame.bounded:
            return BlockIntegral(log_value, cost, cost_variance, q, variance, None)
        log_value -= self.reference_log_mass[slopes.owners, None]
        where = slopes.near(Sight(dual, variance / epsilon, VISIBLE * np.sqrt(variance)))
        if len(where[0]) == 0:
            return BlockIntegral(log_value, cost, cost_variance, q, variance, None)
        near = self._truncate(slopes, variance, where, log_value, cost)
        return BlockIntegral(log_value, cost, None, q, variance, near)

    def moves(self, integral: BlockIntegral, values: Array) -> Array:
        """E[zeta_A - xi_A] under the tilted distribution, (K, S, r), for slopes B."""
        moves = values * (integral.variance / self.epsilon)
        if integral.near is not None:
            near = integral.near
            moves[near.samples, :, near.coordinates] = near.means
        return moves

    def _truncate(
        self, slopes: Slopes, variance: Array, where: Pairs, log_value: Array, cost: Array
    ) -> Near:
        """Correct log value and cost (in place) for the mass and moments inside the bounds."""
        samples, coordinates = where
        v = variance[coordinates, None]
        deviation = np.sqrt(v)
        sides = self.frame.bounds_of(slopes.owners[samples], coordinates)
        lower, upper = (side[:, None] for side in sides)
        move = slopes.entries(*where) * (v / self.epsilon)
        low, high = (lower - move) / deviation, (upper - move) / deviation
        seen = (low > -VISIBLE) | (high < VISIBLE)
        law = one_or_two_sided(low[seen], high[seen])
        # Moments from the end of the interval where most of the mass lies.
        lower, upper, deviation = (
            np.broadcast_to(a, seen.shape)[seen] for a in (lower, upper, deviation)
        )
        end = np.where(law.from_lower, lower, upper)
        inward = np.where(law.from_lower, deviation, -deviation)
        log_mass, change, mean = np.zeros(seen.shape), np.zeros(seen.shape), move.copy()
        log_mass[seen] = law.log_mass
        square = end**2 + 2 * end * inward * law.depth + inward**2 * law.depth_square
        change[seen] = square - (move[seen] ** 2 + deviation**2)
        mean[seen] = np.clip(end + inward * law.depth, lower, upper)
        first = np.flatnonzero(np.diff(samples, prepend=-1))
        log_value[samples[first]] += np.add.reduceat(log_mass, first, axis=0)
        change *= self.weights[coordinates, None]
        cost[samples[first]] += np.add.reduceat(change, first, axis=0)
        return Near(samples, coordinates, mean, mean - move)

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
            seen = (low > -ALL) | (high < ALL)
            masses = np.zeros(low.shape)
            masses[seen] = truncated_normal(low[seen], high[seen]).log_mass
            found[some] = masses.sum(axis=1)
        return found


def seen_from(bounds: Bounds | None, values: Array) -> Callable[[Sight], Pairs]:
    """The bounds (K, r) of moves that are seen from nodes with these slopes (K, S, r)."""
    if bounds is None:
        nothing = np.empty(0, dtype=int)
        return lambda sight: (nothing, nothing)
    least, most = values.min(axis=1), values.max(axis=1)

    def seen(sight: Sight) -> Pairs:
        samples, coordinates = np.nonzero(sight.lacks_room(least, most, *bounds))
        return samples, coordinates

    return seen


def entries_of(values: Array) -> Callable[[Array, Array], Array]:
    """Those of slopes (K, S, r) that are at hand."""
    return lambda samples, coordinates: values[samples, :, coordinates]


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
