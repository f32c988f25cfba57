"""Samples whose forms have the same slopes in the data.

A form such as y * (x @ z) with a frozen label y has the slope y_k x at sample k: one for each value
of the label. Where no frozen data multiplies the moving data, all samples are one group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.joint import JointSamples

CHUNK_ENTRIES = 2**24
"""Entries of the slopes that exist at once."""


@dataclass(frozen=True)
class Grouped:
    """Some samples, and the group of each."""

    samples: Array
    """(K,)"""
    member: Array
    """The group of each sample, (K,)."""
    rows: Array
    """A scenario of each group, (G, d)."""
    alone: bool = False
    """Is every sample a group of its own, and its scenario the sample?"""

    def total(self, values: Array) -> Array:
        """Sums over each group of values (K, ...): (G, ...)."""
        if len(self.rows) == 1:
            return values.sum(axis=0, keepdims=True)
        sums = np.zeros((len(self.rows), *values.shape[1:]))
        np.add.at(sums, self.member, values)
        return sums

    def weighted(self, weights: Array, matrix: Array) -> Array:
        """sum_k weights_kj xi_k over each group, (G, q, d), from the samples' matrix."""
        rows = rows_of(matrix, self.samples)
        if len(self.rows) == 1:
            return (weights.T @ rows)[None]
        size, count = weights.shape
        where = (self.member[:, None] * count + np.arange(count)).ravel()
        shape = (len(self.rows) * count, size)
        selected = sp.csr_array(
            (weights.ravel(), (where, np.repeat(np.arange(size), count))), shape
        )
        return (selected @ rows).reshape(len(self.rows), count, -1)


def rows_of(matrix: Array, samples: Array) -> Array:
    """The rows of these samples; a view of the matrix, not a copy, if they stand in a row."""
    if len(samples) and samples[-1] - samples[0] == len(samples) - 1:
        start = int(samples[0])
        if np.array_equal(samples, np.arange(start, start + len(samples))):
            return matrix[start : start + len(samples)]
    return matrix[samples]


class Groups:
    """The groups of all samples, by the values of some coordinates (None: one group).

    count: the number of forms, for the size of their slopes; chunk: samples in a part at most.
    """

    def __init__(self, joint: JointSamples, keys: Array | None, count: int, chunk: int) -> None:
        self._joint = joint
        self._group: Array | None = None
        self._first = np.zeros(1, dtype=int)
        self._step = chunk
        if keys is not None:
            values = joint.matrix[:, keys]
            one = values.shape[1] == 1  # far faster than rows are
            _, self._first, group = np.unique(
                values.ravel() if one else values,
                axis=None if one else 0,
                return_index=True,
                return_inverse=True,
            )
            self._group = np.reshape(group, -1)
            own = max(1, (1 + count) * joint.dimension)
            if len(self._first) * own > CHUNK_ENTRIES:
                self._step = max(1, min(chunk, CHUNK_ENTRIES // own))

    @property
    def number(self) -> int:
        """How many groups there are."""
        return len(self._first)

    def chunks(self, samples: Array) -> list[Array]:
        """The samples in parts that fit into memory."""
        starts = range(0, len(samples), self._step)
        return [samples[i : i + self._step] for i in starts]

    def of(self, samples: Array) -> Grouped:
        """The groups of some samples."""
        if self._group is None:
            return Grouped(samples, np.zeros(len(samples), dtype=int), self._joint.mean[None])
        if len(self._first) < len(samples):
            # Few groups: no need to sort all samples.
            own = self._group[samples]
            present = np.flatnonzero(np.bincount(own, minlength=len(self._first)))
            member = np.searchsorted(present, own)
        else:
            present, member = np.unique(self._group[samples], return_inverse=True)
        if len(present) == len(samples):
            order = np.arange(len(samples))
            return Grouped(samples, order, self._joint.matrix[samples], alone=True)
        rows = self._joint.matrix[self._first[present]]
        return Grouped(samples, np.reshape(member, -1), rows)
