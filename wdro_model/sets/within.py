"""A set of choices with some coordinates held for good: a node of a branch and bound."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from wdro_model.sets.backends import Vector
from wdro_model.sets.feasible_set import FeasibleSet


class Within(FeasibleSet):
    """The points of a set within some bounds, by its `minimize(direction, lower, upper)`.

    Where a set takes nonnegative directions only and cannot be made to choose a coordinate, what is
    mandatory is left open: the set is then larger, and its minima are bounds all the same.
    """

    def __init__(self, whole: FeasibleSet, lower: Vector, upper: Vector) -> None:
        self.whole, self.lower, self.upper = whole, lower, upper
        self.dimension, self.is_polytope = whole.dimension, whole.is_polytope
        self.nonnegative_directions = whole.nonnegative_directions
        self.accuracy, self.backend = whole.accuracy, whole.backend
        self.preferred_direction = whole.preferred_direction
        self.bounds = (lower, upper)
        self.is_larger = False
        """Is some coordinate not held that should be?"""
        self._lower: Vector | None = lower
        if whole.nonnegative_directions and bool(np.any(lower > 0)):
            self._try(whole)
        self._is_free = self._lower is None and bool(np.all(upper >= 1))

    def _try(self, whole: FeasibleSet) -> None:
        try:
            whole.minimize_within(np.zeros(whole.dimension), self.lower, self.upper)
        except ValueError as error:
            if "nonnegative directions only" not in str(error):
                raise
            self._lower, self.is_larger = None, True
            self.bounds = (np.zeros(whole.dimension), self.upper)

    def minimize(
        self, direction: ArrayLike, lower: ArrayLike | None = None, upper: ArrayLike | None = None
    ) -> Vector:
        """The answer of the whole set within the bounds."""
        return self.minimize_with_slack(direction)[0]

    def minimize_with_slack(
        self, direction: ArrayLike, lower: ArrayLike | None = None, upper: ArrayLike | None = None
    ) -> tuple[Vector, float]:
        """The same with the slack of the whole set."""
        self.whole.calls += 1
        if self._is_free:
            return self.whole.minimize_with_slack(direction)
        return self.whole.minimize_with_slack(direction, self._lower, self.upper)

    def __repr__(self) -> str:
        return f"Within({self.whole!r})"
