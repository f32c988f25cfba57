"""Blended directions: move weight among known vertices first, else ask the oracle.

The iterate is a convex combination of an active set of vertices. Pairwise and conjugate directions
move weight within the active set if the best that a pair of its vertices promises is at least the
Frank-Wolfe gap, and else take a Frank-Wolfe step towards the oracle's vertex.

Newton directions go, with d = z - x and B the BFGS matrix of the last steps, towards

    argmin over z in conv(active set, oracle's vertex) of <gradient, d> + <d, B d> / 2,

a quadratic program in the weights. The oracle's vertex enters if the model gains by it, and those
of weight 0 leave. After as many steps as there are vertices, B is built anew from differences of
gradients towards each vertex: a few steps do not show the curvature of narrow kinks. This costs as
many evaluations as the steps before, so that a run takes at most twice as many. The program's cost
grows with the cube of the active set: above `MOST_VERTICES`, conjugate directions go on from the
same weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from wdro_model.solvers.directions.newton import SecantPairs
from wdro_model.solvers.directions.rules import (
    DirectionRule,
    DirectionState,
    GradientSource,
    Move,
)
from wdro_model.solvers.objective import Array

SPARSE_DIMENSION, SPARSE_SHARE = 512, 0.05
"""Vertices with at least this many coordinates, of which at most this share is nonzero, are kept
as a sparse matrix: a path in a large graph uses few of its arcs."""


class ActiveSet:
    """Vertices v_i and weights w_i >= 0 that sum to 1; the point is sum_i w_i v_i.

    Examples
    --------
    >>> import numpy as np, wdro_model as wdro
    >>> active = wdro.solvers.ActiveSet(np.eye(3)[:2], np.array([0.25, 0.75]))
    >>> active.x
    array([0.25, 0.75, 0.  ])
    >>> active.add(np.eye(3)[2], 1.0)
    >>> active.normalise()
    >>> active.x
    array([0.125, 0.375, 0.5  ])
    """

    def __init__(self, vertices: Any, weights: Array) -> None:
        weights = np.array(weights, dtype=float)
        vertices = vertices.tocsr() if sp.issparse(vertices) else np.array(vertices, dtype=float)
        if vertices.ndim != 2 or weights.shape != vertices.shape[:1] or not len(weights):
            raise ValueError(
                "an active set takes vertices (k, n) and weights (k,), got shapes "
                f"{vertices.shape} and {weights.shape}."
            )
        if not (weights >= 0).all() or not abs(weights.sum() - 1.0) <= 1e-6:
            raise ValueError(
                "weights of an active set must be nonnegative and sum to 1, got a sum of "
                f"{weights.sum():g} and a least weight of {weights.min():g}."
            )
        self.weights = weights
        """(k,)."""
        self.matrix: Any = compact(vertices)
        """The vertices (k, n), an array or a sparse matrix."""
        self.pairs = SecantPairs()
        """The objective's curvature along the steps so far, for rules that ask."""

    @classmethod
    def at(cls, x: Array) -> ActiveSet:
        """The active set of one point."""
        return cls(x[None], np.ones(1))

    def copy(self) -> ActiveSet:
        """An active set of its own arrays."""
        twin = ActiveSet(self.matrix, self.weights / self.weights.sum())
        twin.pairs = self.pairs.copy()
        return twin

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def vertices(self) -> Array:
        """The vertices (k, n) as an array."""
        return self.matrix.toarray() if sp.issparse(self.matrix) else np.asarray(self.matrix)

    def vertex(self, index: int) -> Array:
        """The vertex of an index, (n,)."""
        row = self.matrix[[index]]
        return np.asarray(row.toarray() if sp.issparse(row) else row)[0]

    @property
    def dimension(self) -> int:
        return int(self.matrix.shape[1])

    @property
    def x(self) -> Array:
        """The point sum_i w_i v_i, (n,)."""
        return np.asarray(self.weights @ self.matrix)

    def normalise(self) -> None:
        """Make the weights sum to 1 again, against rounding."""
        self.weights /= self.weights.sum()

    def add(self, vertex: Array, weight: float) -> None:
        """Append a vertex with a weight."""
        row = compact(vertex[None])
        if sp.issparse(self.matrix) and sp.issparse(row):
            self.matrix = sp.vstack([self.matrix, row], format="csr")
        else:
            self.matrix = np.vstack([self.vertices, vertex])
        self.weights = np.append(self.weights, weight)

    def keep(self, which: Array) -> None:
        """Drop all vertices but those of some indices, or of a mask."""
        self.matrix, self.weights = self.matrix[which], self.weights[which]

    def select(self, which: Array, weights: Array) -> ActiveSet:
        """A new active set of the vertices with these indices."""
        return ActiveSet(self.matrix[which], weights)

    def __repr__(self) -> str:
        return f"ActiveSet({len(self)} vertices of dimension {self.dimension})"


