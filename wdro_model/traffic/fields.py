"""The fields of a network: arrays and demand matrices, checked with errors that name the place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from wdro_model.checks import refuse

Array = np.ndarray
Rule = tuple[str, Callable[[Array], Array]]
"""The words for a condition, and the condition itself, entry by entry."""

POSITIVE: Rule = ("finite and > 0", lambda v: np.isfinite(v) & (v > 0))
NONNEGATIVE: Rule = ("finite and >= 0", lambda v: np.isfinite(v) & (v >= 0))
FINITE: Rule = ("finite", np.isfinite)
FINITE_OR_NAN: Rule = ("finite (NaN: not known)", lambda v: ~np.isinf(v))

ARC_FIELDS: dict[str, Rule] = {
    "capacity": POSITIVE,
    "free_flow_time": NONNEGATIVE,
    "b": NONNEGATIVE,
    "power": NONNEGATIVE,
    "fixed_cost": FINITE,
}
WAYS_OUT = {
    "capacity": "remove a closed arc; an arc that never congests has b = 0",
    "free_flow_time": "correct the arc",
    "b": "0 makes the travel time constant",
    "power": "correct the arc",
    "fixed_cost": "remove an arc that may not be used",
}
DEFAULTS = {"b": 0.15, "power": 4.0, "fixed_cost": 0.0}
"""The values of arcs whose source does not have the field."""
DENSE_ZONES = 2000
"""A demand matrix built here is sparse from this number of zones on; a dense one would take 32 MB
and grow with the square of the number."""


# ------------------------------------------------------------------ numbers
def as_numbers(given: Any, field: str) -> Array:
    """Real numbers as an array of floats; NaN and infinity are let through."""
    try:
        array = np.asarray(given)
        if array.dtype.kind not in "fiub":
            raise TypeError(f"it has dtype {array.dtype}")
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{field} must be real numbers: {error}.") from error


def check_rule(
    name: str,
    values: Array,
    rule: Rule,
    place: Callable[..., str] = lambda *index: f" at index {index if len(index) > 1 else index[0]}",
    hint: str = "",
) -> None:
    """Refuse the first value that breaks a rule; `place` turns its index into words."""
    kind, holds = rule
    wrong = ~holds(values)
    if wrong.any():
        index = tuple(map(int, np.argwhere(wrong)[0]))
        where = place(*index) if index else ""
        tail = hint and f"; {hint}"
        raise ValueError(f"{name} must be {kind}, got {float(values[index])!r}{where}{tail}.")


def per_arc(given: Any, name: str, count: int) -> Array:
    """Real numbers (A,) for the arcs, from one number or one for each."""
    values = as_numbers(given, name)
    if values.shape not in ((), (count,)):
        raise ValueError(
            f"{name} must be a number or have one entry for each of the {count} arcs, got shape "
            f"{values.shape}."
        )
    return np.broadcast_to(values, (count,))


def arc_name(a: int, arcs: Sequence[tuple[Any, Any]]) -> str:
    """An arc by its position and the names of its ends."""
    tail, head = arcs[a]
    return f"arc {a} ({tail!r} -> {head!r})"


def as_indices(given: Any, field: str) -> Array:
    """A vector of node indices, as a copy."""
    array = np.asarray(given)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"{field} must be a vector of node indices (integers from 0), got shape {array.shape} "
            f"and dtype {array.dtype}; names of nodes belong in nodes=."
        )
    return array.astype(np.int64)


def as_arc_ends(tails: Any, heads: Any) -> tuple[Array, Array]:
    """The tails and heads of at least one arc."""
    tails, heads = as_indices(tails, "tails"), as_indices(heads, "heads")
    if tails.shape != heads.shape or tails.size == 0:
        raise ValueError(
            f"tails and heads must have one entry per arc and at least one arc, got {tails.size} "
            f"and {heads.size} entries."
        )
    return tails, heads


def check_indices(field: str, indices: Array, count: int) -> None:
    """Refuse indices of nodes that do not exist."""
    wrong = (indices < 0) | (indices >= count)
    if wrong.any():
        position = int(np.argmax(wrong))
        raise ValueError(
            f"{field} must be node indices from 0 to {count - 1} ({count} nodes), got "
            f"{int(indices[position])} at position {position}; the first node has index 0 (for "
            "numbers that count from 1, subtract 1, and give them as names with nodes=)."
        )


def as_through(given: Any, count: int) -> Array:
    """Booleans for the nodes (n,): may trips pass a node?"""
    through = np.asarray(given)
    if through.dtype != bool or through.shape not in ((), (count,)):
        raise ValueError(
            f"through must be one boolean for each of the {count} nodes, got shape "
            f"{through.shape} and dtype {through.dtype}."
        )
    return np.broadcast_to(through, (count,))


# ------------------------------------------------------------------ demand
def as_demand(given: Any) -> Any:
    """The demand as floats: an array, or for a sparse matrix a `csr_array` without zeros."""
    if not sp.issparse(given):
        return as_numbers(given, "demand")
    if given.dtype.kind not in "fiub":
        raise ValueError(f"demand must be real numbers: it has dtype {given.dtype}.")
    demand = sp.csr_array(given, dtype=np.float64, copy=True)
    demand.sum_duplicates()
    demand.eliminate_zeros()
    return demand


def check_demand(demand: Any, zone_names: Sequence[Any]) -> None:
    """Refuse demand that is negative or not finite, by the names of its zones."""
    origins, destinations, trips = nonzero_demand(demand)

    def place(k: int) -> str:
        return f" from zone {zone_names[origins[k]]!r} to zone {zone_names[destinations[k]]!r}"

    check_rule("demand", trips, NONNEGATIVE, place)


def nonzero_demand(demand: Any) -> tuple[Array, Array, Array]:
    """Origins, destinations and trips of the pairs with demand, by origin, then destination."""
    if not sp.issparse(demand):
        rows, columns = np.nonzero(demand)
        return rows, columns, demand[rows, columns]
    entries = sp.csr_array(demand)
    rows = np.repeat(np.arange(entries.shape[0]), np.diff(entries.indptr))
    return rows, entries.indices.astype(np.int64), entries.data


def demand_matrix(entries: Iterable[tuple[int, int, float]], zones: int) -> Any:
    """The matrix of entries (origin, destination, trips), each pair at most once."""
    listed = list(entries)
    rows = np.array([o for o, _, _ in listed], dtype=np.int64)
    columns = np.array([d for _, d, _ in listed], dtype=np.int64)
    trips = as_numbers([q for _, _, q in listed], "demand") if listed else np.zeros(0)
    if zones >= DENSE_ZONES:
        return as_demand(sp.coo_array((trips, (rows, columns)), shape=(zones, zones)))
    demand = np.zeros((zones, zones))
    demand[rows, columns] = trips
    return demand


# ------------------------------------------------------------------ all fields
def checked_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a network as read-only copies, from the arguments of its constructor."""
    tails, heads = as_arc_ends(given["tails"], given["heads"])
    if not isinstance(given["name"], str):
        raise refuse("name of a network", "a string", given["name"])
    demand = as_demand(given["demand"])
    if demand.ndim != 2 or demand.shape[0] != demand.shape[1]:
        raise ValueError(
            f"demand must be a square matrix (Z, Z), one row per origin, got shape {demand.shape}."
        )
    count = demand.shape[0]
    zones = np.arange(count) if given["zones"] is None else as_indices(given["zones"], "zones")
    indices = {"tails": tails, "heads": heads, "zones": zones}
    nodes = _node_names(given["nodes"], 1 + max(i.max(initial=-1) for i in indices.values()))
    for field, values in indices.items():
        check_indices(field, values, len(nodes))
    arcs = [(nodes[u], nodes[v]) for u, v in zip(tails.tolist(), heads.tolist())]
    if (tails == heads).any():
        a = int(np.argmax(tails == heads))
        raise ValueError(
            f"arc {a} leads from node {arcs[a][0]!r} to itself; no trip uses it: leave it out."
        )
    _check_zones(zones, count, nodes)
    check_demand(demand, [nodes[z] for z in zones.tolist()])
    stored = {
        **indices,
        **{field: per_arc(given[field], field, len(arcs)) for field in ARC_FIELDS},
        "through": as_through(True if given["through"] is None else given["through"], len(nodes)),
        "demand": demand,
    }
    for field, rule in ARC_FIELDS.items():
        check_rule(
            field, stored[field], rule, lambda a: f" on {arc_name(a, arcs)}", WAYS_OUT[field]
        )
    positions = given["positions"]
    return {field: _read_only_copy(values) for field, values in stored.items()} | {
        "positions": None if positions is None else _read_only_copy(_positions(positions, nodes)),
        "nodes": nodes,
        "name": given["name"],
        "repairs": tuple(map(str, given["repairs"])),
    }


