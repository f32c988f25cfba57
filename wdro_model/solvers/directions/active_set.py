"""A point as a convex combination of vertices."""

from __future__ import annotations

import numpy as np

from wdro_model.solvers.directions.secant_pairs import SecantPairs
from wdro_model.solvers.objective import Array


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
        self.pairs = SecantPairs()
        """What the steps so far tell of the objective's curvature, for rules that ask."""

    @classmethod
    def at(cls, x: Array) -> ActiveSet:
        """One point with all the weight."""
        return cls(x[None], np.ones(1))

    def copy(self) -> ActiveSet:
        """An active set of its own arrays."""
        twin = ActiveSet(self.vertices, self.weights / self.weights.sum())
        twin.pairs = self.pairs.copy()
        return twin

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

    @property
    def x(self) -> Array:
        """The point sum_i w_i v_i, (n,)."""
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
