"""Skims: what trips between zones meet along their cheapest paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse.csgraph import dijkstra

from wdro_model.traffic.demand_matrix import as_numbers
from wdro_model.traffic.flows.road_graph import LABELS_AT_ONCE, RoadGraph
from wdro_model.traffic.flows.trips import Trips
from wdro_model.traffic.frames.network_frames import pandas
from wdro_model.traffic.network import Network

Array = np.ndarray
COST = "cost"


@dataclass(frozen=True, eq=False, repr=False)
class Skims(Mapping[str, Array]):
    """Matrices (Z, Z) by name: what a trip from each zone to each other meets on its way.

    0 within a zone, inf where no route leads. Made by `skim`.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> network = wdro.datasets.sioux_falls()
    >>> skims = wdro.traffic.skim(network, network.free_flow_time)
    >>> skims["cost"].shape, float(skims["cost"][0, 1])
    ((24, 24), 6.0)
    """

    zones: tuple[Any, ...]
    """The names of the zones' nodes."""
    matrices: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.matrices[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.matrices)

    def __len__(self) -> int:
        return len(self.matrices)

    def to_frame(self) -> Any:
        """A pandas DataFrame with a row for each pair of different zones.

        Examples
        --------
        >>> import wdro_model as wdro
        >>> network = wdro.datasets.sioux_falls()
        >>> frame = wdro.traffic.skim(network, network.free_flow_time).to_frame()
        >>> len(frame), list(frame.columns)
        (552, ['origin', 'destination', 'cost'])
        """
        origins, destinations = np.nonzero(~np.eye(len(self.zones), dtype=bool))
        return pandas("to_frame()").DataFrame(
            {
                "origin": [self.zones[o] for o in origins],
                "destination": [self.zones[d] for d in destinations],
                **{name: matrix[origins, destinations] for name, matrix in self.matrices.items()},
            }
        )

    def __repr__(self) -> str:
        return f"Skims({len(self.zones)} zones: {', '.join(self.matrices)})"


def skim(network: Network, cost: ArrayLike, along: Mapping[str, ArrayLike] | None = None) -> Skims:
    """What trips between all pairs of zones meet along the paths of least cost.

    Parameters
    ----------
    cost
        (A,) >= 0, what drivers choose their path by: `network.travel_time(flow)` for the times of
        an assignment.
    along
        {name: (A,)}: other quantities of the links, such as lengths and tolls, to be added up
        along the same paths.

    Examples
    --------
    >>> import numpy as np, wdro_model as wdro
    >>> network = wdro.datasets.sioux_falls()
    >>> flow, _ = wdro.traffic.equilibrium(network)
    >>> skims = wdro.traffic.skim(network, network.travel_time(flow), {"links": np.ones(76)})
    >>> round(float(skims["cost"][0, 12]), 2), float(skims["links"][0, 12])
    (11.05, 3.0)
    """
    weights = _per_arc(network, cost, COST)
    wrong = ~(weights >= 0)
    if wrong.any():
        raise ValueError(f"cost must be >= 0, got {float(weights[int(np.argmax(wrong))])!r}.")
    if along is not None and not isinstance(along, Mapping):
        raise ValueError(
            f'along must be a dict of quantities by name, such as {{"length": lengths}}, got '
            f"{type(along).__name__}."
        )
    others = {str(name): _per_arc(network, values, name) for name, values in (along or {}).items()}
    if COST in others:
        raise ValueError(f"along={{{COST!r}: ...}} would hide the cost itself: use another name.")
    trips = Trips.of(network)
    graph, zones = RoadGraph(trips), trips.zones
    arc_of = graph.cheapest(weights)
    matrix = graph.matrix(graph.weights(weights))
    found = {name: np.full((zones.size, zones.size), np.inf) for name in (COST, *others)}
    step = max(1, LABELS_AT_ONCE // graph.size)
    for start in range(0, zones.size, step):
        part = slice(start, start + step)
        least, before = dijkstra(
            matrix, indices=graph.departure[zones[part]], return_predecessors=True
        )
        found[COST][part] = least[:, zones]
        reached = np.isfinite(least[:, zones])
        for name, values in others.items():
            added = _along_trees(graph, before, values[arc_of])[:, zones]
            found[name][part] = np.where(reached, added, np.inf)
    for table in found.values():
        table[zones[:, None] == zones] = 0.0
    return Skims(tuple(network.nodes[z] for z in zones), found)


def _along_trees(graph: RoadGraph, before: Array, entries: Array) -> Array:
    """Sums of the values of entries (E,) along predecessor trees (rows, N), by pointer doubling."""
    rows, size = before.shape
    nodes = np.broadcast_to(np.arange(size), before.shape)
    reached = before >= 0
    summed = np.zeros(rows * size + 1)
    summed[:-1].reshape(rows, size)[reached] = entries[graph.entry(before[reached], nodes[reached])]
    parent = np.full(rows * size + 1, rows * size)
    offsets = np.broadcast_to((np.arange(rows) * size)[:, None], before.shape)
    parent[:-1].reshape(rows, size)[reached] = before[reached] + offsets[reached]
    while parent.min() < rows * size:
        summed += summed[parent]
        parent = parent[parent]
    return summed[:-1].reshape(rows, size)


def _per_arc(network: Network, given: Any, name: str) -> Array:
    values = as_numbers(given, name)
    if values.shape != (network.n_arcs,) or not np.isfinite(values).all():
        raise ValueError(
            f"{name} must be finite numbers of shape ({network.n_arcs},), one for each link, got "
            f"shape {values.shape}."
        )
    return values
