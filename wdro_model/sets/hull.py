"""The convex hull of given points."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from wdro_model.errors import InfeasibleError
from wdro_model.sets.arguments import as_interval, bounds_refused
from wdro_model.sets.backends import Vector
from wdro_model.sets.feasible_set import FeasibleSet, as_direction, as_flat
from wdro_model.sets.vertices import WHOLE, Value, descend, is_binary, limit_of


class Hull(FeasibleSet):
    """The convex combinations of points, the rows of an array (K, n).

    Parameters
    ----------
    integral
        The points are choices, which `round` and bounds choose among; by default they are
        where all entries are 0 and 1.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> plans = wdro.sets.Hull([[1.0, 0.0, 0.5], [0.0, 2.0, 0.0]])
    >>> plans.minimize([1.0, 1.0, 2.0])
    array([1. , 0. , 0.5])
    """

    has_constraints = True

    def __init__(self, points: ArrayLike, integral: bool | None = None) -> None:
        try:
            rows = np.array(points, dtype=np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                f"the points of a Hull must be an array (K, n) of numbers, got "
                f"{type(points).__name__}."
            ) from None
        if rows.ndim != 2 or not rows.size:
            raise ValueError(
                f"the points of a Hull are the rows of an array (K, n), got shape {rows.shape}."
            )
        if not np.isfinite(rows).all():
            at = tuple(map(int, np.argwhere(~np.isfinite(rows))[0]))
            raise ValueError(f"the points of a Hull must be finite, got {rows[at]} at index {at}.")
        self.points = rows
        self.dimension = rows.shape[1]
        self.bounds = (rows.min(axis=0), rows.max(axis=0))
        self.rounds = is_binary(rows) if integral is None else bool(integral)

    def minimize(
        self, direction: ArrayLike, lower: ArrayLike | None = None, upper: ArrayLike | None = None
    ) -> Vector:
        if lower is not None or upper is not None:
            return self.minimize_within(direction, lower, upper)
        return self._best(as_direction(direction, self.dimension), self.points)

    def minimize_within(
        self, direction: ArrayLike, lower: ArrayLike | None, upper: ArrayLike | None
    ) -> Vector:
        """The best of the points within the bounds, where they are choices."""
        if not self.rounds:
            raise bounds_refused(self)
        given = as_direction(direction, self.dimension)
        assert self.bounds is not None
        low, high = as_interval(lower, upper, self.bounds)
        inside = np.all((self.points >= low) & (self.points <= high), axis=1)
        if not inside.any():
            raise InfeasibleError(f"none of the points of {self!r} lies within the bounds.")
        return self._best(given, self.points[inside])

    def constraints(self, x: Any) -> list[Any]:
        weights = cp.Variable(len(self.points), nonneg=True)
        return [as_flat(x, self.dimension) == self.points.T @ weights, cp.sum(weights) == 1]

    def neighbours(self, vertex: Vector, x: Vector) -> Iterator[Vector]:
        """The other points, the nearest to x first."""
        order = np.argsort(np.linalg.norm(self.points - x, axis=1), kind="stable")
        others = (self.points[k].copy() for k in order)
        return (point for point in others if not np.array_equal(point, vertex))

    def describe(self) -> str:
        return f"the convex hull of {len(self.points)} points in {self.dimension} dimensions"

    def __repr__(self) -> str:
        return f"Hull({len(self.points)} points, dimension={self.dimension})"

    def _best(self, direction: Vector, points: np.ndarray) -> Vector:
        return np.array(points[int(np.argmin(points @ direction))])

    def _nearest(self, x: Vector) -> Vector:
        return np.array(self.points[int(np.argmin(np.linalg.norm(self.points - x, axis=1)))])

    def _near(self, x: Vector) -> list[Vector]:
        return [self._nearest(x)]

    def _is_discrete(self, vertex: Vector) -> bool:
        return bool(np.abs(self._nearest(vertex) - vertex).max() <= WHOLE)

    def _whole(self, vertex: Vector) -> Vector:
        return self._nearest(vertex)

    def _improved(self, vertex: Vector, value: Value) -> Vector:
        return descend(vertex, value, lambda v: self.neighbours(v, v), limit_of(value))
