"""Link flows taken apart: into flows by origin (a linear program), then into paths."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog
from scipy.sparse.csgraph import dijkstra

from wdro_model.sets.backends import Vector
from wdro_model.traffic.flows.origin_flows import OriginFlows, refuse_large
from wdro_model.traffic.flows.path_flows import PathFlow, PathFlows, path_flow, shortest_routes
from wdro_model.traffic.flows.road_graph import RoadGraph
from wdro_model.traffic.flows.trips import Trips

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
    refuse_large(
        split,
        "taking a link flow apart",
        "keep the weights of the assignments that were mixed and add up their shortest_paths",
    )
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
