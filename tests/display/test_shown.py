"""What one sees: short texts as reprs, tables in notebooks that hide nothing and escape names."""

from __future__ import annotations

import pickle
import re

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.display.tables import LONGEST, brief

NAME = '<b>x</b> & "y"'
DAYS = f"{NAME}, held out"


@pytest.fixture(scope="module")
def shown():
    """Everything that a user gets to see, of a problem with names that are HTML."""
    rng = np.random.default_rng(0)
    x = cp.Variable(40, nonneg=True, name=NAME)
    returns = wdro.UncertainParameter(40, name=NAME, samples=rng.normal(0.1, 0.3, size=(60, 40)))
    cost = wdro.costs.SquaredEuclidean(weights=np.linspace(1, 2, 40))
    problem = wdro.Problem(
        cp.Minimize(-returns @ x), [cp.sum(x) == 1], ambiguity=wdro.WassersteinBall(0.04, cost)
    )
    problem.solve()
    report = wdro.compare(
        problem, {"erm": {}, NAME: {"method": "exact"}}, test={DAYS: rng.normal(size=(500, 40))}
    )
    tree = wdro.sets.SpanningTree(nx.complete_graph(6))
    y = cp.Variable(tree.dimension, name=NAME)
    costs = wdro.UncertainParameter(15, name="costs", samples=rng.uniform(size=(10, 15)))
    trees = wdro.Problem(
        cp.Minimize(costs @ y), [wdro.In(y, tree)], ambiguity=wdro.WassersteinBall(0.1)
    )
    trees.solve(method="smoothed")
    return {
        "problem": problem,
        "solution": problem.solution,
        "explanation": problem.explain(),
        "report": report,
        "judged": report.methods[0],
        "advantage": report.advantage(),
        "difference": report.advantage().differences[0],
        "selection": wdro.select_radius(problem, [0, 0.1, 1], folds=3, progress=False),
        "path": problem.path([0, 0.1, 1], test={DAYS: rng.normal(size=(50, 40))}),
        "decision of a path": problem.path([0.1]).methods[0],
        "worst case": problem.worst_case(),
        "smoothed worst case": trees.worst_case(),
        "smoothed": trees.solution,
        "trace": trees.solution.trace,
        "rounded": trees.round(),
        "statistics": problem.evaluate(),
        "ball": problem.ambiguity,
        "norm": wdro.costs.Norm(1, weights=np.ones(40)),
        "mahalanobis": wdro.costs.Mahalanobis(np.eye(30)),
    }


SHORT = (
    *("problem", "solution", "explanation", "report", "judged", "advantage", "difference"),
    *(
        "selection",
        "path",
        "decision of a path",
        "worst case",
        "smoothed worst case",
        "smoothed",
        "trace",
    ),
    *("rounded", "statistics", "ball", "norm", "mahalanobis"),
)
TABLES = (
    *("problem", "solution", "explanation", "report", "advantage", "selection", "path"),
    *("worst case", "smoothed worst case", "smoothed", "rounded", "statistics"),
)


@pytest.mark.parametrize("name", SHORT)
def test_a_repr_is_one_short_line(shown, name):
    text = repr(shown[name])
    assert len(text) <= 200
    assert "\n" not in text
    assert text.startswith(type(shown[name]).__name__)


@pytest.mark.parametrize("name", TABLES)
def test_a_notebook_shows_a_table_that_is_valid_html(shown, name):
    html5lib = pytest.importorskip("html5lib")
    source = shown[name]._repr_html_()
    html5lib.HTMLParser(strict=True).parseFragment(source)
    assert source.count("<table") == 1
    assert "<b>" not in source
    assert len(source) < 30_000


@pytest.mark.parametrize("name", TABLES)
def test_tables_have_no_colours_of_their_own(shown, name):
    """What is not inherited lets the background through: dark notebooks stay dark."""
    source = shown[name]._repr_html_()
    assert "<style" not in source
    for value in re.findall(r"(?:color|background|border-bottom): ([^;\"]+)", source):
        assert value in ("inherit", "transparent") or re.search(
            r"rgba\(127, 127, 127, 0\.\d\)", value
        )


def cells(source):
    """The texts of the cells of a table, row by row."""
    import html

    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", source, flags=re.DOTALL)
    return [
        [html.unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in rows
    ]


def test_tables_hold_the_numbers_and_the_names(shown):
    solution = shown["solution"]
    facts = dict(map(tuple, cells(solution._repr_html_())))
    assert float(facts["value"]) == pytest.approx(solution.value, rel=1e-7)
    assert facts["method"] == "exact"
    stated = dict(map(tuple, cells(shown["problem"]._repr_html_())))
    assert NAME in stated["decision"]
    assert f"{solution.value:.8g} by exact, optimal" in stated["solution"]
    assert stated["objective"].startswith("minimise ")
    means = [row[3] for row in cells(shown["report"]._repr_html_()) if row[1] == DAYS]
    expected = [judged.losses[DAYS].mean() for judged in shown["report"].methods]
    assert [float(mean) for mean in means] == pytest.approx(expected, rel=1e-4)
    worst = dict(map(tuple, cells(shown["worst case"]._repr_html_())))
    assert float(worst["expected loss"]) == pytest.approx(
        shown["worst case"].weights @ shown["problem"].losses(shown["worst case"].scenarios)
    )
    rounded = dict(map(tuple, cells(shown["rounded"]._repr_html_())))
    assert rounded["not zero"] == f"5 of 15 entries of {NAME}"


def test_an_explanation_is_a_string_and_a_table(shown):
    text = shown["explanation"]
    assert isinstance(text, str)
    assert text.splitlines()[0] == f"decision     {NAME} (40); 40 numbers"
    assert [" ".join(row) for row in cells(text._repr_html_())] == [
        " ".join(row) for row in text.rows
    ]
    twin = pickle.loads(pickle.dumps(text))
    assert twin == text
    assert twin.rows == text.rows


def test_print_gives_the_table(shown):
    lines = str(shown["problem"]).splitlines()
    assert lines[0].startswith("objective  minimise ")
    assert lines[-1].startswith("solution   ")
    assert str(shown["statistics"]).startswith("scenarios  60")


def test_a_problem_that_is_not_solved_or_lacks_a_value_is_shown():
    x, p = cp.Variable(name="x"), cp.Parameter(name="p")
    data = wdro.UncertainParameter(name="d", samples=np.arange(3.0))
    problem = wdro.Problem(cp.Minimize(cp.abs(x - data) + p * x), [x >= 0, x <= 1])
    assert "none yet: solve()" in str(problem)
    assert "none yet" in problem._repr_html_()
    assert "abs" in str(problem)


def test_a_long_objective_is_cut():
    x = cp.Variable(3, name="x" * 300)
    text = str(wdro.Problem(cp.Minimize(cp.sum(x)), [x >= 0, x <= 1]))
    assert len(text.splitlines()[0]) < 150


def test_what_does_not_fit_in_a_repr_is_cut():
    text = brief("", "word " * 100)
    assert len(text) == LONGEST
    assert text.endswith("...)")
