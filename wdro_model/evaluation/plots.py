"""Pictures of losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import gaussian_kde

if TYPE_CHECKING:
    from wdro_model.evaluation.compare import Report

COLOURS = ("#0072b2", "#e69f00", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")
"""Told apart by people with any colour vision (Okabe and Ito)."""
STYLES = ("-", "--", "-.", ":")
"""Curves that lie on top of each other differ in their dashes."""


def plot_losses(report: Report, path: Any = None) -> Any:
    """Histograms and kernel densities of the losses, one panel for each set of scenarios.

    Each method is scaled to its own peak: decisions of very different spread stay visible.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'wdro_model[plot]'.") from error
    names = report.scenario_sets
    figure = Figure(figsize=(5.2 * len(names), 4.2), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(names)))
    for axes, scenarios in zip(panels, names):
        draw_panel(axes, report, scenarios)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def draw_panel(axes: Any, report: Report, scenarios: str) -> None:
    """One set of scenarios: every method's losses, its mean marked on the axis."""
    for k, judged in enumerate(report.methods):
        colour, style = COLOURS[k % len(COLOURS)], STYLES[k % len(STYLES)]
        losses = judged.losses[scenarios]
        grid, density = peak_density(losses)
        counts, edges = np.histogram(losses, bins="auto")
        axes.stairs(counts / counts.max(), edges, fill=True, alpha=0.25, color=colour)
        axes.plot(grid, density, color=colour, linestyle=style, label=judged.name)
        axes.plot(losses.mean(), 0.0, marker="^", color=colour, clip_on=False, zorder=5)
    axes.set_title(f"{scenarios} ({report.methods[0].losses[scenarios].size} scenarios)")
    axes.set_xlabel("loss (triangles: means)")
    axes.set_ylabel("density, scaled to its peak")
    axes.set_ylim(0.0, 1.08)


def peak_density(losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A kernel density with peak 1 on a grid; a spike where all losses are the same."""
    spread = float(losses.std())
    if losses.size < 3 or spread <= 1e-12 * max(1.0, abs(float(losses.mean()))):
        return np.full(2, losses.mean()), np.array([0.0, 1.0])
    grid = np.linspace(losses.min() - 2 * spread, losses.max() + 2 * spread, 400)
    density = gaussian_kde(losses)(grid)
    return grid, density / density.max()
