"""The Frank-Wolfe gap of a point, and what it says of the oracle that it was computed with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from wdro_model.errors import InexactOracleError
from wdro_model.sets.feasible_set import FeasibleSet, vertex_with_slack
from wdro_model.sets.product import ProductSet
from wdro_model.solvers.objective import Array

RELATIVE = 1e-6
"""Relative error of an oracle's cost that counts as rounding; `sets.check` allows as much."""


@dataclass(frozen=True)
class Certificate:
    """The oracle's vertex v for the gradient g at x, and the gap <g, x> - min <g, .>."""

    vertex: Array
    slope: float
    """<g, x - v>: what a step towards the vertex promises."""
    slack: float
    """By how much at most <g, v> is above the minimum; 0 for an exact oracle."""
    parts: tuple[Certificate, ...] = ()
    """Those of the blocks, for a product of sets."""

    @property
    def gap(self) -> float:
        """At least the true gap, up to rounding."""
        return max(self.slope + self.slack, 0.0)


def certificate(feasible: FeasibleSet, x: Array, gradient: Array) -> Certificate:
    """The gap of a point of the set; one that is negative beyond rounding is an error.

    In a product of sets every block has a gap of its own.
    """
    feasible.calls += 1
    feasible.seen_from(x)
    return _certificate(feasible, x, gradient)


def _certificate(feasible: FeasibleSet, x: Array, gradient: Array) -> Certificate:
    if isinstance(feasible, ProductSet):
        vertex, parts = np.empty(x.size), []
        for block, where in feasible.blocks:
            parts.append(_certificate(block, x[where], gradient[where]))
            vertex[where] = parts[-1].vertex
        slope, slack = sum(part.slope for part in parts), sum(part.slack for part in parts)
        return Certificate(vertex, slope, slack, tuple(parts))
    vertex, slack = vertex_with_slack(feasible, gradient)
    found = Certificate(vertex, float(gradient @ (x - vertex)), slack)
    refuse_negative(feasible, found.slope + slack, x, vertex, gradient)
    return found


def refuse_beaten(feasible: FeasibleSet, found: Certificate, gradient: Array, known: Any) -> None:
    """An error where an earlier vertex of the oracle, a row of `known`, beats its answer.

    known: an array (k, n), or a sparse matrix.
    """
    if isinstance(feasible, ProductSet):
        for (block, where), part in zip(feasible.blocks, found.parts):
            refuse_beaten(block, part, gradient[where], known[:, where])
        return
    costs = known @ gradient - float(found.vertex @ gradient)
    best = int(costs.argmin())
    point = known[[best]]
    point = point.toarray()[0] if sp.issparse(point) else point[0]
    refuse_negative(feasible, float(costs[best]) + found.slack, point, found.vertex, gradient)


def refuse_negative(
    feasible: FeasibleSet, gap: float, x: Array, vertex: Array, gradient: Array
) -> None:
    """An error that names the oracle if a point x of its set costs less than its minimum."""
    size = max(float(np.linalg.norm(x)), float(np.linalg.norm(vertex)))
    rounding = RELATIVE * float(np.linalg.norm(gradient)) * size
    if gap >= -rounding - feasible.accuracy * float(np.abs(gradient).sum()):
        return
    backend = "" if feasible.backend is None else f" with backend {feasible.backend!r}"
    raise InexactOracleError(
        f"the oracle of {feasible!r}{backend} is not exact: its minimum of <gradient, x> is "
        f"{-gap:.3g} above the cost of a point of the set, so that its gaps prove nothing. Use an "
        "exact oracle, or one that returns (vertex, bound) with a lower bound on the minimum, as "
        "sets.Oracle takes it; wdro_model.sets.check(set) tests it. (A start= outside the set "
        "looks the same.)"
    )
