"""What is known of a thing as names and texts: a table when printed, a line as its `repr`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from wdro_model.display.html_tables import facts_table, listed

LONGEST = 200
"""No `repr` is longer."""
FEW = 4
"""Arrays of more entries are described by their shape."""


Facts = list[tuple[str, str]]
"""Pairs of a name and a text; an empty name goes on with the one before."""


def facts_html(thing: Any) -> str:
    """`_repr_html_` of what has `_facts()`, and may have `notes` under the table."""
    notes = listed(getattr(thing, "notes", ()))
    return f"{facts_table(thing._facts(), type(thing).__name__)}\n{notes}"


def facts_lines(thing: Any) -> str:
    """`__str__` of the same."""
    return facts_text(thing._facts())


def facts_text(facts: Iterable[tuple[str, str]]) -> str:
    """Facts as lines, the texts one under the other."""
    pairs = list(facts)
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name:<{width}}  {text}".rstrip() for name, text in pairs)


def known(facts: Mapping[str, str | None]) -> Facts:
    """The facts that there are."""
    return [(name, text) for name, text in facts.items() if text is not None]


def brief(thing: Any, text: str) -> str:
    """A `repr` of one line: the class and a few words, cut where they are too many."""
    name = type(thing).__name__
    text = " ".join(text.split())
    room = LONGEST - len(name) - 2
    return f"{name}({text if len(text) <= room else text[: room - 3] + '...'})"


def brief_fields(thing: Any) -> str:
    """A `repr` of one line for a dataclass whose fields may be arrays."""
    shown = (f"{f.name}={_short(getattr(thing, f.name))}" for f in fields(thing) if f.repr)
    return brief(thing, ", ".join(shown))


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        few = value.ndim <= 1 and value.size <= FEW
        return repr(value.tolist()) if few else f"array of shape {value.shape}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_short(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple) and len(value) > FEW:
        return f"{len(value)} entries"
    return repr(value)


def counted(count: int, thing: str) -> str:
    """ "1 sample", "3 samples"."""
    return f"{count} {thing}{'' if count == 1 else 's'}"


def words(names: Iterable[Any]) -> str:
    """Names, separated by commas."""
    return ", ".join(map(str, names))
