"""Sets whose coordinates are the edges of a NetworkX graph; exchanges of trees in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wdro_model.compat import networkx as nx
from wdro_model.errors import InfeasibleError
from wdro_model.sets.backends import Vector
from wdro_model.sets.choices import Array, ChoiceSet
from wdro_model.sets.feasible_set import as_direction
from wdro_model.sets.vertices import Value, descend, limit_of, nearest_directions

DETOURS = 50
"""Neighbours of a vertex that are looked for by calls of the oracle."""


class OnGraph:
    """What sets on the edges of a graph know of it; coordinate e of x is `edges[e]`.

    Attributes
    ----------
    nodes: the nodes, in the graph's order; node i is `nodes[i]`.
    edges: the edges (u, v), or (u, v, key) in a multigraph, in the order of `list(graph.edges)`.
    tails, heads: the two ends of each edge, as positions in `nodes`.
    is_directed: may an edge only be followed from its tail to its head?
    places: where each node is drawn, from its attribute "pos" or a name that is a pair of numbers;
        None if the graph does not say.
    """

    nodes: tuple[Any, ...]
    edges: tuple[Any, ...]
    names: Any
    tails: NDArray[np.int64]
    heads: NDArray[np.int64]
    is_directed: bool
    places: dict[Any, tuple[float, float]] | None
    dimension: int

    def read_graph(self, graph: Any) -> None:
        """Take over nodes and edges; a ValueError where there is no graph or no edge."""
        if not isinstance(graph, nx.Graph):
            raise ValueError(
                f"{type(self).__name__} takes a networkx graph, got {type(graph).__name__}; "
                "build one with networkx.Graph(list_of_edges)."
            )
        self.nodes, self.edges = tuple(graph.nodes), tuple(graph.edges)
        if not self.edges:
            raise ValueError(
                f"{type(self).__name__} needs a graph with edges, got {len(self.nodes)} nodes and "
                "no edge."
            )
        self.is_directed = graph.is_directed()
        self._position = {node: i for i, node in enumerate(self.nodes)}
        self.tails, self.heads = (
            np.array([self._position[edge[end]] for edge in self.edges], dtype=np.int64)
            for end in (0, 1)
        )
        self.names, self.dimension = self.edges, len(self.edges)
        self.places = places_of(graph)

    @cached_property
    def coordinates(self) -> dict[Any, int]:
        """The coordinate of every edge; without directions, also from its other end."""
        known = {edge: i for i, edge in enumerate(self.edges)}
        if not self.is_directed:
            for i, (tail, head, *key) in enumerate(self.edges):
                known.setdefault((head, tail, *key), i)
        return known

    def reset(self) -> None:
        """Forget what earlier calls left in the oracle, such as a basis or rows."""
        forget = getattr(getattr(self, "_oracle", None), "reset", None)
        if forget is not None:
            forget()

    def plot(self, x: ArrayLike, path: Any = None, *, ax: Any = None) -> Any:
        """Draw the graph with the edges of x as wide as their coordinates.

        path: where to save the picture; ax: Matplotlib's axes to draw on. Returns the figure, which
        notebooks show, or `ax` where it is given.
        """
        from wdro_model.sets.set_pictures import draw_graph

        return draw_graph(self, as_direction(np.ravel(x), self.dimension, kind="x"), path, ax)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.nodes)} nodes, {len(self.edges)} edges)"


class EdgeSet(OnGraph, ChoiceSet):
    """Subsets of the edges of a graph, as 0/1 vectors in the order of `list(graph.edges)`.

    An oracle with a method `within(direction, forbidden, mandatory)` is asked for the best choice
    with some edges held; others are given prices.
    """

    has_constraints = True
    thing = "edge"

    def __init__(self, graph: Any) -> None:
        self.read_graph(graph)

    def held_minimum(self, direction: Vector, forbidden: Array, mandatory: Array) -> Vector:
        within = getattr(self._oracle, "within", None)
        if within is None:
            return super().held_minimum(direction, forbidden, mandatory)
        return within(direction, forbidden, mandatory)

    def minimize_with_slack(
        self, direction: ArrayLike, lower: ArrayLike | None = None, upper: ArrayLike | None = None
    ) -> tuple[Vector, float]:
        """The oracle's answer, with what it says of it in `slack`, if it does."""
        vertex = super().minimize_with_slack(direction, lower, upper)[0]
        return vertex, float(getattr(self._oracle, "slack", 0.0))

    def neighbours(self, vertex: Vector, x: Vector) -> Iterator[Vector]:
        """The nearest choices without one of the vertex's edges, those first that x has least of.

        `DETOURS` of them, each by a call of the oracle.
        """
        lower, upper = self.own_bounds()
        near, _ = nearest_directions(vertex, self.nonnegative_directions)
        free = np.flatnonzero((vertex > 0.5) & (lower == 0.0))
        for edge in free[np.argsort(x[free], kind="stable")][:DETOURS].tolist():
            without = upper.copy()
            without[edge] = 0.0
            with suppress(InfeasibleError):
                yield self.minimize(near, None, without)

    def _improved(self, vertex: Vector, value: Value) -> Vector:
        """A choice that no neighbour improves, or the best one at the search's limit."""
        slope = getattr(value, "gradient", None)

        def near(v: Vector) -> Iterator[Vector]:
            return self.neighbours(v, v if slope is None else v - slope(v))

        return descend(vertex, value, near, limit_of(value))

    def _is_discrete(self, vertex: Vector) -> bool:
        """Is it a choice within what is held?"""
        lower, upper = self.own_bounds()
        whole = np.rint(vertex)
        within = (lower <= whole).all() and (whole <= upper).all()
        return bool(within) and super()._is_discrete(vertex)

    def refuse_directed(self) -> None:
        """A ValueError for a directed graph."""
        if self.is_directed:
            raise ValueError(
                f"{type(self).__name__} takes an undirected graph, got a directed one; "
                "graph.to_undirected() forgets the directions."
            )

    def named(self, edges: Array) -> str:
        """Some edges (m,) as a message lists them."""
        where = np.flatnonzero(edges)
        more = f" and {where.size - 5} more" if where.size > 5 else ""
        return ", ".join(repr(self.edges[e]) for e in where[:5]) + more

    def _indicator(self, edges: list[int] | NDArray[np.int64]) -> Vector:
        """The 0/1 vector of edge positions."""
        vertex = np.zeros(self.dimension)
        vertex[edges] = 1.0
        return vertex


