"""The ways to find a shortest path under nonnegative weights."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import dijkstra

from wdro_model.deferred import networkx as nx
from wdro_model.sets.backends import LinearOracle, Vector
from wdro_model.sets.convex import ConvexSet

if TYPE_CHECKING:
    from wdro_model.sets.shortest_path import ShortestPath


class Arcs:
    """The arcs as a CSR matrix without duplicates: of parallel arcs the cheapest counts."""

    def __init__(self, paths: ShortestPath) -> None:
        count = len(paths.nodes)
        order = np.lexsort((paths.arc_heads, paths.arc_tails))
        tails, heads = paths.arc_tails[order], paths.arc_heads[order]
        self.edges = paths.arc_edges[order]
        first = np.append(True, (np.diff(tails) != 0) | (np.diff(heads) != 0))
        self.starts = np.flatnonzero(first)
        self.stops = np.append(self.starts[1:], order.size)
        self.has_parallel = self.starts.size < order.size
        self.tails, self.heads = tails[self.starts], heads[self.starts]
        self.entry = {
            pair: i for i, pair in enumerate(zip(self.tails.tolist(), self.heads.tolist()))
        }
        indptr = np.searchsorted(self.tails, np.arange(count + 1))
        self.matrix = sp.csr_array(
            (
                np.zeros(self.starts.size),
                self.heads.astype(np.int32),
                indptr.astype(np.int32),
            ),
            shape=(count, count),
        )

    def weights(self, direction: Vector) -> Vector:
        """The weight of each entry of the matrix."""
        weights = direction[self.edges]
        return np.minimum.reduceat(weights, self.starts) if self.has_parallel else weights

    def edge(self, tail: int, head: int, direction: Vector) -> int:
        """The cheapest edge from tail to head."""
        entry = self.entry[tail, head]
        parallel = self.edges[self.starts[entry] : self.stops[entry]]
        if parallel.size == 1:
            return int(parallel[0])
        return int(parallel[np.argmin(direction[parallel])])


def with_scipy(paths: ShortestPath) -> LinearOracle:
    """Dijkstra on a CSR matrix whose structure is built once."""
    arcs = Arcs(paths)
    start, end, matrix = paths._start, paths._end, arcs.matrix

    def minimize(direction: Vector) -> Vector:
        matrix.data[:] = arcs.weights(direction)
        _, predecessors = dijkstra(matrix, indices=start, return_predecessors=True)
        edges, head = [], end
        while head != start:
            tail = int(predecessors[head])
            edges.append(arcs.edge(tail, head, direction))
            head = tail
        return paths._indicator(edges)

    return minimize


def with_networkx(paths: ShortestPath) -> LinearOracle:
    """Dijkstra on a NetworkX graph."""
    arcs = Arcs(paths)
    graph: Any = nx.DiGraph(list(arcs.entry))
    attributes = [graph.edges[pair] for pair in arcs.entry]

    def minimize(direction: Vector) -> Vector:
        for attribute, weight in zip(attributes, arcs.weights(direction).tolist()):
            attribute["weight"] = weight
        nodes = nx.dijkstra_path(graph, paths._start, paths._end)
        edges = [arcs.edge(tail, head, direction) for tail, head in pairwise(nodes)]
        return paths._indicator(edges)

    return minimize


def with_ortools(paths: ShortestPath) -> LinearOracle:
    """Minimum cost flow of one unit, in integers."""
    from ortools.graph.python import min_cost_flow as flow

    ones = np.ones(paths.arc_edges.size, dtype=np.int64)
    tails, heads = paths.arc_tails.astype(np.int32), paths.arc_heads.astype(np.int32)
    # Costs are integers, and their sum over a path times the number of nodes must fit 64 bits.
    count = len(paths.nodes)
    largest = min(2.0**44, 2.0**60 / (count + 1) ** 2)
    if largest < 2.0**20:
        raise ValueError(
            f"backend 'ortools' rounds weights to integers and would keep fewer than 20 bits on "
            f"{count} nodes; use backend='scipy'."
        )

    def minimize(direction: Vector) -> Vector:
        weights = direction[paths.arc_edges]
        scale = largest / (weights.max() or 1.0)
        solver = flow.SimpleMinCostFlow()
        costs = np.rint(weights * scale).astype(np.int64)
        arcs = solver.add_arcs_with_capacity_and_unit_cost(tails, heads, ones, costs)
        solver.set_nodes_supplies([paths._start, paths._end], [1, -1])
        status = solver.solve()
        if status != solver.OPTIMAL:
            raise cp.error.SolverError(f"OR-Tools stopped with status {status} on the flow.")
        return paths._path_in(paths.arc_edges[solver.flows(arcs) > 0].tolist())

    return minimize


def with_cvxpy(paths: ShortestPath) -> LinearOracle:
    """The flow as a linear program."""
    x = cp.Variable(paths.dimension)
    flows = ConvexSet(paths.constraints(x), x)

    def minimize(direction: Vector) -> Vector:
        return paths._path_in(np.flatnonzero(flows.minimize(direction) > 1e-6).tolist())

    return minimize
