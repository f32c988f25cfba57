"""A point as a convex combination of vertices."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from wdro_model.solvers.directions.projected_newton import SecantPairs
from wdro_model.solvers.objective import Array

LONG, SPARSE = 4096, 0.05
"""Vertices with so many coordinates, and so small a share of them not zero, are kept sparse."""


class ActiveSet:
    """Vertices v_i and weights w_i >= 0 that sum to 1; the point is sum_i w_i v_i.

    Rows are kept in arrays that grow by doubling, or as sparse rows: a path in a large graph uses
    few of its arcs. A row that is removed leaves its place to the last one, so the order of the
    vertices means nothing.

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
        self._shares, self._count = weights, len(weights)
        self._rows: _DenseRows | _SparseRows
        if is_sparse(vertices):
            self._rows = _SparseRows(sp.csr_array(vertices))
        else:
            self._rows = _DenseRows(vertices.toarray() if sp.issparse(vertices) else vertices)
        self.pairs = SecantPairs()
        """What the steps so far tell of the objective's curvature, for rules that ask."""

    @classmethod
    def at(cls, x: Array) -> ActiveSet:
        """One point with all the weight."""
        return cls(x[None], np.ones(1))

    def copy(self) -> ActiveSet:
        """An active set of its own arrays."""
        twin = ActiveSet(self.matrix, self.weights / self.weights.sum())
        twin.pairs = self.pairs.copy()
        return twin

    def __len__(self) -> int:
        return self._count

    @property
    def matrix(self) -> Any:
        """The vertices (k, n): a view of an array, or a sparse matrix."""
        return self._rows.matrix(self._count)

    @property
    def vertices(self) -> Array:
        """(k, n); a view where they are not kept sparse."""
        found = self.matrix
        return found.toarray() if sp.issparse(found) else found

    def vertex(self, index: int) -> Array:
        """One of them, (n,)."""
        return self._rows.row(index)

    @property
    def weights(self) -> Array:
        """(k,), a view."""
        return self._shares[: self._count]

    @property
    def dimension(self) -> int:
        return int(self._rows.dimension)

    @property
    def x(self) -> Array:
        """The point sum_i w_i v_i, (n,)."""
        return np.asarray(self.weights @ self.matrix)

    def normalise(self) -> None:
        """Make the weights sum to 1 again, against rounding."""
        self.weights[:] /= self.weights.sum()

    def add(self, vertex: Array, weight: float) -> None:
        """One more vertex."""
        if self._count == len(self._shares):
            self._shares = np.concatenate([self._shares, np.empty(self._count)])
        if isinstance(self._rows, _SparseRows) and not is_sparse(vertex[None]):
            self._rows = _DenseRows(self._rows.matrix(self._count).toarray())
        self._rows.append(self._count, vertex)
        self._shares[self._count] = weight
        self._count += 1

    def remove(self, index: int) -> None:
        """Forget a vertex and its weight."""
        last = self._count - 1
        self._rows.move(last, index)
        self._shares[index] = self._shares[last]
        self._count = last

    def some(self, which: Array, weights: Array) -> ActiveSet:
        """An active set of some of the vertices."""
        return ActiveSet(self.matrix[which], weights)

    def __repr__(self) -> str:
        return f"ActiveSet({self._count} vertices of dimension {self.dimension})"


def is_sparse(vertices: Any) -> bool:
    """Are vertices (k, n) long, and mostly zero?"""
    if vertices.shape[1] < LONG:
        return False
    entries = vertices.nnz if sp.issparse(vertices) else np.count_nonzero(vertices)
    return bool(entries <= SPARSE * vertices.shape[0] * vertices.shape[1])


class _DenseRows:
    """Rows of an array that grows by doubling."""

    def __init__(self, rows: Array) -> None:
        self._rows = rows

    @property
    def dimension(self) -> int:
        return int(self._rows.shape[1])

    def matrix(self, count: int) -> Array:
        return self._rows[:count]

    def row(self, index: int) -> Array:
        return self._rows[index]

    def append(self, count: int, vertex: Array) -> None:
        if count == len(self._rows):
            grown = np.empty((2 * count, self.dimension))
            grown[:count] = self._rows
            self._rows = grown
        self._rows[count] = vertex

    def move(self, last: int, index: int) -> None:
        self._rows[index] = self._rows[last]


class _SparseRows:
    """The positions and values of each row, and the matrix that they make."""

    def __init__(self, rows: sp.csr_array) -> None:
        self.dimension = int(rows.shape[1])
        ends = rows.indptr
        self._parts = [
            (rows.indices[a:b].astype(np.int32), rows.data[a:b]) for a, b in pairwise(ends)
        ]
        self._matrix: sp.csr_array | None = None

    def matrix(self, count: int) -> sp.csr_array:
        if self._matrix is None:
            indices = np.concatenate([where for where, _ in self._parts])
            values = np.concatenate([value for _, value in self._parts])
            ends = np.cumsum([0, *(where.size for where, _ in self._parts)])
            self._matrix = sp.csr_array(
                (values, indices, ends), shape=(len(self._parts), self.dimension)
            )
        return self._matrix

    def row(self, index: int) -> Array:
        where, values = self._parts[index]
        found = np.zeros(self.dimension)
        found[where] = values
        return found

    def append(self, count: int, vertex: Array) -> None:
        where = np.flatnonzero(vertex)
        self._parts.append((where.astype(np.int32), vertex[where]))
        self._matrix = None

    def move(self, last: int, index: int) -> None:
        self._parts[index] = self._parts[last]
        self._parts.pop()
        self._matrix = None
