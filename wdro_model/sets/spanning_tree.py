"""Spanning trees of an undirected graph: Kruskal, and a linear program with rows on demand.

The hull of the trees is x >= 0, x(E) = n - 1 and x(E(S)) <= |S| - 1 for every set S of nodes
(Edmonds). Few of these rows matter for a cost: those that an answer violates are added, and stay
for the calls that follow. A vertex of some of the rows that violates none is a tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import (
    breadth_first_order,
    connected_components,
    maximum_flow,
    minimum_spanning_tree,
)

from wdro_model.compat import networkx as nx
from wdro_model.errors import InfeasibleError
from wdro_model.sets.backends import LinearOracle, Vector, register_backend
from wdro_model.sets.choices import Array
from wdro_model.sets.convex import ConvexSet
from wdro_model.sets.feasible_set import as_flat
from wdro_model.sets.graphs import EdgeSet, exchange, exchanges
from wdro_model.sets.vertices import Value

VIOLATED = 1e-6
"""Rows that are off by more are added."""
LEVELS = 8
"""Levels t whose components are tried, from above."""
KEPT = 2
"""Rows for each node that are kept from call to call."""


def ranked(weights: Vector) -> Vector:
    """The ranks of the weights in (0, 1], all different: the same trees are cheapest."""
    ranks = np.empty(weights.size)
    ranks[np.argsort(weights, kind="stable")] = np.arange(1, weights.size + 1) / weights.size
    return ranks


class TreeRows:
    """GLOP on the rows so far, which stay for the calls that follow.

    A row is written on the edges inside S, or as x(E - E(S)) >= n - |S|, whichever are fewer. With
    more than `KEPT` rows a node, the program is written again with those that bind.
    """

    def __init__(self, trees: SpanningTree) -> None:
        self._trees, self._edges = trees, trees.proper
        self._tails, self._heads = trees.tails[self._edges], trees.heads[self._edges]
        self._count = len(trees.nodes)
        self._rows: list[np.ndarray] = []
        self._write([])

    def __call__(self, direction: Vector) -> Vector:
        for variable, cost in zip(self._x, ranked(direction[self._edges]).tolist()):
            self._objective.SetCoefficient(variable, cost)
        point = np.zeros(self._trees.dimension)
        while True:
            status = self._solver.Solve()
            if status != self._solver.OPTIMAL:
                raise cp.error.SolverError(f"GLOP stopped with status {status} on spanning trees.")
            x = np.array([variable.solution_value() for variable in self._x])
            violated = list(violated_sets(x, self._tails, self._heads, self._count))
            if not violated:
                break
            for nodes in violated:
                self._add(nodes)
        if len(self._rows) > KEPT * self._count:
            self._write([nodes for nodes in self._rows if self._binds(nodes, x)])
        point[self._edges] = x
        return self._trees._tree(point)

    def reset(self) -> None:
        """Forget the rows that were found."""
        self._write([])

    def _write(self, rows: list[np.ndarray]) -> None:
        """The program with x(E) = n - 1, an edge at every node, and some rows."""
        from ortools.linear_solver import pywraplp

        self._solver: Any = pywraplp.Solver.CreateSolver("GLOP")
        self._x = [self._solver.NumVar(0.0, 1.0, "") for _ in self._edges]
        self._row(np.ones(self._edges.size), self._count - 1.0, self._count - 1.0)
        for node in range(self._count):
            at = (self._tails == node) | (self._heads == node)
            self._row(at, 1.0, self._solver.infinity())
        self._rows = []
        for nodes in rows:
            self._add(nodes)
        self._objective = self._solver.Objective()
        self._objective.SetMinimization()

    def _add(self, nodes: np.ndarray) -> None:
        inside = nodes[self._tails] & nodes[self._heads]
        size, infinity = float(nodes.sum()), self._solver.infinity()
        if 2 * int(inside.sum()) <= inside.size:
            self._row(inside, -infinity, size - 1.0)
        else:
            self._row(~inside, self._count - size, infinity)
        self._rows.append(nodes)

    def _row(self, inside: np.ndarray, least: float, most: float) -> None:
        row = self._solver.Constraint(least, most)
        for edge in np.flatnonzero(inside).tolist():
            row.SetCoefficient(self._x[edge], 1.0)

    def _binds(self, nodes: np.ndarray, x: Vector) -> bool:
        return bool(x[nodes[self._tails] & nodes[self._heads]].sum() > nodes.sum() - 1.0 - VIOLATED)


def violated_sets(
    x: Vector, tails: np.ndarray, heads: np.ndarray, count: int
) -> Iterator[np.ndarray]:
    """Sets of nodes S (n,) with x(E(S)) > |S| - 1, at least one if there is any.

    First the components of {e : x_e >= t} for some t and their complements, then by maximum flows.
    """
    found: set[bytes] = set()
    for level in np.unique(x[x > VIOLATED])[::-1][:LEVELS]:
        joined = x >= level
        pairs = (np.ones(int(joined.sum())), (tails[joined], heads[joined]))
        parts, label = connected_components(
            sp.coo_array(pairs, shape=(count, count)), directed=False
        )
        sizes = np.bincount(label, minlength=parts)
        inner = label[tails] == label[heads]
        inside = np.bincount(label[tails][inner], weights=x[inner], minlength=parts)
        touching = inside + sum(
            np.bincount(label[end][~inner], weights=x[~inner], minlength=parts)
            for end in (tails, heads)
        )
        outside = x.sum() - touching
        for component in range(parts):
            for nodes, within, size in (
                (label == component, inside[component], sizes[component]),
                (label != component, outside[component], count - sizes[component]),
            ):
                if size > 1 and within > size - 1.0 + VIOLATED and nodes.tobytes() not in found:
                    found.add(nodes.tobytes())
                    yield nodes
    if not found and np.abs(x - np.rint(x)).max() > VIOLATED:
        yield from _by_flows(x, tails, heads, count)


def _by_flows(x: Vector, tails: np.ndarray, heads: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """For each node r, the set S with r in it that maximises x(E(S)) - |S - r|: a closure.

    An edge brings x_e and asks for both of its ends, which cost 1 each, r nothing.
    """
    size = x.size
    source, sink = size + count, size + count + 1
    e = np.arange(size)
    unit = min(10**8, 2**30 // count)  # what a flow of 1 is: sums stay inside 32 bits
    whole = np.rint(unit * x).astype(np.int32)
    rows = np.concatenate([np.full(size, source), e, e, size + np.arange(count)])
    columns = np.concatenate([e, size + tails, size + heads, np.full(count, sink)])
    price = np.full(count, unit, dtype=np.int32)
    for root in range(count):
        price[root] = 0
        values = np.concatenate([whole, whole, whole, price]).astype(np.int32)
        graph = sp.csr_array((values, (rows, columns)), shape=(sink + 1, sink + 1))
        flow = maximum_flow(graph, source, sink)
        if whole.sum(dtype=np.int64) > flow.flow_value:
            left = graph - flow.flow
            left.data[left.data < 0] = 0
            left.eliminate_zeros()
            reached, _ = breadth_first_order(left, source)
            nodes = np.zeros(count, dtype=bool)
            nodes[reached[(reached >= size) & (reached < source)] - size] = True
            nodes[root] = True
            if x[nodes[tails] & nodes[heads]].sum() > nodes.sum() - 1.0 + VIOLATED:
                yield nodes
        price[root] = unit


# ------------------------------
# Spanning trees of an undirected graph


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
