"""Pictures: all methods in them, labels that can be read, densities that are right."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import gaussian_kde

import wdro_model as wdro
from wdro_model.display.figures import (
    ERM_COLOUR,
    METHOD_COLOURS,
    colours_of_methods,
    legend_columns,
    plain,
    spread_apart,
)
from wdro_model.evaluation.loss_pictures import peak_density, peak_histogram
from wdro_model.evaluation.radius_pictures import axis_positions, most_changing, round_numbers
from wdro_model.evaluation.report import Judged, Report
from wdro_model.evaluation.statistics import Outcome

pytest.importorskip("matplotlib")


def judged(name, losses, promise=None):
    """A decision that nobody solved for, with made-up losses."""
    outcomes = {scenarios: Outcome(values) for scenarios, values in losses.items()}
    return Judged(name, None, outcomes, 0.0, promise)


def made_up(names, sizes=(30, 200), spread=1.0):
    """A report about losses that nobody solved for."""
    rng = np.random.default_rng(0)
    sets = ("training", *[f"test {k}" for k in range(1, len(sizes))])
    methods = tuple(
        judged(name, {s: rng.normal(k, spread, n) for s, n in zip(sets, sizes)}, 0.5 * k)
        for k, name in enumerate(names)
    )
    return Report(methods, sets)


def boxes(figure, texts, extent=lambda text, renderer: text.get_window_extent(renderer)):
    """Where texts are drawn, in pixels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return [extent(text, canvas.get_renderer()) for text in texts]


def without_lines(text, renderer):
    """The box of an annotation's text alone."""
    from matplotlib.text import Text

    return Text.get_window_extent(text, renderer)


def inside(figure, drawn):
    width, height = figure.canvas.get_width_height()
    return all(
        b.x0 >= -1 and b.y0 >= -1 and b.x1 <= width + 1 and b.y1 <= height + 1 for b in drawn
    )


def disjoint(drawn):
    return not any(a.overlaps(b) for k, a in enumerate(drawn) for b in drawn[:k])


LONG = [
    "the plain average over all the samples that we have ever seen",
    "worst case over a ball, by an exact formula, with weights",
    "smoothed worst case",
    "another",
]


def test_picture_has_a_panel_for_each_set(portfolio, tmp_path, rng):
    report = wdro.compare(portfolio[0], methods=("erm", "exact"), test=rng.normal(size=(50, 4)))
    figure = report.plot(tmp_path / "losses.png", kind="histogram")
    assert (tmp_path / "losses.png").stat().st_size > 10_000
    for suffix in ("svg", "pdf"):
        report.plot(tmp_path / f"losses.{suffix}")
        assert (tmp_path / f"losses.{suffix}").stat().st_size > 1000
    assert [axes.get_title() for axes in figure.axes] == [
        "training (15 scenarios)",
        "test (50 scenarios)",
    ]
    promise = report["exact"].promise
    assert [text.get_text() for text in figure.legends[0].get_texts()][1] == (
        f"exact\npromise {promise:.4g}"
    )


@pytest.mark.parametrize("sets", [(30,), (30, 200)])
def test_long_names_fit_under_the_picture(sets):
    figure = made_up(LONG, sets).plot(kind="histogram")
    (legend,) = figure.legends
    drawn = boxes(figure, legend.get_texts())
    assert inside(figure, drawn)
    assert disjoint(drawn)
    panels = boxes(figure, figure.axes)
    assert not any(box.overlaps(panel) for box in drawn for panel in panels)


@pytest.mark.parametrize("kind", ["strips", "histogram"])
def test_panels_share_an_axis_only_if_all_keep_their_shape(kind):
    together = made_up(["a", "b"]).plot(kind=kind)
    assert together.axes[0].get_xlim() == together.axes[1].get_xlim()
    report = made_up(["a", "b"])
    far = {**report.methods[0].losses, "test 1": np.linspace(1e3, 1e5, 50)}
    apart = Report((judged("a", far), report.methods[1]), report.scenario_sets).plot(kind=kind)
    assert apart.axes[0].get_xlim()[1] < 10


