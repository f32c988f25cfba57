"""The price of transport at one decision, by bisection, and the distribution that it supports.

l -> l radius + mean_k sup_zeta f(zeta) - l c(xi_k, zeta) is convex with slope radius - mean cost
of nature's answers. Where the answers jump over the budget at l*, those just left and just right
of it are mixed so that the budget is met: each sample then splits between two of its maximisers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wdro_model.model import RobustModel
from wdro_model.objectives.exact.answers import Answer, Response
from wdro_model.objectives.exact.counterpart import Extremal, unmoved
from wdro_model.solvers.objective import Array

ROUNDS = 200
CLOSED = 4e-16


@dataclass(frozen=True)
class Side:
    """All answers at one price."""

    dual: float
    value: float
    """The dual objective, an upper bound on the worst-case risk."""
    cost: float
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Found:
    """The two sides of the best price; equal where the radius does not bind."""

    left: Side
    """Cost at least the radius, unless the radius does not bind."""
    right: Side
    responses: tuple[Response, ...]

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
        size = len(still.rows)
        weights = np.where(split, share, 1.0) / size
        return Extremal(
            np.vstack([first, right[split]]),
            np.concatenate([weights, np.full(int(split.sum()), (1.0 - share) / size)]),
            np.concatenate([still.source, still.source[split]]),
            self.right.dual,
        )

    def _moves(self, side: Side, rows: Array) -> Array:
        moves = np.zeros_like(rows)
        for response, answer in zip(self.responses, side.answers):
            moves[response.index] += answer.moves()
        return moves


def search(model: RobustModel, x: Array, responses: list[Response]) -> Found:
    """The best price of transport for nature's responses to a decision."""
    size = len(model.rows)
    # What the pieces do not hold, the terms without data, is the same at every price.
    certain = float(model.loss.values(x, model.rows).mean())
    certain -= sum(response.still for response in responses) / size

    def side(dual: float) -> Side:
        answers = tuple(response.at(dual) for response in responses)
        cost = sum(float(a.costs.sum()) for a in answers) / size
        value = sum(float(a.values.sum()) for a in answers) / size
        return Side(dual, value + dual * model.radius + certain, cost, answers)

    rate = max((response.rate for response in responses), default=0.0)
    if rate == 0:
        only = side(1.0)
        return _slack(replace(only, value=only.value - model.radius), responses)
    start = model.cost.affine_price(rate, model.radius)
    right = side(1.001 * start * max(1, len(responses)))
    while right.cost > model.radius:
        right = side(2 * right.dual)
    left = side(start)
    while left.cost <= model.radius and left.dual > 1e-12 * start:
        right, left = left, side(left.dual / 4)
    if left.cost <= model.radius:
        return _slack(left, responses)
    for _ in range(ROUNDS):
        if right.dual - left.dual <= CLOSED * right.dual:
            break
        middle = side(0.5 * (left.dual + right.dual))
        if middle.dual in (left.dual, right.dual):
            break
        left, right = (middle, right) if middle.cost > model.radius else (left, middle)
    return Found(left, right, tuple(responses))


def _slack(side: Side, responses: list[Response]) -> Found:
    """A budget that is not spent: the price is zero."""
    free = replace(side, dual=0.0)
    return Found(free, free, tuple(responses))
