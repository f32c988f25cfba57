"""A lattice over the support of each sample, on which modes show that are not known.

The loss on the lattice does not depend on the dual variable: for another one the density there
takes no evaluation. A peak of the lattice that no known mode explains is a place to climb from.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model.objectives.integration.conditional.block_modes import (
    FREE_SIDE,
    SIDE,
    BlockModes,
    lattice,
    lattice_peaks,
)
from wdro_model.solvers.objective import Array

if TYPE_CHECKING:
    from wdro_model.objectives.integration.conditional.by_blocks import Conditional

LOOKED = 0.005
"""The lattice is looked at again when the dual variable has changed by this share."""
SLACK = 0.5
"""Heights of known modes are exact to this, where the dual has changed since they were taken."""
TRIED = 0.02
"""A peak from which a climb led to nothing new is tried again after such a change."""


class Lookout:
    """The lattices of some samples at one decision: the loss there, for all dual variables."""

    def __init__(self, rule: Conditional, x: Array, samples: Array) -> None:
        self._rule, self._x, self._samples = rule, np.array(x), samples
        frame, size = rule.frame, len(samples)
        some = slice(1, None, 2) if rule.is_coarse else slice(None)
        sides = SIDE[some], FREE_SIDE[some]
        self._moves = lattice(frame.bounds(samples), frame.spread, size, *sides)
        count = self._moves.shape[1]
        self._parts = rule.blocks(x, size, count)
        self._values, self._slopes = np.empty((size, count)), []
        for part in self._parts:
            loss = rule.looked(x, samples[part], self._moves[part], lenient=True)
            self._values[part] = loss.values
            self._slopes.append(loss.slopes)
        self._looked = -1.0
        """The dual variable at which the lattice was looked at last."""
        self._tried = np.full((size, count), np.nan)
        """The dual variable at which a climb began there last."""

    def is_near(self, x: Array, samples: Array, apart: float) -> bool:
        """Is it that of these samples, and of a decision that differs by this share at most?"""
        moved = float(np.linalg.norm(x - self._x))
        same = np.array_equal(self._samples, samples)
        return same and moved <= apart * float(np.linalg.norm(x))

    @staticmethod
    def fits(rule: Conditional, samples: int, entries: int) -> bool:
        """Is there anything to see, and can the slopes be kept in so many entries?"""
        count = (1 + 2 * len(SIDE)) ** rule.frame.dimension
        return count > 1 and samples * count * max(1, rule.block.frame.dimension) <= entries

    def unexplained(self, dual: float, known: BlockModes) -> tuple[Array, Array]:
        """Samples (P,) and moves (P, r) of peaks that no known mode explains.

        A mode explains a peak beside it that is no higher.
        known: with their heights at this dual.
        """
        none = self._samples[:0], self._moves[:0, 0]
        if abs(dual - self._looked) <= LOOKED * self._looked:
            return none
        self._looked = dual
        heights = self._heights(dual)
        peaks = lattice_peaks(heights, self._rule.frame.dimension)
        peaks &= ~(heights <= self._beside(known) + SLACK)
        peaks &= ~(np.abs(dual - self._tried) <= TRIED * self._tried)
        rows, cells = np.nonzero(peaks)
        if len(rows) == 0:
            return none
        self._tried[rows, cells] = dual
        return self._samples[rows], self._moves[rows, cells]

    def _heights(self, dual: float) -> Array:
        """h on the lattice, (K, L)."""
        rule = self._rule
        assert rule.frame.weights is not None
        precision = 1 / rule.frame.spread + 2 * dual * rule.frame.weights / rule.epsilon
        h = self._values / rule.epsilon - 0.5 * (self._moves**2 @ precision)
        for part, slopes in zip(self._parts, self._slopes):
            h[part] += rule.block.integrate(slopes, dual).log_value
        return h

    def _beside(self, known: BlockModes) -> Array:
        """The height of the highest known mode in or next to each cell of the lattice, (K, L)."""
        size, count, r = self._moves.shape
        side = round(count ** (1 / r))
        cube = self._moves.reshape(size, *[side] * r, r)
        known = known.where(np.isin(known.owners, self._samples))
        rows = np.searchsorted(self._samples, known.owners)
        cells = []
        for i in range(r):
            first: list[Any] = [slice(None), *[0] * r, i]
            first[1 + i] = slice(None)
            along = cube[tuple(first)]
            cells.append(np.abs(along[rows] - known.moves[:, i : i + 1]).argmin(axis=1))
        beside = np.full((size, *[side] * r), -np.inf)
        for shift in product((-1, 0, 1), repeat=r):
            near = (np.clip(cell + s, 0, side - 1) for cell, s in zip(cells, shift))
            np.maximum.at(beside, (rows, *near), known.heights)
        return beside.reshape(size, count)
