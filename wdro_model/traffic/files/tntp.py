"""Networks from the files of the Transportation Networks for Research collection (TNTP)."""

from __future__ import annotations

import gzip
import re
import zipfile
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wdro_model.traffic.files.columns import (
    ColumnTable,
    MalformedFile,
    as_number,
    read_arcs,
    read_demand,
    read_positions,
)
from wdro_model.traffic.network import Network

KEY = re.compile(r"\s*<([^<>]*)>(.*)", re.DOTALL)
ORIGIN = re.compile(r"\s*origin\b\s*:?\s*([^\s:;]*)(.*)", re.IGNORECASE | re.DOTALL)
END, TOTAL, LINKS = "END OF METADATA", "TOTAL OD FLOW", "NUMBER OF LINKS"
NODES, ZONES, FIRST = "NUMBER OF NODES", "NUMBER OF ZONES", "FIRST THRU NODE"

STANDARD_COLUMNS = (
    *("init_node", "term_node", "capacity", "length", "free_flow_time"),
    *("b", "power", "speed", "toll", "link_type"),
)
"""The columns of a net file, in order."""
REQUIRED_COLUMNS = ("init_node", "term_node", "capacity", "free_flow_time", "b", "power")
COLUMN_SYNONYMS = {
    **dict.fromkeys(("init", "from", "from_node", "tail"), "init_node"),
    **dict.fromkeys(("term", "to", "to_node", "head"), "term_node"),
    **dict.fromkeys(("ftime", "fft"), "free_flow_time"),
    "speed_limit": "speed",
    "type": "link_type",
}


@dataclass(frozen=True)
class Tolerances:
    """Limits of what a reader believes."""

    total: float = 1e-5
    """Relative error of the declared total demand: some files write six digits. A larger number
    lets files pass that are cut off."""
    digits: int = 18
    """Digits of a node's number: what fits into 64 bits."""
    isolated_nodes: int = 1000
    nodes_per_linked_node: int = 10
    """The declared number of nodes may exceed this multiple of the nodes with links by at most
    `isolated_nodes`; larger numbers let a wrong count fill the memory."""


TOLERANCES = Tolerances()


class TNTPError(MalformedFile):
    """A malformed TNTP file, with the place: file, line (from 1) and field.

    Examples
    --------
    >>> import io
    >>> try:
    ...     wdro.traffic.read_tntp(io.StringIO("<NUMBER OF ZONES> two"), io.StringIO(""))
    ... except wdro.traffic.TNTPError as error:
    ...     print(error)
    <open file>, line 1, <END OF METADATA>: the file has no such line...
    """


# ------------------------------------------------------------------ files as text
@dataclass(frozen=True)
class Document:
    """The metadata and the body of a file."""

    file: str
    metadata: dict[str, tuple[str, int]]
    """{key: (value as text, line)}."""
    body: list[tuple[int, str]]
    """The lines after the metadata with their numbers, comments included."""
    repairs: tuple[str, ...] = ()

    @property
    def last_line(self) -> int:
        return self.body[-1][0] if self.body else 0

    def error(self, line: int | None, field: str, problem: str) -> TNTPError:
        return TNTPError(self.file, line, field, problem)

    def key_error(self, key: str, problem: str) -> TNTPError:
        """The error for a value of the metadata."""
        return self.error(self.metadata[key][1], f"<{key}>", problem)

    def table(self, name: str, columns: dict[str, list[Any]], lines: list[int]) -> ColumnTable:
        """A table of columns of the body."""
        return ColumnTable(name, columns, lines, self.error, row_word="line")

    def value(self, key: str) -> float | None:
        """A number of the metadata; None if it is missing, empty or negative (not known)."""
        text, line = self.metadata.get(key, ("", 0))
        words = re.split(r"[~;]", text)[0].replace(",", "").split()
        if not words:
            return None
        value = self.number(words[0], line, f"<{key}>")
        if value == float("inf"):
            raise self.key_error(key, f"expected a finite number, got {words[0]!r}.")
        return None if value < 0 else value

    def count(self, key: str) -> int | None:
        """A whole number of the metadata; None if it is missing, empty or negative (not known)."""
        value = self.value(key)
        if value is not None and value != int(value):
            raise self.key_error(key, f"expected a whole number, got {value!r}.")
        return None if value is None else int(value)

    def number(self, text: str, line: int, field: str) -> float:
        """A number other than NaN."""
        value = as_number(text)
        if value is None:
            raise self.error(line, field, f"expected a number, got {text.strip()!r}.")
        return value

    def node_number(self, text: str, line: int, field: str) -> int:
        """The number of a node or zone; 110.0 is read as 110."""
        digits = TOLERANCES.digits
        if text.isdecimal() and len(text) <= digits:
            return int(text)
        value = self.number(text, line, field)
        if not abs(value) < 10**digits or value != int(value):
            problem = f"expected the number of a node, of at most {digits} digits, got"
            raise self.error(line, field, f"{problem} {text[:40]!r}.")
        return int(value)

    def with_node_numbers(self, table: ColumnTable, *fields: str) -> ColumnTable:
        """The table with the texts in these fields replaced by numbers of nodes."""
        for field in fields:
            column = table.column_of(field)
            entries = zip(table.names(field), table.labels)
            numbers = [self.node_number(text, line, str(column)) for text, line in entries]
            table = table.with_column(str(column), numbers)
        return table


