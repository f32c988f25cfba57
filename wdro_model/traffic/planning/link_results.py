"""The results of an assignment, arc by arc."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wdro_model.display.html_tables import Column
from wdro_model.evaluation.tables import Tabular
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
    >>> import wdro_model as wdro
    >>> network = wdro.datasets.sioux_falls()
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

    def _shown(self) -> list[dict[str, Any]]:
        rows = sorted(self.rows(), key=lambda row: -row["v/c"])[:SHOWN]
        return [row | {"tail": str(row["tail"]), "head": str(row["head"])} for row in rows]

    def _under_table(self) -> list[str]:
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
    >>> import wdro_model as wdro
    >>> network = wdro.datasets.sioux_falls()
    >>> flow, _ = wdro.traffic.equilibrium(network)
    >>> results = wdro.traffic.link_results(network, flow)
    >>> print(str(results).splitlines()[-2])
    60 of 76 links are over capacity, at most 2.56 times
    """
    return LinkResults(network, as_flow(flow, network, one=True))