def _node_names(given: Any, least: int) -> tuple[Any, ...]:
    """Different names of the nodes; 1, 2, ... if there are none."""
    if given is None:
        return tuple(range(1, int(least) + 1))
    nodes = tuple(node.item() if isinstance(node, np.generic) else node for node in given)
    seen: set[Any] = set()
    for node in nodes:
        if node in seen:
            raise ValueError(f"nodes must have different names, got {node!r} twice.")
        seen.add(node)
    return nodes


def _check_zones(zones: Array, count: int, nodes: tuple[Any, ...]) -> None:
    if len(zones) != count:
        raise ValueError(
            f"zones has {len(zones)} entries but demand has {count} rows; give one node per zone."
        )
    values, repeats = np.unique(zones, return_counts=True)
    if (repeats > 1).any():
        node = nodes[int(values[np.argmax(repeats > 1)])]
        raise ValueError(f"zones must be different nodes, got node {node!r} more than once.")


def _positions(given: Any, nodes: tuple[Any, ...]) -> Array:
    positions = as_numbers(given, "positions")
    if positions.shape != (len(nodes), 2):
        raise ValueError(
            f"positions must have shape ({len(nodes)}, 2), one row per node, got {positions.shape}."
        )
    check_rule("positions", positions, FINITE_OR_NAN, lambda i, _: f" at node {nodes[i]!r}")
    return positions


def _read_only_copy(values: Any) -> Any:
    copy: Any = values.copy() if sp.issparse(values) else np.array(values, order="C")
    for array in (copy.data, copy.indices, copy.indptr) if sp.issparse(copy) else (copy,):
        array.flags.writeable = False
    return copy
