"""Maxima of affine pieces with a quadratic cost on R^d: second-order cones.

Each piece is largest where its own move b/(2 l) in the geometry of the cost puts it, so that

    sup_zeta max_j a_j + <b_j, zeta> - l c(xi, zeta) = max_j a_j + <b_j, xi> + |b_j|^2 / (4 l),

|.| the dual norm of the cost; the worst-case risk is the minimum over l >= 0 of
l radius + mean_k of this at xi_k, jointly convex in l and the slopes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cvxpy as cp

from wdro_model.model import Model
from wdro_model.objectives.base import Array
from wdro_model.objectives.exact.base import Extremal, WrittenOut
from wdro_model.objectives.exact.dual_search import search
from wdro_model.objectives.exact.geometry import scales, whitened
from wdro_model.objectives.exact.pieces import Cluster, Group, Piece, groups_of
from wdro_model.objectives.exact.refusals import first_refusal, needs_cost, needs_free_moves
from wdro_model.objectives.exact.responses import free_responses
from wdro_model.objectives.exact.vectorised import certain_part, group_rows, piece_at, summed
from wdro_model.objectives.programs import Program


@dataclass(frozen=True)
class MaxAffineLoss(WrittenOut):
    """max_j a_j(x) + <b_j(x), xi>, or a sum of such terms; squared or Mahalanobis cost; R^d."""

    formula = "min over l of l radius + mean_k max_j a_j + <b_j, xi_k> + |b_j|^2 / (4 l)"

    def refusal(self, model: Model) -> str | None:
        return first_refusal(
            model, needs_cost("squared", "mahalanobis"), needs_pieces, needs_free_moves
        )

    def program(self, model: Model) -> Program | None:
        groups = pieces_of(model)
        assert not isinstance(groups, str)
        dual = cp.Variable(nonneg=True, name="transport_dual")
        total = certain_part(model, groups) + model.radius * dual
        for group in groups:
            rows = group_rows(group, model.rows)
            for cluster in group.clusters:
                values = [
                    piece_at(piece, cluster.seen, rows) + bonus(model, cluster, piece, dual)
                    for piece in cluster.pieces
                ]
                best = values[0] if len(values) == 1 else cp.maximum(*values)
                total = total + summed(best, len(rows)) / len(model.rows)
        return Program.if_convex(total)

    def value(self, model: Model, x: Array) -> float:
        return search(model, x, free_responses(model, self.groups(model), x)).value

    def extremal(self, model: Model, x: Array) -> Extremal:
        return search(model, x, free_responses(model, self.groups(model), x)).extremal(model)

    def groups(self, model: Model) -> tuple[Group, ...]:
        found = pieces_of(model)
        assert not isinstance(found, str)
        return found


def pieces_of(model: Model) -> tuple[Group, ...] | str:
    """The pieces of the loss, in clusters that a quadratic cost on R^d does not couple."""
    assert model.cost is not None
    return groups_of(model, "free", couplings=model.cost.matrix)


def needs_pieces(model: Model) -> str | None:
    found = pieces_of(model)
    return found if isinstance(found, str) else None


def bonus(model: Model, cluster: Cluster, piece: Piece, dual: Any) -> Any:
    """|b|^2 / (4 l)."""
    assert model.cost is not None
    where = cluster.moving
    if not len(where) or (piece.slope.is_constant() and not piece.slope.value.any()):
        return 0.0
    if model.cost.kind == "mahalanobis":
        slope = whitened(model.cost, piece.slope)
    else:
        slope = piece.slope if len(where) == model.cost.dimension else piece.slope[where]
        if model.cost.weights is not None:
            slope = cp.multiply(1.0 / scales(model.cost)[where], slope)
    return cp.quad_over_lin(slope, 4.0 * dual)
