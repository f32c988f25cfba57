"""The figures: losses of several methods in panels, and advantages over ERM by edge count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiment import Experiment, Record
from summary import BASELINE, losses_of
from wdro_model.display.figures import COLOURS, ERM_COLOUR, PALE, legend_columns, new_figure
from wdro_model.evaluation.loss_pictures import peak_density, peak_histogram

SHIFT_COLOURS = (COLOURS[3], COLOURS[7], COLOURS[2])
"""Of test distributions, where methods differ by their markers."""


@dataclass(frozen=True)
class Look:
    """How a method is drawn."""

    label: str
    colour: str
    dashes: Any
    filled: bool = True
    """Is its histogram drawn under the density?"""


LOOKS = {
    "erm": Look("ERM", COLOURS[0], "-"),
    "sampled": Look("WDRO, the paper's estimator", COLOURS[1], "-"),
    "smoothed": Look("WDRO, smoothed and certified", COLOURS[2], "-"),
    "smoothed, small radius": Look("WDRO, certified, small radius", COLOURS[3], (0, (1, 1)), False),
    "exact": Look("WDRO, exact", COLOURS[4], (0, (4, 3)), False),
}


@dataclass(frozen=True)
class Panel:
    """The losses of all methods on one set of scenarios."""

    title: str
    losses: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, title: str, methods: Mapping[str, Any], scenarios: str) -> Panel:
        found = {name: np.array(methods[name]["losses"][scenarios]) for name in shown(methods)}
        count = len(next(iter(found.values())))
        return cls(f"{title} ({count} scenarios)", found)

    def against_erm(self) -> Panel:
        """What each method gains over ERM, scenario by scenario."""
        base = self.losses[BASELINE]
        gains = {name: base - own for name, own in self.losses.items() if name != BASELINE}
        return Panel(f"ERM minus WDRO, {self.title}", gains)


def shown(methods: Mapping[str, Any]) -> list[str]:
    """The methods that are drawn; others stand in the table only."""
    return [name for name in methods if name in LOOKS]


def plot_panels(panels: Sequence[Panel], title: str, *, columns: int, axis: str = "loss") -> Any:
    """Histograms and kernel densities, each scaled to its peak; triangles mark the means."""
    rows = -(-len(panels) // columns)
    figure = new_figure(4.4 * columns, 0.9 + 2.9 * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, panel in zip(grid.flat, panels):
        for name, losses in panel.losses.items():
            draw_method(axes, losses, LOOKS[name])
        axes.set_title(panel.title, fontsize="medium")
        axes.set_ylim(0.0, 1.08)
        axes.margins(x=0.02)
    for axes in grid[:, 0]:
        axes.set_ylabel("density / peak")
    for axes in grid[-1]:
        axes.set_xlabel(f"{axis} (triangle: mean)")
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    across = legend_columns(labels, 4.4 * columns)
    figure.legend(handles, labels, loc="outside lower center", ncols=across, frameon=False)
    figure.suptitle(title)
    return figure


def draw_method(axes: Any, losses: np.ndarray, look: Look) -> None:
    """One method's histogram, density and mean."""
    heights, edges = peak_histogram(losses)
    grid, density = peak_density(losses)
    if look.filled:
        axes.stairs(heights, edges, fill=True, alpha=0.18, color=look.colour)
    axes.plot(grid, density, color=look.colour, linestyle=look.dashes, label=look.label)
    axes.plot(losses.mean(), 0.0, marker="^", color=look.colour, clip_on=False, zorder=5)


