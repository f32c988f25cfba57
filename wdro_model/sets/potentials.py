"""Node potentials that make arc weights nonnegative without changing which paths are shortest.

With pi_v <= pi_u + w_uv for every arc, the reduced weights w_uv + pi_u - pi_v are nonnegative, and
every path from s to t changes by the same pi_s - pi_t.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdro_model.deferred import networkx as nx
from wdro_model.sets.backends import Vector

Indices = NDArray[np.int64]


class NegativeCycle(Exception):
    """A cycle of negative weight: `nodes` in order, the first one repeated at the end."""

    def __init__(self, nodes: list[int], weight: float) -> None:
        super().__init__()
        self.nodes, self.weight = nodes, weight


def topological_arcs(tails: Indices, heads: Indices) -> Indices | None:
    """The arcs in an order in which tails come before heads, None if there is a cycle."""
    graph: Any = nx.DiGraph(zip(tails.tolist(), heads.tolist()))
    try:
        rank = {node: i for i, node in enumerate(nx.topological_sort(graph))}
    except nx.NetworkXUnfeasible:
        return None
    return np.argsort([rank[tail] for tail in tails.tolist()], kind="stable")


def acyclic_potentials(
    weights: Vector, tails: Indices, heads: Indices, order: Indices, count: int
) -> Vector:
    """Dynamic programming over the arcs in topological order."""
    potential = [0.0] * count
    ordered = zip(weights[order].tolist(), tails[order].tolist(), heads[order].tolist())
    for weight, tail, head in ordered:
        reached = potential[tail] + weight
        if reached < potential[head]:
            potential[head] = reached
    return np.array(potential)


def cyclic_potentials(weights: Vector, tails: Indices, heads: Indices, count: int) -> Vector:
    """Bellman-Ford from a virtual source joined to every node; raises NegativeCycle."""
    potential = np.zeros(count)
    # Sums of rounded weights around a cycle of weight zero must not look like progress.
    tolerance = 1e-12 * float(np.abs(weights).max())
    for _ in range(count):
        reached = potential.copy()
        np.minimum.at(reached, heads, potential[tails] + weights)
        if np.all(reached >= potential - tolerance):
            return reached
        potential = reached
    raise _name_cycle(weights, tails, heads)


def reduced_weights(weights: Vector, tails: Indices, heads: Indices, potential: Vector) -> Vector:
    """w_uv + pi_u - pi_v, with rounding errors below zero removed."""
    return np.maximum(weights + potential[tails] - potential[heads], 0.0)


def _name_cycle(weights: Vector, tails: Indices, heads: Indices) -> NegativeCycle:
    graph: Any = nx.DiGraph()
    for weight, tail, head in zip(weights.tolist(), tails.tolist(), heads.tolist()):
        if weight < graph.get_edge_data(tail, head, {"weight": np.inf})["weight"]:
            graph.add_edge(tail, head, weight=weight)
    start = -1
    graph.add_weighted_edges_from([(start, node, 0.0) for node in list(graph)])
    nodes = nx.find_negative_cycle(graph, start)
    weight = sum(graph.edges[arc]["weight"] for arc in pairwise(nodes))
    return NegativeCycle(nodes, float(weight))
