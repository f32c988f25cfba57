"""A road network as a sparse matrix, ready for shortest-path libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from wdro_model.sets.backends import Vector
from wdro_model.sets.traffic_backends.trips import Indices, Trips

DENSE_NODES = 5000
"""Up to here the entry of a (tail, head) is read from a dense table, beyond by bisection."""


class RoadGraph:
    """The arcs as a CSR matrix with one entry per pair (tail, head), in N >= n nodes.

    A node v that may not be passed is split in two: arcs into v end at v, arcs out of v leave from
    its copy, and nothing joins the two. A path can then end or start at v, never pass. Parallel
    arcs share an entry, which has the least of their weights; self-loops have none.

    Attributes
    ----------
    size: N.
    departure (n,): where a trip that starts at a node sets out: the node itself or its copy.
    proper: the arcs that are not self-loops.
    tails, heads (E,): the ends of each entry, sorted by tail, then head.
    indices, indptr: the columns and the row starts of the CSR matrix.
    """

    def __init__(self, trips: Trips) -> None:
        n = len(trips.names)
        closed = np.flatnonzero(~trips.through)
        self.size = n + closed.size
        self.departure = np.arange(n)
        self.departure[closed] = n + np.arange(closed.size)
        self._trips = trips
        self.proper = np.flatnonzero(trips.tails != trips.heads)
        keys = self.departure[trips.tails[self.proper]] * self.size + trips.heads[self.proper]
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        first = np.diff(keys, prepend=-1) != 0
        self._keys = keys[first]
        self._order = self.proper[order]
        self._starts = np.flatnonzero(first)
        self._group = np.cumsum(first) - 1
        self.has_parallel = self._starts.size < order.size
        self.tails, self.heads = self._keys // self.size, self._keys % self.size
        self.indices = self.heads.astype(np.int32)
        self.indptr = np.searchsorted(self.tails, np.arange(self.size + 1)).astype(np.int32)
        self._table = self._dense_table() if self.size <= DENSE_NODES else None

    @property
    def entries(self) -> int:
        """E, the number of pairs (tail, head) joined by an arc."""
        return int(self._keys.size)

    def matrix(self, data: Vector) -> sp.csr_array:
        """The CSR matrix with the given entries (E,); explicit zeros stay arcs."""
        return sp.csr_array((data, self.indices, self.indptr), shape=(self.size, self.size))

    def weights(self, arc_weights: Vector) -> Vector:
        """The weight of each entry (E,): the least of its parallel arcs."""
        weights = arc_weights[self._order]
        return np.minimum.reduceat(weights, self._starts) if self.has_parallel else weights

    def cheapest(self, arc_weights: Vector) -> Indices:
        """The arc that each entry stands for (E,): the first of least weight."""
        if not self.has_parallel:
            return self._order
        weights = arc_weights[self._order]
        least = np.minimum.reduceat(weights, self._starts)
        hits = np.flatnonzero(weights == least[self._group])
        return self._order[hits[np.searchsorted(self._group[hits], np.arange(least.size))]]

    def link_flows(self, entry_flows: Vector, arc_weights: Vector) -> Vector:
        """Flows on the arcs (A,) from flows on the entries (E,)."""
        flows = np.zeros(self._trips.tails.size)
        flows[self.cheapest(arc_weights)] = entry_flows
        return flows

    def entry(self, tails: NDArray[Any], heads: NDArray[Any]) -> NDArray[Any]:
        """The entries of pairs (tail, head) that are joined by an arc."""
        keys = np.multiply(tails, self.size, dtype=np.int64)
        keys += heads
        if self._table is not None:
            return self._table[keys]
        return np.searchsorted(self._keys, keys)

    def __reduce__(self) -> Any:
        # Tables are quicker to build again than to send.
        return type(self), (self._trips,)

    def _dense_table(self) -> NDArray[Any]:
        kind = np.uint16 if self.entries <= np.iinfo(np.uint16).max else np.int32
        table = np.zeros(self.size**2, dtype=kind)
        table[self._keys] = np.arange(self.entries)
        return table
