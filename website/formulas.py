"""Formulas become MathML when the site is built: browsers typeset it, without scripts or fonts."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """The page with its formulas typeset."""
    return FORMULA.sub(typeset, content)


def typeset(formula: re.Match[str]) -> str:
    """One formula, in the line or in a line of its own."""
    display = "inline" if formula[2] == "(" else "block"
    mathml = convert(html.unescape(formula[3]).strip(), display=display)
    return f'<div class="formula">{mathml}</div>' if display == "block" else mathml
