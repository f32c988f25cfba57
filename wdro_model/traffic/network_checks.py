"""Checks of a network: each error names the field, the link, node or zone, and the value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from wdro_model.checks import refuse
from wdro_model.traffic.demand_matrix import as_demand, as_numbers, frozen_demand, nonzero_demand

Array = np.ndarray
Rule = tuple[str, Callable[[Array], Array]]

POSITIVE: Rule = ("finite and > 0", lambda v: np.isfinite(v) & (v > 0))
NONNEGATIVE: Rule = ("finite and >= 0", lambda v: np.isfinite(v) & (v >= 0))
FINITE: Rule = ("finite", np.isfinite)
KNOWN: Rule = ("finite (NaN: not known)", lambda v: ~np.isinf(v))

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


def check_rule(
    name: str,
    values: Array,
    rule: Rule,
    place: Callable[..., str] = lambda *index: f" at index {index if len(index) > 1 else index[0]}",
    hint: str = "",
) -> None:
    """Refuse the first value that breaks a rule; `place` tells where it is, from its index."""
    kind, holds = rule
    wrong = ~holds(values)
    if wrong.any():
        index = tuple(map(int, np.argwhere(wrong)[0]))
        where = place(*index) if index else ""
        tail = hint and f"; {hint}"
        raise ValueError(f"{name} must be {kind}, got {float(values[index])!r}{where}{tail}.")


def validated(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a network as they are stored, from those given, or a ValueError."""
    tails, heads = (as_indices(given[end], end) for end in ("tails", "heads"))
    if tails.shape != heads.shape or tails.size == 0:
        raise ValueError(
            f"tails and heads must have one entry per arc and at least one arc, got {tails.size} "
            f"and {heads.size} entries."
        )
    if not isinstance(given["name"], str):
        raise refuse("name of a network", "a string", given["name"])
    demand = as_demand(given["demand"])
    if demand.ndim != 2 or demand.shape[0] != demand.shape[1]:
        raise ValueError(
            f"demand must be a square matrix (Z, Z), one row per origin, got shape {demand.shape}."
        )
    count = demand.shape[0]
    zones = np.arange(count) if given["zones"] is None else as_indices(given["zones"], "zones")
    nodes = _nodes(
        given["nodes"], 1 + max(array.max(initial=-1) for array in (tails, heads, zones))
    )
    for field, indices in (("tails", tails), ("heads", heads), ("zones", zones)):
        _check_range(field, indices, len(nodes))
    arcs = [(nodes[u], nodes[v]) for u, v in zip(tails.tolist(), heads.tolist())]
    if (tails == heads).any():
        a = int(np.argmax(tails == heads))
        raise ValueError(
            f"arc {a} leads from node {arcs[a][0]!r} to itself; no trip uses it: leave it out."
        )
    _check_zones(zones, count, nodes)
    _check_demand(demand, [nodes[z] for z in zones.tolist()])
    through = True if given["through"] is None else given["through"]
    stored: dict[str, Any] = {
        "tails": tails,
        "heads": heads,
        **{f: _arc_field(given[f], f, arcs) for f in ARC_FIELDS},
        "zones": zones,
        "through": _through(through, len(nodes)),
        "positions": _positions(given["positions"], nodes),
    }
    frozen = {k: None if v is None else _frozen(v) for k, v in stored.items()}
    return frozen | {
        "demand": frozen_demand(demand),
        "nodes": nodes,
        "name": given["name"],
        "repairs": tuple(map(str, given["repairs"])),
    }


def as_indices(given: Any, field: str) -> Array:
    """A vector of integers, as a copy."""
    array = np.asarray(given)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"{field} must be a vector of node indices (integers from 0), got shape {array.shape} "
            f"and dtype {array.dtype}; names of nodes belong in nodes=."
        )
    return array.astype(np.int64)


def _nodes(given: Any, least: int) -> tuple[Any, ...]:
    if given is None:
        return tuple(range(1, int(least) + 1))
    nodes = tuple(node.item() if isinstance(node, np.generic) else node for node in given)
    seen: set[Any] = set()
    for node in nodes:
        if node in seen:
            raise ValueError(f"nodes must have different names, got {node!r} twice.")
        seen.add(node)
    return nodes


def _check_range(field: str, indices: Array, count: int) -> None:
    wrong = (indices < 0) | (indices >= count)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ValueError(
            f"{field} must be node indices from 0 to {count - 1} ({count} nodes), got "
            f"{int(indices[at])} at position {at}; the first node has index 0 (for numbers that "
            "count from 1, subtract 1, and give them as names with nodes=)."
        )


def _check_zones(zones: Array, count: int, nodes: tuple[Any, ...]) -> None:
    if len(zones) != count:
        raise ValueError(
            f"zones has {len(zones)} entries but demand has {count} rows; give one node per zone."
        )
    values, repeats = np.unique(zones, return_counts=True)
    if (repeats > 1).any():
        node = nodes[int(values[np.argmax(repeats > 1)])]
        raise ValueError(f"zones must be different nodes, got node {node!r} more than once.")


def _check_demand(demand: Any, names: list[Any]) -> None:
    origins, destinations, trips = nonzero_demand(demand)

    def place(k: int) -> str:
        return f" from zone {names[origins[k]]!r} to zone {names[destinations[k]]!r}"

    check_rule("demand", trips, NONNEGATIVE, place)


def _arc_field(given: Any, field: str, arcs: list[tuple[Any, Any]]) -> Array:
    values = as_numbers(given, field)
    if values.shape not in ((), (len(arcs),)):
        raise ValueError(
            f"{field} must be a number or have one entry for each of the {len(arcs)} arcs, got "
            f"shape {values.shape}."
        )
    values = np.broadcast_to(values, (len(arcs),))

    def place(a: int) -> str:
        return f" on arc {a} ({arcs[a][0]!r} -> {arcs[a][1]!r})"

    check_rule(field, values, ARC_FIELDS[field], place, WAYS_OUT[field])
    return values


def _through(given: Any, count: int) -> Array:
    through = np.asarray(given)
    if through.dtype != bool or through.shape not in ((), (count,)):
        raise ValueError(
            f"through must be one boolean for each of the {count} nodes, got shape "
            f"{through.shape} and dtype {through.dtype}."
        )
    return np.broadcast_to(through, (count,))


def _positions(given: Any, nodes: tuple[Any, ...]) -> Array | None:
    if given is None:
        return None
    positions = as_numbers(given, "positions")
    if positions.shape != (len(nodes), 2):
        raise ValueError(
            f"positions must have shape ({len(nodes)}, 2), one row per node, got {positions.shape}."
        )
    check_rule("positions", positions, KNOWN, lambda i, _: f" at node {nodes[i]!r}")
    return positions


def _frozen(array: Array) -> Array:
    """A read-only copy."""
    copy = np.array(array, order="C")
    copy.flags.writeable = False
    return copy
