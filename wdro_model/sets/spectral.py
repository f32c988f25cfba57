"""Sets of matrices whose extreme points have rank one: the nuclear ball and the spectraplex."""

from __future__ import annotations

from typing import Any, Literal

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh, svd
from scipy.sparse.linalg import ArpackError, eigsh, svds

from wdro_model.sets.arguments import as_count, as_positive, as_shape, bounds_refused
from wdro_model.sets.backends import LinearOracle, Vector, register_backend
from wdro_model.sets.feasible_set import FeasibleSet, as_direction, as_flat

SMALL = 60
"""Matrices with a side of at most so many rows are decomposed in full."""

SpectralBackend = Literal["dense", "arpack"]
"""Those that are built in; `register_backend` adds others."""


class RankOneSet(FeasibleSet):
    """Matrices of a shape, flattened in row-major order; `table(x)` is the matrix again."""

    shape: tuple[int, int]
    default_backend = "dense"
    is_polytope = False
    has_constraints = True
    rounds = False

    def _declare(self, shape: tuple[int, int], backend: str | None) -> None:
        self.shape = shape
        self.dimension = shape[0] * shape[1]
        chosen = "dense" if min(shape) <= SMALL else "arpack"
        self.use_backend(chosen if backend is None else backend)

    def minimize_within(
        self, direction: ArrayLike, lower: ArrayLike | None, upper: ArrayLike | None
    ) -> Vector:
        raise bounds_refused(self)

    def table(self, x: ArrayLike) -> np.ndarray:
        """A point as a matrix."""
        return as_direction(x, self.dimension, kind="x").reshape(self.shape)

    def plot(self, x: ArrayLike, path: Any = None, *, ax: Any = None) -> Any:
        """Draw x as a matrix; the figure, or `ax` where it is given."""
        from wdro_model.sets.set_pictures import draw_table

        rows, columns = map(range, self.shape)
        return draw_table(self.table(np.ravel(x)), rows, columns, path, ax)

    def _matrix(self, x: Any) -> Any:
        flat = as_flat(x, self.dimension)
        return cp.reshape(flat, self.shape, order="C")

    def _scaled(self, direction: Vector) -> np.ndarray:
        """The direction as a matrix with entries of size 1."""
        return (direction / (np.abs(direction).max() or 1.0)).reshape(self.shape)


class NuclearBall(RankOneSet):
    """The matrices whose singular values sum to at most the radius.

    Backends: "dense", a full singular value decomposition, the default up to 60 rows or columns;
    "arpack", the leading singular vectors from a fixed start.

    Examples
    --------
    >>> import numpy as np, wdro_model as wdro
    >>> ball = wdro.sets.NuclearBall((2, 3), radius=2.0)
    >>> vertex = ball.minimize([0.0, 0.0, 4.0, 0.0, 3.0, 0.0])          # row by row
    >>> np.abs(ball.table(vertex)).round(6)
    array([[0., 0., 2.],
           [0., 0., 0.]])
    """

    def __init__(
        self, shape: tuple[int, int], radius: float, backend: SpectralBackend | str | None = None
    ) -> None:
        sizes = as_shape(shape, "a NuclearBall")
        if len(sizes) != 2:
            raise ValueError(f"a NuclearBall is one of matrices, of a shape (n, m), got {shape!r}.")
        self.radius = as_positive(radius, "the radius of a NuclearBall")
        self._declare((sizes[0], sizes[1]), backend)
        edge = np.full(self.dimension, self.radius)
        self.bounds = (-edge, edge)

    def constraints(self, x: Any) -> list[Any]:
        return [cp.normNuc(self._matrix(x)) <= self.radius]

    def describe(self) -> str:
        return (
            f"matrices {self.shape} of nuclear norm at most {self.radius:g}, minimised by "
            f"{self.backend}"
        )

    def _point(self, left: Vector, right: Vector) -> Vector:
        return -self.radius * np.outer(left, right).ravel()

    def __repr__(self) -> str:
        return f"NuclearBall({self.shape}, radius={self.radius:g})"


