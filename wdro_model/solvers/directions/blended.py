"""Blended directions: move weight among known vertices first, else ask the oracle.

The iterate is a convex combination of an active set of vertices. Each iteration either moves weight
within the active set, if the best that a pair of its vertices promises is at least the
Frank-Wolfe gap, or takes a Frank-Wolfe step towards the oracle's vertex.

minimise <w, H w>/2 + <c, w>   over w >= 0, sum w = 1.

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
from wdro_model.solvers.directions.conjugate import DirectionState, GradientAt, Move
from wdro_model.solvers.objective import Array


@dataclass(frozen=True)
class BlendedPairwise:
    """Within the active set, weight goes from the worst vertex to the best.

    Linear convergence on polytopes (Tsuji, Tanaka and Pokutta, 2022).

    Examples
    --------
    >>> import wdro_model as wdro
    >>> wdro.solvers.FrankWolfe(direction=wdro.solvers.BlendedPairwise()).direction
    BlendedPairwise()
    """

    needs_line_search = True

    def start(self, x: Array, gradient_at: GradientAt) -> DirectionState:
        return _Pairwise(ActiveSet.at(x))

    def resume(self, active: ActiveSet) -> DirectionState:
        """The state of a run that goes on from the vertices of another."""
        return _Pairwise(active.copy())


@dataclass(frozen=True)
class BlendedConjugate:
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

    needs_line_search = True

    def start(self, x: Array, gradient_at: GradientAt) -> DirectionState:
        return _Conjugate(ActiveSet.at(x))

    def resume(self, active: ActiveSet) -> DirectionState:
        """The state of a run that goes on from the vertices of another."""
        return _Conjugate(active.copy())


@dataclass(frozen=True)
class WeightShift:
    """A change of weights per unit of step, and the weight that it uses up first."""

    where: slice | list[int]
    change: Array
    blocking: int
    longest: float


class _Blended:
    DROP = 1e-14
    """Vertices with less weight are forgotten."""
    SAME = 1e-12
    """Vertices whose coordinates differ by less, relatively, are one: LP solvers round."""
    REFRESH = 50
    """The iterate is recomputed from the weights after so many steps, against rounding drift."""

    def __init__(self, active: ActiveSet) -> None:
        self.active = active
        self._pending: WeightShift | Array | None = None
        self._known: int | None = None
        """The index of the oracle's vertex in the active set, if it is there."""
        self._steps = 0

    def propose(self, x: Array, gradient: Array, vertex: Array, gap: float) -> Move:
        scores = self.active.matrix @ gradient
        away, local = int(scores.argmax()), int(scores.argmin())
        self._known = self._find(vertex, scores, float(gradient @ vertex))
        if away == local or scores[away] - scores[local] < gap:
            return self.retreat(x, vertex)
        self._pending = self._shift(scores, away, local)
        rows = self.active.matrix[self._pending.where]
        return Move(np.asarray(self._pending.change @ rows), self._pending.longest)

    def retreat(self, x: Array, vertex: Array) -> Move:
        self._pending = vertex
        return Move(vertex - x, is_plain=True)

    def accept(self, step: float) -> Array | None:
        if isinstance(self._pending, WeightShift):
            self._move_weight(self._pending, step)
        else:
            assert self._pending is not None
            self._blend(self._pending, step)
        dropped = np.flatnonzero(self.active.weights <= self.DROP)
        for index in dropped[::-1]:
            self.active.remove(int(index))
        self._note(changed=dropped.size > 0 or not isinstance(self._pending, WeightShift))
        self._steps += 1
        if self._steps % self.REFRESH:
            return None
        self.active.normalise()
        return self.active.x

    def _shift(self, scores: Array, away: int, local: int) -> WeightShift:
        """A descent direction in the weights; scores are <gradient, vertex>."""
        raise NotImplementedError

    def _note(self, changed: bool) -> None:
        """Hear of a step, and whether the active set is another."""

    def _move_weight(self, shift: WeightShift, step: float) -> None:
        weights = self.active.weights
        weights[shift.where] += step * shift.change
        if step == shift.longest:
            weights[shift.blocking] = 0.0

    def _blend(self, vertex: Array, step: float) -> None:
        """Give a share of all weight to the oracle's vertex."""
        self.active.weights[:] *= 1.0 - step
        if self._known is None:
            self.active.add(vertex, step)
        else:
            self.active.weights[self._known] += step

    def _find(self, vertex: Array, scores: Array, score: float) -> int | None:
        """The vertex in the active set: only those that score as low can be the same."""
        margin = self.SAME * max(abs(score), float(np.abs(scores).max()))
        distance = self.SAME * float(np.abs(vertex).max())
        for index in np.flatnonzero(scores <= score + margin):
            if np.abs(self.active.vertex(int(index)) - vertex).max() <= distance:
                return int(index)
        return None


class _Pairwise(_Blended):
    PAIR = np.array([-1.0, 1.0])

    def _shift(self, scores: Array, away: int, local: int) -> WeightShift:
        return WeightShift([away, local], self.PAIR, away, float(self.active.weights[away]))


class _Conjugate(_Blended):
    LEAST_SLOPE = 1e-3
    """The least descent, as a cosine with the steepest, of a direction that is not restarted."""

    def __init__(self, active: ActiveSet) -> None:
        super().__init__(active)
        self._last: tuple[Array, Array] | None = None
        """Steepest descent and change of the last shift, on the same vertices."""
        self._proposed: tuple[Array, Array] | None = None

    def _shift(self, scores: Array, away: int, local: int) -> WeightShift:
        steepest = scores.mean() - scores
        steepest -= steepest.mean()
        change = self._conjugate(steepest)
        self._proposed = (steepest, change)
        falling = np.flatnonzero(change < 0)
        lasts = self.active.weights[falling] / -change[falling]
        first = int(lasts.argmin())
        return WeightShift(slice(None), change, int(falling[first]), float(lasts[first]))

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
        least = self.LEAST_SLOPE * float(np.linalg.norm(steepest) * np.linalg.norm(new))
        return new if steepest @ new > least else steepest

    def _note(self, changed: bool) -> None:
        self._last = None if changed else self._proposed


# ------------------------------
# Convex quadratic programs over the unit simplex, by an active set that begins at a known point


RIDGE = 1e-13
"""Added to the diagonal of H, relative to its mean: vertices may depend on each other."""
CLOSE = 1e-12
"""An entry comes in if it lowers the objective by more than this, relative to its gradients."""


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
        if not below[entering] < -CLOSE * float(np.abs(gradient).max()):
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
    found = np.linalg.solve(system, np.append(-linear, scale))
    return found[:size], -scale * float(found[size])


# ------------------------------
# Blended quasi-Newton directions: a model of second order over the hull of known vertices


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
