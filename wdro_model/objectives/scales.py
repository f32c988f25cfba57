"""Scales of the smoothed objective: sigma, epsilon, and a bound on the dual variable.

To first order the budget adds r G to the mean loss, r being the distance of the ball and G the root
mean square of |grad_xi f(x, xi_k)| in the dual norm of the cost. That is all for a loss affine in
the data. Other losses may be flat at the samples and steep farther out, as the logistic loss of a
decision that separates the data, and a support may end before the budget is spent. So the loss is
evaluated along the steepest move of each sample at several distances, inside the support, and the
budget is spent on the moves with the largest gain:

    max over shares q_kj >= 0 of mean_k sum_j q_kj gain_kj,   sum_j q_kj <= 1,
    mean_k sum_j q_kj cost_kj <= radius.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.loss.batched import FlatLoss
from wdro_model.model import RobustModel
from wdro_model.objectives.integration.inner_integral import Stream
from wdro_model.objectives.integration.tilted import Gaussian
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.costs.budgets import small_moves, typical_price
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.samples import SampleShares, one_if_equal

KAPPA = 0.05
"""Smoothing relative to the exact margin: 0.05 keeps about 0.94 of it in every dimension."""


@dataclass(frozen=True)
class Limits:
    """Effort of the measurements."""

    samples: int = 200
    """Samples whose slopes and moves are evaluated, at most."""
    entries: int = 2**20
    """Entries of moved data that exist at once."""
    together: int = 2**17
    """Entries that are moved to several distances at once, which is faster than one by one."""
    halvings: int = 60
    """Halvings of the bracket of the price."""


LIMITS = Limits()
DISTANCES = 2.0 ** (np.arange(-8, 33) / 4)
"""Lengths of moves, in distances of the ball: few samples may move far where others stay."""


def adversary_gain(model: RobustModel, x: Array) -> float:
    """The gain of the mean loss that the budget buys at a decision.

    The first-order value, or the gain of the moves that were evaluated if that is more.
    """
    joint, cost = model.joint, model.cost
    count = max(1, min(LIMITS.samples, LIMITS.entries // max(1, joint.dimension)))
    # All samples have the same slope if the loss is affine: the mean sample stands for all.
    some = slice(None, None, -(-joint.size // count))
    rows = model.mean_row if model.affine_in_data else joint.matrix[some]
    mean = SampleShares.full(1).total if model.affine_in_data else joint.shares_of(some).total
    slopes = np.array(model.loss(x, rows)[1].in_data(np.ones(len(rows))))
    slopes[:, cost.frozen] = 0.0
    order, scale = small_moves(cost, joint)
    reach = float((model.radius / scale) ** (1 / order))
    first = reach * float(np.sqrt(mean(slope_norms(cost, slopes) ** 2)))
    if joint.bounds is not None:
        lower, upper = joint.bounds
        with np.errstate(invalid="ignore"):
            across = slopes * np.where(slopes > 0, upper - rows, lower - rows)
        first = min(first, float(mean(np.where(slopes == 0, 0.0, across).sum(axis=1))))
    if model.affine_in_data:
        return first
    moves = reach * steepest_moves(model, x, rows, slopes, order)
    return max(first, affordable_gain(*move_gains(model, x, rows, moves), model.radius, mean))


def slope_norms(cost: BoundCost, slopes: Array) -> Array:
    """The dual norms of slopes (K, d), Euclidean for a cost without one."""
    return cost.dual_norms(slopes) if cost.knows("dual_norms") else np.linalg.norm(slopes, axis=1)


def steepest_moves(model: RobustModel, x: Array, rows: Array, slopes: Array, order: float) -> Array:
    """The moves (K, d) of length 1 along which the loss rises most; 0 where it is flat all around.

    A loss that is flat at a sample has slopes farther out, as a hinge does.
    """
    slopes = np.array(slopes)
    aside = np.random.default_rng(0).standard_normal(rows.shape)
    aside[:, model.cost.frozen] = 0.0
    costs = np.clip(model.cost(rows, rows + aside), 1e-300, 1e300)
    aside *= ((model.radius / costs) ** (1 / order))[:, None]
    for distance in DISTANCES[8::4]:
        for sign in (1.0, -1.0):
            flat = np.flatnonzero(~slopes.any(axis=1))
            if not len(flat):
                break
            there = moved_rows(model, rows[flat], sign * distance * aside[flat])
            seen = slopes_at(model, x, there)
            if seen is not None:
                slopes[flat] = np.where(model.cost.frozen, 0.0, seen)
    if model.cost.knows("steepest_move"):
        return np.array([model.cost.steepest_move(slope) for slope in slopes])
    return slopes / np.maximum(np.linalg.norm(slopes, axis=1), 1e-300)[:, None]


def move_gains(model: RobustModel, x: Array, rows: Array, moves: Array) -> tuple[Array, Array]:
    """Gains and costs (K, J) of moves at all distances; (0, 0) for a move without a gain."""
    here = model.loss.values(x, rows)
    gains, costs = np.zeros((2, len(rows), len(DISTANCES)))
    several = max(1, LIMITS.together // rows.size)
    groups = [np.arange(len(DISTANCES))[j : j + several] for j in range(0, len(DISTANCES), several)]
    while groups:
        some = groups.pop(0)
        steps = DISTANCES[some][:, None, None] * moves
        origins = np.broadcast_to(rows, steps.shape).reshape(-1, rows.shape[1])
        there = moved_rows(model, origins, steps.reshape(origins.shape))
        try:
            with np.errstate(all="ignore"):
                gain = model.loss.values(x, there) - np.tile(here, len(some))
        except (ArithmeticError, ValueError):
            if len(some) == 1:
                break  # beyond the domain of the loss
            groups = [*some[:, None], *groups]
            continue
        cost = model.cost(origins, there)
        better = (gain > 0) & (cost > 0) & np.isfinite(cost)
        if model.joint.bounds is None:
            better &= model.joint.contains(there)
        for table, values in ((gains, gain), (costs, cost)):
            table[:, some] = np.where(better, values, 0.0).reshape(len(some), -1).T
    return gains, costs


def affordable_gain(
    gains: Array, costs: Array, radius: float, mean: Callable[[Array], Any]
) -> float:
    """The largest mean gain at a mean cost of at most the radius, by bisection on the price."""
    low, high = 0.0, float(np.divide(gains, costs, out=np.zeros_like(gains), where=costs > 0).max())
    samples = np.arange(len(gains))

    def bought(price: float) -> tuple[float, float]:
        best = np.argmax(gains - price * costs, axis=1)
        gain, cost = gains[samples, best], costs[samples, best]
        return float(mean(gain - price * cost)), float(mean(cost))

    profit, spent = bought(0.0)
    if spent <= radius:
        return profit
    for _ in range(LIMITS.halvings):
        price = 0.5 * (low + high)
        low, high = (price, high) if bought(price)[1] > radius else (low, price)
    return high * radius + bought(high)[0]


def moved_rows(model: RobustModel, rows: Array, moves: Array) -> Array:
    """The rows after their moves, clipped to a support that is a box."""
    there = rows + moves
    return there if model.joint.bounds is None else np.clip(there, *model.joint.bounds)


def slopes_at(model: RobustModel, x: Array, rows: Array) -> Array | None:
    """Gradients of the loss in the data (K, d); None where it is not defined at all of them."""
    try:
        with np.errstate(all="ignore"):
            slopes = model.loss(x, rows)[1].in_data(np.ones(len(rows)))
    except (ArithmeticError, ValueError):
        return None
    return np.where(np.isfinite(slopes), slopes, 0.0)


# ------------------------------------------------------------------ defaults
def default_sigma(cost: BoundCost, radius: float, joint: JointSamples) -> float | Array:
    """The reference's standard deviations: E c = radius / 2, shared equally by the coordinates.

    No wider than the support: beyond that the reference is uniform, and moves cost no more.
    """
    sigma = cost.default_sigma(radius, joint)
    width = joint.width
    if width is None or not np.any((width > 0) & (width < sigma)):
        return sigma
    return one_if_equal(np.minimum(sigma, np.where(width > 0, width, np.inf)))


def gradient_size(loss: FlatLoss, joint: JointSamples, cost: BoundCost, x: Array) -> float:
    """Root mean square over the samples of |grad_xi f(x, xi_k)|, in the dual norm of the cost."""
    some = slice(None, None, -(-joint.size // LIMITS.samples))
    rows = joint.matrix[some]
    slopes = loss(x, rows)[1].in_data(np.ones(len(rows)))
    return float(np.sqrt(joint.shares_of(some).total(slope_norms(cost, slopes) ** 2)))


def default_epsilon(margin: float, cost: BoundCost) -> float:
    """epsilon = kappa margin / (2 d): F then keeps a fixed fraction of what the adversary gains."""
    free = max(1, cost.dimension - int(cost.frozen.sum()))
    return float(KAPPA * margin / (2 * free))


def typical_dual(gradient: float, radius: float, cost: BoundCost, joint: JointSamples) -> float:
    """The multiplier of the budget for a loss that is linear in the data."""
    return typical_price(cost, max(gradient, 1e-12), radius, joint)


@dataclass(frozen=True)
class DualScale:
    """The paper's calibration of the dual's upper bound."""

    bound: float
    """lambda_max = dispersion / (2 mean cost)."""
    dispersion: float
    """Mean over samples of max_s f - min_s f."""
    mean_cost: float


def calibrate_dual(
    integration: Gaussian,
    minimize: Callable[[Array], Array],
    start: Array,
    stream: Stream,
) -> DualScale:
    """The paper's Algorithm 3: lambda_max so that lambda_max c has the scale of the losses.

    For each sample, S draws and a vertex x_k of the feasible set that is optimal for one more
    draw zeta. The paper writes x_k = LMO(zeta); where the data is not a cost vector of the
    decision, the oracle is called with grad_x f(x_0, zeta).
    """
    spreads, costs = [], []
    for k in range(integration.joint.size):
        drawn = integration.draw_many(np.array([k]), stream, integration.draws + 1)
        vertex = minimize(integration.loss(start, drawn.rows[-1:])[1](np.ones(1)))
        values = integration.loss.values(vertex, drawn.rows[:-1])
        spreads.append(float(values.max() - values.min()))
        costs.append(float(drawn.costs[:, :-1].mean()))
    mean = integration.joint.shares.total
    dispersion, mean_cost = (float(mean(np.array(part))) for part in (spreads, costs))
    bound = dispersion / (2 * mean_cost) if mean_cost > 0 else 0.0
    return DualScale(bound, dispersion, mean_cost)
