"""The terms of a loss along separate lines at one decision: their values, and their kinks.

A term sees one moving coordinate, so that one scenario serves all lines at once: line i reads its
coordinate, whatever the others hold. Points of many lines are therefore packed into few rows; where
terms see data that never moves, a row serves points of one sample only.

Piecewise affine terms are slopes between kinks. Each one is plus or minus a maximum of lines; the
kinks of a sum are those of its terms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from wdro_model.loss.batched import Layout
from wdro_model.loss.stacked import Stacked
from wdro_model.objectives.integration.kernel.pieces import envelope
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


# ------------------------------------------------------------------ kinks
@dataclass(frozen=True)
class Segments:
    """Functions of y with slope b_q and value a_q + b_q y between kinks q - 1 and q.

    All arrays are (K, D, ...), K = 1 where the functions are the same for all samples.
    """

    kinks: Array
    """(K, D, Q), increasing; +inf where a function has fewer of them."""
    intercepts: Array
    """a, (K, D, Q + 1)."""
    slopes: Array
    """b, (K, D, Q + 1)."""


class Pieces:
    """The lines of the piecewise affine terms of a loss.

    lines: which lines of the separation are wanted, (D',).
    """

    def __init__(self, separation: Separation, lines: Array, layout: Layout) -> None:
        self._coordinates = separation.coordinates[lines]
        position = np.full(len(separation.coordinates), -1)
        position[lines] = np.arange(len(lines))
        expressions: list[Any] = []
        owner, sign, place, start = [], [], [], 0
        most = max([1, *(len(block.pieces) for block in separation.blocks)])
        for block in separation.blocks:
            wanted = np.flatnonzero(position[block.line] >= 0)
            count = len(block.line)
            if block.pieces:
                # Where a term has fewer pieces than others, its first one is repeated.
                which = np.r_[np.arange(len(block.pieces)), np.zeros(most, dtype=int)][:most]
                place.append(start + which * count + wanted[:, None])
                owner.append(position[block.line[wanted]])
                sign.append(np.full(len(wanted), float(block.sign)))
                expressions.extend(block.pieces)
                start += count * len(block.pieces)
        self._stacked = Stacked(expressions, layout, separation.affine.columns)
        self._owner = np.concatenate([np.zeros(0, dtype=int), *owner])
        self._sign = np.concatenate([np.zeros(0), *sign])
        self._place = np.concatenate([np.zeros((0, most), dtype=int), *place])
        self._table = _by_owner(self._owner, len(lines))
        """The terms of each line (D', R), -1 beyond the last."""

    def at(self, x: Array, rows: Array, reach: Array) -> Segments:
        """The functions at x of y = zeta - row, for each of the rows (K, d) of held data.

        reach: a length (d,) on the scale of the data, over which slopes are taken.
        """
        values = self._stacked(x, rows)
        moved = self._stacked(x, rows + reach)
        length = reach[self._coordinates[self._owner]]
        a = values[:, self._place]
        b = (moved[:, self._place] - a) / length[:, None]
        size, _, most = a.shape
        low, high = (
            side.reshape(a.shape) for side in envelope(a.reshape(-1, most), b.reshape(-1, most))
        )
        kinks = np.where((low < high) & np.isfinite(high), high, np.inf)
        table = self._table
        gathered = np.where((table >= 0)[:, :, None], kinks[:, table], np.inf)
        ordered = np.sort(gathered.reshape(size, len(table), table.shape[1] * most), axis=2)
        used = np.isfinite(ordered).any(axis=(0, 1)) if ordered.size else np.zeros(0, dtype=bool)
        ordered = ordered[:, :, : int(used.sum())]
        inside = _between(ordered)
        intercepts, slopes = np.zeros(inside.shape), np.zeros(inside.shape)
        for column in table.T:
            some = np.flatnonzero(column >= 0)
            term = column[some]
            here = a[:, term, None] + b[:, term, None] * inside[:, some, :, None]
            best = here.argmax(axis=3)[..., None]
            sign = self._sign[term][:, None]
            for total, lines in ((intercepts, a), (slopes, b)):
                chosen = np.take_along_axis(lines[:, term, None], best, axis=3)[..., 0]
                total[:, some] += sign * chosen
        return Segments(ordered, intercepts, slopes)


def _by_owner(owner: Array, size: int) -> Array:
    """For each owner the entries that belong to it, in a table filled with -1."""
    counts = np.bincount(owner, minlength=size)
    table = np.full((size, int(counts.max(initial=0))), -1)
    order = np.argsort(owner, kind="stable")
    first = np.cumsum(counts) - counts
    table[owner[order], np.arange(len(owner)) - first[owner[order]]] = order
    return table


def _between(kinks: Array) -> Array:
    """A point of each interval between kinks (K, D, Q): (K, D, Q + 1).

    Beyond its last kink a function is on its last interval.
    """
    count = kinks.shape[2]
    if not count:
        return np.zeros((*kinks.shape[:2], 1))
    last = np.where(np.isfinite(kinks), kinks, -np.inf).max(axis=2, keepdims=True)
    last = np.where(np.isfinite(last), last, 0.0)
    step = 1.0 + np.abs(last)
    filled = np.where(np.isfinite(kinks), kinks, last + step * np.arange(1, count + 1))
    outside = (filled[:, :, :1] - step, filled, filled[:, :, -1:] + step)
    ends = np.concatenate(outside, axis=2)
    return 0.5 * (ends[:, :, :-1] + ends[:, :, 1:])
