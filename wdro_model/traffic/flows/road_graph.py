"""A road network as a sparse graph with its trips, checked and compact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import breadth_first_order, connected_components, dijkstra

from wdro_model.errors import InfeasibleError
from wdro_model.sets.backends import Vector
from wdro_model.traffic.demand_matrix import as_demand, nonzero_demand
from wdro_model.traffic.network_checks import as_indices

Indices = NDArray[np.int64]


class RoadNetwork(Protocol):
    """What a network must have for flows on it; A arcs, n nodes, Z zones.

    tails, heads: (A,) node indices; demand: (Z, Z); zones: (Z,) node indices; through: (n,), may
    the node be passed through; nodes: the n names.
    """

    @property
    def tails(self) -> NDArray[Any]: ...
    @property
    def heads(self) -> NDArray[Any]: ...
    @property
    def demand(self) -> Any: ...
    @property
    def zones(self) -> NDArray[Any]: ...
    @property
    def through(self) -> NDArray[Any]: ...
    @property
    def nodes(self) -> Sequence[Any]: ...


class Roads(NamedTuple):
    """Links sorted by tail, as compiled kernels take them.

    indptr (n + 1,): the links that leave node u are indptr[u] to indptr[u + 1];
    heads, tails (M,); through (n,): may the node be passed?
    """

    indptr: NDArray[Any]
    heads: NDArray[Any]
    tails: NDArray[Any]
    through: NDArray[np.bool_]


class Demand(NamedTuple):
    """Trips by origin, as compiled kernels take them; the fields are those of `Trips`."""

    origins: NDArray[Any]
    starts: NDArray[Any]
    destinations: NDArray[Any]
    quantities: Vector


@dataclass(frozen=True, eq=False)
class Trips:
    """Arcs, and demand between different nodes, by origin.

    tails, heads (A,); names: of the n nodes; through (n,); zones (Z,);
    origins (O,): the nodes that demand leaves from, in increasing order;
    starts (O + 1,): the pairs of origin i are starts[i] to starts[i + 1];
    destinations (P,), quantities (P,): node and demand > 0 of each pair.

    Zones at the same node count as one; what stays at a node is never loaded.
    """

    tails: Indices
    heads: Indices
    names: tuple[Any, ...]
    through: NDArray[np.bool_]
    zones: Indices
    origins: Indices
    starts: Indices
    destinations: Indices
    quantities: Vector

    @classmethod
    def of(cls, network: RoadNetwork) -> Trips:
        """The trips of a network."""
        missing = [name for name in _FIELDS if not hasattr(network, name)]
        if missing:
            raise ValueError(
                f"TrafficFlows takes a road network such as wdro_model.traffic.Network, got "
                f"{type(network).__name__} without {', '.join(missing)}."
            )
        names = tuple(network.nodes)
        n = len(names)
        tails = _node_indices("tails", network.tails, n)
        heads = _node_indices("heads", network.heads, n)
        if tails.size != heads.size or not tails.size:
            raise ValueError(
                f"a network needs as many tails as heads, and at least one arc; got {tails.size} "
                f"tails and {heads.size} heads."
            )
        through = np.array(network.through, dtype=bool)
        if through.shape != (n,):
            raise ValueError(f"through must have shape ({n},), got {through.shape}.")
        zones = _node_indices("zones", network.zones, n)
        pairs = _pairs(_demand(network.demand, zones.size), zones, n)
        return cls(tails, heads, names, through, zones, *pairs)

    @property
    def total(self) -> float:
        """The demand that is loaded."""
        return float(self.quantities.sum())

    @cached_property
    def rows(self) -> Indices:
        """The position in `origins` of each pair's origin (P,)."""
        return np.repeat(np.arange(self.origins.size), np.diff(self.starts))

    @cached_property
    def leaving(self) -> Vector:
        """The demand that leaves each origin (O,)."""
        return np.bincount(self.rows, self.quantities, self.origins.size).astype(np.float64)

    @cached_property
    def links(self) -> Indices:
        """The arcs (M,) that are not self-loops, sorted by tail."""
        order = np.argsort(self.tails, kind="stable")
        return order[self.tails[order] != self.heads[order]]

    @cached_property
    def roads(self) -> Roads:
        """The `links` for compiled kernels."""
        tails = self.tails[self.links].astype(np.uint32)
        indptr = np.searchsorted(tails, np.arange(len(self.names) + 1)).astype(np.uint32)
        heads = self.heads[self.links].astype(np.uint32)
        return Roads(indptr, heads, tails, self.through.copy())

    @cached_property
    def demand(self) -> Demand:
        """The trips for compiled kernels."""
        return Demand(
            self.origins.astype(np.uint32),
            self.starts.astype(np.int64),
            self.destinations.astype(np.uint32),
            self.quantities.copy(),
        )

    def has_roads_of(self, other: Trips) -> bool:
        """Do both have the same arcs, and the same nodes that may not be passed?"""
        return all(
            np.array_equal(getattr(self, field), getattr(other, field))
            for field in ("tails", "heads", "through")
        )

    def arc(self, index: int) -> str:
        """An arc by the names of its nodes."""
        return f"{self.names[self.tails[index]]!r} -> {self.names[self.heads[index]]!r}"


