"""The fields of a network from tables of links, demand and nodes, whatever they were read from.

Every reader (GMNS folders, TNTP files, pandas frames) makes a `ColumnTable` of each of its sources:
columns by name, labels of the rows, and errors that name the source, the row and the column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wdro_model.errors import unknown_name
from wdro_model.traffic.fields import (
    ARC_FIELDS,
    DEFAULTS,
    FINITE,
    FINITE_OR_NAN,
    NONNEGATIVE,
    POSITIVE,
    WAYS_OUT,
    Rule,
    demand_matrix,
)

Array = np.ndarray

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
"""The fields of each table, and their names in GMNS, AequilibraE and TNTP."""
TWO_WAY_FIELDS = ("capacity", "free_flow_time", "b", "power", "fixed_cost", "toll")
"""Fields that AequilibraE writes once for each direction of a link, as in capacity_ab."""
ENDINGS = ("", "_ab", "_ba")
TRUE, FALSE = ("true", "1", "1.0", "yes", "t"), ("false", "0", "0.0", "no", "f")
MINUTES_PER_HOUR = 60.0
NAMED_ROWS = 5
"""The most rows that a repair lists."""


class MalformedFile(ValueError):
    """A malformed file, with the place: file, line (from 1; None for the whole file) and field."""

    def __init__(self, file: str, line: int | None, field: str, problem: str) -> None:
        super().__init__(file, line, field, problem)
        self.file, self.line, self.field, self.problem = file, line, field, problem

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}, line {self.line}"
        return f"{place}, {self.field}: {self.problem}"


@dataclass(frozen=True, eq=False)
class ColumnTable:
    """The columns of a table of links, demand or nodes."""

    name: str
    """links, demand or nodes."""
    columns: Mapping[str, Any]
    labels: Sequence[Any]
    """The labels of the rows: the index of a frame, the lines of a file."""
    fault: Callable[[Any, str, str], Exception]
    """Makes the error for the label of a row (None: the whole table), a column and a problem."""
    given: Mapping[str, str] | None = None
    """{field: column} as the user named them; None for formats with fixed names."""
    row_word: str = "row"
    """The word for a label in messages: row or line."""

    def __post_init__(self) -> None:
        for field, column in (self.given or {}).items():
            if not any(column + ending in self.columns for ending in ENDINGS):
                known = map(str, self.columns)
                problem = unknown_name(f"column of {self.name} for {field}", column, known)
                raise self.fault(None, column, problem)

    @property
    def size(self) -> int:
        return len(self.labels)

    def select(self, rows: Array) -> ColumnTable:
        """The table of the given rows, in their order."""
        places = rows.tolist()
        columns = {
            name: values[rows]
            if isinstance(values, np.ndarray)
            else [values[row] for row in places]
            for name, values in self.columns.items()
        }
        return replace(self, columns=columns, labels=[self.labels[row] for row in places])

    def with_column(self, column: str, values: Sequence[Any]) -> ColumnTable:
        """The table with other entries in one column."""
        return replace(self, columns={**self.columns, column: values})

    # -------------------------------------------------------------- columns
    def column_of(self, field: str, ending: str = "") -> str | None:
        """The name of the column that holds a field; None if there is none."""
        if self.given and field in self.given:
            column = self.given[field] + ending
            return column if column in self.columns else None
        lower = {str(name).lower(): name for name in reversed(list(self.columns))}
        names = [synonym + ending for synonym in SYNONYMS[self.name].get(field, (field,))]
        return next((lower[name] for name in names if name in lower), None)

    def has(self, field: str) -> bool:
        return self.column_of(field) is not None

    def names(self, field: str) -> list[Any]:
        """The entries of a field as names: NumPy's numbers and whole floats as integers."""
        names = self.optional_names(field)
        if None in names:
            raise self.error(names.index(None), field, "is empty.")
        return names

    def optional_names(self, field: str) -> list[Any]:
        """The entries of a field as names, with None where an entry is empty."""
        return [plain_value(value) for value in self.columns[self._required_column(field)]]

    def numbers(self, field: str, default: float | None = None) -> Array:
        """The entries of a field as floats; the default where the column or an entry is missing."""
        if default is not None and not self.has(field):
            return np.full(self.size, default, dtype=np.float64)
        entries = self.columns[self._required_column(field)]
        try:
            values = None if np.iscomplexobj(entries) else np.array(entries, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            values = None
        if values is None or np.isnan(values).any():  # one by one, to name the first bad entry
            values = np.array([self._number(row, field, default) for row in range(self.size)])
        return values.astype(np.float64)

    def booleans(self, field: str, default: bool) -> Array:
        """The entries of a field as booleans; the default where one is missing."""
        column, truths = self.column_of(field), np.full(self.size, default)
        for row, value in enumerate(() if column is None else self.columns[column]):
            word = str(value).strip().lower()
            if word in TRUE or word in FALSE:
                truths[row] = word in TRUE
            elif plain_value(value) is not None:
                raise self.error(row, field, f"expected true or false, got {value!r}.")
        return truths

    # -------------------------------------------------------------- errors
    def error(self, row: int | None, field: str, problem: str) -> Exception:
        """The error for a row (None: the whole table), by the name of the field's column."""
        label = None if row is None else self.labels[row]
        return self.fault(label, str(self.column_of(field) or field), problem)

    def check(self, field: str, values: Array, rule: Rule, way_out: str = "") -> None:
        """Raise the error of the first row whose value breaks a rule."""
        kind, holds = rule
        wrong = ~holds(values)
        if wrong.any():
            row = int(np.argmax(wrong))
            hint = way_out and f"; {way_out}"
            raise self.error(row, field, f"must be {kind}, got {float(values[row])!r}{hint}.")

    def check_known(self, field: str, names: list[Any], known: Mapping[Any, int]) -> None:
        """Raise the error of the first row whose name is not a known node or zone."""
        if known.keys() >= set(names):
            return
        row = next(row for row, name in enumerate(names) if name not in known)
        twin = next((v for v in known if str(v) == str(names[row])), None)
        hint = "" if twin is None else f" (there is {twin!r}, of another type)"
        what = "zone" if "zone" in str(self.column_of(field)).lower() else "node"
        raise self.error(row, field, f"the {what} {names[row]!r} is not known{hint}.")

    # -------------------------------------------------------------- parts
    def _number(self, row: int, field: str, default: float | None) -> float:
        """The number in a row; the word nan counts as missing only if the default is NaN."""
        value = self.columns[self._required_column(field)][row]
        is_empty = plain_value(value) is None
        if default is not None and (
            is_empty or (default != default and str(value).strip().lower() == "nan")
        ):
            return default
        number = as_number(value)
        if number is None:
            text = repr(value)
            shown = text if len(text) <= 40 else f"{text[:37]}..."
            got = "and it is empty" if is_empty else f"got {shown}"
            raise self.error(row, field, f"expected a number, {got}.")
        return number

    def _required_column(self, field: str) -> str:
        column = self.column_of(field)
        if column is not None:
            return column
        names = ", ".join(repr(name) for name in SYNONYMS[self.name][field])
        has = ", ".join(repr(str(name)) for name in list(self.columns)[:20]) or "none"
        way_out = "" if self.given is None else f"; name it with columns={{{field!r}: ...}}"
        problem = f"there is no such column (looked for {names}; the columns are {has}){way_out}."
        raise self.error(None, field, problem)


def as_number(value: Any) -> float | None:
    """The value as a number other than NaN; None if it is none."""
    try:
        number = float(plain_value(value))
    except (TypeError, ValueError, OverflowError):
        return None
    return None if number != number else number


def plain_value(value: Any) -> Any:
    """A Python value; None for what is missing, an integer for a whole float."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return value if value.strip() else None
    if isinstance(value, float):
        return None if value != value else int(value) if value.is_integer() else value
    return None if type(value).__name__ in ("NAType", "NaTType") else value


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


# ------------------------------------------------------------------ all fields
def network_fields(
    links: ColumnTable,
    demand: ColumnTable,
    nodes: ColumnTable | None,
    toll_weight: float,
    length_weight: float,
) -> dict[str, Any]:
    """The fields of a `Network`."""
    arcs = read_arcs(links, {"toll": float(toll_weight), "length": float(length_weight)})
    zone_names = [*demand.names("origin"), *demand.names("destination")]
    by_zone = nodes is not None and nodes.has("zone") and goes_by_zone(demand)
    ends = [name for pair in zip(arcs.tails, arcs.heads) for name in pair]
    names = _sorted_names([*ends, *zone_names]) if nodes is None else _node_names(nodes)
    index = {name: i for i, name in enumerate(names)}
    for table, field in (
        (links, "tail"),
        (links, "head"),
        (demand, "origin"),
        (demand, "destination"),
    ):
        if table is links or not by_zone:
            table.check_known(field, table.names(field), index)
    zones, repairs = _nodes_of_zones(nodes, zone_names, index, by_zone)
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
    """The arcs that trips can use, in the order of the links."""

    tails: list[Any]
    heads: list[Any]
    values: dict[str, Array]
    """(A,) by field."""
    repairs: tuple[str, ...]

    def fields(self, index: Mapping[Any, int]) -> dict[str, Array]:
        """The fields of a network, given the indices of the nodes by name."""
        ends = {"tails": self.tails, "heads": self.heads}
        return self.values | {
            field: np.array([index[name] for name in names], dtype=np.int64)
            for field, names in ends.items()
        }


def read_arcs(links: ColumnTable, weights: Mapping[str, float]) -> Arcs:
    """The arcs; weights: factors of the columns toll and length in the fixed cost.

    A link for both directions is two arcs. Loops and closed links (capacity 0 or an infinite time,
    whatever their other fields are) are left out, and the repairs list them.
    """
    links = _one_way_links(links)
    repairs = []
    if not links.has("free_flow_time") and links.has("length") and links.has("free_speed"):
        repairs.append("free-flow times are 60 * length / free_speed, minutes of speeds per hour")
    loops = np.array([u == v for u, v in zip(links.names("tail"), links.names("head"))], dtype=bool)
    is_open = ~loops & (links.numbers("capacity") != 0)
    is_open[is_open] = _free_flow_times(links.select(np.flatnonzero(is_open))) != np.inf
    for left_out, why in (
        (~is_open & ~loops, "closed (capacity 0 or an infinite free-flow time)"),
        (loops, "from a node to itself"),
    ):
        rows = np.flatnonzero(left_out).tolist()
        labels = list(dict.fromkeys(str(plain_value(links.labels[row])) for row in rows))
        if labels:
            more = ", ..." if len(labels) > NAMED_ROWS else ""
            shown = ", ".join(labels[:NAMED_ROWS]) + more
            repairs.append(f"removed {len(labels)} links, {why}: {links.row_word}s {shown}")
    links = links.select(np.flatnonzero(is_open))
    if not links.size:
        problem = "there is none that trips could use: every link is closed or a loop."
        raise links.error(None, "links", problem)
    fixed_cost = links.numbers("fixed_cost", DEFAULTS["fixed_cost"])
    for field, weight in weights.items():
        if weight:
            charges = links.numbers(field, 0.0 if links.has(field) else None)
            links.check(field, charges, FINITE)
            fixed_cost = fixed_cost + weight * charges
    values = {
        "capacity": links.numbers("capacity") * links.numbers("lanes", 1.0),
        "free_flow_time": _free_flow_times(links),
        "b": links.numbers("b", DEFAULTS["b"]),
        "power": links.numbers("power", DEFAULTS["power"]),
        "fixed_cost": fixed_cost,
    }
    for field, rule in ARC_FIELDS.items():
        links.check(field, values[field], rule, WAYS_OUT[field])
    return Arcs(links.names("tail"), links.names("head"), values, tuple(repairs))


def _one_way_links(links: ColumnTable) -> ColumnTable:
    """The links with one row for each direction; both directions of a link follow each other.

    AequilibraE's `direction` is 1, -1, or 0 for both; GMNS's `directed` is false for both. A field
    with a column for each direction (capacity_ab, capacity_ba) becomes one column.
    """
    rows = np.arange(links.size)
    forth, back = rows, rows[~links.booleans("directed", True)]
    if links.has("direction"):
        direction = links.numbers("direction", 1.0)
        links.check("direction", direction, ("1, -1 or 0", lambda v: np.isin(v, (-1.0, 0.0, 1.0))))
        forth, back = rows[direction >= 0], rows[direction <= 0]
    both = np.concatenate([forth, back])
    order = np.argsort(both, kind="stable")
    is_back = np.repeat([False, True], [forth.size, back.size])[order].tolist()
    links = links.select(both[order])
    ends = list(zip(links.names("tail"), links.names("head")))
    for place, field in enumerate(("tail", "head")):
        column = links.column_of(field)
        swapped = [pair[place ^ turned] for pair, turned in zip(ends, is_back)]
        links = links.with_column(str(column), swapped)
    for field in TWO_WAY_FIELDS:
        sides = {turned: links.column_of(field, ENDINGS[1 + turned]) for turned in set(is_back)}
        if sides and not links.has(field) and None not in sides.values():
            entries = [links.columns[str(sides[turned])][row] for row, turned in enumerate(is_back)]
            given = None if links.given is None else {**links.given, field: field}
            links = replace(links.with_column(field, entries), given=given)
    return links


def _free_flow_times(links: ColumnTable) -> Array:
    """The times of the links; minutes from length and speed where there is no column of times."""
    if links.has("free_flow_time") or not (links.has("length") and links.has("free_speed")):
        return links.numbers("free_flow_time")
    speed = links.numbers("free_speed")
    links.check("free_speed", speed, POSITIVE)
    return MINUTES_PER_HOUR * links.numbers("length") / speed


# ------------------------------------------------------------------ nodes, zones and demand
def _sorted_names(names: Iterable[Any]) -> list[Any]:
    """Distinct names: sorted if all are integers, else in order of appearance."""
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
    """Does the demand name zones, as in GMNS, rather than nodes?"""
    return str(demand.column_of("origin")).lower().endswith("zone_id")


def _nodes_of_zones(
    nodes: ColumnTable | None, zone_names: list[Any], index: Mapping[Any, int], by_zone: bool
) -> tuple[dict[Any, int], tuple[str, ...]]:
    """The node of each zone, keyed by the zone's name in the demand, and repairs."""
    if nodes is None or not (nodes.has("zone") or nodes.has("is_centroid")):
        return {name: index[name] for name in _sorted_names(zone_names)}, ()
    names = nodes.names("node")
    if not nodes.has("zone"):
        centroids = [names[i] for i in np.flatnonzero(nodes.booleans("is_centroid", False))]
        return {name: index[name] for name in _sorted_names([*centroids, *zone_names])}, ()
    rows_of: dict[Any, list[int]] = {}
    for row, zone in enumerate(nodes.optional_names("zone")):
        if zone is not None and not (isinstance(zone, int) and zone < 0):
            rows_of.setdefault(zone, []).append(row)
    wanted = set(zone_names) if by_zone else set(rows_of)
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
    if by_zone:
        return {zone: rows_of[zone][0] for zone in _sorted_names(rows_of)}, repairs
    zones = {names[rows_of[zone][0]]: rows_of[zone][0] for zone in _sorted_names(rows_of)}
    others = {name: index[name] for name in _sorted_names(zone_names) if name not in zones}
    return zones | others, repairs


def read_demand(demand: ColumnTable, zones: Mapping[Any, int]) -> tuple[Any, tuple[str, ...]]:
    """The matrix of the trips, given the indices of the zones, and repairs."""
    origins, destinations = demand.names("origin"), demand.names("destination")
    demand.check_known("origin", origins, zones)
    demand.check_known("destination", destinations, zones)
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
    entries = ((zones[o], zones[d], q) for (o, d), q in total.items())
    return demand_matrix(entries, len(zones)), repairs


def read_positions(nodes: ColumnTable) -> Array | None:
    """The coordinates (rows, 2), NaN where one is missing; None without such columns."""
    if not (nodes.has("x") and nodes.has("y")):
        return None
    places = [nodes.numbers(axis, np.nan) for axis in ("x", "y")]
    for axis, values in zip(("x", "y"), places):
        nodes.check(axis, values, FINITE_OR_NAN)
    return np.column_stack(places)
