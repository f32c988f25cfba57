"""Progress: a bar on a terminal, a few lines in a log, nothing where it is not wanted."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.display import bars
from wdro_model.display.bars import LogLines, progress_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves."""
    now = [0.0]
    monkeypatch.setattr(bars.time, "monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_after_one_minute_two_and_four(clock, capsys):
    bar = progress_bar("job", 500, unit="step")
    assert isinstance(bar, LogLines)
    for _ in range(500):
        clock[0] += 1.0
        bar.set_postfix_str("gap 0.1", refresh=False)
        bar.update()
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"job: {n} of 500 steps, {n} s, gap 0.1" for n in (60, 120, 240, 480)]


def test_a_bar_that_is_closed_or_not_wanted_writes_nothing(clock, capsys):
    with progress_bar("job", unit="step") as closed:
        pass
    unwanted = progress_bar("job", unit="step", show=False)
    for bar in (closed, unwanted):
        clock[0] += 1000
        bar.update()
    assert capsys.readouterr().err == ""
    assert unwanted.disable


@pytest.mark.parametrize("progress", [True, False])
def test_comparisons_and_paths_have_a_bar_on_a_terminal(portfolio, monkeypatch, progress):
    monkeypatch.setattr("wdro_model.evaluation.attempts.BAR_DELAY", 0.0)
    for run in (
        lambda p: wdro.compare(p, ("erm", "exact"), progress=progress),
        lambda p: p.path([0.1, 1.0], progress=progress),
        lambda p: wdro.select_radius(p, [0.1], folds=2, refit=False, progress=progress),
    ):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        run(portfolio[0])
        assert ("/2" in terminal.getvalue()) == progress


def test_short_work_is_silent_everywhere(portfolio, capfd, rng):
    wdro.compare(portfolio[0], ("erm", "exact"), test=rng.normal(size=(20, 4)))
    portfolio[0].path(np.geomspace(0.1, 1, 3))
    wdro.select_radius(portfolio[0], [0.1], folds=2)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