def places_of(graph: Any) -> dict[Any, tuple[float, float]] | None:
    """The nodes' attributes "pos", or their names where these are pairs of numbers."""
    found = {}
    for node, given in graph.nodes(data="pos"):
        where = node if given is None else given
        try:
            across, up = (float(part) for part in where)
        except (TypeError, ValueError):
            return None
        found[node] = (across, up)
    return found


# ------------------------------------------------------------------ trees
def exchange(
    tree: Vector,
    value: Value,
    tails: NDArray[np.int64],
    heads: NDArray,
    held: Array | None = None,
) -> Vector:
    """A tree that no exchange of one edge improves, reached from the given one.

    held: the edges (m,) that neither enter nor leave.

    The exchanges of a tree put in one edge and take out one of the cycle that it closes. The first
    that improves is made, until none does. With a convex value, v + e_in - e_out has at least the
    value f(v) + g_in - g_out with g the gradient at v: only exchanges with g_in < g_out are tried,
    the steepest first. After `value.most` evaluations, where there is such a limit, it ends.
    """
    left = limit_of(value)
    best, least = tree.copy(), value(tree)
    gradient = getattr(value, "gradient", None)
    last = 0
    while True:
        swaps = exchanges(best, tails, heads)
        if held is not None:
            swaps = swaps[~held[swaps].any(axis=1)]
        if not swaps.size:
            return best
        if gradient is None:
            order = np.argsort((swaps[:, 0] - last) % tails.size, kind="stable")
        else:
            slope = gradient(best)
            gain = slope[swaps[:, 0]] - slope[swaps[:, 1]]
            order = steepest(gain, left)
        for entering, leaving in swaps[order[:left]]:
            trial = best.copy()
            trial[entering], trial[leaving] = 1.0, 0.0
            found = value(trial)
            left = None if left is None else left - 1
            if found < least:
                best, least, last = trial, found, int(entering)
                break
        else:
            return best


def steepest(gain: Vector, most: int | None) -> NDArray[np.int64]:
    """The positions of what falls, the steepest first; at most so many."""
    falling = np.flatnonzero(gain < 0)
    if most is not None and most < falling.size:
        falling = falling[np.argpartition(gain[falling], most)[:most]]
    return falling[np.argsort(gain[falling], kind="stable")]


def exchanges(tree: Vector, tails: NDArray[np.int64], heads: NDArray[np.int64]) -> NDArray:
    """All pairs (edge that enters, edge that leaves) of a tree, (K, 2).

    The ends of all edges that may enter climb towards the root together, the deeper one of each,
    until they meet: what they climb over is the cycle.
    """
    found = rooted(np.flatnonzero(tree > 0.5), tails, heads)
    count = max(found[0]) + 1
    parent, above, depth = (np.zeros(count, dtype=np.int64) for _ in range(3))
    for array, known in zip((parent, above, depth), found):
        array[list(known)] = list(known.values())
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


def rooted(
    edges: NDArray[np.int64], tails: NDArray[np.int64], heads: NDArray[np.int64]
) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
    """A tree hung up at a node: parent, edge to the parent, and depth of each node."""
    near: dict[int, list[tuple[int, int]]] = {}
    for edge in edges.tolist():
        tail, head = int(tails[edge]), int(heads[edge])
        near.setdefault(tail, []).append((head, edge))
        near.setdefault(head, []).append((tail, edge))
    root = int(tails[edges[0]])
    parent, above, depth = {root: root}, {root: -1}, {root: 0}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        for other, edge in near[node]:
            if other not in parent:
                parent[other], above[other], depth[other] = node, edge, depth[node] + 1
                waiting.append(other)
    return parent, above, depth
