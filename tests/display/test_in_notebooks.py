"""Cells of a real notebook: pictures appear once, objects are tables, long work has a bar."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("matplotlib")
ROOT = Path(__file__).parent.parent.parent
SET_UP = """
import cvxpy as cp, networkx as nx, numpy as np, sys, wdro_model as wdro
rng = np.random.default_rng(0)
x = cp.Variable(4, nonneg=True, name="x")
returns = wdro.UncertainParameter(4, name="returns", samples=rng.normal(0.1, 0.3, size=(15, 4)))
problem = wdro.Problem(
    cp.Minimize(-returns @ x), [cp.sum(x) == 1], ambiguity=wdro.WassersteinBall(0.04)
)
report = wdro.compare(problem, ("erm", "exact"), test=rng.normal(size=(50, 4)))
path = problem.path([0, 0.1, 1])
tree = wdro.sets.SpanningTree(nx.cycle_graph(4))
assert "matplotlib.pyplot" not in sys.modules
"""
CELLS = {
    "set up": SET_UP,
    "report": "report.plot()",
    "path": "path.plot()",
    "radii": "wdro.select_radius(problem, [0, 0.1, 1], folds=3, progress=False).plot()",
    "no pyplot yet": "assert 'matplotlib.pyplot' not in sys.modules",
    "set": "tree.plot([1, 1, 1, 0])",
    "report again": "import matplotlib.pyplot as plt\nreport.plot()",
    "set again": "tree.plot([1, 1, 1, 0])",
    "on own axes": "figure, ax = plt.subplots()\nreport.plot(scenarios='test', ax=ax)",
    "own axes of a set": "figure, ax = plt.subplots()\ntree.plot([1, 1, 1, 0], ax=ax)",
    "silent": "report.plot();",
    "problem": "problem",
    "explanation": "problem.explain()",
    "bar": "from wdro_model.display.bars import progress_bar\n"
    "with progress_bar('job', 3, unit='step') as bar:\n    bar.update(2)\n"
    "    print(type(bar).__mro__)",
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """The outputs of each cell."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in CELLS.values()])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    client = nbclient.NotebookClient(
        book, timeout=120, resources={"metadata": {"path": str(tmp_path_factory.mktemp("book"))}}
    )
    client.execute(env=environment)
    return {name: cell.outputs for name, cell in zip(CELLS, book.cells)}


@pytest.mark.parametrize(
    "cell",
    [
        *("report", "path", "radii", "set", "report again", "set again"),
        *("on own axes", "own axes of a set"),
    ],
)
def test_a_picture_appears_once(outputs, cell):
    pictures = [o for o in outputs[cell] if "image/png" in o.get("data", {})]
    assert len(pictures) == 1
    assert len(pictures[0]["data"]["image/png"]) > 3000


def test_a_semicolon_silences_it(outputs):
    assert outputs["silent"] == []


@pytest.mark.parametrize("cell", ["problem", "explanation"])
def test_objects_are_tables(outputs, cell):
    (output,) = outputs[cell]
    assert output["data"]["text/html"].startswith("<table")


def test_long_work_has_a_bar(outputs):
    said = "".join(o.get("text", "") for o in outputs["bar"])
    assert "tqdm" in said
    assert "LogLines" not in said
