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
from wdro_model.traffic.flows.road_graph import LABELS_AT_ONCE, RoadGraph, Trips
from wdro_model.traffic.network import Network, as_flow

SHOWN = 12
"""Arcs that are printed, the most loaded first; a frame or a file has them all."""
COLUMNS = (
    Column("link", "the arc, as its position in the flow"),
    Column("tail", "where it begins", word=True),
    Column("head", "where it ends", word=True),
    Column("volume", "the flow on it"),
    Column("capacity", "the flow at which it takes 1 + b times its free-flow time"),
    Column("v/c", "volume over capacity", form=".3f"),
    Column("free_flow_time", "its time when it is empty"),
    Column("time", "its time at this volume"),
    Column("delay", "what the volume adds to the time of each trip"),
    Column("total_delay", "what the volume adds to the times of all its trips"),
    Column("cost", "time and fixed cost, which drivers choose by"),
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
        """(A,) what the volume adds to the time of each trip."""
        return self.time - self.network.free_flow_time

    @property
    def volume_over_capacity(self) -> np.ndarray:
        """(A,) V/C."""
        return self.volume / self.network.capacity

    @property
    def columns(self) -> Sequence[Column]:
        return COLUMNS

    @property
    def title(self) -> str:
        return f"{self.network.name}: the {min(SHOWN, self.network.n_arcs)} most loaded links"

    def rows(self) -> list[dict[str, Any]]:
        network, time = self.network, self.time
        numbers = {
            "volume": self.volume,
            "capacity": network.capacity,
            "v/c": self.volume_over_capacity,
            "free_flow_time": network.free_flow_time,
            "time": time,
            "delay": self.delay,
            "total_delay": self.delay * self.volume,
            "cost": time + network.fixed_cost,
        }
        lists = {key: values.tolist() for key, values in numbers.items()}
        return [
            {"link": a, "tail": tail, "head": head, **{key: lists[key][a] for key in lists}}
            for a, (tail, head) in enumerate(network.arcs)
        ]

    def _printed_rows(self) -> list[dict[str, Any]]:
        rows = sorted(self.rows(), key=lambda row: -row["v/c"])[:SHOWN]
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


# ------------------------------
# Select-link: the trips behind a link, by pair of zones and on the whole network


SELECT_LINK_COLUMNS = (
    Column("origin", "where the trips start", word=True),
    Column("destination", "where they end", word=True),
    Column("trips", "those that use the link"),
    Column("share", "of all trips between the two", form=".1%"),
)


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
        """How many trips use the link."""
        return float(sum(path.flow for path in self.paths))

    @property
    def flow(self) -> np.ndarray:
        """(A,) the flow of the selected trips on all links."""
        return self.paths.link_flows

    @property
    def columns(self) -> Sequence[Column]:
        return SELECT_LINK_COLUMNS

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
        rows = self.rows()[:SHOWN]
        return [
            r | {"origin": str(r["origin"]), "destination": str(r["destination"])} for r in rows
        ]

    def _footnotes(self) -> list[str]:
        left = len(self.rows()) - SHOWN
        return [f"and {left} more pairs of zones"] if left > 0 else []

    def __repr__(self) -> str:
        tail, head = self.network.arcs[self.arc]
        return f"SelectedTrips({self.total:.6g} trips over {tail!r} -> {head!r})"


def select_link(network: Network, flow: Any, arc: Any) -> SelectedTrips:
    """The trips behind a link: where they come from, where they go, and which way.

    Parameters
    ----------
    flow
        Path flows (`TrafficFlows.path_flows`, `shortest_paths`), an assignment, or link flows
        (A,), which are first taken apart: paths are not unique, and those nearest to shortest
        paths at the flow's travel times are taken.
    arc
        The link, as its position or as a pair of names (tail, head).

    Examples
    --------
    >>> flow, _ = wdro.traffic.equilibrium(network, gap=1e-4)
    >>> selected = wdro.traffic.select_link(network, flow, (10, 16))
    >>> bool(abs(selected.total - flow[selected.arc]) < 1.0)
    True
    """
    chosen = _arc(network, arc)
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
    ends = {(path.origin, path.destination) for path in over}
    demand = dict.fromkeys(ends, 0.0)
    for path in paths:
        if (path.origin, path.destination) in ends:
            demand[path.origin, path.destination] += path.flow
    return SelectedTrips(network, chosen, PathFlows(over, np.zeros(network.n_arcs)), demand)


def _arc(network: Network, given: Any) -> int:
    """The position of a link."""
    if isinstance(given, int | np.integer) and not isinstance(given, bool):
        if 0 <= given < network.n_arcs:
            return int(given)
        raise ValueError(f"links are numbered from 0 to {network.n_arcs - 1}, got {given}.")
    try:
        tail, head = given
    except (TypeError, ValueError):
        raise ValueError(f"a link is its position, or (tail, head), got {given!r}.") from None
    found = [a for a, ends in enumerate(network.arcs) if ends == (tail, head)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(
            f"the links {', '.join(map(str, found))} all lead from {tail!r} to {head!r}; give "
            "one of these positions."
        )
    named = [ends for ends in network.arcs if list(map(str, ends)) == [str(tail), str(head)]]
    hint = f"; there is {named[0]!r}, of another type" if named else ""
    raise ValueError(f"no link leads from {tail!r} to {head!r} in {network!r}{hint}.")


# ------------------------------
# Skims: what trips between zones meet along their cheapest paths


Array = np.ndarray
COST = "cost"


@dataclass(frozen=True, eq=False, repr=False)
class Skims(Mapping[str, Array]):
    """Matrices (Z, Z) by name: what a trip from each zone to each other meets on its way.

    0 within a zone, inf where no route leads. Made by `skim`.

    Examples
    --------
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
    return checks.real_array(name, given, (network.n_arcs,), hint="one number for each link")


def marginal_tolls(network: Network, flow: ArrayLike) -> np.ndarray:
    """What one more trip on each link costs the others, x t'(x), in units of time (A,).

    Charged at the social optimum, as fixed costs, they make it an equilibrium (Pigou): drivers then
    pay what their trip costs all. With a value of time v, the tolls in money are v times these.

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
