"""Blended pairwise directions over an active set of vertices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdro_model.objectives.base import Array
from wdro_model.solvers.directions.base import DirectionState, GradientAt, Move


@dataclass(frozen=True)
class BlendedPairwise:
    """Weight moved between the vertices found so far while that promises as much as a new one.

    The iterate is a convex combination of an active set of vertices; each iteration either shifts
    weight from its worst vertex to its best (no new vertex), or takes a Frank-Wolfe step. Linear
    convergence on polytopes (Tsuji, Tanaka and Pokutta, 2022).
    """

    needs_line_search = True

    def start(self, x: Array, gradient_at: GradientAt) -> DirectionState:
        return _BlendedPairwise(ActiveSet.at(x))

    def resume(self, active: ActiveSet) -> DirectionState:
        """The state of a run that goes on from the vertices of another."""
        return _BlendedPairwise(active.copy())


class ActiveSet:
    """Vertices v_i and weights w_i >= 0 that sum to 1; the point is sum_i w_i v_i.

    Rows are kept in arrays that grow by doubling; a row that is removed leaves its place to the
    last one, so the order of the vertices means nothing.
    """

    def __init__(self, vertices: Array, weights: Array) -> None:
        vertices, weights = np.array(vertices, dtype=float), np.array(weights, dtype=float)
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
        self._rows, self._shares, self._count = vertices, weights, len(weights)

    @classmethod
    def at(cls, x: Array) -> ActiveSet:
        """One point with all the weight."""
        return cls(x[None], np.ones(1))

    def copy(self) -> ActiveSet:
        """An active set of its own arrays."""
        return ActiveSet(self.vertices, self.weights / self.weights.sum())

    def __len__(self) -> int:
        return self._count

    @property
    def vertices(self) -> Array:
        """(k, n), a view."""
        return self._rows[: self._count]

    @property
    def weights(self) -> Array:
        """(k,), a view."""
        return self._shares[: self._count]

    @property
    def dimension(self) -> int:
        return int(self._rows.shape[1])

    def point(self) -> Array:
        """sum_i w_i v_i."""
        return self.weights @ self.vertices

    def normalise(self) -> None:
        """Make the weights sum to 1 again, against rounding."""
        self.weights[:] /= self.weights.sum()

    def add(self, vertex: Array, weight: float) -> None:
        """One more vertex."""
        if self._count == len(self._shares):
            grown = np.empty((2 * self._count, self.dimension))
            grown[: self._count] = self._rows
            self._rows = grown
            self._shares = np.concatenate([self._shares, np.empty(self._count)])
        self._rows[self._count], self._shares[self._count] = vertex, weight
        self._count += 1

    def remove(self, index: int) -> None:
        """Forget a vertex and its weight."""
        last = self._count - 1
        self._rows[index], self._shares[index] = self._rows[last], self._shares[last]
        self._count = last

    def __repr__(self) -> str:
        return f"ActiveSet({self._count} vertices of dimension {self.dimension})"


class _BlendedPairwise:
    DROP = 1e-14
    """Vertices with less weight are forgotten."""
    SAME = 1e-12
    """Vertices whose coordinates differ by less, relatively, are one: LP solvers round."""
    REFRESH = 50
    """The iterate is recomputed from the weights after so many steps, against rounding drift."""

    def __init__(self, active: ActiveSet) -> None:
        self.active = active
        self._pending: tuple[int, int] | Array = (0, 0)
        self._known: int | None = None
        """The index of the oracle's vertex in the active set, if it is there."""
        self._steps = 0

    def propose(self, x: Array, gradient: Array, vertex: Array, gap: float) -> Move:
        scores = self.active.vertices @ gradient
        away, local = int(scores.argmax()), int(scores.argmin())
        self._known = self._find(vertex, scores, float(gradient @ vertex))
        if scores[away] - scores[local] >= gap and away != local:
            self._pending = (away, local)
            rows = self.active.vertices
            return Move(rows[local] - rows[away], float(self.active.weights[away]))
        return self.retreat(x, vertex)

    def retreat(self, x: Array, vertex: Array) -> Move:
        self._pending = vertex
        return Move(vertex - x, is_plain=True)

    def accept(self, step: float) -> Array | None:
        if isinstance(self._pending, tuple):
            dropped = self._shift(*self._pending, step)
        else:
            dropped = self._blend(self._pending, step)
        for index in sorted(dropped, reverse=True):
            self.active.remove(index)
        self._steps += 1
        if self._steps % self.REFRESH:
            return None
        self.active.normalise()
        return self.active.point()

    def _shift(self, away: int, local: int, step: float) -> list[int]:
        """Move weight from one vertex to another; the vertices that are left without."""
        weights = self.active.weights
        weights[local] += step
        weights[away] -= step
        return [away] if weights[away] <= self.DROP else []

    def _blend(self, vertex: Array, step: float) -> list[int]:
        """Give a share of all weight to the oracle's vertex; the vertices that are left without."""
        self.active.weights[:] *= 1.0 - step
        if self._known is None:
            self.active.add(vertex, step)
            self._known = len(self.active) - 1
        else:
            self.active.weights[self._known] += step
        return [int(i) for i in np.flatnonzero(self.active.weights <= self.DROP)]

    def _find(self, vertex: Array, scores: Array, score: float) -> int | None:
        """The vertex in the active set: only those that score as low can be the same."""
        margin = self.SAME * max(abs(score), float(np.abs(scores).max()))
        distance = self.SAME * float(np.abs(vertex).max())
        for index in np.flatnonzero(scores <= score + margin):
            if np.abs(self.active.vertices[index] - vertex).max() <= distance:
                return int(index)
        return None
