"""Networks from and to tables of links, trips and nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from wdro_model.errors import unknown_name
from wdro_model.traffic.demand_matrix import demand_of, nonzero_demand
from wdro_model.traffic.network_checks import ARC_FIELDS, WAYS_OUT

SYNONYMS: dict[str, dict[str, tuple[str, ...]]] = {
    "links": {
        "tail": ("from_node_id", "a_node", "from_node", "init_node", "tail", "from", "source"),
        "head": ("to_node_id", "b_node", "to_node", "term_node", "head", "to", "target"),
        "capacity": ("capacity",),
        "free_flow_time": ("free_flow_time", "vdf_fftt", "vdf_fftt1", "fftt", "fft", "travel_time"),
        "b": ("b", "alpha", "vdf_alpha", "vdf_alpha1"),
        "power": ("power", "beta", "vdf_beta", "vdf_beta1"),
        "fixed_cost": ("fixed_cost",),
        "direction": ("direction",),
        "directed": ("directed",),
        "lanes": ("lanes",),
        "length": ("length", "distance"),
        "free_speed": ("free_speed", "speed"),
        "toll": ("toll",),
    },
    "demand": {
        "origin": ("origin", "from", "o_zone_id"),
        "destination": ("destination", "to", "d_zone_id"),
        "trips": ("trips", "volume", "demand", "flow"),
    },
    "nodes": {
        "node": ("node_id", "node", "id"),
        "x": ("x_coord", "x", "longitude", "lon"),
        "y": ("y_coord", "y", "latitude", "lat"),
        "zone": ("zone_id",),
        "is_centroid": ("is_centroid",),
        "through": ("through",),
    },
}
"""What each table may hold, and the names that GMNS, AequilibraE and TNTP have for it."""
BOTH_WAYS = ("capacity", "free_flow_time", "b", "power", "fixed_cost", "toll")
"""Fields that AequilibraE writes once for each direction of a link, as in capacity_ab."""
TRUE, FALSE = ("true", "1", "1.0", "yes", "t"), ("false", "0", "0.0", "no", "f")


@dataclass(frozen=True, eq=False)
class ColumnTable:
    """The columns of a table, by their names."""

    name: str
    """links, demand or nodes."""
    columns: Mapping[str, Any]
    size: int
    labels: Sequence[Any]
    """Of the rows: the index of a frame, the lines of a file."""
    fault: Callable[[Any, str, str], Exception]
    """The error for the label of a row (None: the whole table), a column and a problem."""
    given: Mapping[str, str]
    """{field: column}, as the user named them."""

    def error(self, row: int | None, column: str, problem: str) -> Exception:
        return self.fault(None if row is None else self.labels[row], column, problem)

    def place(self, field: str, ending: str = "") -> str | None:
        """The name of the column that holds a field; None if there is none."""
        if field in self.given:
            return self.given[field] + ending
        lower = {str(name).lower(): name for name in reversed(list(self.columns))}
        for synonym in SYNONYMS[self.name][field]:
            if synonym + ending in lower:
                return lower[synonym + ending]
        return None

    def has(self, field: str, ending: str = "") -> bool:
        return self.place(field, ending) is not None

    def names(self, field: str) -> list[Any]:
        """The entries of a field as names: NumPy's numbers and whole floats as integers."""
        column = self._required(field)
        found = self.maybe_names(field)
        if None in found:
            raise self.error(found.index(None), column, "is empty.")
        return found

    def maybe_names(self, field: str) -> list[Any]:
        """The same, with None where an entry is empty."""
        values = self.columns[self._required(field)]
        if isinstance(values, np.ndarray) and values.dtype.kind in "iu":
            return values.tolist()
        return [_plain(value) for value in values]

    def numbers(self, field: str, default: float | None = None, ending: str = "") -> Array:
        """The entries of a field as floats; the default where the column or an entry is missing."""
        column = self.place(field, ending)
        if column is None:
            if default is None:
                column = self._required(field)
            return np.full(self.size, default, dtype=np.float64)
        values = _as_floats(self.columns[column])
        if values is None or np.isnan(values).any():  # one by one, to say which
            values = np.array([self._number(row, column, default) for row in range(self.size)])
        return values.astype(np.float64)

    def booleans(self, field: str, default: bool) -> Array:
        """The entries of a field as booleans."""
        column = self.place(field)
        if column is None:
            return np.full(self.size, default)
        found = np.empty(self.size, dtype=bool)
        for row, value in enumerate(self.columns[column]):
            word = str(value).strip().lower()
            if _plain(value) is None:
                found[row] = default
            elif word in TRUE or word in FALSE:
                found[row] = word in TRUE
            else:
                raise self.error(row, column, f"expected true or false, got {value!r}.")
        return found

    def _number(self, row: int, column: str, default: float | None) -> float:
        value = self.columns[column][row]
        if _plain(value) is None:
            if default is None:
                raise self.error(row, column, "expected a number, and it is empty.")
            return default
        try:
            number = float(_plain(value))
        except (TypeError, ValueError, OverflowError):
            raise self.error(row, column, f"expected a number, got {_short(value)}.") from None
        if number != number:
            raise self.error(row, column, f"expected a number, got {_short(value)}.")
        return number

    def _required(self, field: str) -> str:
        column = self.place(field)
        if column is not None:
            return column
        names = ", ".join(repr(name) for name in SYNONYMS[self.name][field])
        has = ", ".join(repr(str(name)) for name in list(self.columns)[:20]) or "none"
        raise self.error(
            None,
            field,
            f"there is no such column (looked for {names}; the columns are {has}); name it with "
            f"columns={{{field!r}: ...}}.",
        )


