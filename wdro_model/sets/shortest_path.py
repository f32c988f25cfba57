"""Paths from a source to a target in a graph, and the ways to find a shortest one.

With node potentials pi_v <= pi_u + w_uv for every arc, the reduced weights w_uv + pi_u - pi_v are
nonnegative, and every path from s to t changes by the same pi_s - pi_t: the shortest ones stay.

With cycles, weights of any sign and mandatory edges are hard problems: a flow of one unit may go
round cycles beside its path. For a set S of nodes without the target and a node v in S, a path that
leaves v leaves S as well,

    y(out of S) >= y(out of v),

and the rows that an answer violates cut its cycles off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Literal

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linprog, nnls
from scipy.sparse.csgraph import dijkstra

from wdro_model.compat import networkx as nx
from wdro_model.errors import InfeasibleError
from wdro_model.sets.arguments import as_flat
from wdro_model.sets.backends import (
    Answer,
    BoundedOracle,
    LinearOracle,
    OrToolsFlow,
    Vector,
    register_backend,
    rounding_slack,
    scaled_to_integers,
)
from wdro_model.sets.choices import EdgeSet, ParallelEdges
from wdro_model.sets.hull import HullOracle, Row, components

Indices = NDArray[np.int64]
PathBackend = Literal["scipy", "networkx", "ortools", "cvxpy", "highs"]
"""The built-in backends; `register_backend` adds others."""


class ShortestPath(EdgeSet):
    """The simple paths from `source` to `target`: x_e = 1 for the edges of a path.

    An undirected edge may be followed either way. Weights must be nonnegative on undirected graphs;
    on directed ones they may be negative as long as no cycle that a path could meet is negative
    (never on acyclic graphs). A refusal names the edge or the cycle.

    Backends: "scipy" (default: Dijkstra on arrays built once), "networkx", "ortools" (minimum cost
    flow, weights rounded to integers), "cvxpy" (a linear program, through HiGHS). These are given
    nonnegative weights: negative ones are first reduced by node potentials. "highs" (branch and
    bound) takes weights of any sign on any graph, a hard problem where there are cycles.

    Some edges may be `forbidden`, others `mandatory`. On acyclic graphs this is as fast as without:
    a path through an arc uses none that passes it by. On others mandatory edges take branch and
    bound, whatever the backend.

    Edges that lie on no walk from source to target without returning to either end (self-loops,
    dead ends of a directed graph) are zero in every path and their weights do not matter.

    Examples
    --------
    >>> import networkx as nx, wdro_model as wdro
    >>> graph = nx.Graph([("home", "park"), ("park", "work"), ("home", "work")])
    >>> path = wdro.sets.ShortestPath(graph, "home", "work")
    >>> path.edges
    (('home', 'park'), ('home', 'work'), ('park', 'work'))
    >>> path.selected(path.minimize([1.0, 3.0, 1.0]))
    [('home', 'park'), ('park', 'work')]
    """

    default_backend = "scipy"
    _simple_paths: HullOracle | None = None
    """The program for mandatory edges beside cycles, kept for the calls that follow."""

    def __init__(
        self,
        graph: Any,
        source: Any,
        target: Any,
        backend: PathBackend | str | None = None,
        *,
        forbidden: Iterable[Any] | None = None,
        mandatory: Iterable[Any] | None = None,
    ) -> None:
        super().__init__(graph)
        self.source, self.target = source, target
        self._start = self.node_position(source, "source")
        self._end = self.node_position(target, "target")
        if source == target:
            raise ValueError(
                f"source and target are both {source!r}: the only path is empty; choose two nodes."
            )
        if not nx.has_path(graph, source, target):
            back = self.is_directed and nx.has_path(graph, target, source)
            hint = "there is one the other way round" if back else "add the missing edges"
            raise ValueError(f"no path leads from {source!r} to {target!r}; {hint}.")
        self._set_arcs()
        self._order = topological_arcs(self.arc_tails, self.arc_heads) if self.is_directed else None
        self._ranks = self._topological_ranks()
        self.proper = np.zeros(self.dimension, dtype=bool)
        self.proper[self.arc_edges] = True
        self.bounds = (np.zeros(self.dimension), self.proper.astype(np.float64))
        self.use_backend(backend)
        self.hold(forbidden, mandatory)

    def use_backend(self, backend: str | None = None) -> None:
        """Build the oracle of a backend, and say which directions it takes."""
        super().use_backend(backend)
        self._any_sign = self.backend == "highs"
        self.nonnegative_directions = self._order is None and not self._any_sign

    @property
    def has_constraints(self) -> bool:  # type: ignore[override]
        """Is there a CVXPY form? With cycles, not for weights of any sign or mandatory edges."""
        if self._order is not None:
            return True
        return not self._any_sign and not self.interval(None, None)[0].any()

    def free_answer(self, direction: Vector) -> Answer:
        """The path of least total weight."""
        return super().free_answer(direction if self._any_sign else self._nonnegative(direction))

    def held_answer(self, direction: Vector, lower: Vector, upper: Vector) -> Answer:
        """The best path with some edges held.

        Forbidden edges get a price above that of any path. On an acyclic graph, a path through the
        arc (u, v) uses no other arc (a, b) with rank a < rank v and rank b > rank u, in topological
        order; and a path that uses none of them has no other way past u than (u, v).
        """
        if self._any_sign:
            return super().held_answer(direction, lower, upper)
        mandatory, without = lower > 0.0, upper < 1.0
        if self._ranks is None and mandatory.any():
            if self._simple_paths is None:
                self._simple_paths = _by_rows(self)
            return self._simple_paths.answer(direction, lower, upper)
        if self._ranks is not None:
            tail, head = self._ranks[self.tails], self._ranks[self.heads]
            for arc in np.flatnonzero(mandatory).tolist():
                beside = (tail < head[arc]) & (head > tail[arc])
                beside[arc] = False
                without |= beside
        price = 4.0 * len(self.nodes) * float(np.abs(direction).max()) or 1.0
        path, slack = self.free_answer(np.where(without, price, direction))
        if path[without].any() or not path[mandatory].all():
            raise self.refusal(lower, upper)
        return path, slack

    def reset(self) -> None:
        super().reset()
        self._simple_paths = None

    def refusal(self, lower: Vector, upper: Vector) -> InfeasibleError:
        """The error where held edges leave no path."""
        parts = [
            f"{word} {self.listed(edges)}"
            for word, edges in (("without", upper < self.proper), ("through", lower > 0.0))
            if edges.any()
        ]
        return InfeasibleError(
            f"no path leads from {self.source!r} to {self.target!r} {' and '.join(parts)}; allow "
            "or leave out some of these edges."
        )

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_simple_paths": None}

    def _topological_ranks(self) -> np.ndarray | None:
        """The place of each node in an order along the arcs; None with cycles.

        Nodes on no path come last: their arcs are not used.
        """
        if self._order is None:
            return None
        ranks = np.full(len(self.nodes), len(self.nodes))
        met = dict.fromkeys(self.arc_tails[self._order].tolist())
        ranks[list(met)] = np.arange(len(met))
        ranks[self._end] = len(met)
        return ranks

    def _hull(self, x: Any) -> list[Any]:
        """Flow conservation for one unit from source to target, 0 <= x <= 1.

        With y the flow on arcs (two per undirected edge) and N the node-arc incidence matrix:
        N y = 1 at the source, -1 at the target, 0 elsewhere, and x_e the sum of y over the arcs of
        e. On acyclic graphs this is the convex hull of the paths. On graphs with cycles it is the
        hull plus circulations, which cost nothing less in nonnegative directions: minima of linear
        functions with nonnegative slopes are the same. Where slopes may be negative or edges are
        mandatory there is no form.
        """
        if not self.has_constraints:
            raise NotImplementedError(
                f"{self!r} has no CVXPY form: on a graph with cycles, flows with negative weights "
                "or mandatory edges go round cycles beside their path; use sets.Flow if they may."
            )
        return self._flows(x)

    def _flows(self, x: Any, simple: bool = False) -> list[Any]:
        """The flow of one unit; if `simple`, it leaves each node once at most."""
        supply = np.zeros(len(self.nodes))
        supply[self._start], supply[self._end] = 1.0, -1.0
        leaves, enters = self.ends_matrix(self.arc_tails), self.ends_matrix(self.arc_heads)
        x = as_flat(x, self.dimension)
        constraints = [x >= 0, x <= self.proper]
        if self.is_directed:
            y = x[self.arc_edges]
        else:
            y = cp.Variable(self.arc_edges.size, nonneg=True)
            arcs = np.arange(self.arc_edges.size)
            pairs = (np.ones(arcs.size), (self.arc_edges, arcs))
            collect = sp.csr_array(pairs, shape=(self.dimension, arcs.size))
            constraints.append(x == collect @ y)
        constraints.append((leaves - enters) @ y == supply)
        return [*constraints, leaves @ y <= 1] if simple else constraints

    @property
    def form_is_hull(self) -> bool:  # type: ignore[override]
        """Is the CVXPY form the hull? With cycles, flows may go round them beside their paths."""
        return self._order is not None

    def contains(self, x: ArrayLike, tolerance: float = 1e-6) -> bool:
        if not super().contains(x, tolerance):
            return False
        x = np.asarray(x, dtype=np.float64).ravel()
        length = float(x[self.proper].sum())
        return (
            self.form_is_hull
            or float(self.without_circulations(x).sum()) >= length - tolerance * self.dimension
            or self._is_mixture(x, tolerance)
        )

    def without_circulations(self, x: Vector) -> Vector:
        """The shortest flow of one unit within x: a mixture of simple paths.

        Where it is x itself, no arc of x lies on a cycle, and x is a mixture of simple paths too.
        """
        count = self.arc_edges.size
        collect = sp.csr_array(
            (np.ones(count), (self.arc_edges, np.arange(count))), (self.dimension, count)
        )
        supply = np.zeros(len(self.nodes))
        supply[self._start], supply[self._end] = 1.0, -1.0
        balance = self.ends_matrix(self.arc_tails) - self.ends_matrix(self.arc_heads)
        room = np.maximum(x, 0.0) + 1e-9  # rounding leaves a flow short of one unit
        flow = linprog(np.ones(count), A_ub=collect, b_ub=room, A_eq=balance, b_eq=supply)
        return x if flow.x is None else np.asarray(collect @ flow.x)

    def _is_mixture(self, x: Vector, tolerance: float) -> bool:
        """Is x a mixture of simple paths? Paths are generated until x is one, or is cut off."""
        simple, total = _by_rows(self), float(self.dimension)
        lower, upper = self.interval(None, None)
        paths = [simple.answer(np.ones(self.dimension), lower, upper)[0]]
        while True:
            columns = np.array(paths).T
            shares, _ = nnls(np.vstack([columns, np.full(len(paths), total)]), np.append(x, total))
            away = columns @ shares - x
            if np.abs(away).max() <= tolerance:
                return True
            path, slack = simple.answer(away, lower, upper)
            if away @ (columns @ shares - path) <= slack + tolerance**2:
                return False
            paths.append(path)

    def describe(self) -> str:
        kind = "an undirected"
        if self.is_directed:
            kind = "a directed" if self._order is None else "an acyclic directed"
        words = self.size_in_words().removeprefix("a")
        return f"paths from {self.source!r} to {self.target!r} in {kind}{words}"

    def _set_arcs(self) -> None:
        """The arcs that can lie on a path, with the edge that each belongs to."""
        edges = np.flatnonzero(self.tails != self.heads)
        tails, heads = self.tails[edges], self.heads[edges]
        if not self.is_directed:
            edges = np.concatenate([edges, edges])
            tails, heads = np.concatenate([tails, heads]), np.concatenate([heads, tails])
        forth = (heads != self._start) & (tails != self._end)
        edges, tails, heads = edges[forth], tails[forth], heads[forth]
        graph: Any = nx.DiGraph(zip(tails.tolist(), heads.tolist()))
        between = nx.descendants(graph, self._start) | {self._start}
        between &= nx.ancestors(graph, self._end) | {self._end}
        met = np.zeros(len(self.nodes), dtype=bool)
        met[list(between)] = True
        kept = met[tails] & met[heads]
        self.arc_edges, self.arc_tails, self.arc_heads = edges[kept], tails[kept], heads[kept]

    def _nonnegative(self, direction: Vector) -> Vector:
        """Weights >= 0 with the same shortest paths: the direction itself where that is enough."""
        weights = direction[self.arc_edges]
        least = weights.min()
        if least >= 0:
            return np.maximum(direction, 0.0) if direction.min() < 0 else direction
        if self._order is None and least >= -1e-12 * np.abs(weights).max():
            return np.maximum(direction, 0.0)
        if not self.is_directed:
            edge = int(self.arc_edges[np.argmin(weights)])
            raise ValueError(
                f"edge {self.edges[edge]!r} has the negative weight {direction[edge]:g}: shortest "
                "paths in an undirected graph need nonnegative weights, since an edge could be "
                "followed back and forth; direct the graph, keep the loss increasing in x, or use "
                "backend='highs' for the best simple path."
            )
        potential, reduced = self._potential(weights), np.zeros(self.dimension)
        shift = potential[self.arc_tails] - potential[self.arc_heads]
        reduced[self.arc_edges] = np.maximum(weights + shift, 0.0)  # below zero by rounding alone
        return reduced

    def _potential(self, weights: Vector) -> Vector:
        ends, count = (self.arc_tails, self.arc_heads), len(self.nodes)
        if self._order is not None:
            return acyclic_potentials(weights, *ends, self._order, count)
        potential = cyclic_potentials(weights, *ends, count)
        if potential is not None:
            return potential
        positions, weight = negative_cycle(weights, *ends)
        cycle = " -> ".join(repr(self.nodes[node]) for node in positions)
        raise ValueError(
            f"the cycle {cycle} has the negative weight {weight:g}: paths that go round it get "
            "shorter without end; use an acyclic graph or nonnegative weights, backend='highs' for "
            f"the best simple path, or sets.Flow(graph, {{{self.source!r}: 1, {self.target!r}: "
            "-1}, capacity=1) for flows with cycles."
        )

    def is_vertex(self, x: ArrayLike) -> bool:
        """Is x a simple path?"""
        if not super().is_vertex(x):
            return False
        path = self.path_within(np.flatnonzero(np.asarray(x) > 0.5).tolist())
        return path is not None and bool(np.array_equal(path, np.rint(np.asarray(x))))

    def violated(self, x: Vector) -> Iterator[Row]:
        """Rows against cycles S beside the path, each for the node v of S that is used most.

        As x(out of S) >= x(out of v), or x(around S) >= x(around v) without directions.
        """
        tails, heads, count = self.tails, self.heads, len(self.nodes)
        use = np.bincount(tails, x, count)
        if not self.is_directed:
            use += np.bincount(heads, x, count)
        for nodes in components(x > 1e-6, tails, heads, count):
            if nodes[self._start]:
                continue
            node = int(np.argmax(np.where(nodes, use, -1.0)))
            leaving, at_node = nodes[tails] & ~nodes[heads], tails == node
            if not self.is_directed:
                leaving, at_node = nodes[tails] != nodes[heads], at_node | (heads == node)
            values = 1.0 * at_node - leaving
            columns = np.flatnonzero(values)
            yield Row(columns, values[columns], 0.0)

    def path_within(self, edges: list[int]) -> Vector | None:
        """A path that uses only the given edges; None if they do not reach the target."""
        graph: Any = nx.DiGraph()
        where = np.flatnonzero(np.isin(self.arc_edges, edges))
        ends = (part[where].tolist() for part in (self.arc_edges, self.arc_tails, self.arc_heads))
        for edge, tail, head in zip(*ends):
            graph.add_edge(tail, head, edge=edge)
        graph.add_nodes_from((self._start, self._end))
        if not nx.has_path(graph, self._start, self._end):
            return None
        nodes = nx.shortest_path(graph, self._start, self._end)
        return self.indicator([graph.edges[arc]["edge"] for arc in pairwise(nodes)])


# ------------------------------------------------------------------ backends
def _scipy(paths: ShortestPath) -> LinearOracle:
    """Dijkstra on a CSR matrix whose structure is built once."""
    pairs = ParallelEdges(paths.arc_edges, paths.arc_tails, paths.arc_heads)
    start, end, matrix = paths._start, paths._end, pairs.matrix(len(paths.nodes))

    def minimize(direction: Vector) -> Vector:
        edges, entries, head = pairs.cheapest(direction), [], end
        matrix.data[:] = direction[edges]
        _, predecessors = dijkstra(matrix, indices=start, return_predecessors=True)
        while head != start:
            tail = int(predecessors[head])
            entries.append(pairs.entry[tail, head])
            head = tail
        return paths.indicator(edges[entries])

    return minimize


def _networkx(paths: ShortestPath) -> LinearOracle:
    """Dijkstra on a NetworkX graph."""
    pairs = ParallelEdges(paths.arc_edges, paths.arc_tails, paths.arc_heads)
    graph: Any = nx.DiGraph(list(pairs.entry))
    attributes = [graph.edges[pair] for pair in pairs.entry]

    def minimize(direction: Vector) -> Vector:
        edges = pairs.cheapest(direction)
        for attribute, weight in zip(attributes, direction[edges].tolist()):
            attribute["weight"] = weight
        nodes = nx.dijkstra_path(graph, paths._start, paths._end)
        return paths.indicator(edges[[pairs.entry[arc] for arc in pairwise(nodes)]])

    return minimize


class FlowOfOneUnit(BoundedOracle):
    """OR-Tools' minimum cost flow of one unit, in integers; the slack is what rounding may cost."""

    def __init__(self, paths: ShortestPath) -> None:
        count = len(paths.nodes)
        self._paths, self._supply = paths, np.zeros(count, dtype=np.int64)
        self._supply[[paths._start, paths._end]] = 1, -1
        self._program = OrToolsFlow(count, paths.arc_tails, paths.arc_heads, "scipy")

    def answer(self, direction: Vector, lower: Vector, upper: Vector) -> Answer:
        paths, weights = self._paths, direction[self._paths.arc_edges]
        costs, unit = scaled_to_integers(weights, self._program.largest_cost)
        flow = self._program.solve(costs, np.ones_like(costs), self._supply)
        assert flow is not None  # some path leads to the target
        path = paths.path_within(paths.arc_edges[flow > 0].tolist())
        assert path is not None  # a unit of flow reaches it
        return path, rounding_slack(weights, costs, unit)


