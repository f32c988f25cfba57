"""Link flows decomposed by origin and by path."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, overload

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog
from scipy.sparse.csgraph import dijkstra

from wdro_model import checks
from wdro_model.sets.backends import Vector
from wdro_model.traffic.flows.road_graph import Indices, RoadGraph, Trips


@dataclass(frozen=True)
class PathFlow:
    """Trips that go the same way.

    origin, destination: the names of the zones' nodes; flow: how many trips; arcs: their way, as
    positions in the link flows; nodes: the names of the nodes along it, both ends included.
    """

    origin: Any
    destination: Any
    flow: float
    arcs: tuple[int, ...]
    nodes: tuple[Any, ...]


class PathFlows(Sequence[PathFlow]):
    """Path flows, by origin, destination and size; equal paths are one.

    `link_flows` (A,) is their sum on the arcs, `remainder` (A,) what a link flow that they were
    taken from has beyond it. Mixtures are written `0.4 * first + 0.6 * second`, or with sum().
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
    origin, destination = trips.origins[trips.rows[pair]], trips.destinations[pair]
    ends = [origin, *trips.heads[arcs]]
    names = trips.names
    return PathFlow(
        names[origin], names[destination], flow, tuple(arcs), tuple(names[v] for v in ends)
    )


def shortest_routes(graph: RoadGraph, weights: Vector) -> PathFlows:
    """One shortest path for each pair with demand."""
    trips, sources = graph.trips, graph.sources
    matrix = graph.matrix(graph.weights(weights))
    arc_of = graph.cheapest(weights).tolist()
    paths = []
    for first, last in graph.parts():
        _, predecessors = dijkstra(matrix, indices=sources[first:last], return_predecessors=True)
        nodes = np.broadcast_to(np.arange(graph.size), predecessors.shape)
        reached = predecessors >= 0
        entries = np.zeros(predecessors.shape, dtype=np.int64)
        entries[reached] = graph.entry(predecessors[reached], nodes[reached])
        for row, source in enumerate(sources[first:last].tolist(), start=first):
            before, entry = predecessors[row - first].tolist(), entries[row - first].tolist()
            for pair in range(trips.starts[row], trips.starts[row + 1]):
                node, arcs = int(trips.destinations[pair]), []
                while node != source:
                    arcs.append(arc_of[entry[node]])
                    node = before[node]
                paths.append(path_flow(trips, pair, float(trips.quantities[pair]), arcs[::-1]))
    return PathFlows(paths, np.zeros(trips.tails.size))


# ------------------------------
# Flows told apart by their origin: the linear form of traffic on a network


MOST_FLOWS = 200_000
"""Linear programs over more flows than this are refused: they take minutes."""


@dataclass(frozen=True, eq=False)
class OriginFlows:
    """y_k >= 0: the flow from one origin on one arc, for the K pairs that a route can use.

    A route from an origin does not return to it, does not leave another node that may not be
    passed, and enters one only to end there. At every node, for every origin,

        conservation @ y = out - in = what the origin sends into the node.

    rows (K,): the origin of each flow, as a position in `trips.origins`; arcs (K,): its arc;
    conservation (R, K), origin_of (R,), node_of (R,): its rows, the ones without an arc left out.
    """

    trips: Trips
    rows: Indices
    arcs: Indices
    conservation: sp.csr_array
    origin_of: Indices
    node_of: Indices

    @classmethod
    def of(cls, trips: Trips, limits: Vector) -> OriginFlows:
        """The flows on arcs with a positive limit."""
        n, count = len(trips.names), trips.origins.size
        ends_here = np.zeros((count, n), dtype=bool)
        ends_here[trips.rows, trips.destinations] = True
        origin = trips.origins[:, None]
        may_leave = trips.through[trips.tails] | (trips.tails == origin)
        may_enter = (trips.through | ends_here)[:, trips.heads] & (trips.heads != origin)
        rows, arcs = np.nonzero(may_leave & may_enter & (limits > 0))
        flows = np.arange(rows.size)
        ones = np.ones(rows.size)
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
        """What enters at each row of `conservation` (R,) when pair p sends quantities[p]."""
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


def count_of(trips: Trips, limits: Vector) -> int:
    """K, origin by origin: their flows may be too many to be written down."""
    tails, heads, usable = trips.tails, trips.heads, limits > 0
    count = 0
    for row, origin in enumerate(trips.origins.tolist()):
        ends = trips.through.copy()
        ends[trips.destinations[trips.starts[row] : trips.starts[row + 1]]] = True
        ends[origin] = False
        leaves = trips.through[tails] | (tails == origin)
        count += int(np.count_nonzero(usable & leaves & ends[heads]))
    return count


def refuse_large(count: int, what: str, way_out: str) -> None:
    """Raise ValueError where a linear program over so many flows would be too large."""
    if count > MOST_FLOWS:
        raise ValueError(
            f"{what} is a linear program over the flow from each origin on each arc, here "
            f"{count} of them (at most {MOST_FLOWS}); {way_out}."
        )


# ------------------------------
# Link flows taken apart: into flows by origin (a linear program), then into paths


ABSENT = 1e-9
"""Shares of an origin's demand below this are a solver's rounding."""
EXACT = 100.0
"""What a unit of difference from x costs, against trips that turn back by up to one unit."""


