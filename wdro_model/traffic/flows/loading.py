"""Demand carried along shortest-path trees."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from wdro_model.sets.backends import Vector
from wdro_model.traffic.flows.road_graph import RoadGraph


class TreeLoading:
    """The demand of some origins, loaded on one predecessor tree each.

    With S the demand that ends at each (origin, node) and P its predecessor, the flow through every
    node is found by pointer doubling:

        S <- S + sum of S(v) over the v with P(v) = u,   P <- P(P),

    until all P have reached the roots: ceil(log2(depth)) rounds. Nothing is ordered by distance,
    which would be wrong where weights are zero.
    """

    def __init__(self, graph: RoadGraph, first: int, last: int) -> None:
        self.graph, trips = graph, graph.trips
        self.sources = graph.sources[first:last]
        rows, labels = last - first, (last - first) * graph.size
        part = slice(trips.starts[first], trips.starts[last])
        self._ends = (trips.rows[part] - first) * graph.size + trips.destinations[part]
        self._quantities = trips.quantities[part]
        self._roots = np.arange(rows) * graph.size + self.sources
        self._rows = (np.arange(rows) * graph.size)[:, None]
        self._nodes = np.tile(np.arange(graph.size), rows)
        self._labels = labels

    def __call__(self, predecessors: NDArray[np.int32]) -> Vector:
        """Flows on the entries of the graph (E,), for predecessors (origins, N), < 0 for none."""
        sink = self._labels
        parent = np.empty(sink + 1, dtype=np.int64)
        np.add(predecessors, self._rows, out=parent[:-1].reshape(predecessors.shape))
        before = predecessors.ravel()
        parent[:-1][before < 0] = sink
        parent[-1] = sink
        through = np.zeros(sink + 1)
        through[self._ends] = self._quantities
        while np.minimum.reduce(parent) < sink:
            through += np.bincount(parent, through, sink + 1)
            parent = parent.take(parent)
        through[self._roots] = 0.0
        carrying = np.flatnonzero(through[:-1])
        entries = self.graph.entry(before.take(carrying), self._nodes.take(carrying))
        flows = np.bincount(entries, through.take(carrying), self.graph.entries)
        return flows.astype(np.float64, copy=False)


def tree_loadings(graph: RoadGraph) -> Iterator[TreeLoading]:
    """Loadings that cover all origins, few enough labels in each."""
    return (TreeLoading(graph, first, last) for first, last in graph.parts())
