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

from collections.abc import Callable, Sequence
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
    solve_adversary,
    typical_size,
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
    PiecewiseCounterpart,
    all_maxima,
    certain_part,
    groups_of,
)
from wdro_model.objectives.exact.maxima import (
    Maxima,
    SampleMaxima,
    block_matrix,
    placement,
)
from wdro_model.solvers.objective import Array

MOST_MULTIPLIERS = 5_000_000
"""Multipliers of the support, over all samples and pieces, that a program has at most."""
LONG_MOVE = 1e7
"""Moves without end are this many times as long as the radius and the spread of the data."""

Values = tuple[list[Any], list[Any]]
"""For each piece what the adversary makes of it at all samples, and constraints of its own."""
WorstValues = Callable[[RobustModel, Maxima, Array, Any], Values]
"""The values of some maxima, for samples (n, d) and the price l."""


def dual_program(
    model: RobustModel,
    maxima: Sequence[Maxima],
    worst_values: WorstValues,
    certain: Any,
) -> Program | None:
    """min over l >= 0 of l radius + mean_k sum_c max_j v_cj(k, l), if CVXPY sees its convexity.

    certain: the terms without data.
    """
    dual = cp.Variable(nonneg=True, name="transport_dual")
    total = certain + model.written_radius * dual
    constraints: list[Any] = []
    for part in maxima:
        values, more = worst_values(model, part, part.rows(model), dual)
        total = total + part.mean_of_largest(values, part.shares(model))
        constraints += more
    return Program.if_convex(total, tuple(constraints))


def too_many_multipliers(count: int) -> str | None:
    """The refusal of a program with so many multipliers of the support; None if it is small."""
    if count <= MOST_MULTIPLIERS:
        return None
    return (
        f"the finite program on the support has {count} multipliers, more than the "
        f"{MOST_MULTIPLIERS} that are written out"
    )


# ------------------------------------------------------------------ on R^d
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
        groups = self.groups(model)
        certain = certain_part(model, groups)
        return dual_program(model, all_maxima(groups), values_everywhere, certain)

    def maxima(self, model: RobustModel) -> SampleMaxima | None:
        groups, dual = self.groups(model), cp.Variable(nonneg=True, name="transport_dual")
        maxima, constraints = [], []
        for part in all_maxima(groups):
            gains, more = move_gains(model, part, dual)
            maxima.append(part.with_gains(gains))
            constraints += more
        rest = certain_part(model, groups) + model.written_radius * dual
        return SampleMaxima.if_affine(rest, constraints, maxima)

    def value(self, model: RobustModel, x: Array) -> float:
        return self._price(model, x).value

    def extremal(self, model: RobustModel, x: Array) -> Extremal:
        return self._price(model, x).extremal(model)

    def pieces(self, model: RobustModel) -> tuple[Group, ...] | str:
        """The pieces, in maxima that a quadratic cost on R^d does not couple."""
        return groups_of(model, "free", couplings=model.cost.couplings)

    def _price(self, model: RobustModel, x: Array) -> BestPrice:
        return best_price(model, x, replies_everywhere(model, self.groups(model), x))


def values_everywhere(model: RobustModel, maxima: Maxima, rows: Array, dual: Any) -> Values:
    """a + <b, xi_k> + |b|^2 / (4 l) for each piece."""
    gains, constraints = move_gains(model, maxima, dual)
    return maxima.with_gains(gains).values(rows), constraints


def move_gains(model: RobustModel, maxima: Maxima, dual: Any) -> Values:
    """|b_j|^2 / (4 l) for each piece, (m,) or one number: one cone for all pieces of a direction.

    The longest of the slopes is of the size of the losses, which solvers like.
    """
    gains: list[Any] = [0.0] * len(maxima.scales)
    constraints: list[Any] = []
    if not maxima.moves.any():
        return gains, constraints
    if maxima.count > 1 and not any(b.variables() for b in maxima.directions):
        # Slopes that do not depend on the decision share one number, the largest of them all.
        weights = 1.0 / model.cost.coordinate_scales[maxima.moving[:, 0]]
        steepness = [np.abs(slope.value * weights) for slope in maxima.moving_slopes()]
        longest = float(np.max(steepness)) or 1.0
        square = cp.Variable(nonneg=True)
        shares = [(own / longest) ** 2 * square for own in steepness]
        return shares, [cp.quad_over_lin(longest, 4.0 * dual) <= square]
    for own, longest, slope in maxima.longest_directions():
        gain = cp.Variable(maxima.constants[0].shape, nonneg=True)
        if maxima.count == 1:
            cost, moving = maxima.cost_on(model.cost, slope)
            constraints.append(cp.quad_over_lin(cost.whitened(moving), 4.0 * dual) <= gain)
        else:
            weights = 1.0 / model.cost.coordinate_scales[maxima.moving[:, 0]]
            constraints.append(squares_below(cp.multiply(weights, slope), dual, gain))
        for j in own:
            gains[j] = (maxima.scales[j] / longest) ** 2 * gain
    return gains, constraints


