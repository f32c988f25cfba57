"""Pictures over the radius: paths of decisions, and the scores of a selection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model import checks
from wdro_model.display.figures import (
    COLOURS,
    ERM_COLOUR,
    METHOD_COLOURS,
    PALE,
    cycle,
    finished_plot,
    inches_of,
    legend_columns,
    panels_for,
    plain,
    scenario_colour,
    spread_apart,
    style,
)

if TYPE_CHECKING:
    from wdro_model.evaluation.path import RadiusPath
    from wdro_model.evaluation.radius import RadiusSelection


PANEL_HEIGHT, PANEL_WIDTH = 4.4, 5.2
"""Inches of one panel."""
LABEL_INCHES = 0.17
"""Inches from one label to the next."""
LEAST_CHANGE = 1e-6
"""Fraction of the largest coordinate up to which a change is a solver's rounding."""
NAMED_CHANGE = 0.01
"""Fraction of the largest change up to which a coordinate has no name in the picture."""
MOST_TICKS = 7
FLAT_SHARE = 0.25
"""Mean losses that use less than this share of the panel of values have their own panel as well."""


KINDS = ("loss", "mean loss", "decision")
"""The panels of a path."""


def plot_path(
    path: RadiusPath,
    file: Any = None,
    labelled: int = 8,
    *,
    kind: str | None = None,
    ax: Any = None,
) -> Any:
    """Values, mean losses and the coordinates of the decision over the radius."""
    if kind is not None:
        checks.choice("kind", kind, KINDS)
    unit = "objective" if path.maximise else "loss"
    values, means = path_curves(path, unit)
    curves = {**values, **means}
    flat = 0 < height_of(means) < FLAT_SHARE * height_of(curves)
    kinds = [kind] if kind else [name for name in KINDS if flat or name != "mean loss"]
    width = len(kinds) * PANEL_WIDTH
    figure, panels = panels_for(ax, len(kinds), width, PANEL_HEIGHT)
    places = axis_positions(path.radii)
    for axes, name in zip(panels, kinds):
        if name == "decision":
            draw_decisions(axes, path, places, max(0, labelled))
        else:
            draw_curves(axes, path, places, curves, list(means if name == "mean loss" else curves))
            title = f"mean {unit} alone" if name == "mean loss" else f"promise and mean {unit}"
            axes.set_title(title)
            axes.set_ylabel(f"{unit}{' (band: two standard errors)' if len(means) > 1 else ''}")
        set_radius_axis(axes, path.radii, places)
        if path.radii[0] == 0:
            axes.axvline(places[0], color=PALE, lw=0.8, zorder=0)
    handles, labels = panels[0].get_legend_handles_labels()
    if handles and ax is None:
        columns = legend_columns(labels, width)
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    elif handles:
        panels[0].legend(handles, labels, fontsize="small", framealpha=0.7)
    return finished_plot(figure, file, ax)


Curves = dict[str, np.ndarray]


def path_curves(path: RadiusPath, unit: str) -> tuple[Curves, Curves]:
    """The values of the method by label (and worst-case risks that differ), and the mean losses."""
    values = {f"value (what is {'maximised' if path.maximise else 'minimised'})": path.values}
    finite = ~np.isnan(path.robust_values)
    if finite.any() and not np.allclose(path.robust_values[finite], path.values[finite], rtol=1e-5):
        values["worst-case risk"] = path.robust_values
    means = {f"mean {unit}, {plain(name)}": path.means(name) for name in path.scenario_sets}
    return values, means


def height_of(curves: Curves) -> float:
    """The distance from the lowest to the highest point of the curves."""
    points = list(curves.values())
    return float(np.nanmax(points) - np.nanmin(points))


def draw_curves(
    axes: Any, path: RadiusPath, places: np.ndarray, curves: Curves, shown: list[str]
) -> None:
    """The shown curves, those of held-out scenarios with a band of two standard errors.

    Values have the colour of the method, mean losses that of their scenarios.
    """
    first = len(curves) - len(path.scenario_sets)  # the mean losses come last, the samples first
    own = METHOD_COLOURS.get(path.method, COLOURS[-1])
    for k, (label, curve) in enumerate(curves.items()):
        if label not in shown:
            continue
        colour = own if k < first else scenario_colour(k - first)
        axes.plot(places, curve, style(k), marker=".", color=colour, label=label)
        if k > first:
            statistics = path.statistics(path.scenario_sets[k - first])
            band = 2 * np.array([np.nan if s is None else s.standard_error for s in statistics])
            axes.fill_between(places, curve - band, curve + band, color=colour, alpha=0.15, lw=0)