def read_document(source: Any, needs_metadata: bool = True) -> Document:
    """The document at a path (.gz and .zip included) or in an open file.

    The metadata end at <END OF METADATA> and nowhere else: not at blank lines, not at comments. A
    file without that line is refused, or all body if it needs no metadata.
    """
    name = source if isinstance(source, str | Path) else getattr(source, "name", None)
    file = str(name) if isinstance(name, str | Path) else "<open file>"
    text = _read_text(source)
    lines = list(enumerate(text.splitlines(), start=1))
    if not needs_metadata and END not in text.upper():
        return Document(file, {}, lines)
    metadata: dict[str, tuple[str, int]] = {}
    for i, (number, line) in enumerate(lines):
        match = KEY.match(line)
        if match is None:
            continue
        key, value = " ".join(match[1].upper().split()), match[2].strip()
        if key != END:
            metadata[key] = (value, number)
        elif not value or value.startswith("~"):
            return Document(file, metadata, [(number, value), *lines[i + 1 :]])
        else:
            note = f"{file}: left out {value!r} after <{END}> (line {number})"
            return Document(file, metadata, lines[i + 1 :], (note,))
    raise TNTPError(
        file,
        lines[-1][0] if lines else None,
        f"<{END}>",
        "the file has no such line, so its data cannot be told from its metadata; it is cut off, "
        "or not a TNTP file.",
    )


def _read_text(source: Any) -> str:
    """The text at a path or in an open file, in UTF-8 or Latin-1."""
    if not isinstance(source, str | Path):
        if not hasattr(source, "read"):
            raise ValueError(
                f"expected a path or an open text file, got {type(source).__name__}: {source!r}."
            )
        content = source.read()
    else:
        content = _read_bytes(Path(source))
    if isinstance(content, str):
        return content
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _read_bytes(path: Path) -> bytes:
    """The content of a file; .gz, and .zip with one file in it, are unpacked."""
    if path.is_dir():
        inside = sorted(file.name for file in path.glob("*.tntp*"))
        present = f"such as {', '.join(inside[:4])}" if inside else "it holds no .tntp file"
        raise IsADirectoryError(
            f"{path} is a directory, not a TNTP file; give the path of a file in it ({present})."
        )
    if path.suffix.lower() != ".zip":
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix.lower() == ".gz" else content
    with zipfile.ZipFile(path) as archive:
        members = [m for m in archive.namelist() if not m.endswith("/") and "__MACOSX" not in m]
        if len(members) != 1:
            raise ValueError(
                f"{path} holds {len(members)} files, not one: {', '.join(members[:5])}; unpack it "
                "and give the path of the file you mean."
            )
        return archive.read(members[0])


