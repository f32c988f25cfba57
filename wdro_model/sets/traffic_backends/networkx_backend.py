"""All-or-nothing by NetworkX: Dijkstra from one origin after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model.deferred import networkx as nx
from wdro_model.sets.backends import LinearOracle, Vector

if TYPE_CHECKING:
    from wdro_model.sets.traffic_flows import TrafficFlows


def with_networkx(flows: TrafficFlows) -> LinearOracle:
    """Dijkstra on a NetworkX graph; the trees are loaded in the reverse of the order of search."""
    graph, trips = flows.graph, flows.trips
    entry = {pair: i for i, pair in enumerate(zip(graph.tails.tolist(), graph.heads.tolist()))}
    roads: Any = nx.DiGraph(list(entry))
    roads.add_nodes_from(range(graph.size))
    attributes = [roads.edges[pair] for pair in entry]
    demand = []
    for row, source in enumerate(graph.departure[trips.origins].tolist()):
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
