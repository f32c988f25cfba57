"""Losses affine in the data with quadratic costs: conic program, smooth objective, 0/1 values.

With f = a(x) + <B(x), xi>, a quadratic ground cost c = |xi - zeta|_W^2 and radius rho,

    sup over the ball of E f = mean_k f(x, xi_k) + sqrt(rho) |B(x)|_{W^-1}           on R^d,

attained by moving every sample by sqrt(rho) W^-1 B / |B|_{W^-1}. On a box each coordinate of the
move is clipped to the support and the multiplier is the root of one monotone equation. Since f is
affine in the data, the worst case is one scenario, the mean of the moved samples, and by Danskin's
theorem the gradient in x is the loss's own gradient there. With a norm as the cost and the dual
norm smooth, it is radius |B(x)|_dual that is added.

A quadratic form whose matrix is uncertain is one of them, B(x) = x x', which CVXPY does not see to
be convex: its worst case adds to the diagonal of the matrix.

With f = a(x) + <B(x), xi>, each entry of B seeing one entry of x, and a cost whose dual norm is
|B|_q with scales, x_i^q = x_i makes |B(x)|_q^q linear at 0/1 points:

    mean f + radius-factor * (w0 + <w, x>)^(1/q),

which is concave in (<c, x>, <w, x>); the maximum for q = inf. With equal weights and choices of
equal size <w, x> is the same for all of them, and so is what the adversary adds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from scipy.optimize import brentq

from wdro_model.errors import UnknownToCost
from wdro_model.loss.atoms.quadratic import QuadraticForm
from wdro_model.loss.expressions import substitute
from wdro_model.loss.polynomial import affine_parts
from wdro_model.model import Model, RobustModel
from wdro_model.objectives.convexity import (
    LARGEST,
    QuadraticTerm,
    has_one_weight,
    is_positive_semidefinite,
    quadratic_term,
)
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
from wdro_model.solvers.objective import Array, Point
from wdro_model.solvers.parametric import BottleneckRisk, ChoiceRisk

CHUNK_ENTRIES = 2**22


@dataclass(frozen=True)
class Shift:
    """The worst-case move of the samples for one slope B."""

    mean_move: Array
    """Mean over the samples of their moves, (d,)."""
    dual: float
    """The multiplier of the transport budget; 0 where the radius does not bind."""


class AtMovedMean(ABC):
    """A worst-case risk that is the loss at the mean of the moved samples."""

    def __init__(self, model: RobustModel, convex: bool) -> None:
        self.model, self.joint, self.cost = model, model.joint, model.cost
        self.radius, self.size = model.radius, model.joint.size
        self.convex = convex

    @abstractmethod
    def worst_shift(self, slope: Array) -> Shift:
        """The mean of the worst-case moves for f = a + <slope, xi>, and its multiplier."""

    @abstractmethod
    def describe(self) -> str:
        """The formula."""

    def slope(self, x: Array) -> Array:
        """B(x), (d,)."""
        return self.model.loss(x, self.joint.mean[None])[1].in_data(np.ones(1))[0]

    def evaluate(self, x: Array, dual: float | None = None) -> Point:
        shift = self.worst_shift(self.slope(x))
        values, pullback = self.model.loss(x, (self.joint.mean + shift.mean_move)[None])
        return Point(float(values[0]), pullback(np.ones(1)), dual=shift.dual)


class RobustAffine(AtMovedMean):
    """mean f + sqrt(radius) |B(x)|_dual for a quadratic cost, with moves clipped on a box."""

    def extremal(self, x: Array) -> Extremal:
        """Every sample moved by the worst shift, clipped on boxes."""
        slope = self.slope(x)
        shift, still = self.worst_shift(slope), unmoved(self.model)
        moves = self._moves(slope, shift)
        return Extremal(still.rows + moves, still.weights, still.source, shift.dual)

    def _moves(self, slope: Array, shift: Shift) -> Array:
        """The move of each sample, (N, d), or one that all of them share, (1, d)."""
        bounds = None if self.joint.everywhere else self.joint.bounds
        if bounds is None or self.radius == 0 or not may_leave(slope, *bounds):
            return shift.mean_move[None]
        weights = self.cost.coordinate_weights
        active = (slope != 0) & np.isfinite(weights)
        wanted = np.where(slope > 0, np.inf, -np.inf)
        if shift.dual > 0:
            wanted = slope / (2 * shift.dual * weights)
        rows = self.joint.matrix
        clipped = np.clip(np.where(active, wanted, 0.0), bounds[0] - rows, bounds[1] - rows)
        return np.where(active, clipped, 0.0)

    def worst_shift(self, slope: Array) -> Shift:
        if self.radius == 0 or not slope.any():
            return Shift(np.zeros_like(slope), 0.0)
        bounds = None if self.joint.everywhere else self.joint.bounds
        if bounds is None or not may_leave(slope, *bounds):
            direction = self.cost.inverse_times(slope)
            size = float(np.sqrt(slope @ direction))
            if size == 0:
                return Shift(np.zeros_like(slope), 0.0)
            return Shift(np.sqrt(self.radius) / size * direction, size / (2 * np.sqrt(self.radius)))
        return self._clipped_shift(slope, *bounds)

    def _clipped_shift(self, slope: Array, lower: Array, upper: Array) -> Shift:
        """Moves clip(B_i / (2 l w_i), lower_i - xi_i, upper_i - xi_i), l from the budget."""
        weights = self.cost.coordinate_weights
        active = (slope != 0) & np.isfinite(weights)
        if not active.any():
            return Shift(np.zeros_like(slope), 0.0)
        step = max(1, CHUNK_ENTRIES // slope.size)
        rows, shares = self.joint.matrix, self.joint.shares

        def spend(inverse: float) -> tuple[float, Array]:
            """Mean transport cost and mean move at l = 1 / inverse."""
            cost, move = 0.0, np.zeros(slope.size)
            wanted = np.where(slope > 0, np.inf, -np.inf)[active]
            if np.isfinite(inverse):
                wanted = inverse * slope[active] / (2 * weights[active])
            for start in range(0, self.size, step):
                some = slice(start, start + step)
                xi = rows[some][:, active]
                delta = np.clip(wanted, lower[active] - xi, upper[active] - xi)
                counted = shares.subset(some).multiple(delta)
                cost += float(np.einsum("ki,ki,i->", counted, delta, weights[active]))
                move[active] += counted.sum(axis=0)
            return cost / self.size, move / self.size

        free = self.cost.inverse_times(slope)
        start = 2 * np.sqrt(self.radius) / float(np.sqrt(slope @ free))
        # Clipping only shortens the moves: the budget is spent at 1/l >= its value on R^d.
        towards = np.where(slope > 0, upper, lower)[active]
        if np.isfinite(towards).all():
            cost, move = spend(np.inf)
            if cost <= self.radius:
                return Shift(move, 0.0)
        high = start
        while spend(high)[0] < self.radius:
            high *= 4.0
        inverse = brentq(
            lambda u: spend(u)[0] - self.radius, start * 0.999, high, xtol=1e-14 * high
        )
        return Shift(spend(inverse)[1], 1.0 / inverse)

    def describe(self) -> str:
        where = "" if self.joint.everywhere else ", moves clipped to the support"
        return f"mean f + sqrt(radius) * |B(x)| (dual norm of the cost){where}"


class RobustAffineNorm(AtMovedMean):
    """mean f + radius |B(x)|_dual, for a norm as the cost and on R^d."""

    def worst_shift(self, slope: Array) -> Shift:
        move = self.radius * self.cost.steepest_move(slope)
        return Shift(move, float(self.cost.dual_norms(slope)))

    def describe(self) -> str:
        return "mean f + radius * |B(x)| (dual norm of the cost)"


def may_leave(slope: Array, lower: Array, upper: Array) -> bool:
    """Could a move along the slope leave the box?"""
    return bool(
        np.any((slope > 0) & np.isfinite(upper)) or np.any((slope < 0) & np.isfinite(lower))
    )


# ------------------------------
# A loss that is affine in the data, with a quadratic cost: every sample moves the same way


MOST_ENTRIES = 50_000
"""On a box, a conic program is written for at most so many entries N d of the data."""


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
        if reason is not None:
            return reason
        if not model.joint.everywhere and model.joint.bounds is None:
            return "the support has no coordinate structure"
        if not model.joint.everywhere and not model.cost.is_separable:
            return "the ground cost couples the coordinates of a box support"
        return None

    def program(self, model: RobustModel) -> Program | None:
        parts = affine_parts(model.expression, model.joint.parameters)
        if not moves_freely(model) and not signs_stay_inside(model, parts.slopes):
            # Large programs are left to Frank-Wolfe, whose steps need no multipliers.
            return MaxAffineOnBox().program(model) if is_small(model) else None
        mean = substitute(model.expression, model.mean_values())
        norm = model.cost.dual_norm(flat_slope(model, parts.slopes))
        return Program.if_convex(mean + model.written_root * norm)

    def writes_samples(self, model: RobustModel) -> bool:
        return not moves_freely(model) and is_small(model)

    def has_objective(self, model: RobustModel) -> bool:
        return True

    def objective(self, model: RobustModel) -> RobustAffine:
        return RobustAffine(model, model.convex_in_decision)

    def value(self, model: RobustModel, x: Array) -> float:
        return RobustAffine(model, convex=False).evaluate(x).value

    def extremal(self, model: RobustModel, x: Array) -> Extremal:
        return RobustAffine(model, convex=False).extremal(x)


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


# ------------------------------------------------------------------ quadratic forms
@dataclass(frozen=True)
class QuadraticFormLoss(AffineLoss):
    """a x' Xi x + g(x), squared cost with one weight w, R^d (or orthant, for x of one sign)."""

    formula = "a x' (mean + sqrt(radius/w) I) x + g(x)"

    def refusal(self, model: RobustModel) -> str | None:
        reason = first_refusal(
            model, needs_affine, needs_quadratic_cost("inverse_times"), needs_quadratic_form
        )
        if reason is not None:
            return reason
        if not has_one_weight(model):
            return "the cost does not weigh all entries of the matrix alike"
        if not moves_stay_inside(model):
            return "the worst-case move may leave the support"
        return None

    def program(self, model: RobustModel) -> Program | None:
        matrix, term = worst_matrix(model), known_term(model)
        if not is_positive_semidefinite(matrix):
            return None
        # The shift makes the form convex up to rounding; CVXPY need not look at it again.
        quadratic = cp.quad_form(term.variable, cp.psd_wrap(term.factor * matrix))
        return Program.if_convex(quadratic if term.rest is None else quadratic + term.rest)

    def writes_samples(self, model: RobustModel) -> bool:
        return False

    def objective(self, model: RobustModel) -> RobustAffine:
        rest = known_term(model).rest
        convex = model.convex_in_decision or (
            model.loss.dimension <= LARGEST
            and is_positive_semidefinite(worst_matrix(model))
            and (rest is None or rest.is_convex())
        )
        return RobustAffine(model, convex)


