"""Spanning trees of an undirected graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import minimum_spanning_tree

from wdro_model.deferred import networkx as nx
from wdro_model.errors import InfeasibleError
from wdro_model.sets.backends import LinearOracle, Vector, register_backend
from wdro_model.sets.choices import Array
from wdro_model.sets.convex import ConvexSet
from wdro_model.sets.feasible_set import as_flat
from wdro_model.sets.graphs import EdgeSet, exchange, exchanges
from wdro_model.sets.tree_rows import TreeRows, ranked
from wdro_model.sets.vertices import Value

TreeBackend = Literal["kruskal", "numba", "scipy", "networkx", "ortools", "cvxpy"]
"""Those that are built in; `register_backend` adds others."""


class SpanningTree(EdgeSet):
    """The spanning trees of a connected graph: x_e = 1 for the n - 1 edges of a tree.

    Weights of any sign, parallel edges and self-loops (never in a tree) are allowed. Some edges may
    be `forbidden`, others `mandatory`, by their names.

    Backends: "kruskal" (default, O(m log m)), "numba" (the same, compiled), "scipy", "networkx",
    and two linear programs to compare with: "ortools" (GLOP, with the rows x(E(S)) <= |S| - 1 that
    were violated so far) and "cvxpy" (the extended formulation).

    A cheapest tree depends on the order of the weights alone, not on their sizes. Held edges are
    therefore moved to the ends of that order, and solvers with tolerances are given ranks: all
    different, the tree is the only optimum, and no weight is too small.

    Examples
    --------
    >>> import networkx as nx, wdro_model as wdro
    >>> graph = nx.Graph([("a", "b"), ("b", "c"), ("a", "c"), ("c", "d")])
    >>> tree = wdro.sets.SpanningTree(graph, forbidden=[("b", "c")])
    >>> tree.edges
    (('a', 'b'), ('a', 'c'), ('b', 'c'), ('c', 'd'))
    >>> tree.selected(tree.minimize([4.0, 3.0, 1.0, 2.0]))
    [('a', 'b'), ('a', 'c'), ('c', 'd')]
    """

    default_backend = "kruskal"

    def __init__(
        self,
        graph: Any,
        backend: TreeBackend | str | None = None,
        *,
        forbidden: Iterable[Any] | None = None,
        mandatory: Iterable[Any] | None = None,
    ) -> None:
        super().__init__(graph)
        self.refuse_directed()
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
            f"spanning trees of a graph with {len(self.nodes)} nodes and {len(self.edges)} edges"
            f"{self.held_in_words()}, minimised by {self.backend}"
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

    def neighbours(self, vertex: Vector, x: Vector) -> Iterator[Vector]:
        """The trees with one edge exchanged, those first that are nearest to x."""
        swaps = exchanges(vertex, self.tails, self.heads)
        if self.is_held:
            swaps = swaps[~(self._held[0] | self._held[1])[swaps].any(axis=1)]
        for entering, leaving in swaps[np.argsort(x[swaps[:, 1]] - x[swaps[:, 0]], kind="stable")]:
            other = vertex.copy()
            other[entering], other[leaving] = 1.0, 0.0
            yield other

    def _improved(self, vertex: Vector, value: Value) -> Vector:
        """A tree that no exchange of one edge improves."""
        held = self._held[0] | self._held[1] if self.is_held else None
        return exchange(vertex, value, self.tails, self.heads, held)

    def held_minimum(self, direction: Vector, forbidden: Array, mandatory: Array) -> Vector:
        """The best tree with the mandatory edges first in order and the forbidden ones last."""
        least, most = float(direction.min()), float(direction.max())
        beyond = max(1.0, abs(least), abs(most))
        weights = direction.copy()
        weights[forbidden], weights[mandatory] = most + beyond, least - beyond
        tree = self.free_minimum(weights)
        if tree[forbidden].any():
            raise InfeasibleError(
                f"{self!r} has no tree without its forbidden edges ({self.named(forbidden)}): they "
                f"cut the graph in two at {self.edges[int(np.argmax(tree * forbidden))]!r}; allow "
                "one of them."
            )
        if not tree[mandatory].all():
            raise InfeasibleError(
                f"{self!r} has no tree with all of its mandatory edges "
                f"({self.named(mandatory)}): some of them close a cycle; leave one of them out."
            )
        return tree

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


def _scipy(trees: SpanningTree) -> LinearOracle:
    """SciPy's on the ranks of the weights, counted from 1: it takes zeros for missing edges."""
    count, proper = len(trees.nodes), trees.proper
    tails, heads = trees.tails[proper], trees.heads[proper]
    low, high = np.minimum(tails, heads), np.maximum(tails, heads)
    by_pair = np.lexsort((high, low))
    low, high = low[by_pair], high[by_pair]
    starts = np.flatnonzero(np.append(True, (np.diff(low) != 0) | (np.diff(high) != 0)))
    indptr = np.searchsorted(low[starts], np.arange(count + 1)).astype(np.int32)
    weights, indices = np.zeros(starts.size), high[starts].astype(np.int32)
    graph = sp.csr_array((weights, indices, indptr), shape=(count, count))
    edges = proper[by_pair]
    has_parallel = starts.size < edges.size

    def minimize(direction: Vector) -> Vector:
        order = np.argsort(direction[edges], kind="stable")
        ranks = np.empty(order.size)
        ranks[order] = np.arange(1, order.size + 1)
        graph.data[:] = np.minimum.reduceat(ranks, starts) if has_parallel else ranks
        found = minimum_spanning_tree(graph).data
        return trees._indicator(edges[order[found.astype(np.int64) - 1]])

    return minimize


def _numba(trees: SpanningTree) -> LinearOracle:
    try:
        import numba  # noqa: F401
    except ImportError:
        raise ImportError(
            "backend 'numba' needs Numba, which is not installed: pip install 'wdro_model[fast]', "
            "or use backend='kruskal'."
        ) from None
    from wdro_model.sets.tree_kernel import join

    tails, heads, count = trees.tails, trees.heads, len(trees.nodes)

    def minimize(direction: Vector) -> Vector:
        tree = np.zeros(trees.dimension)
        join(np.argsort(direction, kind="stable"), tails, heads, count, tree)
        return tree

    return minimize


def _cvxpy(trees: SpanningTree) -> LinearOracle:
    x = cp.Variable(trees.dimension)
    polytope = ConvexSet(trees._hull(x), x)
    return lambda direction: trees._tree(polytope.minimize(ranked(direction)))


register_backend(SpanningTree, "kruskal", _kruskal)
register_backend(SpanningTree, "numba", _numba)
register_backend(SpanningTree, "scipy", _scipy)
register_backend(SpanningTree, "networkx", _networkx)
register_backend(SpanningTree, "ortools", TreeRows)
register_backend(SpanningTree, "cvxpy", _cvxpy)
