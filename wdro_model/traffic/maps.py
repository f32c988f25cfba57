r"""Maps of traffic: links coloured by flow over capacity, several assignments side by side.

An arc is drawn as a ribbon on the right of the line from its tail to its head, so that both
directions of a road lie side by side, each with half an arrowhead:

    tail  ___________________
          |__________________\   head
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wdro_model import checks
from wdro_model.compat import networkx as nx
from wdro_model.display.figures import finished_plot, inches_of, new_figure, panels_for, plain
from wdro_model.traffic.network import Network, as_flow

Array = np.ndarray

CONGESTION = ("#1a9850", "#8cc152", "#f6d32d", "#f08c2e", "#d7301f", "#7f0000")
"""From no flow (green) to the largest flow over capacity (dark red)."""
CHANGE = ("#2166ac", "#92c5de", "#f2f2f2", "#f4a582", "#b2182b")
"""From less flow (blue) to more (red)."""
INK, ROAD, SWATCH = "#262626", "#8a8a8a", "#b8b8b8"
COLUMNS = 3
LEGEND = "legend"
"""The label of every artist of a legend."""


@dataclass(frozen=True)
class LayoutLimits:
    """Limits of layouts of nodes; lengths are in units of the layout."""

    node_distance: float = 0.6
    """The least distance of nodes; larger numbers move more of them."""
    pushes: int = 200
    """The most rounds in which nodes that are closer are pushed apart."""
    degrees: float = 10.0
    centre: float = 3.0
    """Coordinates that spread over more than `degrees`, or have a centre within `centre` times
    their extent from (0, 0), are coordinates of a plane, not longitudes and latitudes."""
    kilometres_per_degree: float = 111.2
    exact_nodes: int = 100
    """The most nodes of a layout in time n^3."""


@dataclass(frozen=True)
class DrawingSizes:
    """Sizes of drawings: of the map in units of its layout, of the legend in inches and points."""

    thinnest: float = 0.1
    """The width of an arc without flow, as a fraction of the widest one."""
    margin: float = 0.2
    named_nodes: int = 60
    """The most nodes that are drawn with their names unless asked for."""
    axes_for_names: float = 3.0
    axes_for_legend: float = 1.8
    """The least inches of axes for names in the nodes, and for a legend under the map."""
    legend_points: float = 7.5
    legend_line: float = 0.2
    swatch: float = 0.28
    scale_share: float = 0.3
    """The longest scale bar, as a share of the width of the map."""


LIMITS, SIZES = LayoutLimits(), DrawingSizes()


# ------------------------------------------------------------------ places
@dataclass(frozen=True)
class MapLayout:
    """Nodes on a map."""

    places: Array
    """(n, 2), in units of the typical distance between neighbours on a square grid."""
    note: str = ""
    """A warning to the reader of the map about the places."""
    unit: float | None = None
    """Of the coordinates, or kilometres, in a unit of the layout; None if they are not known."""
    unit_name: str = ""
    """km where coordinates are degrees."""

    @classmethod
    def from_network(cls, network: Network) -> MapLayout:
        """The positions of the network, or a layout by networkx where there are none."""
        places, note = _positions(network)
        degrees = _are_degrees(places)
        if degrees:
            places = places * [np.cos(np.radians(places[:, 1].mean())), 1.0]
        extent = np.ptp(places, axis=0)
        sides = np.maximum(extent, 0.2 * extent.max())
        unit = float(np.sqrt(sides.prod() / len(places)))  # sqrt(area / n)
        known = not note and unit > 0
        return cls(
            _push_apart((places - places.min(axis=0)) / (unit or 1.0)),
            note,
            unit * (LIMITS.kilometres_per_degree if degrees else 1.0) if known else None,
            "km" if degrees else "units",
        )


def _positions(network: Network) -> tuple[Array, str]:
    """Positions of all nodes, and a note where networkx has placed some."""
    known = np.zeros(network.n_nodes, dtype=bool)
    if network.positions is not None:
        known = np.isfinite(network.positions).all(axis=1)
        if known.all():
            return network.positions, ""
    graph = nx.Graph()
    graph.add_nodes_from(range(network.n_nodes))
    graph.add_edges_from(zip(network.tails.tolist(), network.heads.tolist()))
    if network.positions is not None and known.any():
        fixed = {int(i): network.positions[i] for i in np.flatnonzero(known)}
        places = nx.spring_layout(graph, pos=fixed, fixed=list(fixed), seed=0)
        note = f"{np.sum(~known)} nodes have no position: they are placed by networkx."
    else:
        small = network.n_nodes <= LIMITS.exact_nodes and nx.is_connected(graph)
        places = nx.kamada_kawai_layout(graph) if small else nx.spring_layout(graph, seed=0)
        note = "The network has no positions: a layout by networkx."
    return np.array([places[i] for i in range(network.n_nodes)]).reshape(-1, 2), note


def _are_degrees(places: Array) -> bool:
    """Are the coordinates longitudes and latitudes, far from (0, 0) and close to each other?"""
    extent, centre = np.ptp(places, axis=0).max(), np.hypot(*places.mean(axis=0))
    within = np.abs(places[:, 0]).max() <= 180 and np.abs(places[:, 1]).max() <= 90
    return bool(within and extent < LIMITS.degrees and centre > LIMITS.centre * extent)


def _push_apart(places: Array) -> Array:
    """The places with nodes pushed apart that are too close."""
    places = places.copy()
    first, second = np.triu_indices(len(places), 1)
    for _ in range(LIMITS.pushes):
        between = places[second] - places[first]
        distance = np.hypot(*between.T)
        close = distance < 0.999 * LIMITS.node_distance
        if not close.any():
            break
        i, j, between, distance = first[close], second[close], between[close], distance[close]
        # Nodes at the same place leave it in a direction of their own.
        angle = 2.4 * j[distance == 0]
        between[distance == 0] = np.column_stack([np.cos(angle), np.sin(angle)])
        length = np.where(distance > 0, distance, 1.0)
        push = 0.5 * ((LIMITS.node_distance - distance) / length)[:, None] * between
        np.add.at(places, j, push)
        np.add.at(places, i, -push)
    return places


def ribbons(network: Network, places: Array, widths: Array, radius: float, slot: float) -> Array:
    """The outlines (A, 5, 2) of the arcs.

    widths: (A,); radius: of the nodes, where arcs end; slot: the room on the right of a road for
    each of its parallel arcs.
    """
    start, end = places[network.tails], places[network.heads]
    along = end - start
    length = np.maximum(np.hypot(*along.T), 1e-12)[:, None]
    along = along / length
    right = np.column_stack([along[:, 1], -along[:, 0]])
    reach = np.minimum(radius, 0.4 * length)
    seen: Counter[tuple[int, int]] = Counter()
    rank = np.empty(network.n_arcs)  # among the arcs with the same tail and head
    for a, pair in enumerate(zip(network.tails.tolist(), network.heads.tolist())):
        rank[a] = seen[pair]
        seen[pair] += 1
    inner = (0.06 + rank)[:, None] * slot * right
    outer = inner + widths[:, None] * right
    tip = np.minimum(1.2 * widths[:, None], 0.5 * (length - 2 * reach))
    start, end = start + reach * along, end - reach * along
    return np.stack(
        [start + inner, end + inner, end - tip * along + outer, start + outer, start + inner],
        axis=1,
    )


# ------------------------------------------------------------------ plots
def plot_flows(
    network: Network,
    flow: ArrayLike,
    path: Any = None,
    *,
    title: str | None = None,
    limit: float | None = None,
    labels: bool | None = None,
    legend: bool = True,
    ax: Any = None,
) -> Any:
    """A map of one flow (A,): width by flow, colour by flow over capacity, green to red.

    Both directions of a road lie side by side, each on its right. Nodes that are too close to each
    other are moved a little. A network without positions is laid out by networkx, and the map says
    so.

    Parameters
    ----------
    path
        Where to save the figure; the suffix says the format.
    title
        By default the name of the network.
    limit
        The flow over capacity at the end of the colour scale; the largest if not given.
    labels
        Draw the names of the nodes? By default up to 60 of them.
    legend
        Draw a legend of the widths and a scale bar under the map? The bar is in kilometres if the
        positions are degrees, else in the units of the positions; nodes that were moved distort it.
    ax
        Matplotlib's axes to draw on; they are returned in place of the figure.

    Examples
    --------
    >>> flow = wdro.traffic.all_or_nothing(network, network.free_flow_time)
    >>> figure = wdro.traffic.plot_flows(network, flow, title="everybody at once")
    >>> figure.axes[0].get_title()
    'everybody at once'
    """
    named = {network.name if title is None else title: flow}
    return _plot(network, named, path, limit, labels, legend, COLUMNS, difference=False, ax=ax)


def plot_comparison(
    network: Network,
    flows: Mapping[str, ArrayLike],
    path: Any = None,
    *,
    difference: bool = True,
    limit: float | None = None,
    labels: bool | None = None,
    legend: bool = True,
    columns: int = COLUMNS,
    ax: Any = None,
) -> Any:
    """Maps of several flows {name: (A,)} side by side, and the difference of each from the first.

    Widths and colours mean the same in all maps of flows; those of differences have a scale of
    their own: red where there is more flow than in the first, blue where there is less. At most
    `columns` maps are in a row; `ax` takes axes for all the maps. Other options as in `plot_flows`.

    Examples
    --------
    >>> naive = wdro.traffic.all_or_nothing(network, network.free_flow_time)
    >>> settled, _ = wdro.traffic.equilibrium(network, gap=1e-2)
    >>> figure = wdro.traffic.plot_comparison(network, {"naive": naive, "settled": settled})
    """
    columns = checks.whole_number("columns", columns, low=1)
    if not isinstance(flows, Mapping) or not flows:
        raise ValueError(
            f"flows must be a dict of at least one flow by its name, got {flows!r}; write "
            '{"ERM": x1, "robust": x2}.'
        )
    return _plot(network, flows, path, limit, labels, legend, columns, difference, ax)


def _plot(
    network: Network,
    named: Mapping[str, ArrayLike],
    path: Any,
    limit: float | None,
    labels: bool | None,
    legend: bool,
    most_columns: int,
    difference: bool,
    ax: Any,
) -> Any:
    """The maps of the flows, then those of their differences from the first."""
    flows = {str(name): as_flow(flow, network, one=True) for name, flow in named.items()}
    first, *others = flows
    changes = {f"{o} minus {first}": flows[o] - flows[first] for o in others if difference}
    layout = MapLayout.from_network(network)
    extent = np.ptp(layout.places, axis=0) + 2 * SIZES.margin
    # About 0.8 inches for a grid unit, within 3 to 7 inches.
    scale = float(np.clip(0.8 * extent.max(), 3.5, 7.0)) / extent.max()
    width, height = np.maximum(extent * scale, 2.8).tolist()
    count = len(flows) + len(changes)
    columns = min(count, most_columns)
    rows = -(-count // columns)
    if ax is None:
        under = 2.4 * SIZES.legend_line if legend else 0.0
        figure = new_figure(width * columns + 0.2, (height + under + 0.55) * rows + 0.7)
        panels = figure.subplots(rows, columns, squeeze=False).flatten()
    else:
        figure, panels = panels_for(ax, count, width, height)
        width, height = inches_of(panels[0])
        if labels is None and min(width, height) < SIZES.axes_for_names:
            labels = False
        legend = legend and min(width, height) >= SIZES.axes_for_legend
    has_labels = network.n_nodes <= SIZES.named_nodes if labels is None else bool(labels)
    inch = float(np.max(extent / (width, height))) if legend else None
    style = NAMED if has_labels else DOTS
    most = max(float((x / network.capacity).max()) for x in flows.values())
    if limit is not None:
        most = checks.number("limit", limit, low=0, open=True)
    colours = _colour_scale("congestion", CONGESTION, 0.0, most or 1.0)
    scale = FlowScale(max(float(x.max()) for x in flows.values()), style.widest, "trips")
    congestion = FlowMap(network, layout, style, colours, scale, inch)
    for axes, (name, x) in zip(panels, flows.items()):
        congestion.draw(axes, x)
        ratio = x / network.capacity
        over = f"{np.sum(ratio > 1.0)} of {network.n_arcs} arcs over capacity"
        _write_titles(axes, name, f"{over}, at most {ratio.max():.3g} times")
    maps, rest = panels[: len(flows)], panels[len(flows) : count]
    _draw_colour_bar(figure, colours, maps, "flow / capacity", mark=1.0)
    if changes:
        end = max(float(np.abs(x / network.capacity).max()) for x in changes.values()) or 1.0
        colours = _colour_scale("change", CHANGE, -end, end)
        widest = max(float(np.abs(x).max()) for x in changes.values())
        scale = FlowScale(widest, style.widest, "trips more or less")
        differences = FlowMap(network, layout, style, colours, scale, inch)
        for axes, (name, x) in zip(rest, changes.items()):
            differences.draw(axes, x)
            _write_titles(axes, name, f"from {x.min():+.4g} to {x.max():+.4g} on an arc")
        _draw_colour_bar(figure, colours, rest, "difference / capacity", mark=0.0)
    for axes in panels[count:]:
        axes.set_visible(False)
    if layout.note and ax is None:
        figure.supxlabel(layout.note, fontsize=8)
    return finished_plot(figure, path, ax)


@dataclass(frozen=True)
class Style:
    """Sizes on a map, in units of its layout."""

    radius: float
    """Of the nodes."""
    widest: float
    """The width of the arc with the largest flow."""
    outline: float
    """Around the arcs, in points."""
    has_names: bool
    """Are the names of the nodes written?"""


NAMED, DOTS = Style(0.14, 0.17, 0.3, True), Style(0.05, 0.3, 0.0, False)


@dataclass(frozen=True)
class FlowScale:
    """The widths of arcs by their flow."""

    widest: float
    """The largest flow."""
    widest_width: float
    unit: str
    """The name of the flows, for a legend."""

    @property
    def legend_flows(self) -> tuple[float, ...]:
        """Round numbers up to the largest flow."""
        if not self.widest > 0:
            return (0.0,)
        most = nice(self.widest)
        return (nice(most / 4.0), most)

    def widths(self, flows: Any) -> Any:
        """The widths of arcs with these flows."""
        shares = flows / self.widest if self.widest > 0 else 0.0 * flows
        return self.widest_width * (SIZES.thinnest + (1.0 - SIZES.thinnest) * shares)


@dataclass(frozen=True)
class FlowMap:
    """A map of a network, to be drawn with one flow or another."""

    network: Network
    layout: MapLayout
    style: Style
    colours: Any
    """Matplotlib's colours of flow over capacity."""
    scale: FlowScale
    inch: float | None
    """Units of the layout in an inch of the figure; None for a map without legend."""

    def draw(self, axes: Any, flow: Array) -> None:
        """Draw the arcs with widths and colours by a flow (A,), then nodes and legend."""
        from matplotlib.collections import PolyCollection

        style, places = self.style, self.layout.places
        widths = self.scale.widths(np.abs(flow))
        shapes = ribbons(self.network, places, widths, style.radius, style.widest)
        # Wide ribbons first, so that they hide nothing.
        order = np.argsort(-widths, kind="stable")
        axes.add_collection(
            PolyCollection(
                list(shapes[order]),
                facecolors=self.colours.to_rgba((flow / self.network.capacity)[order]),
                edgecolors=ROAD,
                linewidths=style.outline,
            )
        )
        self._draw_nodes(axes)
        low, high = places.min(axis=0) - SIZES.margin, places.max(axis=0) + SIZES.margin
        if self.inch is not None:
            left, line, unit = (
                low[0] + SIZES.margin,
                SIZES.legend_line * self.inch,
                self.layout.unit,
            )
            low[1] -= (1.4 if unit is None else 2.4) * line
            self._draw_flow_legend(axes, left, low[1] + 0.6 * line, self.inch)
            if unit is not None:
                span = SIZES.scale_share * (high[0] - low[0])
                self._draw_scale_bar(axes, left, low[1] + 1.6 * line, self.inch, span, unit)
        axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)

    def _draw_nodes(self, axes: Any) -> None:
        from matplotlib.collections import EllipseCollection

        places = self.layout.places
        sides = np.full(len(places), 2.0 * self.style.radius)
        axes.add_collection(
            EllipseCollection(
                sides,
                sides,
                np.zeros(len(places)),
                units="xy",
                offsets=places,
                offset_transform=axes.transData,
                facecolors="white" if self.style.has_names else INK,
                edgecolors=INK,
                linewidths=0.6,
                zorder=3,
            )
        )
        if self.style.has_names:
            for node, (x, y) in zip(self.network.nodes, places):
                axes.text(x, y, str(node), ha="center", va="center_baseline", size=7, zorder=4)

    def _draw_flow_legend(self, axes: Any, x: float, y: float, inch: float) -> None:
        """Pieces of road with round flows, from the point (x, y) on."""
        from matplotlib.patches import Rectangle

        size = SIZES.swatch * inch
        for k, flow in enumerate(self.scale.legend_flows):
            width = self.scale.widths(flow)
            piece = Rectangle(
                (x, y - width / 2), size, width, facecolor=SWATCH, edgecolor=INK, lw=0.4
            )
            piece.set_label(LEGEND)
            axes.add_patch(piece)
            is_last = k == len(self.scale.legend_flows) - 1
            text = f"{flow:,g}" + (f" {self.scale.unit}" if is_last else "")
            _write_legend(axes, x + size, y, text, inch)
            # A letter is about 0.6 of its height wide.
            x += size + inch * (0.6 * SIZES.legend_points / 72 * len(text) + 0.2)

    def _draw_scale_bar(
        self, axes: Any, x: float, y: float, inch: float, span: float, unit: float
    ) -> None:
        """A bar of round length, at most `span`, from the point (x, y) on."""
        length = nice(span * unit)
        end, tick = x + length / unit, 0.04 * inch
        xs, ys = [x, x, x, end, end, end], [y + tick, y - tick, y, y, y - tick, y + tick]
        axes.plot(xs, ys, color=INK, lw=1.2, solid_joinstyle="miter", label=LEGEND)
        _write_legend(axes, end, y, f"{length:,g} {self.layout.unit_name}".strip(), inch)


