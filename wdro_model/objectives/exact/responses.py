"""How nature answers a price l of transport: the best piece and move of every sample.

A response is a function of l: for the samples of a group and one cluster of pieces it gives
sup_zeta max_j a_j + <b_j, zeta> - l c(xi_k, zeta), the cost of a maximiser, and its move.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from wdro_model.model import RobustModel
from wdro_model.objectives.exact.answers import Answer, Response
from wdro_model.objectives.exact.decomposition import Group
from wdro_model.objectives.exact.line_responses import (
    Mover,
    clipped_lines,
    free_lines,
    line_response,
    lines_to_the_bounds,
    room,
)
from wdro_model.objectives.exact.pieces import NumericCluster, numeric
from wdro_model.objectives.exact.vectorised import group_rows
from wdro_model.solvers.objective import Array


def free_responses(model: RobustModel, groups: tuple[Group, ...], x: Array) -> list[Response]:
    """On R^d with a quadratic cost: the move b/(2 l) in the geometry of the cost."""
    return _responses(model, groups, x, _free, free_lines(model))


def box_responses(
    model: RobustModel, groups: tuple[Group, ...], x: Array, longest: float = np.inf
) -> list[Response]:
    """On a box with a separable cost: every coordinate on its own, by moves up to `longest`."""
    if model.cost.is_quadratic:
        return _responses(model, groups, x, _clipped, clipped_lines(model))
    answer = partial(_to_the_bounds, longest)
    return _responses(model, groups, x, answer, lines_to_the_bounds(model, longest))


Maker = Callable[[RobustModel, NumericCluster, Array], Callable[[float], Answer]]


def _responses(
    model: RobustModel, groups: tuple[Group, ...], x: Array, maker: Maker, mover: Mover
) -> list[Response]:
    found = []
    for group in groups:
        rows = group_rows(group, model.rows)
        for cluster in group.clusters:
            numbers = numeric(model, cluster, x)
            rate = float(model.cost.dual_norms(numbers.moving_slopes).max())
            still = float(numbers.values(rows).max(axis=1).sum())
            found.append(Response(group.index, maker(model, numbers, rows), rate, still))
        for lines in group.lines:
            found.append(line_response(model, group.index, lines.numeric(model, x), rows, mover))
    return found


def _free(model: RobustModel, cluster: NumericCluster, rows: Array) -> Callable[[float], Answer]:
    cost, slopes = model.cost, cluster.moving_slopes
    base = cluster.values(rows)
    squares, steepest = cost.dual_norms(slopes) ** 2, cost.inverse_times(slopes)

    def at(dual: float) -> Answer:
        gains = base + squares / (4 * dual)
        best = np.argmax(gains, axis=1)
        values = np.take_along_axis(gains, best[:, None], axis=1)[:, 0]
        costs = (squares / (4 * dual**2))[best]
        return Answer(values, costs, lambda: steepest[best] / (2 * dual))

    return at


def _bounds(model: RobustModel, cluster: NumericCluster, rows: Array) -> tuple[Array, Array]:
    """How far down and up each sample may move in the cluster's coordinates."""
    assert model.joint.bounds is not None
    return room(model, cluster.moving, rows)


def _coordinatewise(
    model: RobustModel,
    cluster: NumericCluster,
    rows: Array,
    move: Callable[[float, Array], Array],
    price: Callable[[Array], Array],
) -> Callable[[float], Answer]:
    """Answers from the best move (n, m) of a slope (m,) at a price, and the cost of moves.

    A price that does not pay for a move without end has infinite values and costs.
    """
    base = cluster.values(rows)
    slopes = cluster.slopes[:, cluster.moving]

    def at(dual: float) -> Answer:
        moves = [move(dual, slope) for slope in slopes]
        costs = np.column_stack([price(delta) for delta in moves])
        pushed = [(delta * slope).sum(axis=1) for delta, slope in zip(moves, slopes)]
        with np.errstate(invalid="ignore"):
            gains = base + np.column_stack(pushed) - dual * costs
        gains[np.isinf(costs)] = np.inf
        best = np.argmax(gains, axis=1)
        some = np.arange(len(rows))

        def full() -> Array:
            out = np.zeros_like(rows)
            out[:, cluster.moving] = np.array(moves)[best, some]
            return out

        return Answer(gains[some, best], costs[some, best], full)

    return at


def _clipped(model: RobustModel, cluster: NumericCluster, rows: Array) -> Callable[[float], Answer]:
    """Squared cost: b_i / (2 l w_i), clipped to the box."""
    down, up = _bounds(model, cluster, rows)
    weights = model.cost.coordinate_weights[cluster.moving]
    return _coordinatewise(
        model,
        cluster,
        rows,
        lambda dual, slope: np.clip(slope / (2 * dual * weights), down, up),
        lambda delta: np.einsum("ki,ki,i->k", delta, delta, weights),
    )


def _to_the_bounds(
    longest: float, model: RobustModel, cluster: NumericCluster, rows: Array
) -> Callable[[float], Answer]:
    """Sum of weighted absolute values: to the bound where |b_i| > l w_i, else no move."""
    down, up = _bounds(model, cluster, rows)
    down, up = np.maximum(down, -longest), np.minimum(up, longest)
    weights = model.cost.coordinate_weights[cluster.moving]

    def move(dual: float, slope: Array) -> Array:
        away = np.abs(slope) > dual * weights
        return np.where(away, np.where(slope > 0, up, down), 0.0)

    return _coordinatewise(model, cluster, rows, move, lambda delta: np.abs(delta) @ weights)
