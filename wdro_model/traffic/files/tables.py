"""The fields of a network from tables of links, demand and nodes, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from wdro_model.errors import unknown_name
from wdro_model.traffic.demand_matrix import demand_of, nonzero_demand
from wdro_model.traffic.files.columns import SYNONYMS, ColumnTable, plain_value
from wdro_model.traffic.network_checks import (
    ARC_FIELDS,
    FINITE,
    KNOWN,
    NONNEGATIVE,
    POSITIVE,
    WAYS_OUT,
)

Array = np.ndarray
DEFAULTS = {"b": 0.15, "power": 4.0, "fixed_cost": 0.0}
BOTH_WAYS = ("capacity", "free_flow_time", "b", "power", "fixed_cost", "toll")
"""Fields that AequilibraE writes once for each direction of a link, as in capacity_ab."""
MINUTES = 60.0
"""In an hour: times of links that have a length and a speed are in minutes."""
NAMED_ROWS = 5
"""Rows that a repair names."""


def network_fields(
    links: ColumnTable,
    demand: ColumnTable,
    nodes: ColumnTable | None,
    toll_weight: float,
    length_weight: float,
) -> dict[str, Any]:
    """The fields of a `Network`."""
    arcs = read_arcs(links, {"toll": float(toll_weight), "length": float(length_weight)})
    origins, destinations = demand.names("origin"), demand.names("destination")
    zoned = nodes is not None and nodes.has("zone") and goes_by_zone(demand)
    named = [*origins, *destinations]
    ends = [name for pair in zip(arcs.tails, arcs.heads) for name in pair]
    names = _ordered([*ends, *named]) if nodes is None else _node_names(nodes)
    index = {name: i for i, name in enumerate(names)}
    for end in ("tail", "head"):
        links.check_known(end, links.names(end), index)
    if not zoned:
        demand.check_known("origin", origins, index)
        demand.check_known("destination", destinations, index)
    zones, repairs = _zones(nodes, named, index, zoned)
    trips, added = read_demand(demand, {zone: z for z, zone in enumerate(zones)})
    return {
        **arcs.fields(index),
        "demand": trips,
        "zones": np.array(list(zones.values()), dtype=np.int64),
        "through": np.ones(len(names), bool) if nodes is None else nodes.booleans("through", True),
        "nodes": tuple(names),
        "positions": None if nodes is None else read_positions(nodes),
        "repairs": (*arcs.repairs, *repairs, *added),
    }


# ------------------------------------------------------------------ links
@dataclass(frozen=True, eq=False)
class Arcs:
    """Directed arcs that trips can use, in the order of the links; values: by field, (A,) each."""

    tails: list[Any]
    heads: list[Any]
    values: dict[str, Array]
    repairs: tuple[str, ...]

    def fields(self, index: Mapping[Any, int]) -> dict[str, Array]:
        """The fields of a network, given the indices of the nodes by name."""
        ends = {"tails": self.tails, "heads": self.heads}
        return self.values | {
            field: np.array([index[name] for name in names], dtype=np.int64)
            for field, names in ends.items()
        }


def read_arcs(links: ColumnTable, weights: Mapping[str, float]) -> Arcs:
    """The arcs; weights: of the columns toll and length in the fixed cost.

    Loops and closed links are left out, and told. A link for both directions is two arcs.
    """
    forth, back = _directions(links)
    parts = [_read_direction(links, forth, "_ab", weights)]
    if back.size:
        parts.append(_read_direction(links, back, "_ba", weights))
    rows = np.concatenate([part.rows for part in parts])
    order = np.argsort(rows, kind="stable")  # both directions of a link follow each other
    tails, heads = _boxed(links.names("tail")), _boxed(links.names("head"))
    is_back = np.repeat(np.arange(len(parts)), [part.rows.size for part in parts])[order] == 1
    rows = rows[order]
    arcs = Arcs(
        np.where(is_back, heads[rows], tails[rows]).tolist(),
        np.where(is_back, tails[rows], heads[rows]).tolist(),
        {
            field: np.concatenate([part.values[field] for part in parts])[order]
            for field in ARC_FIELDS
        },
        tuple(dict.fromkeys(note for part in parts for note in part.repairs)),
    )
    if not arcs.tails:
        problem = "there is none that trips could use: every link is closed or a loop."
        raise links.error(None, "links", problem)
    return arcs


@dataclass(frozen=True, eq=False)
class _OneWay:
    """The open links in one direction: their rows and values, and what was left out."""

    rows: Array
    values: dict[str, Array]
    repairs: list[str]


def _directions(links: ColumnTable) -> tuple[Array, Array]:
    """The rows that lead from tail to head, and those that lead back: AequilibraE's direction (1,
    -1, or 0 for both), or GMNS's directed (false for both)."""
    rows = np.arange(links.size)
    if not links.has("direction"):
        return rows, rows[~links.booleans("directed", True)]
    direction = links.numbers("direction", 1.0)
    links.check("direction", direction, ("1, -1 or 0", lambda v: np.isin(v, (-1.0, 0.0, 1.0))))
    return rows[direction >= 0], rows[direction <= 0]


