"""All-or-nothing by shortest path trees, one from each origin: SciPy, NetworkX, Numba."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np
from scipy.sparse.csgraph import dijkstra

from wdro_model.deferred import networkx as nx
from wdro_model.sets.backends import LinearOracle, Vector
from wdro_model.traffic.flows.loading import tree_loadings
from wdro_model.traffic.flows.machine_code import refuse_without_numba
from wdro_model.traffic.flows.traffic_flows import TrafficFlows

CHUNKS_PER_THREAD = 4
SCANS_PER_NODE = 2
"""So many scans of Pape's algorithm take as long as one node of Dijkstra's; road networks take 1.0
to 1.5, but for large ones, and where destinations are near."""


def with_scipy(flows: TrafficFlows) -> LinearOracle:
    """Dijkstra on a CSR matrix whose structure is built once and whose data is overwritten."""
    graph = flows.graph
    loadings = list(tree_loadings(graph))
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
    """Dijkstra on a NetworkX graph; the trees are loaded in the reverse of the order of search."""
    graph, trips = flows.graph, flows.trips
    entry = {pair: i for i, pair in enumerate(zip(graph.tails.tolist(), graph.heads.tolist()))}
    roads: Any = nx.DiGraph(list(entry))
    roads.add_nodes_from(range(graph.size))
    attributes = [roads.edges[pair] for pair in entry]
    demand = []
    for row, source in enumerate(graph.sources.tolist()):
        pairs = slice(trips.starts[row], trips.starts[row + 1])
        ends = zip(trips.destinations[pairs].tolist(), trips.quantities[pairs].tolist())
        demand.append((source, dict(ends)))

    def minimize(weights: Vector) -> Vector:
        for attribute, weight in zip(attributes, graph.weights(weights).tolist()):
            attribute["weight"] = weight
        entry_flows = [0.0] * graph.entries
        for source, ends in demand:
            before, distance = nx.dijkstra_predecessor_and_distance(roads, source)
            through = ends.copy()
            # Nodes are listed as they were reached for good, each after its first predecessor.
            for node in reversed(distance):
                flow = through.get(node)
                if flow is not None and node != source:
                    tail = before[node][0]
                    entry_flows[entry[tail, node]] += flow
                    through[tail] = through.get(tail, 0.0) + flow
        return graph.link_flows(np.array(entry_flows), weights)

    return minimize


def with_numba(flows: TrafficFlows) -> LinearOracle:
    """A compiled kernel over the origins; in chunks, on `flows.threads` threads, if asked for."""
    load = _kernel()
    trips = flows.trips
    order = np.argsort(trips.tails, kind="stable")
    tails, heads = trips.tails[order].astype(np.uint32), trips.heads[order].astype(np.uint32)
    indptr = np.searchsorted(tails, np.arange(len(trips.names) + 1)).astype(np.uint32)
    ends, quantities = trips.destinations.astype(np.uint32), trips.quantities.copy()
    through, scans = trips.through.copy(), np.uint32(SCANS_PER_NODE)
    threads = flows.threads or 1
    ranges = _ranges(trips.origins.size, 1 if threads == 1 else CHUNKS_PER_THREAD * threads)
    chunks = [
        (trips.origins[i:j].astype(np.uint32), trips.starts[i : j + 1].astype(np.uint32))
        for i, j in ranges
    ]

    def minimize(weights: Vector) -> Vector:
        by_tail = weights[order]

        def run(chunk: tuple[Any, Any]) -> Vector:
            found = np.zeros(order.size)
            load(*chunk, ends, quantities, indptr, heads, tails, through, by_tail, scans, found)
            return found

        if threads == 1:
            total = run(chunks[0])
        else:
            # The sum is in the order of the chunks, whichever thread is done first.
            with ThreadPoolExecutor(threads) as pool:
                total = sum(pool.map(run, chunks), np.zeros(order.size))
        link_flows = np.empty(order.size)
        link_flows[order] = total
        return link_flows

    return minimize


def _kernel() -> Callable[..., None]:
    refuse_without_numba("backend 'numba'", "backend='scipy'")
    from wdro_model.traffic.flows.numba_kernel import load_shortest_trees

    return load_shortest_trees


def _ranges(count: int, parts: int) -> list[tuple[int, int]]:
    """About equal ranges that divide `count` origins; one empty range for none."""
    cuts = np.unique(np.linspace(0, count, parts + 1).astype(int)).tolist()
    return list(pairwise(cuts)) or [(0, 0)]
