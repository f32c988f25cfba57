"""The price of transport at which the adversary spends the budget, and the worst distribution.

l -> l radius + mean_k sup_zeta f(zeta) - l c(xi_k, zeta) is convex with slope radius - mean cost
of the best replies. These costs jump where a sample changes its piece, mostly at the best price
itself. The search is therefore a bisection down to rounding, not the root finding of
`objectives.dual`, which is for costs that are continuous in l, and it keeps the replies on both
sides of the jump: mixed so that they spend the budget, they are the worst-case distribution, in
which a sample may split between two of its maximisers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wdro_model.model import RobustModel
from wdro_model.objectives.exact.best_replies import Adversary, BestReply
from wdro_model.objectives.exact.counterpart import Extremal, unmoved
from wdro_model.solvers.objective import Array

ROUNDS = 200
CLOSED = 4e-16


@dataclass(frozen=True)
class PriceSide:
    """All replies at one price."""

    dual: float
    value: float
    """The dual objective, an upper bound on the worst-case risk."""
    cost: float
    replies: tuple[BestReply, ...]


@dataclass(frozen=True)
class BestPrice:
    """The two sides of the best price; equal where the radius does not bind."""

    left: PriceSide
    """Cost at least the radius, unless the radius does not bind."""
    right: PriceSide
    adversaries: tuple[Adversary, ...]

    @property
    def value(self) -> float:
        """The worst-case risk."""
        return min(self.left.value, self.right.value)

    def extremal(self, model: RobustModel) -> Extremal:
        """A distribution that attains it."""
        still = unmoved(model)
        left, right = (
            still.rows + self._moves(side, still.rows) for side in (self.left, self.right)
        )
        gap = self.left.cost - self.right.cost
        share = 1.0 if gap <= 0 else min(1.0, max(0.0, (model.radius - self.right.cost) / gap))
        close = np.all(np.abs(left - right) <= 1e-9 * (1.0 + np.abs(left)), axis=1)
        split = ~close & (share > 0) & (share < 1)
        first = np.where(((share > 0) | close)[:, None], left, right)
        weights = np.where(split, share, 1.0) * still.weights
        return Extremal(
            np.vstack([first, right[split]]),
            np.concatenate([weights, (1.0 - share) * still.weights[split]]),
            np.concatenate([still.source, still.source[split]]),
            self.right.dual,
        )

    def _moves(self, side: PriceSide, rows: Array) -> Array:
        moves = np.zeros_like(rows)
        for adversary, reply in zip(self.adversaries, side.replies):
            moves[adversary.index] += reply.moves()
        return moves


def best_price(model: RobustModel, x: Array, adversaries: list[Adversary]) -> BestPrice:
    """The price of transport at which the replies to a decision spend the budget."""
    # What the pieces do not hold, the terms without data, is the same at every price.
    certain = float(model.shares.total(model.loss.values(x, model.rows)))
    certain -= sum(adversary.still for adversary in adversaries)

    def side(dual: float) -> PriceSide:
        replies = tuple(adversary.reply(dual) for adversary in adversaries)
        cost, value = (
            sum(float(own.shares.total(part)) for own, part in zip(adversaries, parts))
            for parts in zip(*((reply.costs, reply.values) for reply in replies))
        )
        return PriceSide(dual, value + dual * model.radius + certain, cost, replies)

    rate = max((adversary.rate for adversary in adversaries), default=0.0)
    if rate == 0:
        only = side(1.0)
        return _slack(replace(only, value=only.value - model.radius), adversaries)
    start = model.cost.affine_price(rate, model.radius)
    right = side(1.001 * start * max(1, len(adversaries)))
    while right.cost > model.radius:
        right = side(2 * right.dual)
    left = side(start)
    while left.cost <= model.radius and left.dual > 1e-12 * start:
        right, left = left, side(left.dual / 4)
    if left.cost <= model.radius:
        return _slack(left, adversaries)
    for _ in range(ROUNDS):
        if right.dual - left.dual <= CLOSED * right.dual:
            break
        middle = side(0.5 * (left.dual + right.dual))
        if middle.dual in (left.dual, right.dual):
            break
        left, right = (middle, right) if middle.cost > model.radius else (left, middle)
    return BestPrice(left, right, tuple(adversaries))


def _slack(side: PriceSide, adversaries: list[Adversary]) -> BestPrice:
    """A budget that is not spent: the price is zero."""
    free = replace(side, dual=0.0)
    return BestPrice(free, free, tuple(adversaries))