def needs_quadratic_form(model: RobustModel) -> str | None:
    # A loss without the atom is not looked at any further.
    if QuadraticForm not in model.expression.atoms() or quadratic_term(model) is None:
        return "the loss is not a multiple of quadratic_form(x, Xi) plus terms without data"
    return None


def known_term(model: RobustModel) -> QuadraticTerm:
    """The quadratic term of a loss that has one."""
    term = quadratic_term(model)
    assert term is not None
    return term


def worst_matrix(model: RobustModel) -> Array:
    """mean + sqrt(radius/w) I, symmetrised."""
    (mean,) = model.mean_values().values()
    weight = float(model.cost.coordinate_weights[0])
    shifted = mean + np.sqrt(model.radius / weight) * np.eye(len(mean))
    return (shifted + shifted.T) / 2


def moves_stay_inside(model: RobustModel) -> bool:
    """For B = x x': is the support R^d, or unbounded above with x of one sign?"""
    if model.joint.everywhere:
        return True
    if model.joint.bounds is None:
        return False
    lower, upper = model.feasible.bounds()
    where = model.feasible.layout.slices[known_term(model).variable]
    one_sign = bool(np.all(lower[where] >= 0) or np.all(upper[where] <= 0))
    return one_sign and bool(np.all(np.isposinf(model.joint.bounds[1])))


