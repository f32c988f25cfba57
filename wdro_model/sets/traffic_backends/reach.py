"""Which demand can be routed at all, and which arcs can carry any of it."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import breadth_first_order, dijkstra

from wdro_model.errors import InfeasibleError
from wdro_model.sets.backends import Vector
from wdro_model.sets.traffic_backends.graph import RoadGraph
from wdro_model.sets.traffic_backends.loading import tree_loadings
from wdro_model.sets.traffic_backends.trips import Trips


def check_reachable(graph: RoadGraph, trips: Trips) -> None:
    """Raise InfeasibleError if some demand has no route, naming the first pair."""
    matrix = graph.matrix(np.ones(graph.entries))
    first, missed = 0, []
    for load in tree_loadings(graph, trips):
        hops = dijkstra(matrix, indices=load.sources, unweighted=True)
        last = first + load.sources.size
        pairs = np.arange(trips.starts[first], trips.starts[last])
        far = np.isinf(hops[trips.rows[pairs] - first, trips.destinations[pairs]])
        missed.append(pairs[far])
        first = last
    unreachable = np.concatenate([np.empty(0, dtype=np.int64), *missed])
    if unreachable.size:
        raise InfeasibleError(_no_route(trips, int(unreachable[0]), unreachable.size))


def flow_limits(graph: RoadGraph, trips: Trips) -> Vector:
    """What each arc can carry at most (A,), on routes that visit no node twice.

    All demand; at a node that may not be passed, what starts or ends there; nothing on arcs that
    no route from an origin reaches or that lead to no destination.
    """
    tails, heads, n = trips.tails, trips.heads, len(trips.names)
    leaving = np.zeros(n)
    leaving[trips.origins] = trips.leaving
    arriving = np.bincount(trips.destinations, trips.quantities, n)
    limits = np.full(tails.size, trips.total)
    limits = np.where(trips.through[tails], limits, np.minimum(limits, leaving[tails]))
    limits = np.where(trips.through[heads], limits, np.minimum(limits, arriving[heads]))
    matrix = graph.matrix(np.ones(graph.entries))
    reached = _reached(matrix, graph.departure[trips.origins])
    reaching = _reached(matrix.T.tocsr(), np.unique(trips.destinations))
    idle = ~(reached[graph.departure[tails]] & reaching[heads]) | (tails == heads)
    limits[idle] = 0.0
    return limits


def _reached(matrix: sp.csr_array, starts: np.ndarray) -> np.ndarray:
    """The nodes that some start leads to (N,)."""
    if not starts.size:
        return np.zeros(matrix.shape[0], dtype=bool)
    return np.isfinite(dijkstra(matrix, indices=starts, unweighted=True, min_only=True))


def _no_route(trips: Trips, pair: int, count: int) -> str:
    origin, destination = trips.origins[trips.rows[pair]], trips.destinations[pair]
    n = len(trips.names)
    ones = np.ones(trips.tails.size)
    roads = sp.coo_array((ones, (trips.tails, trips.heads)), shape=(n, n)).tocsr()
    met = breadth_first_order(roads, origin, return_predecessors=False)
    more = f" ({count} pairs of zones have none)" if count > 1 else ""
    way_out = (
        "every way passes a node that may not be passed (through=False)"
        if destination in met
        else "add the missing arcs or set this demand to zero"
    )
    return (
        f"no route leads from zone {trips.names[origin]!r} to zone {trips.names[destination]!r}, "
        f"whose demand is {trips.quantities[pair]:g}{more}; {way_out}."
    )
