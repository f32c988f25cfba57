"""The sum of a loss over the samples as one CVXPY expression, with no copy for each sample."""

from __future__ import annotations

from typing import Any

import cvxpy as cp

from wdro_model.loss.polynomial import affine_forms
from wdro_model.loss.rewriting import vectorised
from wdro_model.model import RobustModel
from wdro_model.objectives.exact.decomposition import Group
from wdro_model.objectives.exact.pieces import Cluster, Piece, as_piece
from wdro_model.solvers.objective import Array


def piece_at(piece: Piece, seen: Array, rows: Array) -> Any:
    """a(x) + <b(x), xi_k> for each row, a vector of n entries (or one where no data is seen)."""
    if not len(seen):
        return piece.constant
    whole = len(seen) == rows.shape[1]
    scaled = piece.scale * (rows if whole else rows[:, seen])
    return piece.constant + scaled @ (piece.direction if whole else piece.direction[seen])


def group_rows(group: Group, rows: Array) -> Array:
    """The samples of a group."""
    return rows if len(group.index) == len(rows) else rows[group.index]


def summed(values: Any, count: int) -> Any:
    """The sum over `count` samples of a vector, or of one number that they share."""
    return cp.sum(values) if values.size == count else count * cp.sum(values)


def sum_of_maximum(cluster: Cluster, rows: Array) -> Any:
    """sum_k max_j a_j + <b_j, xi_k>."""
    values = [piece_at(piece, cluster.seen, rows) for piece in cluster.pieces]
    return summed(values[0] if len(values) == 1 else cp.maximum(*values), len(rows))


def mean_of_maxima(model: RobustModel, groups: tuple[Group, ...]) -> Any:
    """mean_k f(x, xi_k)."""
    total = certain_part(model, groups)
    for group in groups:
        rows = group_rows(group, model.rows)
        for cluster in group.clusters:
            total = total + sum_of_maximum(cluster, rows) / len(model.rows)
        for lines in group.lines:
            total = total + lines.sum_of_maxima(rows) / len(model.rows)
    return total


def certain_part(model: RobustModel, groups: tuple[Group, ...]) -> Any:
    """The terms without data, averaged over the samples."""
    total: Any = cp.Constant(0.0)
    for group in groups:
        for term in group.rest:
            total = total + (len(group.index) / len(model.rows)) * term
    return total


def sum_through_forms(model: RobustModel, expression: Any, rows: Array) -> Any | None:
    """sum_k h(x, u_k) for scalar forms u affine in the data and h made of entrywise atoms."""
    found = affine_forms(expression, model.joint.parameters)
    if found is None or any(form.expression.size != 1 for form in found.forms):
        return None
    vectors: dict[Any, Any] = {}
    for form in found.forms:
        piece, seen = as_piece(model, form.expression)
        vectors[form.placeholder] = piece_at(piece, seen, rows)
    outer = vectorised(found.outer, vectors) if found.forms else found.outer
    return None if outer is None else summed(outer, len(rows))
