"""The demands of a trips file: `Origin o`, then entries `d : trips;`."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from wdro_model.traffic.tntp.text import Document

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
