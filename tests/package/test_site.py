"""The site builds without a warning, needs no network, and its reference has every public name."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import wdro_model as wdro
from tests.package.pages import PAGES, ROOT

pytest.importorskip("latex2mathml", reason="the site needs pip install '.[docs]'")
pytest.importorskip("mkdocstrings", reason="the site needs pip install '.[docs]'")

MODULES = {
    "wdro_model": wdro,
    **{
        f"wdro_model.{name}": getattr(wdro, name)
        for name in ("evaluation", *wdro.__all__)
        if inspect.ismodule(getattr(wdro, name))
    },
}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, without runs of the examples."""
    folder = tmp_path_factory.mktemp("site")
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
            "WDRO_GALLERY": "skip",
            "NO_MKDOCS_2_WARNING": "1",
        },
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


class Names(HTMLParser):
    """Identifiers of a page, and what a browser fetches for it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.identifiers: set[str] = set()
        self.fetched: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.identifiers.add(found.get("id") or "")
        if tag in ("script", "img", "link", "iframe"):
            self.fetched.append(found.get("src") or found.get("href") or "")


def test_every_page_is_built(site):
    for page in PAGES:
        if page.name != "README.md":
            path = page.relative_to(ROOT / "docs").with_suffix(".html")
            assert (site / path).exists(), f"{path} is missing"


def test_nothing_is_fetched_from_the_network(site):
    for page in site.rglob("*.html"):
        foreign = [link for link in Names(page).fetched if link.startswith(("http", "//"))]
        assert not foreign, f"{page.name} fetches {foreign}"
    for style in (site / "assets").rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text())


def test_formulas_are_typeset(site):
    page = (site / "understand" / "methods.html").read_text()
    assert page.count("<math") > 20
    assert "arithmatex" not in page


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_in_the_reference(site, module):
    pages = [Names(page) for page in (site / "reference").glob("*.html")]
    described = set().union(*(page.identifiers for page in pages))
    for name, value in public(MODULES[module]).items():
        aliases = {
            f"{other}.{alias}"
            for other, room in MODULES.items()
            for alias, known in vars(room).items()
            if known is value
        }
        if hasattr(value, "__qualname__"):
            aliases.add(f"{value.__module__}.{value.__qualname__}")
        assert aliases & described, f"{module}.{name} is not described"


def public(room: ModuleType) -> dict[str, Any]:
    """What a module offers: its `__all__`, or all that was written in it."""
    names = getattr(room, "__all__", None) or [
        name
        for name, value in vars(room).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == room.__name__
    ]
    found = {name: getattr(room, name) for name in names}
    return {name: value for name, value in found.items() if not inspect.ismodule(value)}
