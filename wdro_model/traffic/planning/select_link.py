"""Select-link: the trips behind a link, by pair of zones and on the whole network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.display.html_tables import Column
from wdro_model.evaluation.tables import Tabular
from wdro_model.traffic.flows import TrafficFlows
from wdro_model.traffic.flows.path_flows import PathFlows
from wdro_model.traffic.network import Network, as_flow

SHOWN = 12
"""Pairs that are printed, the largest first."""
COLUMNS = (
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
    >>> import wdro_model as wdro
    >>> network = wdro.datasets.sioux_falls()
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
        return COLUMNS

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

    def _shown(self) -> list[dict[str, Any]]:
        rows = self.rows()[:SHOWN]
        return [
            r | {"origin": str(r["origin"]), "destination": str(r["destination"])} for r in rows
        ]

    def _under_table(self) -> list[str]:
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
    >>> import wdro_model as wdro
    >>> network = wdro.datasets.sioux_falls()
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
