"""Terms along separate lines, evaluated together.

A term sees one moving coordinate, so that one scenario serves all lines at once: line i reads its
coordinate, whatever the others hold. Points of many lines are therefore packed into few rows; where
terms see data that never moves, a row serves points of one sample only.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from wdro_model.objectives.integration.separable.term_anatomy import Separation
from wdro_model.solvers.objective import Array

BLOCK_ENTRIES = 2**18
"""Entries of packed rows that exist at once."""


class Packing:
    """The terms of a loss at one decision.

    data: the samples (N, d); points are given by sample, line and value of the coordinate.
    """

    def __init__(self, separation: Separation, data: Array, x: Array) -> None:
        self._parts, self._data, self._x = separation, data, x

    def values(self, sample: Array, line: Array, z: Array) -> Array:
        """The sum of the terms of each line at its points, (M,)."""
        out = np.empty(len(z))
        for some in self._blocks(len(z)):
            rows, place = self._packed(sample[some], line[some], z[some])
            terms = self._parts.terms(self._x, rows)
            out[some] = self._by_line(terms)[place, line[some]]
        return out

    def gradient(self, sample: Array, line: Array, z: Array, weights: Array) -> Array:
        """The gradient in x of the weighted sum over the points."""
        gradient = np.zeros(self._parts.terms.layout.dimension)
        for some in self._blocks(len(z)):
            rows, place = self._packed(sample[some], line[some], z[some])
            shares = np.zeros((len(rows), len(self._parts.coordinates)))
            shares[place, line[some]] = weights[some]
            self._parts.terms(self._x, rows)
            gradient += self._parts.terms.in_decision(shares[:, self._parts.line])
        return gradient

    def _by_line(self, terms: Array) -> Array:
        """Sums over the terms of each line, (B, D)."""
        lines = self._parts.line
        if self._parts.one_term:
            total = np.zeros((len(terms), len(self._parts.coordinates)))
            total[:, lines] = terms
            return total
        shape = (len(lines), len(self._parts.coordinates))
        return terms @ sp.csr_array((np.ones(len(lines)), (np.arange(len(lines)), lines)), shape)

    def _blocks(self, count: int) -> list[slice]:
        """The points in parts whose rows fit into the processor's cache.

        Points come sample by sample, so that a part has about as many of each line.
        """
        width = self._data.shape[1] / max(1, len(self._parts.coordinates))
        step = max(1, int(BLOCK_ENTRIES / width))
        return [slice(start, start + step) for start in range(0, count, step)]

    def _packed(self, sample: Array, line: Array, z: Array) -> tuple[Array, Array]:
        """Scenarios (B, d) that hold the points, and the row of each point."""
        if self._parts.held:
            _, group = np.unique(sample, return_inverse=True)
            within = _rank(group * (1 + int(line.max())) + line)
            heights = np.zeros(int(group.max()) + 1, dtype=int)
            np.maximum.at(heights, group, within + 1)
            place = (np.cumsum(heights) - heights)[group] + within
            rows = np.repeat(self._data[np.unique(sample)], heights, axis=0)
        else:
            place = _rank(line)
            rows = np.repeat(self._data[:1], int(place.max()) + 1, axis=0)
        rows[place, self._parts.coordinates[line]] = z
        return rows, place


def _rank(keys: Array) -> Array:
    """0, 1, 2, ... for the occurrences of each key, in order."""
    small = keys.max(initial=0) < 2**15  # sorted by counting
    order = np.argsort(keys.astype(np.int16) if small else keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    counts = np.diff(np.r_[starts, len(keys)])
    rank = np.empty(len(keys), dtype=int)
    rank[order] = np.arange(len(keys)) - np.repeat(starts, counts)
    return rank
