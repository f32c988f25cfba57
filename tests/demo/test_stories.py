"""The demo as a user runs it: tables, sentences and a page that needs nothing else."""

from __future__ import annotations

import contextlib
import io
import re
import sys

import html5lib
import numpy as np
import pytest

from wdro_model.demo import demo, page
from wdro_model.demo.missing import SHIFTS, missing_story
from wdro_model.demo.story import Comparison, Judgement
from wdro_model.demo.towns import TEST, Towns, median_instance, towns_story
from wdro_model.demo.towns import run_instance as towns_instance


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What the quick demo prints, and its page."""
    folder = tmp_path_factory.mktemp("demo")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        demo(quick=True, output=folder)
    return printed.getvalue(), (folder / "index.html").read_text(encoding="utf-8")


def test_a_heading_a_table_and_a_sentence_for_each_story(told):
    printed, _ = told
    assert re.findall(r"^(\d)\. ", printed, re.MULTILINE) == ["1", "2", "3"]
    assert len(re.findall(r"^judged on +method +promised", printed, re.MULTILINE)) == 3
    assert len(re.findall(r"with the robust decision", re.sub(r"\s+", " ", printed))) == 3
    assert printed.rstrip().splitlines()[-1].endswith("index.html")


def test_the_page_is_valid_and_needs_nothing_else(told):
    _, page = told
    html5lib.HTMLParser(strict=True).parse(page)
    without_data = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]+", "", page)
    assert len(page) > 100_000 > len(without_data)
    assert "//" not in without_data  # no address of anything
    assert not re.search(r"<(script|link|iframe)", without_data)
    assert without_data.count('src=""') == without_data.count('srcset=""') == 3
    assert without_data.count("alt=") == 3


def test_the_page_has_the_numbers_of_the_tables(told):
    printed, page = told
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub(r'"data:[^"]+"', "", page)))
    rows = re.findall(r"^.* {2}(?:ERM|robust) {2,}(.*)$", printed, re.MULTILINE)
    assert len(rows) == 2 * (1 + 3 + len(SHIFTS))
    for row in rows:
        for cell in re.split(r" {2,}", row.strip()):
            assert cell == "-" or cell in text, cell


def test_the_page_shows_sentences_and_models_as_they_were_run(told):
    printed, page = told
    text = re.sub(r"\s+", " ", page)
    for start in ("What it gained:", "What it cost:"):
        assert f"<strong>{start}</strong>" in page
    for sentence in re.findall(r"with the robust decision[^;]*;", re.sub(r"\s+", " ", printed)):
        assert sentence in text
    assert page.count("<pre><code>def model(") == 3
    assert "boolean=True" in page


def test_without_matplotlib_there_are_tables_and_a_hint(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(page, "STORIES", {"missing data": missing_story})
    demo(quick=True, output=tmp_path / "output")
    printed = capsys.readouterr().out
    assert re.search(r"^judged on +method", printed, re.MULTILINE)
    assert "pip install 'wdro_model[plot]'" in printed.splitlines()[-1]
    assert not (tmp_path / "output").exists()


def test_the_number_of_jobs_changes_nothing():
    alone, together = (towns_story(quick=True, jobs=jobs, seed=3) for jobs in (1, 2))
    assert alone.rows() == together.rows()
    assert alone.sentence == together.sentence


def test_towns_keep_the_law_that_is_told():
    land = Towns.random(12, np.random.default_rng(0))
    days = land.days(200_000, np.random.default_rng(1)) / land.lengths
    np.testing.assert_allclose(days.mean(axis=0), 1.0, atol=0.02)
    assert 0.2 < land.hilly.mean() < 0.6
    assert days[:, land.hilly].std(axis=0) == pytest.approx(np.sqrt(np.e - 1), rel=0.1)
    assert days[:, ~land.hilly].std(axis=0) == pytest.approx(0.1, rel=0.02)


def test_the_map_shows_an_instance_with_the_median_gain():
    tails = [(10.0, 9.0), (10.0, 2.0), (10.0, 6.0), (10.0, 5.0), (10.0, 10.0)]
    pairs = [[Judgement(1.0, 1.0, tail) for tail in pair] for pair in zip(*tails)]
    assert median_instance(Comparison("new days", *pairs)) == 2


def test_trees_of_towns_are_trees_and_their_promises_those_of_the_model():
    match = towns_instance(5, towns=7, days=10, tests=50)
    land, erm, robust, gap = match.details
    assert erm.sum() == robust.sum() == 6
    assert gap <= 1e-6
    rng = np.random.default_rng(5)
    Towns.random(7, rng)
    seen = land.days(10, rng)
    believed, promised = (judged.promise for judged in match.tests[TEST])
    assert believed == pytest.approx(seen.mean(axis=0) @ erm)
    # mean + sqrt(radius * the sum of the variances): the worst case in standardised units.
    worst = seen.mean(axis=0) @ robust + np.sqrt(match.radius * seen.var(axis=0) @ robust)
    assert promised == pytest.approx(worst, rel=1e-6)
