"""A cost that is a function of the user: its values are all that is known of it."""

from __future__ import annotations

from collections.abc import Callable as Function
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model.errors import blaming
from wdro_model.uncertainty.costs.ground_cost import Array, BoundCost, GroundCost

if TYPE_CHECKING:
    from wdro_model.uncertainty.joint import JointSamples

Pairs = Function[[Array, Array], Array]


@dataclass(frozen=True, eq=False)
class BoundUserCost(BoundCost):
    """function(origins (B, d), points (B, d)) -> costs (B,), checked at each call.

    Examples
    --------
    >>> cost = wdro.costs.BoundUserCost(2, lambda a, b: np.abs(b - a).max(axis=1))
    >>> cost(np.zeros((1, 2)), np.array([[3.0, -4.0]]))
    array([4.])
    """

    dimension: int
    function: Pairs

    def __call__(self, origins: Array, points: Array) -> Array:
        with blaming(f"the cost {function_name(self.function)}"):
            returned = self.function(origins, points)
        costs = np.asarray(returned, dtype=np.float64)
        if costs.shape != (len(points),):
            raise ValueError(
                f"cost {function_name(self.function)} must return {len(points)} numbers, shape "
                f"({len(points)},), for points of shape {points.shape}; it returned shape "
                f"{costs.shape}."
            )
        if not np.all(costs >= 0):
            row = int(np.argmin(costs >= 0))
            raise ValueError(
                f"cost {function_name(self.function)} must be nonnegative, got "
                f"{float(costs[row])} in row {row}; a transport cost is zero at rest and positive "
                "otherwise."
            )
        return costs

    def describe(self) -> str:
        return f"{function_name(self.function)}(xi, zeta)"


@dataclass(frozen=True, eq=False)
class Callable(GroundCost):
    """A cost of the user's own: function(origins (B, d), points (B, d)) -> costs (B,).

    The rows are the parameters flattened row-major, side by side in the order of the loss. Costs
    are nonnegative (np.inf forbids a move) and zero for a point that does not move.

    Parameters
    ----------
    order
        p if the cost is a distance to the power p, for `WassersteinBall.order`.

    Examples
    --------
    >>> def cube(origins, points):
    ...     return np.linalg.norm(points - origins, axis=1) ** 3
    >>> ball = wdro.WassersteinBall.order(3, 0.5, wdro.costs.Callable(cube, order=3))
    >>> ball.radius
    0.125
    """

    function: Pairs
    order: float | None = None
    bound = BoundUserCost

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ValueError(f"a cost function must be callable, got {self.function!r}.")

    def bind(self, joint: JointSamples) -> BoundUserCost:
        bound = BoundUserCost(joint.dimension, self.function)
        rows = joint.matrix[:8]
        still = bound(rows, rows)
        if np.any(np.abs(still) > 1e-9):
            worst = int(np.argmax(np.abs(still)))
            raise ValueError(
                f"cost {function_name(self.function)} must be zero for a point that does not move, "
                f"got {float(still[worst])!r} at sample {worst}; subtract it or correct the cost."
            )
        return bound

    def describe(self) -> str:
        return f"{function_name(self.function)}(xi, zeta)"


def function_name(function: Any) -> str:
    """The name of a callable, for messages."""
    return getattr(function, "__name__", repr(function))