def _read_direction(
    links: ColumnTable, rows: Array, ending: str, weights: Mapping[str, float]
) -> _OneWay:
    """The values of links in one direction, of columns for that direction where there are such.

    A link of capacity 0 or infinite time is closed, and its other fields are not looked at.
    """
    repairs: list[str] = []

    def column(some: ColumnTable, field: str, default: float | None = None) -> Array:
        one_way = field in BOTH_WAYS and not some.has(field) and some.has(field, ending)
        return some.numbers(field, default, ending if one_way else "")

    def times(some: ColumnTable) -> Array:
        given = any(some.has("free_flow_time", end) for end in ("", ending))
        if given or not (some.has("length") and some.has("free_speed")):
            return column(some, "free_flow_time")
        speed = some.numbers("free_speed")
        some.check("free_speed", speed, POSITIVE)
        repairs.append("free-flow times are 60 * length / free_speed, minutes of speeds per hour")
        return MINUTES * some.numbers("length") / speed

    part = links.select(rows)
    loops = np.array([u == v for u, v in zip(part.names("tail"), part.names("head"))], dtype=bool)
    open_ = ~loops & (column(part, "capacity") != 0)
    open_[open_] = times(part.select(np.flatnonzero(open_))) != np.inf
    for left_out, why in (
        (~open_ & ~loops, "closed (capacity 0 or an infinite free-flow time)"),
        (loops, "from a node to itself"),
    ):
        labels = [str(plain_value(part.labels[row])) for row in np.flatnonzero(left_out).tolist()]
        if labels:
            some = ", ".join(labels[:NAMED_ROWS]) + (", ..." if len(labels) > NAMED_ROWS else "")
            repairs.append(f"removed {len(labels)} links, {why}: {part.row_word}s {some}")
    rows, part = rows[open_], part.select(np.flatnonzero(open_))
    fixed = column(part, "fixed_cost", DEFAULTS["fixed_cost"])
    for field, weight in weights.items():
        if weight:
            known = part.has(field) or part.has(field, ending)
            charges = column(part, field, 0.0 if known else None)
            part.check(field, charges, FINITE)
            fixed = fixed + weight * charges
    lanes = part.numbers("lanes", 1.0)
    values = {
        "capacity": column(part, "capacity") * lanes,
        "free_flow_time": times(part),
        "b": column(part, "b", DEFAULTS["b"]),
        "power": column(part, "power", DEFAULTS["power"]),
        "fixed_cost": fixed,
    }
    for field, rule in ARC_FIELDS.items():
        part.check(field, values[field], rule, WAYS_OUT[field])
    return _OneWay(rows, values, repairs)


def _boxed(names: list[Any]) -> Array:
    """Names in an array of objects, tuples too."""
    boxed = np.empty(len(names), dtype=object)
    boxed[:] = names
    return boxed