@dataclass(frozen=True)
class NearbyFlows:
    """Flows by origin near a link flow x.

    shares (K,): of each origin's demand, on the arcs it can use; difference: the sum over all arcs
    of what separates them from x, as a part of the total demand.
    """

    shares: Vector
    difference: float


def nearby_flows(split: OriginFlows, x: Vector, cost: Vector, exact: float) -> NearbyFlows:
    """min <cost, shares> + exact * difference over flows that route the demand."""
    trips = split.trips
    unit = sp.eye_array(x.size)
    collect = split.collect(trips.leaving / trips.total)
    supply = split.supplies(trips.quantities / trips.leaving[trips.rows])
    result = linprog(
        np.concatenate([cost, np.full(2 * x.size, exact)]),
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
    return NearbyFlows(shares, float(np.abs(x / trips.total - collect @ shares).sum()))


def distance(split: OriginFlows, x: Vector) -> float:
    """The least difference, as a part of the total demand, from x to flows that route it."""
    if not split.count:
        return float(np.abs(x).sum())
    return nearby_flows(split, x, np.zeros(split.count), 1.0).difference


def routes_of(
    graph: RoadGraph, split: OriginFlows, x: Vector, metric: Vector, tolerance: float
) -> PathFlows:
    """Paths that add up to x, but for its circulations; see `TrafficFlows.path_flows`."""
    if not split.count:
        _refuse_far(split, x, tolerance)
        return PathFlows([], x.copy())
    nearby = nearby_flows(split, x, _turning_back(graph, split, metric), EXACT)
    if nearby.difference > tolerance:
        _refuse_far(split, x, tolerance)
    paths = _paths(split, nearby.shares, shortest_routes(graph, metric))
    return PathFlows(paths, x - PathFlows(paths, np.zeros(x.size)).link_flows)


def _paths(split: OriginFlows, shares: Vector, shortest: PathFlows) -> list[PathFlow]:
    """The paths of each pair with demand; their flows add up to it."""
    trips, paths = split.trips, []
    for row, origin in enumerate(trips.origins.tolist()):
        mine = np.flatnonzero((split.rows == row) & (shares > ABSENT))
        peeling = _Peeling(trips, dict(zip(split.arcs[mine].tolist(), shares[mine].tolist())))
        for pair in range(trips.starts[row], trips.starts[row + 1]):
            wanted = float(trips.quantities[pair])
            share = wanted / float(trips.leaving[row])
            found = peeling.paths(origin, int(trips.destinations[pair]), share)
            # Shares too small for the solver to see take the shortest way.
            found = found or [(share, list(shortest[pair].arcs))]
            total = sum(part for part, _ in found)
            paths += [path_flow(trips, pair, wanted * part / total, arcs) for part, arcs in found]
    return paths


class _Peeling:
    """One origin's shares on arcs, from which paths are taken off."""

    def __init__(self, trips: Trips, shares: dict[int, float]) -> None:
        self._tails = {arc: int(trips.tails[arc]) for arc in shares}
        self._heads = {arc: int(trips.heads[arc]) for arc in shares}
        self._left = shares
        self._into: dict[int, list[int]] = {}
        for arc, head in self._heads.items():
            self._into.setdefault(head, []).append(arc)

    def paths(self, origin: int, destination: int, share: float) -> list[tuple[float, list[int]]]:
        """Paths (share, arcs) that bring a share of the demand to its destination."""
        found = []
        while share > ABSENT:
            arcs = self._path(origin, destination)
            if arcs is None:
                break
            part = min(share, *(self._left[arc] for arc in arcs))
            for arc in arcs:
                self._left[arc] -= part
            share -= part
            found.append((part, arcs))
        return found

    def _path(self, origin: int, destination: int) -> list[int] | None:
        """The arcs of a path with something left on each, searched back from the destination."""
        leads_on: dict[int, int] = {destination: -1}
        queue = deque([destination])
        while queue and origin not in leads_on:
            node = queue.popleft()
            for arc in self._into.get(node, ()):
                tail = self._tails[arc]
                if tail not in leads_on and self._left[arc] > ABSENT:
                    leads_on[tail] = arc
                    queue.append(tail)
        if origin not in leads_on:
            return None
        arcs, node = [], origin
        while node != destination:
            arcs.append(leads_on[node])
            node = self._heads[arcs[-1]]
        return arcs


def _turning_back(graph: RoadGraph, split: OriginFlows, metric: Vector) -> Vector:
    """How far each flow (K,) leads back towards its origin, as a cost of its share."""
    trips = split.trips
    matrix = graph.matrix(graph.weights(metric))
    away = dijkstra(matrix, indices=graph.sources)
    away = np.where(np.isfinite(away), away, 0.0)
    tails, heads = graph.departure[trips.tails[split.arcs]], trips.heads[split.arcs]
    back = np.maximum(away[split.rows, tails] - away[split.rows, heads], 0.0)
    return back / (away.max() or 1.0) * (trips.leaving / trips.total)[split.rows]


def _refuse_far(split: OriginFlows, x: Vector, tolerance: float) -> None:
    """Raise ValueError if x is farther than `tolerance` from flows that route the demand."""
    apart, total = distance(split, x), split.trips.total
    if apart > tolerance:
        raise ValueError(
            f"x does not route the demand of the network: flows that do differ from it by "
            f"{apart * (total or 1.0):.4g} or more in all (the demand is "
            f"{total:.10g}); give link flows of this set, or a larger tolerance."
        )
