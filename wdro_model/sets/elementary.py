"""Sets whose linear functions have a minimiser in closed form.

Simplices, boxes, balls of three norms, hulls of given points; and the matrices of the nuclear ball
and the spectraplex, whose extreme points have rank one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Literal

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh, svd
from scipy.sparse.linalg import ArpackError, eigsh, svds

from wdro_model import checks
from wdro_model.errors import InfeasibleError
from wdro_model.sets.arguments import as_bounds, as_direction, as_flat, as_shape
from wdro_model.sets.backends import Answer, LinearOracle, Side, Vector, register_backend
from wdro_model.sets.feasible_set import BoundedSet
from wdro_model.sets.rounding import INTEGER_TOLERANCE, is_binary

LARGEST_DENSE = 60
"""Rows or columns, whichever are fewer, up to which matrices are decomposed in full."""


class ShapedSet(BoundedSet):
    """A set of arrays of a shape, flattened in row-major order."""

    shape: tuple[int, ...]

    def table(self, x: ArrayLike) -> np.ndarray:
        """A point in the set's shape."""
        return as_direction(x, self.dimension, kind="x").reshape(self.shape)


class Simplex(BoundedSet):
    """{x >= 0, sum(x) = total} in R^n, or sum(x) <= total with `at_most`.

    Examples
    --------
    >>> budget = wdro.sets.Simplex(3, total=10.0, at_most=True)
    >>> budget.minimize([2.0, -1.0, 3.0]), budget.minimize([2.0, 1.0, 3.0])
    (array([ 0., 10.,  0.]), array([0., 0., 0.]))
    """

    has_constraints = True

    def __init__(self, n: int, total: float = 1.0, at_most: bool = False) -> None:
        self.dimension = checks.whole_number("the dimension of a Simplex", n, low=1)
        self.total = checks.number("the total of a Simplex", total, low=0, open=True)
        self.at_most = bool(at_most)
        self.bounds = (np.zeros(self.dimension), np.full(self.dimension, self.total))
        self.rounds = self.total == 1

    def answer(self, direction: Vector, lower: Side, upper: Side) -> Answer:
        if lower is not None or upper is not None:
            return self._filled(direction, *self.interval(lower, upper)), 0.0
        vertex = np.zeros(self.dimension)
        cheapest = int(np.argmin(direction))
        if direction[cheapest] < 0 or not self.at_most:
            vertex[cheapest] = self.total
        return vertex, 0.0

    def _filled(self, direction: Vector, low: Vector, high: Vector) -> Vector:
        """The point whose cheapest coordinates are filled up, one after the other."""
        rounding = 1e-12 * self.dimension * self.total
        left = self.total - float(low.sum())
        if left < -rounding or (not self.at_most and self.total > float(high.sum()) + rounding):
            raise InfeasibleError(
                f"{self!r} has no point within the bounds: their sums are {low.sum():g} and "
                f"{high.sum():g}."
            )
        order = np.argsort(direction, kind="stable")
        if self.at_most:
            order = order[direction[order] < 0]
        room = (high - low)[order]
        before = np.concatenate([[0.0], np.cumsum(room)[:-1]]) if order.size else room
        point = low.copy()
        point[order] += np.clip(left - before, 0.0, room)
        return point

    def constraints(self, x: Any) -> list[Any]:
        flat = as_flat(x, self.dimension)
        total = cp.sum(flat)
        return [flat >= 0, total <= self.total if self.at_most else total == self.total]

    def describe(self) -> str:
        sign = "at most" if self.at_most else "to"
        return f"{self.dimension} nonnegative numbers that sum {sign} {self.total:g}"

    def __repr__(self) -> str:
        return f"Simplex({self.dimension}, total={self.total:g}, at_most={self.at_most})"


# ------------------------------
# Decisions between bounds


