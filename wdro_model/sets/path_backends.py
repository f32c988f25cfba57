"""The ways to find a shortest path: Dijkstra for nonnegative weights, a program in HiGHS for any.

With node potentials pi_v <= pi_u + w_uv for every arc, the reduced weights w_uv + pi_u - pi_v are
nonnegative, and every path from s to t changes by the same pi_s - pi_t: the shortest ones stay.

With cycles these are hard problems: a flow of one unit may go round cycles beside its path. For a
set S of nodes without the target and a node v in S, a path that leaves v leaves S as well,

    y(out of S) >= y(out of v),

and the rows that an answer violates cut its cycles off.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components, dijkstra

from wdro_model.compat import networkx as nx
from wdro_model.sets.backends import LinearOracle, Vector, rounding_slack, scaled_to_integers
from wdro_model.sets.choices import Array
from wdro_model.sets.convex import ConvexSet
from wdro_model.sets.edge_program import EdgeProgram, ViolatedRow

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
        self._only: list[int] = [] if self.has_parallel else self.edges.tolist()
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
        if not self.has_parallel:
            return self._only[entry]
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


class FlowOfOneUnit:
    """OR-Tools' minimum cost flow of one unit, in integers; `slack` is what rounding may cost."""

    slack = 0.0

    def __init__(self, paths: ShortestPath) -> None:
        from ortools.graph.python import min_cost_flow

        self._paths, self._solver = paths, min_cost_flow.SimpleMinCostFlow
        self._ones = np.ones(paths.arc_edges.size, dtype=np.int64)
        self._ends = [ends.astype(np.int32) for ends in (paths.arc_tails, paths.arc_heads)]
        # Costs are integers, and their sum over a path times the number of nodes must fit 64 bits.
        count = len(paths.nodes)
        self._limit = min(2**44, 2**60 // (count + 1) ** 2)
        if self._limit < 2**20:
            raise ValueError(
                f"backend 'ortools' rounds weights to integers and would keep fewer than 20 bits "
                f"on {count} nodes; use backend='scipy'."
            )

    def __call__(self, direction: Vector) -> Vector:
        paths, solver = self._paths, self._solver()
        weights = direction[paths.arc_edges]
        costs, unit = scaled_to_integers(weights, self._limit)
        arcs = solver.add_arcs_with_capacity_and_unit_cost(*self._ends, self._ones, costs)
        solver.set_nodes_supplies([paths._start, paths._end], [1, -1])
        status = solver.solve()
        if status != solver.OPTIMAL:
            raise cp.error.SolverError(f"OR-Tools stopped with status {status} on the flow.")
        self.slack = rounding_slack(weights, costs, unit)
        return paths._path_in(paths.arc_edges[solver.flows(arcs) > 0].tolist())


def with_cvxpy(paths: ShortestPath) -> LinearOracle:
    """The flow as a linear program."""
    x = cp.Variable(paths.dimension)
    flows = ConvexSet(paths._flows(x), x)

    def minimize(direction: Vector) -> Vector:
        return paths._path_in(np.flatnonzero(flows.minimize(direction) > 1e-6).tolist())

    return minimize


# ------------------------------------------------------------------ potentials
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


# ------------------------------
# Simple paths by a program in HiGHS: weights of any sign and mandatory edges, on any graph


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
