"""Maxima of affine pieces with a quadratic cost on R^d: second-order cones.

Each piece is largest where its own move b/(2 l) in the geometry of the cost puts it, so that

    sup_zeta max_j a_j + <b_j, zeta> - l c(xi, zeta) = max_j a_j + <b_j, xi> + |b_j|^2 / (4 l),

|.| the dual norm of the cost; the worst-case risk is the minimum over l >= 0 of
l radius + mean_k of this at xi_k, jointly convex in l and the slopes. `dual_program` writes this
minimum for any support, from what the adversary makes of each piece there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.model import RobustModel
from wdro_model.objectives.empirical import Program
from wdro_model.objectives.exact.best_replies import replies_everywhere
from wdro_model.objectives.exact.clusters import Cluster, is_flat
from wdro_model.objectives.exact.coordinate_lines import Lines, along
from wdro_model.objectives.exact.counterpart import (
    Extremal,
    first_refusal,
    needs_free_moves,
    needs_quadratic_cost,
)
from wdro_model.objectives.exact.decomposition import (
    Group,
    Part,
    PiecewiseCounterpart,
    certain_part,
    groups_of,
)
from wdro_model.objectives.exact.sample_maxima import (
    MaximaPart,
    SampleMaxima,
    has_many_lines,
    part_of_cluster,
    parts_of_lines,
)
from wdro_model.objectives.exact.transport_price import BestPrice, best_price
from wdro_model.solvers.objective import Array


@dataclass(frozen=True)
class MaxAffineEverywhere(PiecewiseCounterpart):
    """max_j a_j(x) + <b_j(x), xi>, or a sum of such terms; squared or Mahalanobis cost; R^d."""

    formula = "min over l of l radius + mean_k max_j a_j + <b_j, xi_k> + |b_j|^2 / (4 l)"

    def refusal(self, model: RobustModel) -> str | None:
        return first_refusal(
            model,
            needs_quadratic_cost("whitened", "inverse_times"),
            needs_free_moves,
            self.needs_pieces,
        )

    def program(self, model: RobustModel) -> Program | None:
        return dual_program(model, self.groups(model), values_everywhere)

    def maxima(self, model: RobustModel) -> SampleMaxima | None:
        groups = self.groups(model)
        if has_many_lines(groups):
            return None
        dual = cp.Variable(nonneg=True, name="transport_dual")
        parts: list[MaximaPart] = []
        constraints: list[Any] = []
        for group in groups:
            for cluster in group.clusters:
                bonuses, more = cluster_bonuses(model, cluster, dual)
                parts.append(part_of_cluster(model, group.index, cluster, bonuses))
                constraints += more
            for lines in group.lines:
                bonuses, more = line_bonuses(model, lines, dual)
                parts += parts_of_lines(model, group.index, lines, bonuses)
                constraints += more
        rest = certain_part(model, groups) + model.written_radius * dual
        return SampleMaxima.if_affine(rest, tuple(constraints), parts)

    def value(self, model: RobustModel, x: Array) -> float:
        return self._price(model, x).value

    def extremal(self, model: RobustModel, x: Array) -> Extremal:
        return self._price(model, x).extremal(model)

    def pieces(self, model: RobustModel) -> tuple[Group, ...] | str:
        """In clusters that a quadratic cost on R^d does not couple."""
        return groups_of(model, "free", couplings=model.cost.couplings)

    def _price(self, model: RobustModel, x: Array) -> BestPrice:
        return best_price(model, x, replies_everywhere(model, self.groups(model), x))


Values = tuple[list[Any], list[Any]]
"""For each piece what the adversary makes of it at all samples, and constraints of its own."""
WorstValues = Callable[[RobustModel, Part, Array, Any], Values]
"""The values of a cluster, or of lines, for samples (n, d) and the price l."""


def dual_program(
    model: RobustModel,
    groups: tuple[Group, ...],
    worst_values: WorstValues,
    certain: Any | None = None,
) -> Program | None:
    """min over l >= 0 of l radius + mean_k sum_c max_j v_cj(k, l), if CVXPY sees its convexity.

    worst_values: gives v_cj(k, l) = sup_zeta a_cj + <b_cj, zeta> - l c(xi_k, zeta) for sample k and
        piece j of cluster c.
    certain: in place of the terms without data.
    """
    dual = cp.Variable(nonneg=True, name="transport_dual")
    total = certain_part(model, groups) if certain is None else certain
    total = total + model.written_radius * dual
    constraints: list[Any] = []
    for group in groups:
        rows = group.rows(model)
        for part in group.parts:
            values, more = worst_values(model, part, rows, dual)
            total = total + part.mean_of_largest(values, group.shares(model))
            constraints += more
    return Program.if_convex(total, tuple(constraints))


def values_everywhere(model: RobustModel, part: Part, rows: Array, dual: Any) -> Values:
    """a + <b, xi_k> + |b|^2 / (4 l) for each piece."""
    if isinstance(part, Lines):
        bonuses, constraints = line_bonuses(model, part, dual)
        ones = np.ones((len(rows), len(part.where)))
        return [v + along(ones, b) for v, b in zip(part.values(rows), bonuses)], constraints
    bonuses, constraints = cluster_bonuses(model, part, dual)
    return [value + bonus for value, bonus in zip(part.values(rows), bonuses)], constraints


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
