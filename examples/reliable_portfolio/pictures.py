"""The figures of section 7, from the tables of the runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from market import ASSETS, best
from summary_tables import along_radii_table, compositions, rules_table
from trials import CONFIDENCE, RADII, RULES
from wdro_model.display.figures import COLOURS, new_figure, save

SMALLEST = 5e-4
"""Where radius 0 is drawn on a logarithmic axis."""
MARKERS = ("o", "s", "^", "D", "v")


def draw(records: list[Any], folder: Path) -> None:
    """All pictures that there are runs for."""
    if rows := along_radii_table(records):
        save(along_radii_picture(rows), folder / "radius.png")
        save(composition_picture(compositions(records)), folder / "composition.png")
    if rows := rules_table(records):
        save(rules_picture(rows), folder / "rules.png")


def along_radii_picture(rows: list[dict[str, float]]) -> Any:
    """True risk with its tube, and reliability, against the radius; a panel for each size."""
    sizes = sorted({row["size"] for row in rows})
    figure = new_figure(4.0 * len(sizes), 3.7)
    panels = np.atleast_1d(figure.subplots(1, len(sizes), sharey=True))
    least = best()[0]
    for axes, size in zip(panels, sizes):
        some = [row for row in rows if row["size"] == size]
        radius = np.maximum([row["radius"] for row in some], SMALLEST)
        risk = [row["risk"] for row in some]
        axes.fill_between(
            radius,
            [row["risk_20"] for row in some],
            [row["risk_80"] for row in some],
            color=COLOURS[0],
            alpha=0.25,
            linewidth=0,
        )
        axes.plot(radius, risk, color=COLOURS[0], label="true risk J, mean and 20% to 80%")
        axes.axhline(least, color="#777777", linewidth=0.8, linestyle=":", label="least J")
        axes.set_xscale("log")
        axes.set_title(f"N = {size:g}, {some[0]['runs']:g} runs", fontsize="medium")
        axes.set_xlabel("radius (0 at the left end)")
        twin = axes.twinx()
        kept = [row["reliability"] for row in some]
        twin.plot(radius, kept, color=COLOURS[1], linestyle="--", label="reliability")
        twin.set_ylim(-0.03, 1.03)
        if axes is panels[-1]:
            twin.set_ylabel("reliability, P(J <= promise)", color=COLOURS[1])
        else:
            twin.set_yticklabels([])
    panels[0].set_ylabel("out-of-sample risk J", color=COLOURS[0])
    curves = [*panels[0].get_lines(), *twin.get_lines()]
    labels = [str(curve.get_label()) for curve in curves]
    figure.legend(curves, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def composition_picture(weights: dict[int, np.ndarray]) -> Any:
    """The mean portfolio against the radius, stacked."""
    figure = new_figure(4.2 * len(weights), 3.4)
    panels = np.atleast_1d(figure.subplots(1, len(weights), sharey=True))
    radius = np.maximum(RADII, SMALLEST)
    shades = [matplotlib_map(k / (ASSETS - 1)) for k in range(ASSETS)]
    for axes, (size, mean) in zip(panels, weights.items()):
        axes.stackplot(radius, mean.T, colors=shades, linewidth=0)
        axes.set_xscale("log")
        axes.set_xlim(SMALLEST, RADII[-1])
        axes.set_ylim(0, 1)
        axes.set_title(f"N = {size}", fontsize="medium")
        axes.set_xlabel("radius (0 at the left end)")
    panels[0].set_ylabel("mean portfolio, asset 1 below")
    handles = [panels[0].collections[k] for k in range(ASSETS)][::-1]
    labels = [f"{k}" for k in range(ASSETS, 0, -1)]
    panels[-1].legend(
        handles, labels, title="asset", loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7
    )
    return figure


def matplotlib_map(share: float) -> Any:
    from matplotlib import colormaps

    return colormaps["viridis"](share)


def rules_picture(rows: list[dict[str, Any]]) -> Any:
    """Radius, true risk, reliability and promise of the rules against the number of samples."""
    figure = new_figure(11.5, 3.4)
    panels = figure.subplots(1, 4)
    titles = {
        "radius": "mean radius",
        "risk": "out-of-sample risk J",
        "reliability": "reliability, P(J <= promise)",
        "promise": "promise",
    }
    for axes, (name, title) in zip(panels, titles.items()):
        for k, rule in enumerate(RULES):
            some = [row for row in rows if row["rule"] == rule]
            if name == "radius" and rule == "erm":
                continue
            axes.plot(
                [row["size"] for row in some],
                [row[name] for row in some],
                *(f"{MARKERS[k]}-",),
                color=COLOURS[k],
                markersize=4,
                label=rule,
            )
        axes.set_xscale("log")
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel("samples N")
    panels[0].set_yscale("log")
    for axes in (panels[1], panels[3]):
        axes.axhline(best()[0], color="#777777", linewidth=0.8, linestyle=":")
    panels[2].axhline(CONFIDENCE, color="#777777", linewidth=0.8, linestyle=":")
    panels[2].set_ylim(-0.03, 1.03)
    handles, labels = panels[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    return figure
