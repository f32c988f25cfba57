r"""Maps of traffic: links coloured by flow over capacity, several assignments side by side.

An arc is drawn as a ribbon on the right of the line from its tail to its head, so that both
directions of a road lie side by side, each with half an arrowhead:

    tail  ___________________
          |__________________\   head
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wdro_model.compat import networkx as nx
from wdro_model.display.figures import drawn, inches_of, new_figure, panels_for, plain
from wdro_model.traffic.network import Network, as_flow

CLOSE = 0.6
"""Nodes keep this distance, as a fraction of what they would have on a square grid."""
ROUNDS = 200
KILOMETRES = 111.2
"""In a degree of latitude."""
MOST_DEGREES, AWAY = 10.0, 3.0
"""Coordinates that spread over more degrees, or start near (0, 0), are taken as a plane's."""
SMALL = 100
"""Layouts that take the time of n^3 are for networks of at most so many nodes."""


@dataclass(frozen=True)
class MapLayout:
    """Nodes on a map."""

    places: Array
    """(n, 2), in units of the typical distance between neighbours on a square grid."""
    note: str = ""
    """What the reader of the map should know about the places."""
    unit: float | None = None
    """Of the coordinates, or kilometres, in a unit of the layout; None if they are not known."""
    unit_name: str = ""
    """km where coordinates are degrees."""

    @classmethod
    def of(cls, network: Network) -> MapLayout:
        """The network's own positions, or a layout by networkx where there are none."""
        places, note = _positions(network)
        degrees = _are_degrees(places)
        flat = _projected(places) if degrees else places
        unit = _grid_unit(flat)
        known = not note and unit > 0
        return cls(
            _apart((flat - flat.min(axis=0)) / (unit or 1.0)),
            note,
            unit * (KILOMETRES if degrees else 1.0) if known else None,
            "km" if degrees else "units",
        )


def _positions(network: Network) -> tuple[Array, str]:
    known = np.zeros(network.n_nodes, dtype=bool)
    if network.positions is not None:
        known = np.isfinite(network.positions).all(axis=1)
    if known.all() and network.positions is not None:
        return network.positions, ""
    graph = nx.Graph()
    graph.add_nodes_from(range(network.n_nodes))
    graph.add_edges_from(zip(network.tails.tolist(), network.heads.tolist()))
    if network.positions is None or not known.any():
        return _as_array(_drawn(graph)), "The network has no positions: a layout by networkx."
    fixed = {int(i): network.positions[i] for i in np.flatnonzero(known)}
    places = _as_array(nx.spring_layout(graph, pos=fixed, fixed=list(fixed), seed=0))
    return places, f"{np.sum(~known)} nodes have no position: they are placed by networkx."


def _drawn(graph: nx.Graph) -> dict[int, Any]:
    """A layout with few crossings: by distances in the graph, of large ones by springs."""
    if graph.number_of_nodes() <= SMALL and nx.is_connected(graph):
        return nx.kamada_kawai_layout(graph)
    return nx.spring_layout(graph, seed=0)


def _as_array(places: dict[int, Any]) -> Array:
    return np.array([places[i] for i in range(len(places))], dtype=np.float64).reshape(-1, 2)


def _are_degrees(places: Array) -> bool:
    """Are the coordinates longitudes and latitudes? Then they are far from (0, 0), and a city is
    small."""
    extent, centre = np.ptp(places, axis=0).max(), np.hypot(*places.mean(axis=0))
    within = np.abs(places[:, 0]).max() <= 180 and np.abs(places[:, 1]).max() <= 90
    return bool(within and extent < MOST_DEGREES and centre > AWAY * extent)


def _projected(places: Array) -> Array:
    """Longitudes shrunk by the cosine of the latitude."""
    return places * [np.cos(np.radians(places[:, 1].mean())), 1.0]


def _grid_unit(places: Array) -> float:
    """sqrt(area / n); of degenerate maps by their extent, 0 if there is none."""
    extent = np.ptp(places, axis=0)
    sides = np.maximum(extent, 0.2 * extent.max())
    return float(np.sqrt(sides.prod() / len(places)))