def check_columns(columns: Mapping[str, str] | None) -> dict[str, dict[str, str]]:
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
    """A pandas frame, or a dict of columns."""
    if hasattr(data, "columns") and hasattr(data, "index"):
        if not data.columns.is_unique:
            twice = _plain(data.columns[data.columns.duplicated()][0])
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
        row = "" if label is None else f", row {_plain(label)!r}"
        return ValueError(f"{name}{row}, {column}: {problem}")

    return ColumnTable(name, columns, len(labels), labels, fault, given)


def _as_floats(column: Any) -> Array | None:
    """All entries at once; None if some are no numbers."""
    if np.iscomplexobj(column):
        return None
    try:
        return np.array(column, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return None


def _plain(value: Any) -> Any:
    """A Python value; None for what is missing, an integer for a whole float."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, str):
        return value if value.strip() else None
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


# ------------------------------
# The fields of a network from tables of links, trips and nodes, and back


Array = np.ndarray
DEFAULTS = {"b": 0.15, "power": 4.0, "fixed_cost": 0.0}
MINUTES = 60.0
"""In an hour: times of links that have a length and a speed are in minutes."""


@dataclass(frozen=True, eq=False)
class _Arcs:
    """Directed arcs, in the order of their rows; a link for both directions is two of them."""

    rows: Array
    tails: list[Any]
    heads: list[Any]
    values: dict[str, Array]
    repairs: tuple[str, ...]

    def only(self, kept: Array, note: str) -> _Arcs:
        """Some of the arcs, and why the others were left out."""
        where = np.flatnonzero(kept).tolist()
        return replace(
            self,
            rows=self.rows[kept],
            tails=[self.tails[a] for a in where],
            heads=[self.heads[a] for a in where],
            values={field: column[kept] for field, column in self.values.items()},
            repairs=(*self.repairs, note),
        )


def network_fields(
    links: ColumnTable,
    demand: ColumnTable,
    nodes: ColumnTable | None,
    toll_weight: float,
    length_weight: float,
) -> dict[str, Any]:
    """What a `Network` is made of."""
    arcs = _arcs(links, {"toll": toll_weight, "length": length_weight})
    ends = [name for pair in zip(arcs.tails, arcs.heads) for name in pair]
    origins, destinations = demand.names("origin"), demand.names("destination")
    zoned = nodes is not None and nodes.has("zone") and by_zone(demand)
    named = [*origins, *destinations]
    names = _ordered([*ends, *named]) if nodes is None else _node_names(nodes)
    index = {name: i for i, name in enumerate(names)}
    _check_known(links, "tail", links.names("tail"), index, "node")
    _check_known(links, "head", links.names("head"), index, "node")
    if not zoned:
        _check_known(demand, "origin", origins, index, "node")
        _check_known(demand, "destination", destinations, index, "node")
    zones, repairs = _zones(nodes, named, index, zoned)
    trips, added = _trips(demand, origins, destinations, {zone: z for z, zone in enumerate(zones)})
    positions, through = None, np.ones(len(names), dtype=bool)
    if nodes is not None:
        through = nodes.booleans("through", True)
        positions = _positions(nodes)
    return {
        "tails": np.array([index[name] for name in arcs.tails], dtype=np.int64),
        "heads": np.array([index[name] for name in arcs.heads], dtype=np.int64),
        **{field: arcs.values[field] for field in ARC_FIELDS},
        "demand": trips,
        "zones": np.array(list(zones.values()), dtype=np.int64),
        "through": through,
        "nodes": tuple(names),
        "positions": positions,
        "repairs": (*arcs.repairs, *repairs, *added),
    }


# ------------------------------------------------------------------ arcs
def _arcs(links: ColumnTable, weights: Mapping[str, float]) -> _Arcs:
    tails, heads = (_boxed(links.names(end)) for end in ("tail", "head"))
    forth, back = _ways(links)
    there, notes = _values(links, "_ab", weights)
    again, more = _values(links, "_ba", weights) if back.size else (there, notes)
    rows = np.concatenate([forth, back])
    order = np.argsort(rows, kind="stable")  # both directions of a link follow each other
    arcs = _Arcs(
        rows=rows[order],
        tails=np.concatenate([tails[forth], heads[back]])[order].tolist(),
        heads=np.concatenate([heads[forth], tails[back]])[order].tolist(),
        values={
            field: np.concatenate([there[field][forth], again[field][back]])[order]
            for field in ARC_FIELDS
        },
        repairs=tuple(dict.fromkeys([*notes, *more])),
    )
    return _open_arcs(links, arcs)


def _boxed(names: list[Any]) -> Array:
    """Names in an array of objects, tuples too."""
    boxed = np.empty(len(names), dtype=object)
    boxed[:] = names
    return boxed


def _ways(links: ColumnTable) -> tuple[Array, Array]:
    """The rows that lead from tail to head, and those that lead back: AequilibraE's direction (1,
    -1, or 0 for both), or GMNS's directed (false for both)."""
    rows = np.arange(links.size)
    if links.has("direction"):
        direction = links.numbers("direction", 1.0)
        wrong = ~np.isin(direction, (-1.0, 0.0, 1.0))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise links.error(row, "direction", f"must be 1, -1 or 0, got {direction[row]:g}.")
        return rows[direction >= 0], rows[direction <= 0]
    return rows, rows[~links.booleans("directed", True)]


