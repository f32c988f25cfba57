"""Pictures of decisions: on a graph, in a table, as bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model.compat import networkx as nx
from wdro_model.display.figures import COLOURS, finished_plot, inches_of, panels_for, plain
from wdro_model.sets.backends import Vector

if TYPE_CHECKING:
    from wdro_model.sets.choices import OnGraph

CHOSEN, NOT_CHOSEN = COLOURS[-1], "0.8"
"""Dark where something is chosen: the colours are those of methods."""
VISIBLE = 1e-3
"""Coordinates up to this, relative to the largest, are drawn as zero."""
LABELLED = 40
"""Graphs with more nodes are drawn without names, tables with more rows or columns too."""
LETTERS = 4
"""Names that are longer are not written into nodes: they do not fit."""
MOST_BARS = 40
"""More coordinates than this: only the largest get a bar."""


def draw_graph(graph: OnGraph, x: Vector, path: Any = None, ax: Any = None) -> Any:
    """The graph with every edge as wide as |x_e|, relative to the largest.

    Edges at zero are thin and grey. Where the graph says nothing of places, a spring layout with a
    fixed seed finds some.
    """
    figure, (axes,) = panels_for(ax, 1, 6.0, 6.0)
    network: Any = nx.DiGraph() if graph.is_directed else nx.Graph()
    network.add_nodes_from(graph.nodes)
    network.add_edges_from(edge[:2] for edge in graph.edges)
    places = graph.places or nx.spring_layout(network, seed=0)
    size = np.abs(x) / (np.abs(x).max() or 1.0)
    order = np.argsort(size, kind="stable")
    for width, chosen, colour in (
        (np.full(order.size, 0.6), size[order] <= VISIBLE, NOT_CHOSEN),
        (0.8 + 3.2 * size[order], size[order] > VISIBLE, CHOSEN),
    ):
        nx.draw_networkx_edges(
            network,
            places,
            edgelist=[graph.edges[e][:2] for e in order[chosen]],
            width=width[chosen].tolist(),
            edge_color=colour,
            ax=axes,
        )
    short = max(len(str(node)) for node in graph.nodes) <= LETTERS
    named = short and len(graph.nodes) <= LABELLED and min(inches_of(axes)) > 2.5
    nx.draw_networkx_nodes(
        network,
        places,
        node_size=220 if named else 20,
        node_color="white" if named else CHOSEN,
        edgecolors="0.3",
        ax=axes,
    )
    if named:
        nx.draw_networkx_labels(network, places, font_size=8, ax=axes)
    axes.set_axis_off()
    return finished_plot(figure, path, ax)


def draw_table(
    table: np.ndarray, rows: Sequence[Any], columns: Sequence[Any], path: Any = None, ax: Any = None
) -> Any:
    """A matrix as squares, dark where an entry is large; blue and red where some are negative."""
    n, m = table.shape
    scale = float(np.clip(0.3 * max(n, m), 2.5, 8.0)) / max(n, m)
    figure, (axes,) = panels_for(ax, 1, max(3.0, scale * m + 1.6), max(2.4, scale * n + 1.0))
    most = float(np.abs(table).max()) or 1.0
    signed = bool((table < -VISIBLE * most).any())
    shown = axes.imshow(
        table, cmap="RdBu_r" if signed else "Greys", vmin=-most if signed else 0.0, vmax=most
    )
    for names, n_ticks, ticks in ((rows, n, axes.set_yticks), (columns, m, axes.set_xticks)):
        if n_ticks <= LABELLED:
            ticks(range(n_ticks), [plain(str(name), 16) for name in names])
    if max(len(str(name)) for name in columns) > 2 and m <= LABELLED:
        axes.tick_params(axis="x", rotation=90)
    axes.figure.colorbar(shown, ax=axes, shrink=0.7)
    return finished_plot(figure, path, ax)


def draw_bars(names: Sequence[Any], x: Vector, path: Any = None, ax: Any = None) -> Any:
    """A bar for each coordinate, in their order; only the largest where there are many."""
    kept = np.sort(np.argsort(-np.abs(x), kind="stable")[:MOST_BARS])
    figure, (axes,) = panels_for(ax, 1, 5.2, max(1.6, 0.9 + 0.22 * kept.size))
    axes.barh(range(kept.size), x[kept], color=CHOSEN, height=0.7)
    size = float(np.clip(55 * inches_of(axes)[1] / kept.size, 3, 10))
    axes.set_yticks(range(kept.size), [plain(str(names[i]), 24) for i in kept], fontsize=size)
    axes.set_ylim(kept.size - 0.4, -0.6)
    axes.axvline(0.0, color="0.3", lw=0.8)
    axes.set_xlabel("value of a coordinate")
    if kept.size < x.size:
        axes.set_title(f"the {kept.size} largest of {x.size} coordinates", fontsize=10)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return finished_plot(figure, path, ax)
