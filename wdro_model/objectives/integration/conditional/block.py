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
from wdro_model.objectives.integration.targets import blocks
from wdro_model.solvers.objective import Array

VISIBLE = 6.5
"""Deviations within which a bound counts: beyond, it takes a mass of less than 4e-11."""
REFERENCE_VISIBLE = 9.0
"""The same for the mass of the reference, which is computed once: less than rounding."""
MOST_LEVELS = 8
"""Values of w_i sigma_i^2 that have sums of their own; if there are more, each coordinate has."""
MASS_ENTRIES = 2**20
"""Masses of the reference that are computed at once."""


@dataclass(frozen=True)
class Slopes:
    """Slopes B of K samples at S nodes, in the form that serves every dual variable."""

    owners: Array
    """The samples, (K,)."""
    squares: Array
    """Sums of sigma_i^2 B_i^2 over the coordinates of each level, (K, S, levels)."""
    least: Array
    """The least slopes over the nodes, (K, r)."""
    most: Array
    """The largest slopes over the nodes, (K, r)."""
    entries: Callable[[Array, Array], Array]
    """Positions of samples and coordinates, (P,) each -> B there at all nodes, (P, S)."""


@dataclass(frozen=True)
class TruncatedMoves:
    """Tilted means in coordinates near a bound, in place of those on R^d."""

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
    truncated: TruncatedMoves | None


class AffineBlock:
    """Closed-form integration over the moves of a block."""

    def __init__(self, frame: Frame, epsilon: float) -> None:
        assert frame.weights is not None
        self.frame, self.epsilon = frame, epsilon
        self.weights: Array = frame.weights
        self.levels, self._level, self._count = levels_of(frame.weights * frame.spread)
        self._fold: Array | None = None
        """Adds up sigma_i^2 B_i^2 by levels, (r, levels); None where each is a level of its own."""
        if len(self.levels) <= MOST_LEVELS:
            self._fold = np.zeros((frame.dimension, len(self.levels)))
            self._fold[np.arange(frame.dimension), self._level] = frame.spread

    def square_sums(self, values: Array) -> Array:
        """Sums of sigma_i^2 B_i^2 by levels (..., levels) for slopes B (..., r)."""
        squares = values**2
        return squares * self.frame.spread if self._fold is None else squares @ self._fold

    def slopes(
        self,
        owners: Array,
        values: Array,
        squares: Array | None = None,
        entries: Callable[[Array, Array], Array] | None = None,
    ) -> Slopes:
        """The slopes B (K, S, r) of the samples `owners` (K,).

        squares: their `square_sums`, where these are known.
        entries: evaluates slopes again, where the values are not to be kept.
        """
        return Slopes(
            owners,
            self.square_sums(values) if squares is None else squares,
            values.min(axis=1),
            values.max(axis=1),
            entries or (lambda samples, coordinates: values[samples, :, coordinates]),
        )

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
        bounds = self.frame.bounds(slopes.owners)
        if bounds is None:
            return BlockIntegral(log_value, cost, cost_variance, variance, None)
        log_value -= self.reference_log_mass[slopes.owners, None]
        factor, reach = variance / epsilon, VISIBLE * np.sqrt(variance)
        near = slopes.least * factor - reach < bounds[0]
        near |= slopes.most * factor + reach > bounds[1]
        where = np.nonzero(near)
        if len(where[0]) == 0:
            return BlockIntegral(log_value, cost, cost_variance, variance, None)
        truncated = self._truncate(slopes, variance, where, log_value, cost)
        return BlockIntegral(log_value, cost, None, variance, truncated)

    def moves(self, integral: BlockIntegral, values: Array) -> Array:
        """E[zeta_A - xi_A] under the tilted distribution, (K, S, r), for slopes B."""
        moves = values * (integral.variance / self.epsilon)
        if integral.truncated is not None:
            near = integral.truncated
            moves[near.samples, :, near.coordinates] = near.means
        return moves

    def _truncate(
        self,
        slopes: Slopes,
        variance: Array,
        where: tuple[Array, ...],
        log_value: Array,
        cost: Array,
    ) -> TruncatedMoves:
        """Correct log value and cost (in place) for the mass and moments inside the bounds."""
        samples, coordinates = where
        v = variance[coordinates, None]
        deviation = np.sqrt(v)
        sides = self.frame.bounds_of(slopes.owners[samples], coordinates)
        lower, upper = (side[:, None] for side in sides)
        move = slopes.entries(samples, coordinates) * (v / self.epsilon)
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
        return TruncatedMoves(samples, coordinates, mean)

    @cached_property
    def reference_log_mass(self) -> Array:
        """For each sample the log mass of the reference in the box, (N,)."""
        size, deviation = self.frame.joint.size, self.frame.deviation
        log_mass = np.zeros(size)
        for some in blocks(size, self.frame.dimension, MASS_ENTRIES):
            bounds = self.frame.bounds(np.arange(size)[some])
            if bounds is None:
                break
            low, high = bounds[0] / deviation, bounds[1] / deviation
            seen = (low > -REFERENCE_VISIBLE) | (high < REFERENCE_VISIBLE)
            masses = np.zeros(low.shape)
            masses[seen] = truncated_normal(low[seen], high[seen]).log_mass
            log_mass[some] = masses.sum(axis=1)
        return log_mass


def levels_of(products: Array) -> tuple[Array, Array, Array]:
    """Distinct values of w_i sigma_i^2 up to rounding, the index of each, and how often it occurs.

    Where they are many, every coordinate is a level of its own.
    """
    scale = max(float(products.max(initial=0.0)), 1e-300)
    _, first, index, count = np.unique(
        np.round(products / scale, 12), return_index=True, return_inverse=True, return_counts=True
    )
    if len(first) > MOST_LEVELS:
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
