"""Pictures of losses, and what all pictures share: colours, figures unknown to pyplot, labels."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from wdro_model.evaluation.report import Judged, Report

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f5539", "#333333")
"""Told apart by people with any colour vision (after Okabe and Ito)."""
ERM_COLOUR = COLOURS[0]
"""Blue, of ERM wherever it is drawn beside robust decisions."""
STYLES = ("-", "--", "-.", ":")
"""Curves that lie on top of each other differ in their dashes."""
PALE = "#b8b8b8"
WIDEST_LABEL = 34
"""Longer names are broken into lines of so many characters."""


def new_figure(width: float, height: float) -> Any:
    """A figure of this size in inches, unknown to pyplot."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'wdro_model[plot]'.") from error
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, path: Any) -> Any:
    """The figure, written to a file if a path is given; the suffix says the format."""
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def colour(k: int) -> str:
    return COLOURS[k % len(COLOURS)]


def method_colours(are_erm: Iterable[bool]) -> list[str]:
    """Colours of methods side by side: ERM has the same one in every picture."""
    others = cycle(COLOURS[1:])
    return [ERM_COLOUR if is_erm else next(others) for is_erm in are_erm]


def style(k: int) -> str:
    return STYLES[k % len(STYLES)]


def plain(text: str, width: int = WIDEST_LABEL) -> str:
    """A label in lines that are not too long, its dollar signs taken as such."""
    lines = textwrap.wrap(text, width) or [text]
    return "\n".join(lines).replace("$", r"\$")


def legend_columns(labels: list[str], inches: float) -> int:
    """As many columns as fit side by side under a figure of this width."""
    widest = max(len(line) for label in labels for line in label.split("\n"))
    return max(1, min(len(labels), int(inches / (0.085 * widest + 0.65))))


def spread_apart(positions: np.ndarray, least: float, low: float, high: float) -> np.ndarray:
    """Positions in the same order, at least `least` apart within [low, high], near the given ones.

    With too little room for all, they are evenly spaced over the interval.
    """
    order = np.argsort(positions, kind="stable")
    least = min(least, (high - low) / max(1, len(positions) - 1))
    steps = least * np.arange(len(positions))
    # Positions minus their least offsets must not decrease: the nearest such sequence.
    shifted = isotonic(positions[order] - steps)
    out = np.empty(len(positions))
    out[order] = np.clip(shifted, low, max(low, high - steps[-1])) + steps
    return out


def isotonic(values: np.ndarray) -> np.ndarray:
    """The nondecreasing sequence nearest to the values, by pooling adjacent violators."""
    means: list[float] = []
    counts: list[int] = []
    for value in values.tolist():
        means.append(value)
        counts.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            mean, count = means.pop(), counts.pop()
            total = counts[-1] + count
            means[-1] = (means[-1] * counts[-1] + mean * count) / total
            counts[-1] = total
    return np.repeat(means, counts)


# ------------------------------------------------------------------ histograms and densities
MOST_TOGETHER = 4
"""More methods than this get a strip each; on top of each other they could not be told apart."""
GRID = 1024
MOST_BINS = 60
COMPARABLE = 4.0
"""Panels share their axis if it is at most this many times the narrowest panel's own."""


def plot_losses(report: Report, path: Any = None) -> Any:
    """Histograms and kernel densities of the losses, a column for each set of scenarios.

    Each method is scaled to its own peak: decisions of very different spread stay visible. Up to
    four methods share a panel, more have a strip each.
    """
    drawn = draw_together if len(report.methods) <= MOST_TOGETHER else draw_strips
    return save(drawn(report), path)


