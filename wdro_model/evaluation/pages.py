"""A page of HTML that needs nothing else: its style, its script and its pictures are in it."""

from __future__ import annotations

import base64
import io
import struct
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from wdro_model.display.html_tables import Column

DOTS, MOST_DOTS = 130, 1.5e6
"""Of a picture, for each inch, and in all."""


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
        f"<title>{escape(title)}</title>\n<style>\n{beside('page.css')}</style>\n</head>\n"
        f"<body>\n<h1>{escape(title)}</h1>\n{body}\n"
        f"<script>\n{beside('page.js')}</script>\n</body>\n</html>\n"
    )


def beside(name: str) -> str:
    """The text of a file that lies beside this module."""
    return (files("wdro_model.evaluation") / name).read_text(encoding="utf-8")


def wide(table: str) -> str:
    """A table that scrolls sideways where the page is too narrow."""
    return f'<div class="wide">{table}</div>'


def sorting(table: str) -> str:
    """A table whose headings sort it."""
    return wide(table.replace('class="wdro"', 'class="wdro report"', 1))


def meanings(columns: Iterable[Column]) -> str:
    """The columns and what they mean."""
    pairs = (f"<dt>{escape(c.title)}</dt><dd>{escape(c.meaning)}</dd>" for c in columns)
    return "<dl>\n" + "\n".join(pairs) + "\n</dl>"


def image(figure: Any, text: str) -> str:
    """A figure as an image that is part of the page; the text is for those who do not see it."""
    buffer = io.BytesIO()
    area = float(np.prod(figure.get_size_inches()))
    figure.savefig(buffer, format="png", dpi=min(DOTS, np.sqrt(MOST_DOTS / area)))
    png = buffer.getvalue()
    width, height = struct.unpack(">II", png[16:24])  # the first fields of a PNG's header
    data = base64.b64encode(png).decode("ascii")
    return (
        f'<p><img src="data:image/png;base64,{data}" width="{width}" height="{height}" '
        f'alt="{escape(text)}"></p>'
    )
