"""Every set draws its points: on a graph, on a map, in a table, or as bars."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model import sets

matplotlib_figure = pytest.importorskip("matplotlib.figure")


def all_sets():
    return [
        sets.SpanningTree(nx.complete_graph(5)),
        sets.Assignment(["Ann", "Bob"], ["dishes", "a very long task with a name", "cooking"]),
        sets.Subsets([f"project {i}" for i in range(6)], 2),
        sets.Knapsack([1.0, 2.0, 3.0], 4.0),
        sets.NuclearBall((3, 4), 1.0),
        sets.Simplex(60),
        sets.TrafficFlows(wdro.datasets.sioux_falls()),
    ]


@pytest.mark.parametrize("chosen", all_sets(), ids=lambda s: type(s).__name__)
def test_a_point_is_drawn(chosen, tmp_path):
    x = chosen.minimize(np.linspace(1, 2, chosen.dimension))
    figure = chosen.plot(x, tmp_path / "point.png")
    assert (tmp_path / "point.png").stat().st_size > 2000
    assert figure._repr_png_().startswith(b"\x89PNG")
    ax = matplotlib_figure.Figure(figsize=(2, 2)).subplots()
    assert chosen.plot(x, ax=ax) is ax
    with pytest.raises(ValueError, match=r"must have shape|must be"):
        chosen.plot(np.ones(chosen.dimension + 1))


def test_a_table_has_the_entries_and_the_names():
    chosen = sets.Assignment(["Ann", "Bob"], ["dishes", "cooking"])
    x = np.array([[0.25, 0.75], [0.75, 0.25]])
    axes = chosen.plot(x).axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), x)
    assert [text.get_text() for text in axes.get_yticklabels()] == ["Ann", "Bob"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["dishes", "cooking"]


def test_bars_are_as_long_as_the_coordinates_and_the_largest_of_many():
    few = sets.Subsets(["a", "b", "c"], 2).plot([0.5, 1.0, 0.5]).axes[0]
    assert [bar.get_width() for bar in few.patches] == [0.5, 1.0, 0.5]
    assert [text.get_text() for text in few.get_yticklabels()] == ["a", "b", "c"]
    x = np.arange(60.0)
    many = sets.Simplex(60).plot(x / x.sum()).axes[0]
    assert [text.get_text() for text in many.get_yticklabels()] == [str(i) for i in range(20, 60)]
    assert many.get_title() == "the 40 largest of 60 coordinates"


def test_names_are_left_out_where_there_is_no_room():
    network = wdro.datasets.sioux_falls()
    flows = sets.TrafficFlows(network)
    x = flows.minimize(network.free_flow_time)
    wide, narrow = (
        flows.plot(x, ax=matplotlib_figure.Figure(figsize=(size, size)).subplots())
        for size in (8, 2)
    )
    assert "24" in [text.get_text() for text in wide.texts]
    assert "24" not in [text.get_text() for text in narrow.texts]
