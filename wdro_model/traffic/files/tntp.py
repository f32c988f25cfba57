"""Networks from the files of the Transportation Networks for Research collection (TNTP)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from wdro_model.traffic.files.columns import ColumnTable, as_number
from wdro_model.traffic.files.tables import read_arcs, read_demand, read_positions
from wdro_model.traffic.files.tntp_text import (
    Document,
    header_names,
    is_header,
    locate_columns,
    read_document,
)
from wdro_model.traffic.network import Network

ORIGIN = re.compile(r"\s*origin\b\s*:?\s*([^\s:;]*)(.*)", re.IGNORECASE | re.DOTALL)
TOTAL, LINKS = "TOTAL OD FLOW", "NUMBER OF LINKS"
NODES, ZONES, FIRST = "NUMBER OF NODES", "NUMBER OF ZONES", "FIRST THRU NODE"
TOTAL_TOLERANCE = 1e-5
"""Relative error of the declared total that is accepted: some files write six digits."""
MANY_NODES, NODES_PER_LINK_END = 1000, 10
"""A count of nodes is believed up to 1000 more than ten times those that have a link."""


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
    net_file, trips_file = read_document(net), read_document(trips)
    notes: list[str] = []
    links, (demand, named) = _read_links(net_file, notes), _read_trips(trips_file)
    arcs = read_arcs(links, {"toll": float(toll_weight), "length": float(length_weight)})
    names = _node_numbers(net_file, sorted({*links.names("tail"), *links.names("head")}), notes)
    zones = _zone_numbers(net_file, trips_file, named, names, notes)
    index = {node: i for i, node in enumerate(names)}
    matrix, added = read_demand(demand, {zone: z for z, zone in enumerate(zones)})
    through = _through(net_file, names, zones, notes)
    positions, unplaced = _read_positions(nodes, index)
    return Network(
        **arcs.fields(index),
        demand=matrix,
        zones=np.array([index[zone] for zone in zones], dtype=np.int64),
        through=through,
        nodes=names,
        positions=positions,
        name=_network_name(net_file.file),
        repairs=(
            *net_file.repairs,
            *(f"{net_file.file}: {note}" for note in (*arcs.repairs, *notes)),
            *trips_file.repairs,
            *(f"{trips_file.file}: {note}" for note in added),
            *unplaced,
        ),
    )


def _network_name(file: str) -> str:
    """SiouxFalls of a path such as data/SiouxFalls_net.tntp."""
    name = re.sub(r"[ _-]net(work.*)?$", "", Path(file).name.split(".")[0], flags=re.IGNORECASE)
    return name if name and not name.startswith("<") else "network"


# ------------------------------------------------------------------ links
def _read_links(document: Document, notes: list[str]) -> ColumnTable:
    """The links: one row each, fields between tabs or blanks, perhaps a semicolon."""
    header, rows = _rows(document)
    declared = document.count(LINKS)
    if declared is None:
        notes.append(f"<{LINKS}> is not given; took the {len(rows)} in the file")
    elif declared != len(rows):
        cut = "the file is cut off, or " if len(rows) < declared else ""
        raise document.error(
            document.last_line,
            f"<{LINKS}>",
            f"line {document.metadata[LINKS][1]} declares {declared} links, the file has "
            f"{len(rows)}: {cut}the count is wrong.",
        )
    if not rows:
        raise document.error(document.last_line, "links", "the file has no links.")
    width = Counter(len(text.split()) for _, text in rows).most_common(1)[0][0]
    closing_tab = Counter(_ends_with_tab(text) for _, text in rows).most_common(1)[0][0]
    position, repairs = locate_columns(header, width)
    notes[:0] = repairs
    cells = [_fields(document, line, text, width, closing_tab) for line, text in rows]
    lines = [line for line, _ in rows]
    columns = {name: [row[i] for row in cells] for name, i in position.items()}
    return _with_identifiers(document, document.table("links", columns, lines), "tail", "head")


def _rows(document: Document) -> tuple[list[str] | None, list[tuple[int, str]]]:
    """The header, if there is one, and the rows without comments and semicolons, by line."""
    header: list[str] | None = None
    rows: list[tuple[int, str]] = []
    for line, raw in document.body:
        text, _, comment = raw.partition("~")
        if header is None and not rows:
            header = next((header_names(h) for h in (comment, text) if is_header(h)), None)
            if header is not None:
                continue
        text = text.partition(";")[0].rstrip("\r\n")
        if text.strip():
            rows.append((line, text))
    return header, rows


def _ends_with_tab(text: str) -> bool:
    return text.rstrip(" ").endswith("\t")


def _fields(document: Document, line: int, text: str, width: int, closing_tab: bool) -> list[str]:
    """The fields of a row: by blanks, or, where one is empty, by tabs."""
    words = text.split()
    if len(words) == width:
        return words
    cells = [cell.strip() for cell in text.lstrip().split("\t")]
    if closing_tab and _ends_with_tab(text):
        cells.pop()
    if len(cells) == width:
        return cells
    problem = f"expected {width} fields, got {len(words)}: {text.strip()!r}."
    raise document.error(line, "fields", problem)


def _with_identifiers(document: Document, table: ColumnTable, *fields: str) -> ColumnTable:
    """The table with numbers of nodes in some of its fields."""
    for field in fields:
        column = table.column_of(field)
        texts = table.names(field)  # which says what is missing
        numbers = [document.identifier(t, k, str(column)) for t, k in zip(texts, table.labels)]
        table = table.with_column(str(column), numbers)
    return table


# ------------------------------------------------------------------ trips
def _read_trips(document: Document) -> tuple[ColumnTable, dict[int, int]]:
    """The demand, zeros included, and the zones that are named, each with its first line."""
    origins: list[int] = []
    destinations: list[int] = []
    trips: list[float] = []
    lines: list[int] = []
    named: dict[int, int] = {}
    origin: int | None = None
    for line, raw in document.body:
        text = raw.partition("~")[0]
        match = ORIGIN.match(text)
        if match is not None:
            origin, text = document.identifier(match[1], line, "origin"), match[2]
            named.setdefault(origin, line)
        for entry in text.split(";"):
            if not entry or entry.isspace():
                continue
            if origin is None:
                raise document.error(line, "origin", f"{entry.strip()!r} precedes every Origin.")
            zone, quantity = _entry(document, line, origin, entry)
            named.setdefault(zone, line)
            origins.append(origin)
            destinations.append(zone)
            trips.append(quantity)
            lines.append(line)
    declared, total = document.value(TOTAL), sum(trips)
    if declared and abs(total - declared) > TOTAL_TOLERANCE * declared:
        raise document.error(
            document.last_line,
            f"<{TOTAL}>",
            f"line {document.metadata[TOTAL][1]} declares {declared!r} trips, the file has "
            f"{total!r}: it is cut off, or the total is wrong (correct or delete that line).",
        )
    columns: dict[str, list[Any]] = {
        "origin": origins,
        "destination": destinations,
        "trips": trips,
    }
    return document.table("demand", columns, lines), named


def _entry(document: Document, line: int, origin: int, entry: str) -> tuple[int, float]:
    """The destination and the trips of an entry."""
    destination, colon, quantity = entry.partition(":")
    with suppress(ValueError):  # what is wrong is found out below
        zone, trips = int(destination), float(quantity)
        if 0 <= trips < float("inf"):
            return zone, trips
    field = f"demand from {origin}"
    if not colon:
        raise document.error(line, field, f"expected 'zone : trips', got {entry.strip()!r}.")
    zone = document.identifier(destination.strip(), line, "destination")
    field = f"{field} to {zone}"
    trips = document.number(quantity, line, field)
    if not 0 <= trips < float("inf"):
        raise document.error(line, field, f"must be finite and >= 0, got {trips!r}.")
    return zone, trips


# ------------------------------------------------------------------ nodes and zones
def _node_numbers(net: Document, used: list[int], notes: list[str]) -> tuple[int, ...]:
    """The numbers of the nodes: 1..n as declared; else those that the links have."""
    declared = net.count(NODES)
    if declared is None:
        notes.append(f"<{NODES}> is not given; took the {len(used)} nodes of the links")
        return tuple(used)
    if used[0] >= 1 and used[-1] <= declared:
        if declared > MANY_NODES + NODES_PER_LINK_END * len(used):
            raise net.key_error(
                NODES,
                f"declares {declared} nodes, and the links mention {len(used)} of them: the count "
                "is wrong, or the file is cut off.",
            )
        return tuple(range(1, declared + 1))
    if len(used) > declared:
        problem = f"declares {declared} nodes, the links mention {len(used)}, among them {used[-1]}"
        raise net.key_error(NODES, f"{problem}.")
    notes.append(
        f"nodes are not numbered 1 to {declared}; took the {len(used)} numbers of the links, "
        f"{used[0]} to {used[-1]}, as names"
    )
    return tuple(used)


def _zone_numbers(
    net: Document,
    trips_file: Document,
    named: Mapping[int, int],
    nodes: tuple[int, ...],
    notes: list[str],
) -> tuple[int, ...]:
    """The numbers of the zones: 1..Z as declared; else those that the trips name."""
    counts = [document.count(ZONES) for document in (net, trips_file)]
    known = [count for count in counts if count]
    count = max(known) if known else max(named, default=0)
    if len(known) < 2 or known[0] != known[1]:
        said = ["nothing" if c is None else str(c) for c in counts]
        notes.append(f"<{ZONES}> is {said[0]} in the net file and {said[1]} in the trips file")
    present = set(nodes)
    if present.issuperset(range(1, count + 1)):
        zones, why = tuple(range(1, count + 1)), f"the zones are 1 to {count}"
    else:
        zones, why = tuple(sorted(named)), "the links mention no such node"
        notes.append(f"zones are not numbered 1 to {count}; took those that the trips file names")
    unknown = (named.keys() - set(zones)) | (set(zones) - present)
    if unknown:
        zone = min(unknown, key=named.__getitem__)
        raise trips_file.error(named[zone], f"zone {zone}", f"is not known: {why}.")
    return zones


def _through(
    net: Document, nodes: tuple[int, ...], zones: tuple[int, ...], notes: list[str]
) -> np.ndarray:
    """Nodes numbered below <FIRST THRU NODE> may not be passed."""
    first = net.count(FIRST)
    if first is None:
        notes.append(f"<{FIRST}> is not given; every node may be passed")
        return np.ones(len(nodes), dtype=bool)
    counted = nodes == tuple(range(1, len(nodes) + 1))
    if not counted and not {node for node in nodes if node < first} <= set(zones):
        # The rule supposes that zones come first; numbers used as names need not obey it.
        notes.append(f"<{FIRST}> {first} would block nodes that are no zones; not applied")
        return np.ones(len(nodes), dtype=bool)
    return np.array(nodes) >= first


def _read_positions(
    source: Any, index: Mapping[int, int]
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Positions (n, 2) of the nodes, NaN where there is none, and repairs; None without a file."""
    if source is None:
        return None, ()
    document = read_document(source, metadata=False)
    rows, lines = [], []
    for line, raw in document.body:
        fields = raw.partition("~")[0].partition(";")[0].replace(",", " ").split()
        if fields:
            rows.append(fields)
            lines.append(line)
    if rows and as_number(rows[0][0]) is None:  # a header
        del rows[0], lines[0]
    for line, fields in zip(lines, rows):
        if len(fields) < 3:
            problem = f"expected 'node x y', got {' '.join(fields)!r}."
            raise document.error(line, "position", problem)
    columns = {name: [row[i] for row in rows] for i, name in enumerate(("node", "x", "y"))}
    table = _with_identifiers(document, document.table("nodes", columns, lines), "node")
    places = read_positions(table)
    nodes = table.names("node")
    positions = np.full((len(index), 2), np.nan)
    for node, place in zip(nodes, [] if places is None else places):
        if node in index:
            positions[index[node]] = place
    repairs = []
    strangers = sum(node not in index for node in nodes)
    if strangers:
        repairs.append(f"{document.file}: left out {strangers} positions of unknown nodes")
    missing = len(index.keys() - set(nodes))
    if missing:
        repairs.append(f"{document.file}: {missing} nodes have no position (NaN)")
    return positions, tuple(repairs)