def _apart(places: Array, least: float = CLOSE) -> Array:
    """Nodes that are closer than `least` pushed apart, in turn, until none are."""
    places = places.copy()
    first, second = np.triu_indices(len(places), 1)
    for _ in range(ROUNDS):
        between = places[second] - places[first]
        distance = np.hypot(*between.T)
        close = distance < 0.999 * least
        if not close.any():
            break
        i, j, between, distance = first[close], second[close], between[close], distance[close]
        # Nodes at the same place leave it in a direction of their own.
        angle = 2.4 * j[distance == 0]
        between[distance == 0] = np.column_stack([np.cos(angle), np.sin(angle)])
        length = np.where(distance > 0, distance, 1.0)
        push = 0.5 * ((least - distance) / length)[:, None] * between
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
    inner = (0.06 + _rank(network))[:, None] * slot * right
    outer = inner + widths[:, None] * right
    tip = np.minimum(1.2 * widths[:, None], 0.5 * (length - 2 * reach))
    start, end = start + reach * along, end - reach * along
    return np.stack(
        [start + inner, end + inner, end - tip * along + outer, start + outer, start + inner],
        axis=1,
    )


def _rank(network: Network) -> Array:
    """Of each arc among those with the same tail and head: 0, 1, ..."""
    seen: dict[tuple[int, int], int] = {}
    ranks = np.empty(network.n_arcs)
    for a, pair in enumerate(zip(network.tails.tolist(), network.heads.tolist())):
        ranks[a] = seen.get(pair, 0)
        seen[pair] = seen.get(pair, 0) + 1
    return ranks


# ------------------------------
# What widths and distances on a map mean: a legend of flows, and a scale bar


