"""From a point of the hull to a vertex: which vertices to try, which to take, how to improve one.

Trees, paths and other choices are 0/1 vectors v. The nearest one to a point x minimises

    |v - x|^2 = <1 - 2 x, v> + |x|^2,

which is one call of the oracle; for trees, all with the same number of edges, -x will do. Sets with
a CVXPY form and integers have a nearest point by a program, compiled once for many points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import cvxpy as cp
import numpy as np

from wdro_model.sets.backends import Vector, reference_solver

if TYPE_CHECKING:
    from wdro_model.sets.feasible_set import FeasibleSet

Value = Callable[[Vector], float]
"""What a vertex is judged by: less is better. If it has an attribute `gradient`, a function of the
vertex, it is convex and that is its gradient; with an attribute `most` that is not None, a search
evaluates it so many times only."""
WHOLE = 1e-6
"""Entries of a vertex this close to an integer are that integer."""


def distance_to(x: Vector) -> Value:
    """v -> |v - x|."""
    return lambda vertex: float(np.linalg.norm(vertex - x))


def is_binary(vertex: Vector) -> bool:
    """Are all entries 0 or 1, up to a solver's tolerance?"""
    return bool(np.all(np.minimum(np.abs(vertex), np.abs(vertex - 1.0)) <= WHOLE))


def is_whole(vertex: Vector) -> bool:
    """Are all entries integers, up to a solver's tolerance?"""
    return bool(np.all(np.abs(vertex - np.rint(vertex)) <= WHOLE))


def nearest_directions(x: Vector, nonnegative: bool) -> tuple[Vector, Vector]:
    """Directions whose minimiser over 0/1 vectors is near x, or along its large coordinates.

    Where the oracle takes nonnegative directions only, the nearest such ones.
    """
    if nonnegative:
        return np.maximum(1.0 - 2.0 * x, 0.0), np.maximum(1.0 - x, 0.0)
    return 1.0 - 2.0 * x, -x


def best_of(vertices: Iterable[Vector], value: Value) -> Vector:
    """The first vertex of least value."""
    return min(vertices, key=value)


def limit_of(value: Value) -> int | None:
    """How often a search may evaluate the value; None without a limit."""
    return getattr(value, "most", None)


def descend(
    vertex: Vector,
    value: Value,
    neighbours: Callable[[Vector], Iterable[Vector]],
    most: int | None = None,
) -> Vector:
    """A vertex that no neighbour improves, or the best one after so many evaluations."""
    best, least, seen = vertex, value(vertex), {vertex.tobytes()}
    improved = True
    while improved:
        improved = False
        for other in neighbours(best):
            if other.tobytes() in seen:
                continue
            if most is not None and len(seen) > most:
                return best
            seen.add(other.tobytes())
            if (found := value(other)) < least:
                best, least, improved = other, found, True
                break
    return best


FREE = 1e6
"""A bound on the change of a coordinate that is none, relative to the largest one."""


class Nearest:
    """min sum_i |v_i - x_i| over the points v of a set, integers included."""

    def __init__(self, feasible: FeasibleSet) -> None:
        n = feasible.dimension
        self._set = feasible
        self._point, self._x = cp.Variable(n), cp.Parameter(n)
        self._weights = cp.Parameter(n, nonneg=True)
        self._least, self._most = cp.Parameter(n), cp.Parameter(n)
        change = cp.Variable(n)
        self._problem = cp.Problem(
            cp.Minimize(self._weights @ cp.abs(change)),
            [
                change == self._point - self._x,
                change >= self._least,
                change <= self._most,
                *feasible.constraints(self._point),
            ],
        )

    def __call__(self, x: Vector, counted: np.ndarray) -> Vector:
        """The nearest point in the coordinates that count."""
        found = self._solve(x, counted.astype(float), *self._free(x))
        if found is None:
            raise cp.error.SolverError(
                f"no point of {self._set!r} was found: {self._problem.status}."
            )
        return found

    def moved(self, x: Vector, moves: Mapping[int, float]) -> Vector | None:
        """The nearest point to x with some coordinates at least 1 up or down; None without any.

        moves: +1 or -1 for each such coordinate.
        """
        least, most = self._free(x)
        for index, way in moves.items():
            if way > 0:
                least[index] = 1.0
            else:
                most[index] = -1.0
        return self._solve(x, np.ones(x.size), least, most)

    def _free(self, x: Vector) -> tuple[Vector, Vector]:
        """Bounds on the change that are none."""
        size = FREE * max(1.0, float(np.abs(x).max()))
        return np.full(x.size, -size), np.full(x.size, size)

    def _solve(self, x: Vector, weights: Vector, least: Vector, most: Vector) -> Vector | None:
        self._x.value, self._weights.value = x, weights
        self._least.value, self._most.value = least, most
        self._problem.solve(solver=reference_solver(self._problem))
        value = self._point.value
        return None if value is None else np.array(value)