def compact(vertices: Any) -> Any:
    """Vertices (k, n) as a sparse matrix where they are long and mostly zero, else as an array."""
    entries = vertices.nnz if sp.issparse(vertices) else np.count_nonzero(vertices)
    size = vertices.shape[0] * vertices.shape[1]
    if vertices.shape[1] >= SPARSE_DIMENSION and entries <= SPARSE_SHARE * size:
        return sp.csr_array(vertices)
    return vertices.toarray() if sp.issparse(vertices) else vertices


# ------------------------------
# Moves of weight among the vertices


class BlendedState(DirectionState):
    """The weights of the known vertices during one run."""

    LEAST_WEIGHT = 1e-14
    """Vertices with less weight are dropped."""
    SAME_VERTEX = 1e-12
    """Relative difference of coordinates below which vertices are the same: LP solvers round."""
    REFRESH = 50
    """Steps after which the iterate is recomputed from the weights, against rounding drift."""

    def __init__(self, active: ActiveSet, gradient_at: GradientSource) -> None:
        self.active: ActiveSet = active
        self.gradient_at = gradient_at
        self._pending: WeightShift | Array | None = None
        self._known: int | None = None
        """The index of the oracle's vertex in the active set, if it is there."""
        self._steps = 0

    def propose(self, x: Array, gradient: Array, vertex: Array, gap: float) -> Move:
        scores = self.active.matrix @ gradient
        away, local = int(scores.argmax()), int(scores.argmin())
        self._known = self._index_of(vertex, scores, float(gradient @ vertex))
        if away == local or scores[away] - scores[local] < gap:
            return self.retreat(x, vertex)
        self._pending = self._choose_shift(scores, away, local)
        rows = self.active.matrix[self._pending.where]
        return Move(np.asarray(self._pending.change @ rows), self._pending.longest)

    def retreat(self, x: Array, vertex: Array) -> Move:
        self._pending = vertex
        return Move(vertex - x, is_plain=True)

    def accept(self, step: float) -> Array | None:
        shift = self._pending
        assert shift is not None
        if isinstance(shift, WeightShift):
            weights = self.active.weights
            weights[shift.where] += step * shift.change
            if step == shift.longest:
                weights[shift.blocking] = 0.0
        else:  # a share of all weight goes to the oracle's vertex
            self.active.weights *= 1.0 - step
            if self._known is None:
                self.active.add(shift, step)
            else:
                self.active.weights[self._known] += step
        heavy = self.active.weights > self.LEAST_WEIGHT
        if not heavy.all():
            self.active.keep(heavy)
        self._observe_step(changed=not heavy.all() or not isinstance(shift, WeightShift))
        self._steps += 1
        if self._steps % self.REFRESH:
            return None
        self.active.normalise()
        return self.active.x

    def _choose_shift(self, scores: Array, away: int, local: int) -> WeightShift:
        """A descent direction in the weights; scores are <gradient, vertex>."""
        raise NotImplementedError

    def _observe_step(self, changed: bool) -> None:
        """Note a step, and whether it changed the active set."""

    def _index_of(self, vertex: Array, scores: Array, score: float) -> int | None:
        """The index of a vertex in the active set: only those that score as low can be the same."""
        margin = self.SAME_VERTEX * max(abs(score), float(np.abs(scores).max()))
        distance = self.SAME_VERTEX * float(np.abs(vertex).max())
        for index in np.flatnonzero(scores <= score + margin):
            if np.abs(self.active.vertex(int(index)) - vertex).max() <= distance:
                return int(index)
        return None


@dataclass(frozen=True)
class WeightShift:
    """A change of weights per unit of step, and the weight that it uses up first."""

    where: slice | list[int]
    change: Array
    blocking: int
    longest: float

    @classmethod
    def of_all(cls, weights: Array, change: Array, least: float = 0.0) -> WeightShift:
        """A change of all weights; its longest step is at least `least`, against rounding."""
        falling = np.flatnonzero(change < 0)
        lasts = weights[falling] / -change[falling]
        first = int(lasts.argmin())
        return cls(slice(None), change, int(falling[first]), max(least, float(lasts[first])))