def _values(
    links: ColumnTable, ending: str, weights: Mapping[str, float]
) -> tuple[dict[str, Array], list[str]]:
    """The fields of the arcs, of columns for one direction where there are such."""

    def column(field: str, default: float | None = None) -> Array:
        one_way = field in BOTH_WAYS and not links.has(field) and links.has(field, ending)
        return links.numbers(field, default, ending if one_way else "")

    notes: list[str] = []
    if any(links.has("free_flow_time", end) for end in ("", ending)):
        times = column("free_flow_time")
    elif links.has("length") and links.has("free_speed"):
        length, speed = links.numbers("length"), links.numbers("free_speed")
        wrong = ~((speed > 0) & np.isfinite(speed))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise links.error(row, "free_speed", f"must be finite and > 0, got {speed[row]:g}.")
        times = MINUTES * length / speed
        notes.append("free-flow times are 60 * length / free_speed, minutes of speeds per hour")
    else:
        times = column("free_flow_time")  # which says what is missing
    capacity = column("capacity")
    if links.has("lanes"):
        capacity = capacity * links.numbers("lanes", 1.0)
    fixed = column("fixed_cost", DEFAULTS["fixed_cost"])
    for field, weight in weights.items():
        if weight:
            fixed = fixed + weight * column(field)
    return {
        "capacity": capacity,
        "free_flow_time": times,
        "b": column("b", DEFAULTS["b"]),
        "power": column("power", DEFAULTS["power"]),
        "fixed_cost": fixed,
    }, notes


