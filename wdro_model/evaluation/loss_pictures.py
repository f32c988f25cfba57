"""Pictures of the losses in a report: strips with a row for each method, or histograms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model import checks
from wdro_model.display.figures import (
    WIDEST_LABEL,
    colours_of_methods,
    finished_plot,
    inches_of,
    legend_columns,
    panels_for,
    plain,
    style,
)

if TYPE_CHECKING:
    from wdro_model.evaluation.report import Judged, Report

Probabilities = np.ndarray | None


def plot_losses(
    report: Report,
    path: Any = None,
    *,
    kind: str = "strips",
    scenarios: str | Sequence[str] | None = None,
    ax: Any = None,
) -> Any:
    """The losses of each method, a panel for each set of scenarios; the figure, or ax if given."""
    kinds = {"strips": draw_strips, "histogram": draw_histograms}
    checks.choice("kind", kind, kinds)
    sets = report.scenario_sets if scenarios is None else scenarios
    sets = [sets] if isinstance(sets, str) else list(sets)
    for name in sets:
        checks.choice("set of scenarios", name, report.scenario_sets)
    return finished_plot(kinds[kind](report, sets, ax), path, ax)


def method_colours(report: Report) -> list[str]:
    """A colour for each method, the same in every picture: ERM is blue."""
    return colours_of_methods([judged.family for judged in report.methods])


def label_panel(axes: Any, report: Report, scenarios: str, marks: str = "") -> None:
    """Name a panel and count its scenarios, in lines as long as it is wide; explain the marks."""
    count, inches = report.methods[0].losses[scenarios].size, inches_of(axes)[0]
    room = max(12, min(WIDEST_LABEL, int(13 * inches)))
    name, words = plain(scenarios, room), f"({count} scenario{'s' if count != 1 else ''})"
    gap = " " if len(name.split("\n")[-1]) + len(words) <= room else "\n"
    axes.set_title(f"{name}{gap}{words}", fontsize=11)
    losses = "objective, maximised" if report.maximise else "loss"
    axes.set_xlabel(losses + (marks if inches > 3.2 else ""))


# ------------------------------------------------------------------ the range of a panel
CORE_QUANTILES = (0.02, 0.98)
"""The quantiles of the losses that every panel shows."""
OUTER_SHARE = 0.6
"""Losses and marks beyond these are shown up to this fraction of their distance."""
SHARED_AXIS_RATIO = 4.0
"""Panels share an axis that is at most this many times as wide as the narrowest panel's own."""


@dataclass(frozen=True)
class LossWindow:
    """The range of a panel's axis; losses beyond it are counted at its edges."""

    low: float
    high: float

    @classmethod
    def around(cls, report: Report, scenarios: str) -> LossWindow:
        """Room for all losses and marks but those far from the others, as heavy tails have them."""
        losses = [judged.losses[scenarios] for judged in report.methods]
        statistics = [judged.statistics(scenarios) for judged in report.methods]
        promises = [j.promise for j in report.methods if j.promise is not None]
        marks = [*(s.mean for s in statistics), *(s.tail for s in statistics), *promises]
        extremes = [*map(np.min, losses), *map(np.max, losses), *marks]
        cores = np.array([np.quantile(values, CORE_QUANTILES) for values in losses])
        core = (cores[:, 0].min(), cores[:, 1].max())
        # One loss, or losses that are all the same: the marks give the scale.
        points = np.array([*extremes, *core])
        span = core[1] - core[0] or 2 * np.ptp(points) or 0.1 * abs(core[0]) or 1.0
        outer = (core[0] - OUTER_SHARE * span, core[1] + OUTER_SHARE * span)
        seen = points[(outer[0] <= points) & (points <= outer[1])]
        room = 0.04 * max(float(np.ptp(seen)), span)
        below = 3 * room if min(extremes) < outer[0] else room
        above = 3 * room if max(extremes) > outer[1] else room
        return cls(float(seen.min() - below), float(seen.max() + above))

    @property
    def width(self) -> float:
        return self.high - self.low

    def visible(
        self, losses: np.ndarray, probabilities: Probabilities
    ) -> tuple[np.ndarray, Probabilities]:
        """The losses within the range, and their probabilities where they have some."""
        seen = (self.low <= losses) & (losses <= self.high)
        return losses[seen], None if probabilities is None else probabilities[seen]

    def count_beyond(self, losses: np.ndarray) -> tuple[int, int]:
        """The numbers of losses below and above the range."""
        return int((losses < self.low).sum()), int((losses > self.high).sum())


