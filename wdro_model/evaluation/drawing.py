"""Pictures of losses: a strip for each method, or histograms and densities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model.display.figures import (
    COLOURS,
    ERM_COLOUR,
    METHOD_COLOURS,
    PALE,
    STYLES,
    WIDEST_LABEL,
    colour,
    colours_of_methods,
    drawn,
    inches_of,
    isotonic,
    legend_columns,
    method_colours,
    new_figure,
    panels_for,
    plain,
    save,
    spread_apart,
    style,
)
from wdro_model.errors import unknown_name

if TYPE_CHECKING:
    from wdro_model.evaluation.report import Judged, Report

__all__ = [
    "COLOURS",
    "ERM_COLOUR",
    "METHOD_COLOURS",
    "PALE",
    "STYLES",
    "WIDEST_LABEL",
    "colour",
    "colours_of",
    "isotonic",
    "legend_columns",
    "method_colours",
    "new_figure",
    "peak_density",
    "peak_histogram",
    "plain",
    "plot_losses",
    "save",
    "spread_apart",
    "style",
]
COMPARABLE = 4.0
"""Panels share their axis if it is at most this many times the narrowest panel's own."""


def plot_losses(
    report: Report,
    path: Any = None,
    *,
    kind: str = "strips",
    scenarios: str | Sequence[str] | None = None,
    ax: Any = None,
) -> Any:
    """The losses of each method, a panel for each set of scenarios; the figure, or ax if given."""
    from wdro_model.evaluation.strips import draw_strips

    kinds = {"strips": draw_strips, "histogram": draw_histograms}
    if kind not in kinds:
        raise ValueError(unknown_name("kind", kind, kinds))
    return drawn(kinds[kind](report, shown_sets(report, scenarios), ax), path, ax)


def shown_sets(report: Report, scenarios: str | Sequence[str] | None) -> list[str]:
    """The sets of scenarios that get a panel: all, or some by their names."""
    if scenarios is None:
        return list(report.scenario_sets)
    wanted = [scenarios] if isinstance(scenarios, str) else list(scenarios)
    for name in wanted:
        if name not in report.scenario_sets:
            raise ValueError(unknown_name("set of scenarios", name, report.scenario_sets))
    return wanted


def colours_of(report: Report) -> list[str]:
    """A colour for each method, the same in every picture: ERM is blue."""
    return colours_of_methods([judged.family for judged in report.methods])


def axis_label(report: Report) -> str:
    """What is drawn: losses, or the values of an objective that is maximised."""
    return "objective, maximised" if report.maximise else "loss"


def entitle(axes: Any, report: Report, scenarios: str) -> None:
    """The name of a panel and how many scenarios it shows, in lines as long as it is wide."""
    count = report.methods[0].losses[scenarios].size
    room = max(12, min(WIDEST_LABEL, int(13 * inches_of(axes)[0])))
    name, words = plain(scenarios, room), f"({count} scenario{'s' if count != 1 else ''})"
    gap = " " if len(name.split("\n")[-1]) + len(words) <= room else "\n"
    axes.set_title(f"{name}{gap}{words}", fontsize=11)


def losses_label(axes: Any, report: Report) -> str:
    """What is drawn, and the marks on it where there is room for that."""
    marks = " (triangle: mean, bar: promise)" if inches_of(axes)[0] > 3.2 else ""
    return f"{axis_label(report)}{marks}"


# ------------------------------------------------------------------ what a panel shows
CORE = (0.02, 0.98)
"""The quantiles between which lies what must be seen."""
REACH = 0.6
"""Losses and marks beyond them are shown up to this fraction of their distance."""


