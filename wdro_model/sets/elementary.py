"""Elementary sets: the simplex, boxes, balls of three norms, the hull of given points."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from wdro_model.errors import InfeasibleError
from wdro_model.sets.arguments import as_count, as_interval, as_positive, as_shape, bounds_refused
from wdro_model.sets.backends import Vector
from wdro_model.sets.feasible_set import FeasibleSet, as_direction, as_flat
from wdro_model.sets.vertices import WHOLE, Value, descend, is_binary, limit_of


class Simplex(FeasibleSet):
    """{x >= 0, sum(x) = total} in R^n, or sum(x) <= total with `at_most`.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> budget = wdro.sets.Simplex(3, total=10.0, at_most=True)
    >>> budget.minimize([2.0, -1.0, 3.0]), budget.minimize([2.0, 1.0, 3.0])
    (array([ 0., 10.,  0.]), array([0., 0., 0.]))
    """

    has_constraints = True

    def __init__(self, n: int, total: float = 1.0, at_most: bool = False) -> None:
        self.dimension = as_count(n, "the dimension of a Simplex")
        self.total = as_positive(total, "the total of a Simplex")
        self.at_most = bool(at_most)
        self.bounds = (np.zeros(self.dimension), np.full(self.dimension, self.total))
        self.rounds = self.total == 1

    def minimize(
        self, direction: ArrayLike, lower: ArrayLike | None = None, upper: ArrayLike | None = None
    ) -> Vector:
        if lower is not None or upper is not None:
            return self.minimize_within(direction, lower, upper)
        given = as_direction(direction, self.dimension)
        vertex = np.zeros(self.dimension)
        cheapest = int(np.argmin(given))
        if given[cheapest] < 0 or not self.at_most:
            vertex[cheapest] = self.total
        return vertex

    def minimize_within(
        self, direction: ArrayLike, lower: ArrayLike | None, upper: ArrayLike | None
    ) -> Vector:
        """The same within bounds: the cheapest coordinates are filled up, one after the other."""
        given = as_direction(direction, self.dimension)
        assert self.bounds is not None
        low, high = as_interval(lower, upper, self.bounds)
        rounding = 1e-12 * self.dimension * self.total
        left = self.total - float(low.sum())
        if left < -rounding or (not self.at_most and self.total > float(high.sum()) + rounding):
            raise InfeasibleError(
                f"{self!r} has no point within the bounds: their sums are {low.sum():g} and "
                f"{high.sum():g}."
            )
        order = np.argsort(given, kind="stable")
        if self.at_most:
            order = order[given[order] < 0]
        room = (high - low)[order]
        before = np.concatenate([[0.0], np.cumsum(room)[:-1]]) if order.size else room
        point = low.copy()
        point[order] += np.clip(left - before, 0.0, room)
        return point

    def constraints(self, x: Any) -> list[Any]:
        flat = as_flat(x, self.dimension)
        total = cp.sum(flat)
        return [flat >= 0, total <= self.total if self.at_most else total == self.total]

    def describe(self) -> str:
        sign = "at most" if self.at_most else "to"
        return f"{self.dimension} nonnegative numbers that sum {sign} {self.total:g}"

    def __repr__(self) -> str:
        return f"Simplex({self.dimension}, total={self.total:g}, at_most={self.at_most})"


# ------------------------------
# Decisions between bounds


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


# ------------------------------
# Balls of the norms 1, 2 and infinity


NORMS = (1, 2, np.inf)


class Ball(FeasibleSet):
    """{|x - center|_p <= radius} for p = 1, 2 or inf; matrices are measured entry by entry.

    Parameters
    ----------
    shape
        n or (n, m); points are flattened in row-major order.
    center
        A number or an array of the shape.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> wdro.sets.Ball(2, p=2, radius=5.0).minimize([3.0, 4.0])
    array([-3., -4.])
    """

    has_constraints = True
    rounds = False

    def __init__(
        self, shape: int | tuple[int, ...], p: float, radius: float, center: ArrayLike = 0.0
    ) -> None:
        self.shape = as_shape(shape, "a Ball")
        self.dimension = int(np.prod(self.shape))
        if p not in NORMS:
            raise ValueError(f"a Ball is one of the norms p = 1, 2 or inf, got p = {p!r}.")
        self.p = p
        self.radius = as_positive(radius, "the radius of a Ball")
        try:
            middle = np.broadcast_to(np.asarray(center, dtype=np.float64), self.shape).flatten()
        except (TypeError, ValueError):
            raise ValueError(
                f"the center of a Ball must be a number or an array of shape {self.shape}, got "
                f"{center!r}."
            ) from None
        if not np.isfinite(middle).all():
            at = int(np.flatnonzero(~np.isfinite(middle))[0])
            raise ValueError(f"the center of a Ball must be finite, got {middle[at]} at {at}.")
        self.center = middle
        self.is_polytope = p != 2
        self.bounds = (middle - self.radius, middle + self.radius)

    def minimize(
        self, direction: ArrayLike, lower: ArrayLike | None = None, upper: ArrayLike | None = None
    ) -> Vector:
        if lower is not None or upper is not None:
            return self.minimize_within(direction, lower, upper)
        given = as_direction(direction, self.dimension)
        sizes = np.abs(given)
        largest = int(np.argmax(sizes))
        point = self.center.copy()
        if self.p == np.inf:
            point += np.where(given < 0, self.radius, -self.radius)
        elif self.p == 1 or sizes[largest] == 0:
            point[largest] += self.radius if given[largest] < 0 else -self.radius
        else:
            scaled = given / sizes[largest]
            point -= self.radius / float(np.linalg.norm(scaled)) * scaled
        return point

    def minimize_within(
        self, direction: ArrayLike, lower: ArrayLike | None, upper: ArrayLike | None
    ) -> Vector:
        """The same within bounds, for p = inf."""
        if self.p != np.inf:
            raise bounds_refused(self)
        given = as_direction(direction, self.dimension)
        assert self.bounds is not None
        low, high = as_interval(lower, upper, self.bounds)
        return np.where(given < 0, high, low)

    def constraints(self, x: Any) -> list[Any]:
        distance = as_flat(x, self.dimension) - self.center
        return [cp.norm(distance, "inf" if self.p == np.inf else self.p) <= self.radius]

    def table(self, x: ArrayLike) -> np.ndarray:
        """A point in the ball's shape."""
        return as_direction(x, self.dimension, kind="x").reshape(self.shape)

    def describe(self) -> str:
        return f"the ball of norm {self.p:g} and radius {self.radius:g} in {self.shape}"

    def __repr__(self) -> str:
        shape = self.shape[0] if len(self.shape) == 1 else self.shape
        return f"Ball({shape}, p={self.p:g}, radius={self.radius:g})"


# ------------------------------
# The convex hull of given points


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
