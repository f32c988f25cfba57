"""Simple paths by a program in HiGHS: weights of any sign and mandatory edges, on any graph.

With cycles these are hard problems: a flow of one unit may go round cycles beside its path. For a
set S of nodes without the target and a node v in S, a path that leaves v leaves S as well,

    y(out of S) >= y(out of v),

and the rows that an answer violates cut its cycles off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from wdro_model.sets.backends import Vector
from wdro_model.sets.choices import Array
from wdro_model.sets.edge_program import EdgeProgram, ViolatedRow

if TYPE_CHECKING:
    from wdro_model.sets.shortest_path import ShortestPath


class SimplePaths:
    """HiGHS on the flow of one unit, at most one arc out of each node, and rows against cycles."""

    def __init__(self, paths: ShortestPath) -> None:
        self._set = paths
        self._tails, self._heads = paths.arc_tails, paths.arc_heads
        self._edges, count = paths.arc_edges, len(paths.nodes)
        arcs, ones = np.arange(self._edges.size), np.ones(self._edges.size)
        leaves = sp.csr_array((ones, (self._tails, arcs)), shape=(count, arcs.size))
        enters = sp.csr_array((ones, (self._heads, arcs)), shape=(count, arcs.size))
        # Both ways along an edge together are at most one: a row for each edge.
        along = sp.csr_array((ones, (self._edges, arcs)), shape=(paths.dimension, arcs.size))
        supply = np.zeros(count)
        supply[paths._start], supply[paths._end] = 1.0, -1.0
        rest, self._along = count + paths.dimension, 2 * count
        self._program = EdgeProgram(
            sp.vstack([leaves - enters, leaves, along]),
            np.concatenate([supply, np.zeros(rest)]),
            np.concatenate([supply, np.ones(rest)]),
            np.zeros(arcs.size),
            ones,
        )

    def __call__(self, direction: Vector) -> Vector:
        none = np.zeros(direction.size, dtype=bool)
        return self.within(direction, none, none)

    def within(self, direction: Vector, forbidden: Array, mandatory: Array) -> Vector:
        """The best simple path with some edges held.

        An undirected edge is asked for by its row, which is its own: the least of it is 1.
        """
        paths, upper = self._set, np.where(forbidden[self._edges], 0.0, 1.0)
        asked = np.flatnonzero(mandatory)
        found = None
        if np.isin(asked, self._edges).all():
            self._program.change_rows(self._along + asked, np.ones(asked.size))
            weights = direction[self._edges]
            found = self._program.choose(weights, self._violated, np.zeros(upper.size), upper)
            self._program.change_rows(self._along + asked, np.zeros(asked.size))
        if found is None:
            raise paths.refusal(forbidden, mandatory)
        return paths._indicator(self._edges[found > 0.5])

    def reset(self) -> None:
        """Forget the rows that were found."""
        self._program.reset()

    def _violated(self, y: Vector) -> Iterator[ViolatedRow]:
        """For the components S of the arcs in use without the source, from the node used most."""
        count, start = len(self._set.nodes), self._set._start
        used = y > 1e-6
        pairs = (np.ones(int(used.sum())), (self._tails[used], self._heads[used]))
        graph = sp.coo_array(pairs, shape=(count, count))
        _, label = connected_components(graph, directed=False)
        out = np.bincount(self._tails, weights=y, minlength=count)
        for part in np.unique(label[self._tails[used]]):
            if part == label[start]:
                continue
            inside = label == part
            node = int(np.argmax(np.where(inside, out, -1.0)))
            values = (inside[self._tails] & ~inside[self._heads]).astype(np.float64)
            values -= self._tails == node
            columns = np.flatnonzero(values)
            yield ViolatedRow(columns, values[columns], least=0.0)
