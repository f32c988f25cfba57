"""Traffic told apart by pair of zones and path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, overload

import numpy as np
from scipy.sparse.csgraph import dijkstra

from wdro_model.sets.backends import Vector
from wdro_model.traffic.flows.road_graph import RoadGraph
from wdro_model.traffic.flows.trips import Trips


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
        part = float(share)
        if not 0.0 <= part < np.inf:
            raise ValueError(f"the share of path flows must be finite and >= 0, got {share}.")
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
