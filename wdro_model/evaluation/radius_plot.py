"""The picture of a radius selection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from wdro_model.evaluation.drawing import ERM_COLOUR, PALE, colour, new_figure, plain, save

if TYPE_CHECKING:
    from wdro_model.evaluation.selection import RadiusSelection


def plot_radii(selection: RadiusSelection, path: Any = None) -> Any:
    """Mean scores with one standard error to each side, against the radius on a log axis.

    Radius 0 stands at the left edge, cut off from the axis; its level is a horizontal line. Thin
    lines are the folds, the chosen radius is marked.
    """
    figure = new_figure(6.4, 4.2)
    axes = figure.subplots()
    at = positions(selection.radii)
    several = selection.counts.max() > 1
    for k, fold in enumerate(selection.scores.T if several else ()):
        label = "_folds" if k else "folds"  # one of them in the legend
        axes.plot(at, fold, color=PALE, linewidth=0.8, zorder=1, label=label)
    errors = np.where(np.isfinite(selection.standard_error), selection.standard_error, 0.0)
    axes.errorbar(
        at,
        selection.mean,
        yerr=errors,
        color=colour(1),
        marker="o",
        markersize=4,
        capsize=3,
        label="mean ± standard error",
    )
    if selection.erm is not None:
        axes.axhline(selection.erm, color=ERM_COLOUR, ls=":", label="ERM (radius 0)", zorder=1)
    axes.plot(
        at[selection.index],
        selection.mean[selection.index],
        marker="o",
        markersize=11,
        markerfacecolor="none",
        markeredgewidth=2,
        linestyle="none",
        color=colour(2),
        label=f"chosen: {selection.radius:.3g}",
    )
    label_radii(axes, selection.radii, at)
    axes.set_ylim(*limits(selection, errors))
    axes.set_ylabel(f"{plain(selection.metric)} of held-out losses")
    axes.set_xlabel("radius")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    return save(figure, path)


def positions(radii: np.ndarray) -> np.ndarray:
    """Where the radii stand on a log axis: 0 is one step of the grid to the left of the others."""
    positive = radii[radii > 0]
    if positive.size == radii.size:
        return radii
    if positive.size == 0:
        return np.ones(1)
    step = positive[1] / positive[0] if positive.size > 1 else 10.0
    return np.concatenate([[positive[0] / min(max(step, 2.0), 10.0)], positive])


def label_radii(axes: Any, radii: np.ndarray, at: np.ndarray) -> None:
    """A log axis with a 0 at its left edge, and a cut between it and the other radii."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    axes.set_xlim(at[0] / margin(at), at[-1] * margin(at))
    if radii[0] > 0:
        return
    axes.xaxis.set_minor_locator(NullLocator())
    if radii.size == 1:
        decades: ArrayLike = []
    else:
        decades = LogLocator(numticks=8).tick_values(at[1], at[-1])
    shown = [tick for tick in np.asarray(decades) if at[1] * 0.99 <= tick <= at[-1] * margin(at)]
    if len(shown) < 2:
        shown = list(at[1:])
    axes.xaxis.set_major_locator(FixedLocator([at[0], *shown]))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda tick, _: "0" if tick == at[0] else f"{tick:.2g}")
    )
    if radii.size > 1:
        axes.text(
            np.sqrt(at[0] * at[1]),
            0.0,
            "//",
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="center",
            clip_on=False,
        )


def margin(at: np.ndarray) -> float:
    """Room at both ends of the axis, as a factor."""
    return float((at[-1] / at[0]) ** 0.04) if at.size > 1 else 2.0


def limits(selection: RadiusSelection, errors: np.ndarray) -> tuple[float, float]:
    """Room for the means and their errors; folds that lie far away leave the picture."""
    mean = selection.mean[np.isfinite(selection.mean)]
    errors = errors[np.isfinite(selection.mean)]
    low, high = float((mean - 1.6 * errors).min()), float((mean + 1.6 * errors).max())
    room = 0.08 * (high - low) or 0.1 * max(1.0, abs(high))
    return low - room, high + room
