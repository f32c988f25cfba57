"""Norm costs on R^d: a convex loss pays its Lipschitz constant times the radius.

For f convex in the data and c = |xi - zeta|, sup_zeta f(zeta) - l |xi - zeta| is f(xi) if l is at
least the Lipschitz constant of f and infinite otherwise, so that

    sup over the ball of E f = mean_k f(x, xi_k) + radius * max_j |b_j(x)|_dual,

b_j the slopes of f far away: of its pieces, and of those that logistic, huber and log_sum_exp
approach.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss.expressions import recession, substitute
from wdro_model.loss.polynomial import affine_forms, vectorise
from wdro_model.model import RobustModel
from wdro_model.objectives.empirical import Program, empirical_program
from wdro_model.objectives.exact.affine import RobustAffine, Shift
from wdro_model.objectives.exact.counterpart import (
    Extremal,
    first_refusal,
    needs_free_moves,
    needs_norm_cost,
    unmoved,
)
from wdro_model.objectives.exact.decomposition import (
    Group,
    PiecewiseCounterpart,
    all_maxima,
    certain_part,
    groups_of,
)
from wdro_model.objectives.exact.maxima import Maxima, SampleMaxima, largest, write_piece
from wdro_model.solvers.objective import Array

ATTAINED = 1e-7
"""How close to the supremum an extremal distribution must come, relative to the margin."""
SHARES = 24
"""Shares of a sample that are tried, each a quarter of the one before."""


@dataclass(frozen=True)
class LipschitzLoss(PiecewiseCounterpart):
    """Affine, a maximum of affine pieces, logistic or huber in the data; norm cost; R^d."""

    formula = "mean f + radius * the Lipschitz constant max_j |b_j(x)| in the dual norm of the cost"

    def refusal(self, model: RobustModel) -> str | None:
        return first_refusal(
            model,
            needs_norm_cost("dual_norm"),
            needs_free_moves,
            self.needs_pieces,
        )

    def program(self, model: RobustModel) -> Program | None:
        mean, added = mean_loss(model, self.groups(model)), self.remainder(model)
        return None if mean is None or added is None else Program.if_convex(mean + added.expression)

    def remainder(self, model: RobustModel) -> Program | None:
        groups = self.groups(model)
        rates = [rate for group in groups if (rate := lipschitz(model, group)) is not None]
        added = model.written_radius * largest(rates) if rates else cp.Constant(0.0)
        return Program.if_convex(added)

    def maxima(self, model: RobustModel) -> SampleMaxima | None:
        added = self.remainder(model)
        if recession(model.expression) is not model.expression or added is None:
            return None
        return mean_maxima(model, self.groups(model), added.expression)

    def has_objective(self, model: RobustModel) -> bool:
        smooth = model.cost.has_smooth_dual_norm and model.cost.knows("steepest_move")
        return model.affine_in_data and smooth

    def objective(self, model: RobustModel) -> RobustAffine:
        formula = "mean f + radius * |B(x)| (dual norm of the cost)"
        return RobustAffine(model, model.convex_in_decision, norm_shift, formula)

    def value(self, model: RobustModel, x: Array) -> float:
        mean = float(model.shares.total(model.loss.values(x, model.rows)))
        return mean + model.radius * steepest_slope(model, self.groups(model), x)[0]

    def extremal(self, model: RobustModel, x: Array) -> Extremal:
        rate, slope, group = steepest_slope(model, self.groups(model), x)
        if rate == 0:
            return unmoved(model)
        return escaping(model, x, model.cost.steepest_move(slope), rate, group.index)

    def pieces(self, model: RobustModel) -> tuple[Group, ...] | str:
        """The pieces that the loss approaches far away.

        A cost that does not put its dual norm together from parts sees one maximum of all
        coordinates.
        """
        if model.cost.knows("combined") and model.cost.knows("restricted"):
            return groups_of(model, "far", simplify=recession)
        everything = (~np.asarray(model.cost.frozen)).astype(float)[None]
        return groups_of(model, "far", couplings=everything, simplify=recession, vectors=False)


def norm_shift(model: RobustModel, slope: Array) -> Shift:
    """The worst shift of the samples for a norm as the cost: all move along the steepest one."""
    move = model.radius * model.cost.steepest_move(slope)
    return Shift(move, float(model.cost.dual_norms(slope)))


def mean_loss(model: RobustModel, groups: tuple[Group, ...]) -> Any | None:
    """mean_k f(x, xi_k) as a CVXPY expression."""
    if recession(model.expression) is model.expression:
        return mean_of_maxima(model, groups)
    total: Any = cp.Constant(0.0)
    for group in groups:
        held = {p: v[0] for p, v in model.joint.split(model.rows[group.index[:1]]).items()}
        values = {p: held[p] for p in group.held}
        expression = substitute(model.expression, values)
        part = mean_through_forms(model, expression, group)
        if part is None:
            written = empirical_program(model)
            return None if written is None else written.expression
        total = total + part
    return total


def mean_of_maxima(model: RobustModel, groups: tuple[Group, ...]) -> Any:
    """mean_k f(x, xi_k) of a loss that is the sum of its maxima."""
    total = certain_part(model, groups)
    for maxima in all_maxima(groups):
        total = total + maxima.mean_of_largest(
            maxima.values(maxima.rows(model)), maxima.shares(model)
        )
    return total


def mean_maxima(model: RobustModel, groups: tuple[Group, ...], added: Any) -> SampleMaxima | None:
    """mean_k f(x, xi_k) of a loss that is the sum of its maxima, and something added to it."""
    return SampleMaxima.if_affine(certain_part(model, groups) + added, (), all_maxima(groups))


def mean_through_forms(model: RobustModel, expression: Any, group: Group) -> Any | None:
    """sum_k p_k h(x, u_k), u scalar forms affine in the data and h made of entrywise atoms."""
    forms = affine_forms(expression, model.joint.parameters)
    if forms is None or any(form.expression.size != 1 for form in forms.forms):
        return None
    rows = model.rows if len(group.index) == model.size else model.rows[group.index]
    vectors = {
        form.placeholder: write_piece(model, form.expression).values(rows) for form in forms.forms
    }
    outer = vectorise(forms.outer, vectors) if vectors else forms.outer
    return None if outer is None else model.shares.subset(group.index).expression(outer)


def lipschitz(model: RobustModel, group: Group) -> Any | None:
    """max |b| over the choices of a piece in every maximum, in the dual norm of the cost."""
    rates = [largest_norms(model, maxima) for maxima in group.maxima if maxima.moves.any()]
    if not rates:
        return None
    return rates[0] if len(rates) == 1 and rates[0].size == 1 else model.cost.combined(rates)


def largest_norms(model: RobustModel, maxima: Maxima) -> Any:
    """The largest dual norm of a slope: one number, or one for each of m maxima, (m,)."""
    if maxima.count == 1:
        norms = []
        for _, _, slope in maxima.longest_directions():  # the others cannot be the steepest
            cost, moving = maxima.cost_on(model.cost, slope)
            norms.append(cost.dual_norm(moving))
        return largest(norms) if norms else cp.Constant(0.0)
    weights = 1.0 / model.cost.coordinate_scales[maxima.moving[:, 0]]
    slopes = [slope for _, _, slope in maxima.longest_directions()]
    if not any(slope.variables() for slope in slopes):
        return cp.Constant(weights * np.abs([slope.value for slope in slopes]).max(axis=0))
    return cp.multiply(weights, largest([cp.abs(slope) for slope in slopes]))


def steepest_slope(
    model: RobustModel, groups: tuple[Group, ...], x: Array
) -> tuple[float, Array, Group]:
    """The Lipschitz constant at x, a slope that attains it, and the group that has it."""
    best: tuple[float, Array, Group] = (-1.0, np.zeros(model.cost.dimension), groups[0])
    for group in groups:
        slope = np.zeros(model.cost.dimension)
        for maxima in group.maxima:
            slope += maxima.evaluate(model, x).steepest_slope(model.cost)
        rate = float(model.cost.dual_norms(slope))
        if rate > best[0]:
            best = (rate, slope, group)
    return best


def escaping(model: RobustModel, x: Array, move: Array, rate: float, movable: Array) -> Extremal:
    """Samples moved along one direction, as few of them and as far as the supremum asks for."""
    still = unmoved(model)
    shares, radius = still.weights, model.radius
    before = model.loss.values(x, still.rows).copy()
    mean = float(model.shares.total(before))
    target = mean + radius * rate
    tolerance = ATTAINED * radius * rate + 1e-14 * abs(target)
    everyone = still.rows + radius * move
    if target - float(model.shares.total(model.loss.values(x, everyone))) <= tolerance:
        return Extremal(everyone, still.weights, still.source, rate)
    # A share q of sample k moves radius / (q p_k): the smaller it is, the nearer to the supremum.
    share, chosen = 1.0, movable[0]
    for share in 4.0 ** -np.arange(SHARES):
        carried = share * shares[movable]
        far = still.rows[movable] + (radius / carried)[:, None] * move
        gains = carried * (model.loss.values(x, far) - before[movable])
        chosen = movable[int(np.argmax(gains))]
        if target - mean - float(gains.max()) <= tolerance:
            break
    rows, weights, source = still.rows.copy(), shares.copy(), still.source
    weights[chosen] = (1.0 - share) * shares[chosen]
    moved = rows[chosen] + radius / (share * shares[chosen]) * move
    keep = weights > 0
    return Extremal(
        np.vstack([rows[keep], moved]),
        np.append(weights[keep], share * shares[chosen]),
        np.append(source[keep], chosen),
        rate,
    )