def plot_advantages(experiment: Experiment, records: Mapping[str, Record]) -> Any:
    """Violins of ERM minus method for each number of edges; below, as a share of ERM's mean loss.

    Violins cover the middle 98% of the advantages of all instances together.
    """
    groups: dict[int, list[Record]] = {}
    for key, record in records.items():
        groups.setdefault(experiment.group(key)["edges"], []).append(record)
    edges = sorted(groups)
    first = next(iter(records.values()))["methods"]
    scenario_sets = [name for name in first[BASELINE]["losses"] if name != "training"]
    methods = [name for name in shown(first) if name != BASELINE]
    figure = new_figure(6.4 * len(scenario_sets), 7.4)
    grid = figure.subplots(2, len(scenario_sets), squeeze=False, sharex=True)
    for column, scenarios in enumerate(scenario_sets):
        for row, relative in enumerate((False, True)):
            axes = grid[row, column]
            axes.axhline(0.0, color=PALE, lw=1.0, zorder=0)
            for k, method in enumerate(methods):
                drawn = [advantages(groups[m], method, scenarios, relative) for m in edges]
                place = np.arange(len(edges)) + 0.27 * (k - (len(methods) - 1) / 2)
                draw_violins(axes, drawn, place, LOOKS[method])
            axes.set_xticks(range(len(edges)), [str(m) for m in edges])
        grid[0, column].set_title(f"{scenarios} test distribution")
        grid[1, column].set_xlabel("edges of the graph")
    grid[0, 0].set_ylabel("loss of ERM minus loss of WDRO")
    grid[1, 0].set_ylabel("the same, in % of ERM's mean loss")
    handles = [draw_key(grid[0, 0], LOOKS[method]) for method in methods]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(methods), frameon=False)
    figure.suptitle(f"{experiment.title} (above 0: WDRO is better; dot: mean)")
    return figure


def plot_expected(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Advantages over ERM by edge count, and against what the shift lets one expect."""
    figure = new_figure(12.0, 5.0)
    left, right = figure.subplots(1, 2)
    names = list(dict.fromkeys(row["scenarios"] for row in rows))
    edges = sorted({row["edges"] for row in rows})
    methods = {"smoothed": ("o", "full", "-"), "sampled": ("s", "none", ":")}
    for name, colour in zip(names, SHIFT_COLOURS):
        for method, (marker, fill, line) in methods.items():
            own = [row for row in rows if (row["scenarios"], row["method"]) == (name, method)]
            label = f"{name}: {LOOKS[method].label.removeprefix('WDRO, ')}"
            look = {"color": colour, "marker": marker, "fillstyle": fill}
            means, spreads = [], []
            for count in edges:
                gains = 100 * np.array([row["measured"] for row in own if row["edges"] == count])
                means.append(gains.mean())
                spreads.append(gains.std(ddof=1) / np.sqrt(gains.size) if gains.size > 1 else 0.0)
            left.errorbar(edges, means, spreads, ls=line, capsize=2, label=label, **look)
            points = 100 * np.array([[row["expected"], row["measured"]] for row in own])
            right.plot(*points.T, ls="", ms=5, alpha=0.7, **look)
    left.axhline(0.0, color=ERM_COLOUR, lw=1.5, zorder=0)
    left.set(xlabel="edges of the graph", ylabel="measured advantage over ERM (%)")
    low, high = right.get_xlim()
    right.plot([low, high], [low, high], color=PALE, lw=1.0, zorder=0)
    right.set(xlabel="expected from the shift alone (%)", ylabel="measured (%)")
    right.set_title("each point: one instance")
    left.set_title("means over instances, ERM: blue line")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def advantages(
    records: Sequence[Record], method: str, scenarios: str, relative: bool
) -> np.ndarray:
    """ERM minus method over all scenarios of all instances, in percent of ERM's mean if asked."""
    base = np.concatenate(losses_of(records, BASELINE, scenarios))
    own = np.concatenate(losses_of(records, method, scenarios))
    return (base - own) * (100.0 / base.mean() if relative else 1.0)


def draw_violins(axes: Any, samples: Sequence[np.ndarray], places: np.ndarray, look: Look) -> None:
    middle = [part[(part >= lo) & (part <= hi)] for part in samples for lo, hi in [ends(part)]]
    parts = axes.violinplot(middle, places, widths=0.25, showextrema=False)
    for body in parts["bodies"]:
        body.set(facecolor=look.colour, edgecolor=look.colour, alpha=0.45)
    means = [part.mean() for part in samples]
    axes.plot(places, means, "o", color=look.colour, ms=4, mec="black", mew=0.5, zorder=4)


def ends(sample: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(sample, [0.01, 0.99])
    return float(low), float(high)


def draw_key(axes: Any, look: Look) -> Any:
    """An empty line that stands for a method in the legend."""
    return axes.plot([], [], "s", color=look.colour, alpha=0.7, ms=9, label=look.label)[0]
