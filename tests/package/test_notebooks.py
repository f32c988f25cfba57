"""The notebooks run from top to bottom in a fresh kernel, and show what they are stored with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def kinds(cell):
    """What kinds of output a cell has, in their order."""
    return [
        [output.output_type, *sorted(output.get("data", {}))]
        for output in cell.get("outputs", [])
        if output.get("name") != "stderr"
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_is_stored(path, tmp_path):
    stored = nbformat.read(path, as_version=4)
    book = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute(env={**os.environ, "PYTHONPATH": str(ROOT)})  # an error in a cell is raised
    for before, after in zip(stored.cells, book.cells):
        assert kinds(before) == kinds(after), before.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_stored_is_small_and_free_of_warnings(path):
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    assert path.stat().st_size < 500_000
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 3
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert all(cell.source.strip() for cell in book.cells)


def test_there_are_three():
    assert [path.stem for path in NOTEBOOKS] == ["a_tree", "first_steps", "machine_learning"]
