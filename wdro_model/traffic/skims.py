"""Results of an assignment: link tables, skims, select-link analysis, tolls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse.csgraph import dijkstra

from wdro_model import checks
from wdro_model.display.tables import Column, Tabular
from wdro_model.traffic.fields import NONNEGATIVE, check_rule
from wdro_model.traffic.files.frames import pandas
from wdro_model.traffic.flows import TrafficFlows
from wdro_model.traffic.flows.paths import PathFlows
from wdro_model.traffic.flows.road_graph import RoadGraph, Trips, parent_labels
from wdro_model.traffic.network import Network, as_flow

Array = np.ndarray
PRINTED_ROWS = 12
"""The rows that a table prints; a frame or a file has them all."""
COST = "cost"
LINK_COLUMNS = (
    Column("link", "the arc, as its position in the flow"),
    Column("tail", "where it begins", word=True),
    Column("head", "where it ends", word=True),
    Column("volume", "the flow on it"),
    Column("capacity", "the flow at which it takes 1 + b times its free-flow time"),
    Column("v/c", "volume over capacity", form=".3f"),
    Column("free_flow_time", "its time when it is empty"),
    Column("time", "its time at this volume"),
    Column("delay", "the additional time of each trip because of the volume"),
    Column("total_delay", "the additional time of all trips on it"),
    Column("cost", "time and fixed cost, which drivers choose by"),
)
PAIR_COLUMNS = (
    Column("origin", "where the trips start", word=True),
    Column("destination", "where they end", word=True),
    Column("trips", "the trips that use the link"),
    Column("share", "their share of all trips between the two zones", form=".1%"),
)


@dataclass(frozen=True, eq=False, repr=False)
class LinkResults(Tabular):
    """A flow on a network as a table, one row for each arc; made by `link_results`.

    Examples
    --------
    >>> results = wdro.traffic.link_results(network, wdro.traffic.equilibrium(network).flow)
    >>> results.to_frame().loc[0, ["tail", "head", "free_flow_time"]].tolist()
    [1.0, 2.0, 6.0]
    """

    network: Network
    volume: np.ndarray
    """(A,) the flow."""

    @property
    def time(self) -> np.ndarray:
        """(A,) the travel time of each arc, without its fixed cost."""
        return self.network.travel_time(self.volume) - self.network.fixed_cost

    @property
    def delay(self) -> np.ndarray:
        """(A,) the additional time of each trip because of the volume."""
        return self.time - self.network.free_flow_time

    @property
    def volume_over_capacity(self) -> np.ndarray:
        """(A,) V/C."""
        return self.volume / self.network.capacity

    @property
    def columns(self) -> Sequence[Column]:
        return LINK_COLUMNS

    @property
    def title(self) -> str:
        return (
            f"{self.network.name}: the {min(PRINTED_ROWS, self.network.n_arcs)} most loaded links"
        )

    def rows(self) -> list[dict[str, Any]]:
        network, time = self.network, self.time
        columns = (
            range(network.n_arcs),
            *zip(*network.arcs),
            self.volume.tolist(),
            network.capacity.tolist(),
            self.volume_over_capacity.tolist(),
            network.free_flow_time.tolist(),
            time.tolist(),
            self.delay.tolist(),
            (self.delay * self.volume).tolist(),
            (time + network.fixed_cost).tolist(),
        )
        keys = [column.key for column in LINK_COLUMNS]
        return [dict(zip(keys, row)) for row in zip(*columns)]

    def _printed_rows(self) -> list[dict[str, Any]]:
        rows = sorted(self.rows(), key=lambda row: -row["v/c"])[:PRINTED_ROWS]
        return [row | {"tail": str(row["tail"]), "head": str(row["head"])} for row in rows]

    def _footnotes(self) -> list[str]:
        network, volume = self.network, self.volume
        over = int(np.sum(self.volume_over_capacity > 1.0))
        spent, delay = float(self.time @ volume), float(self.delay @ volume)
        share = delay / spent if spent else 0.0
        said = [
            f"{over} of {network.n_arcs} links are over capacity, at most "
            f"{self.volume_over_capacity.max():.3g} times",
            f"all trips together take {spent:.6g}, of which {delay:.6g} ({share:.1%}) is delay",
        ]
        charged = float(network.fixed_cost @ volume)
        return [*said, f"their fixed costs are {charged:.6g}"] if charged else said

    def __repr__(self) -> str:
        return f"LinkResults({self.network.name!r}: {self.network.n_arcs} links)"


def link_results(network: Network, flow: ArrayLike) -> LinkResults:
    """A flow as a table: volume, time, V/C and delay of each link.

    It prints its most loaded links; `to_frame()` and `to_csv(path)` have all of them, in order.

    Examples
    --------
    >>> flow, _ = wdro.traffic.equilibrium(network)
    >>> results = wdro.traffic.link_results(network, flow)
    >>> print(str(results).splitlines()[-2])
    60 of 76 links are over capacity, at most 2.56 times
    """
    return LinkResults(network, as_flow(flow, network, one=True))


# ------------------------------------------------------------------ select-link
@dataclass(frozen=True, eq=False, repr=False)
class SelectedTrips(Tabular):
    """The trips that use a link, as a table of pairs of zones; made by `select_link`.

    Examples
    --------
    >>> paths = wdro.sets.TrafficFlows(network).shortest_paths(network.free_flow_time)
    >>> selected = wdro.traffic.select_link(network, paths, (1, 2))
    >>> selected.arc, selected.total
    (0, 3800.0)
    """

    network: Network
    arc: int
    paths: PathFlows
    """The paths over the link, with their trips."""
    demand: dict[tuple[Any, Any], float]
    """All trips between the zones of the selected ones."""

    @property
    def total(self) -> float:
        """The number of trips that use the link."""
        return float(sum(path.flow for path in self.paths))

    @property
    def flow(self) -> np.ndarray:
        """(A,) the flow of the selected trips on all links."""
        return self.paths.link_flows

    @property
    def columns(self) -> Sequence[Column]:
        return PAIR_COLUMNS

    @property
    def title(self) -> str:
        tail, head = self.network.arcs[self.arc]
        return f"{self.total:.6g} trips use link {self.arc}, {tail} -> {head}"

    def rows(self) -> list[dict[str, Any]]:
        pairs: dict[tuple[Any, Any], float] = {}
        for path in self.paths:
            ends = (path.origin, path.destination)
            pairs[ends] = pairs.get(ends, 0.0) + path.flow
        return [
            {"origin": o, "destination": d, "trips": trips, "share": trips / self.demand[o, d]}
            for (o, d), trips in sorted(pairs.items(), key=lambda item: -item[1])
        ]

    def _printed_rows(self) -> list[dict[str, Any]]:
        rows = self.rows()[:PRINTED_ROWS]
        return [
            r | {"origin": str(r["origin"]), "destination": str(r["destination"])} for r in rows
        ]

    def _footnotes(self) -> list[str]:
        left = len(self.rows()) - PRINTED_ROWS
        return [f"and {left} more pairs of zones"] if left > 0 else []

    def __repr__(self) -> str:
        tail, head = self.network.arcs[self.arc]
        return f"SelectedTrips({self.total:.6g} trips over {tail!r} -> {head!r})"


def select_link(network: Network, flow: Any, arc: Any) -> SelectedTrips:
    """The trips on a link: their origins, destinations and paths.

    Parameters
    ----------
    flow
        Path flows (`TrafficFlows.path_flows`, `shortest_paths`), an assignment, or link flows
        (A,), which are first decomposed into paths: these are not unique, and as near as possible
        to shortest paths at the travel times of the flow.
    arc
        The link, as its position or as a pair of names (tail, head).

    Examples
    --------
    >>> flow, _ = wdro.traffic.equilibrium(network, gap=1e-4)
    >>> selected = wdro.traffic.select_link(network, flow, (10, 16))
    >>> bool(abs(selected.total - flow[selected.arc]) < 1.0)
    True
    """
    chosen = _arc_position(network, arc)
    if getattr(flow, "bushes", None) is not None:
        flow = flow.path_flows()
    if isinstance(flow, PathFlows):
        paths = flow
        if paths.remainder.size != network.n_arcs:
            raise ValueError(
                f"the path flows are on {paths.remainder.size} links, {network!r} has others."
            )
    else:
        link_flow = as_flow(flow, network, one=True)
        times = np.maximum(network.travel_time(link_flow), 0.0)
        paths = TrafficFlows(network).path_flows(link_flow, times)
    over = [path for path in paths if chosen in path.arcs]
    demand = {(path.origin, path.destination): 0.0 for path in over}
    for path in paths:
        if (path.origin, path.destination) in demand:
            demand[path.origin, path.destination] += path.flow
    return SelectedTrips(network, chosen, PathFlows(over, np.zeros(network.n_arcs)), demand)


def _arc_position(network: Network, given: Any) -> int:
    """The position of a link."""
    if isinstance(given, int | np.integer) and not isinstance(given, bool):
        if 0 <= given < network.n_arcs:
            return int(given)
        raise ValueError(f"links are numbered from 0 to {network.n_arcs - 1}, got {given}.")
    try:
        tail, head = given
    except (TypeError, ValueError):
        raise ValueError(f"a link is its position, or (tail, head), got {given!r}.") from None
    positions = [a for a, ends in enumerate(network.arcs) if ends == (tail, head)]
    if len(positions) == 1:
        return positions[0]
    if positions:
        raise ValueError(
            f"the links {', '.join(map(str, positions))} all lead from {tail!r} to {head!r}; give "
            "one of these positions."
        )
    named = [ends for ends in network.arcs if list(map(str, ends)) == [str(tail), str(head)]]
    hint = f"; there is {named[0]!r}, of another type" if named else ""
    raise ValueError(f"no link leads from {tail!r} to {head!r} in {network!r}{hint}.")


# ------------------------------------------------------------------ skims and tolls
@dataclass(frozen=True, eq=False, repr=False)
class Skims(Mapping[str, Array]):
    """Matrices (Z, Z) by name: the cost, time, length ... of a trip between each pair of zones.

    0 within a zone, inf where no route leads. Made by `skim`.

    Examples
    --------
    >>> wdro.traffic.skim(network, network.free_flow_time)["cost"][0, 1]
    np.float64(6.0)
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
        """A pandas DataFrame with a row for each pair of different zones."""
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
    """Sums along the paths of least cost between all pairs of zones.

    Parameters
    ----------
    cost
        (A,) >= 0, the cost by which drivers choose their path: `network.travel_time(flow)` for the
        times of an assignment.
    along
        {name: (A,)}: other quantities of the links, such as lengths and tolls, that are added up
        along the same paths.

    Examples
    --------
    >>> flow, _ = wdro.traffic.equilibrium(network)
    >>> skims = wdro.traffic.skim(network, network.travel_time(flow), {"links": np.ones(76)})
    >>> round(float(skims["cost"][0, 12]), 2), float(skims["links"][0, 12])
    (11.05, 3.0)
    """
    weights = _per_arc(network, cost, COST)
    check_rule(COST, weights, NONNEGATIVE)
    if along is not None and not isinstance(along, Mapping):
        raise ValueError(
            f'along must be a dict of quantities by name, such as {{"length": lengths}}, got '
            f"{type(along).__name__}."
        )
    others = {str(name): _per_arc(network, values, name) for name, values in (along or {}).items()}
    if COST in others:
        raise ValueError(f"along={{{COST!r}: ...}} would hide the cost itself: use another name.")
    trips = Trips.from_network(network)
    graph, zones = RoadGraph(trips), trips.zones
    arc_of, matrix = graph.cheapest(weights), graph.matrix(graph.weights(weights))
    matrices = {name: np.full((zones.size, zones.size), np.inf) for name in (COST, *others)}
    for part in graph.chunks(zones.size):
        sources = graph.departure[zones[part]]
        least, before = dijkstra(matrix, indices=sources, return_predecessors=True)
        matrices[COST][part] = least[:, zones]
        for name, values in others.items():
            sums = _sum_along_trees(graph, before, values[arc_of])[:, zones]
            matrices[name][part] = np.where(np.isfinite(least[:, zones]), sums, np.inf)
    for table in matrices.values():
        table[zones[:, None] == zones] = 0.0
    return Skims(tuple(network.nodes[z] for z in zones), matrices)


