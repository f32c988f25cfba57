"""All-or-nothing assignment: shortest path trees, or minimum-cost flows.

Shortest routes do not depend on the demand: the minimum-cost flows send one unit from an origin to
each of its destinations, and the demand is then loaded on the arcs that they use.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import pairwise
from threading import Lock
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import breadth_first_order, dijkstra

from wdro_model.compat import networkx as nx
from wdro_model.sets.backends import LinearOracle, Vector
from wdro_model.sets.convex import ConvexSet
from wdro_model.traffic.flows.road_graph import Demand, Indices, RoadGraph, parent_labels
from wdro_model.traffic.flows.traffic_flows import TrafficFlows, refuse_without_numba

CHUNKS_PER_THREAD = 4
SCANS_PER_NODE = 2
"""Scans of Pape's algorithm that take as long as one node of Dijkstra's. Road networks need 1.0 to
1.5 scans per node, more if they are large or their destinations are near."""
ACCEPTED_LOSS = 1e-6
"""The largest part of the cost that rounding weights to integers may hide."""


class TreeLoading:
    """The demand of some origins, loaded on one predecessor tree each.

    With S the demand that ends at each (origin, node) and P its predecessor, the flow through every
    node is found by pointer doubling:

        S <- S + sum of S(v) over the v with P(v) = u,   P <- P(P),

    until all P have reached the roots: ceil(log2(depth)) rounds. Nothing is ordered by distance,
    which would be wrong where weights are zero.
    """

    def __init__(self, graph: RoadGraph, rows: slice) -> None:
        self.graph, trips = graph, graph.trips
        self.sources = graph.sources[rows]
        pairs = slice(trips.starts[rows.start], trips.starts[rows.stop])
        self._ends = (trips.rows[pairs] - rows.start) * graph.size + trips.destinations[pairs]
        self._quantities = trips.quantities[pairs]
        self._roots = np.arange(self.sources.size) * graph.size + self.sources

    def __call__(self, predecessors: NDArray[np.int32]) -> Vector:
        """Flows on the entries of the graph (E,), for predecessors (origins, N), < 0 for none."""
        parent = parent_labels(predecessors)
        through = np.zeros(parent.size)
        through[self._ends] = self._quantities
        while parent.min() < parent.size - 1:
            through += np.bincount(parent, through, parent.size)
            parent = parent[parent]
        through[self._roots] = 0.0
        loaded = np.flatnonzero(through[:-1])
        entries = self.graph.entry(predecessors.ravel()[loaded], loaded % self.graph.size)
        return np.bincount(entries, through[loaded], self.graph.entries).astype(np.float64)


def load_trees(graph: RoadGraph, predecessors: NDArray[np.int32]) -> Vector:
    """Flows on the entries (E,), for a predecessor tree of each origin (O, N)."""
    flows = np.zeros(graph.entries)
    for rows in graph.chunks(graph.sources.size):
        flows += TreeLoading(graph, rows)(predecessors[rows])
    return flows


# ------------------------------------------------------------------ shortest path trees
def with_scipy(flows: TrafficFlows) -> LinearOracle:
    """Dijkstra on a CSR matrix whose structure is built once and whose data is overwritten."""
    graph = flows.graph
    loadings = [TreeLoading(graph, rows) for rows in graph.chunks(graph.sources.size)]
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


def with_networkx(flows: TrafficFlows) -> LinearOracle:
    """Dijkstra on a NetworkX graph."""
    graph = flows.graph
    roads: Any = nx.DiGraph(list(zip(graph.tails.tolist(), graph.heads.tolist())))
    roads.add_nodes_from(range(graph.size))
    attributes = [roads.edges[pair] for pair in zip(graph.tails.tolist(), graph.heads.tolist())]

    def minimize(weights: Vector) -> Vector:
        for attribute, weight in zip(attributes, graph.weights(weights).tolist()):
            attribute["weight"] = weight
        predecessors = np.full((graph.sources.size, graph.size), -1, dtype=np.int32)
        for row, source in enumerate(graph.sources.tolist()):
            before, _ = nx.dijkstra_predecessor_and_distance(roads, source)
            for node, tails in before.items():
                # The first predecessor was nearer than all before it: these make up a tree.
                predecessors[row, node] = tails[0] if tails and node != source else -1
        return graph.link_flows(load_trees(graph, predecessors), weights)

    return minimize


def with_numba(flows: TrafficFlows) -> LinearOracle:
    """A compiled kernel over the origins; in chunks, on `flows.threads` threads, if asked for."""
    refuse_without_numba("backend 'numba'", "backend='scipy'")
    from wdro_model.traffic.flows.shortest_trees import load_shortest_trees

    trips, threads = flows.trips, flows.threads or 1
    links, roads, demand = trips.links, trips.roads, trips.demand
    scans = np.uint32(SCANS_PER_NODE)
    parts = 1 if threads == 1 else CHUNKS_PER_THREAD * threads
    cuts = np.unique(np.linspace(0, trips.origins.size, parts + 1).astype(int)).tolist()
    chunks = [
        demand._replace(origins=demand.origins[i:j], starts=demand.starts[i : j + 1])
        for i, j in pairwise(cuts)
    ]

    def minimize(weights: Vector) -> Vector:
        by_tail = weights[links]

        def load(chunk: Demand) -> Vector:
            chunk_flows = np.zeros(links.size)
            load_shortest_trees(roads, chunk, by_tail, scans, chunk_flows)
            return chunk_flows

        with ThreadPoolExecutor(threads) if threads > 1 else nullcontext() as pool:
            # The sum is in the order of the chunks, whichever thread is done first.
            totals = map(load, chunks) if pool is None else pool.map(load, chunks)
            total = sum(totals, np.zeros(links.size))
        link_flows = np.zeros(flows.dimension)
        link_flows[links] = total
        return link_flows

    return minimize


# ------------------------------------------------------------------ flows of least cost
def unit_supplies(graph: RoadGraph) -> Iterator[Indices]:
    """The supply of the nodes (N,) for each origin: one unit for each of its destinations."""
    trips = graph.trips
    for row, source in enumerate(graph.sources):
        ends = trips.destinations[trips.starts[row] : trips.starts[row + 1]]
        supply = np.zeros(graph.size, dtype=np.int64)
        supply[ends] = -1
        supply[source] = ends.size
        yield supply


def load_supports(graph: RoadGraph, used: NDArray[np.bool_]) -> Vector:
    """Flows on the entries (E,): the demand of each origin on a tree inside the support of a flow.

    used (O, E): the entries in use by an optimal flow from each origin. In a flow of least cost
    every arc in use is on a shortest path (or on a cycle of weight zero between nodes at the same
    distance), so that any tree of such arcs is a shortest path tree. Loading the tree drops the
    cycles and the rounding errors of the solver.
    """
    trips = graph.trips
    predecessors = np.empty((trips.origins.size, graph.size), dtype=np.int32)
    for row, source in enumerate(graph.sources):
        entries = np.flatnonzero(used[row])
        ends_of_entries = graph.tails[entries], graph.heads[entries]
        support = sp.csr_array(
            (np.ones(entries.size), ends_of_entries), shape=(graph.size, graph.size)
        )
        _, before = breadth_first_order(support, source, return_predecessors=True)
        predecessors[row] = before
        ends = trips.destinations[trips.starts[row] : trips.starts[row + 1]]
        missed = ends[before[ends] < 0]
        if missed.size:
            raise cp.error.SolverError(
                f"the flow found from {trips.names[trips.origins[row]]!r} does not reach "
                f"{trips.names[missed[0]]!r}; use backend='scipy'."
            )
    return load_trees(graph, predecessors)


def with_ortools(flows: TrafficFlows) -> LinearOracle:
    """A minimum cost flow per origin, in integers.

    Supplies are whole numbers whatever the demand. Weights are scaled to integers and rounded down:
    the integer optimum is a lower bound, and a cost that exceeds it by more than 1e-6 is refused.
    """
    from ortools.graph.python import min_cost_flow as module

    graph, trips = flows.graph, flows.trips
    tails, heads = graph.tails.astype(np.int32), graph.heads.astype(np.int32)
    most = int(np.diff(trips.starts).max(initial=0)) + 1
    capacity = np.full(graph.entries, most, dtype=np.int64)
    # The solver multiplies costs by the number of nodes, and their sums must fit 64 bits.
    largest = min(2.0**44, 2.0**60 / (graph.size + 1) ** 2)
    if largest < 2.0**20:
        raise ValueError(
            f"backend 'ortools' rounds weights to integers and would keep fewer than 20 bits on "
            f"{graph.size} nodes; use backend='scipy'."
        )

    def minimize(weights: Vector) -> Vector:
        entry_weights = graph.weights(weights)
        unit = entry_weights.max(initial=0.0) or 1.0
        costs = np.floor(entry_weights / unit * largest).astype(np.int64)
        solver = module.SimpleMinCostFlow()
        arcs = solver.add_arcs_with_capacity_and_unit_cost(tails, heads, capacity, costs)
        used = np.empty((trips.origins.size, graph.entries), dtype=bool)
        for row, supply in enumerate(unit_supplies(graph)):
            solver.set_nodes_supplies(np.arange(graph.size), supply)
            status = solver.solve()
            if status != solver.OPTIMAL:
                raise cp.error.SolverError(f"OR-Tools stopped with status {status} on the flow.")
            used[row] = solver.flows(arcs) > 0
        entry_flows = load_supports(graph, used)
        cost = float(entry_weights @ entry_flows)
        hidden = cost - float(costs @ entry_flows) / largest * unit
        if hidden > ACCEPTED_LOSS * cost:
            raise ValueError(
                f"backend 'ortools' rounds weights to integers, and those from "
                f"{entry_weights[entry_weights > 0].min():g} to {entry_weights.max():g} are too "
                f"far apart: {hidden / cost:.1e} of the cost {cost:g} would be lost; use "
                "backend='scipy'."
            )
        return graph.link_flows(entry_flows, weights)

    return minimize


def with_cvxpy(flows: TrafficFlows) -> LinearOracle:
    """A linear program over the flows of all origins, through HiGHS.

    With integer supplies the vertices are integer: an arc carries at least one unit or nothing.
    """
    graph, trips = flows.graph, flows.trips
    split = flows.origin_flows("backend 'cvxpy'", "use backend='scipy'")
    if not split.count:
        return lambda weights: np.zeros(flows.dimension)
    y = cp.Variable(split.count)
    ends = np.diff(trips.starts)[split.rows]
    supply = split.supplies(np.ones(trips.quantities.size))
    polytope = ConvexSet([split.conservation @ y == supply, y >= 0, y <= ends], y)
    tails, heads = graph.departure[trips.tails[split.arcs]], trips.heads[split.arcs]
    entries = graph.entry(tails, heads)

    def minimize(weights: Vector) -> Vector:
        chosen = polytope.minimize(weights[split.arcs]) > 0.5
        used = np.zeros((trips.origins.size, graph.entries), dtype=bool)
        used[split.rows[chosen], entries[chosen]] = True
        return graph.link_flows(load_supports(graph, used), weights)

    return minimize
