"""What the tab key, `help()` and type checkers see: names, docstrings, examples that run."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import wdro_model as wdro
from tests.package.public_names import HEADING, MAIN, docstring, public_modules, public_names

ROOT = Path(__file__).parents[2]
MODULES = list(public_modules())
NAMES = public_names()


@pytest.fixture(scope="module")
def complaints(tmp_path_factory):
    """What went wrong in each example, in a fresh interpreter: what is registered stays there."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.package.public_names"],
        cwd=tmp_path_factory.mktemp("examples"),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_tab_key_offers_the_public_names(module):
    assert dir(module) == sorted(module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)
    assert not {"ABC", "Any", "np", "cp", "annotations"} & set(dir(module))
    for name in module.__all__:
        assert hasattr(module, name), name


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_an_example(name):
    text = docstring(NAMES[name])
    assert HEADING in text, f"{name} has no Examples in its docstring"
    assert ">>> " in text.split(HEADING)[1]


def test_the_main_names_are_public():
    assert {f"wdro.{name}" for name in MAIN} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_does_what_it_shows(name, complaints):
    assert not complaints[name], complaints[name]


def test_every_error_is_offered_at_the_top_or_by_its_module():
    assert {name for name in wdro.errors.__all__ if name not in wdro.__all__} == {"UnknownToCost"}


def test_docstrings_are_read_by_their_sections(caplog):
    """As the site reads them: NumPy's style, every parameter that is described being one."""
    griffe = pytest.importorskip("griffe")
    package = griffe.load("wdro_model", search_paths=[str(Path(wdro.__file__).parent.parent)])
    for thing in map(inspect.unwrap, (getattr(t, "__func__", t) for t in NAMES.values())):
        function = getattr(thing, "fget", thing)
        where = f"{function.__module__}.{function.__qualname__}".removeprefix("wdro_model.")
        for section in package[where].docstring.parse("numpy"):
            if section.kind.value == "text":
                shown = re.sub(r"`[^`]*`|^ {4}.*$", "", section.value, flags=re.MULTILINE)
                assert not re.search(r"<[a-z]", shown), f"{where}: a tag in HTML; use backticks"
            if section.kind.value == "parameters" and not inspect.isclass(function):
                described = {item.name.lstrip("*") for item in section.value}
                assert described <= set(inspect.signature(function).parameters), where
    assert not caplog.records, caplog.text
