"""All-or-nothing by SciPy: Dijkstra from many origins at once, then pointer doubling."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse.csgraph import dijkstra

from wdro_model.sets.backends import LinearOracle, Vector
from wdro_model.sets.traffic_backends.loading import tree_loadings

if TYPE_CHECKING:
    from wdro_model.sets.traffic_flows import TrafficFlows


def with_scipy(flows: TrafficFlows) -> LinearOracle:
    """Dijkstra on a CSR matrix whose structure is built once and whose data is overwritten."""
    graph = flows.graph
    loadings = list(tree_loadings(graph, flows.trips))
    matrix = graph.matrix(np.zeros(graph.entries))
    writing = Lock()

    def minimize(weights: Vector) -> Vector:
        entry_flows = np.zeros(graph.entries)
        with writing:
            matrix.data[:] = graph.weights(weights)
            for load in loadings:
                _, predecessors = dijkstra(matrix, indices=load.sources, return_predecessors=True)
                entry_flows += load(predecessors)
        return graph.link_flows(entry_flows, weights)

    return minimize