def windows(report: Report, sets: Sequence[str]) -> list[LossWindow]:
    """The range of each panel: the same, unless some panel would lose its shape."""
    own = [LossWindow.around(report, scenarios) for scenarios in sets]
    shared = LossWindow(min(w.low for w in own), max(w.high for w in own))
    if shared.width <= SHARED_AXIS_RATIO * min(w.width for w in own):
        return [shared] * len(own)
    return own


# ------------------------------------------------------------------ histograms and densities
CORNER_TEXT = {"ha": "right", "va": "top", "fontsize": 8, "color": "0.35"}
DENSITY_POINTS = 1024
MOST_BINS = 60


def draw_histograms(report: Report, sets: Sequence[str], ax: Any = None) -> Any:
    """Histograms and kernel densities of the losses, a panel for each set of scenarios.

    Each method is scaled to its own peak: decisions of very different spread stay visible.
    """
    width = max(6.4, 4.8 * len(sets))
    labels = [histogram_label(judged) for judged in report.methods]
    columns = legend_columns(labels, width)
    lines = -(-len(labels) // columns) * max(label.count("\n") + 1 for label in labels)
    figure, panels = panels_for(ax, len(sets), width, 3.75 + 0.2 * lines)
    for axes, scenarios, window in zip(panels, sets, windows(report, sets)):
        cut = []
        for k, (judged, colour) in enumerate(zip(report.methods, method_colours(report))):
            draw_histogram(axes, judged, scenarios, window, colour, style(k))
            count = sum(window.count_beyond(judged.losses[scenarios]))
            cut += [f"{plain(judged.name)} {count}"] if count else []
        if cut:
            text = "beyond: " + ", ".join(cut)
            axes.text(0.99, 0.98, text, transform=axes.transAxes, **CORNER_TEXT)
        axes.set_xlim(window.low, window.high)
        label_panel(axes, report, scenarios, " (triangle: mean, bar: promise)")
    panels[0].set_ylabel("density, scaled to its peak")
    handles, texts = panels[0].get_legend_handles_labels()
    if ax is None:
        figure.legend(handles, texts, loc="outside lower center", ncols=columns, frameon=False)
    else:
        panels[-1].legend(handles, texts, fontsize="small", framealpha=0.7)
    return figure


def histogram_label(judged: Judged) -> str:
    """The name of a method and its promise, in lines that are not too long."""
    promise = "" if judged.promise is None else f"\npromise {judged.promise:.4g}"
    return plain(judged.name) + promise


def draw_histogram(
    axes: Any, judged: Judged, scenarios: str, window: LossWindow, colour: str, line: str
) -> None:
    """The histogram and density of a method, with marks at its mean and its promise."""
    outcome = judged.outcomes[scenarios]
    seen = window.visible(outcome.losses, outcome.probabilities)
    heights, edges = peak_histogram(*seen)
    grid, density = peak_density(*seen)
    axes.stairs(heights, edges, fill=True, alpha=0.22, color=colour)
    axes.plot(grid, density, color=colour, linestyle=line, label=histogram_label(judged))
    mean = judged.mean(scenarios)
    axes.plot(mean, 0.0, marker="^", color=colour, clip_on=False, zorder=5)
    if judged.promise is not None:  # the label has one that is far from all losses
        axes.vlines(judged.promise, 0.0, 0.3, color=colour, lw=2.5, zorder=4)
    axes.set_ylim(0.0, 1.06)


def is_spike(losses: np.ndarray) -> bool:
    """Whether the losses are all the same, or too few for a density."""
    return losses.size < 3 or np.ptp(losses) <= 1e-9 * max(1e-300, float(np.abs(losses).max()))


def peak_histogram(
    losses: np.ndarray, probabilities: Probabilities = None
) -> tuple[np.ndarray, np.ndarray]:
    """Heights, the largest 1, and edges; the width of the bins by Freedman and Diaconis."""
    if is_spike(losses):
        return np.zeros(1), np.full(2, losses.mean())
    quartiles = np.quantile(losses, [0.25, 0.75])
    width = 2.0 * float(np.ptp(quartiles)) / np.cbrt(losses.size)
    bins = np.ptp(losses) / width if width > 0 else MOST_BINS
    count = int(np.clip(np.ceil(bins), 3, MOST_BINS))
    counts, edges = np.histogram(losses, bins=count, weights=probabilities)
    return counts / counts.max(), edges


def peak_density(
    losses: np.ndarray, probabilities: Probabilities = None
) -> tuple[np.ndarray, np.ndarray]:
    """A Gaussian kernel density with peak 1 on a grid; a spike where all losses are the same.

    The losses are first counted on the grid, so that a million of them cost no more than a few.
    Silverman's rule gives the bandwidth, which is at least two steps of the grid.
    """
    if is_spike(losses):
        return np.full(2, losses.mean()), np.array([0.0, 1.0])
    middle = float(np.ptp(np.quantile(losses, [0.25, 0.75]))) / 1.34
    spread = min(float(losses.std()), middle) if middle > 0 else float(losses.std())
    bandwidth = max(0.9 * spread * losses.size**-0.2, 2.0 * float(np.ptp(losses)) / DENSITY_POINTS)
    ends = (losses.min() - 3 * bandwidth, losses.max() + 3 * bandwidth)
    counts, edges = np.histogram(losses, bins=DENSITY_POINTS, range=ends, weights=probabilities)
    step = edges[1] - edges[0]
    reach = int(np.ceil(4 * bandwidth / step))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * step / bandwidth) ** 2)
    density = np.convolve(counts, kernel)[reach : reach + DENSITY_POINTS]
    return edges[:-1] + step / 2, density / density.max()


