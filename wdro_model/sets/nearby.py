"""An unbounded set, seen from a point: what of it is near.

Over an unbounded set linear functions have no minimum, and a Frank-Wolfe gap is infinite. Within a
distance of the point it is finite, and says that no decision within this distance is better by
more; for a convex objective a decision k times as far is better by k times as much at most.
"""

from __future__ import annotations

import numpy as np
from cvxpy.error import SolverError
from numpy.typing import ArrayLike

from wdro_model.sets.backends import Vector
from wdro_model.sets.convex import ConvexSet
from wdro_model.sets.feasible_set import FeasibleSet, as_direction
from wdro_model.sets.quadratic_program import ConicQuadratic, has_only_bounds


class Nearby(FeasibleSet):
    """The points of an unbounded set within a distance of a point that moves along.

    The distance is that of the largest entry: the size of the point, at least 1.
    """

    has_constraints = True
    is_bounded = False

    def __init__(self, whole: ConvexSet) -> None:
        self.whole, self.dimension = whole, whole.dimension
        self.bounds, self.accuracy = whole.bounds, whole.accuracy
        self.is_polytope = whole.is_polytope
        self.rounds = False
        program = whole.program
        self._linear = None if has_only_bounds(program) else ConicQuadratic(program, boxed=True)
        self._limits = (program.lower, program.upper)
        self.point = np.zeros(self.dimension)
        if self._linear is None:
            self.point = np.clip(self.point, *self._limits)

    @property
    def reach(self) -> float:
        """The distance within which linear functions are minimised."""
        return max(1.0, float(np.abs(self.point).max(initial=0.0)))

    def seen_from(self, x: Vector) -> None:
        self.point = np.array(x, dtype=float)

    def minimize(
        self, direction: ArrayLike, lower: ArrayLike | None = None, upper: ArrayLike | None = None
    ) -> Vector:
        if lower is not None or upper is not None:
            return self.whole.minimize(direction, lower, upper)
        gradient = as_direction(direction, self.dimension)
        if self._linear is None:
            return np.clip(self.point - self.reach * np.sign(gradient), *self._limits)
        found = self._linear.minimize(gradient, None, self.point, self.reach)
        if found is None:
            raise SolverError(
                f"no minimiser of a linear function was found near a point of {self.whole!r}; "
                "rescale the constraints so that their coefficients have similar sizes."
            )
        return found

    def check_bounded(self) -> None:
        self.whole.check_bounded()

    def check_nonempty(self) -> None:
        self.whole.check_nonempty()

    def constraints(self, x: object) -> list[object]:
        return self.whole.constraints(x)

    def contains(self, x: ArrayLike, tolerance: float = 1e-6) -> bool:
        return self.whole.contains(x, tolerance)

    def is_current(self) -> bool:
        return self.whole.is_current()

    def reset(self) -> None:
        self.whole.reset()

    def describe(self) -> str:
        return f"{self.whole.describe()}, unbounded"

    def __repr__(self) -> str:
        return repr(self.whole)
