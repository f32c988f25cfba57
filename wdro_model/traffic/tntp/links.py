"""The links of a net file: one row each, fields between tabs or blanks, perhaps a semicolon."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from wdro_model.traffic.network_checks import ARC_FIELDS, WAYS_OUT
from wdro_model.traffic.tntp.columns import REQUIRED, LinkColumns, header_names, is_header, locate
from wdro_model.traffic.tntp.text import Document

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
        repairs=_repairs(document, columns, links),
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


def _repairs(document: Document, columns: LinkColumns, links: list[_Link]) -> tuple[str, ...]:
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