class BoxSet(ShapedSet):
    """{lower <= x <= upper}, `sets.Box`; numbers or arrays, of which one has the shape of x.

    Attributes
    ----------
    shape
        Of the decision; its points are flattened in row-major order.

    Examples
    --------
    >>> wdro.sets.Box([0.0, 0.0, -1.0], 1.0).minimize([1.0, -1.0, 1.0])
    array([ 0.,  1., -1.])
    """

    has_constraints = True

    def __init__(self, lower: ArrayLike, upper: ArrayLike) -> None:
        try:
            sides = np.broadcast_arrays(
                np.asarray(lower, dtype=np.float64), np.asarray(upper, dtype=np.float64)
            )
        except (TypeError, ValueError):
            raise ValueError(
                f"the bounds of a Box must be numbers or arrays of one shape, got {lower!r} and "
                f"{upper!r}."
            ) from None
        self.shape: tuple[int, ...] = sides[0].shape
        if not self.shape or not sides[0].size:
            raise ValueError(
                f"one of the bounds of a Box must be an array, to tell its dimension, got "
                f"{lower!r} and {upper!r}; write Box(np.zeros(n), 1)."
            )
        for name, side in (("lower", sides[0]), ("upper", sides[1])):
            if not np.isfinite(side).all():
                where = tuple(map(int, np.argwhere(~np.isfinite(side))[0]))
                raise ValueError(
                    f"the {name} bound of a Box must be finite, got {side[where]} at {where}; "
                    "oracles need bounded sets."
                )
        low, high = self.bounds = as_bounds(sides, self.shape, "a Box")
        self.dimension = int(low.size)
        self.rounds = is_binary(low) and is_binary(high)

    def answer(self, direction: Vector, lower: Side, upper: Side) -> Answer:
        low, high = self.interval(lower, upper)
        return np.where(direction < 0, high, low), 0.0

    def constraints(self, x: Any) -> list[Any]:
        flat = as_flat(x, self.dimension)
        assert self.bounds is not None
        return [flat >= self.bounds[0], flat <= self.bounds[1]]

    def describe(self) -> str:
        return f"{self.dimension} numbers between bounds"

    def __repr__(self) -> str:
        return f"Box(dimension={self.dimension})"


# ------------------------------
# Balls of the norms 1, 2 and infinity


NORMS = (1, 2, np.inf)


class Ball(ShapedSet):
    """{|x - center|_p <= radius} for p = 1, 2 or inf; matrices are measured entry by entry.

    Parameters
    ----------
    shape
        n or (n, m); points are flattened in row-major order.
    center
        A number or an array of the shape.

    Examples
    --------
    >>> wdro.sets.Ball(2, p=2, radius=5.0).minimize([3.0, 4.0])
    array([-3., -4.])
    """

    has_constraints = True
    rounds = False

    def __init__(
        self, shape: int | tuple[int, ...], p: float, radius: float, center: ArrayLike = 0.0
    ) -> None:
        self.shape = as_shape(shape, "a Ball")
        self.dimension = int(np.prod(self.shape))
        if p not in NORMS:
            raise ValueError(f"a Ball is one of the norms p = 1, 2 or inf, got p = {p!r}.")
        self.p = p
        self.radius = checks.number("the radius of a Ball", radius, low=0, open=True)
        try:
            middle = np.broadcast_to(np.asarray(center, dtype=np.float64), self.shape).flatten()
        except (TypeError, ValueError):
            raise ValueError(
                f"the center of a Ball must be a number or an array of shape {self.shape}, got "
                f"{center!r}."
            ) from None
        if not np.isfinite(middle).all():
            at = int(np.flatnonzero(~np.isfinite(middle))[0])
            raise ValueError(f"the center of a Ball must be finite, got {middle[at]} at {at}.")
        self.center = middle
        self.is_polytope = p != 2
        self.bounds = (middle - self.radius, middle + self.radius)

    def answer(self, direction: Vector, lower: Side, upper: Side) -> Answer:
        """A minimiser; within bounds for p = inf."""
        if self.p == np.inf:
            low, high = self.interval(lower, upper)
            return np.where(direction < 0, high, low), 0.0
        self.refuse_bounds(lower, upper)
        sizes = np.abs(direction)
        largest = int(np.argmax(sizes))
        point = self.center.copy()
        if self.p == 1 or sizes[largest] == 0:
            point[largest] += self.radius if direction[largest] < 0 else -self.radius
        else:
            scaled = direction / sizes[largest]
            point -= self.radius / float(np.linalg.norm(scaled)) * scaled
        return point, 0.0

    def constraints(self, x: Any) -> list[Any]:
        distance = as_flat(x, self.dimension) - self.center
        return [cp.norm(distance, "inf" if self.p == np.inf else self.p) <= self.radius]

    def describe(self) -> str:
        return f"the ball of norm {self.p:g} and radius {self.radius:g} in {self.shape}"

    def __repr__(self) -> str:
        shape = self.shape[0] if len(self.shape) == 1 else self.shape
        return f"Ball({shape}, p={self.p:g}, radius={self.radius:g})"


