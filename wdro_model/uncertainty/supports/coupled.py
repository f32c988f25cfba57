"""Supports that couple entries: by linear inequalities, or known through a predicate alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from wdro_model.errors import blaming
from wdro_model.uncertainty.data_frames import column_names, in_order, label_order, labels_of
from wdro_model.uncertainty.supports.boxes import Array, Box, Shape, Support, numbers, slack


@dataclass(frozen=True, eq=False)
class Polyhedron(Support):
    """Linear inequalities on the flattened (row-major) parameter: {z : A z <= b}.

    Parameters
    ----------
    A
        (k, d) array or SciPy sparse matrix, finite; or a frame with the parameter's columns.
    b
        (k,), finite.

    Examples
    --------
    >>> import numpy as np, wdro_model as wdro
    >>> at_most_one = wdro.supports.Polyhedron(np.vstack([np.ones(2), -np.eye(2)]), [1.0, 0.0, 0.0])
    >>> at_most_one.contains(np.array([[0.5, 0.4], [0.5, 0.6]]))
    array([ True, False])
    >>> share = wdro.UncertainParameter(2, samples=[[0.5, 0.4]], support=at_most_one)
    """

    A: Any
    b: Any
    _columns: Any = field(default=None, init=False, repr=False)
    """The labels of the columns of A, where it was given as a frame."""

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "_columns", column_names(self.A, "the inequalities", numbered=True)
        )
        object.__setattr__(self, "b", in_order(self.b, labels_of(self.A), "b"))
        is_sparse = sparse.issparse(self.A)
        matrix = sparse.csr_array(self.A, copy=True) if is_sparse else numbers(self.A, "A")
        vector = np.atleast_1d(numbers(self.b, "b"))
        if matrix.ndim != 2 or vector.shape != (matrix.shape[0],):
            raise ValueError(
                f"Polyhedron(A, b) needs A of shape (k, d) and b of shape (k,), got shapes "
                f"{matrix.shape} and {vector.shape}; write one row of A and one entry of b per "
                "inequality."
            )
        entries = matrix.data if sparse.issparse(matrix) else matrix
        if not (np.all(np.isfinite(entries)) and np.all(np.isfinite(vector))):
            raise ValueError(
                "Polyhedron(A, b) needs finite entries; drop the rows without a bound."
            )
        object.__setattr__(self, "A", matrix)
        object.__setattr__(self, "b", vector)

    def in_order(self, labels: Sequence[Any] | None) -> Support:
        order = label_order(self._columns, labels, "the inequalities", "column")
        return self if order is None else Polyhedron(self.A[:, order], self.b)

    def contains(self, points: Array) -> Array:
        rows = np.reshape(points, (len(points), -1))
        products = (self.A @ rows.T).T
        return np.all(products <= slack(self.b, 1.0), axis=1)

    def bounds(self, shape: Shape) -> tuple[Array, Array] | None:
        """Those of a box, where every inequality sees one entry; None for other polyhedra."""
        rows = sparse.csr_array(self.A)
        rows.eliminate_zeros()
        if not np.all(np.diff(rows.indptr) == 1):
            return None
        at, limits = rows.indices, self.b / rows.data
        lower, upper = np.full(rows.shape[1], -np.inf), np.full(rows.shape[1], np.inf)
        above = rows.data > 0
        np.minimum.at(upper, at[above], limits[above])
        np.maximum.at(lower, at[~above], limits[~above])
        for side in (lower, upper):
            side.flags.writeable = False
        return lower.reshape(shape), upper.reshape(shape)

    def validate(self, shape: Shape) -> None:
        size = math.prod(shape)
        if self.A.shape[1] != size:
            raise ValueError(
                f"Polyhedron has {self.A.shape[1]} columns in A but the parameter of shape {shape} "
                f"has {size} entries; A acts on the flattened (row-major) parameter."
            )
        result = linprog(np.zeros(size), A_ub=self.A, b_ub=self.b, bounds=(None, None))
        if result.status == 2:
            raise ValueError(
                f"the polyhedron is empty: no point satisfies its {len(self.b)} inequalities "
                "A z <= b; check their signs."
            )

    def restrict(self, lower: Any, upper: Any) -> Polyhedron:
        size = self.A.shape[1]
        sides = [np.broadcast_to(np.ravel(side), size) for side in (lower, upper)]
        keep = [np.isfinite(side) for side in sides]
        identity = sparse.eye_array(size, format="csr")
        rows = sparse.vstack([self.A, -identity[keep[0]], identity[keep[1]]], format="csr")
        limits = np.concatenate([self.b, -sides[0][keep[0]], sides[1][keep[1]]])
        return Polyhedron(rows if sparse.issparse(self.A) else rows.toarray(), limits)

    def scaled(self, factor: float) -> Polyhedron:
        return Polyhedron(self.A, self.b * factor)

    def why_outside(self, point: Array) -> str:
        excess = self.A @ np.ravel(point) - self.b
        row = int(np.argmax(excess - slack(self.b, 1.0) + self.b))
        return f"row {row} of A z <= b is violated by {float(excess[row]):.3g}"

    def __repr__(self) -> str:
        rows, columns = self.A.shape
        return f"Polyhedron({rows} inequalities on {columns} entries)"


@dataclass(frozen=True, eq=False)
class Where(Support):
    """The points a predicate accepts: `predicate(points (B, *shape)) -> booleans (B,)`.

    Examples
    --------
    >>> import numpy as np, wdro_model as wdro
    >>> ring = wdro.supports.Where(lambda points: np.linalg.norm(points, axis=1) >= 1.0)
    >>> ring.contains(np.array([[1.0, 1.0], [0.1, 0.1]]))
    array([ True, False])
    """

    predicate: Callable[[Array], Array]

    def __post_init__(self) -> None:
        if not callable(self.predicate):
            raise ValueError(
                f"Where(predicate) needs a callable from points (B, *shape) to booleans (B,), got "
                f"{self.predicate!r}."
            )

    def contains(self, points: Array) -> Array:
        given = np.asarray(points).view()
        given.flags.writeable = False
        with blaming(f"the predicate {_name(self.predicate)} of Where"):
            answer = np.asarray(self.predicate(given))
        if answer.dtype != bool or answer.shape != (len(given),):
            raise ValueError(
                f"predicate {_name(self.predicate)} of Where must return {len(given)} booleans, "
                f"shape ({len(given)},), for points of shape {given.shape}; it returned "
                f"{answer.dtype} of shape {answer.shape}. Reduce over the entries of each point."
            )
        return answer

    def bounds(self, shape: Shape) -> None:
        return None

    def validate(self, shape: Shape) -> None:
        """Nothing is known before a point is tried."""

    def restrict(self, lower: Any, upper: Any) -> Where:
        return Where(_Both(self, Box(lower, upper)))

    def why_outside(self, point: Array) -> str:
        return f"the predicate {_name(self.predicate)} rejects it"

    def __repr__(self) -> str:
        return f"Where({_name(self.predicate)})"


@dataclass(frozen=True)
class _Both:
    """The predicate of an intersection."""

    first: Support
    second: Support

    def __call__(self, points: Array) -> Array:
        return self.first.contains(points) & self.second.contains(points)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", repr(function))
