"""Where the nodes of a map lie, and the outlines of its arcs.

An arc is drawn as a ribbon on the right of the line from its tail to its head, so that both
directions of a road lie side by side, each with half an arrowhead:

    tail  ___________________
          |__________________\\   head
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.deferred import networkx as nx
from wdro_model.traffic.network import Network

Array = np.ndarray
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