def draw_together(report: Report) -> Any:
    """All methods in one panel for each set of scenarios."""
    names = report.scenario_sets
    width = max(6.4, 4.8 * len(names))
    labels = [label(judged) for judged in report.methods]
    columns = legend_columns(labels, width)
    lines = -(-len(labels) // columns) * max(label.count("\n") + 1 for label in labels)
    figure = new_figure(width, 3.75 + 0.2 * lines)
    panels = np.atleast_1d(figure.subplots(1, len(names), sharex=comparable(report)))
    for axes, scenarios in zip(panels, names):
        for k, (judged, colour) in enumerate(zip(report.methods, colours_of(report))):
            draw_losses(axes, judged, scenarios, colour, style(k))
        axes.set_title(panel_title(report, scenarios))
        axes.set_xlabel(axis_label(report))
    mark_promises(report, [list(panels)] * len(report.methods))
    panels[0].set_ylabel("density, scaled to its peak")
    handles, texts = panels[0].get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def draw_strips(report: Report) -> Any:
    """A row for each method, a column for each set of scenarios, one axis down each column."""
    names, methods = report.scenario_sets, report.methods
    figure = new_figure(2.6 + 4.2 * len(names), 1.1 + 0.85 * len(methods))
    grid = figure.subplots(
        len(methods),
        len(names),
        squeeze=False,
        sharex="all" if comparable(report) else "col",
    )
    for k, (judged, colour) in enumerate(zip(methods, colours_of(report))):
        for axes, scenarios in zip(grid[k], names):
            draw_losses(axes, judged, scenarios, colour, "-")
            axes.set_yticks([])
            for side in ("left", "top", "right"):
                axes.spines[side].set_visible(False)
        grid[k][0].set_ylabel(
            label(judged, 26),
            rotation=0,
            horizontalalignment="right",
            verticalalignment="center",
        )
    mark_promises(report, grid)
    for top, bottom, scenarios in zip(grid[0], grid[-1], names):
        top.set_title(panel_title(report, scenarios))
        bottom.set_xlabel(axis_label(report))
    return figure


def draw_losses(axes: Any, judged: Judged, scenarios: str, colour: str, line: str) -> None:
    """One method's histogram and density, its mean marked on the axis."""
    losses = judged.losses[scenarios]
    heights, edges = peak_histogram(losses)
    grid, density = peak_density(losses)
    axes.stairs(heights, edges, fill=True, alpha=0.22, color=colour)
    axes.plot(grid, density, color=colour, linestyle=line, label=label(judged))
    axes.plot(losses.mean(), 0.0, marker="^", color=colour, clip_on=False, zorder=5)
    axes.set_ylim(0.0, 1.06)
    axes.margins(x=0.02)


def mark_promises(report: Report, grid: Any) -> None:
    """A bar at the promise of each method; one far from all losses is left to the label."""
    for judged, colour, row in zip(report.methods, colours_of(report), grid):
        for axes in row if judged.promise is not None else ():
            limits = axes.get_xlim()
            axes.vlines(judged.promise, 0.0, 0.3, color=colour, lw=2.5, zorder=4)
            axes.set_xlim(limits)


def colours_of(report: Report) -> list[str]:
    """A colour for each method, blue for ERM."""
    return method_colours(judged.is_erm for judged in report.methods)


def axis_label(report: Report) -> str:
    """What is drawn: losses, or the values of an objective that is maximised."""
    what = "objective, maximised" if report.maximise else "loss"
    return f"{what} (triangle: mean, bar: promise)"


def label(judged: Judged, width: int = WIDEST_LABEL) -> str:
    """The name of a method and what it promised, in lines that are not too long."""
    promise = "" if judged.promise is None else f"\npromise {judged.promise:.4g}"
    return plain(judged.name, width) + promise


def panel_title(report: Report, scenarios: str) -> str:
    count = report.methods[0].losses[scenarios].size
    return f"{plain(scenarios)} ({count} scenario{'s' if count != 1 else ''})"


def comparable(report: Report) -> bool:
    """Would no panel lose its shape on an axis that covers all losses?"""
    ranges = []
    for scenarios in report.scenario_sets:
        losses = np.concatenate([judged.losses[scenarios] for judged in report.methods])
        ranges.append((losses.min(), losses.max()))
    low, high = np.array(ranges).T
    return bool(high.max() - low.min() <= COMPARABLE * (high - low).min())


def is_spike(losses: np.ndarray) -> bool:
    """Are all losses the same, or too few for a density?"""
    return losses.size < 3 or np.ptp(losses) <= 1e-9 * max(1e-300, float(np.abs(losses).max()))


def peak_histogram(losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Heights, the largest 1, and edges; the width of the bins by Freedman and Diaconis."""
    if is_spike(losses):
        return np.zeros(1), np.full(2, losses.mean())
    quartiles = np.quantile(losses, [0.25, 0.75])
    width = 2.0 * float(np.ptp(quartiles)) / np.cbrt(losses.size)
    bins = np.ptp(losses) / width if width > 0 else MOST_BINS
    counts, edges = np.histogram(losses, bins=int(np.clip(np.ceil(bins), 3, MOST_BINS)))
    return counts / counts.max(), edges


def peak_density(losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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
    counts, edges = np.histogram(losses, bins=GRID, range=(low, high))
    step = edges[1] - edges[0]
    reach = int(np.ceil(4 * bandwidth / step))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * step / bandwidth) ** 2)
    density = np.convolve(counts, kernel)[reach : reach + GRID]
    return edges[:-1] + step / 2, density / density.max()
