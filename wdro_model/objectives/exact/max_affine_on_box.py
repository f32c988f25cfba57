"""Maxima of affine pieces on a box, with a cost that adds up over the coordinates.

The adversary then moves every coordinate on its own. For one sample, one piece and the cost
|delta_i| weighed by w_i, a coordinate goes to its bound or stays,

    sup { b delta - l w |delta| : lo <= xi + delta <= hi }
        = (hi - xi) (b - l w)_+ + (xi - lo) (-b - l w)_+,

with parts (.)_+ that all samples share. A squared cost needs multipliers of both bounds for every
sample, and a second-order cone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.model import RobustModel
from wdro_model.objectives.empirical import Program
from wdro_model.objectives.exact.best_replies import replies_on_box, room
from wdro_model.objectives.exact.coordinate_lines import Lines, along
from wdro_model.objectives.exact.counterpart import (
    Extremal,
    first_refusal,
    needs_box,
    needs_conic_cost,
    needs_homogeneous_cost,
    needs_separable_cost,
)
from wdro_model.objectives.exact.decomposition import Group, Part, PiecewiseCounterpart, groups_of
from wdro_model.objectives.exact.max_affine_everywhere import Values, dual_program, squares_below
from wdro_model.objectives.exact.max_affine_on_polyhedron import (
    too_many_multipliers,
    values_on_polyhedron,
)
from wdro_model.objectives.exact.polyhedral_support import polyhedron
from wdro_model.objectives.exact.transport_price import best_price
from wdro_model.solvers.objective import Array


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
