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
    latex = html.unescape(formula[3]).strip()
    if formula[2] == "(":
        return tidy(convert(latex))
    below = re.sub(r"\\(min|max|sup|inf)_", r"\\\1\\limits_", latex)
    return f'<div class="formula">{tidy(convert(below, display="block"))}</div>'


def tidy(mathml: str) -> str:
    """Bars as high as their line, slashes without space around them, space after functions."""
    mathml = mathml.replace("<mo>&#x02016;</mo>", '<mo stretchy="false">&#x02016;</mo>')
    mathml = mathml.replace("<mo>&#x0002F;</mo>", '<mo lspace="0" rspace="0">&#x0002F;</mo>')
    return re.sub(r"<mi>(log|exp)</mi>", r'<mo lspace="0.17em" rspace="0.17em">\1</mo>', mathml)