@dataclass(frozen=True)
class BlendedRule(DirectionRule):
    """A rule that keeps an active set, and goes on from that of an earlier run."""

    state: ClassVar[type[BlendedState]]

    def start(self, x: Array, gradient_at: GradientSource) -> DirectionState:
        return self.state(ActiveSet.at(x), gradient_at)

    def resume(self, active: ActiveSet, gradient_at: GradientSource) -> DirectionState:
        return self.state(active.copy(), gradient_at)


class PairwiseState(BlendedState):
    """Weight goes from one vertex to another."""

    def _choose_shift(self, scores: Array, away: int, local: int) -> WeightShift:
        change = np.array([-1.0, 1.0])
        return WeightShift([away, local], change, away, float(self.active.weights[away]))


class ConjugateState(BlendedState):
    """Conjugate gradients in the weights."""

    LEAST_COSINE = 1e-3
    """The least descent, as a cosine with the steepest, of a direction that is not restarted."""

    def __init__(self, active: ActiveSet, gradient_at: GradientSource) -> None:
        super().__init__(active, gradient_at)
        self._last: tuple[Array, Array] | None = None
        """Steepest descent and change of the last shift, on the same vertices."""
        self._proposed: tuple[Array, Array] | None = None

    def _choose_shift(self, scores: Array, away: int, local: int) -> WeightShift:
        steepest = scores.mean() - scores
        steepest -= steepest.mean()
        change = self._conjugate(steepest)
        self._proposed = (steepest, change)
        return WeightShift.of_all(self.active.weights, change)

    def _conjugate(self, steepest: Array) -> Array:
        """steepest + beta * last change, beta by Hestenes and Stiefel, or the steepest descent."""
        if self._last is None:
            return steepest
        before, change = self._last
        bend = before - steepest
        curvature = float(change @ bend)
        if not curvature > 0:
            return steepest
        new = steepest + max(0.0, -float(steepest @ bend) / curvature) * change
        least = self.LEAST_COSINE * float(np.linalg.norm(steepest) * np.linalg.norm(new))
        return new if steepest @ new > least else steepest

    def _observe_step(self, changed: bool) -> None:
        self._last, self._proposed = None if changed else self._proposed, None


