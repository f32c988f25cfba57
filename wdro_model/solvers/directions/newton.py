"""Quasi-Newton models from secant pairs, and projected quasi-Newton directions over a set.

The BFGS matrix of m pairs in compact form (Byrd, Nocedal and Schnabel, 1994), with s_i the columns
of S and y_i those of Y, theta = y'y / s'y of the last pair:

    B = B_0 - W M^-1 W',   W = [B_0 S, Y],   M = [[S' B_0 S, L], [L', -D]],   B_0 = theta I,

D the diagonal of S'Y and L what is strictly below it. Other diagonal matrices may stand for B_0.

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
from wdro_model.solvers.directions.rules import (
    Conjugate,
    DirectionRule,
    DirectionState,
    GradientSource,
    Move,
)
from wdro_model.solvers.objective import Array

MOST_PAIRS = 40
"""Pairs that are kept, beside those of a survey."""
LEAST_PAIR_CURVATURE = 1e-8
"""Pairs whose curvature s'y is less than this share of |s| |y| say nothing."""
LEAST_SURVEY_CURVATURE = 1e-10
"""Curvatures of a survey below this share of the largest are rounding."""


@dataclass(frozen=True)
class BfgsMatrix:
    """B as a diagonal matrix less one of low rank: products cost no (n, n) matrix."""

    base: Array
    """The diagonal of B_0, (n,)."""
    along: Array
    """W', (2m, n)."""
    solved: Array
    """M^-1 W'."""

    def __matmul__(self, vector: Array) -> Array:
        return self.base * vector - self.along.T @ (self.solved @ vector)

    def dense(self) -> Array:
        """B as an (n, n) matrix, exactly symmetric."""
        matrix = np.diag(self.base) - self.along.T @ self.solved
        return 0.5 * (matrix + matrix.T)


class SecantPairs:
    """Pairs (s, y) of one objective, or of several that are nearly the same."""

    def __init__(self) -> None:
        self._steps: list[Array] = []
        self._changes: list[Array] = []
        self._surveyed = 0

    def __len__(self) -> int:
        return len(self._steps)

    def copy(self) -> SecantPairs:
        """The same pairs in lists of their own."""
        twin = SecantPairs()
        twin._steps, twin._changes = list(self._steps), list(self._changes)
        twin._surveyed = self._surveyed
        return twin

    def add(self, step: Array, change: Array) -> None:
        """Append a pair, if the objective is curved along the step."""
        curvature = float(step @ change)
        size = float(np.linalg.norm(step) * np.linalg.norm(change))
        if np.isfinite(size) and curvature > LEAST_PAIR_CURVATURE * size > 0:
            self._steps.append(step)
            self._changes.append(change)
            if len(self) > self._surveyed + MOST_PAIRS:
                # The pairs of the survey stay: nothing else knows of all directions.
                del self._steps[self._surveyed], self._changes[self._surveyed]

    def survey(self, steps: Array, changes: Array) -> None:
        """Replace all pairs by pairs (k, n) that were measured at one point, along any directions.

        The pairs are combined to conjugate steps, s_i'y_j = 0, so that B satisfies all of them.
        """
        products = steps @ changes.T
        curvatures, mixtures = np.linalg.eigh(0.5 * (products + products.T))
        kept = curvatures > LEAST_SURVEY_CURVATURE * curvatures[-1]
        if kept.any():
            self._steps = list(mixtures[:, kept].T @ steps)
            self._changes = list(mixtures[:, kept].T @ changes)
            self._surveyed = len(self._steps)

    def quadratic(self, rows: Array) -> Array:
        """The products rows B rows', (k, k), for vectors in rows (k, n)."""
        base = self._theta()
        along, solved = self._compact(np.array(self._steps) * base, rows)
        return base * (rows @ rows.T) - along.T @ solved

    def matrix(self, size: int, base: Array | None = None) -> BfgsMatrix:
        """B as an operator on R^size; base: the diagonal of B_0, theta by default."""
        if not len(self):
            assert base is not None
            none = np.zeros((0, size))
            return BfgsMatrix(base, none, none)
        base = np.full(size, self._theta()) if base is None else base
        return BfgsMatrix(base, *self._compact(np.array(self._steps) * base))

    def _theta(self) -> float:
        last = self._changes[-1]
        return float(last @ last) / float(self._steps[-1] @ last)

    def _compact(self, based: Array, rows: Array | None = None) -> tuple[Array, Array]:
        """W' and M^-1 W', their columns multiplied by rows where some are given.

        based: the rows of S' B_0.
        """
        S, Y = np.array(self._steps), np.array(self._changes)
        products = S @ Y.T
        below = np.tril(products, -1)
        middle = np.block([[based @ S.T, below], [below.T, -np.diag(np.diag(products))]])
        along = np.concatenate([based, Y])
        along = along if rows is None else along @ rows.T
        # Steps may differ by orders of magnitude: M is scaled to units on its diagonal.
        scale = 1.0 / np.sqrt(np.abs(np.diag(middle)))
        along = along * scale[:, None]
        middle *= np.outer(scale, scale)
        try:
            return along, np.linalg.solve(middle, along)
        except np.linalg.LinAlgError:
            return along, np.linalg.lstsq(middle, along, rcond=1e-14)[0]


# ------------------------------
# Projected quasi-Newton directions: a model of second order over the set itself


