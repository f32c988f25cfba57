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
import numpy as np

from wdro_model.model import RobustModel
from wdro_model.objectives.exact.counterpart import Counterpart, Extremal
from wdro_model.objectives.exact.decomposition import Group, groups_of
from wdro_model.objectives.exact.dual_search import search
from wdro_model.objectives.exact.duality import Part, Values, dual_program
from wdro_model.objectives.exact.lines import Lines, along
from wdro_model.objectives.exact.pieces import Cluster, is_flat
from wdro_model.objectives.exact.refusals import (
    first_refusal,
    needs_free_moves,
    needs_quadratic_cost,
)
from wdro_model.objectives.exact.responses import free_responses
from wdro_model.objectives.exact.vectorised import piece_at
from wdro_model.objectives.programs import Program
from wdro_model.solvers.objective import Array


@dataclass(frozen=True)
class MaxAffineLoss(Counterpart):
    """max_j a_j(x) + <b_j(x), xi>, or a sum of such terms; squared or Mahalanobis cost; R^d."""

    formula = "min over l of l radius + mean_k max_j a_j + <b_j, xi_k> + |b_j|^2 / (4 l)"

    def refusal(self, model: RobustModel) -> str | None:
        return first_refusal(
            model,
            needs_quadratic_cost("whitened", "inverse_times"),
            needs_free_moves,
            needs_pieces,
        )

    def program(self, model: RobustModel) -> Program | None:
        return dual_program(model, self.groups(model), free_values)

    def value(self, model: RobustModel, x: Array) -> float:
        return search(model, x, free_responses(model, self.groups(model), x)).value

    def extremal(self, model: RobustModel, x: Array) -> Extremal:
        return search(model, x, free_responses(model, self.groups(model), x)).extremal(model)

    def groups(self, model: RobustModel) -> tuple[Group, ...]:
        found = pieces_of(model)
        assert not isinstance(found, str)
        return found


def pieces_of(model: RobustModel) -> tuple[Group, ...] | str:
    """The pieces of the loss, in clusters that a quadratic cost on R^d does not couple."""
    return groups_of(model, "free", couplings=model.cost.couplings)


def needs_pieces(model: RobustModel) -> str | None:
    found = pieces_of(model)
    return found if isinstance(found, str) else None


def free_values(model: RobustModel, part: Part, rows: Array, dual: Any) -> Values:
    """a + <b, xi_k> + |b|^2 / (4 l) for each piece."""
    if isinstance(part, Lines):
        bonuses, constraints = line_bonuses(model, part, dual)
        ones = np.ones((len(rows), len(part.where)))
        return [v + along(ones, b) for v, b in zip(part.values(rows), bonuses)], constraints
    bonuses, constraints = cluster_bonuses(model, part, dual)
    plain = [piece_at(piece, part.seen, rows) for piece in part.pieces]
    return [value + bonus for value, bonus in zip(plain, bonuses)], constraints


def cluster_bonuses(model: RobustModel, cluster: Cluster, dual: Any) -> tuple[list[Any], list[Any]]:
    """|b_j|^2 / (4 l) for each piece, with constraints: one cone for all pieces along a line."""
    cones: dict[int, tuple[Any, float]] = {}
    bonuses, constraints = [], []
    for piece in cluster.pieces:
        if not len(cluster.moving) or is_flat(piece):
            bonuses.append(0.0)
            continue
        key = id(piece.direction)
        if key not in cones:
            same = [abs(p.scale) for p in cluster.pieces if p.direction is piece.direction]
            # The longest of the slopes is of the size of the losses, which solvers like.
            cones[key] = cp.Variable(nonneg=True), max(same)
            slope = moving_slope(model, cluster, max(same) * piece.direction)
            constraints.append(cp.quad_over_lin(slope, 4.0 * dual) <= cones[key][0])
        square, longest = cones[key]
        bonuses.append((piece.scale / longest) ** 2 * square)
    return bonuses, constraints


def line_bonuses(model: RobustModel, lines: Lines, dual: Any) -> tuple[list[Any], list[Any]]:
    """b_ji^2 / (4 l w_i) for each piece as a vector (m,), with constraints."""
    weights, fixed = 1.0 / model.cost.coordinate_scales[lines.where], lines.fixed_slopes
    if fixed is not None:
        # Slopes that do not depend on the decision share one number, the largest of them all.
        steepness = np.abs(fixed * weights)
        longest = float(steepness.max()) or 1.0
        square = cp.Variable(nonneg=True)
        bonuses = [(row / longest) ** 2 * square for row in steepness]
        return bonuses, [cp.quad_over_lin(longest, 4.0 * dual) <= square]
    bonuses, constraints = [], []
    for slope in lines.slopes:
        bonus = cp.Variable(len(lines.where), nonneg=True)
        constraints.append(squares_below(cp.multiply(weights, slope), dual, bonus))
        bonuses.append(bonus)
    return bonuses, constraints


def squares_below(slope: Any, dual: Any, bonus: Any) -> Any:
    """slope_i^2 <= 4 l bonus_i for every entry, as second-order cones."""
    stretched = dual * np.ones(bonus.size)
    return cp.SOC(stretched + bonus, cp.vstack([slope, stretched - bonus]), axis=0)


def moving_slope(model: RobustModel, cluster: Cluster, slope: Any) -> Any:
    """A slope on the coordinates that move, where the cost is the plain squared distance."""
    where = cluster.moving
    if len(where) == model.cost.dimension or not model.cost.knows("restricted"):
        return model.cost.whitened(slope)
    return model.cost.restricted(where).whitened(slope[where])
