"""Path flows, and link flows decomposed by origin (a linear program) and then by path."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, overload

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse.csgraph import dijkstra

from wdro_model import checks
from wdro_model.sets.backends import Vector
from wdro_model.traffic.flows.road_graph import Indices, RoadGraph, Trips


@dataclass(frozen=True)
class Tolerances:
    """Limits and penalties of the linear program over flows by origin."""

    most_flows: int = 200_000
    """Flows of one origin on one arc: larger programs take minutes, and are refused."""
    least_share: float = 1e-9
    """Shares of an origin's demand; smaller ones are a solver's rounding and are left out."""
    difference_cost: float = 100.0
    """The cost of a unit of difference from the given link flow, against trips that turn back by
    up to one unit; with a smaller number paths would add up to another flow."""


TOLERANCES = Tolerances()


@dataclass(frozen=True)
class PathFlow:
    """Trips along one path.

    origin, destination: the names of the zones' nodes; flow: the number of trips; arcs: the path as
    positions in the link flows; nodes: the names of the nodes along it, both ends included.
    """

    origin: Any
    destination: Any
    flow: float
    arcs: tuple[int, ...]
    nodes: tuple[Any, ...]


class PathFlows(Sequence[PathFlow]):
    """Path flows, by origin, destination and size; equal paths are one.

    `link_flows` (A,) is their sum on the arcs; `remainder` (A,) is the rest of the link flow that
    they decompose. Mixtures are written `0.4 * first + 0.6 * second`, or with sum().
    """

    def __init__(self, paths: Iterable[PathFlow], remainder: Vector) -> None:
        merged: dict[tuple[Any, ...], PathFlow] = {}
        for path in paths:
            key = (path.origin, path.destination, path.arcs)
            known = merged.get(key)
            merged[key] = path if known is None else replace(path, flow=known.flow + path.flow)
        self._paths = tuple(path for path in merged.values() if path.flow > 0.0)
        self.remainder = remainder

    @property
    def link_flows(self) -> Vector:
        """The flow on each arc (A,)."""
        flows = np.zeros(self.remainder.size)
        for path in self._paths:
            flows[list(path.arcs)] += path.flow
        return flows

    def between(self, origin: Any, destination: Any) -> list[PathFlow]:
        """The paths from one zone to another, the most used first."""
        chosen = [p for p in self if p.origin == origin and p.destination == destination]
        return sorted(chosen, key=lambda path: -path.flow)

    @overload
    def __getitem__(self, index: int) -> PathFlow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[PathFlow, ...]: ...
    def __getitem__(self, index: int | slice) -> PathFlow | tuple[PathFlow, ...]:
        return self._paths[index]

    def __len__(self) -> int:
        return len(self._paths)

    def __iter__(self) -> Iterator[PathFlow]:
        return iter(self._paths)

    def __add__(self, other: Any) -> PathFlows:
        if not isinstance(other, PathFlows):
            return NotImplemented
        if self.remainder.size != other.remainder.size:
            raise ValueError(
                f"path flows on {self.remainder.size} and on {other.remainder.size} arcs cannot be "
                "added: they are of different networks."
            )
        return PathFlows([*self, *other], self.remainder + other.remainder)

    def __radd__(self, other: Any) -> PathFlows:
        # sum() starts from 0.
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __mul__(self, share: Any) -> PathFlows:
        if not isinstance(share, Real):
            return NotImplemented
        part = checks.number("the share of path flows", share, low=0)
        scaled = (replace(path, flow=part * path.flow) for path in self)
        return PathFlows(scaled, part * self.remainder)

    __rmul__ = __mul__
    __array_ufunc__ = None  # NumPy's numbers leave the product to us

    def __repr__(self) -> str:
        left = float(np.abs(self.remainder).max(initial=0.0))
        return f"PathFlows({len(self)} paths, {left:.3g} left on an arc)"


def path_flow(trips: Trips, pair: int, flow: float, arcs: list[int]) -> PathFlow:
    """The path flow of a pair along arcs."""
    start, end = trips.pair_names(pair)
    nodes = (start, *(trips.names[node] for node in trips.heads[arcs]))
    return PathFlow(start, end, flow, tuple(arcs), nodes)


def shortest_routes(graph: RoadGraph, weights: Vector) -> PathFlows:
    """The path flows that take one shortest path for each pair with demand."""
    trips, sources = graph.trips, graph.sources
    matrix = graph.matrix(graph.weights(weights))
    arc_of, nodes = graph.cheapest(weights), np.arange(graph.size)
    paths = []
    for rows in graph.chunks(sources.size):
        _, predecessors = dijkstra(matrix, indices=sources[rows], return_predecessors=True)
        for row, before in enumerate(predecessors, start=rows.start):
            reached = before >= 0
            arc_into = np.zeros(graph.size, dtype=np.int64)
            arc_into[reached] = arc_of[graph.entry(before[reached], nodes[reached])]
            arcs_into, tails = arc_into.tolist(), before.tolist()
            for pair in range(trips.starts[row], trips.starts[row + 1]):
                node, arcs = int(trips.destinations[pair]), []
                while node != sources[row]:
                    arcs.append(arcs_into[node])
                    node = tails[node]
                paths.append(path_flow(trips, pair, float(trips.quantities[pair]), arcs[::-1]))
    return PathFlows(paths, np.zeros(trips.tails.size))


# ------------------------------------------------------------------ flows by origin
@dataclass(frozen=True, eq=False)
class OriginFlows:
    """y_k >= 0: the flow from one origin on one arc, for the K pairs that a route can use.

    A route from an origin does not return to it, does not leave another node that may not be
    passed, and enters one only to end there. At every node, for every origin,

        conservation @ y = out - in = supply of the origin at the node.

    rows (K,): the origin of each flow, as a position in `trips.origins`; arcs (K,): its arc;
    conservation (R, K), origin_of (R,), node_of (R,): its rows, none for nodes without arcs.
    """

    trips: Trips
    rows: Indices
    arcs: Indices
    conservation: sp.csr_array
    origin_of: Indices
    node_of: Indices

    @classmethod
    def from_limits(cls, trips: Trips, limits: Vector) -> OriginFlows:
        """The flows on arcs with a positive limit."""
        n, count = len(trips.names), trips.origins.size
        rows, arcs = np.nonzero(_usable_arcs(trips, limits, slice(0, count)))
        flows, ones = np.arange(rows.size), np.ones(rows.size)
        shape = (count * n, rows.size)
        leaves = sp.csr_array((ones, (rows * n + trips.tails[arcs], flows)), shape=shape)
        enters = sp.csr_array((ones, (rows * n + trips.heads[arcs], flows)), shape=shape)
        met = np.flatnonzero(np.diff(leaves.indptr) + np.diff(enters.indptr))
        return cls(trips, rows, arcs, sp.csr_array((leaves - enters)[met]), met // n, met % n)

    @property
    def count(self) -> int:
        """K."""
        return int(self.rows.size)

    def supplies(self, quantities: Vector) -> Vector:
        """The supply in each row of `conservation` (R,) when pair p sends quantities[p]."""
        trips = self.trips
        supply = np.zeros((trips.origins.size, len(trips.names)))
        supply[trips.rows, trips.destinations] = -quantities
        sent = np.bincount(trips.rows, quantities, trips.origins.size)
        supply[np.arange(trips.origins.size), trips.origins] += sent
        return supply[self.origin_of, self.node_of]

    def collect(self, scale: Vector) -> sp.csr_array:
        """The matrix (A, K) that sums scale[origin] y_k over the flows of each arc."""
        shape = (self.trips.tails.size, self.count)
        return sp.csr_array((scale[self.rows], (self.arcs, np.arange(self.count))), shape=shape)


def _usable_arcs(trips: Trips, limits: Vector, rows: slice) -> NDArray[np.bool_]:
    """Can a route from an origin use an arc? For some of the origins (rows, A)."""
    origin = trips.origins[rows, None]
    ends_here = np.zeros((origin.size, len(trips.names)), dtype=bool)
    pairs = slice(trips.starts[rows.start], trips.starts[rows.stop])
    ends_here[trips.rows[pairs] - rows.start, trips.destinations[pairs]] = True
    may_leave = trips.through[trips.tails] | (trips.tails == origin)
    may_enter = (trips.through | ends_here)[:, trips.heads] & (trips.heads != origin)
    return may_leave & may_enter & (limits > 0)


def count_flows(trips: Trips, limits: Vector) -> int:
    """K, counted origin by origin: all flows may be too many to be written down."""
    parts = (slice(row, row + 1) for row in range(trips.origins.size))
    return sum(int(np.count_nonzero(_usable_arcs(trips, limits, part))) for part in parts)


def refuse_large(count: int, purpose: str, way_out: str) -> None:
    """Raise ValueError if a linear program over this number of flows would be too large."""
    most = TOLERANCES.most_flows
    if count > most:
        raise ValueError(
            f"{purpose} is a linear program over the flow from each origin on each arc, here "
            f"{count} of them (at most {most}); {way_out}."
        )


# ------------------------------------------------------------------ decompositions of link flows
def nearby_flows(
    split: OriginFlows, x: Vector, cost: Vector, difference_cost: float
) -> tuple[Vector, float]:
    """min <cost, shares> + difference_cost * difference over flows that route the demand.

    Returns the shares (K,) of each origin's demand on the arcs it can use, and their difference
    from x, summed over all arcs, as a part of the total demand.
    """
    trips, unit = split.trips, sp.eye_array(x.size)
    collect = split.collect(trips.leaving / trips.total)
    supply = split.supplies(trips.quantities / trips.leaving[trips.rows])
    result = linprog(
        np.concatenate([cost, np.full(2 * x.size, difference_cost)]),
        A_eq=sp.block_array([[split.conservation, None, None], [collect, unit, -unit]]).tocsc(),
        b_eq=np.concatenate([supply, x / trips.total]),
        bounds=np.array([[0.0, 1.0]] * split.count + [[0.0, np.inf]] * (2 * x.size)),
        method="highs-ipm",
    )
    if result.status != 0:
        raise cp.error.SolverError(
            f"HiGHS stopped on the flows by origin ({split.count} columns): {result.message}"
        )
    shares = result.x[: split.count]
    return shares, float(np.abs(x / trips.total - collect @ shares).sum())


def distance_to_flows(split: OriginFlows, x: Vector) -> float:
    """The least difference, as a part of the total demand, from x to flows that route it."""
    if not split.count:
        return float(np.abs(x).sum())
    return nearby_flows(split, x, np.zeros(split.count), 1.0)[1]


def decompose(
    graph: RoadGraph, split: OriginFlows, x: Vector, metric: Vector, tolerance: float
) -> PathFlows:
    """The paths that add up to x, but for its circulations; see `TrafficFlows.path_flows`."""
    trips, shares, difference = split.trips, np.empty(0), np.inf
    if split.count:
        cost = _detours(graph, split, metric)
        shares, difference = nearby_flows(split, x, cost, TOLERANCES.difference_cost)
    if difference > tolerance:
        apart = distance_to_flows(split, x)
        if apart > tolerance:
            raise ValueError(
                f"x does not route the demand of the network: flows that do differ from it by "
                f"{apart * (trips.total or 1.0):.4g} or more in all (the demand is "
                f"{trips.total:.10g}); give link flows of this set, or a larger tolerance."
            )
    paths, shortest = [], shortest_routes(graph, metric)
    for row in range(trips.origins.size):
        used = np.flatnonzero((split.rows == row) & (shares > TOLERANCES.least_share))
        left = dict(zip(split.arcs[used].tolist(), shares[used].tolist()))
        for pair in range(trips.starts[row], trips.starts[row + 1]):
            wanted = float(trips.quantities[pair])
            share = wanted / float(trips.leaving[row])
            ways = _take_paths(trips, pair, left, share)
            # Shares that are too small for the solver take the shortest way.
            ways = ways or [(share, list(shortest[pair].arcs))]
            total = sum(part for part, _ in ways)
            paths += [path_flow(trips, pair, wanted * part / total, arcs) for part, arcs in ways]
    return PathFlows(paths, x - PathFlows(paths, np.zeros(x.size)).link_flows)


def _take_paths(
    trips: Trips, pair: int, left: dict[int, float], share: float
) -> list[tuple[float, list[int]]]:
    """Paths (share, arcs) of a pair, taken off the shares of its origin that are `left` on arcs."""
    origin, destination = trips.origins[trips.rows[pair]], trips.destinations[pair]
    paths = []
    while share > TOLERANCES.least_share:
        into: dict[int, list[int]] = {}
        for arc, rest in left.items():
            if rest > TOLERANCES.least_share:
                into.setdefault(trips.heads[arc], []).append(arc)
        # Breadth first from the destination, against the direction of the arcs.
        leads_on: dict[int, int] = {destination: -1}
        queue = deque([destination])
        while queue and origin not in leads_on:
            for arc in into.get(queue.popleft(), ()):
                if trips.tails[arc] not in leads_on:
                    leads_on[trips.tails[arc]] = arc
                    queue.append(trips.tails[arc])
        if origin not in leads_on:
            break
        arcs, node = [], origin
        while node != destination:
            arcs.append(leads_on[node])
            node = trips.heads[arcs[-1]]
        part = min(share, *(left[arc] for arc in arcs))
        for arc in arcs:
            left[arc] -= part
        share -= part
        paths.append((part, arcs))
    return paths


def _detours(graph: RoadGraph, split: OriginFlows, metric: Vector) -> Vector:
    """The cost of each flow (K,): the length by which its arc leads back towards the origin."""
    trips = split.trips
    away = dijkstra(graph.matrix(graph.weights(metric)), indices=graph.sources)
    away = np.where(np.isfinite(away), away, 0.0)
    tails, heads = graph.departure[trips.tails[split.arcs]], trips.heads[split.arcs]
    back = np.maximum(away[split.rows, tails] - away[split.rows, heads], 0.0)
    return back / (away.max() or 1.0) * (trips.leaving / trips.total)[split.rows]