def draw_decisions(axes: Any, path: RadiusPath, places: np.ndarray, labelled: int) -> None:
    """A line for each coordinate; the coordinates that change most in colour, with their names."""
    decisions = path.decisions
    chosen = most_changing(decisions, labelled)
    others = np.setdiff1d(np.arange(decisions.shape[1]), chosen)
    if others.size:
        axes.plot(places, decisions[:, others], color=PALE, lw=0.7, alpha=0.7, zorder=1)
    for k, index in enumerate(chosen):
        axes.plot(places, decisions[:, index], style(k), marker=".", color=cycle(k), zorder=2)
    axes.margins(y=0.04)
    named = f" ({chosen.size} of {decisions.shape[1]} coordinates named)" if others.size else ""
    axes.set_title(f"decision{named}")
    axes.set_ylabel("value of a coordinate")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    finished = np.flatnonzero(~np.isnan(decisions).any(axis=1))
    if not chosen.size or not finished.size:
        return
    last = finished[-1]
    ends = decisions[last, chosen]
    least = LABEL_INCHES / inches_of(axes)[1] * (high - low)
    heights = spread_apart(ends, least, low, high)
    for k, (index, end, height) in enumerate(zip(chosen, ends, heights)):
        line = {"arrowstyle": "-", "color": cycle(k), "lw": 0.6, "alpha": 0.6, "relpos": (0.0, 0.5)}
        axes.annotate(
            plain(path.coordinates[index]),
            xy=(places[last], end),
            xytext=(1.06, height),
            textcoords=axes.get_yaxis_transform(),
            color=cycle(k),
            fontsize=9,
            verticalalignment="center",
            arrowprops=line,
            annotation_clip=False,
        )


def most_changing(decisions: np.ndarray, count: int) -> np.ndarray:
    """The coordinates with the widest range along the path; the largest ones where none changes."""
    whole = decisions[~np.isnan(decisions).any(axis=1)]
    if not whole.size:
        return np.zeros(0, dtype=int)
    change, size = np.ptp(whole, axis=0), np.abs(whole).max(axis=0)
    measure = change if change.max() > LEAST_CHANGE * size.max() else size
    order = np.argsort(-measure, kind="stable")[:count]
    return order[measure[order] > NAMED_CHANGE * measure.max()]


# ------------------------------------------------------------------ the scores of a selection
def plot_radii(selection: RadiusSelection, path: Any = None, *, ax: Any = None) -> Any:
    """Mean scores with one standard error to each side, against the radius on a log axis.

    Radius 0 stands at the left edge, cut off from the axis; its level is a horizontal line. Thin
    lines are the folds, the chosen radius is marked.
    """
    figure, (axes,) = panels_for(ax, 1, 6.4, 4.4)
    solution = selection.solution
    robust = METHOD_COLOURS.get("exact" if solution is None else solution.method, COLOURS[1])
    robust = COLOURS[4] if robust == ERM_COLOUR else robust  # radius 0 was chosen
    places, mean = axis_positions(selection.radii), selection.mean
    several = selection.counts.max() > 1
    for k, fold in enumerate(selection.scores.T if several else ()):
        label = "_folds" if k else "folds"  # one of them in the legend
        axes.plot(places, fold, color=PALE, linewidth=0.8, zorder=1, label=label)
    errors = np.where(np.isfinite(selection.standard_error), selection.standard_error, 0.0)
    points = {"marker": "o", "markersize": 4, "capsize": 3, "label": "mean ± standard error"}
    axes.errorbar(places, mean, yerr=errors, color=robust, **points)
    if selection.erm is not None:
        axes.axhline(selection.erm, color=ERM_COLOUR, ls=":", label="ERM (radius 0)", zorder=1)
    ring = {"marker": "o", "ms": 11, "mfc": "none", "mew": 2, "ls": "none", "color": COLOURS[-1]}
    chosen = selection.index
    axes.plot(places[chosen], mean[chosen], label=f"chosen: {selection.radius:.3g}", **ring)
    set_radius_axis(axes, selection.radii, places)
    if selection.erm is not None and places.size > 1:  # the axis is cut between 0 and the others
        cut = {"ha": "center", "va": "center", "clip_on": False}
        middle = np.sqrt(places[0] * places[1])
        axes.text(middle, 0.0, "//", transform=axes.get_xaxis_transform(), **cut)
    # Room for the means and their errors; folds that lie far away leave the picture.
    known = np.isfinite(mean)
    low = float((mean - 1.6 * errors)[known].min())
    high = float((mean + 1.6 * errors)[known].max())
    room = 0.08 * (high - low) or 0.1 * max(1.0, abs(high))
    axes.set_ylim(low - room, high + room)
    axes.set_ylabel(f"{plain(selection.metric)} of held-out losses")
    axes.set_title(plain(selection.headline, int(11 * inches_of(axes)[0])), fontsize=11)
    if ax is None:
        figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    else:
        axes.legend(fontsize="small", framealpha=0.7)
    return finished_plot(figure, path, ax)


