"""Pictures of out-of-sample losses: strips, histograms and densities, one row for each method."""

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

SHARED_AXIS_RATIO = 4.0
"""Panels share an axis that is at most this many times as wide as the narrowest panel's own."""


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
    return finished_plot(kinds[kind](report, shown_sets(report, scenarios), ax), path, ax)


def shown_sets(report: Report, scenarios: str | Sequence[str] | None) -> list[str]:
    """The sets of scenarios that get a panel: all, or some by their names."""
    if scenarios is None:
        return list(report.scenario_sets)
    wanted = [scenarios] if isinstance(scenarios, str) else list(scenarios)
    for name in wanted:
        checks.choice("set of scenarios", name, report.scenario_sets)
    return wanted


def colours_of(report: Report) -> list[str]:
    """A colour for each method, the same in every picture: ERM is blue."""
    return colours_of_methods([judged.family for judged in report.methods])


def axis_label(report: Report) -> str:
    """The label of the axis: losses, or the values of an objective that is maximised."""
    return "objective, maximised" if report.maximise else "loss"


def set_title(axes: Any, report: Report, scenarios: str) -> None:
    """The name of a panel and how many scenarios it shows, in lines as long as it is wide."""
    count = report.methods[0].losses[scenarios].size
    room = max(12, min(WIDEST_LABEL, int(13 * inches_of(axes)[0])))
    name, words = plain(scenarios, room), f"({count} scenario{'s' if count != 1 else ''})"
    gap = " " if len(name.split("\n")[-1]) + len(words) <= room else "\n"
    axes.set_title(f"{name}{gap}{words}", fontsize=11)


def losses_label(axes: Any, report: Report) -> str:
    """The label of the axis, with the marks on it where there is room."""
    marks = " (triangle: mean, bar: promise)" if inches_of(axes)[0] > 3.2 else ""
    return f"{axis_label(report)}{marks}"


# ------------------------------------------------------------------ the range of a panel
CORE_QUANTILES = (0.02, 0.98)
"""The quantiles of the losses that every panel shows."""
OUTER_SHARE = 0.6
"""Losses and marks beyond these are shown up to this fraction of their distance."""