# ------------------------------------------------------------------ strips
DOT_AREA = 12
LARGEST_DOT_RATIO = 4
"""The area of the most probable scenario's dot, as a multiple of the usual one."""
MOST_DOTS = 300
"""More losses than this are drawn as a band, as wide as they are dense."""
NAME_WIDTH = 24
"""Characters in a line of a name."""
ROW_INCHES, NAME_LINE_INCHES = 0.52, 0.17
GOLDEN_RATIO = (np.sqrt(5) - 1) / 2
HALF_HEIGHT = 0.36
"""Half the height of a strip, in rows."""
INK = "0.25"


def draw_strips(report: Report, sets: Sequence[str], ax: Any = None) -> Any:
    """A panel for each set of scenarios, a row for each method in all of them."""
    names = [plain(judged.name, NAME_WIDTH) for judged in report.methods]
    rows = sum(max(ROW_INCHES, NAME_LINE_INCHES * (name.count("\n") + 1.6)) for name in names)
    widest = max(len(line) for name in names for line in name.split("\n"))
    width = 0.9 + 0.085 * widest + 4.0 * len(sets)
    handles = legend_handles(report, sets)
    columns = legend_columns([handle.get_label() for handle in handles], 1.35 * width)
    height = 1.15 + rows + 0.22 * -(-len(handles) // columns)
    figure, panels = panels_for(ax, len(sets), width, height, sharey=True)
    for axes, scenarios, window in zip(panels, sets, windows(report, sets)):
        for k, (judged, colour) in enumerate(zip(report.methods, method_colours(report))):
            draw_strip(axes, k, judged, scenarios, window, colour)
        axes.set_xlim(window.low, window.high)
        axes.set_ylim(len(names) - 0.45, -0.55)
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(axis="y", length=0, labelleft=axes is panels[0])
        axes.grid(axis="x", color="0.9", lw=0.7)
        axes.set_axisbelow(True)
        axes.spines[["left", "top", "right"]].set_visible(False)
        label_panel(axes, report, scenarios)
    legend: dict[str, Any] = {"handles": handles, "frameon": False, "fontsize": "small"}
    if ax is None:
        figure.legend(loc="outside lower center", ncols=columns, **legend)
    else:  # below the user's axes, whose layout is theirs
        width, height = inches_of(panels[-1])
        columns = legend_columns([handle.get_label() for handle in handles], 1.35 * width)
        place = (0.5, -0.55 / max(height, 0.5))
        legend |= {"loc": "upper center", "bbox_to_anchor": place, "columnspacing": 1.0}
        panels[-1].legend(ncols=columns, **legend)
    return figure


def draw_strip(
    axes: Any, row: int, judged: Judged, scenarios: str, window: LossWindow, colour: str
) -> None:
    """The losses of a method around its row, as dots or a band, and its marks."""
    outcome, statistics = judged.outcomes[scenarios], judged.statistics(scenarios)
    seen, shares = window.visible(outcome.losses, outcome.probabilities)
    if outcome.losses.size > MOST_DOTS and np.ptp(seen) > 0:
        grid, density = peak_density(seen, shares)
        inside = (window.low <= grid) & (grid <= window.high)
        half = HALF_HEIGHT * np.where(inside, density, 0.0)
        axes.fill_between(grid, row - half, row + half, color=colour, alpha=0.3, lw=0)
    elif seen.size:
        areas: Any = DOT_AREA
        if shares is not None:
            areas = np.maximum(1.0, DOT_AREA * LARGEST_DOT_RATIO * shares / shares.max())
        fade = float(np.clip(30 / seen.size, 0.25, 0.6))
        look = {"color": colour, "alpha": fade, "linewidths": 0, "zorder": 2}
        axes.scatter(seen, row + dot_offsets(seen), s=areas, **look)
    ends = np.clip([statistics.mean, statistics.tail], window.low, window.high)
    axes.plot(ends, [row, row], color=colour, lw=1.6, zorder=3)
    edge = {"color": colour, "mec": "white", "mew": 1.1, "ms": 8}
    marks: list[tuple[str, float | None, dict[str, Any]]] = [
        ("promise", judged.promise, {"marker": "|", "ms": 22, "mew": 3, "color": colour}),
        ("CVaR", statistics.tail, {**edge, "marker": tail_marker(judged.maximise)}),
        ("mean", statistics.mean, {**edge, "marker": "o"}),
    ]
    below, above = window.count_beyond(outcome.losses)
    notes = [[f"{count} beyond"] if count else [] for count in (below, above)]
    for name, value, look in marks:
        if value is None:
            continue
        if window.low <= value <= window.high:
            axes.plot(value, row, ls="none", zorder=4, clip_on=False, **look)
        else:
            notes[int(value > window.high)].append(f"{name} {value:.3g}")
    if notes[0]:
        note_at_edge(axes, row, f"\u2190 {', '.join(notes[0])}", window.low, "left")
    if notes[1]:
        note_at_edge(axes, row, f"{', '.join(notes[1])} \u2192", window.high, "right")


def note_at_edge(axes: Any, row: int, text: str, edge: float, side: str) -> None:
    """Write at an edge of the panel what lies beyond it."""
    box = {"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.8}
    look = {"ha": side, "va": "center", "fontsize": 7.5, "color": INK, "zorder": 5, "bbox": box}
    axes.annotate(text, (edge, row - HALF_HEIGHT), **look)


def dot_offsets(losses: np.ndarray) -> np.ndarray:
    """Distances from the row at which neighbouring losses do not cover each other."""
    if losses.size == 1:
        return np.zeros(1)
    ranks = np.argsort(np.argsort(losses, kind="stable"), kind="stable")
    return HALF_HEIGHT * 0.85 * (2 * ((ranks * GOLDEN_RATIO) % 1.0) - 1)


def tail_marker(maximise: bool) -> str:
    """A triangle that points to the worse side."""
    return "<" if maximise else ">"


def legend_handles(report: Report, sets: Sequence[str]) -> list[Any]:
    """The marks that the legend explains."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    outcomes = [judged.outcomes[scenarios] for judged in report.methods for scenarios in sets]
    sizes = [outcome.losses.size for outcome in outcomes]
    mark: dict[str, Any] = {"ls": "none", "color": INK}
    handles: list[Any] = []
    if min(sizes) <= MOST_DOTS:
        weighted = any(outcome.probabilities is not None for outcome in outcomes)
        text = "one scenario, by its probability" if weighted else "one scenario"
        handles.append(Line2D([], [], marker=".", alpha=0.5, label=text, **mark))
    if max(sizes) > MOST_DOTS:
        handles.append(Patch(color=INK, alpha=0.3, lw=0, label="density of the scenarios"))
    tail = tail_marker(report.maximise)
    handles.append(Line2D([], [], marker="o", label="mean", **mark))
    handles.append(Line2D([], [], marker=tail, label="CVaR, mean of the worst 5%", **mark))
    if any(judged.promise is not None for judged in report.methods):
        handles.append(Line2D([], [], marker="|", ms=11, mew=3, label="promise", **mark))
    return handles