# ------------------------------------------------------------------ the axis of the radius
def axis_positions(radii: np.ndarray) -> np.ndarray:
    """Positions of the radii on a logarithmic axis; radius 0 is at its left edge."""
    positive = radii[radii > 0]
    if not positive.size:
        return np.ones(radii.size)
    decades = np.log10(positive.max() / positive.min())
    edge = positive.min() / 10 ** max(0.3, 0.12 * decades)
    return np.where(radii > 0, radii, edge)


def set_radius_axis(axes: Any, radii: np.ndarray, places: np.ndarray) -> None:
    """A logarithmic axis with ticks at round numbers, and at 0 if it is there."""
    axes.set_xscale("log")
    axes.set_xlabel("radius")
    ticks = round_numbers(radii[radii > 0])
    labels = [f"{tick:g}" for tick in ticks]
    if radii[0] == 0:
        ticks, labels = [places[0], *ticks], ["0", *labels]
    axes.set_xticks(ticks, labels)
    axes.set_xticks(minor_ticks(radii[radii > 0]), minor=True)
    axes.xaxis.set_minor_formatter("")
    if places.min() == places.max():
        axes.set_xlim(places[0] / 2, places[0] * 2)


def round_numbers(radii: np.ndarray) -> list[float]:
    """At most seven round numbers in the range of the radii, evenly spaced on a log axis.

    Powers of ten, every second or third of them over many decades, with 3, or 2 and 5, times them
    over few; steps of one size where that is not enough.
    """
    if not radii.size:
        return []
    for leads in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        ticks = multiples_of_powers(radii, leads)
        if len(ticks) >= 3:
            return ticks[:: -(-len(ticks) // MOST_TICKS)]
    return evenly_spaced(float(radii.min()), float(radii.max()))


def multiples_of_powers(radii: np.ndarray, leads: Sequence[float]) -> list[float]:
    """The multiples of powers of ten, by the given numbers, in the range of the radii."""
    low, high = float(radii.min()), float(radii.max())
    exponents = np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    ticks = [lead * 10.0**e for e in exponents for lead in leads]
    return [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]


def evenly_spaced(low: float, high: float) -> list[float]:
    """Multiples of a round step between two numbers; the numbers themselves where none is."""
    if low == high:
        return [low]
    size = 10.0 ** np.floor(np.log10(high - low))
    for step in (0.2 * size, 0.5 * size, size, 2 * size):
        first = np.ceil(low / step - 1e-9)
        count = int(np.floor(high / step + 1e-9) - first) + 1
        if count <= 5:
            break
    ticks = [float(f"{(first + k) * step:.12g}") for k in range(count)]
    return ticks if count >= 2 else [low, high]


def minor_ticks(radii: np.ndarray) -> list[float]:
    """The multiples of powers of ten in the range of the radii; none over many decades."""
    if not radii.size or np.log10(radii.max() / radii.min()) > MOST_TICKS:
        return []
    return multiples_of_powers(radii, range(1, 10))
