"""Networks from the files of the Transportation Networks for Research collection (TNTP)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from wdro_model.traffic.network import Network
from wdro_model.traffic.tntp.links import read_links
from wdro_model.traffic.tntp.nodes import read_positions
from wdro_model.traffic.tntp.numbering import number
from wdro_model.traffic.tntp.text import read_document
from wdro_model.traffic.tntp.trips import read_trips


def read_tntp(
    net: Any,
    trips: Any,
    nodes: Any = None,
    *,
    toll_weight: float = 0.0,
    length_weight: float = 0.0,
) -> Network:
    """The network in a net file, a trips file and, for positions, a node file.

    Files are paths (.gz, and .zip with one file in it, are unpacked) or open text files. What could
    be repaired without guessing is told in `network.repairs`; what could not is a `TNTPError` that
    names file, line and field. A link of capacity 0 is closed, and removed as a repair.

    toll_weight, length_weight: the fixed cost of an arc is toll_weight * toll +
        length_weight * length. The files do not carry the weights; they are in the notes published
        with a network (Chicago Sketch: 0.02 and 0.04).
    """
    weights = {"toll": float(toll_weight), "length": float(length_weight)}
    needed = tuple(name for name, weight in weights.items() if weight != 0)
    net_file, trips_file = read_document(net), read_document(trips)
    links = read_links(net_file, needed)
    table = read_trips(trips_file)
    numbering = number(net_file, links, trips_file, table)
    index = {node: i for i, node in enumerate(numbering.nodes)}
    zone_index = {zone: z for z, zone in enumerate(numbering.zones)}
    demand = np.zeros((len(zone_index), len(zone_index)))
    for origin, row in table.demand.items():
        demand[zone_index[origin], [zone_index[zone] for zone in row]] = list(row.values())
    fixed = np.zeros(len(links.tails))
    for name in needed:
        fixed += weights[name] * links.values[name]
    repairs = net_file.repairs + links.repairs + trips_file.repairs + table.repairs
    repairs += numbering.repairs
    positions = None
    if nodes is not None:
        positions, unplaced = read_positions(read_document(nodes, metadata=False), index)
        repairs += unplaced
    return Network(
        tails=np.array([index[node] for node in links.tails.tolist()], dtype=np.int64),
        heads=np.array([index[node] for node in links.heads.tolist()], dtype=np.int64),
        **{field: links.values[field] for field in ("capacity", "free_flow_time", "b", "power")},
        demand=demand,
        fixed_cost=fixed,
        zones=np.array([index[zone] for zone in numbering.zones], dtype=np.int64),
        through=numbering.through,
        nodes=numbering.nodes,
        positions=positions,
        name=_network_name(net_file.file),
        repairs=repairs,
    )


def _network_name(file: str) -> str:
    """SiouxFalls of a path such as data/SiouxFalls_net.tntp."""
    name = re.sub(r"[ _-]net(work.*)?$", "", Path(file).name.split(".")[0], flags=re.IGNORECASE)
    return name if name and not name.startswith("<") else "network"