# ------------------------------------------------------------------ texts and scales
def nice(largest: float) -> float:
    """The largest of 1, 2, 5, 10, 20, 50, ... that is not above a number > 0."""
    power = 10.0 ** np.floor(np.log10(largest))
    # 10 ** floor(log10) may be just above the number.
    first = max((d for d in (0.5, 1.0, 2.0, 5.0) if d * power <= largest), default=0.5)
    return float(f"{first * power:.3g}")


def _write_legend(axes: Any, x: float, y: float, text: str, inch: float) -> None:
    """A text of the legend to the right of the point (x, y)."""
    place = {"ha": "left", "va": "center_baseline"}
    axes.text(x + 0.06 * inch, y, text, size=SIZES.legend_points, color=INK, label=LEGEND, **place)


def _write_titles(axes: Any, name: str, summary: str) -> None:
    """The name of a panel, and under it a line about its flow."""
    axes.set_title(plain(name), fontsize=11, pad=18)
    axes.annotate(
        summary,
        (0.5, 1.0),
        xytext=(0, 5),
        xycoords="axes fraction",
        textcoords="offset points",
        ha="center",
        size=8,
    )


def _colour_scale(name: str, colours: tuple[str, ...], low: float, high: float) -> Any:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    scale = LinearSegmentedColormap.from_list(name, colours)
    return ScalarMappable(Normalize(low, high), scale)


def _draw_colour_bar(figure: Any, colours: Any, panels: Any, label: str, mark: float) -> None:
    """A colour bar under the panels, with a line at `mark` if it is within."""
    bar = figure.colorbar(
        colours, ax=list(panels), location="bottom", fraction=0.045, pad=0.01, aspect=30
    )
    bar.set_label(label)
    if colours.norm.vmin < mark < colours.norm.vmax:
        bar.ax.axvline(mark, color=INK, lw=1.2)
