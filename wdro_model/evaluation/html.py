"""A report as one page that needs nothing else: no scripts, no style sheets, no files."""

from __future__ import annotations

import base64
import io
import struct
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wdro_model.evaluation.tables import Column, html_table

if TYPE_CHECKING:
    from wdro_model.evaluation.report import Report

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


def fragment(table: str, messages: Sequence[str]) -> str:
    """A table with its style and messages, for a notebook."""
    return f"<style>{TABLE_STYLE}</style>\n{table}\n{listed(messages)}"


def report_page(report: Report, title: str) -> str:
    """The page of a comparison: table, refusals, advantage, pictures, meanings, notes."""
    from wdro_model.evaluation.report import COLUMNS, WORDS

    rows = report.rows()
    sections = [
        section("Losses", f'<div class="wide">{html_table(COLUMNS, rows, WORDS)}</div>'),
        section("Without a decision", listed(report.messages())),
        section("Against a baseline", paired(report)),
        section("Pictures", pictures(report)),
        section("What the columns mean", meanings(COLUMNS)),
        section("Notes", listed(notes(report))),
    ]
    return page(title, "\n".join(filter(None, sections)))


def page(title: str, body: str) -> str:
    """A whole HTML document."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{PAGE_STYLE}{TABLE_STYLE}</style>\n</head>\n"
        f"<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def section(title: str, content: str) -> str:
    """A heading and what is under it; nothing where there is nothing."""
    return f"<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>" if content else ""


def listed(texts: Iterable[str]) -> str:
    """Texts as a list; nothing for none."""
    items = "\n".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>\n{items}\n</ul>" if items else ""


def meanings(columns: Iterable[Column]) -> str:
    """The columns and what they mean."""
    pairs = (f"<dt>{escape(c.title)}</dt><dd>{escape(c.meaning)}</dd>" for c in columns)
    return "<dl>\n" + "\n".join(pairs) + "\n</dl>"


def paired(report: Report) -> str:
    """The advantage over ERM, or over the first method where there is no ERM."""
    names = [judged.name for judged in report.methods]
    if len(names) < 2:
        return ""
    table = report.advantage("erm" if "erm" in names else names[0])._repr_html_()
    return f'<div class="wide">{table}</div>'


def pictures(report: Report) -> str:
    """The histograms as a picture within the page."""
    try:
        figure = report.plot()
    except ImportError as error:
        return f"<p>{escape(str(error))}</p>"
    methods = ", ".join(judged.name for judged in report.methods)
    means = "; ".join(
        f"{judged.name} on {name}: mean {judged.losses[name].mean():.5g}"
        for judged in report.methods
        for name in report.scenario_sets
    )
    return image(figure, f"Histograms and densities of the losses of {methods}. {means}.")


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


def notes(report: Report) -> list[str]:
    """What the solutions have to say."""
    return [f"{judged.name}: {note}" for judged in report.methods for note in judged.solution.notes]


def written(text: str, path: Any) -> str | None:
    """The text in a file, or as it is without a path."""
    if path is None:
        return text
    Path(path).write_text(text, encoding="utf-8")
    return None
