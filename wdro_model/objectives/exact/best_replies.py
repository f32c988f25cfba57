"""The adversary's best replies to a price of transport at one decision.

At the price l every sample k moves to where sup_zeta max_j a_j + <b_j, zeta> - l c(xi_k, zeta) is
attained: the best piece and its move. Clusters and lines have replies of their own, whose values
and costs add up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wdro_model.model import RobustModel
from wdro_model.objectives.exact.clusters import NumericCluster
from wdro_model.objectives.exact.coordinate_lines import NumericLines
from wdro_model.objectives.exact.decomposition import Group
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.sample_shares import SampleShares


@dataclass(frozen=True)
class BestReply:
    """The best move of each of n samples at one price."""

    values: Array
    """(n,)."""
    costs: Array
    """(n,)."""
    moves: Callable[[], Array]
    """(n, d), computed when it is asked for."""


Reply = Callable[[float], BestReply]
"""The best reply to a price."""


@dataclass(frozen=True)
class Adversary:
    """The replies of the samples in `index` on one cluster, or on some lines."""

    index: Array
    reply: Reply
    rate: float
    """The largest dual norm of a slope."""
    still: float
    """The average of the largest piece where nothing moves."""
    shares: SampleShares
    """What the samples count in averages over all of them."""


# ------------------------------------------------------------------ the moves of coordinates
@dataclass(frozen=True)
class CoordinateMoves:
    """The best moves of some coordinates of n samples on their own, the cost sum_i w_i |delta_i|^p.

    p = 2: b / (2 l w), clipped to the room; p = 1: to its end where |b| > l w, else no move.
    """

    weights: Array
    """w, (m,)."""
    squared: bool
    """Is p = 2, not 1?"""
    down: Array | float
    """The room of each sample, (n, m), not positive."""
    up: Array | float
    """(n, m)."""

    @classmethod
    def everywhere(cls, model: RobustModel, where: Array) -> CoordinateMoves:
        """Squared cost on R^d, of coordinates that it does not couple with others."""
        return cls(model.cost.coordinate_scales[where] ** 2, True, -np.inf, np.inf)

    @classmethod
    def on_box(
        cls, model: RobustModel, where: Array, rows: Array, longest: float
    ) -> CoordinateMoves:
        """A separable cost on a box; the moves of a norm are at most the longest."""
        squared, (down, up) = model.cost.is_quadratic, room(model, where, rows)
        if not squared:
            down, up = np.maximum(down, -longest), np.minimum(up, longest)
        return cls(model.cost.coordinate_weights[where], squared, down, up)

    def at(self, dual: float, slopes: Array) -> Array:
        """The moves for slopes that have the coordinates as their last axis."""
        if self.squared:
            return np.clip(slopes / (2 * dual * self.weights), self.down, self.up)
        away = np.abs(slopes) > dual * self.weights
        return np.where(away, np.where(slopes > 0, self.up, self.down), 0.0)

    def unweighted(self, moves: Array) -> Array:
        """|delta_i|^p, which the weights make costs of."""
        return np.square(moves) if self.squared else np.abs(moves)


def room(model: RobustModel, where: Array, rows: Array) -> tuple[Array, Array]:
    """How far down (n, m), not positive, and up the samples may move in coordinates of a box."""
    assert model.joint.bounds is not None
    lower, upper = (side[where] for side in model.joint.bounds)
    data = rows[:, where]
    return np.minimum(lower - data, 0.0), np.maximum(upper - data, 0.0)


# ------------------------------------------------------------------ the replies
def replies_everywhere(model: RobustModel, groups: tuple[Group, ...], x: Array) -> list[Adversary]:
    """On R^d with a quadratic cost: the move b/(2 l) in the geometry of the cost."""
    return _replies(
        model,
        groups,
        x,
        lambda cluster, rows: _reply_everywhere(model, cluster, rows),
        lambda where, _rows: CoordinateMoves.everywhere(model, where),
    )


def replies_on_box(
    model: RobustModel, groups: tuple[Group, ...], x: Array, longest: float = np.inf
) -> list[Adversary]:
    """On a box with a separable cost: every coordinate on its own, by moves up to `longest`."""

    def moves(where: Array, rows: Array) -> CoordinateMoves:
        return CoordinateMoves.on_box(model, where, rows, longest)

    def reply(cluster: NumericCluster, rows: Array) -> Reply:
        return _reply_by_coordinates(moves(cluster.moving, rows), cluster, rows)

    return _replies(model, groups, x, reply, moves)


def _replies(
    model: RobustModel,
    groups: tuple[Group, ...],
    x: Array,
    on_cluster: Callable[[NumericCluster, Array], Reply],
    on_coordinates: Callable[[Array, Array], CoordinateMoves],
) -> list[Adversary]:
    found = []
    for group in groups:
        rows, shares = group.rows(model), group.shares(model)
        for cluster in group.clusters:
            numbers = cluster.numeric(model, x)
            rate = float(model.cost.dual_norms(numbers.moving_slopes).max())
            still = float(shares.total(numbers.values(rows).max(axis=1)))
            found.append(Adversary(group.index, on_cluster(numbers, rows), rate, still, shares))
        for lines in group.lines:
            on_lines = lines.numeric(model, x)
            steepest = np.zeros(model.cost.dimension)
            steepest[lines.where] = np.abs(on_lines.slopes).max(axis=0)
            rate = float(model.cost.dual_norms(steepest))
            still = float(shares.total(on_lines.values(rows).max(axis=0).sum(axis=1)))
            reply = _reply_on_lines(on_coordinates(lines.where, rows), on_lines, rows)
            found.append(Adversary(group.index, reply, rate, still, shares))
    return found


def _reply_everywhere(model: RobustModel, cluster: NumericCluster, rows: Array) -> Reply:
    cost, slopes = model.cost, cluster.moving_slopes
    base = cluster.values(rows)
    squares, steepest = cost.dual_norms(slopes) ** 2, cost.inverse_times(slopes)

    def reply(dual: float) -> BestReply:
        gains = base + squares / (4 * dual)
        best = np.argmax(gains, axis=1)
        values = np.take_along_axis(gains, best[:, None], axis=1)[:, 0]
        costs = (squares / (4 * dual**2))[best]
        return BestReply(values, costs, lambda: steepest[best] / (2 * dual))

    return reply


def _reply_by_coordinates(moves: CoordinateMoves, cluster: NumericCluster, rows: Array) -> Reply:
    """The coordinates of each piece move on their own; the best piece is that of the sample.

    A price that does not pay for a move without end has infinite values and costs.
    """
    base, some = cluster.values(rows), np.arange(len(rows))
    slopes = cluster.slopes[:, cluster.moving]

    def reply(dual: float) -> BestReply:
        found = [moves.at(dual, slope) for slope in slopes]
        costs = np.column_stack([moves.unweighted(delta) @ moves.weights for delta in found])
        pushed = [(delta * slope).sum(axis=1) for delta, slope in zip(found, slopes)]
        with np.errstate(invalid="ignore"):
            gains = base + np.column_stack(pushed) - dual * costs
        gains[np.isinf(costs)] = np.inf
        best = np.argmax(gains, axis=1)

        def full() -> Array:
            out = np.zeros_like(rows)
            out[:, cluster.moving] = np.array(found)[best, some]
            return out

        return BestReply(gains[some, best], costs[some, best], full)

    return reply


def _reply_on_lines(moves: CoordinateMoves, lines: NumericLines, rows: Array) -> Reply:
    """On each line the best piece is found on its own; values and costs add up over the lines."""
    base, slopes = lines.values(rows), lines.slopes[:, None]

    def reply(dual: float) -> BestReply:
        found = moves.at(dual, slopes)
        costs = moves.weights * moves.unweighted(found)
        with np.errstate(invalid="ignore"):
            gains = base + slopes * found - dual * costs
        gains = np.where(np.isinf(costs), np.inf, gains)
        best = np.argmax(gains, axis=0)[None]

        def chosen(some: Array) -> Array:
            return np.take_along_axis(np.broadcast_to(some, base.shape), best, axis=0)[0]

        def full() -> Array:
            out = np.zeros_like(rows)
            out[:, lines.where] = chosen(found)
            return out

        return BestReply(chosen(gains).sum(axis=1), chosen(costs).sum(axis=1), full)

    return reply
