"""0/1 choices among named things, items or edges, some of them forbidden or mandatory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from wdro_model.compat import networkx as nx
from wdro_model.errors import InfeasibleError
from wdro_model.sets.arguments import as_direction, as_flat, as_names
from wdro_model.sets.backends import Answer, BoundedOracle, Side, Vector
from wdro_model.sets.feasible_set import (
    BoundedSet,
    FeasibleSet,
    NonnegativeDirectionsError,
    check_held,
    with_prices,
)
from wdro_model.sets.rounding import nearest_directions

Mask = NDArray[np.bool_]
LARGEST_DETOURS = 50
"""Neighbours of a vertex that are looked for by calls of the oracle, one call each."""


class NamedCoordinates:
    """The part of a set that finds coordinates by their names.

    Attributes
    ----------
    names: what each coordinate stands for.
    thing: the word for one of them, in messages.
    """

    names: tuple[Any, ...]
    thing = "choice"

    @cached_property
    def coordinates(self) -> dict[Any, int]:
        """The coordinate of each name."""
        return {name: i for i, name in enumerate(self.names)}

    def positions(self, things: Iterable[Any] | None) -> NDArray[np.int64]:
        """The coordinates of some things, given by their names."""
        if things is None:
            return np.zeros(0, dtype=np.int64)
        if isinstance(things, str) or not isinstance(things, Iterable):
            raise ValueError(f"{self.thing}s are given as a list of names, got {things!r}.")
        if isinstance(things, tuple) and things in self.coordinates:
            raise ValueError(f"{self.thing}s are given as a list: write [{things!r}].")
        return np.array([self.position(thing) for thing in things], dtype=np.int64)

    def position(self, thing: Any) -> int:
        """The coordinate of one thing."""
        known = self.coordinates
        if thing not in known:
            shown = self.listed(np.ones(len(self.names)))
            raise ValueError(f"{thing!r} is no {self.thing} of {self!r}: they are {shown}.")
        return known[thing]

    def listed(self, chosen: ArrayLike) -> str:
        """The names of a mask (n,) of coordinates as a message lists them."""
        where = np.flatnonzero(chosen)
        more = f" and {where.size - 5} more" if where.size > 5 else ""
        return ", ".join(repr(self.names[i]) for i in where[:5]) + more

    def coordinate_label(self, index: int) -> str:
        """The words for a coordinate in a message."""
        return f"the {self.thing} {self.names[index]!r}"


class ChoiceSet(NamedCoordinates, BoundedSet):
    """Subsets of named things, as 0/1 vectors; coordinate i of x is `names[i]`.

    A subclass sets `names` and `dimension`, writes its hull in CVXPY as `_hull(x)` if it can, and
    ends its constructor with `self.hold(forbidden, mandatory)` after `self.use_backend(backend)`.
    Oracles that keep to bounds are given those of held coordinates, others are given prices.
    """

    is_polytope = True
    rounds = True
    is_held = False
    """Are some coordinates forbidden or mandatory?"""
    _held_in_words = ""

    def answer(self, direction: Vector, lower: Side, upper: Side) -> Answer:
        if lower is None and upper is None and not self.is_held:
            return self.free_answer(direction)
        return self.held_answer(direction, *self.interval(lower, upper, whole=True))

    def free_answer(self, direction: Vector) -> Answer:
        """The answer of the backend with nothing held, and its slack."""
        oracle = self._oracle
        if isinstance(oracle, BoundedOracle):
            return oracle.answer(direction, *self.interval(None, None))
        return oracle(direction), 0.0

    def held_answer(self, direction: Vector, lower: Vector, upper: Vector) -> Answer:
        """The best choice with some coordinates at 0 in `upper` or 1 in `lower`, and its slack."""
        if isinstance(self._oracle, BoundedOracle):
            return self._oracle.answer(direction, lower, upper)
        vertex, slack = self.free_answer(with_prices(self, direction, lower, upper))
        with suppress(InfeasibleError):
            check_held(self, vertex, lower, upper)
            return vertex, slack
        raise self.refusal(lower, upper)

    def hold(self, forbidden: Iterable[Any] | None, mandatory: Iterable[Any] | None) -> None:
        """Forbid some of the things and ask for others, by their names."""
        if self.bounds is None:
            self.bounds = (np.zeros(self.dimension), np.ones(self.dimension))
        without, with_ = (np.unique(self.positions(given)) for given in (forbidden, mandatory))
        if not without.size and not with_.size:
            return
        both = np.intersect1d(without, with_)
        if both.size:
            raise ValueError(f"{self.coordinate_label(both[0])} is both forbidden and mandatory.")
        lower, upper = (side.copy() for side in self.bounds)
        useless = with_[upper[with_] == 0.0]
        if useless.size:
            raise InfeasibleError(
                f"{self.coordinate_label(useless[0])} is mandatory, and no point of {self!r} has "
                "it."
            )
        upper[without], lower[with_] = 0.0, 1.0
        self.bounds, self.is_held = (lower, upper), True
        counts = ((without.size, "forbidden"), (with_.size, "mandatory"))
        words = ", ".join(f"{count} {word}" for count, word in counts if count)
        self._held_in_words = f" ({words})"
        self.minimize(np.zeros(self.dimension))  # an InfeasibleError where nothing is left

    def constraints(self, x: Any) -> list[Any]:
        """CVXPY constraints for the hull, with what is held."""
        written = self._hull(x)
        if self.is_held:
            lower, upper = self.interval(None, None)
            flat = as_flat(x, self.dimension)
            for where, value in ((np.flatnonzero(upper == 0), 0), (np.flatnonzero(lower == 1), 1)):
                if where.size:
                    written.append(flat[where] == value)
        return written

    def _hull(self, x: Any) -> list[Any]:
        """CVXPY constraints for the hull of all choices, nothing held."""
        return super().constraints(x)

    def selected(self, x: ArrayLike, threshold: float = 0.5) -> list[Any]:
        """The things whose coordinate exceeds the threshold.

        Examples
        --------
        >>> teams = wdro.sets.Subsets(["Ann", "Bob", "Cid"], k=2)
        >>> teams.selected([0.9, 0.2, 0.9])
        ['Ann', 'Cid']
        """
        values = as_direction(x, self.dimension, kind="x")
        return [self.names[i] for i in np.flatnonzero(values > threshold)]

    def is_vertex(self, x: ArrayLike) -> bool:
        if not super().is_vertex(x):
            return False
        lower, upper = self.interval(None, None)
        whole = np.rint(np.asarray(x, dtype=np.float64))
        return bool(np.all(lower <= whole) and np.all(whole <= upper))

    def indicator(self, chosen: Any) -> Vector:
        """The 0/1 vector of some coordinates."""
        vertex = np.zeros(self.dimension)
        vertex[chosen] = 1.0
        return vertex


class Within(FeasibleSet):
    """The points of a set within some bounds: a node of a branch and bound.

    Where a set takes nonnegative directions only and cannot be made to choose a coordinate, what is
    mandatory is left open: the set is then larger, and its minima are bounds all the same.
    """

    def __init__(self, whole: FeasibleSet, lower: Vector, upper: Vector) -> None:
        self.whole, self.lower, self.upper = whole, lower, upper
        self.dimension, self.is_polytope = whole.dimension, whole.is_polytope
        self.nonnegative_directions = whole.nonnegative_directions
        self.accuracy, self.backend = whole.accuracy, whole.backend
        self.preferred_direction = whole.preferred_direction
        self.bounds = (lower, upper)
        self.is_larger = False
        """Is some coordinate not held that should be?"""
        self._lower: Vector | None = lower
        if whole.nonnegative_directions and bool(np.any(lower > 0)):
            try:
                whole.minimize_within(np.zeros(whole.dimension), lower, upper)
            except NonnegativeDirectionsError:
                self._lower, self.is_larger = None, True
                self.bounds = (np.zeros(whole.dimension), upper)
        self._is_free = self._lower is None and bool(np.all(upper >= 1))

    def minimize(self, direction: ArrayLike, lower: Side = None, upper: Side = None) -> Vector:
        """The answer of the whole set within the bounds."""
        return self.minimize_with_slack(direction)[0]

    def minimize_with_slack(
        self, direction: ArrayLike, lower: Side = None, upper: Side = None
    ) -> Answer:
        """The answer of the whole set within the bounds, with its slack."""
        self.whole.calls += 1
        if self._is_free:
            return self.whole.minimize_with_slack(direction)
        return self.whole.minimize_with_slack(direction, self._lower, self.upper)

    def __repr__(self) -> str:
        return f"Within({self.whole!r})"


# ------------------------------
# Subsets of named items


class ItemSet(ChoiceSet):
    """Subsets of items as 0/1 vectors; a subclass says which, in `is_member(chosen)`.

    Attributes
    ----------
    items: the items' names; coordinate i of x is `items[i]`.
    """

    items: tuple[Any, ...]
    thing = "item"
    neighbours_are_sorted = True

    def __init__(self, items: Any) -> None:
        self.items = self.names = as_names(items, self.thing)
        self.dimension = len(self.names)

    def is_member(self, chosen: Mask) -> bool:
        """Is the subset one of the set's? chosen: (n,) booleans, nothing held."""
        raise NotImplementedError

    def best(self, direction: Vector, lower: Vector, upper: Vector) -> Vector:
        """The best choice with some coordinates held, for a set without named backends."""
        raise NotImplementedError

    def _own_oracle(self) -> BoundedOracle:
        return OwnOracle(self)

    def is_vertex(self, x: ArrayLike) -> bool:
        return super().is_vertex(x) and self.is_member(np.asarray(x) > 0.5)

    def neighbours(self, vertex: Vector, x: Vector) -> Iterator[Vector]:
        """The choices with one item more, less or exchanged, towards x first."""
        lower, upper = self.interval(None, None)
        chosen, along = vertex > 0.5, x - vertex
        entering = np.flatnonzero(~chosen & (upper > 0))
        leaving = np.flatnonzero(chosen & (lower < 1))
        # The last row stands for no item that enters, the last column for none that leaves.
        gains = np.append(along[entering], 0.0)[:, None] - np.append(along[leaving], 0.0)
        for place in np.argsort(-gains, axis=None, kind="stable"):
            i, j = np.unravel_index(place, gains.shape)
            other = chosen.copy()
            other[entering[i : i + 1]] = True
            other[leaving[j : j + 1]] = False
            if (i < entering.size or j < leaving.size) and self.is_member(other):
                yield other.astype(np.float64)