def test_dollars_in_names_are_no_formulas():
    made_up(["costs $5 or $6", "$\\frac{"]).plot()
    figure = made_up(["costs $5 or $6", "$\\frac{"]).plot(kind="histogram")
    boxes(figure, figure.legends[0].get_texts())
    assert figure.legends[0].get_texts()[0].get_text().startswith("costs \\$5")


@pytest.mark.parametrize("kind", ["strips", "histogram"])
def test_a_million_losses_and_constant_ones_are_drawn(kind):
    rng = np.random.default_rng(0)
    losses = {"training": np.full(10, 2.0), "test": rng.standard_cauchy(10**6)}
    Report((judged("a", losses), judged("b", losses)), ("training", "test")).plot(kind=kind)
    one = {"training": np.array([1.0])}
    Report((judged("one", one),), ("training",)).plot(kind=kind)


def test_density_is_that_of_the_kernel():
    losses = np.random.default_rng(1).gamma(3.0, size=300)
    grid, density = peak_density(losses)
    quartiles = np.quantile(losses, [0.25, 0.75])
    spread = min(losses.std(), float(np.ptp(quartiles)) / 1.34)
    bandwidth = 0.9 * spread * losses.size**-0.2
    reference = gaussian_kde(losses, bw_method=bandwidth / losses.std(ddof=1))(grid)
    assert density == pytest.approx(reference / reference.max(), abs=5e-3)
    assert density[0] < 0.05
    assert density[-1] < 0.05


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50).map(np.array))
def test_histogram_and_density_peak_at_one(losses):
    heights, edges = peak_histogram(losses)
    grid, density = peak_density(losses)
    assert density.max() == pytest.approx(1.0)
    assert np.isfinite(heights).all()
    assert len(edges) == len(heights) + 1
    assert len(heights) <= 60
    assert heights.max() in (0.0, 1.0)
    assert grid.shape == density.shape


# ------------------------------------------------------------------ labels
@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0, 10), min_size=1, max_size=12).map(np.array))
def test_labels_are_moved_as_little_as_it_takes(positions):
    found = spread_apart(positions, 0.5, 0.0, 10.0)
    order = np.argsort(positions, kind="stable")
    assert (np.diff(found[order]) >= 0.5 - 1e-9).all()
    assert found.min() >= -1e-9
    assert found.max() <= 10 + 1e-9
    y = cp.Variable(len(positions))
    apart = [y[i + 1] - y[i] >= 0.5 for i in range(len(positions) - 1)]
    nearest = cp.Problem(
        cp.Minimize(cp.sum_squares(y - positions[order])), [y >= 0, y <= 10, *apart]
    )
    nearest.solve(solver=cp.CLARABEL)
    moved = float(((found - positions) ** 2).sum())
    assert moved == pytest.approx(nearest.value, abs=1e-3, rel=1e-3)


def test_labels_without_room_are_spaced_evenly():
    found = spread_apart(np.zeros(5), 1.0, 0.0, 2.0)
    assert found == pytest.approx([0, 0.5, 1, 1.5, 2])


def test_names_are_broken_into_lines():
    assert plain("a" * 20 + " " + "b" * 20) == "a" * 20 + "\n" + "b" * 20
    assert plain("") == ""
    assert legend_columns(["x" * 30] * 4, 5.0) == 1
    assert legend_columns(["x"] * 4, 10.0) == 4


# ------------------------------------------------------------------ paths
def test_radius_zero_stands_at_the_left_edge():
    places = axis_positions(np.array([0.0, 0.01, 1.0]))
    assert places[0] < 0.01
    assert places[1:].tolist() == [0.01, 1.0]
    assert axis_positions(np.array([0.0])).tolist() == [1.0]
    assert axis_positions(np.array([0.3])).tolist() == [0.3]