RIDGE = 1e-12
"""Added to B, as a share of its largest entry: rounding must not make it indefinite."""
LONGEST_FREE_STEP = 100.0
"""Longest step without constraints, in steps of the model."""
DIFFERENCE = 1e-5
"""The share of a coordinate over which gradients are compared."""
SEPARATE = 1e-3
"""Differences along two directions that agree to this share are those of a sum over coordinates."""
LEAST_DERIVATIVE = 1e-3
"""The least second derivative, as a share of the median: for coordinates that are not curved."""
MODEL_GAP = 0.02
"""The gap to which a model is minimised over an oracle's set, as a share of that at x."""
MOST_CALLS = 400
"""Calls of the oracle for one model, at most."""


@dataclass(frozen=True)
class ProjectedNewton(DirectionRule):
    """Towards the minimiser of a quasi-Newton model over the set.

    Superlinear near the minimiser. An iteration costs an (n, n) matrix and a quadratic program over
    the set.
    """

    minimizer: QuadraticMinimizer

    def start(self, x: Array, gradient_at: GradientSource) -> DirectionState:
        return NewtonState(self.minimizer, gradient_at, dense=True)

    def __str__(self) -> str:
        return "projected quasi-Newton"


@dataclass(frozen=True)
class OracleNewton(DirectionRule):
    """Towards the minimiser of a quasi-Newton model over a set that is known by its oracle.

    The model is minimised by conjugate Frank-Wolfe steps, for many calls of the oracle and no
    evaluation of the objective: for sets with a fast oracle, and objectives that take longer.
    """

    oracle: FeasibleSet | None = None

    def over(self, feasible: FeasibleSet) -> OracleNewton:
        return replace(self, oracle=feasible)

    def start(self, x: Array, gradient_at: GradientSource) -> DirectionState:
        assert self.oracle is not None
        return NewtonState(OracleQuadratic(self.oracle), gradient_at, dense=False)

    def __repr__(self) -> str:
        return "OracleNewton()"


class OracleQuadratic:
    """A quadratic function minimised over a set by its oracle, to a share of the gap at x."""

    def __init__(self, feasible: FeasibleSet) -> None:
        self.feasible = feasible

    def __call__(self, gradient: Array, curvature: Any, x: Array) -> Array:
        feasible = self.feasible
        state = Conjugate(memory=2).start(x, GradientSource(lambda y: gradient))
        z, slope, allowed = x, gradient, -np.inf
        for _ in range(MOST_CALLS):
            check_deadline()
            # Away from x the model may have negative slopes, which such an oracle refuses.
            costs = np.maximum(slope, 0.0) if feasible.nonnegative_directions else slope
            vertex = feasible.minimize(costs)
            feasible.calls += 1
            gap = float(slope @ (z - vertex))
            allowed = MODEL_GAP * gap if z is x else allowed
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


class NewtonState(DirectionState):
    """The model of a run: secant pairs, and second derivatives where they are known."""

    def __init__(
        self, minimizer: QuadraticMinimizer, gradient_at: GradientSource, dense: bool
    ) -> None:
        self._minimizer, self._gradient_at, self._dense = minimizer, gradient_at, dense
        self._pairs = SecantPairs()
        self._before: tuple[Array, Array] | None = None
        self._diagonal: Array | None = None
        """Second derivatives of a sum over coordinates, where they were known last."""
        self._is_separate: bool | None = None
        """Whether the objective is such a sum; None if not known yet."""

    def propose(self, x: Array, gradient: Array, vertex: Array, gap: float) -> Move:
        if self._before is not None:
            self._pairs.add(x - self._before[0], gradient - self._before[1])
        self._before = (x.copy(), gradient)
        target = self._minimizer(gradient, self.curvature(x, gradient), x)
        if target is None or not gradient @ (target - x) < 0:
            return self.retreat(x, vertex)
        longest = LONGEST_FREE_STEP if self._minimizer is newton_point else 1.0
        return Move(target - x, longest, suggested=1.0)

    def curvature(self, x: Array, gradient: Array) -> Any:
        """B; before the first step a multiple of the identity, for a step about as long as x."""
        self._note_derivatives(x, gradient)
        base = self._diagonal
        if base is None and not len(self._pairs):
            steep = float(np.linalg.norm(gradient)) / max(1.0, float(np.linalg.norm(x)))
            base = np.full(x.size, max(steep, 1e-300))
        model = self._pairs.matrix(x.size, base)
        if not self._dense:
            return model
        matrix = model.dense()
        matrix[np.diag_indices(x.size)] += RIDGE * float(np.abs(np.diag(matrix)).max())
        return matrix

    def _note_derivatives(self, x: Array, gradient: Array) -> None:
        """Second derivatives by differences, where the objective is a sum over coordinates."""
        held = None if self._is_separate is False else self._gradient_at.fixed_adversary()
        if held is None:
            return
        size = np.abs(x)
        step = DIFFERENCE * (size + (size.mean() or 1.0))
        derivatives = (held(x + step) - gradient) / step
        if self._is_separate is None:
            other = step * np.where(np.arange(x.size) % 2, -0.5, 0.5)
            apart = np.abs((held(x + other) - gradient) / other - derivatives)
            self._is_separate = bool(apart.max() <= SEPARATE * np.abs(derivatives).max())
        curved = derivatives[derivatives > 0]
        if self._is_separate and curved.size:
            self._diagonal = np.maximum(derivatives, LEAST_DERIVATIVE * np.median(curved))
