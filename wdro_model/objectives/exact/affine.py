"""Losses affine in the data with quadratic costs: conic program, smooth objective, 0/1 decisions.

With f = a(x) + <B(x), xi>, a quadratic ground cost c = |xi - zeta|_W^2 and radius rho,

    sup over the ball of E f = mean_k f(x, xi_k) + sqrt(rho) |B(x)|_{W^-1}           on R^d,

attained by moving every sample by sqrt(rho) W^-1 B / |B|_{W^-1}. On a box each coordinate of the
move is clipped to the support and the multiplier is the root of one monotone equation. Since f is
affine in the data, the worst case is one scenario, the mean of the moved samples, and by Danskin's
theorem the gradient in x is the loss's own gradient there.

At 0/1 decisions x_i^q = x_i. Where each entry of B sees one entry of x, and the dual norm of the
cost is |B|_q with scales, |B(x)|_q^q is linear in x:

    mean f + radius-factor * (w0 + <w, x>)^(1/q),

which is concave in (<c, x>, <w, x>); the maximum for q = inf. With equal weights and choices of
equal size <w, x> is the same for all of them, and so is what the adversary adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.optimize import brentq

from wdro_model.errors import UnknownToCost
from wdro_model.loss.expressions import substitute
from wdro_model.loss.polynomial import affine_parts, dependence
from wdro_model.model import Model, RobustModel
from wdro_model.objectives.empirical import Program, flat_slope
from wdro_model.objectives.exact.counterpart import (
    Counterpart,
    Extremal,
    first_refusal,
    moves_freely,
    needs_affine,
    needs_quadratic_cost,
    unmoved,
)
from wdro_model.objectives.exact.max_affine import MaxAffineOnBox
from wdro_model.objectives.exact.maxima import write_piece
from wdro_model.solvers.objective import Array, Point
from wdro_model.solvers.parametric import BottleneckRisk, ChoiceRisk

CHUNK_ENTRIES = 2**22
"""Entries of the data that are clipped at once (32 MiB)."""
MOST_ENTRIES = 50_000
"""Entries N d of the data up to which a conic program is written on a box; beyond, Frank-Wolfe,
whose steps need no multipliers, is faster."""


@dataclass(frozen=True)
class Shift:
    """The worst-case move of the samples for one slope B."""

    mean_move: Array
    """Mean over the samples of their moves, (d,)."""
    dual: float
    """The multiplier of the transport budget; 0 where the radius does not bind."""


@dataclass
class RobustAffine:
    """The worst-case risk of a loss affine in the data: the loss at the mean of moved samples."""

    model: RobustModel
    convex: bool
    worst_shift: Callable[[RobustModel, Array], Shift]
    formula: str

    def slope(self, x: Array) -> Array:
        """B(x), (d,)."""
        return self.model.loss(x, self.model.mean_row)[1].in_data(np.ones(1))[0]

    def evaluate(self, x: Array, dual: float | None = None) -> Point:
        shift = self.worst_shift(self.model, self.slope(x))
        values, pullback = self.model.loss(x, self.model.mean_row + shift.mean_move)
        return Point(float(values[0]), pullback(np.ones(1)), dual=shift.dual)

    def describe(self) -> str:
        return self.formula


def quadratic_shift(model: RobustModel, slope: Array) -> Shift:
    """The worst shift for a quadratic cost, with moves clipped on a box."""
    bounds = None if model.joint.everywhere else model.joint.bounds
    if model.radius > 0 and slope.any() and bounds is not None and may_leave(slope, *bounds):
        return _clipped_shift(model, slope)
    direction = model.cost.inverse_times(slope)
    size = float(np.sqrt(slope @ direction))
    if model.radius == 0 or size == 0:
        return Shift(np.zeros_like(slope), 0.0)
    root = np.sqrt(model.radius)
    return Shift(root / size * direction, size / (2 * root))


def _clipped_moves(model: RobustModel, slope: Array, price: float, rows: Array) -> Array:
    """Moves clip(B_i / (2 l w_i), lower_i - xi_i, upper_i - xi_i) of rows (n, d) at the price l."""
    assert model.joint.bounds is not None
    lower, upper = model.joint.bounds
    weights = model.cost.coordinate_weights
    moving = (slope != 0) & np.isfinite(weights)
    with np.errstate(divide="ignore", invalid="ignore"):
        wanted = slope / (2 * price * weights)
    return np.where(moving, np.clip(wanted, lower - rows, upper - rows), 0.0)


def _clipped_shift(model: RobustModel, slope: Array) -> Shift:
    """The worst shift where moves end at the bounds of a box: the price spends the budget."""
    weights = np.where(np.isfinite(model.cost.coordinate_weights), model.cost.coordinate_weights, 0)
    size = float(np.sqrt(slope @ model.cost.inverse_times(slope)))
    if size == 0:
        return Shift(np.zeros_like(slope), 0.0)
    step = max(1, CHUNK_ENTRIES // slope.size)

    def spend(inverse: float) -> tuple[float, Array]:
        """Mean transport cost and mean move at the price 1 / inverse."""
        cost, mean = 0.0, np.zeros(slope.size)
        for start in range(0, model.size, step):
            some = slice(start, start + step)
            moves = _clipped_moves(model, slope, 1.0 / inverse, model.rows[some])
            counted = model.shares.subset(some).times(moves)
            cost += float(np.einsum("ki,ki,i->", counted, moves, weights))
            mean += counted.sum(axis=0)
        return cost, mean

    cost, mean = spend(np.inf)
    if np.isfinite(cost) and cost <= model.radius:
        return Shift(mean, 0.0)
    # Clipping only shortens the moves: the budget is spent at 1 / l >= its value on R^d.
    start = high = 2 * np.sqrt(model.radius) / size
    while spend(high)[0] < model.radius:
        high *= 4.0
    inverse = brentq(lambda u: spend(u)[0] - model.radius, start * 0.999, high, xtol=1e-14 * high)
    return Shift(spend(inverse)[1], 1.0 / inverse)


def may_leave(slope: Array, lower: Array, upper: Array) -> bool:
    """Could a move along the slope leave the box?"""
    up, down = (slope > 0) & np.isfinite(upper), (slope < 0) & np.isfinite(lower)
    return bool(np.any(up) or np.any(down))


@dataclass(frozen=True)
class AffineLoss(Counterpart):
    """a(x) + <B(x), xi>, squared or Mahalanobis cost, R^d or a box."""

    is_proven = True
    formula = (
        "mean f + sqrt(radius) * |B(x)| in the dual norm of the cost, moves clipped to the support"
    )

    def refusal(self, model: RobustModel) -> str | None:
        reason = first_refusal(
            model, needs_affine, needs_quadratic_cost("dual_norm", "inverse_times")
        )
        if reason is not None or model.joint.everywhere:
            return reason
        if model.joint.bounds is None:
            return "the support has no coordinate structure"
        if not model.cost.is_separable:
            return "the ground cost couples the coordinates of a box support"
        return None

    def program(self, model: RobustModel) -> Program | None:
        parts = affine_parts(model.expression, model.joint.parameters)
        if not moves_freely(model) and not signs_stay_inside(model, parts.slopes):
            return MaxAffineOnBox().program(model) if is_small(model) else None
        mean = substitute(model.expression, model.mean_values())
        norm = model.cost.dual_norm(flat_slope(model, parts.slopes))
        return Program.if_convex(mean + model.written_root * norm)

    def writes_samples(self, model: RobustModel) -> bool:
        return not moves_freely(model) and is_small(model)

    def has_objective(self, model: RobustModel) -> bool:
        return True

    def objective(self, model: RobustModel) -> RobustAffine:
        clipped = "" if model.joint.everywhere else ", moves clipped to the support"
        formula = f"mean f + sqrt(radius) * |B(x)| (dual norm of the cost){clipped}"
        return RobustAffine(model, model.convex_in_decision, quadratic_shift, formula)

    def value(self, model: RobustModel, x: Array) -> float:
        return self.objective(model).evaluate(x).value

    def extremal(self, model: RobustModel, x: Array) -> Extremal:
        slope, still = self.objective(model).slope(x), unmoved(model)
        shift = quadratic_shift(model, slope)
        moves = shift.mean_move[None]
        bounds = None if model.joint.everywhere else model.joint.bounds
        if bounds is not None and model.radius > 0 and may_leave(slope, *bounds):
            moves = _clipped_moves(model, slope, shift.dual, still.rows)
        return Extremal(still.rows + moves, still.weights, still.source, shift.dual)


def is_small(model: RobustModel) -> bool:
    """Can a multiplier be written out for each entry of the samples?"""
    return model.joint.size * model.joint.dimension <= MOST_ENTRIES


def signs_stay_inside(model: RobustModel, slopes: dict[Any, Any]) -> bool:
    """Do slopes of known sign move the samples only where their supports are unbounded?"""
    if model.joint.bounds is None:
        return False
    lower, upper = model.joint.bounds
    for parameter, where in model.joint.slices.items():
        slope = slopes[parameter]
        up, down = np.all(np.isposinf(upper[where])), np.all(np.isneginf(lower[where]))
        if not ((up and down) or (up and slope.is_nonneg()) or (down and slope.is_nonpos())):
            return False
    return True


# ------------------------------------------------------------------ 0/1 decisions
def linear_risk(model: Model) -> ChoiceRisk | None:
    """The mean loss as <c, x> + c0, if it is that."""
    if model.expression is None or not model.affine_in_data:
        return None
    if not substitute(model.expression, model.mean_values()).is_affine():
        return None
    values, pullback = model.loss(np.zeros(model.loss.dimension), model.mean_row)
    costs = np.asarray(pullback(np.ones(1)), dtype=float)
    return ChoiceRisk(costs, float(values[0]), np.zeros_like(costs), 0.0, lambda _: 0.0)


def risk_at_choices(model: RobustModel) -> ChoiceRisk | BottleneckRisk | None:
    """The worst-case risk at 0/1 decisions; None where it is not of this form."""
    mean = linear_risk(model)
    if mean is None:
        return None
    slopes = slopes_at_choices(model)
    if slopes is None:
        return None
    seen, at_zero, at_one = slopes
    norm = _dual_norm(model, at_zero, at_one)
    if norm is None:
        return None
    scales, q, factor = norm
    with np.errstate(divide="ignore"):
        zero, one = np.abs(at_zero) / scales, np.abs(at_one) / scales
    size = mean.costs.size
    if math.isinf(q):
        if zero.any():
            return None
        heights = np.zeros(size)
        np.maximum.at(heights, seen[seen >= 0], one[seen >= 0])
        return BottleneckRisk(mean.costs, mean.constant, heights, factor)
    change = np.where(seen >= 0, one**q - zero**q, 0.0)
    spread = np.bincount(np.maximum(seen, 0), change, minlength=size)

    def phi(total: float) -> float:
        return factor * total ** (1.0 / q)

    return ChoiceRisk(mean.costs, mean.constant, spread, float((zero**q).sum()), phi)


def _dual_norm(
    model: RobustModel, at_zero: Array, at_one: Array
) -> tuple[Array, float, float] | None:
    """Scales s and q of the dual norm |B / s|_q, and the factor of it in the risk."""
    cost = model.cost
    try:
        if cost.is_quadratic and cost.is_separable:
            bounds = None if model.joint.everywhere else model.joint.bounds
            if not moves_freely(model) and (
                bounds is None or may_leave(at_zero, *bounds) or may_leave(at_one, *bounds)
            ):
                return None
            return np.sqrt(cost.coordinate_weights), 2.0, math.sqrt(model.radius)
        p = cost.exponent
        if cost.is_norm and p is not None and moves_freely(model):
            q = math.inf if p == 1 else 1.0 if math.isinf(p) else p / (p - 1.0)
            return np.asarray(cost.coordinate_scales), q, model.radius
    except UnknownToCost:
        pass
    return None


def slopes_at_choices(model: RobustModel) -> tuple[Array, Array, Array] | None:
    """For each entry of B(x) the coordinate that it sees (-1 for none), and its values at 0 and 1.

    None where B is not affine, or an entry sees several coordinates.
    """
    piece, layout = write_piece(model, model.expression), model.feasible.layout
    pattern = sp.csr_array(dependence(piece.direction, layout.slices, layout.dimension))
    counts = np.diff(pattern.indptr)
    if not piece.direction.is_affine() or np.any(counts > 1):
        return None
    seen = np.full(len(counts), -1)
    seen[counts == 1] = pattern.indices
    at_zero, at_one = (
        piece.evaluate(model, np.full(layout.dimension, value))[1] for value in (0.0, 1.0)
    )
    return seen, at_zero, at_one