MAP_LEGEND_INK, SWATCH = "#262626", "#b8b8b8"
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
        axes.plot(xs, ys, color=MAP_LEGEND_INK, lw=1.2, solid_joinstyle="miter", label=LEGEND)
        self._write(axes, end, y, f"{length:,g} {self.unit_name}".strip())

    def _draw_flows(self, axes: Any, x: float, y: float, flows: FlowWidths) -> None:
        from matplotlib.patches import Rectangle

        for k, flow in enumerate(flows.shown):
            width = flows.width(flow)
            size = SWATCH_INCHES * self.inch
            corner = (x, y - width / 2)
            piece = Rectangle(
                corner, size, width, facecolor=SWATCH, edgecolor=MAP_LEGEND_INK, lw=0.4
            )
            piece.set_label(LEGEND)
            axes.add_patch(piece)
            what = f" {flows.what}" if k == len(flows.shown) - 1 else ""
            text = f"{flow:,g}{what}"
            self._write(axes, x + size, y, text)
            # A letter is about 0.6 of its height wide.
            x += size + self.inch * (0.6 * POINTS / 72 * len(text) + 0.2)

    def _write(self, axes: Any, x: float, y: float, text: str) -> None:
        written = axes.text(
            x + 0.06 * self.inch,
            y,
            text,
            ha="left",
            va="center_baseline",
            size=POINTS,
            color=MAP_LEGEND_INK,
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


# ------------------------------
# Maps of traffic: arcs coloured by flow over capacity, several assignments side by side


Array = np.ndarray
CONGESTION = ("#1a9850", "#8cc152", "#f6d32d", "#f08c2e", "#d7301f", "#7f0000")
"""From no flow (green) to the largest flow over capacity (dark red)."""
CHANGE = ("#2166ac", "#92c5de", "#f2f2f2", "#f4a582", "#b2182b")
"""From less flow (blue) to more (red)."""
INK, ROAD = "#262626", "#8a8a8a"
THINNEST = 0.1
"""The width of an arc without flow, as a fraction of the widest one."""
ROOM = 0.2
"""Around the map, in units of its layout."""
MOST_LABELS = 60
"""Networks with more nodes are drawn without their names unless asked for."""
COLUMNS = 3
ROOMY, LEGIBLE = 3.0, 1.8
"""Inches of axes under which names do not fit into nodes, and a legend not under the map."""


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

    Both directions of a road lie side by side, each on its right. Nodes that are too close to be
    told apart are moved a little. A network without positions is laid out by networkx, and the map
    says so.

    Parameters
    ----------
    path
        Where to save the figure; the suffix says the format.
    title
        By default the name of the network.
    limit
        The flow over capacity that the end of the colours stands for; the largest if not given.
    labels
        Draw the names of the nodes? By default up to 60 of them.
    legend
        Say under the map what widths stand for, and draw a scale bar? It is in kilometres where
        the positions are degrees, and in the units of the positions elsewhere; roads are as long as
        on the ground but for nodes that were moved.
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
    """Maps of several flows {name: (A,)} side by side, and what each differs from the first.

    Widths and colours mean the same in all maps of flows; those of differences have a scale of
    their own: red where there is more flow than in the first, blue where there is less. At most
    `columns` maps are in a row; `ax` takes axes for all the maps. Other options as in `plot_flows`.

    Examples
    --------
    >>> naive = wdro.traffic.all_or_nothing(network, network.free_flow_time)
    >>> settled, _ = wdro.traffic.equilibrium(network, gap=1e-2)
    >>> figure = wdro.traffic.plot_comparison(network, {"naive": naive, "settled": settled})
    """
    if isinstance(columns, bool) or not isinstance(columns, int | np.integer) or columns < 1:
        raise ValueError(f"columns must be an integer of at least 1, got {columns!r}.")
    if not isinstance(flows, Mapping) or not flows:
        raise ValueError(
            f"flows must be a dict of at least one flow by its name, got {flows!r}; write "
            '{"ERM": x1, "robust": x2}.'
        )
    return _plot(network, flows, path, limit, labels, legend, int(columns), difference, ax)


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
    flows = {str(name): as_flow(flow, network, one=True) for name, flow in named.items()}
    most = _checked_limit(limit, max(float(_ratio(network, x).max()) for x in flows.values()))
    first, *others = flows
    changes = {f"{o} minus {first}": flows[o] - flows[first] for o in others if difference}
    layout = MapLayout.of(network)
    width, height = _panel_size(layout)
    count = len(flows) + len(changes)
    columns = min(count, most_columns)
    rows = -(-count // columns)
    if ax is None:
        under = LEGEND_INCHES if legend else 0.0
        figure = new_figure(width * columns + 0.2, (height + under + 0.55) * rows + 0.7)
        panels = figure.subplots(rows, columns, squeeze=False).flatten()
    else:
        figure, panels = panels_for(ax, count, width, height)
        width, height = inches_of(panels[0])
        if labels is None and min(width, height) < ROOMY:
            labels = False
        legend = legend and min(width, height) >= LEGIBLE
    inch = float(np.max((np.ptp(layout.places, axis=0) + 2 * ROOM) / (width, height)))
    said = MapLegend(inch, layout.unit, layout.unit_name) if legend else None
    congestion = _Map(network, layout, _colours("congestion", CONGESTION, 0.0, most), labels, said)
    widest = max(float(x.max()) for x in flows.values())
    for axes, (name, x) in zip(panels, flows.items()):
        congestion.draw(axes, x, _ratio(network, x), widest, "trips")
        _entitle(axes, name, _summary(network, x))
    first_maps, rest = panels[: len(flows)], panels[len(flows) :]
    _bar(figure, congestion.colours, first_maps, "flow / capacity", mark=1.0)
    if changes:
        _draw_changes(figure, network, layout, changes, rest, labels, said)
    for axes in panels[count:]:
        axes.set_visible(False)
    if layout.note and ax is None:
        figure.supxlabel(layout.note, fontsize=8)
    return drawn(figure, path, ax)


def _draw_changes(
    figure: Any,
    network: Network,
    layout: MapLayout,
    changes: Mapping[str, Array],
    panels: Array,
    labels: bool | None,
    legend: MapLegend | None,
) -> None:
    """Maps of differences of flows, on a scale of their own."""
    ratios = [_ratio(network, change) for change in changes.values()]
    end = max(float(np.abs(ratio).max()) for ratio in ratios) or 1.0
    widest = max(float(np.abs(change).max()) for change in changes.values())
    drawing = _Map(network, layout, _colours("change", CHANGE, -end, end), labels, legend)
    for axes, (name, change), ratio in zip(panels, changes.items(), ratios):
        drawing.draw(axes, np.abs(change), ratio, widest, "trips more or less")
        _entitle(axes, name, _spread(change))
    _bar(figure, drawing.colours, panels[: len(changes)], "difference / capacity", mark=0.0)


@dataclass(frozen=True)
class Style:
    """Sizes on a map, in units of its layout."""

    radius: float
    """Of the nodes."""
    widest: float
    """The width of the arc with the largest flow."""
    outline: float
    """Around the arcs, in points."""


NAMED, DOTS = Style(0.14, 0.17, 0.3), Style(0.05, 0.3, 0.0)
"""Nodes with their names, and without."""


class _Map:
    """How flows are drawn on a network: the layout and the colours."""

    def __init__(
        self,
        network: Network,
        layout: MapLayout,
        colours: Any,
        labels: bool | None,
        legend: MapLegend | None,
    ) -> None:
        self.network, self.layout, self.colours = network, layout, colours
        self.legend = legend
        self.labelled = network.n_nodes <= MOST_LABELS if labels is None else bool(labels)
        self.style = NAMED if self.labelled else DOTS

    def draw(self, axes: Any, sizes: Array, colouring: Array, widest: float, what: str) -> None:
        """Arcs with widths by `sizes` (A,) and colours by `colouring` (A,), then the nodes.

        what: the sizes are, for the legend.
        """
        from matplotlib.collections import PolyCollection

        shares = sizes / widest if widest > 0 else np.zeros_like(sizes)
        style, places = self.style, self.layout.places
        widths = style.widest * (THINNEST + (1.0 - THINNEST) * shares)
        shapes = ribbons(self.network, places, widths, style.radius, style.widest)
        # Wide ribbons first, so that they hide nothing.
        order = np.argsort(-widths, kind="stable")
        axes.add_collection(
            PolyCollection(
                list(shapes[order]),
                facecolors=self.colours.to_rgba(colouring[order]),
                edgecolors=ROAD,
                linewidths=style.outline,
            )
        )
        self._draw_nodes(axes)
        low, high = places.min(axis=0) - ROOM, places.max(axis=0) + ROOM
        if self.legend is not None:
            low[1] -= self.legend.height
            flows = FlowWidths(widest, style.widest, THINNEST, what)
            self.legend.draw(axes, low[0] + ROOM, low[1], high[0] - low[0], flows)
        axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)

    def _draw_nodes(self, axes: Any) -> None:
        from matplotlib.collections import EllipseCollection

        places = self.layout.places
        sides = np.full(len(places), 2.0 * self.style.radius)
        face = "white" if self.labelled else INK
        axes.add_collection(
            EllipseCollection(
                sides,
                sides,
                np.zeros(len(places)),
                units="xy",
                offsets=places,
                offset_transform=axes.transData,
                facecolors=face,
                edgecolors=INK,
                linewidths=0.6,
                zorder=3,
            )
        )
        if self.labelled:
            for node, (x, y) in zip(self.network.nodes, places):
                axes.text(x, y, str(node), ha="center", va="center_baseline", size=7, zorder=4)


# ------------------------------------------------------------------ parts
def _entitle(axes: Any, name: str, summary: str) -> None:
    """The name of a panel, and under it a line about what it shows."""
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


def _ratio(network: Network, flow: Array) -> Array:
    return flow / network.capacity


def _summary(network: Network, flow: Array) -> str:
    ratio = _ratio(network, flow)
    over = int(np.sum(ratio > 1.0))
    return f"{over} of {network.n_arcs} arcs over capacity, at most {ratio.max():.3g} times"


def _spread(change: Array) -> str:
    return f"from {change.min():+.4g} to {change.max():+.4g} on an arc"


def _checked_limit(limit: Any, largest: float) -> float:
    if limit is None:
        return largest if largest > 0 else 1.0
    if isinstance(limit, bool) or not isinstance(limit, int | float | np.number):
        raise ValueError(f"limit must be a positive number, got {limit!r}.")
    if not 0 < limit < np.inf:
        raise ValueError(f"limit must be a positive finite number, got {limit!r}.")
    return float(limit)


def _colours(name: str, colours: tuple[str, ...], low: float, high: float) -> Any:
    new_figure(1, 1)  # says what to install if matplotlib is missing
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    scale = LinearSegmentedColormap.from_list(name, colours)
    return ScalarMappable(Normalize(low, high), scale)


def _bar(figure: Any, colours: Any, panels: Any, label: str, mark: float) -> None:
    """A colour bar under the panels, with a line at `mark` if it is within."""
    bar = figure.colorbar(
        colours, ax=list(panels), location="bottom", fraction=0.045, pad=0.01, aspect=30
    )
    bar.set_label(label)
    if colours.norm.vmin < mark < colours.norm.vmax:
        bar.ax.axvline(mark, color=INK, lw=1.2)


def _panel_size(layout: MapLayout) -> tuple[float, float]:
    """Inches of a map: about 0.8 for a grid unit, within 3 to 7."""
    extent = np.ptp(layout.places, axis=0) + 2 * ROOM
    scale = float(np.clip(0.8 * extent.max(), 3.5, 7.0)) / extent.max()
    width, height = np.maximum(extent * scale, 2.8)
    return float(width), float(height)