def squares_below(slopes: Any, dual: Any, gains: Any) -> Any:
    """|slope_i|^2 <= 4 l gain_i for rows, or entries, of slopes, as second-order cones."""
    stretched = dual * np.ones(gains.size)
    columns = cp.reshape(slopes, (gains.size, slopes.size // gains.size), order="C")
    return cp.SOC(stretched + gains, cp.vstack([columns.T, stretched - gains]), axis=0)


# ------------------------------------------------------------------ on a polyhedron
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
        groups = self.groups(model)
        certain = certain_part(model, groups)
        return dual_program(model, all_maxima(groups), values_on_polyhedron, certain)

    def value(self, model: RobustModel, x: Array) -> float:
        """The mean loss, and what the ball adds by the program with the decision held fixed.

        The addition alone is in the program, in units of its size: the mean may be far larger.
        """
        groups = self.groups(model)
        mean = float(model.shares.total(model.loss.values(x, model.rows)))
        unit = typical_size(model, groups, x)

        def additions(model: RobustModel, maxima: Maxima, rows: Array, dual: Any) -> Values:
            values, constraints = values_on_polyhedron(model, maxima, rows, dual)
            plain = np.max(np.broadcast_arrays(*(v.value for v in maxima.values(rows))), axis=0)
            return [value - plain for value in values], constraints

        fixed = [m.with_numbers(m.evaluate(model, x).divided_by(unit)) for m in all_maxima(groups)]
        program = dual_program(model, fixed, additions, cp.Constant(0.0))
        assert program is not None
        problem = cp.Problem(cp.Minimize(program.expression), list(program.constraints))
        run_patiently(problem)
        return mean + unit * float(problem.value)

    def extremal(self, model: RobustModel, x: Array) -> Extremal:
        return solve_adversary(model, self.groups(model), x)

    def pieces(self, model: RobustModel) -> tuple[Group, ...] | str:
        """The pieces, in single maxima that neither cost nor support couples."""
        couplings = polyhedron(model)[0]
        if model.cost.couplings is not None:
            couplings = sp.vstack([couplings, sp.csr_array(model.cost.couplings)], format="csr")
        return groups_of(model, "polyhedral", couplings=couplings, vectors=False)

    def needs_few_multipliers(self, model: RobustModel) -> str | None:
        pieces = sum(
            len(group.index) * max((len(some.scales) for some in group.maxima), default=0)
            for group in self.groups(model)
        )
        return too_many_multipliers(len(polyhedron(model)[1]) * pieces)


def values_on_polyhedron(model: RobustModel, maxima: Maxima, rows: Array, dual: Any) -> Values:
    """For each piece sup_zeta a + <b, zeta> - l c(xi_k, zeta) as an n-vector, and constraints."""
    matrix, limits = polyhedron(model)
    where, plain = maxima.moving[0], maxima.values(rows)
    if not len(where):
        return plain, []
    acts = np.asarray(abs(matrix[:, where]).sum(axis=1)).ravel() > 0
    inside = matrix[np.flatnonzero(acts)]
    cost = model.cost.restricted(where)
    slack = np.maximum(limits[acts] - (inside @ rows.T).T, 0.0)
    values, constraints = [], []
    for slope, value in zip(maxima.moving_slopes(), plain):
        left = np.ones((len(rows), 1)) @ cp.reshape(slope, (1, len(where)), order="C")
        if acts.any():
            multipliers = cp.Variable(slack.shape, nonneg=True)
            value = value + cp.sum(cp.multiply(slack, multipliers), axis=1)
            left = left - multipliers @ inside[:, where]
        gain, more = cost.conjugate(left, dual)
        values.append(value if gain is None else value + gain)
        constraints += more
    return values, constraints


# ------------------------------------------------------------------ on a box
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
        groups = self.groups(model)
        write = linear_on_box if model.cost.is_norm else squared_on_box
        return dual_program(model, all_maxima(groups), write, certain_part(model, groups))

    def value(self, model: RobustModel, x: Array) -> float:
        return best_price(model, x, replies_on_box(model, self.groups(model), x)).value

    def extremal(self, model: RobustModel, x: Array) -> Extremal:
        # Where the supremum asks for moves without end, long ones come close to it.
        spread = float(np.ptp(model.rows, axis=0).max(initial=0.0))
        shortest = float(model.cost.coordinate_scales.min())
        share = float(model.shares.array.max())
        longest = LONG_MOVE * max(1.0, spread, model.radius / (share * shortest))
        return best_price(model, x, replies_on_box(model, self.groups(model), x, longest)).extremal(
            model
        )

    def pieces(self, model: RobustModel) -> tuple[Group, ...] | str:
        """The pieces: neither cost nor support couples coordinates."""
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
            len(group.index) * len(maxima.scales) * int(bounded[maxima.moving].sum())
            for group in self.groups(model)
            for maxima in group.maxima
        )
        return too_many_multipliers(count)


def bounded_sides(
    model: RobustModel, rows: Array, where: Array
) -> list[tuple[float, Array, Array]]:
    """(sign, room (n, s), mask (s,) of bounded coordinates) upwards and downwards; 0 if unbounded.

    where: the coordinates, (s,).
    """
    assert model.joint.bounds is not None
    lower, upper = (np.isfinite(side[where]) for side in model.joint.bounds)
    down, up = room(model, rows, where)
    return [(1.0, np.where(upper, up, 0.0), upper), (-1.0, np.where(lower, -down, 0.0), lower)]


def linear_on_box(model: RobustModel, maxima: Maxima, rows: Array, dual: Any) -> Values:
    """Absolute values as costs: the excess of a slope over its price, times the room."""
    plain, where = maxima.values(rows), maxima.moving.ravel()
    if not len(where):
        return plain, []
    weights = model.cost.coordinate_weights[where]
    values, constraints = [], []
    for value, slope in zip(plain, maxima.moving_slopes()):
        rate = slope if np.all(weights == 1.0) else cp.multiply(1.0 / weights, slope)
        for sign, length, bounded in bounded_sides(model, rows, where):
            # Without a bound no excess is allowed: the price must pay for a move without end.
            excess: Any = cp.Constant(np.zeros(len(where)))
            if bounded.any():
                numbers = cp.Variable(int(bounded.sum()), nonneg=True)
                entries = np.flatnonzero(bounded)
                excess = numbers if bounded.all() else placement(entries, len(where)) @ numbers
                value = value + block_matrix(weights * length, maxima.count) @ excess
            constraints.append(sign * rate - dual <= excess)
        values.append(value)
    return values, constraints


def squared_on_box(model: RobustModel, maxima: Maxima, rows: Array, dual: Any) -> Values:
    """Squared cost: multipliers of both bounds, and a cone for each sample and maximum."""
    plain, where = maxima.values(rows), maxima.moving.ravel()
    if not len(where):
        return plain, []
    count, size = len(rows) * maxima.count, len(rows) * len(where)
    repeat = sp.csr_array(np.tile(np.eye(len(where)), (len(rows), 1)))
    shrink = sp.diags_array(np.tile(1.0 / model.cost.coordinate_scales[where], len(rows)))
    values, constraints = [], []
    for value, slope in zip(plain, maxima.moving_slopes()):
        left = repeat @ slope
        for sign, length, bounded in bounded_sides(model, rows, where):
            if bounded.any():
                entries = np.flatnonzero(np.tile(bounded, len(rows)))
                multipliers = placement(entries, size) @ cp.Variable(len(entries), nonneg=True)
                left = left - sign * multipliers
                value = value + block_matrix(length.reshape(1, -1), count) @ multipliers
        gain = cp.Variable(count, nonneg=True)
        constraints.append(squares_below(shrink @ left, dual, gain))
        values.append(value + gain)
    return values, constraints
