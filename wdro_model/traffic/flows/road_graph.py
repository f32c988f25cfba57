"""A road network as a sparse graph with its trips, and the pairs of zones that no route joins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import breadth_first_order, connected_components, dijkstra

from wdro_model.errors import InfeasibleError
from wdro_model.sets.backends import Vector
from wdro_model.traffic.fields import (
    as_arc_ends,
    as_demand,
    as_indices,
    as_through,
    check_demand,
    check_indices,
    nonzero_demand,
)

if TYPE_CHECKING:
    from wdro_model.traffic.network import Network

Indices = NDArray[np.int64]
NETWORK_FIELDS = ("tails", "heads", "demand", "zones", "through", "nodes")
LABELS_AT_ONCE = 130_000
"""Labels (origin, node) that are treated at a time: arrays of a megabyte stay in the cache."""
NAMED_PAIRS = 3
"""The most pairs without a route that a repair names."""


class Roads(NamedTuple):
    """Links sorted by tail, for compiled kernels.

    indptr (n + 1,): the links that leave node u are indptr[u] to indptr[u + 1];
    heads, tails (M,); through (n,): may the node be passed?
    """

    indptr: NDArray[Any]
    heads: NDArray[Any]
    tails: NDArray[Any]
    through: NDArray[np.bool_]


class Demand(NamedTuple):
    """The trips by origin, for compiled kernels; the fields are those of `Trips`."""

    origins: NDArray[Any]
    starts: NDArray[Any]
    destinations: NDArray[Any]
    quantities: Vector


@dataclass(frozen=True, eq=False)
class Trips:
    """Arcs, and the demand between different nodes by origin.

    tails, heads (A,); names: of the n nodes; through (n,); zones (Z,);
    origins (O,): the nodes that demand leaves from, in increasing order;
    starts (O + 1,): the pairs of origin i are starts[i] to starts[i + 1];
    destinations (P,), quantities (P,): node and demand > 0 of each pair.

    Zones at the same node count as one; trips from a node to itself are never loaded.
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
    def from_network(cls, network: Any) -> Trips:
        """The trips of a `Network`, or of any object with its fields; arcs may be self-loops."""
        missing = [name for name in NETWORK_FIELDS if not hasattr(network, name)]
        if missing:
            raise ValueError(
                f"TrafficFlows takes a road network such as wdro_model.traffic.Network, got "
                f"{type(network).__name__} without {', '.join(missing)}."
            )
        names, (tails, heads) = tuple(network.nodes), as_arc_ends(network.tails, network.heads)
        n, zones = len(names), as_indices(network.zones, "zones")
        for field, indices in (("tails", tails), ("heads", heads), ("zones", zones)):
            check_indices(field, indices, n)
        demand = as_demand(network.demand)
        if demand.shape != (zones.size, zones.size):
            raise ValueError(
                f"demand must have shape ({zones.size}, {zones.size}), got {demand.shape}."
            )
        check_demand(demand, [names[zone] for zone in zones.tolist()])
        through = np.array(as_through(network.through, n))
        rows, columns, trips = nonzero_demand(demand)
        moves = zones[rows] != zones[columns]
        keys = zones[rows[moves]] * n + zones[columns[moves]]
        pairs, position = np.unique(keys, return_inverse=True)
        quantities = np.zeros(pairs.size)
        np.add.at(quantities, position, trips[moves])
        origins, first = np.unique(pairs // n, return_index=True)
        starts = np.append(first, pairs.size)
        return cls(tails, heads, names, through, zones, origins, starts, pairs % n, quantities)

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

    def arc_name(self, index: int) -> str:
        """An arc by the names of its nodes."""
        return f"{self.names[self.tails[index]]!r} -> {self.names[self.heads[index]]!r}"

    def pair_names(self, pair: int) -> tuple[Any, Any]:
        """The names of origin and destination of a pair."""
        return self.names[self.origins[self.rows[pair]]], self.names[self.destinations[pair]]


class RoadGraph:
    """The arcs as a CSR matrix with one entry per pair (tail, head), in N >= n nodes.

    A node v that may not be passed is split in two: arcs into v end at v, arcs out of v leave from
    its copy, and nothing joins the two. A path can then end or start at v, never pass. Parallel
    arcs share an entry, which has the least of their weights; self-loops have none.

    Attributes
    ----------
    trips: the arcs and the demand.
    size: N.
    departure (n,): the node where a trip from each node sets out: the node itself or its copy.
    sources (O,): the nodes where the trips of each origin set out.
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
        is_first = np.diff(keys, prepend=-1) != 0
        self._keys = keys[is_first]
        self._order = self.proper[order]
        self._starts = np.flatnonzero(is_first)
        self._group = np.cumsum(is_first) - 1
        self.has_parallel = self._starts.size < order.size
        self.tails, self.heads = self._keys // self.size, self._keys % self.size
        self.indices = self.heads.astype(np.int32)
        self.indptr = np.searchsorted(self.tails, np.arange(self.size + 1)).astype(np.int32)

    @property
    def entries(self) -> int:
        """E, the number of pairs (tail, head) joined by an arc."""
        return int(self._keys.size)

    def chunks(self, count: int) -> Iterator[slice]:
        """Slices that cover `count` origins, each with at most `LABELS_AT_ONCE` labels."""
        step = max(1, LABELS_AT_ONCE // self.size)
        return (slice(start, min(start + step, count)) for start in range(0, count, step))

    def matrix(self, data: Vector) -> sp.csr_array:
        """The CSR matrix with the given entries (E,); explicit zeros stay arcs."""
        return sp.csr_array((data, self.indices, self.indptr), shape=(self.size, self.size))

    def weights(self, arc_weights: Vector) -> Vector:
        """The weight of each entry (E,): the least of its parallel arcs."""
        weights = arc_weights[self._order]
        return np.minimum.reduceat(weights, self._starts) if self.has_parallel else weights

    def cheapest(self, arc_weights: Vector) -> Indices:
        """The arc of each entry (E,) that trips use: the first of least weight."""
        if not self.has_parallel:
            return self._order
        weights, least = arc_weights[self._order], self.weights(arc_weights)
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
        return np.searchsorted(self._keys, keys + heads)


def parent_labels(predecessors: NDArray[Any]) -> Indices:
    """The predecessor of each label of trees in rows, from predecessors (rows, N), < 0 for none.

    The label of a node is row * N + node; the last label, rows * N, stands for none. Pointer
    doubling, parent <- parent[parent], leads from every label to the last one in log2(depth) steps.
    """
    rows, size = predecessors.shape
    labels = predecessors + size * np.arange(rows)[:, None]
    labels[predecessors < 0] = rows * size
    return np.append(labels.ravel(), rows * size)


# ------------------------------------------------------------------ reachability
def check_reachable(graph: RoadGraph) -> None:
    """Raise InfeasibleError if some demand has no route, naming the first pair."""
    missed, trips = pairs_without_route(graph), graph.trips
    if not missed.size:
        return
    pair, n = int(missed[0]), len(trips.names)
    roads = sp.coo_array((np.ones(trips.tails.size), (trips.tails, trips.heads)), shape=(n, n))
    origin = trips.origins[trips.rows[pair]]
    passable = breadth_first_order(roads.tocsr(), origin, return_predecessors=False)
    way_out = (
        "every way passes a node that may not be passed (through=False)"
        if trips.destinations[pair] in passable
        else "add the missing arcs or set this demand to zero"
    )
    more = f" ({missed.size} pairs of zones have none)" if missed.size > 1 else ""
    start, end = trips.pair_names(pair)
    raise InfeasibleError(
        f"no route leads from zone {start!r} to zone {end!r}, whose demand is "
        f"{trips.quantities[pair]:g}{more}; {way_out}; "
        "wdro_model.traffic.drop_unreachable(network) leaves out demand without a route."
    )


def pairs_without_route(graph: RoadGraph) -> Indices:
    """The pairs with demand, as positions in the trips, that no route joins.

    Most pairs are joined by way of the core, the largest set of nodes that all reach each other;
    only the others are searched from their origins.
    """
    trips, matrix = graph.trips, graph.matrix(np.ones(graph.entries))
    _, parts = connected_components(matrix, directed=True, connection="strong")
    core = np.flatnonzero(parts == np.argmax(np.bincount(parts)))[:1]
    leads_to_core, led_from_core = _reached(matrix.T.tocsr(), core), _reached(matrix, core)
    by_core = leads_to_core[graph.sources][trips.rows] & led_from_core[trips.destinations]
    others = np.flatnonzero(~by_core)
    rows, missed = np.unique(trips.rows[others]), [np.empty(0, dtype=np.int64)]
    for part in graph.chunks(rows.size):
        hops = dijkstra(matrix, indices=graph.sources[rows[part]], unweighted=True)
        pairs = others[np.isin(trips.rows[others], rows[part])]
        position = np.searchsorted(rows[part], trips.rows[pairs])
        missed.append(pairs[np.isinf(hops[position, trips.destinations[pairs]])])
    return np.concatenate(missed)


def flow_limits(graph: RoadGraph) -> Vector:
    """The largest flow of each arc (A,) on routes that visit no node twice.

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
    """The nodes that some start leads to, as booleans (N,)."""
    if not starts.size:
        return np.zeros(matrix.shape[0], dtype=bool)
    return np.isfinite(dijkstra(matrix, indices=starts, unweighted=True, min_only=True))


def drop_unreachable(network: Network) -> Network:
    """A copy of the network without the demand of pairs of zones that no route joins.

    The last of its `repairs` says how many pairs and trips were left out, and names some of them. A
    network where every trip has a route is returned as it is.

    Examples
    --------
    >>> network = wdro.traffic.Network(                    # one road, from a to b
    ...     tails=[0], heads=[1], capacity=5.0, free_flow_time=1.0, b=0.15, power=4.0,
    ...     demand=[[0.0, 10.0], [2.0, 0.0]], nodes=("a", "b"),
    ... )
    >>> wdro.traffic.drop_unreachable(network).repairs
    ("left out the demand of 1 pair of zones without a route, 2 of 12 trips: 'b' -> 'a' (2)",)
    """
    trips = Trips.from_network(network)
    missed = pairs_without_route(RoadGraph(trips))
    if not missed.size:
        return network
    n = network.n_nodes
    lost = trips.origins[trips.rows[missed]] * n + trips.destinations[missed]
    origins, destinations, quantities = nonzero_demand(network.demand)
    served = ~np.isin(network.zones[origins] * n + network.zones[destinations], lost)
    demand = sp.csr_array(
        (quantities[served], (origins[served], destinations[served])), shape=network.demand.shape
    )
    named = []
    for pair in missed[:NAMED_PAIRS].tolist():
        start, end = trips.pair_names(pair)
        named.append(f"{start!r} -> {end!r} ({trips.quantities[pair]:.10g})")
    repair = (
        f"left out the demand of {missed.size} pair{'s' if missed.size > 1 else ''} of zones "
        f"without a route, {trips.quantities[missed].sum():.10g} of {trips.total:.10g} trips: "
        f"{', '.join(named)}{', ...' if missed.size > NAMED_PAIRS else ''}"
    )
    return network.replace(
        demand=demand if sp.issparse(network.demand) else demand.toarray(),
        repairs=(*network.repairs, repair),
    )
