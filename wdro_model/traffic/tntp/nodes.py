"""The positions of a node file: rows `node x y`, with or without a header."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from wdro_model.traffic.tntp.text import Document, is_number


def read_positions(
    document: Document, index: Mapping[int, int]
) -> tuple[np.ndarray, tuple[str, ...]]:
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
