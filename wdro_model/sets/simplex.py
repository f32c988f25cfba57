"""The simplex: shares of a total."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from wdro_model.errors import InfeasibleError
from wdro_model.sets.arguments import as_count, as_interval, as_positive
from wdro_model.sets.backends import Vector
from wdro_model.sets.feasible_set import FeasibleSet, as_direction, as_flat


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