@pytest.mark.parametrize(
    ("low", "high"), [(1e-4, 10), (0.1, 0.9), (0.11, 0.13), (3, 3), (1e-9, 1e9)]
)
def test_ticks_are_few_and_in_range(low, high):
    ticks = round_numbers(np.array([low, high]))
    assert 1 <= len(ticks) <= 7
    assert all(low * 0.99 <= tick <= high * 1.01 for tick in ticks)


def test_coordinates_that_change_most_are_named():
    decisions = np.array([[0.0, 5.0, 1.0, 0.5, 1.0], [1.0, 5.0, -1.0, 0.0, 1.0 + 1e-9]])
    assert most_changing(decisions, 2).tolist() == [2, 0]
    assert most_changing(decisions, 9).tolist() == [2, 0, 3]
    assert most_changing(decisions[:1], 2).tolist() == [1, 2]
    failed = np.vstack([decisions, np.full(5, np.nan)])
    assert most_changing(failed, 2).tolist() == [2, 0]
    assert most_changing(np.full((2, 3), np.nan), 2).tolist() == []
    assert most_changing(np.zeros((2, 3)), 2).tolist() == []


def test_picture_of_a_path_names_its_coordinates(portfolio, tmp_path, rng):
    path = portfolio[0].path([0, 0.01, 0.1, 1], "exact", test=rng.normal(size=(50, 4)))
    figure = path.plot(tmp_path / "path.png")
    assert (tmp_path / "path.png").stat().st_size > 10_000
    names = [text for text in figure.axes[-1].texts if text.get_text()]
    assert sorted(text.get_text() for text in names) == ["x[0]", "x[1]", "x[2]", "x[3]"]
    drawn = boxes(figure, names, without_lines)
    assert inside(figure, drawn)
    assert disjoint(drawn)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["value (what is minimised)", "mean loss, training", "mean loss, test"]
    assert figure.axes[0].get_xticklabels()[0].get_text() == "0"
    shown = figure.axes[0].lines[0].get_ydata()
    assert np.asarray(shown) == pytest.approx(path.values)


def test_picture_of_a_path_with_one_radius_and_without_names(portfolio):
    figure = portfolio[0].path([0.1]).plot(labelled=0)
    assert not figure.axes[-1].texts
    portfolio[0].path([0.0]).plot()


# ------------------------------------------------------------------ the colours of methods
@pytest.mark.parametrize(
    "methods", [("erm", "exact"), ("exact", "erm"), ("smoothed", "exact", "erm")]
)
def test_a_method_has_its_colour_wherever_it_stands(portfolio, methods):
    own = [METHOD_COLOURS[method] for method in methods]
    assert len({ERM_COLOUR, *own}) == len(methods)
    report = wdro.compare(portfolio[0], methods)
    curves = report.plot(kind="histogram").axes[0].get_lines()
    labelled = {line.get_label().split("\n")[0]: line.get_color() for line in curves}
    assert [labelled[method] for method in methods] == own
    marks = [line for line in report.plot().axes[0].get_lines() if line.get_marker() == "o"]
    assert {round(float(m.get_ydata()[0])): m.get_color() for m in marks} == dict(enumerate(own))


def test_pictures_over_the_radius_have_the_colours_of_their_methods(portfolio):
    lines = portfolio[0].path([0, 0.1, 1], "smoothed").plot().axes[0].get_lines()
    assert lines[0].get_color() == METHOD_COLOURS["smoothed"]
    (means,) = (line.get_color() for line in lines if "mean loss" in line.get_label())
    assert means not in METHOD_COLOURS.values()
    selection = wdro.select_radius(
        portfolio[0], [0.0, 0.1, 1.0], folds=2, method="exact", progress=False
    )
    lines = selection.plot().axes[0].get_lines()
    (erm,) = (line for line in lines if "ERM" in line.get_label())
    assert erm.get_color() == ERM_COLOUR


