"""A bad distribution of the ball, by ascent in the data: a lower bound on the worst-case risk.

For a price l of transport every sample climbs f(x, zeta) - l c(xi_k, zeta) inside the support; a
bisection on the price brings the mean cost to the radius, and moves that still cost too much are
shortened. Each distribution met on the way is in the ball: the largest expected loss among them is
a lower bound, and the worst-case risk itself where f(x, .) - l c is concave.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdro_model.model import RobustModel
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs import BoundCost

LARGEST = 2**18
"""At most so many numbers of data are moved."""
STEPS = 30
PRICES = 12


@dataclass(frozen=True)
class Climbed:
    """Where the samples ended, and what that is worth."""

    rows: Array
    """(N, d), inside the support."""
    expected_loss: float
    transport_cost: float
    """At most the radius."""


def climb(model: RobustModel, x: Array, dual: float | None = None) -> Climbed | None:
    """The worst of the distributions met on the way up; None where ascent does not apply.

    dual: a first guess of the price.
    """
    if not _applies(model):
        return None
    try:
        slopes = model.loss(x, model.rows)[1].in_data(np.ones(len(model.rows)))
    except NotImplementedError:
        return None  # a callable loss without gradients in the data
    steep = float(np.sqrt(np.mean(np.sum(slopes**2, axis=1))))
    order = 1.0 if model.cost.kind == "norm" else 2.0
    typical = steep / (order * model.radius ** (1.0 - 1.0 / order))
    price = dual or typical
    if not np.isfinite(price) or price <= 0:
        return None
    low, high, rows = 0.0, np.inf, model.rows
    best = Climbed(rows, float(model.loss.values(x, rows).mean()), 0.0)
    for _ in range(PRICES):
        rows = _answers(model, x, price, rows)
        moved = _shortened(model, rows)
        losses = model.loss.values(x, moved)
        if np.isfinite(losses).all() and losses.mean() > best.expected_loss:
            cost = float(model.cost(model.rows, moved).mean())
            best = Climbed(moved, float(losses.mean()), cost)
        spent = float(model.cost(model.rows, rows).mean())
        low, high = (price, high) if spent > model.radius else (low, price)
        if low > 0 and high < 1.001 * low:
            break
        price = 2 * low if np.isinf(high) else np.sqrt(max(low, high / 16) * high)
    return best


def _applies(model: RobustModel) -> bool:
    quadratic_or_norm = model.cost.kind != "callable"
    bounded = model.joint.bounds is not None
    return quadratic_or_norm and bounded and model.radius > 0 and model.rows.size <= LARGEST


def _answers(model: RobustModel, x: Array, price: float, rows: Array) -> Array:
    """Each sample climbs f - price c from `rows`, with a step of its own that grows and shrinks."""
    assert model.joint.bounds is not None
    lower, upper = model.joint.bounds
    cost, origins = model.cost, model.rows
    free = ~cost.frozen
    rows = np.array(rows)
    values = model.loss.values(x, rows) - price * cost(origins, rows)
    length = np.sqrt(model.radius) if cost.kind != "norm" else model.radius
    steps: Array = np.full(len(rows), np.nan)
    ones = np.ones(len(rows))
    with np.errstate(all="ignore"):
        for _ in range(STEPS):
            gradient = model.loss(x, rows)[1].in_data(ones)
            gradient = (gradient - price * cost_gradient(cost, rows - origins)) * free
            size = np.sqrt(np.sum(gradient**2, axis=1))
            first = length / np.where(size > 0, size, 1.0)
            steps = np.where(np.isnan(steps), first, steps)
            tried = np.clip(rows + steps[:, None] * gradient, lower, upper)
            gained = model.loss.values(x, tried) - price * cost(origins, tried)
            better = np.isfinite(gained) & (gained > values)
            rows[better], values[better] = tried[better], gained[better]
            steps *= np.where(better, 1.6, 0.4)
    return rows


def cost_gradient(cost: BoundCost, delta: Array) -> Array:
    """A (sub)gradient of the cost in the move, row by row."""
    if cost.kind == "mahalanobis":
        assert cost.matrix is not None
        return 2.0 * delta @ cost.matrix
    weights = np.ones(cost.dimension) if cost.weights is None else cost.weights
    weights = np.where(cost.frozen, 0.0, weights)
    if cost.kind == "squared":
        return 2.0 * weights * delta
    p, plain = cost.p or 2.0, weights * delta
    if p == 1.0:
        return weights * np.sign(plain)
    size = np.linalg.norm(plain, ord=p, axis=1, keepdims=True)
    share = np.abs(plain) / np.where(size > 0, size, 1.0)
    if np.isinf(p):
        return weights * np.sign(plain) * (share >= 1.0)
    return weights * np.sign(plain) * share ** (p - 1.0)


def _shortened(model: RobustModel, rows: Array) -> Array:
    """The moves, by one factor shorter where they cost more than the radius."""
    spent = float(model.cost(model.rows, rows).mean())
    if spent <= model.radius:
        return rows
    order = 1.0 if model.cost.kind == "norm" else 2.0
    return model.rows + (model.radius / spent) ** (1.0 / order) * (rows - model.rows)
