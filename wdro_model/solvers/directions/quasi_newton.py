"""Blended quasi-Newton directions: a model of second order over the hull of known vertices.

The iterate is a convex combination of an active set of vertices. With d = z - x and B the BFGS
matrix of the last steps, each iteration goes towards

    argmin over z in conv(active set, oracle's vertex) of <gradient, d> + <d, B d> / 2,

a program in the weights, of the size of the active set. The oracle's vertex comes in where the
model gains by it, and vertices go that it does not need.

Where B has not led to the end in as many steps as there are vertices, it is made anew by
differences of gradients towards each of them: narrow kinks have a curvature that a few steps do not
tell. That costs as many evaluations as the steps before, so that it never more than doubles a run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdro_model.solvers.directions.active_set import ActiveSet
from wdro_model.solvers.directions.blended import WeightShift, _Blended
from wdro_model.solvers.directions.plain import DirectionState, GradientAt, Move
from wdro_model.solvers.directions.simplex_program import simplex_minimum
from wdro_model.solvers.objective import Array

DIFFERENCE = 1e-6
"""The share of the way to a vertex over which gradients are compared."""
ROUNDING = 1e-12
"""Changes of weights that are no change."""
LEAST_STEPS = 20
"""Steps before the first differences are taken, at least."""


@dataclass(frozen=True)
class BlendedNewton:
    """Towards the minimiser of a quasi-Newton model over known vertices and the oracle's.

    Superlinear once the face of the minimiser is found. An iteration costs a product of the (k, n)
    vertices with themselves and with the vectors of the model, and a quadratic program in k
    weights.
    """

    needs_line_search = True

    def start(self, x: Array, gradient_at: GradientAt) -> DirectionState:
        return _Newton(ActiveSet.at(x))

    def resume(self, active: ActiveSet) -> DirectionState:
        """The state of a run that goes on from the vertices and the model of another."""
        return _Newton(active.copy())


class _Newton(_Blended):
    def __init__(self, active: ActiveSet) -> None:
        super().__init__(active)
        self._before: tuple[Array, Array] | None = None
        """The last iterate and its gradient."""
        self.gradient_at: GradientAt | None = None
        """Gradients that may be compared; None where they are not exact."""
        self._since = 0
        """Steps since the model was made by differences."""
        self._tried = False
        """Is the oracle's vertex in the active set for a try, without weight?"""

    def propose(self, x: Array, gradient: Array, vertex: Array, gap: float) -> Move:
        active = self.active
        if self._before is not None:
            active.pairs.add(x - self._before[0], gradient - self._before[1])
        self._before = (x, gradient)
        scores = active.vertices @ gradient
        self._known, self._tried = self._find(vertex, scores, float(gradient @ vertex)), False
        if not len(active.pairs):
            return self.retreat(x, vertex)
        if self._known is None:
            active.add(vertex, 0.0)
            self._known, self._tried = len(active) - 1, True
        apart = active.vertices - x
        self._since += 1
        if self.gradient_at is not None and self._since > max(LEAST_STEPS, len(active)):
            ahead = [self.gradient_at(x + DIFFERENCE * step) for step in apart]
            active.pairs.survey(apart, (np.array(ahead) - gradient) / DIFFERENCE)
            self._since = 0
        # Weights that sum to 1 + d would sum to 1 + (1 - s) d after a step of length s.
        weights = active.weights / active.weights.sum()
        target = simplex_minimum(active.pairs.quadratic(apart), apart @ gradient, weights)
        change = target - weights
        direction = change @ active.vertices
        # A change that is rounding would be stretched until some weight ends: out of the set.
        if not gradient @ direction < 0 or np.abs(change).max() <= ROUNDING:
            return self.retreat(x, vertex)
        falling = np.flatnonzero(change < 0)
        lasts = weights[falling] / -change[falling]
        first = int(lasts.argmin())
        self._pending = WeightShift(
            slice(None), change, int(falling[first]), max(1.0, float(lasts[first]))
        )
        return Move(direction, self._pending.longest, suggested=1.0)

    def retreat(self, x: Array, vertex: Array) -> Move:
        if self._tried:
            self.active.remove(len(self.active) - 1)
            self._known, self._tried = None, False
        return super().retreat(x, vertex)
