"""HTML tables for notebooks and pages; every text in them is escaped.

In a notebook the style is written into each cell, where no filter removes it, and has no colours of
its own but shades of grey that let the background through: dark notebooks stay dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

Row = Mapping[str, Any]
NOTHING = "-"
EDGE = "rgba(127, 127, 127, 0.6)"
CELL = "padding: 0.2em 0.7em; border: none; vertical-align: top; "
NUMBER = f"{CELL}text-align: right; white-space: nowrap"
WORD = f"{CELL}text-align: left; white-space: nowrap"
INLINE = {
    "wdro": "border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0.3em 0",
    "caption": "caption-side: top; text-align: left; font-weight: bold; padding: 0.3em 0.7em; "
    "color: inherit",
    "head": f"font-weight: bold; border-bottom: 2px solid {EDGE}",
    "row": "font-weight: normal",
    "number": NUMBER,
    "word": WORD,
    "name": f"{WORD}; font-weight: normal; opacity: 0.75",
    "text": f"{CELL}text-align: left; white-space: normal; max-width: 60em",
    "odd": "background: transparent",
    "even": "background: rgba(127, 127, 127, 0.1)",
}
"""The style of each class of element, where there is no style sheet."""


@dataclass(frozen=True)
class Column:
    """One column of a table: which entry of a row it shows, and how."""

    key: str
    meaning: str
    """What the numbers are, in a sentence."""
    heading: str = ""
    """The key, if nothing else is said."""
    form: str = ".5g"
    """The format of its numbers."""
    word: bool = False
    """Words are set flush left, numbers flush right."""

    @property
    def kind(self) -> str:
        """The class of its cells in a page, for their alignment."""
        return "word" if self.word else "number"

    @property
    def title(self) -> str:
        return self.heading or self.key.replace("_", " ")

    def show(self, row: Row) -> str:
        """The entry as text; a dash where there is none."""
        value = row.get(self.key)
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return NOTHING
        if isinstance(value, bool):
            return "yes" if value else "no"
        return value if isinstance(value, str) else format(value, self.form)


def html_table(
    columns: Sequence[Column], rows: Iterable[Row], caption: str = "", *, inline: bool = False
) -> str:
    """Rows as an HTML table; the first cell of each is its heading.

    inline: write the style into the cells, for a notebook.
    """
    look = _inline if inline else _by_class
    head = "".join(
        f'<th scope="col"{look(c.kind, "head")} title="{escape(c.meaning)}">{escape(c.title)}</th>'
        for c in columns
    )
    first, *others = columns
    body = ""
    for k, row in enumerate(rows):
        cells = "".join(f"<td{look(c.kind)}>{escape(c.show(row))}</td>" for c in others)
        heading = f'<th scope="row"{look(first.kind, "row")}>{escape(first.show(row))}</th>'
        body += f"<tr{_stripe(k) if inline else ''}>{heading}{cells}</tr>\n"
    title = f"<caption{look('caption')}>{escape(caption)}</caption>\n" if caption else ""
    table = (
        f"<table{look('wdro')}>\n{title}<thead><tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}</tbody>\n</table>"
    )
    # A wide table scrolls by itself, and not the notebook with it.
    return f'<div style="overflow-x: auto">{table}</div>' if inline else table


def facts_table(facts: Iterable[tuple[str, str]], caption: str = "") -> str:
    """Pairs of a name and a text as an HTML table for a notebook."""
    body = ""
    for k, (name, text) in enumerate(facts):
        heading = f'<th scope="row"{_inline("name")}>{escape(name)}</th>'
        body += f"<tr{_stripe(k)}>{heading}<td{_inline('text')}>{escape(text)}</td></tr>\n"
    title = f"<caption{_inline('caption')}>{escape(caption)}</caption>\n" if caption else ""
    return f"<table{_inline('wdro')}>\n{title}<tbody>\n{body}</tbody>\n</table>"


def listed(texts: Iterable[str]) -> str:
    """Texts as a list; nothing for none."""
    items = "\n".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>\n{items}\n</ul>" if items else ""


def _by_class(*kinds: str) -> str:
    return f' class="{" ".join(kinds)}"'


def _inline(*kinds: str) -> str:
    return f' style="{"; ".join(INLINE[kind] for kind in kinds)}"'


def _stripe(k: int) -> str:
    return _inline("even" if k % 2 else "odd")