def test_a_method_at_several_radii_has_shades_of_its_colour():
    found = colours_of_methods(["erm", "exact", "exact", "exact", "another", "third"])
    assert found[0] == ERM_COLOUR
    assert found[2] == METHOD_COLOURS["exact"]
    lightness = [sum(int(c[i : i + 2], 16) for i in (1, 3, 5)) for c in found[1:4]]
    assert lightness == sorted(lightness, reverse=True)
    assert len(set(found)) == len(found)
    assert not set(found[4:]) & set(METHOD_COLOURS.values())


# ------------------------------------------------------------------ strips
def rows_of(axes, marker):
    """Where marks of a kind stand: {row: place}."""
    lines = [line for line in axes.get_lines() if line.get_marker() == marker]
    return {int(line.get_ydata()[0]): float(line.get_xdata()[0]) for line in lines}


def test_strips_mark_mean_cvar_and_promise(portfolio, rng):
    report = wdro.compare(portfolio[0], ("erm", "exact"), test=rng.normal(size=(40, 4)))
    figure = report.plot()
    assert [axes.get_title() for axes in figure.axes] == [
        "training (15 scenarios)",
        "test (40 scenarios)",
    ]
    axes = figure.axes[1]
    for k, method in enumerate(report.methods):
        losses = np.sort(method.losses["test"])
        assert rows_of(axes, "o")[k] == pytest.approx(losses.mean())
        assert rows_of(axes, ">")[k] == pytest.approx(losses[-2:].mean())  # 5% of 40
        assert rows_of(axes, "|")[k] == pytest.approx(method.promise)
        dots = axes.collections[k].get_offsets()
        np.testing.assert_allclose(np.sort(dots[:, 0]), losses)
        assert np.abs(dots[:, 1] - k).max() < 0.5
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["one scenario", "mean", "CVaR, mean of the worst 5%", "promise"]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["erm", "exact"]


def test_heavy_tails_are_cut_and_counted():
    rng = np.random.default_rng(0)
    tail = np.concatenate([rng.normal(size=995), [1e3, 1e4, 1e5, -1e6, 1e6]])
    calm = rng.normal(size=1000)
    methods = (judged("erm", {"t": tail}, 5e5), judged("exact", {"t": calm}, 1))
    figure = Report(methods, ("t",)).plot()
    (axes,) = figure.axes
    assert axes.get_xlim()[1] < 10
    texts = [text.get_text() for text in axes.texts]
    mean, cvar = tail.mean(), np.sort(tail)[-50:].mean()
    assert texts == [
        "\u2190 1 beyond",
        f"4 beyond, promise 5e+05, CVaR {cvar:.3g}, mean {mean:.3g} \u2192",
    ]
    assert 0 not in rows_of(axes, "o")
    assert rows_of(axes, "o")[1] == pytest.approx(calm.mean())
    histogram = Report(methods, ("t",)).plot(kind="histogram").axes[0]
    assert [text.get_text() for text in histogram.texts] == ["beyond: erm 5"]


@pytest.mark.parametrize("sets", [(1,), (30, 500)])
@pytest.mark.parametrize("count", [1, 4, 12])
def test_long_names_of_strips_are_inside_and_apart(sets, count):
    names = [f"{LONG[k % 4]} ({k})" for k in range(count)]
    figure = made_up(names, sets).plot()
    labels = figure.axes[0].get_yticklabels()
    drawn = boxes(figure, labels)
    assert inside(figure, drawn)
    assert disjoint(drawn)
    legend = boxes(figure, figure.legends[0].get_texts())
    assert inside(figure, legend)
    assert disjoint(legend)