class OwnOracle(BoundedOracle):
    """The oracle of a set that finds its best choice by itself."""

    def __init__(self, choices: ItemSet) -> None:
        self._set = choices

    def answer(self, direction: Vector, lower: Vector, upper: Vector) -> Answer:
        return self._set.best(direction, lower, upper), 0.0


# ------------------------------
# Sets whose coordinates are the edges of a NetworkX graph


class OnGraph(NamedCoordinates):
    """The graph of a set whose coordinates are edges; coordinate e of x is `edges[e]`.

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
    tails: NDArray[np.int64]
    heads: NDArray[np.int64]
    is_directed: bool
    places: dict[Any, tuple[float, float]] | None
    dimension: int
    thing = "edge"

    def read_graph(self, graph: Any, directed: bool | None = None, way_out: str = "") -> None:
        """Take over nodes and edges; a ValueError where there is no graph or no edge.

        directed: the kind of graph that is asked for; None for any. way_out: what to do about it.
        """
        kind = type(self).__name__
        if not isinstance(graph, nx.Graph):
            raise ValueError(
                f"{kind} takes a networkx graph, got {type(graph).__name__}; build one with "
                "networkx.Graph(list_of_edges)."
            )
        self.nodes, self.edges = tuple(graph.nodes), tuple(graph.edges)
        if not self.edges:
            raise ValueError(
                f"{kind} needs a graph with edges, got {len(self.nodes)} nodes and no edge."
            )
        self.is_directed = graph.is_directed()
        if directed is not None and self.is_directed != directed:
            words = ("an undirected", "a directed")
            raise ValueError(
                f"{kind} takes {words[directed]} graph, got {words[not directed]} one; {way_out}."
            )
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

    def node_position(self, node: Any, role: str) -> int:
        """The position of a node; a ValueError that names its role where it is none."""
        if node not in self._position:
            raise ValueError(
                f"{role} {node!r} is not a node of the graph ({len(self.nodes)} nodes, such as "
                f"{self.nodes[0]!r})."
            )
        return self._position[node]

    def first_node(self, nodes: Iterable[Any]) -> Any:
        """The first of some nodes in the graph's order."""
        return min(nodes, key=self._position.__getitem__)

    def ends_matrix(self, ends: NDArray[np.int64]) -> sp.csr_array:
        """The matrix (nodes, edges) with 1 where an edge has its end, for `tails` or `heads`."""
        count = ends.size
        entries = (np.ones(count), (ends, np.arange(count)))
        return sp.csr_array(entries, shape=(len(self.nodes), count))

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

    Attributes
    ----------
    proper: a mask (m,) of the edges that some choice has; never a self-loop.
    """

    has_constraints = True
    proper: Mask

    def __init__(self, graph: Any, directed: bool | None = None, way_out: str = "") -> None:
        self.read_graph(graph, directed, way_out)
        self.proper = self.tails != self.heads

    def neighbours(self, vertex: Vector, x: Vector) -> Iterator[Vector]:
        """The nearest choices without one of the vertex's edges, those first that x has least of.

        `LARGEST_DETOURS` of them, each by a call of the oracle.
        """
        lower, upper = self.interval(None, None)
        near, _ = nearest_directions(vertex, self.nonnegative_directions)
        free = np.flatnonzero((vertex > 0.5) & (lower == 0.0))
        for edge in free[np.argsort(x[free], kind="stable")][:LARGEST_DETOURS].tolist():
            without = upper.copy()
            without[edge] = 0.0
            with suppress(InfeasibleError):
                yield self.minimize(near, None, without)

    def size_in_words(self, edges: str = "edges") -> str:
        """The size of the graph, what is held and the backend, for `describe`."""
        return (
            f"a graph with {len(self.nodes)} nodes and {len(self.edges)} {edges}"
            f"{self._held_in_words}, minimised by {self.backend}"
        )

    def held_counts(self, lower: Vector, upper: Vector) -> str:
        """The numbers of held edges in words, for a refusal."""
        forbidden = int(((upper < 1.0) & self.proper).sum())
        return f"{int(lower.sum())} mandatory and {forbidden} forbidden {self.thing}s as asked"


class ParallelEdges:
    """Edges by the ordered pair of nodes that they join: of parallel ones the cheapest counts.

    Attributes
    ----------
    tails, heads: the two nodes of each pair, in lexicographic order.
    entry: the position of a pair.
    """

    def __init__(self, edges: NDArray, tails: NDArray, heads: NDArray) -> None:
        order = np.lexsort((heads, tails))
        self._edges, tails, heads = edges[order], tails[order], heads[order]
        first = np.append(True, (np.diff(tails) != 0) | (np.diff(heads) != 0))
        self._starts, self._pair = np.flatnonzero(first), np.cumsum(first)
        self.tails, self.heads = tails[first], heads[first]
        self.entry = {
            pair: i for i, pair in enumerate(zip(self.tails.tolist(), self.heads.tolist()))
        }

    def cheapest(self, direction: Vector) -> NDArray[np.int64]:
        """The cheapest edge of each pair."""
        if self._starts.size == self._edges.size:
            return self._edges
        order = np.lexsort((direction[self._edges], self._pair))
        return self._edges[order[self._starts]]

    def matrix(self, count: int) -> sp.csr_array:
        """A CSR matrix (count, count) with an entry for each pair, in their order."""
        indptr = np.searchsorted(self.tails, np.arange(count + 1)).astype(np.int32)
        data = np.zeros(self.tails.size)
        return sp.csr_array((data, self.heads.astype(np.int32), indptr), shape=(count, count))


def places_of(graph: Any) -> dict[Any, tuple[float, float]] | None:
    """The nodes' attributes "pos", or their names where these are pairs of numbers."""
    places = {}
    for node, given in graph.nodes(data="pos"):
        try:
            across, up = (float(part) for part in (node if given is None else given))
        except (TypeError, ValueError):
            return None
        places[node] = (across, up)
    return places
