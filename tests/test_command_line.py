"""The commands, as a user types them."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import wdro_model
from wdro_model.command_line import main

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())


def test_demo(tmp_path, capsys):
    assert main(["demo", "--quick", "--output", str(tmp_path)]) == 0
    assert (tmp_path / "quadratic_tree.png").exists()
    assert "shifted" in capsys.readouterr().out


def test_demo_without_matplotlib_is_a_table_and_a_hint(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    folder = tmp_path / "output"
    assert main(["demo", "--quick", "--output", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^method +scenarios .*cvar95", printed, re.MULTILINE)
    assert len(re.findall(r"^.* shifted .*\d *$", printed, re.MULTILINE)) >= 4
    assert "pip install 'wdro_model[plot]'" in printed.splitlines()[-1]
    assert not folder.exists()


def test_info(capsys):
    assert main(["info"]) == 0
    printed = capsys.readouterr().out
    for word in ("wdro_model", "numpy", "CLARABEL"):
        assert word in printed
    for name in ("SpanningTree", "ShortestPath", "TrafficFlows", "Matching", "Assignment"):
        known = getattr(wdro_model.sets, name).backends()
        assert f"backends of {name}: {', '.join(known)}" in printed


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.strip() == wdro_model.__version__


def test_the_version_is_written_once():
    assert "version" not in PROJECT["project"]
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "wdro_model.__version__"}


def test_the_console_script_is_the_command_line():
    module, _, function = PROJECT["project"]["scripts"]["wdro-model"].partition(":")
    assert getattr(import_module(module), function) is main