def _open_arcs(links: ColumnTable, arcs: _Arcs) -> _Arcs:
    """The arcs that trips can use, with values that are allowed."""
    loops = np.array([u == v for u, v in zip(arcs.tails, arcs.heads)], dtype=bool)
    if loops.any():
        arcs = arcs.only(~loops, f"removed {loops.sum()} links from a node to itself")
    closed = (arcs.values["capacity"] == 0) | (arcs.values["free_flow_time"] == np.inf)
    if closed.any():
        why = "closed (capacity 0 or an infinite free-flow time)"
        arcs = arcs.only(~closed, f"removed {closed.sum()} links, {why}")
    if not len(arcs.rows):
        raise links.error(None, "links", "there is none that trips could use.")
    for field, (rule, holds) in ARC_FIELDS.items():
        wrong = ~holds(arcs.values[field])
        if wrong.any():
            a = int(np.argmax(wrong))
            value = float(arcs.values[field][a])
            raise links.error(
                int(arcs.rows[a]), field, f"must be {rule}, got {value!r}; {WAYS_OUT[field]}."
            )
    return arcs


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


def _check_known(
    table: ColumnTable, field: str, names: list[Any], known: Mapping[Any, int], what: str
) -> None:
    if known.keys() >= set(names):
        return
    row = next(row for row, name in enumerate(names) if name not in known)
    twin = next((v for v in known if str(v) == str(names[row])), None)
    hint = "" if twin is None else f" (there is {twin!r}, of another type)"
    raise table.error(row, field, f"the {what} {names[row]!r} is not known{hint}.")


def by_zone(demand: ColumnTable) -> bool:
    """Does the demand go by zones, as in GMNS, rather than by nodes?"""
    return str(demand.place("origin")).lower().endswith("zone_id")


def _zones(
    nodes: ColumnTable | None, named: list[Any], index: Mapping[Any, int], zoned: bool
) -> tuple[dict[Any, int], tuple[str, ...]]:
    """The node of each zone, by what the demand calls it, in order."""
    if nodes is None or not (nodes.has("zone") or nodes.has("is_centroid")):
        return {name: index[name] for name in _ordered(named)}, ()
    if not nodes.has("zone"):
        centroids = np.flatnonzero(nodes.booleans("is_centroid", False)).tolist()
        names = nodes.names("node")
        return {
            name: index[name] for name in _ordered([*(names[i] for i in centroids), *named])
        }, ()
    return _zones_of_ids(nodes, named, index, zoned)


def _zones_of_ids(
    nodes: ColumnTable, named: list[Any], index: Mapping[Any, int], zoned: bool
) -> tuple[dict[Any, int], tuple[str, ...]]:
    homes: dict[Any, list[int]] = {}
    for row, zone in enumerate(nodes.maybe_names("zone")):
        if zone is not None and not (isinstance(zone, int) and zone < 0):
            homes.setdefault(zone, []).append(row)
    wanted = set(named) if zoned else set()
    shared = [zone for zone, rows in homes.items() if len(rows) > 1]
    for zone in shared:
        if zone in wanted or not zoned:
            raise nodes.error(
                homes[zone][1],
                "zone",
                f"zone {zone!r} has {len(homes[zone])} nodes, and trips start at one: keep the "
                "zone of its centroid and leave the others empty.",
            )
        del homes[zone]
    repairs = tuple(f"zone {zone!r} has several nodes and no demand: no zone" for zone in shared)
    ordered = _ordered(homes)
    if zoned:
        return {zone: homes[zone][0] for zone in ordered}, repairs
    names = nodes.names("node")
    zones = {names[homes[zone][0]]: homes[zone][0] for zone in ordered}
    return zones | {name: index[name] for name in _ordered(named) if name not in zones}, repairs


