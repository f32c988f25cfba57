"""Networks from the files of the Transportation Networks for Research collection (TNTP)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wdro_model.traffic.demand_matrix import demand_of
from wdro_model.traffic.network import Network
from wdro_model.traffic.network_checks import ARC_FIELDS, WAYS_OUT
from wdro_model.traffic.tntp.files import (
    REQUIRED,
    Document,
    LinkColumns,
    header_names,
    is_header,
    is_number,
    locate,
    read_document,
)

ORIGIN = re.compile(r"\s*origin\b\s*:?\s*([^\s:;]*)(.*)", re.IGNORECASE | re.DOTALL)
TOTAL = "TOTAL OD FLOW"
TOTAL_TOLERANCE = 1e-5
"""Totals are written with six digits in some files."""


@dataclass(frozen=True)
class Demands:
    """The demands by the numbers of their zones."""

    demand: dict[int, dict[int, float]]
    """Demands by origin and destination, listed zeros included."""
    lines: dict[int, int]
    """The zones that are named, each with the first line that does so."""
    repairs: tuple[str, ...]


def read_trips(document: Document) -> Demands:
    """The demands; what is listed twice is added."""
    demand: dict[int, dict[int, float]] = {}
    lines: dict[int, int] = {}
    repeated: list[tuple[int, int]] = []
    origin: int | None = None
    for line, raw in document.body:
        text = raw.partition("~")[0]
        match = ORIGIN.match(text)
        if match is not None:
            origin, text = document.identifier(match[1], line, "origin"), match[2]
            lines.setdefault(origin, line)
        for entry in text.split(";"):
            if not entry or entry.isspace():
                continue
            if origin is None:
                raise document.error(line, "origin", f"{entry.strip()!r} precedes every Origin.")
            zone, trips = _entry(document, line, origin, entry)
            row = demand.setdefault(origin, {})
            if zone in row:
                repeated.append((origin, zone))
            row[zone] = row.get(zone, 0.0) + trips
            if zone not in lines:
                lines[zone] = line
    _check_total(document, sum(sum(row.values()) for row in demand.values()))
    return Demands(demand, lines, _repairs(document, repeated))


def _repairs(document: Document, repeated: list[tuple[int, int]]) -> tuple[str, ...]:
    if not repeated:
        return ()
    return (
        f"{document.file}: added up {len(repeated)} demands that are listed twice, such as that "
        f"from {repeated[0][0]} to {repeated[0][1]}",
    )


def _entry(document: Document, line: int, origin: int, entry: str) -> tuple[int, float]:
    destination, colon, quantity = entry.partition(":")
    with suppress(ValueError):  # what is wrong is found out below, entry by entry
        zone, trips = int(destination), float(quantity)
        if 0 <= trips < float("inf"):
            return zone, trips
    if not colon:
        raise document.error(
            line, f"demand from {origin}", f"expected 'zone : trips', got {entry.strip()!r}."
        )
    zone = document.identifier(destination.strip(), line, "destination")
    field = f"demand from {origin} to {zone}"
    trips = document.number(quantity, line, field)
    if not 0 <= trips < float("inf"):
        raise document.error(line, field, f"must be finite and >= 0, got {trips!r}.")
    return zone, trips


def _check_total(document: Document, total: float) -> None:
    declared = document.value(TOTAL)
    if not declared:
        return
    if abs(total - declared) > TOTAL_TOLERANCE * declared:
        raise document.error(
            document.last_line,
            f"<{TOTAL}>",
            f"line {document.metadata[TOTAL][1]} declares {declared!r} trips, the file has "
            f"{total!r}: it is cut off, or the total is wrong (correct or delete that line).",
        )


# ------------------------------
# The links of a net file: one row each, fields between tabs or blanks, perhaps a semicolon


COUNT = "NUMBER OF LINKS"
COSTS = ("length", "toll")


@dataclass(frozen=True)
class Links:
    """The open links of a net file, in the order of its rows."""

    tails: np.ndarray
    """(A,) numbers of nodes, as written."""
    heads: np.ndarray
    values: dict[str, np.ndarray]
    """(A,) each: capacity, free_flow_time, b, power, and of length and toll those that exist."""
    mentioned: frozenset[int]
    """The nodes at the ends of all links, closed ones included."""
    repairs: tuple[str, ...]


@dataclass(frozen=True)
class _Row:
    """The text of a link, without comments and semicolon."""

    line: int
    text: str

    @property
    def ends_with_tab(self) -> bool:
        return self.text.rstrip(" ").endswith("\t")

    def fields(self, layout: _Layout, document: Document) -> list[str]:
        """The fields: by blanks, or, where one is empty, by tabs."""
        words = self.text.split()
        if len(words) == layout.columns.width:
            return words
        cells = [cell.strip() for cell in self.text.lstrip().split("\t")]
        if layout.closing_tab and self.ends_with_tab:
            cells.pop()
        if len(cells) == layout.columns.width:
            return cells
        raise document.error(
            self.line,
            "fields",
            f"expected {layout.columns.width} fields, got {len(words)}: {self.text.strip()!r}.",
        )


@dataclass(frozen=True)
class _Layout:
    """How the rows of a file are written."""

    columns: LinkColumns
    closing_tab: bool
    """Does a tab follow the last field?"""

    @classmethod
    def of(cls, names: list[str] | None, rows: list[_Row]) -> _Layout:
        """As most rows have it."""
        widths = Counter(len(row.text.split()) for row in rows)
        closing = Counter(row.ends_with_tab for row in rows)
        return cls(locate(names, widths.most_common(1)[0][0]), closing.most_common(1)[0][0])


@dataclass(frozen=True)
class _Link:
    """A link as it was read; `numbers` are None if no trip can use it."""

    line: int
    tail: int
    head: int
    numbers: list[float] | None


def read_links(document: Document, needed: tuple[str, ...] = ()) -> Links:
    """The links; `needed` are the optional columns (length, toll) that must be there."""
    names, rows = _rows(document)
    _check_count(document, len(rows))
    if not rows:
        raise document.error(document.last_line, "links", "the file has no links.")
    layout = _Layout.of(names, rows)
    columns = layout.columns
    _check_columns(document, columns, needed)
    read = [name for name in (*REQUIRED[2:], *COSTS) if name in columns.position]
    links = [_link(document, row, layout, read) for row in rows]
    usable = [link for link in links if link.numbers is not None]
    if not usable:
        raise document.error(document.last_line, "links", "every link is closed or a loop.")
    table = np.array([link.numbers for link in usable], dtype=np.float64)
    values = dict(zip(read, table.T))
    _check_values(document, values, [link.line for link in usable])
    return Links(
        tails=np.array([link.tail for link in usable], dtype=np.int64),
        heads=np.array([link.head for link in usable], dtype=np.int64),
        values=values,
        mentioned=frozenset(node for link in links for node in (link.tail, link.head)),
        repairs=_repairs_links(document, columns, links),
    )


def _rows(document: Document) -> tuple[list[str] | None, list[_Row]]:
    """The header, if there is one, and the rows without comments and semicolons."""
    names: list[str] | None = None
    rows: list[_Row] = []
    for line, raw in document.body:
        text, _, comment = raw.partition("~")
        if names is None and not rows:
            names = next((header_names(h) for h in (comment, text) if is_header(h)), None)
            if names is not None:
                continue
        text = text.partition(";")[0]
        if text.strip():
            rows.append(_Row(line, text.rstrip("\r\n")))
    return names, rows


def _link(document: Document, row: _Row, layout: _Layout, read: list[str]) -> _Link:
    """A link; one of capacity 0 or infinite time is closed, and the rest of it is not looked at."""
    fields, where = row.fields(layout, document), layout.columns.position
    tail, head = (document.identifier(fields[where[end]], row.line, end) for end in REQUIRED[:2])
    capacity = document.number(fields[where["capacity"]], row.line, "capacity")
    time = fields[where["free_flow_time"]]
    closed = capacity == 0 or time.lower() in ("inf", "+inf", "infinity")
    if closed or tail == head:
        return _Link(row.line, tail, head, None)
    numbers = [_optional(document, fields[where[name]], row.line, name) for name in read]
    return _Link(row.line, tail, head, numbers)


def _repairs_links(document: Document, columns: LinkColumns, links: list[_Link]) -> tuple[str, ...]:
    notes = list(columns.repairs)
    if document.count(COUNT) is None:
        notes.append(f"<{COUNT}> is not given; took the {len(links)} in the file")
    loops = [link.line for link in links if link.tail == link.head]
    closed = [link.line for link in links if link.numbers is None and link.tail != link.head]
    for lines, why in (
        (closed, "closed (capacity 0 or an infinite free-flow time)"),
        (loops, "from a node to itself"),
    ):
        if lines:
            some = ", ".join(map(str, lines[:5])) + (", ..." if len(lines) > 5 else "")
            notes.append(f"removed {len(lines)} links, {why}: lines {some}")
    return tuple(f"{document.file}: {note}" for note in notes)


def _optional(document: Document, text: str, line: int, field: str) -> float:
    """The number in a field; an empty length or toll is 0."""
    return 0.0 if not text and field in COSTS else document.number(text, line, field)


def _check_count(document: Document, found: int) -> None:
    declared = document.count(COUNT)
    if declared is None or declared == found:
        return
    why = "the file is cut off, or the count is wrong" if found < declared else "the count is wrong"
    raise document.error(
        document.last_line,
        f"<{COUNT}>",
        f"line {document.metadata[COUNT][1]} declares {declared} links, the file has {found}: "
        f"{why}.",
    )


def _check_columns(document: Document, columns: LinkColumns, needed: tuple[str, ...]) -> None:
    for name in (*REQUIRED, *needed):
        if name not in columns.position:
            reason = " (it has a weight)" if name in needed else ""
            raise document.error(None, name, f"the links have no such column{reason}.")


def _check_values(document: Document, values: dict[str, np.ndarray], lines: list[int]) -> None:
    for field, column in values.items():
        rule, holds = ARC_FIELDS.get(field, ARC_FIELDS["fixed_cost"])
        wrong = ~holds(column)
        if wrong.any():
            a = int(np.argmax(wrong))
            raise document.error(
                lines[a],
                field,
                f"must be {rule}, got {float(column[a])!r}; {WAYS_OUT.get(field, 'correct it')}.",
            )


# ------------------------------
# Networks from the files of the Transportation Networks for Research collection (TNTP)


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
