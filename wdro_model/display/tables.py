"""Tables of results: as text for a terminal, as HTML for a notebook or a page, as pandas frames.

In a notebook the style is written into each cell, where no filter removes it, and has no colours of
its own but shades of grey that let the background through: dark notebooks stay dark.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

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
    """A column of a table: the entry of a row that it shows, and its form."""

    key: str
    meaning: str
    """The meaning of its numbers, in a sentence."""
    heading: str = ""
    """The heading; by default the key."""
    form: str = ".5g"
    """The format of its numbers."""
    word: bool = False
    """Words are set flush left, numbers flush right."""
    flags: tuple[str, str] = ("yes", "no")
    """The texts of True and False."""

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
            return self.flags[0 if value else 1]
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


# ------------------------------
# Facts: pairs of a name and a text, shown as a table; and the `repr` of a thing in one line


LONGEST = 200
"""Characters of a `repr`, at most."""
FEW = 4
"""Entries of an array up to which they are listed; longer arrays are described by their shape."""


Facts = list[tuple[str, str]]
"""Pairs of a name and a text; an empty name goes on with the one before."""


def facts_html(thing: Any) -> str:
    """`_repr_html_` of a thing with `_facts()`: a table, and its `notes` below."""
    notes = listed(getattr(thing, "notes", ()))
    return f"{facts_table(thing._facts(), type(thing).__name__)}\n{notes}"


def facts_lines(thing: Any) -> str:
    """`__str__` of a thing with `_facts()`: lines, the texts one under the other, and its notes."""
    facts = thing._facts()
    width = max(len(name) for name, _ in facts)
    lines = [f"{name:<{width}}  {text}".rstrip() for name, text in facts]
    return "\n".join([*lines, *(f"note: {note}" for note in getattr(thing, "notes", ()))])


def present_facts(facts: Mapping[str, str | None]) -> Facts:
    """The facts that have a text."""
    return [(name, text) for name, text in facts.items() if text is not None]


def brief(thing: Any, text: str) -> str:
    """A `repr` of one line: the class and a few words, cut where they are too many."""
    name = type(thing).__name__
    text = " ".join(text.split())
    room = LONGEST - len(name) - 2
    return f"{name}({text if len(text) <= room else text[: room - 3] + '...'})"


def brief_title(table: Tabular) -> str:
    """A `repr` of one line for a table: its title."""
    return brief(table, table.title)


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


# ------------------------------
# Rows of numbers as a table: for a terminal, for a notebook, for a page, pandas and a file


class Tabular:
    """A result in rows: printed as a table, and given to a notebook, to pandas and to a file.

    A subclass has `columns` and `rows()`; it may have a title, footnotes, and fewer columns or
    cells in its printed table than in its frame.
    """

    @property
    def columns(self) -> Sequence[Column]:
        """The columns of the table."""
        raise NotImplementedError

    @property
    def title(self) -> str:
        """The line above the table."""
        return ""

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the table, with all their entries."""
        raise NotImplementedError

    def _printed_columns(self) -> Sequence[Column]:
        """The columns of the printed table."""
        return self.columns

    def _printed_rows(self) -> list[dict[str, Any]]:
        """The rows of the printed table."""
        return self.rows()

    def _footnotes(self) -> Iterable[str]:
        """The messages below the table."""
        return ()

    def to_frame(self) -> Any:
        """A pandas DataFrame of `rows()`."""
        return frame(self.rows())

    def to_csv(self, path: Any = None) -> str | None:
        """`rows()` as comma-separated values: written to a file, or returned without a path."""
        return csv_text(self.rows(), path)

    def html(self) -> str:
        """The table alone, for a page."""
        return html_table(self.columns, self.rows(), self.title)

    def __str__(self) -> str:
        table = text_table(self._printed_columns(), self._printed_rows())
        return "\n".join([*filter(None, [self.title]), table, *self._footnotes()])

    def _repr_html_(self) -> str:
        columns, rows = self._printed_columns(), self._printed_rows()
        return f"{html_table(columns, rows, self.title, inline=True)}\n{listed(self._footnotes())}"


def text_table(columns: Sequence[Column], rows: Iterable[Row]) -> str:
    """A table for a terminal."""
    cells = [[column.title for column in columns]]
    cells += [[column.show(row) for column in columns] for row in rows]
    widths = [max(map(len, texts)) for texts in zip(*cells)]
    sides = ["<" if column.word else ">" for column in columns]
    lines = [
        "  ".join(f"{text:{side}{width}}" for text, side, width in zip(line, sides, widths))
        for line in cells
    ]
    rule = "-" * max(map(len, lines))
    return "\n".join([lines[0].rstrip(), rule, *(line.rstrip() for line in lines[1:])])


def frame(rows: Sequence[Row]) -> Any:
    """The rows as a pandas DataFrame."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("to_frame() needs pandas: pip install pandas.") from error
    return pd.DataFrame(rows)


def csv_text(rows: Sequence[Row], path: Any = None) -> str | None:
    """The rows as comma-separated values with all digits: in a file, or as a string."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return write_text(buffer.getvalue(), path)


def write_text(text: str, path: Any) -> str | None:
    """The text in a file, or as it is without a path."""
    if path is None:
        return text
    Path(path).write_text(text, encoding="utf-8")
    return None