class NewtonState(ConjugateState):
    """A quasi-Newton model over few vertices, conjugate gradients in the weights of many."""

    MOST_VERTICES, MOST_NUMBERS = 60, 2**16
    """Vertices, and numbers in them, up to which the model is used. More: each iteration solves
    larger systems (140 s rather than 2 s to project on a simplex of 1000 vertices). Fewer: twice
    as many evaluations of objectives that take long (smoothed ones over a face of 60)."""
    DIFFERENCE = 1e-6
    """The share of the way to a vertex over which gradients are compared."""
    LEAST_CHANGE = 1e-12
    """Changes of weights below this are rounding."""
    LEAST_STEPS = 20
    """Steps before the first differences are taken, at least."""

    def __init__(self, active: ActiveSet, gradient_at: GradientSource) -> None:
        super().__init__(active, gradient_at)
        self._before: tuple[Array, Array] | None = None
        """The last iterate and its gradient."""
        self._steps_since_survey = 0
        self._is_tried = False
        """Whether the oracle's vertex is in the active set for a try, without weight."""

    def propose(self, x: Array, gradient: Array, vertex: Array, gap: float) -> Move:
        active, self._is_tried = self.active, False
        if len(active) > min(self.MOST_VERTICES, self.MOST_NUMBERS // x.size):
            self._before = None
            return super().propose(x, gradient, vertex, gap)
        if self._before is not None:
            active.pairs.add(x - self._before[0], gradient - self._before[1])
        self._before = (x, gradient)
        vertices = active.vertices
        self._known = self._index_of(vertex, vertices @ gradient, float(gradient @ vertex))
        if not len(active.pairs):
            return self.retreat(x, vertex)
        if self._known is None:
            active.add(vertex, 0.0)
            self._known, self._is_tried = len(active) - 1, True
            vertices = active.vertices
        apart = vertices - x
        self._survey(x, gradient, apart)
        # Rounding: a sum of weights 1 + d would become 1 + (1 - s) d after a step of length s.
        weights = active.weights / active.weights.sum()
        target = simplex_minimum(active.pairs.quadratic(apart), apart @ gradient, weights)
        change = target - weights
        direction = change @ vertices
        # A change as small as rounding, scaled until a weight is 0, would lead out of the set.
        if not gradient @ direction < 0 or np.abs(change).max() <= self.LEAST_CHANGE:
            return self.retreat(x, vertex)
        self._pending = WeightShift.of_all(weights, change, least=1.0)
        return Move(direction, self._pending.longest, suggested=1.0)

    def retreat(self, x: Array, vertex: Array) -> Move:
        if self._is_tried:
            self.active.keep(np.arange(len(self.active) - 1))
            self._known, self._is_tried = None, False
        return super().retreat(x, vertex)

    def _survey(self, x: Array, gradient: Array, apart: Array) -> None:
        """Build the model anew from differences of gradients, once enough steps were taken."""
        self._steps_since_survey += 1
        enough = max(self.LEAST_STEPS, len(apart))
        if self.gradient_at.is_exact and self._steps_since_survey > enough:
            ahead = [self.gradient_at(x + self.DIFFERENCE * step) for step in apart]
            self.active.pairs.survey(apart, (np.array(ahead) - gradient) / self.DIFFERENCE)
            self._steps_since_survey = 0


@dataclass(frozen=True)
class BlendedPairwise(BlendedRule):
    """Within the active set, weight goes from the worst vertex to the best.

    Linear convergence on polytopes (Tsuji, Tanaka and Pokutta, 2022).

    Examples
    --------
    >>> import wdro_model as wdro
    >>> wdro.solvers.FrankWolfe(direction=wdro.solvers.BlendedPairwise()).direction
    BlendedPairwise()
    """

    state = PairwiseState


@dataclass(frozen=True)
class BlendedConjugate(BlendedRule):
    """Within the active set, conjugate gradients in the weights, restarted when the set changes.

    The blended scheme of Braun, Pokutta, Tu and Wright (2019) with conjugate directions: the face
    spanned by k vertices is searched in all its dimensions at once, where pairwise steps take them
    two by two. Costs one more product with the (k, n) vertices in an iteration.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> wdro.solvers.FrankWolfe(direction="blended_conjugate").direction
    'blended_conjugate'
    """

    state = ConjugateState


@dataclass(frozen=True)
class BlendedNewton(BlendedRule):
    """Towards the minimiser of a quasi-Newton model over known vertices and the oracle's.

    Superlinear once the face of the minimiser is found, if it has few vertices.
    """

    state = NewtonState


# ------------------------------
# min of <w, H w>/2 + <c, w> over w >= 0, sum w = 1, by an active set that begins at a known point


RIDGE = 1e-13
"""Added to the diagonal of H, relative to its mean: vertices may depend on each other."""
ENTERING_GAIN = 1e-12
"""Entries enter if they lower the objective by more than this, relative to its gradients."""


def simplex_minimum(matrix: Array, linear: Array, start: Array) -> Array:
    """The minimiser w (k,), or a point below the start where that takes more than 4 k steps."""
    size = len(linear)
    matrix = matrix + RIDGE * max(float(np.trace(matrix)) / size, 1e-300) * np.eye(size)
    weights = start / start.sum()
    free = weights > 0
    for _ in range(4 * size + 10):
        target = np.zeros(size)
        target[free], price = face_minimum(matrix[np.ix_(free, free)], linear[free])
        falling = free & (target < 0)
        if falling.any():
            lasts = np.full(size, np.inf)
            lasts[falling] = weights[falling] / (weights[falling] - target[falling])
            blocking = int(lasts.argmin())
            weights = np.maximum(weights + lasts[blocking] * (target - weights), 0.0)
            weights[blocking] = 0.0
            free = free & (weights > 0)
            continue
        weights = target
        gradient = matrix @ weights + linear
        below = np.where(free, np.inf, gradient - price)
        entering = int(below.argmin())
        if not below[entering] < -ENTERING_GAIN * float(np.abs(gradient).max()):
            break
        free[entering] = True
    return weights / weights.sum()


def face_minimum(matrix: Array, linear: Array) -> tuple[Array, float]:
    """The minimiser under sum w = 1 alone, of any sign, and the gradient's entries there."""
    size = len(linear)
    system = np.zeros((size + 1, size + 1))
    system[:size, :size] = matrix
    scale = max(float(np.trace(matrix)) / size, 1e-300)
    system[size, :size] = system[:size, size] = scale
    solution = np.linalg.solve(system, np.append(-linear, scale))
    return solution[:size], -scale * float(solution[size])
