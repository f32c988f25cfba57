"""Strips: one row for each method, its losses as dots or a band, its mean, CVaR and promise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model.display.figures import inches_of, legend_columns, panels_for, plain
from wdro_model.evaluation.drawing import (
    LossWindow,
    axis_label,
    colours_of,
    entitle,
    peak_density,
    windows,
)

if TYPE_CHECKING:
    from wdro_model.evaluation.report import Judged, Report

DOT, LARGEST = 12, 4
"""The area of a dot, and how many times it the most probable scenario has."""
MOST_DOTS = 300
"""More losses than this are drawn as a band, as wide as they are dense."""
NAME_WIDTH = 24
"""Characters in a line of a name."""
ROW, LINE = 0.52, 0.17
"""Inches of a row, and of a line of its name."""
GOLDEN = (np.sqrt(5) - 1) / 2
HALF = 0.36
"""Half the height of a strip, in rows."""
INK = "0.25"


def draw_strips(report: Report, sets: Sequence[str], ax: Any = None) -> Any:
    """A panel for each set of scenarios, a row for each method in all of them."""
    names = [plain(judged.name, NAME_WIDTH) for judged in report.methods]
    rows = sum(max(ROW, LINE * (name.count("\n") + 1.6)) for name in names)
    widest = max(len(line) for name in names for line in name.split("\n"))
    width = 0.9 + 0.085 * widest + 4.0 * len(sets)
    handles = marks(report, sets)
    columns = legend_columns([handle.get_label() for handle in handles], 1.35 * width)
    height = 1.15 + rows + 0.22 * -(-len(handles) // columns)
    figure, panels = panels_for(ax, len(sets), width, height, sharey=True)
    for axes, scenarios, window in zip(panels, sets, windows(report, sets)):
        for k, (judged, colour) in enumerate(zip(report.methods, colours_of(report))):
            draw_strip(axes, k, judged, scenarios, window, colour)
        axes.set_xlim(window.low, window.high)
        axes.set_ylim(len(names) - 0.45, -0.55)
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(axis="y", length=0, labelleft=axes is panels[0])
        axes.grid(axis="x", color="0.9", lw=0.7)
        axes.set_axisbelow(True)
        for side in ("left", "top", "right"):
            axes.spines[side].set_visible(False)
        entitle(axes, report, scenarios)
        axes.set_xlabel(axis_label(report))
    if ax is None:
        figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            fontsize="small",
        )
    else:
        legend_below(panels[-1], handles)
    return figure


def legend_below(axes: Any, handles: Sequence[Any]) -> None:
    """A legend under axes of the user, whose layout is theirs."""
    width, height = inches_of(axes)
    axes.legend(
        handles=handles,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.55 / max(height, 0.5)),
        ncols=legend_columns([handle.get_label() for handle in handles], 1.35 * width),
        frameon=False,
        fontsize="small",
        columnspacing=1.0,
    )


def draw_strip(
    axes: Any, row: int, judged: Judged, scenarios: str, window: LossWindow, colour: str
) -> None:
    """The losses of one method around its row, and its marks."""
    losses = judged.losses[scenarios]
    seen, given = window.inside(losses, judged.probabilities.get(scenarios))
    if losses.size > MOST_DOTS and np.ptp(seen) > 0:
        grid, density = peak_density(seen, given)
        density = np.where((grid < window.low) | (grid > window.high), 0.0, density)
        low, high = row - HALF * density, row + HALF * density
        axes.fill_between(grid, low, high, color=colour, alpha=0.3, lw=0)
    elif seen.size:
        places = scattered(seen, row)
        fade = float(np.clip(30 / seen.size, 0.25, 0.6))
        axes.scatter(seen, places, s=areas(given), color=colour, alpha=fade, linewidths=0, zorder=2)
    found = judged.statistics(scenarios)
    shown = [
        ("promise", judged.promise, {"marker": "|", "ms": 22, "mew": 3, "color": colour}),
        ("CVaR", found.tail, {**edged(colour), "marker": tail_marker(judged.maximise), "ms": 8}),
        ("mean", found.mean, {**edged(colour), "marker": "o", "ms": 8}),
    ]
    ends = np.clip([found.mean, found.tail], window.low, window.high)
    axes.plot(ends, [row, row], color=colour, lw=1.6, zorder=3)
    for _, value, look in shown:
        if value is not None and window.holds(value):
            axes.plot(value, row, ls="none", zorder=4, clip_on=False, **look)
    for side, count in enumerate(window.beyond(losses)):
        far = [
            f"{name} {value:.3g}"
            for name, value, _ in shown
            if value is not None and (value > window.high if side else value < window.low)
        ]
        texts = [f"{count} beyond"] * (count > 0) + far
        if texts:
            point_out(axes, row, ", ".join(texts), window, side)


def point_out(axes: Any, row: int, text: str, window: LossWindow, side: int) -> None:
    """What lies beyond one edge of the panel, said there."""
    axes.annotate(
        f"{text} \u2192" if side else f"\u2190 {text}",
        (window.high if side else window.low, row - HALF),
        ha="right" if side else "left",
        va="center",
        fontsize=7.5,
        color=INK,
        zorder=5,
        bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.8},
    )


def scattered(losses: np.ndarray, row: int) -> np.ndarray:
    """Heights around a row at which neighbouring losses do not cover each other."""
    if losses.size == 1:
        return np.array([float(row)])
    ranks = np.argsort(np.argsort(losses, kind="stable"), kind="stable")
    return row + HALF * 0.85 * (2 * ((ranks * GOLDEN) % 1.0) - 1)


def areas(given: np.ndarray | None) -> Any:
    """Of dots: as large as their probabilities say, those of the largest not too large."""
    return DOT if given is None else np.maximum(1.0, DOT * LARGEST * given / given.max())


def edged(colour: str) -> dict[str, Any]:
    """A mark that stands out from its own strip."""
    return {"color": colour, "mec": "white", "mew": 1.1}


def tail_marker(maximise: bool) -> str:
    """A triangle that points to the worse side."""
    return "<" if maximise else ">"


def marks(report: Report, sets: Sequence[str]) -> list[Any]:
    """What the legend explains."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    sizes = [report.methods[0].losses[scenarios].size for scenarios in sets]
    plain_line: dict[str, Any] = {"ls": "none", "color": INK}
    found: list[Any] = []
    if min(sizes) <= MOST_DOTS:
        weighed = any(judged.probabilities for judged in report.methods)
        text = "one scenario, by its probability" if weighed else "one scenario"
        found.append(Line2D([], [], marker=".", alpha=0.5, label=text, **plain_line))
    if max(sizes) > MOST_DOTS:
        found.append(Patch(color=INK, alpha=0.3, lw=0, label="density of the scenarios"))
    tail = tail_marker(report.maximise)
    found.append(Line2D([], [], marker="o", label="mean", **plain_line))
    found.append(Line2D([], [], marker=tail, label="CVaR, mean of the worst 5%", **plain_line))
    if any(judged.promise is not None for judged in report.methods):
        found.append(Line2D([], [], marker="|", ms=11, mew=3, label="promise", **plain_line))
    return found
