"""Spanning trees of an undirected graph: Kruskal, and a linear program with rows on demand.

The hull of the trees is x >= 0, x(E) = n - 1 and x(E(S)) <= |S| - 1 for every set S of nodes
(Edmonds). Few of these rows matter for a cost: those that an answer violates are added, and stay
for the calls that follow. A vertex of some of the rows that violates none is a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.csgraph import (
    breadth_first_order,
    connected_components,
    maximum_flow,
    minimum_spanning_tree,
)

from wdro_model.compat import networkx as nx
from wdro_model.errors import InfeasibleError
from wdro_model.sets.arguments import as_flat
from wdro_model.sets.backends import Answer, BoundedOracle, LinearOracle, Vector, register_backend
from wdro_model.sets.choices import EdgeSet, ParallelEdges
from wdro_model.sets.hull import HullOracle

TreeBackend = Literal["kruskal", "numba", "scipy", "networkx", "ortools", "cvxpy"]
"""The built-in backends; `register_backend` adds others."""


class SpanningTree(EdgeSet):
    """The spanning trees of a connected graph: x_e = 1 for the n - 1 edges of a tree.

    Weights of any sign, parallel edges and self-loops (never in a tree) are allowed. Some edges may
    be `forbidden`, others `mandatory`, by their names.

    Backends: "kruskal" (default, O(m log m)), "numba" (the same, compiled), "scipy", "networkx",
    and two linear programs to compare with: "ortools" (GLOP, with the rows x(E(S)) <= |S| - 1 that
    were violated so far) and "cvxpy" (the extended formulation).

    A cheapest tree depends on the order of the weights alone: forbidden edges are put last in that
    order and mandatory ones first.

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
    neighbours_are_sorted = True

    def __init__(
        self,
        graph: Any,
        backend: TreeBackend | str | None = None,
        *,
        forbidden: Iterable[Any] | None = None,
        mandatory: Iterable[Any] | None = None,
    ) -> None:
        super().__init__(graph, False, "graph.to_undirected() forgets the directions")
        components = list(nx.connected_components(graph))
        if len(components) > 1:
            here, there = map(self.first_node, components[:2])
            raise ValueError(
                f"the graph is disconnected and has no spanning tree: no path joins {here!r} and "
                f"{there!r} ({len(components)} components); take a connected subgraph or add edges."
            )
        if not self.proper.any():
            raise ValueError("the graph has one node and self-loops only: its tree has no edge.")
        self.bounds = (np.zeros(self.dimension), self.proper.astype(np.float64))
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
        edges, loops = np.flatnonzero(self.proper), np.flatnonzero(~self.proper)
        from_tail, from_head = (
            self.ends_matrix(ends[edges]).T for ends in (self.tails, self.heads)
        )
        out = np.ones((roots.size, len(self.nodes)))
        out[np.arange(roots.size), roots] = 0.0

        x = as_flat(x, self.dimension)
        y = cp.Variable((roots.size, edges.size), nonneg=True)
        repeated = np.ones((roots.size, 1)) @ cp.reshape(x[edges], (1, edges.size), order="C")
        constraints = [y <= repeated, y @ (from_tail - from_head) + repeated @ from_head == out]
        return [*constraints, x[loops] == 0] if loops.size else constraints

    def describe(self) -> str:
        return f"spanning trees of {self.size_in_words()}"

    def _roots(self) -> NDArray[np.int64]:
        """A vertex cover: all nodes but a greedy independent set, nodes of low degree first."""
        simple = nx.Graph()
        simple.add_nodes_from(range(len(self.nodes)))
        simple.add_edges_from(zip(self.tails[self.proper], self.heads[self.proper]))
        roots: set[int] = set()
        covered: set[int] = set()
        for node in sorted(simple, key=simple.degree):
            if node in covered:
                roots.add(node)
            else:
                covered |= set(simple[node])
        return np.array(sorted(roots))

    def is_vertex(self, x: ArrayLike) -> bool:
        return super().is_vertex(x) and self.is_tree(np.flatnonzero(np.asarray(x) > 0.5))

    def is_tree(self, edges: NDArray[np.int64]) -> bool:
        """Are the edges n - 1 and is every node joined by them?"""
        parent = list(range(len(self.nodes)))
        joined = _join(parent, edges.tolist(), self.tails.tolist(), self.heads.tolist())
        return len(joined) == edges.size == len(self.nodes) - 1

    def neighbours(self, vertex: Vector, x: Vector) -> Iterator[Vector]:
        """The trees with one edge exchanged, those first that are nearest to x."""
        lower, upper = self.interval(None, None)
        swaps = exchanges(vertex, self.tails, self.heads)
        swaps = swaps[(upper[swaps[:, 0]] == 1.0) & (lower[swaps[:, 1]] == 0.0)]
        along = x - vertex
        order = np.argsort(along[swaps[:, 1]] - along[swaps[:, 0]], kind="stable")
        for entering, leaving in swaps[order]:
            other = vertex.copy()
            other[entering], other[leaving] = 1.0, 0.0
            yield other

    def refusal(self, lower: Vector, upper: Vector) -> InfeasibleError:
        """The error where held edges leave no tree: it names a cut, or the mandatory edges."""
        forbidden, mandatory = upper < self.proper, lower > 0.0
        order = np.argsort(1.0 * forbidden - mandatory, kind="stable").tolist()
        parent = list(range(len(self.nodes)))
        tree = _join(parent, order, self.tails.tolist(), self.heads.tolist())
        cut = [edge for edge in tree if forbidden[edge]]
        if cut:
            return InfeasibleError(
                f"{self!r} has no tree without its forbidden edges ({self.listed(forbidden)}): "
                f"they cut the graph in two at {self.edges[min(cut)]!r}; allow one of them."
            )
        return InfeasibleError(
            f"{self!r} has no tree with all of its mandatory edges ({self.listed(mandatory)}): "
            "some of them close a cycle; leave one of them out."
        )


