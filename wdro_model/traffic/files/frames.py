"""Networks from and to pandas frames and networkx graphs."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from wdro_model.compat import networkx as nx
from wdro_model.errors import unknown_name
from wdro_model.traffic.fields import ARC_FIELDS, DEFAULTS, demand_matrix, nonzero_demand
from wdro_model.traffic.files.columns import (
    ColumnTable,
    network_fields,
    plain_value,
    split_by_table,
)

FrameNames = Literal["gmns", "aequilibrae"]
LINK_END_NAMES: dict[str, dict[str, str]] = {
    "gmns": {"tail": "from_node_id", "head": "to_node_id"},
    "aequilibrae": {"tail": "a_node", "head": "b_node"},
}


class NetworkFrames(NamedTuple):
    """A network as three pandas frames: links, demand, nodes.

    Examples
    --------
    >>> links, demand, nodes = wdro.datasets.sioux_falls().to_frames()
    >>> len(links), len(demand), len(nodes)
    (76, 528, 24)
    """

    links: Any
    """One row for each arc."""
    demand: Any
    """One row for each pair of zones with trips: origin, destination (names of nodes), trips."""
    nodes: Any
    """One row for each node: its name, its coordinates, its zone, may it be passed."""


def pandas(what: str) -> Any:
    """The package pandas; an ImportError tells what needs it."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(
            f"{what} needs pandas: pip install pandas, or pip install 'wdro_model[plot]'."
        ) from error
    return pd


# ------------------------------------------------------------------ to columns and frames
def link_columns(network: Any, names: Mapping[str, str]) -> dict[str, list[Any]]:
    """The arcs of a network, one column for each field, named by `names` where it has the field."""
    arcs = network.arcs
    return {
        "link_id": list(range(1, network.n_arcs + 1)),
        names["tail"]: [tail for tail, _ in arcs],
        names["head"]: [head for _, head in arcs],
        **{names.get(field, field): getattr(network, field).tolist() for field in ARC_FIELDS},
    }


def demand_columns(
    network: Any, zone_names: Sequence[Any]
) -> tuple[list[Any], list[Any], list[float]]:
    """Origins and destinations by the names of their zones, and trips."""
    origins, destinations, trips = nonzero_demand(network.demand)
    return [zone_names[o] for o in origins], [zone_names[d] for d in destinations], trips.tolist()


def node_columns(network: Any) -> dict[str, list[Any]]:
    """The nodes of a network; zone_id counts the zones from 1."""
    zone = {int(node): z for z, node in enumerate(network.zones, start=1)}
    columns: dict[str, list[Any]] = {"node_id": list(network.nodes)}
    if network.positions is not None:
        columns |= dict(zip(("x_coord", "y_coord"), network.positions.T.tolist()))
    columns["zone_id"] = [zone.get(i) for i in range(network.n_nodes)]
    columns["through"] = network.through.tolist()
    return columns


def frames_of(network: Any, names: FrameNames) -> NetworkFrames:
    """The frames of a network; see `Network.to_frames`."""
    if names not in LINK_END_NAMES:
        raise ValueError(unknown_name("names of columns", names, list(LINK_END_NAMES)))
    pd = pandas("to_frames()")
    links = pd.DataFrame(link_columns(network, LINK_END_NAMES[names]))
    if names == "aequilibrae":
        links.insert(3, "direction", 1)
    trips = demand_columns(network, [network.nodes[z] for z in network.zones])
    demand = pd.DataFrame(dict(zip(("origin", "destination", "trips"), trips)))
    nodes = node_columns(network)
    nodes["zone_id"] = pd.array(nodes["zone_id"], dtype="Int64")
    return NetworkFrames(links, demand, pd.DataFrame(nodes))


# ------------------------------------------------------------------ from frames
def fields_from_frames(
    links: Any,
    demand: Any,
    nodes: Any,
    columns: Mapping[str, str] | None,
    toll_weight: float,
    length_weight: float,
) -> dict[str, Any]:
    """The fields of a network; see `Network.from_frames`."""
    given = split_by_table(columns)
    return network_fields(
        _frame_table(links, "links", given["links"]),
        _frame_table(demand, "demand", given["demand"]),
        None if nodes is None else _frame_table(nodes, "nodes", given["nodes"]),
        toll_weight,
        length_weight,
    )


def _frame_table(data: Any, name: str, given: Mapping[str, str]) -> ColumnTable:
    """The table of a pandas frame, or of a dict of columns."""
    if hasattr(data, "columns") and hasattr(data, "index"):
        if not data.columns.is_unique:
            twice = plain_value(data.columns[data.columns.duplicated()][0])
            raise ValueError(f"{name} has more than one column {twice!r}; drop or rename one.")
        columns = {column: data[column].to_numpy() for column in data.columns}
        labels: Sequence[Any] = list(data.index)
    elif isinstance(data, Mapping):
        if any(np.ndim(values) != 1 and not isinstance(values, list) for values in data.values()):
            raise ValueError(f"the columns of {name} must be vectors, or lists.")
        columns = {key: list(values) for key, values in data.items()}
        sizes = {len(values) for values in columns.values()}
        if len(sizes) > 1:
            raise ValueError(f"the columns of {name} must have one length, got {sorted(sizes)}.")
        labels = range(sizes.pop() if sizes else 0)
    else:
        raise ValueError(
            f"{name} must be a pandas DataFrame or a dict of columns, got {type(data).__name__}."
        )

    def fault(label: Any, column: str, problem: str) -> Exception:
        row = "" if label is None else f", row {plain_value(label)!r}"
        return ValueError(f"{name}{row}, {column}: {problem}")

    return ColumnTable(name, columns, labels, fault, given)


