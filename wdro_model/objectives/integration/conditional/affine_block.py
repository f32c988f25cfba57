"""The part of the data in which the loss is affine, given the rest, and its closed-form integral.

With f = a + <B, zeta_A>, a squared cost and a (truncated) Gaussian reference, per coordinate

    v_i = 1/(2 l w_i/eps + 1/sigma_i^2),   m_i = v_i B_i/eps,
    log E exp(.../eps) = f(xi_A)/eps + sum_i [ m_i^2/(2 v_i) + log(v_i/sigma_i^2)/2 + log masses ].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from wdro_model.loss.structure import degree
from wdro_model.objectives.base import Array
from wdro_model.objectives.integration.importance.frame import Frame
from wdro_model.objectives.integration.truncated import TruncatedNormal, truncated_normal

TRIED_PARAMETERS = 12
"""Up to so many parameters every subset is looked at; beyond, parameters are added greedily."""
VISIBLE = 6.5
"""A bound this many deviations away takes a mass of 4e-11."""


def affine_block(expression: Any, parameters: tuple[Any, ...]) -> tuple[Any, ...]:
    """The parameters with the most coordinates in which a loss is jointly affine.

    Only parameters with a box or R^d as support are looked at; () if there are none.
    """
    boxed = [p for p in parameters if p.support.bounds(p.shape) is not None]
    alone = [p for p in boxed if degree(expression, (p,)) <= 1]
    if len(alone) > TRIED_PARAMETERS:
        return _greedy(expression, alone)
    best: tuple[Any, ...] = ()
    for count in range(1, len(alone) + 1):
        for subset in combinations(alone, count):
            if _size(subset) > _size(best) and degree(expression, subset) <= 1:
                best = subset
    return best


def _greedy(expression: Any, alone: list[Any]) -> tuple[Any, ...]:
    best: tuple[Any, ...] = ()
    for p in sorted(alone, key=lambda p: -math.prod(p.shape)):
        if degree(expression, (*best, p)) <= 1:
            best = (*best, p)
    return best


def _size(subset: tuple[Any, ...]) -> int:
    return sum(math.prod(p.shape) for p in subset)


@dataclass(frozen=True)
class BlockIntegral:
    """The integral over the block for B rows of slopes, relative to exp(f(xi_A)/eps)."""

    log_value: Array
    """(B,)"""
    move: Array
    """E[zeta_A - xi_A] under the tilted distribution, (B, r)."""
    cost: Array
    """E[c_A], (B,)."""
    cost_variance: Array | None
    """Var(c_A), (B,); None on a box."""


class AffineBlock:
    """Closed-form integration over the moves of a block."""

    def __init__(self, frame: Frame, epsilon: float) -> None:
        assert frame.weights is not None
        self.frame, self.epsilon = frame, epsilon
        self.weights: Array = frame.weights
        self._reference: Array | None = None

    def integrate(self, owners: Array, slopes: Array, dual: float) -> BlockIntegral:
        """The integral for slopes (B, r) of the samples `owners` (B,)."""
        spread, weights = self.frame.spread, self.weights
        variance = spread / (1 + 2 * dual * weights * spread / self.epsilon)
        move = slopes * (variance / self.epsilon)
        square = move**2
        constant = 0.5 * np.log(variance / spread).sum()
        log_value = constant + square @ (0.5 / variance)
        bounds = self.frame.bounds(owners)
        if bounds is not None:
            deviation = np.sqrt(variance)
            low, high = (bounds[0] - move) / deviation, (bounds[1] - move) / deviation
            seen = (low > -VISIBLE) | (high < VISIBLE)
            if seen.any():
                return self._truncated(owners, log_value, move, variance, (low, high), seen)
            log_value = log_value - self.reference_log_mass()[owners]
        return BlockIntegral(
            log_value,
            move,
            (square + variance) @ weights,
            (4 * square + 2 * variance) @ (variance * weights**2),
        )

    def _truncated(
        self,
        owners: Array,
        log_value: Array,
        move: Array,
        variance: Array,
        ends: tuple[Array, Array],
        seen: Array,
    ) -> BlockIntegral:
        law = one_or_two_sided(ends[0][seen], ends[1][seen])
        bounds = self.frame.bounds(owners)
        assert bounds is not None
        deviation = np.broadcast_to(np.sqrt(variance), seen.shape)[seen]
        # Moments from the end of the interval where most of the mass lies.
        end = np.where(law.from_lower, bounds[0][seen], bounds[1][seen])
        inward = np.where(law.from_lower, deviation, -deviation)
        log_mass, mean, square = np.zeros(seen.shape), move.copy(), move**2 + variance
        log_mass[seen] = law.log_mass
        mean[seen] = end + inward * law.depth
        square[seen] = end**2 + 2 * end * inward * law.depth + inward**2 * law.depth_square
        return BlockIntegral(
            log_value + log_mass.sum(axis=1) - self.reference_log_mass()[owners],
            np.clip(mean, *bounds),
            square @ self.weights,
            None,
        )

    def reference_log_mass(self) -> Array:
        """For each sample the log mass of the reference in the box, (N,); computed once."""
        if self._reference is None:
            found = np.zeros(self.frame.joint.size)
            deviation = np.sqrt(self.frame.spread)
            for k in range(len(found)):
                bounds = self.frame.bounds(np.array([k]))
                if bounds is not None:
                    low, high = bounds[0][0] / deviation, bounds[1][0] / deviation
                    seen = (low > -np.inf) | (high < np.inf)
                    found[k] = truncated_normal(low[seen], high[seen]).log_mass.sum()
            self._reference = found
        return self._reference


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
