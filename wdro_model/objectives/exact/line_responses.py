"""How nature answers a price of transport on many lines at once.

On each line the best piece is found on its own; values and costs add up over the lines.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wdro_model.model import RobustModel
from wdro_model.objectives.exact.answers import Answer, Response
from wdro_model.objectives.exact.lines import NumericLines
from wdro_model.solvers.objective import Array

Mover = Callable[[NumericLines, Array], Callable[[float], tuple[Array, Array]]]
"""For lines and samples: at a price, the moves of every piece and what each costs, (J, n, m)."""


def line_response(
    model: RobustModel, index: Array, lines: NumericLines, rows: Array, mover: Mover
) -> Response:
    """The answers of the samples `rows` on some lines."""
    base, move = lines.values(rows), mover(lines, rows)
    slopes = lines.slopes[:, None]

    def at(dual: float) -> Answer:
        moves, costs = move(dual)
        with np.errstate(invalid="ignore"):
            gains = base + slopes * moves - dual * costs
        gains = np.where(np.isinf(costs), np.inf, gains)
        best = np.argmax(gains, axis=0)[None]

        def chosen(some: Array) -> Array:
            return np.take_along_axis(np.broadcast_to(some, base.shape), best, axis=0)[0]

        def full() -> Array:
            out = np.zeros_like(rows)
            out[:, lines.where] = chosen(moves)
            return out

        return Answer(chosen(gains).sum(axis=1), chosen(costs).sum(axis=1), full)

    steepest = np.zeros(model.cost.dimension)
    steepest[lines.where] = np.abs(lines.slopes).max(axis=0)
    rate = float(model.cost.dual_norms(steepest))
    return Response(index, at, rate, float(base.max(axis=0).sum()))


def free_lines(model: RobustModel) -> Mover:
    """Squared cost on R^d: b / (2 l w)."""

    def mover(lines: NumericLines, rows: Array) -> Callable[[float], tuple[Array, Array]]:
        weights = _weights(model, lines)

        def move(dual: float) -> tuple[Array, Array]:
            moves = (lines.slopes / (2 * dual * weights))[:, None]
            return moves, weights * moves**2

        return move

    return mover


def clipped_lines(model: RobustModel) -> Mover:
    """Squared cost on a box: b / (2 l w), clipped to the box."""

    def mover(lines: NumericLines, rows: Array) -> Callable[[float], tuple[Array, Array]]:
        weights = _weights(model, lines)
        down, up = room(model, lines.where, rows)

        def move(dual: float) -> tuple[Array, Array]:
            moves = np.clip((lines.slopes / (2 * dual * weights))[:, None], down, up)
            return moves, weights * moves**2

        return move

    return mover


def lines_to_the_bounds(model: RobustModel, longest: float) -> Mover:
    """Weighted absolute values on a box: to the bound where |b| > l w, else no move."""

    def mover(lines: NumericLines, rows: Array) -> Callable[[float], tuple[Array, Array]]:
        weights = model.cost.coordinate_scales[lines.where]
        down, up = room(model, lines.where, rows)
        down, up = np.maximum(down, -longest), np.minimum(up, longest)

        def move(dual: float) -> tuple[Array, Array]:
            slopes = lines.slopes[:, None]
            moves = np.where(slopes > dual * weights, up, 0.0)
            moves = np.where(-slopes > dual * weights, down, moves)
            return moves, weights * np.abs(moves)

        return move

    return mover


def room(model: RobustModel, where: Array, rows: Array) -> tuple[Array, Array]:
    """How far down (n, m), not positive, and up the samples may move in some coordinates."""
    assert model.joint.bounds is not None
    lower, upper = (side[where] for side in model.joint.bounds)
    data = rows[:, where]
    return np.minimum(lower - data, 0.0), np.maximum(upper - data, 0.0)


def _weights(model: RobustModel, lines: NumericLines) -> Array:
    """The weights (m,) of a squared cost."""
    return model.cost.coordinate_scales[lines.where] ** 2
