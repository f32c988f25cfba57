"""Gains and prices of a transport budget, and small moves, from the values of any ground cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from wdro_model.errors import UnknownToCost

if TYPE_CHECKING:
    from wdro_model.uncertainty.costs.ground_cost import BoundCost
    from wdro_model.uncertainty.joint import JointSamples

Array = np.ndarray

PROBED_COORDINATES = 16
"""Coordinates along which small moves are tried until one shows the order of the cost."""
BISECTION_STEPS = 60
"""Bisections of a factor in [0, 1], which reach rounding."""


def largest_gains(cost: BoundCost, slopes: Array, radius: float, width: Array | None) -> Array:
    """Upper bounds on <slope, delta> for moves within the budget, and in a box of width (d,)."""
    gains = cost.distance(radius) * cost.dual_norms(slopes)
    if width is None:
        return gains
    with np.errstate(invalid="ignore"):
        across = np.where(slopes == 0, 0.0, np.abs(slopes) * width).sum(axis=-1)
    return np.minimum(gains, across)


def typical_price(cost: BoundCost, rate: float, radius: float, joint: JointSamples) -> float:
    """A first guess of the multiplier of the budget: r^(1-p) rate / (p w), w |.|^p small moves.

    Exact for an affine loss on R^d whose slope has the dual norm `rate`.
    """
    try:
        order, scale = small_moves(cost, joint)
    except UnknownToCost:
        return rate  # any positive number will do: the search for the multiplier corrects it
    distance = (radius / scale) ** (1.0 / order)
    return rate * distance ** (1.0 - order) / (order * scale)


def small_moves(cost: BoundCost, joint: JointSamples) -> tuple[float, float]:
    """p and w with c ~ w |delta|^p for small moves; estimated where the order is not known.

    |.| is the norm of the cost if its dual norm is known, and the Euclidean norm otherwise.
    """
    if cost.order is not None and cost.knows("dual_norms"):
        return cost.order, 1.0
    row = joint.matrix[:1]
    step = 1e-3 * max(1e-6, float(np.abs(joint.matrix[: min(50, joint.size)]).mean()))
    free = (~np.asarray(cost.frozen)).astype(float)
    some = np.flatnonzero(free)[:PROBED_COORDINATES]
    directions = [free, *np.eye(cost.dimension)[some]] if cost.dimension <= 1000 else [free]
    for direction in (sign * one for one in directions for sign in (1.0, -1.0)):
        move = step * direction[None]
        near, far = (float(cost(row, row + times * move)[0]) for times in (1, 2))
        if 0 < near < far < math.inf:
            order = float(np.clip(np.log2(far / near), 0.5, 4.0))
            return order, near / (step * float(np.linalg.norm(direction))) ** order
    raise UnknownToCost(
        f"the cost {cost.describe()} does not know its small_moves: pass sigma=... and epsilon=..."
    )


def shorten_to_budget(
    cost: BoundCost, origins: Array, points: Array, radius: float, weights: Array | None = None
) -> Array:
    """The points, moved towards their origins by one factor until the mean cost is the radius.

    Points whose mean cost is lower stay. weights: of the rows in the mean; equal by default.
    """

    def shortened(factor: float) -> Array:
        return origins + factor * (points - origins)

    def spent(moved: Array) -> float:
        costs = cost(origins, moved)
        return float(costs.mean() if weights is None else weights @ costs)

    total = spent(points)
    if total <= radius:
        return points
    if cost.order is not None and total < math.inf:
        shorter = shortened((radius / total) ** (1.0 / cost.order))
        if spent(shorter) <= radius * (1 + 1e-12):
            return shorter
    low, high = 0.0, 1.0
    for _ in range(BISECTION_STEPS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if spent(shortened(middle)) <= radius else (low, middle)
    return shortened(low)
