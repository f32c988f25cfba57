"""Rows of numbers as a table: for a terminal, for a page, for pandas and for a file."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
NOTHING = "-"


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


def text_table(columns: Sequence[Column], rows: Iterable[Row], words: Sequence[str]) -> str:
    """A table for a terminal; the columns in `words` are set flush left, numbers flush right."""
    cells = [[column.title for column in columns]]
    cells += [[column.show(row) for column in columns] for row in rows]
    widths = [max(map(len, texts)) for texts in zip(*cells)]
    sides = ["<" if column.key in words else ">" for column in columns]
    lines = [
        "  ".join(f"{text:{side}{width}}" for text, side, width in zip(line, sides, widths))
        for line in cells
    ]
    rule = "-" * max(map(len, lines))
    return "\n".join([lines[0].rstrip(), rule, *(line.rstrip() for line in lines[1:])])


def html_table(
    columns: Sequence[Column], rows: Iterable[Row], words: Sequence[str], caption: str = ""
) -> str:
    """The same as an HTML table; all texts are escaped."""
    head = "".join(
        f'<th scope="col" class="{kind(column, words)}" title="{escape(column.meaning)}">'
        f"{escape(column.title)}</th>"
        for column in columns
    )
    body = "".join(f"<tr>{html_cells(columns, row, words)}</tr>\n" for row in rows)
    title = f"<caption>{escape(caption)}</caption>\n" if caption else ""
    return (
        f'<table class="wdro">\n{title}<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}</tbody>\n</table>"
    )


def html_cells(columns: Sequence[Column], row: Row, words: Sequence[str]) -> str:
    """One line of an HTML table; the first cell is the heading of its row."""
    first, *others = columns
    cells = [f'<th scope="row">{escape(first.show(row))}</th>']
    for column in others:
        cells.append(f'<td class="{kind(column, words)}">{escape(column.show(row))}</td>')
    return "".join(cells)


def kind(column: Column, words: Sequence[str]) -> str:
    """The class of a cell, for its alignment."""
    return "word" if column.key in words else "number"


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
    if path is None:
        return buffer.getvalue()
    Path(path).write_text(buffer.getvalue(), encoding="utf-8")
    return None