# ------------------------------------------------------------------ nodes and zones
def _ordered(names: Iterable[Any]) -> list[Any]:
    """Different names: sorted where they are numbers, else in the order they come in."""
    distinct = list(dict.fromkeys(names))
    return sorted(distinct) if all(type(name) is int for name in distinct) else distinct


def _node_names(nodes: ColumnTable) -> list[Any]:
    names = nodes.names("node")
    seen: set[Any] = set()
    for row, name in enumerate(names):
        if name in seen:
            raise nodes.error(row, "node", f"the node {name!r} is listed twice.")
        seen.add(name)
    return names


def goes_by_zone(demand: ColumnTable) -> bool:
    """Does the demand go by zones, as in GMNS, rather than by nodes?"""
    return str(demand.column_of("origin")).lower().endswith("zone_id")


def _zones(
    nodes: ColumnTable | None, named: list[Any], index: Mapping[Any, int], zoned: bool
) -> tuple[dict[Any, int], tuple[str, ...]]:
    """The node of each zone, by what the demand calls it, in order; and repairs."""
    if nodes is None or not (nodes.has("zone") or nodes.has("is_centroid")):
        return {name: index[name] for name in _ordered(named)}, ()
    names = nodes.names("node")
    if not nodes.has("zone"):
        centroids = [names[i] for i in np.flatnonzero(nodes.booleans("is_centroid", False))]
        return {name: index[name] for name in _ordered([*centroids, *named])}, ()
    rows_of: dict[Any, list[int]] = {}
    for row, zone in enumerate(nodes.optional_names("zone")):
        if zone is not None and not (isinstance(zone, int) and zone < 0):
            rows_of.setdefault(zone, []).append(row)
    wanted = set(named) if zoned else set(rows_of)
    shared = [zone for zone, rows in rows_of.items() if len(rows) > 1]
    for zone in shared:
        if zone in wanted:
            raise nodes.error(
                rows_of[zone][1],
                "zone",
                f"zone {zone!r} has {len(rows_of[zone])} nodes, and trips start at one: keep the "
                "zone of its centroid and leave the others empty.",
            )
        del rows_of[zone]
    repairs = tuple(f"zone {zone!r} has several nodes and no demand: no zone" for zone in shared)
    if zoned:
        return {zone: rows_of[zone][0] for zone in _ordered(rows_of)}, repairs
    zones = {names[rows_of[zone][0]]: rows_of[zone][0] for zone in _ordered(rows_of)}
    return zones | {name: index[name] for name in _ordered(named) if name not in zones}, repairs


def read_demand(demand: ColumnTable, zone: Mapping[Any, int]) -> tuple[Any, tuple[str, ...]]:
    """The matrix of the trips, given the zones' positions; what is listed twice is added."""
    origins, destinations = demand.names("origin"), demand.names("destination")
    demand.check_known("origin", origins, zone)
    demand.check_known("destination", destinations, zone)
    trips = demand.numbers("trips")
    demand.check("trips", trips, NONNEGATIVE)
    total: dict[tuple[Any, Any], float] = {}
    repeated: list[tuple[Any, Any]] = []
    for pair, quantity in zip(zip(origins, destinations), trips.tolist()):
        if pair in total:
            repeated.append(pair)
        total[pair] = total.get(pair, 0.0) + quantity
    repairs: tuple[str, ...] = ()
    if repeated:
        first, second = repeated[0]
        repairs = (
            f"added up {len(repeated)} demands that are listed twice, such as that from {first} to "
            f"{second}",
        )
    return demand_of(((zone[o], zone[d], q) for (o, d), q in total.items()), len(zone)), repairs


def read_positions(nodes: ColumnTable) -> Array | None:
    """The coordinates (rows, 2), NaN where one is missing; None without such columns."""
    if not (nodes.has("x") and nodes.has("y")):
        return None
    places = [nodes.numbers(axis, np.nan) for axis in ("x", "y")]
    for axis, values in zip(("x", "y"), places):
        nodes.check(axis, values, KNOWN)
    return np.column_stack(places)


