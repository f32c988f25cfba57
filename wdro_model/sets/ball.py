"""Balls of the norms 1, 2 and infinity."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from wdro_model.sets.arguments import as_interval, as_positive, as_shape, bounds_refused
from wdro_model.sets.backends import Vector
from wdro_model.sets.feasible_set import FeasibleSet, as_direction, as_flat

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
