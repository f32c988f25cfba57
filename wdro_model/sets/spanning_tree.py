"""Spanning trees of an undirected graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from wdro_model.deferred import networkx as nx
from wdro_model.sets.backends import LinearOracle, Vector, register_backend
from wdro_model.sets.convex import ConvexSet
from wdro_model.sets.feasible_set import as_flat
from wdro_model.sets.graphs import EdgeSet, exchange
from wdro_model.sets.vertices import Value


class SpanningTree(EdgeSet):
    """The spanning trees of a connected graph: x_e = 1 for the n - 1 edges of a tree.

    Weights of any sign, parallel edges and self-loops (never in a tree) are allowed. Backends:
    "kruskal" (default, O(m log m)), "networkx", and two linear programs over the extended
    formulation, "ortools" and "cvxpy", which are there to be compared with.
    """

    default_backend = "kruskal"

    def __init__(
        self,
        graph: Any,
        backend: str | None = None,
        *,
        forbidden: Iterable[Any] | None = None,
        mandatory: Iterable[Any] | None = None,
    ) -> None:
        super().__init__(graph)
        if self.is_directed:
            raise ValueError(
                "SpanningTree takes an undirected graph, got a directed one; "
                "graph.to_undirected() forgets the directions."
            )
        components = list(nx.connected_components(graph))
        if len(components) > 1:
            here, there = (min(group, key=self._position.__getitem__) for group in components[:2])
            raise ValueError(
                f"the graph is disconnected and has no spanning tree: no path joins {here!r} and "
                f"{there!r} ({len(components)} components); take a connected subgraph or add edges."
            )
        self.proper = np.flatnonzero(self.tails != self.heads)
        if not self.proper.size:
            raise ValueError("the graph has one node and self-loops only: its tree has no edge.")
        self.bounds = (np.zeros(self.dimension), (self.tails != self.heads).astype(np.float64))
        self.use_backend(backend)
        self.hold(forbidden, mandatory)

    def _hull(self, x: Any) -> list[Any]:
        """Martin's extended formulation of the spanning tree polytope.

        For a root r, every tree directs each of its edges towards r, and each node but r has one
        edge out. With y^r_e the part of x_e followed from tail to head and x_e - y^r_e the rest,

            0 <= y^r_e <= x_e,   sum_{e out of i} = 1 for i != r,   sum_{e out of r} = 0.

        It gives sum_e x_e = n - 1 and, summed over the nodes of a set S that contains r,
        x(E(S)) <= |S| - 1. Every S with an edge inside must contain a root: the roots are a vertex
        cover.
        """
        roots = self._roots()
        tails, heads = self.tails[self.proper], self.heads[self.proper]
        edges, count = np.arange(self.proper.size), len(self.nodes)
        ones = np.ones(edges.size)
        from_tail = sp.csr_array((ones, (edges, tails)), shape=(edges.size, count))
        from_head = sp.csr_array((ones, (edges, heads)), shape=(edges.size, count))
        out = np.ones((roots.size, count))
        out[np.arange(roots.size), roots] = 0.0

        x = as_flat(x, self.dimension)
        proper = x if edges.size == self.dimension else x[self.proper]
        y = cp.Variable((roots.size, edges.size), nonneg=True)
        repeated = np.ones((roots.size, 1)) @ cp.reshape(proper, (1, edges.size), order="C")
        constraints = [y <= repeated, y @ (from_tail - from_head) + repeated @ from_head == out]
        if edges.size < self.dimension:
            loops = np.flatnonzero(self.tails == self.heads)
            constraints.append(x[loops] == 0)
        return constraints

    def describe(self) -> str:
        """The set in one line."""
        return (
            f"spanning trees of a graph with {len(self.nodes)} nodes and {len(self.edges)} edges, "
            f"minimised by {self.backend}"
        )

    def _roots(self) -> NDArray[np.int64]:
        """A vertex cover: all nodes but a greedy independent set, nodes of low degree first."""
        ends = self.tails[self.proper], self.heads[self.proper]
        neighbours: list[set[int]] = [set() for _ in self.nodes]
        for tail, head in zip(*ends):
            neighbours[tail].add(int(head))
            neighbours[head].add(int(tail))
        covered: set[int] = set()
        independent: set[int] = set()
        for node in sorted(range(len(self.nodes)), key=lambda i: len(neighbours[i])):
            if node not in covered:
                independent.add(node)
                covered |= neighbours[node]
        return np.array([i for i in range(len(self.nodes)) if i not in independent])

    def _is_discrete(self, vertex: Vector) -> bool:
        """Is it a tree?"""
        return super()._is_discrete(vertex) and self._spans(np.flatnonzero(vertex > 0.5))

    def _spans(self, chosen: NDArray[np.int64]) -> bool:
        """Are the edges n - 1 and is every node joined by them?"""
        parent = list(range(len(self.nodes)))
        joined = _join(parent, chosen.tolist(), self.tails.tolist(), self.heads.tolist())
        return len(joined) == chosen.size == len(self.nodes) - 1

    def _improved(self, vertex: Vector, value: Value) -> Vector:
        """A tree that no exchange of one edge improves."""
        return exchange(vertex, value, self.tails, self.heads)

    def _tree(self, x: Vector) -> Vector:
        """A solver's answer rounded to a tree, refused if it is not one."""
        chosen = np.flatnonzero(x > 0.5)
        if not self._spans(chosen) or np.abs(x - np.rint(x)).max() > 1e-5:
            raise cp.error.SolverError(
                f"the linear program over spanning trees returned a point that is not a tree "
                f"({chosen.size} edges of {len(self.nodes) - 1}); use backend='kruskal'."
            )
        return self._indicator(chosen)


