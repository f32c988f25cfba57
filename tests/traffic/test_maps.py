"""Maps: every arc on its side of the road, one scale for all panels, names that can be read."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.traffic.networks import networks
from wdro_model.datasets import sioux_falls
from wdro_model.traffic import Network, all_or_nothing, plot_comparison, plot_flows
from wdro_model.traffic.maps import LEGEND, LIMITS, MapLayout, nice, ribbons

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def network():
    return sioux_falls()


@pytest.fixture(scope="module")
def flows(network):
    rng = np.random.default_rng(0)
    times = network.free_flow_time * rng.uniform(1, 3, (3, network.n_arcs))
    a, b, c = (all_or_nothing(network, row) for row in times)
    return {"ERM": a, "robust": 0.5 * a + 0.5 * b, "other": c}


def road(**changes):
    """A road of two directions and two parallel arcs in one of them, from west to east."""
    fields = {
        "tails": [0, 1, 0],
        "heads": [1, 0, 1],
        "capacity": [1.0, 2.0, 4.0],
        "free_flow_time": 1.0,
        "b": 0.15,
        "power": 4.0,
        "demand": [[0, 2], [1, 0]],
        "positions": [[0.0, 0.0], [500.0, 0.0]],
        **changes,
    }
    return Network(**fields)


def arcs_of(axes):
    """The collection that holds the arcs of a map."""
    from matplotlib.collections import PolyCollection

    (found,) = [c for c in axes.collections if type(c) is PolyCollection]
    return found


def names_and_summary(axes):
    """The texts of a map but for its legend."""
    return [text for text in axes.texts if text.get_label() != LEGEND]


def maps_of(figure, network):
    """The panels that show a map, without the colour bars."""
    from matplotlib.collections import PolyCollection

    def holds_arcs(collection):
        is_map = type(collection) is PolyCollection
        return is_map and len(collection.get_paths()) == network.n_arcs

    return [a for a in figure.axes if any(map(holds_arcs, a.collections))]


def areas(shapes):
    """Areas of outlines (A, P, 2) by the shoelace formula."""
    x, y = shapes[..., 0], shapes[..., 1]
    return 0.5 * np.abs((x[:, :-1] * y[:, 1:] - x[:, 1:] * y[:, :-1]).sum(axis=1))


# ------------------------------------------------------------------ shapes
def test_directions_of_a_road_lie_on_their_right():
    network = road()
    places = MapLayout.from_network(network).places
    shapes = ribbons(network, places, np.full(3, 0.1), 0.1, 0.2)
    eastward, westward, parallel = shapes
    assert eastward[:, 1].max() < 0 < westward[:, 1].min()
    assert parallel[:, 1].max() < eastward[:, 1].min()


def test_arcs_point_to_their_heads():
    """The outline is longer on the side of the road's middle, where it reaches the head."""
    network = road()
    places = MapLayout.from_network(network).places
    for shape, head in zip(ribbons(network, places, np.full(3, 0.1), 0.1, 0.2), network.heads):
        foremost = np.abs(shape[:, 0] - places[head, 0]).argmin()
        middle = np.abs(shape[:, 1]).min()
        assert abs(shape[foremost, 1]) == pytest.approx(middle)
        assert np.abs(shape[:, 0] - places[head, 0]).min() == pytest.approx(0.1)


@settings(deadline=None, max_examples=25)
@given(networks(), st.floats(0.01, 0.3))
def test_arcs_of_any_network_have_outlines_as_large_as_their_widths(network, width):
    layout = MapLayout.from_network(network)
    assert layout.places.shape == (network.n_nodes, 2)
    assert np.isfinite(layout.places).all()
    shapes = ribbons(network, layout.places, np.full(network.n_arcs, width), 0.1, 0.3)
    assert np.isfinite(shapes).all()
    length = np.hypot(*(layout.places[network.heads] - layout.places[network.tails]).T)
    clear = np.maximum(length - 0.2, 0.2 * length)
    assert (areas(shapes) <= width * clear * 1.001).all()
    assert (areas(shapes) >= 0.7 * width * clear).all()


def test_nodes_are_kept_apart_and_otherwise_where_they_are(network):
    """Against the places in kilometres from the longitudes and latitudes."""
    places = MapLayout.from_network(network).places
    distance = np.hypot(*(places[:, None] - places[None]).T)
    assert distance[~np.eye(24, dtype=bool)].min() > 0.98 * LIMITS.node_distance
    kilometres = network.positions * [111.32 * np.cos(np.radians(43.55)), 110.57]
    true = np.hypot(*(kilometres[:, None] - kilometres[None]).T)
    assert np.corrcoef(true.ravel(), distance.ravel())[0, 1] > 0.98


def test_nodes_at_the_same_place_are_separated():
    places = MapLayout.from_network(road(positions=[[3.0, 3.0], [3.0, 3.0]])).places
    assert np.hypot(*(places[1] - places[0])) == pytest.approx(LIMITS.node_distance, rel=1e-2)