# ------------------------------
# The worst-case risk at 0/1 decisions of a loss that is affine in the data and in the decision


PROBES = 3
"""Random points at which entries that should see one coordinate are tried."""
CLOSE = 1e-9


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
    slopes = _slopes_at_choices(model)
    if slopes is None:
        return None
    seen, at_zero, at_one = slopes
    known = _dual(model, at_zero, at_one)
    if known is None:
        return None
    scales, q, factor = known
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


def _dual(model: RobustModel, at_zero: Array, at_one: Array) -> tuple[Array, float, float] | None:
    """Scales s and q of the dual norm |B / s|_q, and what the radius multiplies it by."""
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


def _slopes_at_choices(model: RobustModel) -> tuple[Array, Array, Array] | None:
    """For each entry of B(x) the coordinate that it sees (-1 for none), and its values at 0 and 1.

    The coordinate is read off in binary, from B at the points whose entries are the binary digits
    of their positions; random points would give away an entry that sees more than one.
    """
    size, mean = model.loss.dimension, model.mean_row

    def slope(x: Array) -> Array:
        return np.asarray(model.loss(x, mean)[1].in_data(np.ones(1))[0], dtype=float)

    at_zero, at_one = slope(np.zeros(size)), slope(np.ones(size))
    change = at_one - at_zero
    scale = CLOSE * max(float(np.abs(at_one).max(initial=0.0)), 1e-300)
    moving = np.abs(change) > scale
    seen = np.zeros(change.size, dtype=np.int64)
    positions = np.arange(size)
    for digit in range(max(1, int(size - 1).bit_length())):
        bits = (positions >> digit) & 1
        on = np.abs(slope(bits.astype(float)) - at_zero) > 0.5 * np.abs(change)
        seen |= on.astype(np.int64) << digit
    seen = np.where(moving, seen, -1)
    if seen.max(initial=-1) >= size:
        return None
    rng = np.random.default_rng(0)
    for k in range(2 * PROBES):
        x = rng.uniform(size=size) if k % 2 else rng.integers(0, 2, size).astype(float)
        expected = at_zero + np.where(moving, change * x[np.maximum(seen, 0)], 0.0)
        if np.abs(slope(x) - expected).max(initial=0.0) > 10 * scale:
            return None
    return seen, at_zero, at_one