@dataclass(frozen=True)
class LossWindow:
    """The range of a panel's axis; losses beyond it are counted at its edges."""

    low: float
    high: float

    @classmethod
    def around(cls, report: Report, scenarios: str) -> LossWindow:
        """Room for all losses and marks but those far from the others, as heavy tails have them."""
        losses = [judged.losses[scenarios] for judged in report.methods]
        ends = np.array([np.quantile(those, CORE_QUANTILES) for those in losses])
        core = (float(ends[:, 0].min()), float(ends[:, 1].max()))
        extremes = [end(those) for those in losses for end in (np.min, np.max)]
        points = np.array([*extremes, *marked_values(report, scenarios), *core])
        # One loss, or losses that are all the same: the marks give the scale.
        span = core[1] - core[0] or 2 * float(np.ptp(points)) or 0.1 * abs(core[0]) or 1.0
        outer = (core[0] - OUTER_SHARE * span, core[1] + OUTER_SHARE * span)
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

    def visible(
        self, losses: np.ndarray, given: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """The losses within the range, and their probabilities where they have some."""
        seen = (self.low <= losses) & (losses <= self.high)
        return losses[seen], None if given is None else given[seen]

    def beyond(self, losses: np.ndarray) -> tuple[int, int]:
        """The numbers of losses below and above the range."""
        return int((losses < self.low).sum()), int((losses > self.high).sum())

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


def marked_values(report: Report, scenarios: str) -> list[float]:
    """The means, CVaRs and promises of all methods."""
    marks = []
    for judged in report.methods:
        statistics = judged.statistics(scenarios)
        marks += [statistics.mean, statistics.tail]
        marks += [] if judged.promise is None else [judged.promise]
    return marks


def windows(report: Report, sets: Sequence[str]) -> list[LossWindow]:
    """The range of each panel: the same, unless some panel would lose its shape."""
    own = [LossWindow.around(report, scenarios) for scenarios in sets]
    both = LossWindow(min(w.low for w in own), max(w.high for w in own))
    if both.width <= SHARED_AXIS_RATIO * min(w.width for w in own):
        return [both] * len(own)
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
            text = "beyond: " + ", ".join(cut)
            axes.text(0.99, 0.98, text, transform=axes.transAxes, **CORNER_TEXT)
        axes.set_xlim(window.low, window.high)
        set_title(axes, report, scenarios)
        axes.set_xlabel(losses_label(axes, report))
    panels[0].set_ylabel("density, scaled to its peak")
    handles, texts = panels[0].get_legend_handles_labels()
    if ax is None:
        figure.legend(handles, texts, loc="outside lower center", ncols=columns, frameon=False)
    else:
        panels[-1].legend(handles, texts, fontsize="small", framealpha=0.7)
    return figure


def draw_losses(
    axes: Any, judged: Judged, scenarios: str, window: LossWindow, colour: str, line: str
) -> None:
    """The histogram and density of one method, with marks at its mean and its promise."""
    losses = judged.losses[scenarios]
    seen = window.visible(losses, judged.outcomes[scenarios].probabilities)
    heights, edges = peak_histogram(*seen)
    grid, density = peak_density(*seen)
    axes.stairs(heights, edges, fill=True, alpha=0.22, color=colour)
    axes.plot(grid, density, color=colour, linestyle=line, label=label(judged))
    mean = judged.mean(scenarios)
    axes.plot(mean, 0.0, marker="^", color=colour, clip_on=False, zorder=5)
    if judged.promise is not None:  # one far from all losses is left to the label
        axes.vlines(judged.promise, 0.0, 0.3, color=colour, lw=2.5, zorder=4)
    axes.set_ylim(0.0, 1.06)


def label(judged: Judged) -> str:
    """The name of a method and its promise, in lines that are not too long."""
    promise = "" if judged.promise is None else f"\npromise {judged.promise:.4g}"
    return plain(judged.name) + promise


def is_spike(losses: np.ndarray) -> bool:
    """Whether the losses are all the same, or too few for a density."""
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
    bandwidth = max(0.9 * spread * losses.size**-0.2, 2.0 * float(np.ptp(losses)) / DENSITY_POINTS)
    low, high = losses.min() - 3 * bandwidth, losses.max() + 3 * bandwidth
    counts, edges = np.histogram(losses, bins=DENSITY_POINTS, range=(low, high), weights=given)
    step = edges[1] - edges[0]
    reach = int(np.ceil(4 * bandwidth / step))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * step / bandwidth) ** 2)
    density = np.convolve(counts, kernel)[reach : reach + DENSITY_POINTS]
    return edges[:-1] + step / 2, density / density.max()