def test_one_set_or_axes_of_ones_own():
    from matplotlib.figure import Figure

    report = made_up(["a", "b"], (30, 200, 300))
    assert [axes.get_title() for axes in report.plot(scenarios="test 2").axes] == [
        "test 2 (300 scenarios)"
    ]
    for kind in ("strips", "histogram"):
        own = Figure().subplots(1, 3)
        assert report.plot(ax=own, kind=kind) is own
        assert all(axes.get_title() for axes in own)
        (one,) = Figure().subplots(1, 1, squeeze=False)[0]
        assert report.plot(ax=one, scenarios="training", kind=kind) is one
        with pytest.raises(ValueError, match=r"3 panel\(s\), got 1 axes in ax="):
            report.plot(ax=one, kind=kind)
    with pytest.raises(TypeError, match="ax must be Matplotlib's axes, got str"):
        report.plot(ax="ax", scenarios="training")
    with pytest.raises(ValueError, match=r"unknown kind 'histogramm'\. Did you mean 'histogram'"):
        report.plot(kind="histogramm")
    with pytest.raises(ValueError, match="unknown set of scenarios 'test'"):
        report.plot(scenarios="test")


def test_paths_and_radii_on_axes_of_ones_own(portfolio):
    from matplotlib.figure import Figure

    path = portfolio[0].path([0, 0.1, 1])
    (ax,) = Figure().subplots(1, 1, squeeze=False)[0]
    assert path.plot(kind="decision", ax=ax) is ax
    assert ax.get_title() == "decision"
    with pytest.raises(ValueError, match="unknown kind 'decisions'"):
        path.plot(kind="decisions")
    with pytest.raises(ValueError, match="got 1 axes"):
        path.plot(ax=ax)
    selection = wdro.select_radius(portfolio[0], [0.0, 0.1, 1.0], folds=2, progress=False)
    (ax,) = Figure().subplots(1, 1, squeeze=False)[0]
    assert selection.plot(ax=ax) is ax
    assert ax.get_title().startswith(f"radius {selection.radius:.3g} has been chosen")


@settings(max_examples=50, deadline=None)
@given(st.floats(-8, 8), st.floats(0.001, 12))
def test_ticks_of_the_radius_are_even(exponent, decades):
    """The largest distance on the axis is at most about twice the smallest."""
    radii = 10.0 ** np.array([exponent, exponent + decades])
    ticks = np.array(round_numbers(radii))
    assert 1 <= len(ticks) <= 7
    steps = np.diff(np.log10(ticks))
    assert (steps > 0).all()
    assert len(steps) < 2 or steps.max() <= 2.1 * steps.min()


def test_one_loss_is_drawn_beside_its_promise():
    one = Report((judged("erm", {"t": np.array([3.0])}, 1.0),), ("t",)).plot().axes[0]
    assert rows_of(one, "|") == {0: 1.0}
    assert not one.texts
    low, high = one.get_xlim()
    assert low < 1.0 < 3.0 < high


def test_titles_are_as_wide_as_their_panels_and_names_stand_once():
    from matplotlib.figure import Figure

    sets = ("training", "a market in which all prices fall as they did once")
    losses = {name: np.arange(50.0) for name in sets}
    report = Report(tuple(judged(m, losses, 1.0) for m in ("erm", "exact")), sets)
    for kind in ("strips", "histogram"):
        figure = Figure(figsize=(7, 2.5))
        own = figure.subplots(1, 2)
        report.plot(ax=own, kind=kind)
        assert disjoint(boxes(figure, [axes.title for axes in own]))
    strips = Figure(figsize=(7, 2.5)).subplots(1, 2)
    report.plot(ax=strips)
    shown = [[label.get_text() for label in axes.get_yticklabels()] for axes in strips]
    assert shown == [["erm", "exact"], []]


def test_a_path_of_rewards_says_so(rng):
    x = cp.Variable(2, nonneg=True, name="x")
    returns = wdro.UncertainParameter(2, name="r", samples=rng.normal(size=(9, 2)))
    problem = wdro.Problem(
        cp.Maximize(returns @ x), [cp.sum(x) == 1], ambiguity=wdro.WassersteinBall(0.1)
    )
    figure = problem.path([0.1, 1.0]).plot()
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["value (what is maximised)", "mean objective, training"]
