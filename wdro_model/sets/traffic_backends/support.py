"""Demand carried along the arcs that a flow solver uses."""

from __future__ import annotations

from collections.abc import Iterator

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import breadth_first_order

from wdro_model.sets.backends import Vector
from wdro_model.sets.traffic_backends.graph import RoadGraph
from wdro_model.sets.traffic_backends.loading import tree_loadings
from wdro_model.sets.traffic_backends.trips import Indices, Trips


class SupportLoading:
    """The demand of each origin on a tree inside the support of an optimal flow from it.

    In a flow of least cost from an origin every arc in use is on a shortest path (or on a cycle of
    weight zero between nodes at the same distance), so that any tree of such arcs is a shortest
    path tree. Cycles are left behind, and the demand is loaded as it is, without a solver's
    rounding.
    """

    def __init__(self, graph: RoadGraph, trips: Trips) -> None:
        self._graph, self._trips = graph, trips
        self._sources = graph.departure[trips.origins]
        self._loadings = list(tree_loadings(graph, trips))

    def supplies(self) -> Iterator[Indices]:
        """For each origin, what enters the nodes (N,): one unit for each of its destinations."""
        trips = self._trips
        for row, source in enumerate(self._sources):
            ends = trips.destinations[trips.starts[row] : trips.starts[row + 1]]
            supply = np.zeros(self._graph.size, dtype=np.int64)
            supply[ends] = -1
            supply[source] = ends.size
            yield supply

    def __call__(self, used: NDArray[np.bool_]) -> Vector:
        """Flows on the entries (E,), for the entries in use from each origin (O, E)."""
        flows, row = np.zeros(self._graph.entries), 0
        for load in self._loadings:
            rows = range(row, row + load.sources.size)
            flows += load(np.stack([self._tree(row, used[row]) for row in rows]))
            row = rows.stop
        return flows

    def _tree(self, row: int, used: NDArray[np.bool_]) -> NDArray[np.int32]:
        """The predecessors (N,) of a tree from one origin, < 0 for none."""
        graph, trips = self._graph, self._trips
        kept = np.flatnonzero(used)
        indptr = np.searchsorted(kept, graph.indptr).astype(np.int32)
        support = sp.csr_array(
            (np.ones(kept.size), graph.indices[kept], indptr), shape=(graph.size, graph.size)
        )
        _, before = breadth_first_order(support, self._sources[row], return_predecessors=True)
        ends = trips.destinations[trips.starts[row] : trips.starts[row + 1]]
        missed = ends[before[ends] < 0]
        if missed.size:
            raise cp.error.SolverError(
                f"the flow found from {trips.names[trips.origins[row]]!r} does not reach "
                f"{trips.names[missed[0]]!r}; use backend='scipy'."
            )
        return np.asarray(before, dtype=np.int32)
