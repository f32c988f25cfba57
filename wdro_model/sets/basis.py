"""Is the vertex of the last linear program optimal for the next cost as well?

At a vertex with basis matrix B and cost c, y = B^-T c_B are the row duals and c - A'y the reduced
costs. The vertex stays optimal while no reduced cost has the wrong sign for the bound that its
variable sits at: one small solve with the factors of B, against a call of the simplex method.
"""

from __future__ import annotations

from typing import Any

import highspy
import numpy as np

from wdro_model.sets.backends import Vector

TOLERANCE = 1e-9
"""Reduced costs up to this count as zero; costs are scaled to entries of size 1."""
MOST_ROWS = 250
"""Bases of more rows are not inverted."""
_BASIC, _LOWER = int(highspy.HighsBasisStatus.kBasic), int(highspy.HighsBasisStatus.kLower)
_UPPER = int(highspy.HighsBasisStatus.kUpper)


class Basis:
    """An optimal basis of min c'x, lower <= (x, Ax) <= upper, and the inverse of its matrix."""

    def __init__(self, matrix: Vector, basis: Any, fixed: np.ndarray) -> None:
        """matrix: A, dense (m, n); basis: HiGHS's; fixed: (n + m,), variables with equal bounds."""
        rows, columns = matrix.shape
        status = np.array([*map(int, basis.col_status), *map(int, basis.row_status)])
        basic = np.flatnonzero(status == _BASIC)
        self._structural = basic[basic < columns]
        slack = basic[basic >= columns] - columns
        square = np.zeros((rows, rows))
        square[:, : self._structural.size] = matrix[:, self._structural]
        square[slack, self._structural.size + np.arange(slack.size)] = 1.0
        inverse = np.linalg.inv(square)
        # Reduced costs of all columns, and the duals of the rows, as linear maps of c_B.
        duals = inverse[: self._structural.size]
        self._map = np.concatenate([-duals @ matrix, duals], axis=1).T
        self._columns = columns
        free = (status != _BASIC) & ~fixed
        self._least = np.where(free & (status != _UPPER), -TOLERANCE, -np.inf)
        self._most = np.where(free & (status != _LOWER), TOLERANCE, np.inf)

    def is_optimal(self, cost: Vector) -> bool:
        """Does the vertex minimise this cost?"""
        reduced = self._map @ cost[self._structural]
        reduced[: self._columns] += cost
        return bool((reduced >= self._least).all() and (reduced <= self._most).all())