@dataclass(frozen=True)
class LossWindow:
    """The part of the axis that a panel shows; what lies beyond is counted at its edges."""

    low: float
    high: float

    @classmethod
    def of(cls, report: Report, scenarios: str) -> LossWindow:
        """Room for all losses and marks but those far from the others, as heavy tails have them."""
        losses = [judged.losses[scenarios] for judged in report.methods]
        ends = np.array([np.quantile(those, CORE) for those in losses])
        core = (float(ends[:, 0].min()), float(ends[:, 1].max()))
        extremes = [end(those) for those in losses for end in (np.min, np.max)]
        points = np.array([*extremes, *marks_of(report, scenarios), *core])
        # One loss, or losses that are all the same: the marks give the scale.
        span = core[1] - core[0] or 2 * float(np.ptp(points)) or 0.1 * abs(core[0]) or 1.0
        outer = (core[0] - REACH * span, core[1] + REACH * span)
        seen = points[(outer[0] <= points) & (points <= outer[1])]
        cut = (points[:-2].min() < outer[0], points[:-2].max() > outer[1])
        low, high = float(seen.min()), float(seen.max())
        room = 0.04 * max(high - low, span)
        return cls(
            low - (3 * room if cut[0] else room),
            high + (3 * room if cut[1] else room),
        )

    @property
    def width(self) -> float:
        return self.high - self.low

    def inside(
        self, losses: np.ndarray, given: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """The losses that are shown, and their probabilities where they have some."""
        seen = (self.low <= losses) & (losses <= self.high)
        return losses[seen], None if given is None else given[seen]

    def beyond(self, losses: np.ndarray) -> tuple[int, int]:
        """How many losses are not, on each side."""
        return int((losses < self.low).sum()), int((losses > self.high).sum())

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def marks_of(report: Report, scenarios: str) -> list[float]:
    """Where means, CVaRs and promises stand."""
    marks = []
    for judged in report.methods:
        found = judged.statistics(scenarios)
        marks += [found.mean, found.tail]
        marks += [] if judged.promise is None else [judged.promise]
    return marks


def windows(report: Report, sets: Sequence[str]) -> list[LossWindow]:
    """What each panel shows: the same, unless some panel would lose its shape."""
    own = [LossWindow.of(report, scenarios) for scenarios in sets]
    both = LossWindow(min(w.low for w in own), max(w.high for w in own))
    if both.width <= COMPARABLE * min(w.width for w in own):
        return [both] * len(own)
    return own


# ------------------------------------------------------------------ histograms and densities
MOST_TOGETHER = 4
"""More methods than this get a strip each; on top of each other they could not be told apart."""
SMALL = {"ha": "right", "va": "top", "fontsize": 8, "color": "0.35"}
GRID = 1024
MOST_BINS = 60


def draw_histograms(report: Report, sets: Sequence[str], ax: Any = None) -> Any:
    """Histograms and kernel densities of the losses, a column for each set of scenarios.

    Each method is scaled to its own peak: decisions of very different spread stay visible. Up to
    four methods share a panel, more have a row each.
    """
    if ax is None and len(report.methods) > MOST_TOGETHER:
        return draw_rows(report, sets)
    return draw_together(report, sets, ax)


def draw_together(report: Report, sets: Sequence[str], ax: Any) -> Any:
    """All methods in one panel for each set of scenarios."""
    width = max(6.4, 4.8 * len(sets))
    labels = [label(judged) for judged in report.methods]
    columns = legend_columns(labels, width)
    lines = -(-len(labels) // columns) * max(label.count("\n") + 1 for label in labels)
    figure, panels = panels_for(ax, len(sets), width, 3.75 + 0.2 * lines)
    for axes, scenarios, window in zip(panels, sets, windows(report, sets)):
        cut = []
        for k, (judged, own) in enumerate(zip(report.methods, colours_of(report))):
            draw_losses(axes, judged, scenarios, window, own, style(k))
            count = sum(window.beyond(judged.losses[scenarios]))
            cut += [f"{plain(judged.name)} {count}"] if count else []
        if cut:
            axes.text(0.99, 0.98, "beyond: " + ", ".join(cut), transform=axes.transAxes, **SMALL)
        axes.set_xlim(window.low, window.high)
        entitle(axes, report, scenarios)
        axes.set_xlabel(losses_label(axes, report))
    panels[0].set_ylabel("density, scaled to its peak")
    handles, texts = panels[0].get_legend_handles_labels()
    if ax is None:
        figure.legend(handles, texts, loc="outside lower center", ncols=columns, frameon=False)
    else:
        panels[-1].legend(handles, texts, fontsize="small", framealpha=0.7)
    return figure


def draw_rows(report: Report, sets: Sequence[str]) -> Any:
    """A row for each method, a column for each set of scenarios, one axis down each column."""
    methods = report.methods
    figure = new_figure(2.6 + 4.2 * len(sets), 1.1 + 0.85 * len(methods))
    grid = figure.subplots(len(methods), len(sets), squeeze=False, sharex="col")
    shown = windows(report, sets)
    for row, judged, own in zip(grid, methods, colours_of(report)):
        for axes, scenarios, window in zip(row, sets, shown):
            draw_losses(axes, judged, scenarios, window, own, "-")
            axes.set_xlim(window.low, window.high)
            axes.set_yticks([])
            count = sum(window.beyond(judged.losses[scenarios]))
            if count:
                axes.text(0.99, 0.98, f"{count} beyond", transform=axes.transAxes, **SMALL)
            for side in ("left", "top", "right"):
                axes.spines[side].set_visible(False)
        row[0].set_ylabel(
            label(judged, 26),
            rotation=0,
            horizontalalignment="right",
            verticalalignment="center",
        )
    for top, bottom, scenarios in zip(grid[0], grid[-1], sets):
        entitle(top, report, scenarios)
        bottom.set_xlabel(losses_label(bottom, report))
    return figure


def draw_losses(
    axes: Any, judged: Judged, scenarios: str, window: LossWindow, colour: str, line: str
) -> None:
    """One method's histogram and density, its mean marked on the axis, a bar at its promise."""
    losses = judged.losses[scenarios]
    seen = window.inside(losses, judged.probabilities.get(scenarios))
    heights, edges = peak_histogram(*seen)
    grid, density = peak_density(*seen)
    axes.stairs(heights, edges, fill=True, alpha=0.22, color=colour)
    axes.plot(grid, density, color=colour, linestyle=line, label=label(judged))
    mean = judged.mean(scenarios)
    axes.plot(mean, 0.0, marker="^", color=colour, clip_on=False, zorder=5)
    if judged.promise is not None:  # one far from all losses is left to the label
        axes.vlines(judged.promise, 0.0, 0.3, color=colour, lw=2.5, zorder=4)
    axes.set_ylim(0.0, 1.06)


def label(judged: Judged, width: int = WIDEST_LABEL) -> str:
    """The name of a method and what it promised, in lines that are not too long."""
    promise = "" if judged.promise is None else f"\npromise {judged.promise:.4g}"
    return plain(judged.name, width) + promise


def is_spike(losses: np.ndarray) -> bool:
    """Are all losses the same, or too few for a density?"""
    return losses.size < 3 or np.ptp(losses) <= 1e-9 * max(1e-300, float(np.abs(losses).max()))


def peak_histogram(
    losses: np.ndarray, given: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Heights, the largest 1, and edges; the width of the bins by Freedman and Diaconis."""
    if is_spike(losses):
        return np.zeros(1), np.full(2, losses.mean())
    quartiles = np.quantile(losses, [0.25, 0.75])
    width = 2.0 * float(np.ptp(quartiles)) / np.cbrt(losses.size)
    bins = np.ptp(losses) / width if width > 0 else MOST_BINS
    count = int(np.clip(np.ceil(bins), 3, MOST_BINS))
    counts, edges = np.histogram(losses, bins=count, weights=given)
    return counts / counts.max(), edges


def peak_density(
    losses: np.ndarray, given: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """A Gaussian kernel density with peak 1 on a grid; a spike where all losses are the same.

    The losses are first counted on the grid, so that a million of them cost no more than a few.
    Silverman's rule gives the bandwidth, which is at least two steps of the grid.
    """
    if is_spike(losses):
        return np.full(2, losses.mean()), np.array([0.0, 1.0])
    middle = float(np.ptp(np.quantile(losses, [0.25, 0.75]))) / 1.34
    spread = min(float(losses.std()), middle) if middle > 0 else float(losses.std())
    bandwidth = max(0.9 * spread * losses.size**-0.2, 2.0 * float(np.ptp(losses)) / GRID)
    low, high = losses.min() - 3 * bandwidth, losses.max() + 3 * bandwidth
    counts, edges = np.histogram(losses, bins=GRID, range=(low, high), weights=given)
    step = edges[1] - edges[0]
    reach = int(np.ceil(4 * bandwidth / step))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * step / bandwidth) ** 2)
    density = np.convolve(counts, kernel)[reach : reach + GRID]
    return edges[:-1] + step / 2, density / density.max()