def test_without_positions_there_is_a_layout_and_a_note(network):
    layout = MapLayout.from_network(network.replace(positions=None))
    assert "no positions" in layout.note
    again = MapLayout.from_network(network.replace(positions=None))
    np.testing.assert_array_equal(layout.places, again.places)
    figure = plot_flows(network.replace(positions=None), np.ones(76))
    assert layout.note in [text.get_text() for text in figure.texts]
    assert not MapLayout.from_network(network).note


def test_nodes_of_unknown_position_are_placed_among_the_others(network):
    positions = network.positions.copy()
    positions[[4, 11]] = np.nan
    layout = MapLayout.from_network(network.replace(positions=positions))
    assert "2 nodes have no position" in layout.note
    assert np.isfinite(layout.places).all()


# ------------------------------------------------------------------ figures
def test_the_map_of_a_flow_shows_all_arcs_and_names(network, flows, tmp_path):
    from matplotlib.image import imread

    figure = plot_flows(network, flows["ERM"], tmp_path / "map.png")
    assert imread(tmp_path / "map.png").ndim == 3
    (axes,) = maps_of(figure, network)
    names = {text.get_text() for text in axes.texts}
    assert {str(node) for node in network.nodes} <= names
    assert axes.get_title() == "Sioux Falls"


def test_colours_follow_flow_over_capacity_from_green_to_red():
    network = road()
    figure = plot_flows(network, [0.0, 2.0, 16.0], limit=4.0)
    (axes,) = maps_of(figure, network)
    arcs = arcs_of(axes)
    widths = {}
    for path, colour in zip(arcs.get_paths(), arcs.get_facecolors()):
        red, green, _, _ = colour
        widths[float(np.ptp(path.vertices[:, 1]))] = red - green
    thin, middle, wide = (widths[w] for w in sorted(widths))
    assert thin < -0.2
    assert thin < middle < wide
    assert wide > 0.3
    bar = next(a for a in figure.axes if a is not axes)
    assert bar.get_xlim() == (0.0, 4.0)
    assert bar.get_xlabel() == "flow / capacity"


def test_panels_share_their_scales(network, flows):
    figure = plot_comparison(network, {k: flows[k] for k in ("ERM", "robust")})
    left, right, difference = maps_of(figure, network)
    assert [a.get_title() for a in (left, right)] == ["ERM", "robust"]
    assert difference.get_title() == "robust minus ERM"
    largest = max(float((flows[k] / network.capacity).max()) for k in ("ERM", "robust"))
    (alone,) = maps_of(plot_flows(network, flows["robust"], limit=largest), network)
    shared = {tuple(colour) for colour in arcs_of(right).get_facecolors().round(6)}
    assert shared == {tuple(colour) for colour in arcs_of(alone).get_facecolors().round(6)}
    bars = [a for a in figure.axes if a not in (left, right, difference)]
    assert bars[0].get_xlim()[1] == pytest.approx(largest)
    low, high = bars[1].get_xlim()
    assert low == -high


def test_more_than_two_flows_are_compared_with_the_first(network, flows, tmp_path):
    figure = plot_comparison(network, flows, tmp_path / "three.pdf")
    titles = [axes.get_title() for axes in maps_of(figure, network)]
    assert titles == ["ERM", "robust", "other", "robust minus ERM", "other minus ERM"]
    figure = plot_comparison(network, flows, difference=False)
    assert len(maps_of(figure, network)) == 3


def test_maps_stand_below_each_other_where_one_column_is_asked_for(network, flows):
    pair = {k: flows[k] for k in ("ERM", "robust")}
    wide, tall = (plot_comparison(network, pair, columns=columns) for columns in (3, 1))
    places = [axes.get_subplotspec() for axes in maps_of(tall, network)]
    assert [(place.rowspan.start, place.colspan.start) for place in places] == [
        (0, 0),
        (1, 0),
        (2, 0),
    ]
    assert wide.get_figwidth() > 2 * tall.get_figwidth()
    with pytest.raises(ValueError, match="columns must be an integer of at least 1, got 0"):
        plot_comparison(network, pair, columns=0)


def test_equal_flows_and_empty_roads_can_be_drawn(network, flows, tmp_path):
    plot_comparison(network, {"a": flows["ERM"], "b": flows["ERM"]}, tmp_path / "equal.png")
    plot_flows(network, np.zeros(76), tmp_path / "empty.png")


def test_large_networks_have_dots_in_place_of_names(network):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    rng = np.random.default_rng(0)
    big = Network(
        tails=np.arange(99),
        heads=np.arange(1, 100),
        capacity=1.0,
        free_flow_time=1.0,
        b=0.15,
        power=4.0,
        demand=[[0.0]],
        positions=rng.uniform(0, 1e4, (100, 2)),
    )
    figure = plot_flows(big, rng.uniform(0, 2, 99))
    FigureCanvasAgg(figure).draw()
    (axes,) = maps_of(figure, big)
    assert len(names_and_summary(axes)) == 1
    (axes,) = maps_of(plot_flows(big, np.ones(99), labels=True), big)
    assert len(names_and_summary(axes)) == 101