class Spectraplex(RankOneSet):
    """The positive semidefinite matrices (n, n) of a given trace.

    Backends: "dense", all eigenvalues, the default up to n = 60; "arpack", the smallest one from a
    fixed start.

    Examples
    --------
    >>> import numpy as np, wdro_model as wdro
    >>> plex = wdro.sets.Spectraplex(2)
    >>> np.abs(plex.table(plex.minimize([1.0, 0.0, 0.0, -1.0]))).round(6)
    array([[0., 0.],
           [0., 1.]])
    """

    def __init__(
        self, n: int, trace: float = 1.0, backend: SpectralBackend | str | None = None
    ) -> None:
        size = as_count(n, "the size n of a Spectraplex")
        self.trace = as_positive(trace, "the trace of a Spectraplex")
        self._declare((size, size), backend)
        upper = np.full((size, size), self.trace / 2)
        np.fill_diagonal(upper, self.trace)
        lower = -upper
        np.fill_diagonal(lower, 0.0)
        self.bounds = (lower.ravel(), upper.ravel())

    def constraints(self, x: Any) -> list[Any]:
        matrix = self._matrix(x)
        root = cp.Variable(self.shape, PSD=True)
        return [matrix == root, cp.trace(root) == self.trace]

    def describe(self) -> str:
        return (
            f"positive semidefinite matrices {self.shape} of trace {self.trace:g}, minimised by "
            f"{self.backend}"
        )

    def _point(self, vector: Vector) -> Vector:
        return self.trace * np.outer(vector, vector).ravel()

    def __repr__(self) -> str:
        return f"Spectraplex({self.shape[0]}, trace={self.trace:g})"


def _start(size: int) -> Vector:
    """The vector that iterations start from: the same for every call, special for no matrix."""
    return np.random.default_rng(0).standard_normal(size)


def _dense_nuclear(ball: NuclearBall) -> LinearOracle:
    def minimize(direction: Vector) -> Vector:
        left, _, right = svd(ball._scaled(direction), full_matrices=False, check_finite=False)
        return ball._point(left[:, 0], right[0])

    return minimize


def _arpack_nuclear(ball: NuclearBall) -> LinearOracle:
    dense, start = _dense_nuclear(ball), _start(min(ball.shape))

    def minimize(direction: Vector) -> Vector:
        if min(ball.shape) < 3 or not direction.any():
            return dense(direction)
        try:
            left, _, right = svds(ball._scaled(direction), k=1, v0=start)
        except ArpackError:
            return dense(direction)
        return ball._point(left[:, 0], right[0])

    return minimize


def _dense_trace(spectraplex: Spectraplex) -> LinearOracle:
    def minimize(direction: Vector) -> Vector:
        matrix = spectraplex._scaled(direction)
        _, vectors = eigh(matrix + matrix.T, subset_by_index=[0, 0], check_finite=False)
        return spectraplex._point(vectors[:, 0])

    return minimize


def _arpack_trace(spectraplex: Spectraplex) -> LinearOracle:
    dense, start = _dense_trace(spectraplex), _start(spectraplex.shape[0])

    def minimize(direction: Vector) -> Vector:
        if spectraplex.shape[0] < 3 or not direction.any():
            return dense(direction)
        matrix = spectraplex._scaled(direction)
        try:
            _, vectors = eigsh(matrix + matrix.T, k=1, which="SA", v0=start)
        except ArpackError:
            return dense(direction)
        return spectraplex._point(vectors[:, 0])

    return minimize


register_backend(NuclearBall, "dense", _dense_nuclear)
register_backend(NuclearBall, "arpack", _arpack_nuclear)
register_backend(Spectraplex, "dense", _dense_trace)
register_backend(Spectraplex, "arpack", _arpack_trace)
