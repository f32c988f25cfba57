"""Pictures of losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import gaussian_kde

if TYPE_CHECKING:
    from wdro_model.evaluation.compare import Report

COLOURS = ("#0072b2", "#e69f00", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")
"""Told apart by people with any colour vision (Okabe and Ito)."""


def plot_losses(report: Report, path: Any = None) -> Any:
    """Histograms and kernel densities of the losses, one panel for each set of scenarios."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'wdro_model[plot]'.") from error
    names = report.scenario_sets
    figure = Figure(figsize=(5.2 * len(names), 4.0), layout="constrained")
    for axes, scenarios in zip(np.atleast_1d(figure.subplots(1, len(names))), names):
        draw_panel(axes, report, scenarios)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def draw_panel(axes: Any, report: Report, scenarios: str) -> None:
    """One set of scenarios: every method's losses on common bins, its mean as a dashed line."""
    every = np.concatenate([judged.losses[scenarios] for judged in report.methods])
    bins = np.histogram_bin_edges(every, bins=min(40, max(10, every.size // 20)))
    for judged, colour in zip(report.methods, COLOURS * 3):
        losses = judged.losses[scenarios]
        axes.hist(losses, bins=bins, density=True, alpha=0.3, color=colour)
        if losses.size > 2 and losses.std() > 0:
            grid = np.linspace(bins[0], bins[-1], 400)
            axes.plot(grid, gaussian_kde(losses)(grid), color=colour, label=judged.name)
        axes.axvline(losses.mean(), color=colour, linestyle="--", linewidth=1)
    axes.set_title(f"{scenarios} ({report.methods[0].losses[scenarios].size} scenarios)")
    axes.set_xlabel("loss")
    axes.set_ylabel("density")
    axes.legend(frameon=False, title="dashed: mean")
