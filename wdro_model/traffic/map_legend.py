"""What widths and distances on a map mean: a legend of flows, and a scale bar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

INK, SWATCH = "#262626", "#b8b8b8"
POINTS = 7.5
"""The size of the letters."""
LINE = 0.2
"""Inches from one line of the legend to the next."""
LEGEND_INCHES = 2.4 * LINE
SCALE_SHARE, SWATCH_INCHES = 0.3, 0.28
"""The longest scale bar, as a share of the map's width; the length of a piece of road."""
LEGEND = "legend"
"""The label of everything that is drawn here."""


@dataclass(frozen=True)
class MapLegend:
    """The legend of one map, in the units of its layout; it stands under the map."""

    inch: float
    """Units of the layout in an inch of the figure."""
    unit: float | None
    """Of the coordinates in a unit of the layout; None where places are no coordinates."""
    unit_name: str

    @property
    def height(self) -> float:
        """The room that it takes under a map."""
        return self.inch * (LEGEND_INCHES - (LINE if self.unit is None else 0.0))

    def draw(self, axes: Any, left: float, bottom: float, extent: float, flows: FlowWidths) -> None:
        """Draw it from the point (left, bottom) up; extent: the width of the map."""
        step = LINE * self.inch
        base = bottom + 0.6 * step
        self._draw_flows(axes, left, base, flows)
        if self.unit is not None:
            self._draw_scale(axes, left, base + step, extent, self.unit)

    def _draw_scale(self, axes: Any, x: float, y: float, extent: float, unit: float) -> None:
        length = nice(SCALE_SHARE * extent * unit)
        end, tick = x + length / unit, 0.04 * self.inch
        xs, ys = [x, x, x, end, end, end], [y + tick, y - tick, y, y, y - tick, y + tick]
        axes.plot(xs, ys, color=INK, lw=1.2, solid_joinstyle="miter", label=LEGEND)
        self._write(axes, end, y, f"{length:,g} {self.unit_name}".strip())

    def _draw_flows(self, axes: Any, x: float, y: float, flows: FlowWidths) -> None:
        from matplotlib.patches import Rectangle

        for k, flow in enumerate(flows.shown):
            width = flows.width(flow)
            size = SWATCH_INCHES * self.inch
            corner = (x, y - width / 2)
            piece = Rectangle(corner, size, width, facecolor=SWATCH, edgecolor=INK, lw=0.4)
            piece.set_label(LEGEND)
            axes.add_patch(piece)
            what = f" {flows.what}" if k == len(flows.shown) - 1 else ""
            text = f"{flow:,g}{what}"
            self._write(axes, x + size, y, text)
            # A letter is about 0.6 of its height wide.
            x += size + self.inch * (0.6 * POINTS / 72 * len(text) + 0.2)

    def _write(self, axes: Any, x: float, y: float, text: str) -> None:
        written = axes.text(
            x + 0.06 * self.inch, y, text, ha="left", va="center_baseline", size=POINTS, color=INK
        )
        written.set_label(LEGEND)


@dataclass(frozen=True)
class FlowWidths:
    """What the widths of a map stand for."""

    widest: float
    """The largest flow."""
    widest_width: float
    thinnest: float
    """The width of no flow, as a fraction of that of the largest."""
    what: str

    @property
    def shown(self) -> tuple[float, ...]:
        """Round numbers up to the largest flow."""
        if not self.widest > 0:
            return (0.0,)
        most = nice(self.widest)
        return (nice(most / 4.0), most)

    def width(self, flow: float) -> float:
        share = flow / self.widest if self.widest > 0 else 0.0
        return self.widest_width * (self.thinnest + (1.0 - self.thinnest) * share)


def nice(largest: float) -> float:
    """The largest of 1, 2, 5, 10, 20, 50, ... that is not above a number > 0."""
    power = 10.0 ** np.floor(np.log10(largest))
    # 10 ** floor(log10) may be just above the number.
    first = max((d for d in (0.5, 1.0, 2.0, 5.0) if d * power <= largest), default=0.5)
    return float(f"{first * power:.3g}")
