"""The commands, as a user types them."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import wdro_model
from wdro_model.command_line import main
from wdro_model.demo import page
from wdro_model.demo.missing import missing_story
from wdro_model.demo.towns import towns_story

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())


def test_demo(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(page, "STORIES", {"towns": towns_story, "gaps": missing_story})
    assert main(["demo", "--quick", "--seed", "7", "--output", str(tmp_path)]) == 0
    assert "Seeds 7 to " in (tmp_path / "index.html").read_text()
    assert "What it gained: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "value", "needed"),
    [("--jobs", "0", "a nonzero integer"), ("--seed", "-1", "an integer of at least 0")],
)
def test_bad_options_of_the_demo_are_refused(option, value, needed, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["demo", option, value])
    assert ended.value.code == 2
    assert f"{needed} is needed, got {value!r}" in capsys.readouterr().err


def test_an_interrupted_demo_ends_without_a_traceback(tmp_path, monkeypatch, capsys):
    def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(page, "STORIES", {"towns": interrupted})
    assert main(["demo", "--quick", "--output", str(tmp_path / "output")]) == 130
    assert "Interrupted" in capsys.readouterr().out
    assert not (tmp_path / "output").exists()


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