# ------------------------------------------------------------------ networkx graphs
def graph_of(network: Any) -> nx.MultiDiGraph:
    """The graph of a network; see `Network.to_networkx`."""
    names, ends = network.nodes, [network.nodes[z] for z in network.zones]
    trips = zip(*nonzero_demand(network.demand))
    demand = {(ends[o], ends[d]): float(quantity) for o, d, quantity in trips}
    graph = nx.MultiDiGraph(name=network.name, demand=demand)
    zone = {int(node): z for z, node in enumerate(network.zones)}
    for i, node in enumerate(names):
        graph.add_node(node, zone=zone.get(i), through=bool(network.through[i]))
        if network.positions is not None:
            graph.nodes[node]["pos"] = tuple(network.positions[i].tolist())
    for a, (tail, head) in enumerate(network.arcs):
        values = {field: float(getattr(network, field)[a]) for field in ARC_FIELDS}
        graph.add_edge(tail, head, key=a, **values)
    return graph


def fields_from_graph(
    graph: Any,
    demand: Mapping[tuple[Any, Any], float] | None,
    attributes: Mapping[str, Any],
    zones: Iterable[Any] | None,
    through: str,
    positions: str,
) -> dict[str, Any]:
    """The fields of a network; see `Network.from_networkx`."""
    if not isinstance(graph, nx.DiGraph):
        raise ValueError(
            f"a network needs a directed networkx graph, got {type(graph).__name__}; an undirected "
            "one becomes two arcs per edge with graph.to_directed()."
        )
    nodes = list(graph.nodes)
    index = {node: i for i, node in enumerate(nodes)}
    trips = graph.graph.get("demand", {}) if demand is None else demand
    zone_names = _zone_names(graph, trips, zones)
    zone = {node: z for z, node in enumerate(zone_names)}
    for pair in trips:
        for node in pair:
            if node not in zone:
                raise ValueError(f"demand names node {node!r}, which is not among the zones.")
    edges = _edges_in_order(graph)
    places = nx.get_node_attributes(graph, positions)
    entries = ((zone[o], zone[d], trips[o, d]) for o, d in trips)
    return {
        "tails": np.array([index[u] for u, _, _ in edges], dtype=np.int64),
        "heads": np.array([index[v] for _, v, _ in edges], dtype=np.int64),
        **{field: _edge_values(edges, field, source) for field, source in attributes.items()},
        "demand": demand_matrix(entries, len(zone_names)),
        "zones": np.array([index[z] for z in zone_names], dtype=np.int64),
        "through": np.array([bool(graph.nodes[v].get(through, True)) for v in nodes], dtype=bool),
        "nodes": tuple(nodes),
        "positions": [places.get(v, (np.nan, np.nan)) for v in nodes] if places else None,
    }


def _edges_in_order(graph: Any) -> list[tuple[Any, Any, dict[str, Any]]]:
    """The edges; sorted by key if the keys are different integers, as `graph_of` writes them."""
    if not graph.is_multigraph():
        return list(graph.edges(data=True))
    edges = list(graph.edges(keys=True, data=True))
    keys = [key for _, _, key, _ in edges]
    if all(isinstance(key, int) for key in keys) and len(set(keys)) == len(keys):
        edges.sort(key=lambda edge: edge[2])
    return [(u, v, data) for u, v, _, data in edges]


def _edge_values(edges: list[tuple[Any, Any, dict[str, Any]]], field: str, source: Any) -> Any:
    """A field of the edges: `source` is a number for all of them, or the name of an attribute."""
    if isinstance(source, numbers.Real):
        return float(source)
    values = [data.get(source, DEFAULTS.get(field)) for _, _, data in edges]
    for (tail, head, _), value in zip(edges, values):
        if value is None:
            raise ValueError(
                f"edge {tail!r} -> {head!r} has no attribute {source!r} for {field}; set it, or "
                f"give {field}= the name of another attribute or a number for all arcs."
            )
    return values


def _zone_names(graph: Any, trips: Mapping[tuple[Any, Any], float], given: Any) -> list[Any]:
    """The nodes that are zones: as given, else as marked in the graph, then as in the demand."""
    named = dict.fromkeys(node for pair in trips for node in pair)
    if given is not None:
        zones = list(given)
    else:
        # `graph_of` marks zones by 0, 1, ...; other values of the attribute mean something else.
        marked = {node: zone for node, zone in graph.nodes(data="zone") if zone is not None}
        counted = all(type(zone) is int for zone in marked.values())
        if not counted or sorted(marked.values()) != list(range(len(marked))):
            marked = {}
        extra = [v for v in graph.nodes if v in named and v not in marked]
        zones = sorted(marked, key=marked.__getitem__) + extra
    for what, nodes in (("demand", named), ("zones", zones)):
        for node in nodes:
            if node not in graph:
                hint = _node_hint(graph, node)
                raise ValueError(f"{what} names {node!r}, which is not a node of the graph{hint}.")
    return zones


def _node_hint(graph: Any, node: Any) -> str:
    """Words on the nodes of the graph, for a name that is none of them."""
    names = list(graph.nodes)
    if not names:
        return ", which has none"
    twin = next((v for v in names if str(v) == str(node)), None)
    if twin is not None:
        return f": there it is {twin!r} ({type(twin).__name__}, not {type(node).__name__})"
    if node == len(names) and all(type(v) is int for v in names) and set(names) == set(range(node)):
        return (
            f": its nodes are 0 to {len(names) - 1}. Count from 0 in the demand too, or rename the "
            "nodes with nx.relabel_nodes(graph, lambda v: v + 1)"
        )
    shown = ", ".join(repr(v) for v in names[:3]) + (", ..." if len(names) > 3 else "")
    return f", whose nodes are {shown}: demand and zones go by the names of the nodes"