def _by_rows(paths: ShortestPath) -> HullOracle:
    """HiGHS on the flow of one unit, and on rows against cycles as they are violated."""
    return HullOracle(paths, lambda x: paths._flows(x, simple=True), paths.violated)


# ------------------------------------------------------------------ potentials
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


def cyclic_potentials(weights: Vector, tails: Indices, heads: Indices, count: int) -> Vector | None:
    """Bellman-Ford from a virtual source joined to every node; None with a negative cycle."""
    potential = np.zeros(count)
    # Sums of rounded weights around a cycle of weight zero must not look like progress.
    tolerance = 1e-12 * float(np.abs(weights).max())
    for _ in range(count):
        reached = potential.copy()
        np.minimum.at(reached, heads, potential[tails] + weights)
        if np.all(reached >= potential - tolerance):
            return reached
        potential = reached
    return None


def negative_cycle(weights: Vector, tails: Indices, heads: Indices) -> tuple[list[int], float]:
    """The nodes of a negative cycle in order, the first one repeated at the end, and its weight."""
    graph: Any = nx.DiGraph()
    for weight, tail, head in zip(weights.tolist(), tails.tolist(), heads.tolist()):
        if weight < graph.get_edge_data(tail, head, {"weight": np.inf})["weight"]:
            graph.add_edge(tail, head, weight=weight)
    start = -1
    graph.add_weighted_edges_from([(start, node, 0.0) for node in list(graph)])
    nodes = nx.find_negative_cycle(graph, start)
    return nodes, float(sum(graph.edges[arc]["weight"] for arc in pairwise(nodes)))


register_backend(ShortestPath, "scipy", _scipy)
register_backend(ShortestPath, "networkx", _networkx)
register_backend(ShortestPath, "ortools", FlowOfOneUnit)
register_backend(ShortestPath, "cvxpy", _by_rows)
register_backend(ShortestPath, "highs", _by_rows)
