"""Pages of the reference name every public object: those that a page leaves out are added to it.

A page of the reference says which modules it is about,

    <!-- every name of wdro_model.sets -->

and this line is replaced by the names in their `__all__` that the page does not describe: what
another page describes is linked, the rest is described here.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

PAGES = Path(__file__).parent.parent / "reference"
PLACE = re.compile(r"<!-- every name of (\S+) -->")
DESCRIBED = re.compile(r"^::: (\S+)", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page with the rest of the names."""
    return complete(markdown) if page.file.src_uri.startswith("reference/") else markdown


def complete(markdown: str) -> str:
    """The text of a page in which every name of its module is described or linked."""
    here = [found(name) for name in DESCRIBED.findall(markdown)]
    elsewhere = {id(found(name)): name for name in described()}

    def rest(place: re.Match[str]) -> str:
        links, parts = [], []
        for name, value in public(place[1]).items():
            if any(value is known for known in here):
                continue
            if id(value) in elsewhere:
                links.append(f"[`{name}`][{elsewhere[id(value)]}]")
            else:
                parts.append(f"::: {place[1]}.{name}")
        known = [f"Described on other pages: {', '.join(links)}."] if links else []
        return "\n\n".join([*known, *parts])

    return PLACE.sub(rest, markdown)


def described() -> list[str]:
    """What the pages describe by name."""
    return [name for page in PAGES.glob("*.md") for name in DESCRIBED.findall(page.read_text())]


def public(module: str) -> dict[str, Any]:
    """The public names of a module with what they name, without the modules in it."""
    room = resolve_name(module)
    values = {name: getattr(room, name) for name in room.__all__}
    return {name: value for name, value in values.items() if not inspect.ismodule(value)}


def found(path: str) -> Any:
    """What a path leads to; where a module and what is in it share a name, the latter."""
    module, _, name = path.rpartition(".")
    return getattr(resolve_name(module), name)
