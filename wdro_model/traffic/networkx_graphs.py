"""The fields of a network, as networkx graphs carry them."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from wdro_model.compat import networkx as nx
from wdro_model.traffic.demand_matrix import demand_of

DEFAULTS = {"b": 0.15, "power": 4.0, "fixed_cost": 0.0}
"""What edges take that do not carry the attribute."""


def fields_of(
    graph: Any,
    demand: Mapping[tuple[Any, Any], float] | None,
    attributes: Mapping[str, Any],
    zones: Iterable[Any] | None,
    through: str,
    positions: str,
) -> dict[str, Any]:
    """The fields of a network from a directed graph; see `Network.from_networkx`."""
    if not isinstance(graph, nx.DiGraph):
        raise ValueError(
            f"a network needs a directed networkx graph, got {type(graph).__name__}; an undirected "
            "one becomes two arcs per edge with graph.to_directed()."
        )
    nodes = list(graph.nodes)
    position = {node: i for i, node in enumerate(nodes)}
    trips = graph.graph.get("demand", {}) if demand is None else demand
    zone_names = _zones(graph, trips, zones)
    edges = _in_order(graph)
    places = nx.get_node_attributes(graph, positions)
    return {
        "tails": np.array([position[u] for u, _, _ in edges], dtype=np.int64),
        "heads": np.array([position[v] for _, v, _ in edges], dtype=np.int64),
        **{field: _arc_values(edges, field, source) for field, source in attributes.items()},
        "demand": _demand_matrix(trips, zone_names),
        "zones": np.array([position[z] for z in zone_names], dtype=np.int64),
        "through": np.array([bool(graph.nodes[v].get(through, True)) for v in nodes], dtype=bool),
        "nodes": tuple(nodes),
        "positions": [places.get(v, (np.nan, np.nan)) for v in nodes] if places else None,
    }


def _in_order(graph: Any) -> list[tuple[Any, Any, dict[str, Any]]]:
    """The edges; those of `to_networkx`, whose keys count the arcs, by their keys."""
    if not graph.is_multigraph():
        return list(graph.edges(data=True))
    edges = list(graph.edges(keys=True, data=True))
    keys = [key for _, _, key, _ in edges]
    if all(isinstance(key, int) for key in keys) and len(set(keys)) == len(keys):
        edges.sort(key=lambda edge: edge[2])
    return [(u, v, data) for u, v, _, data in edges]


def _arc_values(edges: list[tuple[Any, Any, dict[str, Any]]], field: str, source: Any) -> Any:
    if isinstance(source, numbers.Real):
        return float(source)
    values = []
    for tail, head, data in edges:
        value = data.get(source, DEFAULTS.get(field))
        if value is None:
            raise ValueError(
                f"edge {tail!r} -> {head!r} has no attribute {source!r} for {field}; set it, or "
                f"give {field}= the name of another attribute or a number for all arcs."
            )
        values.append(value)
    return values


def _zones(graph: Any, trips: Mapping[tuple[Any, Any], float], given: Any) -> list[Any]:
    """The nodes that are zones: as given, as marked in the graph, or those of the demand."""
    for origin, destination in trips:
        for node in (origin, destination):
            if node not in graph:
                raise ValueError(
                    f"demand names {node!r}, which is not a node of the graph{_hint(graph, node)}."
                )
    if given is not None:
        zones = list(given)
    else:
        marked = _marked_zones(graph)
        named = {node for pair in trips for node in pair}
        extra = [v for v in graph.nodes if v in named and v not in marked]
        zones = sorted(marked, key=marked.__getitem__) + extra
    for node in zones:
        if node not in graph:
            raise ValueError(
                f"zones names {node!r}, which is not a node of the graph{_hint(graph, node)}."
            )
    return zones


def _hint(graph: Any, node: Any) -> str:
    """What nodes look like, where a name of another kind or another count was given."""
    names = list(graph.nodes)
    if not names:
        return ", which has none"
    twin = next((v for v in names if str(v) == str(node)), None)
    if twin is not None:
        return f": there it is {twin!r} ({type(twin).__name__}, not {type(node).__name__})"
    shown = ", ".join(repr(v) for v in names[:3]) + (", ..." if len(names) > 3 else "")
    counted = all(type(v) is int for v in names) and set(names) == set(range(len(names)))
    if counted and node == len(names):
        return (
            f": its nodes are 0 to {len(names) - 1}. Count from 0 in the demand too, or rename the "
            "nodes with nx.relabel_nodes(graph, lambda v: v + 1)"
        )
    return f", whose nodes are {shown}: demand and zones go by the names of the nodes"


def _marked_zones(graph: Any) -> dict[Any, int]:
    """The zones by the node attribute "zone" that `to_networkx` sets; none if it is another's."""
    marked = {node: zone for node, zone in graph.nodes(data="zone") if zone is not None}
    counted = all(type(zone) is int for zone in marked.values())
    return marked if counted and sorted(marked.values()) == list(range(len(marked))) else {}


def _demand_matrix(trips: Mapping[tuple[Any, Any], float], zones: list[Any]) -> Any:
    index = {node: z for z, node in enumerate(zones)}
    for pair in trips:
        for node in pair:
            if node not in index:
                raise ValueError(f"demand names node {node!r}, which is not among the zones.")
    return demand_of(((index[o], index[d], trips[o, d]) for o, d in trips), len(zones))
