"""The fields of a network from tables of links, trips and nodes, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wdro_model.traffic.demand_matrix import demand_of, nonzero_demand
from wdro_model.traffic.frames.column_table import BOTH_WAYS, ColumnTable
from wdro_model.traffic.network_checks import ARC_FIELDS, WAYS_OUT

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