_FIELDS = ("tails", "heads", "demand", "zones", "through", "nodes")


def _node_indices(field: str, values: Any, n: int) -> Indices:
    given = as_indices(values, field)
    outside = np.flatnonzero((given < 0) | (given >= n))
    if outside.size:
        raise ValueError(
            f"{field} must be node indices from 0 to {n - 1}, got {given[outside[0]]} at position "
            f"{outside[0]}."
        )
    return given


def _demand(values: Any, zones: int) -> Any:
    demand = as_demand(values)
    if demand.shape != (zones, zones):
        raise ValueError(f"demand must have shape ({zones}, {zones}), got {demand.shape}.")
    origins, destinations, trips = nonzero_demand(demand)
    wrong = ~(np.isfinite(trips) & (trips >= 0))
    if wrong.any():
        at = int(np.argmax(wrong))
        where = (int(origins[at]), int(destinations[at]))
        raise ValueError(f"demand must be finite and >= 0, got {trips[at]} at index {where}.")
    return demand


def _pairs(demand: Any, zones: Indices, n: int) -> tuple[Indices, Indices, Indices, Vector]:
    """Origins, starts, destinations and quantities, sorted by origin, then destination."""
    rows, columns, trips = nonzero_demand(demand)
    moves = zones[rows] != zones[columns]
    rows, columns = rows[moves], columns[moves]
    keys, position = np.unique(zones[rows] * n + zones[columns], return_inverse=True)
    quantities = np.zeros(keys.size)
    np.add.at(quantities, position, trips[moves])
    origins, first = np.unique(keys // n, return_index=True)
    return origins, np.append(first, keys.size), keys % n, quantities


# ------------------------------
# A road network as a sparse matrix for shortest-path libraries, and what can be reached in it


DENSE_NODES = 5000
"""Up to here the entry of a (tail, head) is read from a dense table, beyond by bisection."""
LABELS_AT_ONCE = 130_000
"""So many (origin, node) labels are treated at a time: arrays of a megabyte stay in the cache."""


class RoadGraph:
    """The arcs as a CSR matrix with one entry per pair (tail, head), in N >= n nodes.

    A node v that may not be passed is split in two: arcs into v end at v, arcs out of v leave from
    its copy, and nothing joins the two. A path can then end or start at v, never pass. Parallel
    arcs share an entry, which has the least of their weights; self-loops have none.

    Attributes
    ----------
    trips: who travels on it.
    size: N.
    departure (n,): where a trip that starts at a node sets out: the node itself or its copy.
    sources (O,): where the trips of each origin set out.
    proper: the arcs that are not self-loops.
    tails, heads (E,): the ends of each entry, sorted by tail, then head.
    indices, indptr: the columns and the row starts of the CSR matrix.
    """

    def __init__(self, trips: Trips) -> None:
        n = len(trips.names)
        closed = np.flatnonzero(~trips.through)
        self.size = n + closed.size
        self.departure = np.arange(n)
        self.departure[closed] = n + np.arange(closed.size)
        self.trips = trips
        self.sources = self.departure[trips.origins]
        self.proper = np.flatnonzero(trips.tails != trips.heads)
        keys = self.departure[trips.tails[self.proper]] * self.size + trips.heads[self.proper]
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        first = np.diff(keys, prepend=-1) != 0
        self._keys = keys[first]
        self._order = self.proper[order]
        self._starts = np.flatnonzero(first)
        self._group = np.cumsum(first) - 1
        self.has_parallel = self._starts.size < order.size
        self.tails, self.heads = self._keys // self.size, self._keys % self.size
        self.indices = self.heads.astype(np.int32)
        self.indptr = np.searchsorted(self.tails, np.arange(self.size + 1)).astype(np.int32)
        self._table = self._dense_table() if self.size <= DENSE_NODES else None

    @property
    def entries(self) -> int:
        """E, the number of pairs (tail, head) joined by an arc."""
        return int(self._keys.size)

    def parts(self) -> Iterator[tuple[int, int]]:
        """Ranges (first, last) that cover the origins of the trips, few enough labels in each."""
        count = self.trips.origins.size
        step = max(1, LABELS_AT_ONCE // self.size)
        for first in range(0, count, step):
            yield first, min(first + step, count)

    def matrix(self, data: Vector) -> sp.csr_array:
        """The CSR matrix with the given entries (E,); explicit zeros stay arcs."""
        return sp.csr_array((data, self.indices, self.indptr), shape=(self.size, self.size))

    def weights(self, arc_weights: Vector) -> Vector:
        """The weight of each entry (E,): the least of its parallel arcs."""
        weights = arc_weights[self._order]
        return np.minimum.reduceat(weights, self._starts) if self.has_parallel else weights

    def cheapest(self, arc_weights: Vector) -> Indices:
        """The arc that each entry stands for (E,): the first of least weight."""
        if not self.has_parallel:
            return self._order
        weights = arc_weights[self._order]
        least = np.minimum.reduceat(weights, self._starts)
        hits = np.flatnonzero(weights == least[self._group])
        return self._order[hits[np.searchsorted(self._group[hits], np.arange(least.size))]]

    def link_flows(self, entry_flows: Vector, arc_weights: Vector) -> Vector:
        """Flows on the arcs (A,) from flows on the entries (E,)."""
        flows = np.zeros(self.trips.tails.size)
        flows[self.cheapest(arc_weights)] = entry_flows
        return flows

    def entry(self, tails: NDArray[Any], heads: NDArray[Any]) -> NDArray[Any]:
        """The entries of pairs (tail, head) that are joined by an arc."""
        keys = np.multiply(tails, self.size, dtype=np.int64)
        keys += heads
        if self._table is not None:
            return self._table[keys]
        return np.searchsorted(self._keys, keys)

    def __reduce__(self) -> Any:
        # Tables are quicker to build again than to send.
        return type(self), (self.trips,)

    def _dense_table(self) -> NDArray[Any]:
        kind = np.uint16 if self.entries <= np.iinfo(np.uint16).max else np.int32
        table = np.zeros(self.size**2, dtype=kind)
        table[self._keys] = np.arange(self.entries)
        return table


# ------------------------------------------------------------------ reach
def check_reachable(graph: RoadGraph) -> None:
    """Raise InfeasibleError if some demand has no route, naming the first pair."""
    unreachable = pairs_without_route(graph)
    if unreachable.size:
        raise InfeasibleError(_no_route(graph.trips, int(unreachable[0]), unreachable.size))


def pairs_without_route(graph: RoadGraph) -> Indices:
    """The pairs with demand, as positions in the trips, that no route joins."""
    trips, missed = graph.trips, [np.empty(0, dtype=np.int64)]
    matrix = graph.matrix(np.ones(graph.entries))
    doubtful = np.arange(trips.quantities.size)
    if trips.origins.size * graph.size > LABELS_AT_ONCE:
        doubtful = np.flatnonzero(~_by_the_core(graph, matrix))
    rows, starts = np.unique(trips.rows[doubtful], return_index=True)
    step = max(1, LABELS_AT_ONCE // graph.size)
    for first in range(0, rows.size, step):
        some = rows[first : first + step]
        hops = dijkstra(matrix, indices=graph.sources[some], unweighted=True)
        last = starts[first + step] if first + step < rows.size else doubtful.size
        pairs = doubtful[starts[first] : last]
        far = np.isinf(hops[np.searchsorted(some, trips.rows[pairs]), trips.destinations[pairs]])
        missed.append(pairs[far])
    return np.concatenate(missed)


def _by_the_core(graph: RoadGraph, matrix: sp.csr_array) -> NDArray[np.bool_]:
    """Does a route of each pair (P,) lead through the largest part whose nodes reach each other?"""
    trips = graph.trips
    _, parts = connected_components(matrix, directed=True, connection="strong")
    core = np.flatnonzero(parts == np.argmax(np.bincount(parts)))[:1]
    leads_there = _reached(matrix.T.tocsr(), core)
    comes_from = _reached(matrix, core)
    return leads_there[graph.sources][trips.rows] & comes_from[trips.destinations]


def flow_limits(graph: RoadGraph) -> Vector:
    """What each arc can carry at most (A,), on routes that visit no node twice.

    All demand; at a node that may not be passed, what starts or ends there; nothing on arcs that
    no route from an origin reaches or that lead to no destination.
    """
    trips = graph.trips
    tails, heads, n = trips.tails, trips.heads, len(trips.names)
    leaving = np.zeros(n)
    leaving[trips.origins] = trips.leaving
    arriving = np.bincount(trips.destinations, trips.quantities, n)
    limits = np.full(tails.size, trips.total)
    limits = np.where(trips.through[tails], limits, np.minimum(limits, leaving[tails]))
    limits = np.where(trips.through[heads], limits, np.minimum(limits, arriving[heads]))
    matrix = graph.matrix(np.ones(graph.entries))
    reached = _reached(matrix, graph.sources)
    reaching = _reached(matrix.T.tocsr(), np.unique(trips.destinations))
    idle = ~(reached[graph.departure[tails]] & reaching[heads]) | (tails == heads)
    limits[idle] = 0.0
    return limits


def _reached(matrix: sp.csr_array, starts: Indices) -> NDArray[np.bool_]:
    """The nodes that some start leads to (N,)."""
    if not starts.size:
        return np.zeros(matrix.shape[0], dtype=bool)
    return np.isfinite(dijkstra(matrix, indices=starts, unweighted=True, min_only=True))


def _no_route(trips: Trips, pair: int, count: int) -> str:
    origin, destination = trips.origins[trips.rows[pair]], trips.destinations[pair]
    n = len(trips.names)
    ones = np.ones(trips.tails.size)
    roads = sp.coo_array((ones, (trips.tails, trips.heads)), shape=(n, n)).tocsr()
    met = breadth_first_order(roads, origin, return_predecessors=False)
    more = f" ({count} pairs of zones have none)" if count > 1 else ""
    way_out = (
        "every way passes a node that may not be passed (through=False)"
        if destination in met
        else "add the missing arcs or set this demand to zero"
    )
    way_out += "; wdro_model.traffic.drop_unreachable(network) leaves out demand without a route"
    return (
        f"no route leads from zone {trips.names[origin]!r} to zone {trips.names[destination]!r}, "
        f"whose demand is {trips.quantities[pair]:g}{more}; {way_out}."
    )
