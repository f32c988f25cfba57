"""Projected quasi-Newton directions: a model of second order over the set itself.

With d = z - x and B the BFGS matrix of the last steps, each iteration goes towards

    argmin over z in X of <gradient, d> + <d, B d> / 2

(Schmidt, van den Berg, Friedlander and Murphy, 2009). Unlike vertices and their combinations, these
directions do not mind that the minimiser lies inside the set or on a curved part of its boundary.

B begins with a multiple of the identity; where the objective is a sum over coordinates once its
adversary is held, with the second derivatives of that sum, and the steps then tell the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wdro_model.sets.deadlines import check_deadline
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.sets.quadratic_program import QuadraticMinimizer, newton_point
from wdro_model.solvers.directions.conjugate import Conjugate
from wdro_model.solvers.directions.plain import DirectionState, GradientAt, Move
from wdro_model.solvers.directions.secant_pairs import SecantPairs
from wdro_model.solvers.objective import Array

RIDGE = 1e-12
"""Added to B, as a share of its largest entry: rounding must not make it indefinite."""
FARTHER = 100.0
"""Without constraints a step may be so many times as long as the model thinks."""
DIFFERENCE = 1e-5
"""The share of a coordinate over which gradients are compared."""
SEPARATE = 1e-3
"""Differences along two directions that agree to this share are those of a sum over coordinates."""
FLATTEST = 1e-3
"""The least second derivative, as a share of the median: coordinates that are not curved."""
CLOSE = 0.02
"""The gap of a model over an oracle's set, as a share of that at x."""
MOST_CALLS = 400
"""Calls of the oracle for one model, at most."""


@dataclass(frozen=True)
class ProjectedNewton:
    """Towards the minimiser of a quasi-Newton model over the set.

    Superlinear near the minimiser. An iteration costs an (n, n) matrix and a quadratic program over
    the set.
    """

    minimizer: QuadraticMinimizer
    needs_line_search = True

    def start(self, x: Array, gradient_at: GradientAt) -> DirectionState:
        return _Projected(self.minimizer, dense=True)

    def __str__(self) -> str:
        return "projected quasi-Newton"


@dataclass(frozen=True)
class OracleNewton:
    """Towards the minimiser of a quasi-Newton model over a set that is known by its oracle.

    The model is minimised by conjugate Frank-Wolfe steps, for many calls of the oracle and no
    evaluation of the objective: for sets with a fast oracle, and objectives that take longer.
    """

    oracle: FeasibleSet | None = None
    needs_line_search = True

    def over(self, feasible: FeasibleSet) -> OracleNewton:
        """The rule for one set."""
        return replace(self, oracle=feasible)

    def start(self, x: Array, gradient_at: GradientAt) -> DirectionState:
        assert self.oracle is not None
        return _Projected(OracleQuadratic(self.oracle), dense=False)

    def __repr__(self) -> str:
        return "OracleNewton()"


class OracleQuadratic:
    """A quadratic function minimised over a set by its oracle, to a share of the gap at x."""

    def __init__(self, feasible: FeasibleSet) -> None:
        self.feasible = feasible

    def __call__(self, gradient: Array, curvature: Any, x: Array) -> Array:
        feasible, state = self.feasible, Conjugate(memory=2).start(x, lambda y: gradient)
        z, slope, allowed = x, gradient, -np.inf
        for _ in range(MOST_CALLS):
            check_deadline()
            # Away from x the model may fall along what the oracle takes for costs.
            costs = np.maximum(slope, 0.0) if feasible.nonnegative_directions else slope
            vertex = feasible.minimize(costs)
            feasible.calls += 1
            gap = float(slope @ (z - vertex))
            allowed = CLOSE * gap if z is x else allowed
            if gap <= allowed:
                break
            move = state.propose(z, slope, vertex, gap)
            bent = curvature @ move.direction
            falls, bends = -float(slope @ move.direction), float(move.direction @ bent)
            step = move.longest if bends <= 0 else min(move.longest, falls / bends)
            if not step > 0:
                break
            z, slope = z + step * move.direction, slope + step * bent
            state.accept(step)
        return z


class _Projected:
    def __init__(self, minimizer: QuadraticMinimizer, dense: bool) -> None:
        self._minimizer, self._dense, self._pairs = minimizer, dense, SecantPairs()
        self._before: tuple[Array, Array] | None = None
        self.held: GradientAt | None = None
        """Gradients at other decisions, the adversary being that of x; None where not known."""
        self._diagonal: Array | None = None
        """Second derivatives of a sum over coordinates, where they were known last."""
        self._separate: bool | None = None
        """Is the objective such a sum?"""

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

    def _curvature(self, x: Array, gradient: Array) -> Any:
        """B; before the first step a multiple of the identity that goes as far as x is large."""
        self._note_derivatives(x, gradient)
        base = self._diagonal
        if base is None and not len(self._pairs):
            steep = float(np.linalg.norm(gradient)) / max(1.0, float(np.linalg.norm(x)))
            base = np.full(x.size, max(steep, 1e-300))
        found = self._pairs.matrix(x.size, base)
        if not self._dense:
            return found
        matrix = found.dense()
        matrix[np.diag_indices(x.size)] += RIDGE * float(np.abs(np.diag(matrix)).max())
        return matrix

    def _note_derivatives(self, x: Array, gradient: Array) -> None:
        """Second derivatives by differences, where the objective is a sum over coordinates."""
        if self.held is None or self._separate is False:
            return
        size = np.abs(x)
        step = DIFFERENCE * (size + (size.mean() or 1.0))
        found = (self.held(x + step) - gradient) / step
        if self._separate is None:
            other = step * np.where(np.arange(x.size) % 2, -0.5, 0.5)
            apart = np.abs((self.held(x + other) - gradient) / other - found)
            self._separate = bool(apart.max() <= SEPARATE * np.abs(found).max())
        curved = found[found > 0]
        if self._separate and curved.size:
            self._diagonal = np.maximum(found, FLATTEST * np.median(curved))
