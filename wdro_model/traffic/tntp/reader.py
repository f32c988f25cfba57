"""Networks from the files of the Transportation Networks for Research collection (TNTP)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wdro_model.traffic.demand_matrix import demand_of
from wdro_model.traffic.network import Network
from wdro_model.traffic.tntp.demands import Demands, read_trips
from wdro_model.traffic.tntp.links import Links, read_links
from wdro_model.traffic.tntp.text import Document, is_number, read_document

MANY, ISOLATED = 1000, 10
"""A count of nodes is believed up to 1000 more than ten times those that have a link."""
NODES, ZONES, FIRST = "NUMBER OF NODES", "NUMBER OF ZONES", "FIRST THRU NODE"


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

    Parameters
    ----------
    toll_weight, length_weight
        The fixed cost of an arc is toll_weight * toll +
        length_weight * length. The files do not carry the weights; they are in the notes published
        with a network. Chicago Sketch is published with 0.02 and 0.04: without them it is read as
        another problem, with other equilibria.

    Examples
    --------
    >>> import os, tempfile, wdro_model as wdro
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     net, trips = os.path.join(folder, "net.tntp"), os.path.join(folder, "trips.tntp")
    ...     wdro.traffic.write_tntp(wdro.datasets.sioux_falls(), net, trips)
    ...     network = wdro.traffic.read_tntp(net, trips)
    >>> network.n_arcs, network.repairs
    (76, ())
    """
    weights = {"toll": float(toll_weight), "length": float(length_weight)}
    needed = tuple(name for name, weight in weights.items() if weight != 0)
    net_file, trips_file = read_document(net), read_document(trips)
    links = read_links(net_file, needed)
    table = read_trips(trips_file)
    numbering = _number(net_file, links, trips_file, table)
    index = {node: i for i, node in enumerate(numbering.nodes)}
    zone_index = {zone: z for z, zone in enumerate(numbering.zones)}
    demand = demand_of(
        (
            (zone_index[origin], zone_index[zone], trips)
            for origin, row in table.demand.items()
            for zone, trips in row.items()
        ),
        len(zone_index),
    )
    fixed = np.zeros(len(links.tails))
    for name in needed:
        fixed += weights[name] * links.values[name]
    repairs = net_file.repairs + links.repairs + trips_file.repairs + table.repairs
    repairs += numbering.repairs
    positions = None
    if nodes is not None:
        positions, unplaced = _positions(read_document(nodes, metadata=False), index)
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


# ------------------------------------------------------------------ nodes and zones
@dataclass(frozen=True)
class Numbering:
    """The numbers of the nodes and of the zones, each ascending, and who may be passed."""

    nodes: tuple[int, ...]
    zones: tuple[int, ...]
    through: np.ndarray
    repairs: tuple[str, ...]


def _number(net: Document, links: Links, trips_file: Document, trips: Demands) -> Numbering:
    """Nodes are 1..n and zones 1..Z as declared; else they are those that the files mention."""
    notes: list[str] = []
    nodes = _nodes(net, links, notes)
    zones = _zones(net, trips_file, trips, nodes, notes)
    through = _through(net, nodes, zones, notes)
    return Numbering(nodes, zones, through, tuple(f"{net.file}: {note}" for note in notes))


def _nodes(net: Document, links: Links, notes: list[str]) -> tuple[int, ...]:
    declared, found = net.count(NODES), sorted(links.mentioned)
    if declared is None:
        notes.append(f"<{NODES}> is not given; took the {len(found)} nodes of the links")
        return tuple(found)
    if found[0] >= 1 and found[-1] <= declared:
        if declared > MANY + ISOLATED * len(found):
            raise net.error(
                net.metadata[NODES][1],
                f"<{NODES}>",
                f"declares {declared} nodes, and the links mention {len(found)} of them: the count "
                "is wrong, or the file is cut off.",
            )
        return tuple(range(1, declared + 1))
    if len(found) > declared:
        raise net.error(
            net.metadata[NODES][1],
            f"<{NODES}>",
            f"declares {declared} nodes, the links mention {len(found)}, among them {found[-1]}.",
        )
    notes.append(
        f"nodes are not numbered 1 to {declared}; took the {len(found)} numbers of the links, "
        f"{found[0]} to {found[-1]}, as names"
    )
    return tuple(found)


def _zones(
    net: Document,
    trips_file: Document,
    trips: Demands,
    nodes: tuple[int, ...],
    notes: list[str],
) -> tuple[int, ...]:
    counts = [document.count(ZONES) for document in (net, trips_file)]
    known = [count for count in counts if count]
    count = max(known) if known else max(trips.lines, default=0)
    if len(known) < 2 or known[0] != known[1]:
        said = ["nothing" if c is None else str(c) for c in counts]
        notes.append(f"<{ZONES}> is {said[0]} in the net file and {said[1]} in the trips file")
    present = set(nodes)
    if present.issuperset(range(1, count + 1)):
        zones, why = tuple(range(1, count + 1)), f"the zones are 1 to {count}"
    else:
        zones, why = tuple(sorted(trips.lines)), "the links mention no such node"
        notes.append(f"zones are not numbered 1 to {count}; took those that the trips file names")
    unknown = (set(trips.lines) - set(zones)) | (set(zones) - present)
    if unknown:
        zone = min(unknown, key=trips.lines.__getitem__)
        raise trips_file.error(trips.lines[zone], f"zone {zone}", f"is not known: {why}.")
    return zones


def _through(
    net: Document, nodes: tuple[int, ...], zones: tuple[int, ...], notes: list[str]
) -> np.ndarray:
    """Nodes numbered below <FIRST THRU NODE> may not be passed."""
    first = net.count(FIRST)
    if first is None:
        notes.append(f"<{FIRST}> is not given; every node may be passed")
        return np.ones(len(nodes), dtype=bool)
    through = np.array(nodes) >= first
    counted = nodes == tuple(range(1, len(nodes) + 1))
    if not counted and not {node for node in nodes if node < first} <= set(zones):
        # The rule supposes that zones come first; numbers used as names need not obey it.
        notes.append(f"<{FIRST}> {first} would block nodes that are no zones; not applied")
        return np.ones(len(nodes), dtype=bool)
    return through


# ------------------------------------------------------------------ positions
def _positions(document: Document, index: Mapping[int, int]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Positions (n, 2) of the nodes, NaN where there is none; `index` numbers the nodes."""
    positions = np.full((len(index), 2), np.nan)
    found: set[int] = set()
    strangers = 0
    first = True
    for line, raw in document.body:
        fields = raw.partition("~")[0].partition(";")[0].replace(",", " ").split()
        if not fields:
            continue
        header, first = first and not is_number(fields[0]), False
        if header:
            continue
        if len(fields) < 3:
            raise document.error(line, "position", f"expected 'node x y', got {raw.strip()!r}.")
        node = document.identifier(fields[0], line, "node")
        place = [_coordinate(document, text, line, axis) for text, axis in zip(fields[1:3], "xy")]
        if node in index:
            positions[index[node]] = place
            found.add(node)
        else:
            strangers += 1
    repairs = []
    if strangers:
        repairs.append(f"{document.file}: left out {strangers} positions of unknown nodes")
    if len(found) < len(index):
        missing = len(index) - len(found)
        repairs.append(f"{document.file}: {missing} nodes have no position (NaN)")
    return positions, tuple(repairs)


def _coordinate(document: Document, text: str, line: int, axis: str) -> float:
    if text.lower() == "nan":
        return float("nan")
    value = document.number(text, line, axis)
    if np.isinf(value):
        raise document.error(line, axis, f"must be finite, got {text!r}.")
    return value