# ------------------------------
# The convex hull of given points


class Hull(BoundedSet):
    """The convex combinations of points, the rows of an array (K, n).

    Parameters
    ----------
    integral
        The points are choices, which `round` and bounds choose among; by default they are
        where all entries are 0 and 1.

    Examples
    --------
    >>> plans = wdro.sets.Hull([[1.0, 0.0, 0.5], [0.0, 2.0, 0.0]])
    >>> plans.minimize([1.0, 1.0, 2.0])
    array([1. , 0. , 0.5])
    """

    has_constraints = True

    def __init__(self, points: ArrayLike, integral: bool | None = None) -> None:
        try:
            rows = np.array(points, dtype=np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                f"the points of a Hull must be an array (K, n) of numbers, got "
                f"{type(points).__name__}."
            ) from None
        if rows.ndim != 2 or not rows.size:
            raise ValueError(
                f"the points of a Hull are the rows of an array (K, n), got shape {rows.shape}."
            )
        if not np.isfinite(rows).all():
            at = tuple(map(int, np.argwhere(~np.isfinite(rows))[0]))
            raise ValueError(f"the points of a Hull must be finite, got {rows[at]} at index {at}.")
        self.points = rows
        self.dimension = rows.shape[1]
        self.bounds = (rows.min(axis=0), rows.max(axis=0))
        self.rounds = is_binary(rows) if integral is None else bool(integral)

    def answer(self, direction: Vector, lower: Side, upper: Side) -> Answer:
        """The best of the points, or of those within bounds where they are choices."""
        points = self.points
        if lower is not None or upper is not None:
            if not self.rounds:
                self.refuse_bounds(lower, upper)
            low, high = self.interval(lower, upper)
            points = points[np.all((points >= low) & (points <= high), axis=1)]
            if not len(points):
                raise InfeasibleError(f"none of the points of {self!r} lies within the bounds.")
        return np.array(points[int(np.argmin(points @ direction))]), 0.0

    def constraints(self, x: Any) -> list[Any]:
        weights = cp.Variable(len(self.points), nonneg=True)
        return [as_flat(x, self.dimension) == self.points.T @ weights, cp.sum(weights) == 1]

    def neighbours(self, vertex: Vector, x: Vector) -> Iterator[Vector]:
        """The other points, the nearest to x first."""
        order = np.argsort(np.linalg.norm(self.points - x, axis=1), kind="stable")
        others = (self.points[k].copy() for k in order)
        return (point for point in others if not np.array_equal(point, vertex))

    def describe(self) -> str:
        return f"the convex hull of {len(self.points)} points in {self.dimension} dimensions"

    def __repr__(self) -> str:
        return f"Hull({len(self.points)} points, dimension={self.dimension})"

    def discrete_near(self, x: ArrayLike) -> list[Vector]:
        return [self.without_errors(as_direction(x, self.dimension, kind="x"))]

    def is_vertex(self, x: ArrayLike) -> bool:
        point = as_direction(x, self.dimension, kind="x")
        return bool(np.abs(self.without_errors(point) - point).max() <= INTEGER_TOLERANCE)

    def without_errors(self, vertex: Vector) -> Vector:
        """The nearest of the points."""
        distances = np.linalg.norm(self.points - vertex, axis=1)
        return np.array(self.points[int(np.argmin(distances))])


# ------------------------------
# Matrices whose extreme points have rank one


SpectralBackend = Literal["dense", "arpack"]
"""The built-in backends; `register_backend` adds others."""