def _trips(
    demand: ColumnTable, origins: list[Any], destinations: list[Any], zone: Mapping[Any, int]
) -> tuple[Any, tuple[str, ...]]:
    """The matrix of the trips; what is listed twice is added."""
    _check_known(demand, "origin", origins, zone, "zone")
    _check_known(demand, "destination", destinations, zone, "zone")
    trips = demand.numbers("trips")
    wrong = ~(np.isfinite(trips) & (trips >= 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise demand.error(row, "trips", f"must be finite and >= 0, got {float(trips[row])!r}.")
    total: dict[tuple[int, int], float] = {}
    for origin, destination, quantity in zip(origins, destinations, trips.tolist()):
        pair = (zone[origin], zone[destination])
        total[pair] = total.get(pair, 0.0) + quantity
    twice = demand.size - len(total)
    notes = (f"added up {twice} demands that are listed twice",) if twice else ()
    return demand_of(((o, d, q) for (o, d), q in total.items()), len(zone)), notes


def _positions(nodes: ColumnTable) -> Array | None:
    if not (nodes.has("x") and nodes.has("y")):
        return None
    places = np.column_stack([nodes.numbers("x", np.nan), nodes.numbers("y", np.nan)])
    wrong = np.isinf(places).any(axis=1)
    if wrong.any():
        raise nodes.error(int(np.argmax(wrong)), "x, y", "must be finite.")
    return places


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


def demand_columns(network: Any) -> dict[str, list[Any]]:
    """Origins and destinations, as positions of zones, and trips."""
    origins, destinations, trips = nonzero_demand(network.demand)
    return {
        "origin": origins.tolist(),
        "destination": destinations.tolist(),
        "trips": trips.tolist(),
    }


def node_columns(network: Any) -> dict[str, list[Any]]:
    """The nodes of a network; zone_id counts the zones from 1."""
    zone = {int(node): z for z, node in enumerate(network.zones, start=1)}
    columns: dict[str, list[Any]] = {"node_id": list(network.nodes)}
    if network.positions is not None:
        columns |= dict(zip(("x_coord", "y_coord"), network.positions.T.tolist()))
    columns["zone_id"] = [zone.get(i) for i in range(network.n_nodes)]
    columns["through"] = network.through.tolist()
    return columns


# ------------------------------
# Networks from and to pandas frames


FrameNames = Literal["gmns", "aequilibrae"]
NAMES: dict[str, dict[str, str]] = {
    "gmns": {"tail": "from_node_id", "head": "to_node_id"},
    "aequilibrae": {"tail": "a_node", "head": "b_node"},
}


class NetworkFrames(NamedTuple):
    """A network as three pandas frames: links, demand, nodes.

    Examples
    --------
    >>> import wdro_model as wdro
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
    given = check_columns(columns)
    return network_fields(
        table_of(links, "links", given["links"]),
        table_of(demand, "demand", given["demand"]),
        None if nodes is None else table_of(nodes, "nodes", given["nodes"]),
        float(toll_weight),
        float(length_weight),
    )


def frames_of(network: Any, names: FrameNames) -> NetworkFrames:
    """The frames of a network; see `Network.to_frames`."""
    if names not in NAMES:
        raise ValueError(unknown_name("names of columns", names, list(NAMES)))
    pd = pandas("to_frames()")
    links = pd.DataFrame(link_columns(network, NAMES[names]))
    if names == "aequilibrae":
        links.insert(3, "direction", 1)
    trips = demand_columns(network)
    ends = [network.nodes[z] for z in network.zones]
    trips |= {end: [ends[z] for z in trips[end]] for end in ("origin", "destination")}
    nodes = node_columns(network)
    zones = pd.array(nodes["zone_id"], dtype="Int64")
    return NetworkFrames(links, pd.DataFrame(trips), pd.DataFrame(nodes | {"zone_id": zones}))


def pandas(what: str) -> Any:
    """The package, or an error that says what needs it."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(
            f"{what} needs pandas: pip install pandas, or pip install 'wdro_model[plot]'."
        ) from error
    return pd
