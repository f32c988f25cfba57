"""The nearest point of a set with a CVXPY form, compiled once for many points."""

from __future__ import annotations

from collections.abc import Mapping

import cvxpy as cp
import numpy as np

from wdro_model.sets.backends import Vector
from wdro_model.sets.base import FeasibleSet, reference_solver

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
