"""Scouts: points at the edges of the support, where a second mode of a sample shows first."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from wdro_model.objectives.integration.conditional.block_modes import lattice
from wdro_model.objectives.integration.conditional.marginal import Marginal, scenarios
from wdro_model.objectives.integration.conditional.placement import Placement
from wdro_model.objectives.integration.importance.targets import blocks
from wdro_model.solvers.objective import Array

if TYPE_CHECKING:
    from wdro_model.objectives.integration.conditional.by_blocks import Conditional

SIDE, FREE_SIDE = np.array([1.0]), np.array([4.0])
"""Where scouts stand: at the bounds, or so many deviations of the reference away."""
LOOKED = 0.02
"""They look again when the dual variable has changed by this share."""


class Scouts:
    """The scouts of some samples at one decision: the loss there, for all dual variables."""

    def __init__(self, rule: Conditional, x: Array, samples: Array, placement: Placement) -> None:
        self._rule, self._samples, self._placement = rule, samples, placement
        frame, size = rule.frame, len(samples)
        self._moves = lattice(frame.bounds(samples), frame.spread, size, SIDE, FREE_SIDE)
        count, width = self._moves.shape[1], rule.block.frame.dimension
        values, slopes = np.empty((size, count)), np.empty((size, count, width))
        target = Marginal(rule, x, placement.dual)
        for some in blocks(size, count * rule.joint.dimension):
            rows = scenarios(rule, samples[some], self._moves[some])
            found = target.look(rows, rule.affine, rule.in_block)
            values[some], slopes[some] = (
                found[0].reshape(-1, count),
                found[1].reshape(-1, count, width),
            )
        self._values, self._slopes = values, rule.block.slopes(samples, slopes)
        self._looked = -1.0
        """The dual variable at which they looked last."""

    @staticmethod
    def fit(rule: Conditional, samples: int, entries: int) -> bool:
        """Is there anything to see, and can the slopes be kept in so many entries?"""
        count = (1 + 2 * len(SIDE)) ** rule.frame.dimension
        return count > 1 and samples * count * max(1, rule.block.frame.dimension) <= entries

    def asked(self, dual: float, peaks: Callable[[float], Array]) -> Array:
        """The samples that may have a mode which is not known; peaks: heights of those known, (K,).

        Samples with two modes are left alone. One with a mode near it, of a height g above its own,
        asks its highest scout, if that is less than g below the sample; one with a mode elsewhere
        asks for a mode near it. Who has asked in vain asks again when the lag has become smaller.
        """
        if abs(dual - self._looked) <= LOOKED * self._looked:
            return self._samples[:0]
        self._looked, middle = dual, self._moves.shape[1] // 2
        heights = peaks(dual)
        alone, modes = self._placement.single(self._samples)
        size = np.abs(self._moves).max(axis=1, keepdims=True)
        away = np.linalg.norm((self._moves - modes[:, None]) / np.maximum(size, 1e-300), axis=2)
        near = away.argmin(axis=1) == middle
        h = self._heights(dual)
        own = h[:, middle].copy()
        h[:, middle] = -np.inf
        highest = h.max(axis=1)
        calls = ~near | (highest > own - np.maximum(heights - own, 0.0))
        lag = heights - np.where(near, highest, own)
        return self._samples[self._placement.asks(self._samples, lag, alone & calls)]

    def _heights(self, dual: float) -> Array:
        """h at the scouts, (K, Q)."""
        rule = self._rule
        assert rule.frame.weights is not None
        precision = 1 / rule.frame.spread + 2 * dual * rule.frame.weights / rule.epsilon
        h = self._values / rule.epsilon - 0.5 * (self._moves**2 @ precision)
        return h + rule.block.integrate(self._slopes, dual).log_value
