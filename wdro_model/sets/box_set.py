"""Decisions between bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wdro_model.sets.arguments import as_interval
from wdro_model.sets.backends import Vector
from wdro_model.sets.feasible_set import FeasibleSet, as_direction, as_flat
from wdro_model.sets.vertices import is_binary


class BoxSet(FeasibleSet):
    """{lower <= x <= upper}, `sets.Box`; numbers or arrays, of which one has the shape of x.

    Attributes
    ----------
    shape
        Of the decision; its points are flattened in row-major order.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> wdro.sets.Box([0.0, 0.0, -1.0], 1.0).minimize([1.0, -1.0, 1.0])
    array([ 0.,  1., -1.])
    """

    has_constraints = True

    def __init__(self, lower: ArrayLike, upper: ArrayLike) -> None:
        try:
            sides = np.broadcast_arrays(
                np.asarray(lower, dtype=np.float64), np.asarray(upper, dtype=np.float64)
            )
        except (TypeError, ValueError):
            raise ValueError(
                f"the bounds of a Box must be numbers or arrays of one shape, got {lower!r} and "
                f"{upper!r}."
            ) from None
        self.shape: tuple[int, ...] = sides[0].shape
        if not self.shape or not sides[0].size:
            raise ValueError(
                f"one of the bounds of a Box must be an array, to tell its dimension, got "
                f"{lower!r} and {upper!r}; write Box(np.zeros(n), 1)."
            )
        for name, side in (("lower", sides[0]), ("upper", sides[1])):
            if not np.isfinite(side).all():
                where = tuple(map(int, np.argwhere(~np.isfinite(side))[0]))
                raise ValueError(
                    f"the {name} bound of a Box must be finite, got {side[where]} at {where}; "
                    "oracles need bounded sets."
                )
        low, high = sides[0].flatten(), sides[1].flatten()
        if np.any(low > high):
            at = int(np.flatnonzero(low > high)[0])
            raise ValueError(
                f"a Box needs lower <= upper, got {low[at]:g} and {high[at]:g} at index {at}."
            )
        self.dimension = int(low.size)
        self.bounds = (low, high)
        self.rounds = is_binary(low) and is_binary(high)

    def minimize(
        self, direction: ArrayLike, lower: ArrayLike | None = None, upper: ArrayLike | None = None
    ) -> Vector:
        return self.minimize_within(direction, lower, upper)

    def minimize_within(
        self, direction: ArrayLike, lower: ArrayLike | None, upper: ArrayLike | None
    ) -> Vector:
        """The lower bound where the direction is not negative, the upper one elsewhere."""
        given = as_direction(direction, self.dimension)
        assert self.bounds is not None
        low, high = as_interval(lower, upper, self.bounds)
        return np.where(given < 0, high, low)

    def constraints(self, x: Any) -> list[Any]:
        flat = as_flat(x, self.dimension)
        assert self.bounds is not None
        return [flat >= self.bounds[0], flat <= self.bounds[1]]

    def table(self, x: ArrayLike) -> np.ndarray:
        """A point in the shape of the bounds."""
        return as_direction(x, self.dimension, kind="x").reshape(self.shape)

    def describe(self) -> str:
        return f"{self.dimension} numbers between bounds"

    def __repr__(self) -> str:
        return f"Box(dimension={self.dimension})"
