"""Which column of a link file holds what: by the names in its header, else by position."""

from __future__ import annotations

import re
from dataclasses import dataclass

STANDARD = (
    "init_node",
    "term_node",
    "capacity",
    "length",
    "free_flow_time",
    "b",
    "power",
    "speed",
    "toll",
    "link_type",
)
"""The columns of the format, in order."""
REQUIRED = ("init_node", "term_node", "capacity", "free_flow_time", "b", "power")
SYNONYMS = {
    "init": "init_node",
    "from": "init_node",
    "from_node": "init_node",
    "tail": "init_node",
    "term": "term_node",
    "to": "term_node",
    "to_node": "term_node",
    "head": "term_node",
    "ftime": "free_flow_time",
    "fft": "free_flow_time",
    "speed_limit": "speed",
    "type": "link_type",
}


@dataclass(frozen=True)
class LinkColumns:
    """The position of each column that was found, and what had to be assumed."""

    position: dict[str, int]
    width: int
    repairs: tuple[str, ...] = ()


def header_names(text: str) -> list[str]:
    """The names in a header line: `~ Init node  Free Flow Time (min) ;` in lower case, joined."""
    content = text.replace("~", " ").split(";")[0].strip()
    parts = content.split("\t") if "\t" in content else content.split()
    plain = (re.sub(r"\(.*?\)", "", part).strip().lower() for part in parts)
    names = [re.sub(r"[\s_-]+", "_", part) for part in plain if part]
    return [SYNONYMS.get(name, name) for name in names]


def is_header(text: str) -> bool:
    """Does the line name the ends of a link?"""
    return {"init_node", "term_node"} <= set(header_names(text))


def locate(names: list[str] | None, width: int) -> LinkColumns:
    """The columns of rows with `width` fields under a header (None: the file has none)."""
    if names is None:
        note = "the links have no header; took the columns in the standard order"
        return LinkColumns(_standard(width), width, (note,))
    if len(names) < width and _in_standard_order(names):
        note = f"the header names {len(names)} of {width} columns; took the standard order"
        return LinkColumns(_standard(width), width, (note,))
    position = {name: i for i, name in reversed(list(enumerate(names))) if i < width}
    notes = []
    if len(names) != width:
        notes.append(f"the header names {len(names)} columns, the links have {width}")
    for name, i in _standard(width).items():
        taken = i < len(names) and names[i] in STANDARD
        if name in REQUIRED and name not in position and not taken:
            position[name] = i
            notes.append(f"the header does not name {name}; took column {i + 1}")
    return LinkColumns(position, width, tuple(notes))


def _standard(width: int) -> dict[str, int]:
    return {name: i for i, name in enumerate(STANDARD) if i < width}


def _in_standard_order(names: list[str]) -> bool:
    """Is this the standard header with some names left out?"""
    ranks = [STANDARD.index(name) if name in STANDARD else -1 for name in names]
    return -1 not in ranks and ranks == sorted(ranks)
