"""A point as a convex combination of vertices."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from wdro_model.solvers.directions.newton import SecantPairs
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
