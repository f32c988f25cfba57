"""Networks from and to pandas frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from wdro_model.errors import unknown_name
from wdro_model.traffic.frames.column_table import check_columns, table_of
from wdro_model.traffic.frames.network_tables import (
    demand_columns,
    link_columns,
    network_fields,
    node_columns,
)

FrameNames = Literal["gmns", "aequilibrae"]
NAMES: dict[str, dict[str, str]] = {
    "gmns": {"tail": "from_node_id", "head": "to_node_id"},
    "aequilibrae": {"tail": "a_node", "head": "b_node"},
}


class NetworkFrames(NamedTuple):
    """A network as three pandas frames: links, demand, nodes.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> links, demand, nodes = wdro.datasets.sioux_falls().to_frames()
    >>> len(links), len(demand), len(nodes)
    (76, 528, 24)
    """

    links: Any
    """One row for each arc."""
    demand: Any
    """One row for each pair of zones with trips: origin, destination (names of nodes), trips."""
    nodes: Any
    """One row for each node: its name, its coordinates, its zone, may it be passed."""


def fields_of_frames(
    links: Any,
    demand: Any,
    nodes: Any,
    columns: Mapping[str, str] | None,
    toll_weight: float,
    length_weight: float,
) -> dict[str, Any]:
    """The fields of a network; see `Network.from_frames`."""
    given = check_columns(columns)
    return network_fields(
        table_of(links, "links", given["links"]),
        table_of(demand, "demand", given["demand"]),
        None if nodes is None else table_of(nodes, "nodes", given["nodes"]),
        float(toll_weight),
        float(length_weight),
    )


def frames_of(network: Any, names: FrameNames) -> NetworkFrames:
    """The frames of a network; see `Network.to_frames`."""
    if names not in NAMES:
        raise ValueError(unknown_name("names of columns", names, list(NAMES)))
    pd = pandas("to_frames()")
    links = pd.DataFrame(link_columns(network, NAMES[names]))
    if names == "aequilibrae":
        links.insert(3, "direction", 1)
    trips = demand_columns(network)
    ends = [network.nodes[z] for z in network.zones]
    trips |= {end: [ends[z] for z in trips[end]] for end in ("origin", "destination")}
    nodes = node_columns(network)
    zones = pd.array(nodes["zone_id"], dtype="Int64")
    return NetworkFrames(links, pd.DataFrame(trips), pd.DataFrame(nodes | {"zone_id": zones}))


def pandas(what: str) -> Any:
    """The package, or an error that says what needs it."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(
            f"{what} needs pandas: pip install pandas, or pip install 'wdro_model[plot]'."
        ) from error
    return pd
