"""Rows of numbers as a table: for a terminal, for a notebook, for a page, pandas and a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from wdro_model.display.html_tables import Column, Row, html_table, listed


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
        table = html_table(self.columns, self._shown(), self.title, inline=True)
        return f"{table}\n{listed(self._under_table())}"


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
    return written(buffer.getvalue(), path)


def written(text: str, path: Any) -> str | None:
    """The text in a file, or as it is without a path."""
    if path is None:
        return text
    Path(path).write_text(text, encoding="utf-8")
    return None