def exchanges(tree: Vector, tails: NDArray[np.int64], heads: NDArray[np.int64]) -> NDArray:
    """All pairs (edge that enters, edge that leaves) of a tree, (K, 2).

    For all edges that may enter at once, the deeper end moves to its parent until both ends meet;
    the tree edges on the way form the cycle that the entering edge closes.
    """
    chosen = np.flatnonzero(tree > 0.5)
    count = int(max(tails.max(), heads.max())) + 1
    pairs = (np.ones(chosen.size), (tails[chosen], heads[chosen]))
    graph = sp.csr_array(pairs, shape=(count, count))
    order, parent = breadth_first_order(graph, tails[chosen[0]], directed=False)
    above, depth = np.full(count, -1), np.zeros(count, dtype=np.int64)
    is_child = parent[tails[chosen]] == heads[chosen]
    above[np.where(is_child, tails[chosen], heads[chosen])] = chosen
    for node in order[1:]:
        depth[node] = depth[parent[node]] + 1
    edges = np.flatnonzero(tree < 0.5)
    low, high = tails[edges], heads[edges]
    entering, leaving = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    while edges.size:
        apart = low != high
        edges, low, high = edges[apart], low[apart], high[apart]
        deeper = depth[low] >= depth[high]
        low, high = np.where(deeper, low, high), np.where(deeper, high, low)
        entering.append(edges)
        leaving.append(above[low])
        low = parent[low]
    return np.column_stack([np.concatenate(entering), np.concatenate(leaving)])


# ------------------------------------------------------------------ backends
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
        return trees.indicator(_join(nodes.copy(), order, tails, heads))

    return minimize


def _networkx(trees: SpanningTree) -> LinearOracle:
    graph, weighted, proper = nx.MultiGraph(), [], np.flatnonzero(trees.proper)
    for edge in proper.tolist():
        tail, head = int(trees.tails[edge]), int(trees.heads[edge])
        graph.add_edge(tail, head, key=edge)
        weighted.append(graph.edges[tail, head, edge])

    def minimize(direction: Vector) -> Vector:
        for attributes, weight in zip(weighted, direction[proper].tolist()):
            attributes["weight"] = weight
        chosen = nx.minimum_spanning_edges(graph, keys=True, data=False)
        return trees.indicator([edge for _, _, edge in chosen])

    return minimize


def _scipy(trees: SpanningTree) -> LinearOracle:
    """SciPy's tree for the ranks 1, 2, ... of the weights: it takes zeros for missing edges."""
    proper = np.flatnonzero(trees.proper)
    ends = np.sort([trees.tails[proper], trees.heads[proper]], axis=0)
    pairs = ParallelEdges(proper, *ends)
    graph = pairs.matrix(len(trees.nodes))

    def minimize(direction: Vector) -> Vector:
        edges = pairs.cheapest(direction)
        order = np.argsort(direction[edges], kind="stable")
        graph.data[order] = np.arange(1, order.size + 1)
        ranks = minimum_spanning_tree(graph).data.astype(np.int64)
        return trees.indicator(edges[order[ranks - 1]])

    return minimize


def _numba(trees: SpanningTree) -> LinearOracle:
    try:
        import numba
    except ImportError:
        raise ImportError(
            "backend 'numba' needs Numba, which is not installed: pip install 'wdro_model[fast]', "
            "or use backend='kruskal'."
        ) from None
    join = compiled(_mark_joined, numba.njit)
    tails, heads, count = trees.tails, trees.heads, len(trees.nodes)

    def minimize(direction: Vector) -> Vector:
        tree = np.zeros(trees.dimension)
        join(np.argsort(direction, kind="stable"), tails, heads, count, tree)
        return tree

    return minimize


def compiled(function: Callable[..., None], njit: Callable[..., Any]) -> Any:
    """The function as machine code, kept on disk where there is a place for it."""
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:
        # Neither the folder of this file nor the user's cache folder can be written.
        return njit(nogil=True)(function)


