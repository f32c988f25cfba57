"""Which nodes and zones a pair of files means by its numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdro_model.traffic.network import Network
from wdro_model.traffic.tntp.links import Links
from wdro_model.traffic.tntp.text import Document
from wdro_model.traffic.tntp.trips import Trips

NODES, ZONES, FIRST = "NUMBER OF NODES", "NUMBER OF ZONES", "FIRST THRU NODE"


@dataclass(frozen=True)
class Numbering:
    """The numbers of the nodes and of the zones, each ascending, and who may be passed."""

    nodes: tuple[int, ...]
    zones: tuple[int, ...]
    through: np.ndarray
    repairs: tuple[str, ...]


def number(net: Document, links: Links, trips_file: Document, trips: Trips) -> Numbering:
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
    trips: Trips,
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


def renumbered(network: Network) -> Network:
    """The network with nodes 1..n as TNTP wants them: zones first, then those not passed, first.

    Arcs keep their order, so flows mean the same; zones are sorted, and demands with them.
    """
    is_zone = np.zeros(network.n_nodes, dtype=bool)
    is_zone[network.zones] = True
    order = np.lexsort((np.arange(network.n_nodes), network.through, ~is_zone))
    place = np.empty(network.n_nodes, dtype=np.int64)
    place[order] = np.arange(network.n_nodes)
    zones = np.argsort(place[network.zones])
    return network.replace(
        tails=place[network.tails],
        heads=place[network.heads],
        demand=network.demand[np.ix_(zones, zones)],
        zones=np.arange(network.n_zones),
        through=network.through[order],
        nodes=tuple(range(1, network.n_nodes + 1)),
        positions=None if network.positions is None else network.positions[order],
    )
