"""The dual of nature's problem as a program, whatever cost and support make of the pieces.

    min over l >= 0 of  l radius + mean_k sum_c max_j v_cj(k, l)

v_cj(k, l) = sup_zeta a_cj + <b_cj, zeta> - l c(xi_k, zeta) for sample k and piece j of cluster c.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp

from wdro_model.model import RobustModel
from wdro_model.objectives.exact.decomposition import Group
from wdro_model.objectives.exact.lines import Lines
from wdro_model.objectives.exact.pieces import Cluster
from wdro_model.objectives.exact.vectorised import certain_part, group_rows, summed
from wdro_model.objectives.programs import Program
from wdro_model.solvers.objective import Array

Part = Cluster | Lines
Values = tuple[list[Any], list[Any]]
"""For each piece what nature makes of it at all samples, a vector, and constraints of its own."""
Nature = Callable[[RobustModel, Part, Array, Any], Values]
"""The values of a cluster, or of lines, for samples (n, d) and the price l."""


def dual_program(
    model: RobustModel, groups: tuple[Group, ...], nature: Nature, certain: Any | None = None
) -> Program | None:
    """The program, if CVXPY sees that it is convex; `certain` in place of terms without data."""
    dual = cp.Variable(nonneg=True, name="transport_dual")
    total = certain_part(model, groups) if certain is None else certain
    total = total + model.radius * dual
    constraints: list[Any] = []
    for group in groups:
        rows = group_rows(group, model.rows)
        parts: tuple[Part, ...] = (*group.clusters, *group.lines)
        for part in parts:
            values, more = nature(model, part, rows, dual)
            best = values[0] if len(values) == 1 else cp.maximum(*values)
            added = cp.sum(best) if isinstance(part, Lines) else summed(best, len(rows))
            total = total + added / len(model.rows)
            constraints += more
    return Program.if_convex(total, tuple(constraints))
