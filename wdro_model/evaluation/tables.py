"""Rows of numbers as a table: for a terminal, for a notebook, for a page, pandas and a file.

A page needs nothing else: no scripts, no style sheets, no files.
"""

from __future__ import annotations

import base64
import csv
import io
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
NOTHING = "-"
TABLE_STYLE = """
table.wdro { border-collapse: collapse; font-variant-numeric: tabular-nums; }
table.wdro caption { caption-side: top; text-align: left; font-weight: bold; padding: 0.3em 0; }
table.wdro th, table.wdro td { padding: 0.25em 0.7em; text-align: right; white-space: nowrap; }
table.wdro thead th { border-bottom: 2px solid #555; vertical-align: bottom; }
table.wdro tbody th { font-weight: normal; }
table.wdro tbody th, table.wdro .word { text-align: left; }
table.wdro tbody tr:nth-child(even) { background: rgba(127, 127, 127, 0.1); }
"""
PAGE_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1500px; padding: 0 1.5em;
       color: #1b1b1b; background: #fff; }
h1 { font-size: 1.6em; } h2 { font-size: 1.2em; margin-top: 2em; }
.wide { overflow-x: auto; }
.wide tr > th:first-child { position: sticky; left: 0; background: #fff; }
img { max-width: 100%; height: auto; }
dl { display: grid; grid-template-columns: max-content auto; gap: 0.2em 1.2em; }
dt { font-weight: bold; } dd { margin: 0; max-width: 60em; }
"""


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


class Tabular:
    """What prints as a table, and goes to a notebook, to pandas and to a file.

    A subclass has `columns` and `rows()`, and may have a title and messages under the table.
    """

    @property
    def columns(self) -> Sequence[Column]:
        """What is shown of the rows."""
        raise NotImplementedError

    @property
    def title(self) -> str:
        """What stands over the table."""
        return ""

    def rows(self) -> list[dict[str, Any]]:
        """The lines of the table, with all that is known of each."""
        raise NotImplementedError

    def _shown(self) -> list[dict[str, Any]]:
        """The rows as they are printed."""
        return self.rows()

    def _under_table(self) -> Iterable[str]:
        """What stands under the table."""
        return ()

    def to_frame(self) -> Any:
        """A pandas DataFrame of `rows()`.

        Examples
        --------
        >>> import cvxpy as cp, wdro_model as wdro
        >>> x = cp.Variable(2, nonneg=True)
        >>> price = wdro.UncertainParameter(2, samples=[[1.0, 2.0], [2.0, 1.0]])
        >>> problem = wdro.Problem(cp.Minimize(price @ x), [cp.sum(x) == 1])
        >>> frame = wdro.compare(problem, "erm", test=[[3.0, 3.0]]).to_frame()
        >>> list(frame["scenarios"])
        ['training', 'test']
        """
        return frame(self.rows())

    def to_csv(self, path: Any = None) -> str | None:
        """`rows()` as comma-separated values: written to a file, or returned without a path.

        Examples
        --------
        >>> import cvxpy as cp, wdro_model as wdro
        >>> x = cp.Variable(2, nonneg=True)
        >>> price = wdro.UncertainParameter(2, samples=[[1.0, 2.0], [2.0, 1.0]])
        >>> problem = wdro.Problem(cp.Minimize(price @ x), [cp.sum(x) == 1])
        >>> text = wdro.compare(problem, "erm").to_csv()
        >>> text.splitlines()[0].split(",")[:3]
        ['method', 'radius', 'scenarios']
        """
        return csv_text(self.rows(), path)

    def html(self) -> str:
        """The table alone, for a page."""
        return html_table(self.columns, self._shown(), self.title)

    def __str__(self) -> str:
        table = text_table(self.columns, self._shown())
        return "\n".join([*filter(None, [self.title]), table, *self._under_table()])

    def _repr_html_(self) -> str:
        return f"<style>{TABLE_STYLE}</style>\n{self.html()}\n{listed(self._under_table())}"


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


def html_table(columns: Sequence[Column], rows: Iterable[Row], caption: str = "") -> str:
    """The same as an HTML table; all texts are escaped, the first cell of a row is its heading."""
    head = "".join(
        f'<th scope="col" class="{column.kind}" title="{escape(column.meaning)}">'
        f"{escape(column.title)}</th>"
        for column in columns
    )
    first, *others = columns
    body = ""
    for row in rows:
        cells = (f'<td class="{c.kind}">{escape(c.show(row))}</td>' for c in others)
        body += f'<tr><th scope="row">{escape(first.show(row))}</th>{"".join(cells)}</tr>\n'
    title = f"<caption>{escape(caption)}</caption>\n" if caption else ""
    return (
        f'<table class="wdro">\n{title}<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}</tbody>\n</table>"
    )


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
    return written(buffer.getvalue(), path)


def written(text: str, path: Any) -> str | None:
    """The text in a file, or as it is without a path."""
    if path is None:
        return text
    Path(path).write_text(text, encoding="utf-8")
    return None


# ------------------------------------------------------------------ pages
def page(title: str, sections: Mapping[str, str]) -> str:
    """A whole HTML document; a section with nothing in it is left out."""
    body = "\n".join(
        f"<section>\n<h2>{escape(heading)}</h2>\n{content}\n</section>"
        for heading, content in sections.items()
        if content
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{PAGE_STYLE}{TABLE_STYLE}</style>\n</head>\n"
        f"<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def wide(table: str) -> str:
    """A table that scrolls sideways where the page is too narrow."""
    return f'<div class="wide">{table}</div>'


def listed(texts: Iterable[str]) -> str:
    """Texts as a list; nothing for none."""
    items = "\n".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>\n{items}\n</ul>" if items else ""


def meanings(columns: Iterable[Column]) -> str:
    """The columns and what they mean."""
    pairs = (f"<dt>{escape(c.title)}</dt><dd>{escape(c.meaning)}</dd>" for c in columns)
    return "<dl>\n" + "\n".join(pairs) + "\n</dl>"


def image(figure: Any, text: str) -> str:
    """A figure as an image that is part of the page; the text is for those who do not see it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    png = buffer.getvalue()
    width, height = struct.unpack(">II", png[16:24])  # the first fields of a PNG's header
    data = base64.b64encode(png).decode("ascii")
    return (
        f'<p><img src="data:image/png;base64,{data}" width="{width}" height="{height}" '
        f'alt="{escape(text)}"></p>'
    )