# ------------------------------------------------------------------ networks
def read_tntp(
    net: Any,
    trips: Any,
    nodes: Any = None,
    *,
    toll_weight: float = 0.0,
    length_weight: float = 0.0,
) -> Network:
    """Read a network from a net file, a trips file and, for positions, a node file.

    Files are paths (.gz, and .zip with one file in it, are unpacked) or open text files.
    `network.repairs` lists what could be repaired without guessing; anything else raises a
    `TNTPError` that names file, line and field. A link of capacity 0 is closed: the repairs remove
    it.

    Parameters
    ----------
    toll_weight, length_weight
        The fixed cost of an arc is toll_weight * toll + length_weight * length. The weights are not
        in the files, but in the notes published with a network. Chicago Sketch is published with
        0.02 and 0.04: without them it is another problem, with other equilibria.

    Examples
    --------
    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     net, trips = os.path.join(folder, "net.tntp"), os.path.join(folder, "trips.tntp")
    ...     wdro.traffic.write_tntp(network, net, trips)
    ...     wdro.traffic.read_tntp(net, trips).n_arcs
    76
    """
    net_file, trips_file = read_document(net), read_document(trips)
    notes: list[str] = []
    links, (demand, named) = _read_links(net_file, notes), _read_trips(trips_file)
    arcs = read_arcs(links, {"toll": float(toll_weight), "length": float(length_weight)})
    names = _node_numbers(net_file, sorted({*links.names("tail"), *links.names("head")}), notes)
    zones = _zone_numbers(net_file, trips_file, named, names, notes)
    index = {node: i for i, node in enumerate(names)}
    matrix, added = read_demand(demand, {zone: z for z, zone in enumerate(zones)})
    through = _read_through(net_file, names, zones, notes)
    positions, missing = _read_positions(nodes, index)
    # The name is SiouxFalls for a path such as data/SiouxFalls_net.tntp.
    name = Path(net_file.file).name.split(".")[0]
    name = re.sub(r"[ _-]net(work.*)?$", "", name, flags=re.IGNORECASE)
    return Network(
        **arcs.fields(index),
        demand=matrix,
        zones=np.array([index[zone] for zone in zones], dtype=np.int64),
        through=through,
        nodes=names,
        positions=positions,
        name=name if name and not name.startswith("<") else "network",
        repairs=(
            *net_file.repairs,
            *(f"{net_file.file}: {note}" for note in (*arcs.repairs, *notes)),
            *trips_file.repairs,
            *(f"{trips_file.file}: {note}" for note in added),
            *missing,
        ),
    )


# ------------------------------------------------------------------ links
def _read_links(document: Document, notes: list[str]) -> ColumnTable:
    """The links: one row each, fields between tabs or blanks, perhaps a semicolon."""
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
    position, repairs = _locate_columns(header, width)
    notes[:0] = repairs
    cells = [_row_fields(document, line, text, width, closing_tab) for line, text in rows]
    columns = {name: [row[i] for row in cells] for name, i in position.items()}
    table = document.table("links", columns, [line for line, _ in rows])
    return document.with_node_numbers(table, "tail", "head")


def header_names(text: str) -> list[str]:
    """The names in a header line: `~ Init node  Free Flow Time (min) ;` in lower case, joined."""
    content = text.replace("~", " ").split(";")[0].strip()
    parts = content.split("\t") if "\t" in content else content.split()
    plain = (re.sub(r"\(.*?\)", "", part).strip().lower() for part in parts)
    names = [re.sub(r"[\s_-]+", "_", part) for part in plain if part]
    return [COLUMN_SYNONYMS.get(name, name) for name in names]


def is_header(text: str) -> bool:
    """Does the line name the ends of a link?"""
    return {"init_node", "term_node"} <= set(header_names(text))


def _locate_columns(names: list[str] | None, width: int) -> tuple[dict[str, int], list[str]]:
    """The columns of rows with `width` fields under a header (None: there is none), and repairs."""
    standard = {name: i for i, name in enumerate(STANDARD_COLUMNS) if i < width}
    if names is None:
        return standard, ["the links have no header; took the columns in the standard order"]
    ranks = [STANDARD_COLUMNS.index(n) if n in STANDARD_COLUMNS else -1 for n in names]
    if len(names) < width and -1 not in ranks and ranks == sorted(ranks):
        note = f"the header names {len(names)} of {width} columns; took the standard order"
        return standard, [note]
    position = {name: i for i, name in reversed(list(enumerate(names))) if i < width}
    notes = []
    if len(names) != width:
        notes.append(f"the header names {len(names)} columns, the links have {width}")
    for name, i in standard.items():
        taken = i < len(names) and names[i] in STANDARD_COLUMNS
        if name in REQUIRED_COLUMNS and name not in position and not taken:
            position[name] = i
            notes.append(f"the header does not name {name}; took column {i + 1}")
    return position, notes


def _ends_with_tab(text: str) -> bool:
    return text.rstrip(" ").endswith("\t")


def _row_fields(
    document: Document, line: int, text: str, width: int, closing_tab: bool
) -> list[str]:
    """The fields of a row: between blanks or, where a field is empty, between tabs."""
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