def test_titles_and_names_stay_inside_the_picture(network, flows):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = plot_comparison(network, {k: flows[k] for k in ("ERM", "robust")})
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    width, height = canvas.get_width_height()
    for axes in maps_of(figure, network):
        for text in [axes.title, *axes.texts]:
            box = text.get_window_extent(canvas.get_renderer())
            assert box.x0 >= -1
            assert box.y0 >= -1
            assert box.x1 <= width + 1
            assert box.y1 <= height + 1


@pytest.mark.parametrize("limit", [0, -1.0, np.nan, np.inf, "2", True])
def test_limits_that_mean_nothing_are_refused(network, flows, limit):
    with pytest.raises(ValueError, match="limit must be a positive"):
        plot_flows(network, flows["ERM"], limit=limit)


def test_flows_that_do_not_fit_are_refused(network, flows):
    with pytest.raises(ValueError, match=r"shape \(76,\)"):
        plot_flows(network, np.ones(75))
    with pytest.raises(ValueError, match=r'write \{"ERM": x1'):
        plot_comparison(network, [flows["ERM"]])
    with pytest.raises(ValueError, match="at least one flow"):
        plot_comparison(network, {})


def test_without_matplotlib_the_message_says_what_to_install(network, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'wdro_model\[plot\]'"):
        plot_flows(network, np.ones(76))


# ------------------------------------------------------------------ legend and scale
def legend_of(axes):
    """Texts, the line and the pieces of road of a legend."""
    texts = [t.get_text() for t in axes.texts if t.get_label() == LEGEND]
    lines = [line for line in axes.lines if line.get_label() == LEGEND]
    return texts, lines, [p for p in axes.patches if p.get_label() == LEGEND]


def test_the_scale_bar_is_as_long_as_it_says():
    """Two nodes 10 km apart on a meridian, and 30 on a parallel: no node is moved."""
    degree = 111.2
    north, east = 10 / degree, 30 / degree / np.cos(np.radians(48))
    network = Network(
        [0, 1], [1, 2], 1.0, 1.0, 0.15, 4.0, np.zeros((1, 1)),
        positions=[[2.0, 48.0 - north / 2], [2.0, 48.0 + north / 2], [2.0 + east, 48 - north / 2]],
    )  # fmt: skip
    (axes,) = maps_of(plot_flows(network, [1.0, 2.0]), network)
    texts, (bar,), _ = legend_of(axes)
    places = MapLayout.from_network(network).places
    kilometre = np.hypot(*(places[1] - places[0])) / 10
    shown = float(texts[-1].removesuffix(" km"))
    assert np.ptp(bar.get_xdata()) == pytest.approx(shown * kilometre, rel=1e-3)
    assert np.hypot(*(places[2] - places[0])) == pytest.approx(30 * kilometre, rel=1e-2)
    assert shown == 10  # not above 0.3 of the width of the map, with its margins


def test_coordinates_of_a_plane_are_in_their_own_units():
    network = road(positions=[[0.0, 0.0], [4.0, 60.0]])
    (axes,) = maps_of(plot_flows(network, [1.0, 1.0, 1.0]), network)
    texts, (bar,), _ = legend_of(axes)
    assert texts[-1].endswith(" units")
    places = MapLayout.from_network(network).places
    unit = np.hypot(*(places[1] - places[0])) / np.hypot(4, 60)
    assert np.ptp(bar.get_xdata()) == pytest.approx(float(texts[-1].split()[0]) * unit)


def test_a_layout_of_networkx_has_no_scale():
    network = road(positions=None)
    (axes,) = maps_of(plot_flows(network, [1.0, 1.0, 1.0]), network)
    texts, lines, pieces = legend_of(axes)
    assert not lines
    assert len(pieces) == len(texts) == 2
    (axes,) = maps_of(plot_flows(network, [1.0, 1.0, 1.0], legend=False), network)
    assert legend_of(axes) == ([], [], [])


def test_pieces_of_road_are_as_wide_as_arcs_of_their_flow(network):
    flow = np.full(76, 100.0)
    flow[:2] = [5000.0, 20_000.0]
    (axes,) = maps_of(plot_flows(network, flow), network)
    texts, _, pieces = legend_of(axes)
    assert texts[:2] == ["5,000", "20,000 trips"]
    widths = [piece.get_height() for piece in pieces]
    shapes = [path.vertices for path in arcs_of(axes).get_paths()]
    drawn = sorted((np.hypot(*(shape[3] - shape[0])) for shape in shapes), reverse=True)
    np.testing.assert_allclose(widths[::-1], drawn[:2], rtol=1e-6)


def test_maps_of_differences_say_so(network, flows):
    figure = plot_comparison(network, {k: flows[k] for k in ("ERM", "robust")})
    texts = [legend_of(axes)[0] for axes in maps_of(figure, network)]
    assert [any("more or less" in text for text in legend) for legend in texts] == [0, 0, 1]
    none = plot_flows(network, np.zeros(76))
    assert legend_of(maps_of(none, network)[0])[0][0] == "0 trips"


@given(st.floats(1e-300, 1e300))
def test_nice_numbers_are_round_and_not_too_large(largest):
    found = nice(largest)
    assert 0.19 * largest < found <= largest * (1 + 1e-9)
    assert f"{found:e}"[0] in "125"