def _sum_along_trees(graph: RoadGraph, before: Array, entries: Array) -> Array:
    """Sums of the values of entries (E,) along predecessor trees (rows, N), by pointer doubling."""
    nodes = np.broadcast_to(np.arange(graph.size), before.shape)
    reached = before >= 0
    last_step = np.zeros(before.shape)
    last_step[reached] = entries[graph.entry(before[reached], nodes[reached])]
    sums, parent = np.append(last_step.ravel(), 0.0), parent_labels(before)
    while parent.min() < before.size:
        sums += sums[parent]
        parent = parent[parent]
    return sums[:-1].reshape(before.shape)


def _per_arc(network: Network, given: Any, name: str) -> Array:
    return checks.real_array(name, given, (network.n_arcs,), hint="one number for each link")


def marginal_tolls(network: Network, flow: ArrayLike) -> np.ndarray:
    """The cost x t'(x) of one more trip on each link to the other trips, in units of time (A,).

    Charged at the social optimum, as fixed costs, they make it an equilibrium (Pigou): drivers then
    pay the cost of their trip to all. With a value of time v, the tolls in money are v times these.

    Examples
    --------
    >>> best, _ = wdro.traffic.social_optimum(network)
    >>> tolls = wdro.traffic.marginal_tolls(network, best)
    >>> tolled = network.replace(fixed_cost=network.fixed_cost + tolls)
    >>> settled, _ = wdro.traffic.equilibrium(tolled)
    >>> abs(network.total_cost(settled) / network.total_cost(best) - 1) < 1e-4
    True
    """
    x = as_flow(flow, network, one=True)
    rising = network.b * network.power * (x / network.capacity) ** network.power
    return network.free_flow_time * rising