class RankOneSet(ShapedSet):
    """Matrices of a shape whose extreme points have rank one; `table(x)` is the matrix again.

    A subclass gives the point for a matrix of costs by a full decomposition, `_dense_point`, and by
    iterations for the leading vectors, `_sparse_point`.
    """

    shape: tuple[int, int]
    default_backend = "dense"
    is_polytope = False
    has_constraints = True
    rounds = False

    def _declare(self, shape: tuple[int, int], backend: str | None) -> None:
        self.shape = shape
        self.dimension = shape[0] * shape[1]
        # Iterations start from the same vector at every call, special for no matrix.
        self._start = np.random.default_rng(0).standard_normal(min(shape))
        chosen = "dense" if min(shape) <= LARGEST_DENSE else "arpack"
        self.use_backend(chosen if backend is None else backend)

    def answer(self, direction: Vector, lower: Side, upper: Side) -> Answer:
        self.refuse_bounds(lower, upper)
        return self._oracle(direction), 0.0

    def plot(self, x: ArrayLike, path: Any = None, *, ax: Any = None) -> Any:
        """Draw x as a matrix; the figure, or `ax` where it is given."""
        from wdro_model.sets.set_pictures import draw_table

        rows, columns = map(range, self.shape)
        return draw_table(self.table(np.ravel(x)), rows, columns, path, ax)

    def _matrix(self, x: Any) -> Any:
        return cp.reshape(as_flat(x, self.dimension), self.shape, order="C")

    def _scaled(self, direction: Vector) -> np.ndarray:
        """The direction as a matrix with entries of size 1."""
        return (direction / (np.abs(direction).max() or 1.0)).reshape(self.shape)

    @abstractmethod
    def _dense_point(self, costs: np.ndarray) -> np.ndarray:
        """The minimiser by a full decomposition."""

    @abstractmethod
    def _sparse_point(self, costs: np.ndarray) -> np.ndarray:
        """The minimiser by iterations for the leading vectors."""


def _dense(feasible: RankOneSet) -> LinearOracle:
    return lambda direction: feasible._dense_point(feasible._scaled(direction)).ravel()


def _arpack(feasible: RankOneSet) -> LinearOracle:
    dense = _dense(feasible)

    def minimize(direction: Vector) -> Vector:
        if min(feasible.shape) < 3 or not direction.any():
            return dense(direction)
        try:
            return feasible._sparse_point(feasible._scaled(direction)).ravel()
        except ArpackError:
            return dense(direction)

    return minimize


class NuclearBall(RankOneSet):
    """The matrices whose singular values sum to at most the radius.

    Backends: "dense", a full singular value decomposition, the default up to 60 rows or columns;
    "arpack", the leading singular vectors from a fixed start.

    Examples
    --------
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
        self.radius = checks.number("the radius of a NuclearBall", radius, low=0, open=True)
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

    def _dense_point(self, costs: np.ndarray) -> np.ndarray:
        left, _, right = svd(costs, full_matrices=False, check_finite=False)
        return -self.radius * np.outer(left[:, 0], right[0])

    def _sparse_point(self, costs: np.ndarray) -> np.ndarray:
        left, _, right = svds(costs, k=1, v0=self._start)
        return -self.radius * np.outer(left, right)

    def __repr__(self) -> str:
        return f"NuclearBall({self.shape}, radius={self.radius:g})"


class Spectraplex(RankOneSet):
    """The positive semidefinite matrices (n, n) of a given trace.

    Backends: "dense", all eigenvalues, the default up to n = 60; "arpack", the smallest one from a
    fixed start.

    Examples
    --------
    >>> plex = wdro.sets.Spectraplex(2)
    >>> np.abs(plex.table(plex.minimize([1.0, 0.0, 0.0, -1.0]))).round(6)
    array([[0., 0.],
           [0., 1.]])
    """

    def __init__(
        self, n: int, trace: float = 1.0, backend: SpectralBackend | str | None = None
    ) -> None:
        size = checks.whole_number("the size n of a Spectraplex", n, low=1)
        self.trace = checks.number("the trace of a Spectraplex", trace, low=0, open=True)
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

    def _dense_point(self, costs: np.ndarray) -> np.ndarray:
        _, vectors = eigh(costs + costs.T, subset_by_index=[0, 0], check_finite=False)
        return self.trace * np.outer(vectors, vectors)

    def _sparse_point(self, costs: np.ndarray) -> np.ndarray:
        _, vectors = eigsh(costs + costs.T, k=1, which="SA", v0=self._start)
        return self.trace * np.outer(vectors, vectors)

    def __repr__(self) -> str:
        return f"Spectraplex({self.shape[0]}, trace={self.trace:g})"


for kind in (NuclearBall, Spectraplex):
    register_backend(kind, "dense", _dense)
    register_backend(kind, "arpack", _arpack)