# ------------------------------------------------------------------ back
def link_columns(network: Any, names: Mapping[str, str]) -> dict[str, list[Any]]:
    """The arcs of a network, one column for each field."""
    arcs = network.arcs
    return {
        "link_id": list(range(1, network.n_arcs + 1)),
        names["tail"]: [tail for tail, _ in arcs],
        names["head"]: [head for _, head in arcs],
        **{names.get(field, field): getattr(network, field).tolist() for field in ARC_FIELDS},
    }


def demand_columns(network: Any, zones: Sequence[Any]) -> tuple[list[Any], list[Any], list[float]]:
    """Origins and destinations by the names of the zones, and trips."""
    origins, destinations, trips = nonzero_demand(network.demand)
    return [zones[o] for o in origins], [zones[d] for d in destinations], trips.tolist()


def node_columns(network: Any) -> dict[str, list[Any]]:
    """The nodes of a network; zone_id counts the zones from 1."""
    zone = {int(node): z for z, node in enumerate(network.zones, start=1)}
    columns: dict[str, list[Any]] = {"node_id": list(network.nodes)}
    if network.positions is not None:
        columns |= dict(zip(("x_coord", "y_coord"), network.positions.T.tolist()))
    columns["zone_id"] = [zone.get(i) for i in range(network.n_nodes)]
    columns["through"] = network.through.tolist()
    return columns


# ------------------------------------------------------------------ pandas frames
FrameNames = Literal["gmns", "aequilibrae"]
NAMES: dict[str, dict[str, str]] = {
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


def fields_of_frames(
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
        table_of(links, "links", given["links"]),
        table_of(demand, "demand", given["demand"]),
        None if nodes is None else table_of(nodes, "nodes", given["nodes"]),
        toll_weight,
        length_weight,
    )


def split_by_table(columns: Mapping[str, str] | None) -> dict[str, dict[str, str]]:
    """The user's names of columns by table; refuses fields that no table has."""
    given = dict(columns or {})
    known = [field for fields in SYNONYMS.values() for field in fields]
    for field in given:
        if field not in known:
            raise ValueError(unknown_name("field of columns=", field, known))
    return {
        table: {field: given[field] for field in fields if field in given}
        for table, fields in SYNONYMS.items()
    }


def table_of(data: Any, name: str, given: Mapping[str, str]) -> ColumnTable:
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
    for field, column in given.items():
        known = [str(c) for c in columns]
        if not any(column + ending in columns for ending in ("", "_ab", "_ba")):
            raise ValueError(unknown_name(f"column of {name} for {field}", column, known))

    def fault(label: Any, column: str, problem: str) -> Exception:
        row = "" if label is None else f", row {plain_value(label)!r}"
        return ValueError(f"{name}{row}, {column}: {problem}")

    return ColumnTable(name, columns, labels, fault, given)


def frames_of(network: Any, names: FrameNames) -> NetworkFrames:
    """The frames of a network; see `Network.to_frames`."""
    if names not in NAMES:
        raise ValueError(unknown_name("names of columns", names, list(NAMES)))
    pd = pandas("to_frames()")
    links = pd.DataFrame(link_columns(network, NAMES[names]))
    if names == "aequilibrae":
        links.insert(3, "direction", 1)
    trips = demand_columns(network, [network.nodes[z] for z in network.zones])
    demand = pd.DataFrame(dict(zip(("origin", "destination", "trips"), trips)))
    nodes = node_columns(network)
    nodes["zone_id"] = pd.array(nodes["zone_id"], dtype="Int64")
    return NetworkFrames(links, demand, pd.DataFrame(nodes))


def pandas(what: str) -> Any:
    """The package, or an error that says what needs it."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(
            f"{what} needs pandas: pip install pandas, or pip install 'wdro_model[plot]'."
        ) from error
    return pd
