"""A bad distribution of the ball, by ascent in the data: a lower bound on the worst-case risk.

For a price l of transport each sample ascends f(x, zeta) - l c(xi_k, zeta) inside the support. A
bisection on the price brings the mean cost to the radius, and moves that still cost too much are
shortened. Every distribution on the way is in the ball: the largest expected loss among them is a
lower bound, and equals the worst-case risk if f(x, .) - l c is concave.

For a cost without a gradient, `push` moves the samples along the slopes of the loss until the
budget is spent; it needs only values of the cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdro_model.errors import UnknownToCost
from wdro_model.model import RobustModel
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs.budgets import shorten_to_budget, small_moves, typical_price


@dataclass(frozen=True)
class Limits:
    """Effort of the ascent."""

    entries: int = 2**18
    """Entries of the data that are moved, at most."""
    prices: int = 12
    """Prices of transport that are tried, at most."""
    stale: int = 3
    """Prices in a row without a gain after which the search ends."""
    gain: float = 1e-5
    """Relative gain of the expected loss below which a price counts as without a gain."""
    close: float = 1.01
    """Ratio of the ends of the price bracket at which the search ends."""
    overshoot: float = 1.0005
    """Factor by which a guess of the price goes beyond the root, so that both ends of the bracket
    move."""
    steps: int = 30
    """Ascent steps of the samples at one price, at most."""
    step_gain: float = 1e-7
    """Mean gain of a step, relative to the value, below which the ascent ends."""
    pushes: int = 8
    """Moves along slopes, each with the slopes at the points of the move before."""
    doublings: int = 60
    """Doublings, or halvings, of a move."""
    differences: int = 200
    """Coordinates in which a dual norm is differentiated for the steepest move, at most."""


LIMITS = Limits()
ROUNDING = 1e-9
"""Relative excess over the radius that counts as rounding."""


@dataclass(frozen=True)
class Climbed:
    """A distribution of the ball: where the samples ended, and its expected loss."""

    rows: Array
    """(N, d), inside the support."""
    expected_loss: float
    transport_cost: float
    """At most the radius."""


def climb(
    model: RobustModel, x: Array, dual: float | None = None, likely: Array | None = None
) -> Climbed | None:
    """The worst of the distributions that the ascent visits; None if the ascent does not apply.

    dual: a first guess of the price.
    likely: scenarios (N, d) of a smoothed adversary as a first candidate, maybe over the budget.
    """
    can_climb = model.cost.knows("gradient") and model.joint.bounds is not None
    if not can_climb or model.radius <= 0 or model.rows.size > LIMITS.entries:
        return None
    mean = model.shares.total
    try:
        slopes = model.loss(x, model.rows)[1].in_data(np.ones(len(model.rows)))
    except NotImplementedError:
        return None  # a callable loss without gradients in the data
    steep = float(np.sqrt(mean(np.sum(slopes**2, axis=1))))
    price = dual or typical_price(model.cost, steep, model.radius, model.joint)
    if not np.isfinite(price) or price <= 0:
        return None
    low, high, rows = 0.0, np.inf, model.rows
    best = Climbed(rows, float(mean(model.loss.values(x, rows))), 0.0)
    best = best if likely is None else _better(model, x, best, likely)
    stale = 0
    for _ in range(LIMITS.prices):
        rows = _ascend(model, x, price, rows)
        last, best = best, _better(model, x, best, rows)
        little = LIMITS.gain * abs(best.expected_loss)
        stale = 0 if best.expected_loss > last.expected_loss + little else stale + 1
        if stale == LIMITS.stale:
            break
        spent = _mean_cost(model, rows)
        low, high = (price, high) if spent > model.radius else (low, price)
        if low > 0 and high < LIMITS.close * low:
            break
        price = _next_price(price, spent / model.radius, low, high)
    return best


def _better(model: RobustModel, x: Array, best: Climbed, rows: Array) -> Climbed:
    """The rows with moves shortened to the budget if that is worse than `best`, else `best`."""
    moved = shorten_to_budget(
        model.cost, model.rows, rows, model.radius, model.shares.probabilities
    )
    losses, cost = model.loss.values(x, moved), _mean_cost(model, moved)
    expected = float(model.shares.total(losses))
    in_the_ball = cost <= model.radius * (1.0 + ROUNDING)
    if in_the_ball and np.isfinite(losses).all() and expected > best.expected_loss:
        return Climbed(moved, expected, cost)
    return best


def _next_price(price: float, excess: float, low: float, high: float) -> float:
    """The next price inside the bracket: the root if the cost of moves falls like 1/price^2.

    excess: the cost at this price divided by the radius.
    """
    over = LIMITS.overshoot
    guess = price * np.sqrt(excess) * (over if excess > 1 else 1 / over)
    if np.isinf(high):
        return float(min(max(guess, over * price), 4 * price))
    if low < guess < high:
        return float(guess)
    return float(np.sqrt(max(low, high / 16) * high))


def push(model: RobustModel, x: Array) -> Climbed | None:
    """The samples moved along the slopes of the loss until the budget is spent; None if impossible.

    With slopes g_k and a cost of order p the best moves to first order are |g_k|^(1/(p-1)) times
    the steepest move of g_k. The step is repeated with the slopes at the moved samples.
    """
    if model.radius <= 0:
        return None
    best: Climbed | None = None
    points, mean = model.rows, model.shares.total
    for _ in range(LIMITS.pushes if model.rows.size <= LIMITS.entries else 1):
        try:
            with np.errstate(all="ignore"):
                slopes = model.loss(x, points)[1].in_data(np.ones(len(points)))
                tried = [_spend_budget(model, moves) for moves in _first_order_moves(model, slopes)]
                losses = [float(mean(model.loss.values(x, rows))) for rows in tried]
        except (NotImplementedError, FloatingPointError):
            break
        valid = [
            k for k, rows in enumerate(tried) if np.isfinite(losses[k]) and _in_ball(model, rows)
        ]
        if not valid:
            break
        top = max(valid, key=lambda k: losses[k])
        if best is not None and losses[top] <= best.expected_loss:
            break
        points = tried[top]
        best = Climbed(points, losses[top], _mean_cost(model, points))
    return best


def _first_order_moves(model: RobustModel, slopes: Array) -> list[Array]:
    """Candidate moves (N, d) that gain most to first order: of all samples, or of the steepest."""
    slopes = np.where(np.isfinite(slopes), slopes, 0.0) * ~model.cost.frozen
    order = model.cost.order
    if model.affine_in_data:
        return [np.broadcast_to(_steepest(model, slopes[0]), slopes.shape)]
    sizes = np.sqrt(np.sum(slopes**2, axis=1, keepdims=True))
    if order is not None and order > 1:
        return [slopes * np.where(sizes > 0, sizes, 1.0) ** (1.0 / (order - 1.0) - 1.0)]
    return [slopes, slopes * (sizes == sizes.max())]


def _steepest(model: RobustModel, slope: Array) -> Array:
    """The move (d,) that gains most along a slope; the slope itself if the cost cannot tell."""
    cost = model.cost
    if cost.knows("steepest_move"):
        return cost.steepest_move(slope)
    if not cost.knows("dual_norms") or cost.dimension > LIMITS.differences or not slope.any():
        return slope
    # The gradient of the dual norm, by differences.
    steps = 1e-5 * float(np.abs(slope).max()) * np.eye(cost.dimension)
    move = cost.dual_norms(slope + steps) - cost.dual_norms(slope - steps)
    return np.where(cost.frozen, 0.0, move) if np.isfinite(move).all() else slope


def _spend_budget(model: RobustModel, moves: Array) -> Array:
    """The samples moved along `moves`, inside the support, until the budget is spent."""
    top = float(np.abs(moves).max(initial=0.0))
    if not 0 < top < np.inf:
        return model.rows
    moves = moves * (_typical_length(model) / top)
    lower, upper = model.joint.bounds or (-np.inf, np.inf)
    for _ in range(LIMITS.doublings):
        points = np.clip(model.rows + moves, lower, upper)
        if not _mean_cost(model, points) < model.radius:
            break
        moves = 2 * moves
    shares = model.shares.probabilities
    points = shorten_to_budget(model.cost, model.rows, points, model.radius, shares)
    for _ in range(LIMITS.doublings if model.joint.bounds is None else 0):
        if model.joint.contains(points).all():
            break
        points = 0.5 * (points + model.rows)
    return points


def _mean_cost(model: RobustModel, points: Array) -> float:
    return float(model.shares.total(model.cost(model.rows, points)))


def _in_ball(model: RobustModel, points: Array) -> bool:
    """Is the mean cost within the radius, and every point in the support?"""
    cost = _mean_cost(model, points)
    return cost <= model.radius * (1 + ROUNDING) and bool(model.joint.contains(points).all())


def _ascend(model: RobustModel, x: Array, price: float, rows: Array) -> Array:
    """Ascend f - price c from `rows`; each sample has a step length that grows and shrinks."""
    assert model.joint.bounds is not None
    lower, upper = model.joint.bounds
    cost, origins = model.cost, model.rows
    rows = np.array(rows)
    values = model.loss.values(x, rows) - price * cost(origins, rows)
    steps, scale = _first_steps(model, price)
    ones = np.ones(len(rows))
    with np.errstate(all="ignore"):
        for _ in range(LIMITS.steps):
            gradient = model.loss(x, rows)[1].in_data(ones)
            gradient = (gradient - price * cost.gradient(rows - origins)) * scale
            if steps is None:
                size = np.sqrt(np.sum(gradient**2, axis=1))
                steps = _typical_length(model) / np.where(size > 0, size, 1.0)
            tried = np.clip(rows + steps[:, None] * gradient, lower, upper)
            try:
                gained = model.loss.values(x, tried) - price * cost(origins, tried)
            except FloatingPointError:
                break  # the price is too low to hold the samples back
            better = np.isfinite(gained) & (gained > values)
            gain = float(np.sum(gained[better] - values[better]))
            rows[better], values[better] = tried[better], gained[better]
            little = gain <= LIMITS.step_gain * float(np.abs(values).sum())
            if little and better.mean() > 0.5:
                break
            steps *= np.where(better, 1.6, 0.4)
    return rows


def _first_steps(model: RobustModel, price: float) -> tuple[Array | None, Array]:
    """First step lengths (N,), None if they depend on the slopes, and factors (d,) of the slopes.

    With a weighted squared distance the first step is the best move if the loss is affine.
    """
    free = ~model.cost.frozen
    if not (model.cost.is_quadratic and model.cost.is_separable):
        return None, free.astype(float)
    weights = np.where(free, model.cost.coordinate_weights, 1.0)
    return np.full(model.size, 0.5 / price), free / weights


def _typical_length(model: RobustModel) -> float:
    """The length of a move that costs the radius."""
    try:
        order, scale = small_moves(model.cost, model.joint)
    except UnknownToCost:
        return float(np.std(model.rows)) or 1.0
    return float((model.radius / scale) ** (1.0 / order))
