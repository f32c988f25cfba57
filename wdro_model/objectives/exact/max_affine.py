"""Counterparts of maxima of affine pieces: on R^d, on a box, on a polyhedron.

Each piece is largest where its own move b/(2 l) in the geometry of the cost puts it, so that

    sup_zeta max_j a_j + <b_j, zeta> - l c(xi, zeta) = max_j a_j + <b_j, xi> + |b_j|^2 / (4 l),

|.| the dual norm of the cost; the worst-case risk is the minimum over l >= 0 of
l radius + mean_k of this at xi_k, jointly convex in l and the slopes. `dual_program` writes this
minimum for any support, from what the adversary makes of each piece there.

For one sample and one piece, by duality with multipliers g >= 0 of the support,

    sup { <b, zeta> - l c(xi, zeta) : C zeta <= h } = min_g <b, xi> + <g, h - C xi> + p(b - C' g),

with p(u) = |u|^2 / (4 l) for a quadratic cost, and for a norm p = 0 where |u|_dual <= l. The
multipliers of all samples are one matrix for each piece.

The adversary then moves every coordinate on its own. For one sample, one piece and the cost
|delta_i| weighed by w_i, a coordinate goes to its bound or stays,

    sup { b delta - l w |delta| : lo <= xi + delta <= hi }
        = (hi - xi) (b - l w)_+ + (xi - lo) (-b - l w)_+,

with parts (.)_+ that all samples share. A squared cost needs multipliers of both bounds for every
sample, and a second-order cone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.model import RobustModel
from wdro_model.objectives.empirical import Program
from wdro_model.objectives.exact.adversary import (
    BestPrice,
    best_price,
    replies_everywhere,
    replies_on_box,
    room,
    run_patiently,
    size_at,
    solve_adversary,
)
from wdro_model.objectives.exact.counterpart import (
    Extremal,
    first_refusal,
    needs_box,
    needs_conic_cost,
    needs_free_moves,
    needs_homogeneous_cost,
    needs_polyhedron,
    needs_quadratic_cost,
    needs_separable_cost,
    polyhedron,
)
from wdro_model.objectives.exact.decomposition import (
    Group,
    MaximaPart,
    Part,
    PiecewiseCounterpart,
    SampleMaxima,
    certain_part,
    groups_of,
    has_many_lines,
    part_of_cluster,
    parts_of_lines,
)
from wdro_model.objectives.exact.pieces import Cluster, Lines, along, is_flat
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


# ------------------------------
# Maxima of affine pieces on a polyhedral support {C xi <= h}: a finite convex program


LARGEST = 5_000_000
"""At most so many multipliers of the support, over all samples and pieces."""


@dataclass(frozen=True)
class MaxAffineOnPolyhedron(PiecewiseCounterpart):
    """A maximum of affine pieces, or a sum of such terms; norm or quadratic cost; polyhedron."""

    formula = (
        "min over l and g_kj >= 0 of l radius + mean_k max_j a_j + <b_j, xi_k> + <g_kj, h - C xi_k>"
        " + the conjugate of the cost at b_j - C' g_kj, support {C xi <= h}"
    )

    def refusal(self, model: RobustModel) -> str | None:
        return first_refusal(
            model,
            needs_homogeneous_cost("dual_norms"),
            needs_polyhedron,
            self.needs_pieces,
            needs_conic_cost,
            self.needs_few_multipliers,
        )

    def program(self, model: RobustModel) -> Program | None:
        return dual_program(model, self.groups(model), values_on_polyhedron)

    def value(self, model: RobustModel, x: Array) -> float:
        return conic_value(model, self.groups(model), x)

    def extremal(self, model: RobustModel, x: Array) -> Extremal:
        return solve_adversary(model, self.groups(model), x)

    def pieces(self, model: RobustModel) -> tuple[Group, ...] | str:
        """In clusters that neither cost nor support couples."""
        couplings = polyhedron(model)[0]
        if model.cost.couplings is not None:
            couplings = sp.vstack([couplings, sp.csr_array(model.cost.couplings)], format="csr")
        return groups_of(model, "polyhedral", couplings=couplings, vectors=False)

    def needs_few_multipliers(self, model: RobustModel) -> str | None:
        pieces = (
            len(group.index) * max((len(c.pieces) for c in group.clusters), default=0)
            for group in self.groups(model)
        )
        return too_many_multipliers(len(polyhedron(model)[1]) * sum(pieces))


def too_many_multipliers(count: int) -> str | None:
    """The refusal of a program with so many multipliers of the support; None if it is small."""
    if count <= LARGEST:
        return None
    return (
        f"the finite program on the support has {count} multipliers, more than the {LARGEST} "
        "that are written out"
    )


def values_on_polyhedron(model: RobustModel, cluster: Part, rows: Array, dual: Any) -> Values:
    """For each piece sup_zeta a + <b, zeta> - l c(xi_k, zeta) as an n-vector, and constraints."""
    assert isinstance(cluster, Cluster)
    matrix, limits = polyhedron(model)
    where, plain = cluster.moving, cluster.values(rows)
    if not len(where):
        return plain, []
    own = np.asarray(abs(matrix[:, where]).sum(axis=1)).ravel() > 0
    inside = matrix[np.flatnonzero(own)]
    cost = model.cost.restricted(where)
    slack = np.maximum(limits[own] - (inside @ rows.T).T, 0.0)
    values, constraints = [], []
    for piece, value in zip(cluster.pieces, plain):
        slope = cp.reshape(piece.slope[where], (1, len(where)), order="C")
        left = np.ones((len(rows), 1)) @ slope
        if own.any():
            multipliers = cp.Variable(slack.shape, nonneg=True)
            value = value + cp.sum(cp.multiply(slack, multipliers), axis=1)
            left = left - multipliers @ inside[:, where]
        bonus, more = cost.conjugate(left, dual)
        values.append(value if bonus is None else value + bonus)
        constraints += more
    return values, constraints


def conic_value(model: RobustModel, groups: tuple[Group, ...], x: Array) -> float:
    """The same program with the decision held fixed, the loss in units of what it is there."""
    still = 0.0
    fixed, unit = [], size_at(model, groups, x)
    for group in groups:
        rows = group.rows(model)
        numbers = [cluster.numeric(model, x) for cluster in group.clusters]
        shares = group.shares(model)
        still += sum(float(shares.total(c.values(rows).max(axis=1))) for c in numbers)
        clusters = tuple(
            n.over(unit).as_expressions(c.seen) for n, c in zip(numbers, group.clusters)
        )
        fixed.append(Group(group.index, clusters, (), (), group.held))
    certain = float(model.shares.total(model.loss.values(x, model.rows))) - still
    program = dual_program(model, tuple(fixed), values_on_polyhedron, cp.Constant(0.0))
    assert program is not None
    problem = cp.Problem(cp.Minimize(program.expression), list(program.constraints))
    run_patiently(problem)
    return certain + unit * float(problem.value)


# ------------------------------
# Maxima of affine pieces on a box, with a cost that adds up over the coordinates


@dataclass(frozen=True)
class MaxAffineOnBox(PiecewiseCounterpart):
    """A maximum of affine pieces, or a sum of such terms; squared cost or Norm(1); a box."""

    formula = (
        "min over l of l radius + mean_k max_j a_j + <b_j, xi_k> "
        "+ sum_i sup of b_ji delta - l c_i(delta) over the box"
    )

    def refusal(self, model: RobustModel) -> str | None:
        return first_refusal(
            model,
            needs_homogeneous_cost("dual_norms"),
            needs_box,
            needs_separable_cost,
            self.needs_pieces,
            self.needs_few_multipliers,
        )

    def program(self, model: RobustModel) -> Program | None:
        return dual_program(model, self.groups(model), values_on_box)

    def value(self, model: RobustModel, x: Array) -> float:
        return best_price(model, x, replies_on_box(model, self.groups(model), x)).value

    def extremal(self, model: RobustModel, x: Array) -> Extremal:
        # Where the supremum asks for moves without end, long ones come close to it.
        replies = replies_on_box(model, self.groups(model), x, longest=reach(model, 1e7))
        return best_price(model, x, replies).extremal(model)

    def pieces(self, model: RobustModel) -> tuple[Group, ...] | str:
        """Neither cost nor support couples coordinates."""
        return groups_of(model, "box")

    def needs_few_multipliers(self, model: RobustModel) -> str | None:
        """A squared cost has a multiplier for each bound, sample and piece."""
        if model.cost.is_norm:
            return None
        refused = needs_conic_cost(model)
        if refused is not None:
            return refused
        bounded = np.asarray(abs(polyhedron(model)[0]).sum(axis=0)).ravel()
        count = sum(
            len(group.index) * len(pieces) * int(bounded[where].sum())
            for group in self.groups(model)
            for pieces, where in (
                *((cluster.pieces, cluster.moving) for cluster in group.clusters),
                *((lines.slopes, lines.where) for lines in group.lines),
            )
        )
        return too_many_multipliers(count)


def reach(model: RobustModel, factor: float) -> float:
    """A length that is large beside the radius and the spread of the data."""
    spread = float(np.ptp(model.rows, axis=0).max(initial=0.0))
    shortest = float(model.cost.coordinate_scales.min())
    share = float(model.shares.array.max())
    return factor * max(1.0, spread, model.radius / (share * shortest))


def values_on_box(model: RobustModel, part: Part, rows: Array, dual: Any) -> Values:
    """sup_zeta a + <b, zeta> - l c(xi_k, zeta) for each piece of a cluster or of lines."""
    if model.cost.is_norm:
        return to_the_bounds(model, part, rows, dual)
    if isinstance(part, Lines):
        return squared_lines(model, part, rows, dual)
    return values_on_polyhedron(model, part, rows, dual)


@dataclass(frozen=True)
class Room:
    """How far samples may move down and up in some coordinates, (n, m); 0 without a bound."""

    down: Array
    up: Array
    below: Array
    """Which coordinates (m,) have a lower bound."""
    above: Array

    @classmethod
    def of(cls, model: RobustModel, where: Array, rows: Array) -> Room:
        assert model.joint.bounds is not None
        below, above = (np.isfinite(side[where]) for side in model.joint.bounds)
        down, up = room(model, where, rows)
        return cls(np.where(below, -down, 0.0), np.where(above, up, 0.0), below, above)


def to_the_bounds(model: RobustModel, part: Part, rows: Array, dual: Any) -> Values:
    """Absolute values as costs: the excess of a slope over its price, times the room."""
    plain = part.values(rows)
    if isinstance(part, Lines):
        where, slopes = part.where, list(part.slopes)
    else:
        where, slopes = part.moving, [piece.slope[part.moving] for piece in part.pieces]
    if not len(where):
        return plain, []
    left, weights = Room.of(model, where, rows), model.cost.coordinate_weights[where]
    sides = ((1.0, weights * left.up, left.above), (-1.0, weights * left.down, left.below))
    values, constraints = [], []
    for value, slope in zip(plain, slopes):
        rate = slope if np.all(weights == 1.0) else cp.multiply(1.0 / weights, slope)
        for sign, length, bounded in sides:
            # Without a bound no excess is allowed: the price must pay for a move without end.
            excess = _nonnegative(bounded)
            constraints.append(sign * rate - dual <= excess)
            if bounded.any():
                value = value + (
                    along(length, excess) if isinstance(part, Lines) else length @ excess
                )
        values.append(value)
    return values, constraints


def squared_lines(model: RobustModel, lines: Lines, rows: Array, dual: Any) -> Values:
    """Squared cost on lines: multipliers of both bounds and a cone for each sample and line."""
    left = Room.of(model, lines.where, rows)
    weights = 1.0 / model.cost.coordinate_scales[lines.where]
    values, constraints = [], []
    for value, slope in zip(lines.values(rows), lines.slopes):
        rest = along(np.ones_like(left.up), slope)
        for sign, length, bounded in ((1.0, left.up, left.above), (-1.0, left.down, left.below)):
            if bounded.any():
                entries = np.flatnonzero(np.tile(bounded, len(rows)))
                multipliers = cp.Variable(len(entries), nonneg=True)
                placed = _placement(entries, left.up.size)
                rest = rest - sign * (placed @ multipliers)
                value = value + (placed @ sp.diags_array(length.ravel()[entries])) @ multipliers
        bonus = cp.Variable(left.up.size, nonneg=True)
        scaled = sp.diags_array(np.tile(weights, len(rows))) @ rest
        constraints.append(squares_below(scaled, dual, bonus))
        values.append(value + bonus)
    return values, constraints


def _nonnegative(free: Array) -> Any:
    """A vector of nonnegative variables in the entries that are free, of zeros elsewhere."""
    if not free.any():
        return cp.Constant(np.zeros(len(free)))
    numbers = cp.Variable(int(free.sum()), nonneg=True)
    return numbers if free.all() else _placement(np.flatnonzero(free), len(free)) @ numbers


def _placement(entries: Array, size: int) -> Any:
    """The matrix that puts a short vector into these entries of a long one."""
    ones, columns = np.ones(len(entries)), np.arange(len(entries))
    return sp.csr_array((ones, (entries, columns)), shape=(size, len(entries)))
