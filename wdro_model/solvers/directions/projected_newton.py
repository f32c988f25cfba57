"""Projected quasi-Newton directions: a model of second order over the set itself.

With d = z - x and B the BFGS matrix of the last steps, each iteration goes towards

    argmin over z in X of <gradient, d> + <d, B d> / 2

(Schmidt, van den Berg, Friedlander and Murphy, 2009). Unlike vertices and their combinations, these
directions do not mind that the minimiser lies inside the set or on a curved part of its boundary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdro_model.sets.quadratic_program import QuadraticMinimizer, newton_point
from wdro_model.solvers.directions.plain import DirectionState, GradientAt, Move
from wdro_model.solvers.directions.secant_pairs import SecantPairs
from wdro_model.solvers.objective import Array

RIDGE = 1e-12
"""Added to B, as a share of its largest entry: rounding must not make it indefinite."""
FARTHER = 100.0
"""Without constraints a step may be so many times as long as the model thinks."""


@dataclass(frozen=True)
class ProjectedNewton:
    """Towards the minimiser of a quasi-Newton model over the set.

    Superlinear near the minimiser. An iteration costs an (n, n) matrix and a quadratic program over
    the set.
    """

    minimizer: QuadraticMinimizer
    needs_line_search = True

    def start(self, x: Array, gradient_at: GradientAt) -> DirectionState:
        return _Projected(self.minimizer)

    def __str__(self) -> str:
        return "projected quasi-Newton"


class _Projected:
    def __init__(self, minimizer: QuadraticMinimizer) -> None:
        self._minimizer, self._pairs = minimizer, SecantPairs()
        self._before: tuple[Array, Array] | None = None

    def propose(self, x: Array, gradient: Array, vertex: Array, gap: float) -> Move:
        if self._before is not None:
            self._pairs.add(x - self._before[0], gradient - self._before[1])
        self._before = (x.copy(), gradient)
        target = self._minimizer(gradient, self._curvature(x, gradient), x)
        if target is None or not gradient @ (target - x) < 0:
            return self.retreat(x, vertex)
        longest = FARTHER if self._minimizer is newton_point else 1.0
        return Move(target - x, longest, suggested=1.0)

    def retreat(self, x: Array, vertex: Array) -> Move:
        return Move(vertex - x, is_plain=True)

    def accept(self, step: float) -> Array | None:
        return None

    def _curvature(self, x: Array, gradient: Array) -> Array:
        """B; before the first step a multiple of the identity that goes as far as x is large."""
        if not len(self._pairs):
            steep = float(np.linalg.norm(gradient)) / max(1.0, float(np.linalg.norm(x)))
            return max(steep, 1e-300) * np.eye(x.size)
        found = self._pairs.quadratic(np.eye(x.size))
        found = 0.5 * (found + found.T)
        found[np.diag_indices(x.size)] += RIDGE * float(np.abs(np.diag(found)).max())
        return found
