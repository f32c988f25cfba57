"""Who travels where: the arcs and the demand of a road network, checked and compact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

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