# ------------------------------------------------------------------ trips
def _read_trips(document: Document) -> tuple[ColumnTable, dict[int, int]]:
    """The demand, zeros included, and the zones that are named, each with its first line."""
    rows: list[tuple[int, int, float, int]] = []
    named: dict[int, int] = {}
    origin: int | None = None
    for line, raw in document.body:
        text = raw.partition("~")[0]
        match = ORIGIN.match(text)
        if match is not None:
            origin, text = document.node_number(match[1], line, "origin"), match[2]
            named.setdefault(origin, line)
        for entry in text.split(";"):
            if not entry or entry.isspace():
                continue
            if origin is None:
                raise document.error(line, "origin", f"{entry.strip()!r} precedes every Origin.")
            zone, quantity = _read_entry(document, line, origin, entry)
            named.setdefault(zone, line)
            rows.append((origin, zone, quantity, line))
    origins, destinations, trips, lines = map(list, zip(*rows)) if rows else ([], [], [], [])
    declared, total = document.value(TOTAL), sum(trips)
    if declared and abs(total - declared) > TOLERANCES.total * declared:
        raise document.error(
            document.last_line,
            f"<{TOTAL}>",
            f"line {document.metadata[TOTAL][1]} declares {declared!r} trips, the file has "
            f"{total!r}: it is cut off, or the total is wrong (correct or delete that line).",
        )
    columns = {"origin": origins, "destination": destinations, "trips": trips}
    return document.table("demand", columns, lines), named


def _read_entry(document: Document, line: int, origin: int, entry: str) -> tuple[int, float]:
    """The destination and the trips of an entry."""
    destination, colon, quantity = entry.partition(":")
    with suppress(ValueError):  # the error is worded below
        zone, trips = int(destination), float(quantity)
        if 0 <= trips < float("inf"):
            return zone, trips
    field = f"demand from {origin}"
    if not colon:
        raise document.error(line, field, f"expected 'zone : trips', got {entry.strip()!r}.")
    zone = document.node_number(destination.strip(), line, "destination")
    field = f"{field} to {zone}"
    trips = document.number(quantity, line, field)
    if not 0 <= trips < float("inf"):
        raise document.error(line, field, f"must be finite and >= 0, got {trips!r}.")
    return zone, trips


# ------------------------------------------------------------------ nodes and zones
def _node_numbers(net: Document, used: list[int], notes: list[str]) -> tuple[int, ...]:
    """The numbers of the nodes: 1..n as declared; else the numbers that the links mention."""
    declared = net.count(NODES)
    if declared is None:
        notes.append(f"<{NODES}> is not given; took the {len(used)} nodes of the links")
        return tuple(used)
    if used[0] >= 1 and used[-1] <= declared:
        believed = TOLERANCES.isolated_nodes + TOLERANCES.nodes_per_linked_node * len(used)
        if declared > believed:
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
    """The numbers of the zones: 1..Z as declared; else the zones that the trips name."""
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


def _read_through(
    net: Document, nodes: tuple[int, ...], zones: tuple[int, ...], notes: list[str]
) -> np.ndarray:
    """May trips pass a node? Not if its number is below <FIRST THRU NODE>."""
    first = net.count(FIRST)
    counted = nodes == tuple(range(1, len(nodes) + 1))
    if first is None:
        notes.append(f"<{FIRST}> is not given; every node may be passed")
    elif not counted and not {node for node in nodes if node < first} <= set(zones):
        # The rule supposes that zones come first; numbers used as names need not obey it.
        notes.append(f"<{FIRST}> {first} would block nodes that are no zones; not applied")
    else:
        return np.array(nodes) >= first
    return np.ones(len(nodes), dtype=bool)


def _read_positions(
    source: Any, index: Mapping[int, int]
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Positions (n, 2) of the nodes, NaN where there is none, and repairs; None without a file."""
    if source is None:
        return None, ()
    document = read_document(source, needs_metadata=False)
    rows = [
        (line, fields)
        for line, raw in document.body
        if (fields := raw.partition("~")[0].partition(";")[0].replace(",", " ").split())
    ]
    if rows and as_number(rows[0][1][0]) is None:  # a header
        del rows[0]
    for line, fields in rows:
        if len(fields) < 3:
            problem = f"expected 'node x y', got {' '.join(fields)!r}."
            raise document.error(line, "position", problem)
    columns = {name: [row[i] for _, row in rows] for i, name in enumerate(("node", "x", "y"))}
    table = document.table("nodes", columns, [line for line, _ in rows])
    table = document.with_node_numbers(table, "node")
    nodes, places = table.names("node"), read_positions(table)
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