def _mark_joined(order: Any, tails: Any, heads: Any, count: int, tree: Any) -> None:
    """Set tree[e] = 1 for the edges of `order` that join two components; for Numba."""
    parent = np.arange(count)
    missing = count - 1
    for edge in order:
        tail, head = tails[edge], heads[edge]
        while parent[tail] != tail:
            parent[tail] = parent[parent[tail]]
            tail = parent[tail]
        while parent[head] != head:
            parent[head] = parent[parent[head]]
            head = parent[head]
        if tail != head:
            parent[tail] = head
            tree[edge] = 1.0
            missing -= 1
            if missing == 0:
                break


@dataclass(frozen=True)
class Tolerances:
    """Limits for the rows of the linear program."""

    row: float = 1e-6
    """Violation from which on a row is added; smaller ones are a solver's rounding."""
    levels: int = 8
    """Levels t, from above, whose components {x >= t} are tried before maximum flows."""
    kept_rows: int = 2
    """Rows for each node that are kept from call to call; slack ones go when there are more."""


TOLERANCES = Tolerances()


class TreeRows(BoundedOracle):
    """GLOP on the rows so far, which stay for the calls that follow.

    A row is written on the edges inside S, or as x(E - E(S)) >= n - |S|, whichever are fewer. With
    more than `kept_rows` a node, the program is written again with those that bind. The weights are
    replaced by their ranks: the same trees are cheapest, and no weight is too small for GLOP.
    """

    def __init__(self, trees: SpanningTree) -> None:
        self._trees, self._edges = trees, np.flatnonzero(trees.proper)
        self._tails, self._heads = trees.tails[self._edges], trees.heads[self._edges]
        self._count = len(trees.nodes)
        self._rows: list[np.ndarray] = []
        self._write([])

    def answer(self, direction: Vector, lower: Vector, upper: Vector) -> Answer:
        edges, trees = self._edges, self._trees
        ranks = np.empty(edges.size)
        ranks[np.argsort(direction[edges], kind="stable")] = np.arange(1, edges.size + 1)
        sides = zip(self._x, ranks / edges.size, lower[edges].tolist(), upper[edges].tolist())
        for variable, cost, low, high in sides:
            variable.SetBounds(low, high)
            self._objective.SetCoefficient(variable, cost)
        while True:
            status = self._solver.Solve()
            if status == self._solver.INFEASIBLE:
                raise trees.refusal(lower, upper)
            if status != self._solver.OPTIMAL:
                raise cp.error.SolverError(f"GLOP stopped with status {status} on spanning trees.")
            x = np.array([variable.solution_value() for variable in self._x])
            violated = list(violated_sets(x, self._tails, self._heads, self._count))
            if not violated:
                break
            for nodes in violated:
                self._add(nodes)
        if len(self._rows) > TOLERANCES.kept_rows * self._count:
            self._write([nodes for nodes in self._rows if self._binds(nodes, x)])
        chosen = edges[x > 0.5]
        if not trees.is_tree(chosen):
            raise cp.error.SolverError(
                f"the linear program over spanning trees returned a point that is not a tree "
                f"({chosen.size} edges of {self._count - 1}); use backend='kruskal'."
            )
        return trees.indicator(chosen), 0.0

    def reset(self) -> None:
        self._write([])

    def _write(self, rows: list[np.ndarray]) -> None:
        """The program with x(E) = n - 1, an edge at every node, and some rows."""
        from ortools.linear_solver import pywraplp

        self._solver: Any = pywraplp.Solver.CreateSolver("GLOP")
        self._x = [self._solver.NumVar(0.0, 1.0, "") for _ in self._edges]
        self._row(np.ones(self._edges.size), self._count - 1.0, self._count - 1.0)
        for node in range(self._count):
            at_node = (self._tails == node) | (self._heads == node)
            self._row(at_node, 1.0, self._solver.infinity())
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
        weight = x[nodes[self._tails] & nodes[self._heads]].sum()
        return bool(weight > nodes.sum() - 1.0 - TOLERANCES.row)


def violated_sets(
    x: Vector, tails: np.ndarray, heads: np.ndarray, count: int
) -> Iterator[np.ndarray]:
    """Sets of nodes S (n,) with x(E(S)) > |S| - 1, at least one if there is any.

    First the components of {e : x_e >= t} for some t and their complements, then by maximum flows.
    """
    known: set[bytes] = set()
    for level in np.unique(x[x > TOLERANCES.row])[::-1][: TOLERANCES.levels]:
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
                if (
                    size > 1
                    and within > size - 1.0 + TOLERANCES.row
                    and nodes.tobytes() not in known
                ):
                    known.add(nodes.tobytes())
                    yield nodes
    if not known and np.abs(x - np.rint(x)).max() > TOLERANCES.row:
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
            if x[nodes[tails] & nodes[heads]].sum() > nodes.sum() - 1.0 + TOLERANCES.row:
                yield nodes
        price[root] = unit


register_backend(SpanningTree, "kruskal", _kruskal)
register_backend(SpanningTree, "numba", _numba)
register_backend(SpanningTree, "scipy", _scipy)
register_backend(SpanningTree, "networkx", _networkx)
register_backend(SpanningTree, "ortools", TreeRows)
register_backend(SpanningTree, "cvxpy", lambda trees: HullOracle(trees, trees._hull))
