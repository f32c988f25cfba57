"""Paths from a source to a target in a directed or undirected graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Literal

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.compat import networkx as nx
from wdro_model.errors import InfeasibleError
from wdro_model.sets.backends import Vector, register_backend
from wdro_model.sets.choices import Array
from wdro_model.sets.feasible_set import as_flat
from wdro_model.sets.graphs import EdgeSet
from wdro_model.sets.path_backends import (
    FlowOfOneUnit,
    NegativeCycle,
    SimplePaths,
    acyclic_potentials,
    cyclic_potentials,
    reduced_weights,
    topological_arcs,
    with_cvxpy,
    with_networkx,
    with_scipy,
)

PathBackend = Literal["scipy", "networkx", "ortools", "cvxpy", "highs"]
"""Those that are built in; `register_backend` adds others."""


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
    _program: SimplePaths | None = None

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
        for role, node in (("source", source), ("target", target)):
            if node not in graph:
                raise ValueError(
                    f"{role} {node!r} is not a node of the graph ({len(self.nodes)} nodes, "
                    f"such as {self.nodes[0]!r})."
                )
        if source == target:
            raise ValueError(
                f"source and target are both {source!r}: the only path is empty; choose two nodes."
            )
        if not nx.has_path(graph, source, target):
            back = self.is_directed and nx.has_path(graph, target, source)
            hint = "there is one the other way round" if back else "add the missing edges"
            raise ValueError(f"no path leads from {source!r} to {target!r}; {hint}.")
        self._start, self._end = self._position[source], self._position[target]
        self._set_arcs()
        self._order = topological_arcs(self.arc_tails, self.arc_heads) if self.is_directed else None
        self._usable = np.zeros(self.dimension)
        self._usable[self.arc_edges] = 1.0
        self.bounds = (np.zeros(self.dimension), self._usable)
        self._ranks = self._topological_ranks()
        self.use_backend(backend)
        self.hold(forbidden, mandatory)

    def use_backend(self, backend: str | None = None) -> None:
        """Build the oracle of a backend, and say which directions it takes."""
        super().use_backend(backend)
        self._any_sign = isinstance(self._oracle, SimplePaths)
        self.nonnegative_directions = self._order is None and not self._any_sign
        self._say_form()

    def hold(self, forbidden: Iterable[Any] | None, mandatory: Iterable[Any] | None) -> None:
        """Forbid some of the edges and ask for others, by their names."""
        super().hold(forbidden, mandatory)
        self._say_form()

    def _say_form(self) -> None:
        """With cycles, the CVXPY form has them beside the paths: is that as good?"""
        asks = self.is_held and bool(self._held[1].any())
        self.has_constraints = self._order is not None or not (self._any_sign or asks)

    def free_minimum(self, direction: Vector) -> Vector:
        """The path of least total weight, as a fresh 0/1 vector."""
        return self._oracle(direction if self._any_sign else self._nonnegative(direction))

    def held_minimum(self, direction: Vector, forbidden: Array, mandatory: Array) -> Vector:
        """The best path with some edges held.

        Forbidden edges get a price above that of any path. On an acyclic graph, a path through the
        arc (u, v) uses no other arc (a, b) with rank a < rank v and rank b > rank u, in topological
        order; and a path that uses none of them has no other way past u than (u, v).
        """
        if self._any_sign:
            return super().held_minimum(direction, forbidden, mandatory)
        if self._ranks is None and mandatory.any():
            return self._simple_paths().within(direction, forbidden, mandatory)
        out = forbidden.copy()
        if self._ranks is not None:
            at, to = self._ranks[self.tails], self._ranks[self.heads]
            for arc in np.flatnonzero(mandatory).tolist():
                beside = (at < to[arc]) & (to > at[arc])
                beside[arc] = False
                out |= beside
        out[mandatory & (self._usable == 0)] = True
        price = 4.0 * len(self.nodes) * float(np.abs(direction).max()) or 1.0
        path = self.free_minimum(np.where(out, price, direction))
        if path[out].any() or not path[mandatory].all():
            raise self.refusal(forbidden, mandatory)
        return path

    def reset(self) -> None:
        """Forget what earlier calls left behind."""
        super().reset()
        self._program = None

    def refusal(self, forbidden: Array, mandatory: Array) -> InfeasibleError:
        """The error where held edges leave no path."""
        parts = [
            f"{word} {self.named(edges)}"
            for word, edges in (("without", forbidden & (self._usable > 0)), ("through", mandatory))
            if edges.any()
        ]
        return InfeasibleError(
            f"no path leads from {self.source!r} to {self.target!r} {' and '.join(parts)}; allow "
            "or leave out some of these edges."
        )

    def _simple_paths(self) -> SimplePaths:
        """The program for mandatory edges, kept for the calls that follow."""
        if self._program is None:
            self._program = SimplePaths(self)
        return self._program

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_program": None}

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

    def _flows(self, x: Any) -> list[Any]:
        arcs, count = np.arange(self.arc_edges.size), len(self.nodes)
        ones = np.ones(arcs.size)
        leaves = sp.csr_array((ones, (self.arc_tails, arcs)), shape=(count, arcs.size))
        enters = sp.csr_array((ones, (self.arc_heads, arcs)), shape=(count, arcs.size))
        supply = np.zeros(count)
        supply[self._start], supply[self._end] = 1.0, -1.0
        x = as_flat(x, self.dimension)
        y = x[self.arc_edges] if self.is_directed else cp.Variable(arcs.size, nonneg=True)
        constraints = [(leaves - enters) @ y == supply, x >= 0, x <= self._usable]
        if not self.is_directed:
            collect = sp.csr_array(
                (ones, (self.arc_edges, arcs)), shape=(self.dimension, arcs.size)
            )
            constraints.append(x == collect @ y)
        return constraints

    def describe(self) -> str:
        """The set in one line."""
        if not self.is_directed:
            kind = "an undirected graph"
        else:
            kind = "a directed graph" if self._order is None else "an acyclic directed graph"
        return (
            f"paths from {self.source!r} to {self.target!r} in {kind} with {len(self.nodes)} nodes "
            f"and {len(self.edges)} edges{self.held_in_words()}, minimised by {self.backend}"
        )

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
        reduced = np.zeros(self.dimension)
        reduced[self.arc_edges] = reduced_weights(
            weights, self.arc_tails, self.arc_heads, self._potential(weights)
        )
        return reduced

    def _potential(self, weights: Vector) -> Vector:
        ends, count = (self.arc_tails, self.arc_heads), len(self.nodes)
        if self._order is not None:
            return acyclic_potentials(weights, *ends, self._order, count)
        try:
            return cyclic_potentials(weights, *ends, count)
        except NegativeCycle as found:
            cycle = " -> ".join(repr(self.nodes[node]) for node in found.nodes)
            raise ValueError(
                f"the cycle {cycle} has the negative weight {found.weight:g}: paths that go round "
                "it get shorter without end; use an acyclic graph or nonnegative weights, "
                f"backend='highs' for the best simple path, or sets.Flow(graph, "
                f"{{{self.source!r}: 1, {self.target!r}: -1}}, capacity=1) for flows with cycles."
            ) from None

    def _is_discrete(self, vertex: Vector) -> bool:
        """Is it a simple path?"""
        if not super()._is_discrete(vertex):
            return False
        try:
            path = self._path_in(np.flatnonzero(vertex > 0.5).tolist())
        except cp.error.SolverError:
            return False
        return bool(np.array_equal(path, np.rint(vertex)))

    def _path_in(self, edges: list[int]) -> Vector:
        """A path that uses only the given edges (a solver's support, perhaps with cycles)."""
        leaving: dict[int, list[tuple[int, int]]] = {}
        where = np.flatnonzero(np.isin(self.arc_edges, edges))
        ends = (part[where].tolist() for part in (self.arc_edges, self.arc_tails, self.arc_heads))
        for edge, tail, head in zip(*ends):
            leaving.setdefault(tail, []).append((edge, head))
        came_by: dict[int, tuple[int, int]] = {self._start: (-1, -1)}
        queue = deque([self._start])
        while queue and self._end not in came_by:
            node = queue.popleft()
            for edge, head in leaving.get(node, ()):
                if head not in came_by:
                    came_by[head] = (edge, node)
                    queue.append(head)
        if self._end not in came_by:
            raise cp.error.SolverError(
                f"the flow returned by {self.backend} does not reach {self.target!r}; "
                "use backend='scipy'."
            )
        path, node = [], self._end
        while node != self._start:
            edge, node = came_by[node]
            path.append(edge)
        return self._indicator(path)


register_backend(ShortestPath, "scipy", with_scipy)
register_backend(ShortestPath, "networkx", with_networkx)
register_backend(ShortestPath, "ortools", FlowOfOneUnit)
register_backend(ShortestPath, "cvxpy", with_cvxpy)
register_backend(ShortestPath, "highs", SimplePaths)