def _join(parent: list[int], order: list[int], tails: list[int], heads: list[int]) -> list[int]:
    """Kruskal's loop: the edges of `order` that join two components, by union-find."""
    joined = []
    missing = len(parent) - 1
    for edge in order:
        tail, head = tails[edge], heads[edge]
        while parent[tail] != tail:
            parent[tail] = tail = parent[parent[tail]]
        while parent[head] != head:
            parent[head] = head = parent[parent[head]]
        if tail != head:
            parent[tail] = head
            joined.append(edge)
            if len(joined) == missing:
                break
    return joined


def _kruskal(trees: SpanningTree) -> LinearOracle:
    tails, heads = trees.tails.tolist(), trees.heads.tolist()
    nodes = list(range(len(trees.nodes)))

    def minimize(direction: Vector) -> Vector:
        order = np.argsort(direction, kind="stable").tolist()
        return trees._indicator(_join(nodes.copy(), order, tails, heads))

    return minimize


def _networkx(trees: SpanningTree) -> LinearOracle:
    graph = nx.MultiGraph()
    weighted = []
    for edge in trees.proper.tolist():
        tail, head = int(trees.tails[edge]), int(trees.heads[edge])
        graph.add_edge(tail, head, key=edge)
        weighted.append(graph.edges[tail, head, edge])

    def minimize(direction: Vector) -> Vector:
        for attributes, weight in zip(weighted, direction[trees.proper].tolist()):
            attributes["weight"] = weight
        chosen = nx.minimum_spanning_edges(graph, keys=True, data=False)
        return trees._indicator([edge for _, _, edge in chosen])

    return minimize


def _ortools(trees: SpanningTree) -> LinearOracle:
    from ortools.linear_solver import pywraplp

    solver = pywraplp.Solver.CreateSolver("GLOP")
    infinity = solver.infinity()
    ends = [(e, int(trees.tails[e]), int(trees.heads[e])) for e in trees.proper.tolist()]
    x = {edge: solver.NumVar(0.0, 1.0, "") for edge, _, _ in ends}
    for root in trees._roots().tolist():
        out = [
            solver.Constraint(float(node != root), float(node != root))
            for node in range(len(trees.nodes))
        ]
        for edge, tail, head in ends:
            forward, backward = solver.NumVar(0, infinity, ""), solver.NumVar(0, infinity, "")
            out[tail].SetCoefficient(forward, 1.0)
            out[head].SetCoefficient(backward, 1.0)
            split = solver.Constraint(0.0, 0.0)
            for variable, sign in ((forward, 1.0), (backward, 1.0), (x[edge], -1.0)):
                split.SetCoefficient(variable, sign)
    objective = solver.Objective()
    objective.SetMinimization()

    def minimize(direction: Vector) -> Vector:
        scale = np.abs(direction).max() or 1.0
        for edge, variable in x.items():
            objective.SetCoefficient(variable, float(direction[edge] / scale))
        status = solver.Solve()
        if status != pywraplp.Solver.OPTIMAL:
            raise cp.error.SolverError(f"GLOP stopped with status {status} on the spanning tree.")
        point = np.zeros(trees.dimension)
        point[list(x)] = [variable.solution_value() for variable in x.values()]
        return trees._tree(point)

    return minimize


def _cvxpy(trees: SpanningTree) -> LinearOracle:
    x = cp.Variable(trees.dimension)
    polytope = ConvexSet(trees.constraints(x), x)
    return lambda direction: trees._tree(polytope.minimize(direction))


register_backend(SpanningTree, "kruskal", _kruskal)
register_backend(SpanningTree, "networkx", _networkx)
register_backend(SpanningTree, "ortools", _ortools)
register_backend(SpanningTree, "cvxpy", _cvxpy)