# ------------------------------
# Strips: one row for each method, its losses as dots or a band, its mean, CVaR and promise


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
    handles = legend_entries(report, sets)
    columns = legend_columns([handle.get_label() for handle in handles], 1.35 * width)
    height = 1.15 + rows + 0.22 * -(-len(handles) // columns)
    figure, panels = panels_for(ax, len(sets), width, height, sharey=True)
    for axes, scenarios, window in zip(panels, sets, windows(report, sets)):
        for k, (judged, shade) in enumerate(zip(report.methods, colours_of(report))):
            draw_strip(axes, k, judged, scenarios, window, shade)
        axes.set_xlim(window.low, window.high)
        axes.set_ylim(len(names) - 0.45, -0.55)
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(axis="y", length=0, labelleft=axes is panels[0])
        axes.grid(axis="x", color="0.9", lw=0.7)
        axes.set_axisbelow(True)
        for side in ("left", "top", "right"):
            axes.spines[side].set_visible(False)
        set_title(axes, report, scenarios)
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
    seen, given = window.visible(losses, judged.outcomes[scenarios].probabilities)
    if losses.size > MOST_DOTS and np.ptp(seen) > 0:
        grid, density = peak_density(seen, given)
        density = np.where((grid < window.low) | (grid > window.high), 0.0, density)
        low, high = row - HALF_HEIGHT * density, row + HALF_HEIGHT * density
        axes.fill_between(grid, low, high, color=colour, alpha=0.3, lw=0)
    elif seen.size:
        places = dot_heights(seen, row)
        fade = float(np.clip(30 / seen.size, 0.25, 0.6))
        axes.scatter(
            seen, places, s=dot_areas(given), color=colour, alpha=fade, linewidths=0, zorder=2
        )
    statistics = judged.statistics(scenarios)
    shown = [
        ("promise", judged.promise, {"marker": "|", "ms": 22, "mew": 3, "color": colour}),
        (
            "CVaR",
            statistics.tail,
            {**edged_mark(colour), "marker": tail_marker(judged.maximise), "ms": 8},
        ),
        ("mean", statistics.mean, {**edged_mark(colour), "marker": "o", "ms": 8}),
    ]
    ends = np.clip([statistics.mean, statistics.tail], window.low, window.high)
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
            note_at_edge(axes, row, ", ".join(texts), window, side)


def note_at_edge(axes: Any, row: int, text: str, window: LossWindow, side: int) -> None:
    """Write at an edge of the panel what lies beyond it."""
    axes.annotate(
        f"{text} \u2192" if side else f"\u2190 {text}",
        (window.high if side else window.low, row - HALF_HEIGHT),
        ha="right" if side else "left",
        va="center",
        fontsize=7.5,
        color=INK,
        zorder=5,
        bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none", "alpha": 0.8},
    )


def dot_heights(losses: np.ndarray, row: int) -> np.ndarray:
    """Heights around a row at which neighbouring losses do not cover each other."""
    if losses.size == 1:
        return np.array([float(row)])
    ranks = np.argsort(np.argsort(losses, kind="stable"), kind="stable")
    return row + HALF_HEIGHT * 0.85 * (2 * ((ranks * GOLDEN_RATIO) % 1.0) - 1)


def dot_areas(given: np.ndarray | None) -> Any:
    """The areas of the dots, in proportion to the probabilities."""
    if given is None:
        return DOT_AREA
    return np.maximum(1.0, DOT_AREA * LARGEST_DOT_RATIO * given / given.max())


def edged_mark(colour: str) -> dict[str, Any]:
    """A mark that stands out from its own strip."""
    return {"color": colour, "mec": "white", "mew": 1.1}


def tail_marker(maximise: bool) -> str:
    """A triangle that points to the worse side."""
    return "<" if maximise else ">"


def legend_entries(report: Report, sets: Sequence[str]) -> list[Any]:
    """The marks that the legend explains."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    sizes = [report.methods[0].losses[scenarios].size for scenarios in sets]
    plain_line: dict[str, Any] = {"ls": "none", "color": INK}
    entries: list[Any] = []
    if min(sizes) <= MOST_DOTS:
        weighed = any(
            outcome.probabilities is not None
            for judged in report.methods
            for outcome in judged.outcomes.values()
        )
        text = "one scenario, by its probability" if weighed else "one scenario"
        entries.append(Line2D([], [], marker=".", alpha=0.5, label=text, **plain_line))
    if max(sizes) > MOST_DOTS:
        entries.append(Patch(color=INK, alpha=0.3, lw=0, label="density of the scenarios"))
    tail = tail_marker(report.maximise)
    entries.append(Line2D([], [], marker="o", label="mean", **plain_line))
    entries.append(Line2D([], [], marker=tail, label="CVaR, mean of the worst 5%", **plain_line))
    if any(judged.promise is not None for judged in report.methods):
        entries.append(Line2D([], [], marker="|", ms=11, mew=3, label="promise", **plain_line))
    return entries
