"""Is a solver's answer what the solver says it is, and is it the answer to the next cost as well?

A point is feasible if its own rows say so, and optimal if a dual bound meets its cost. Both are
computed here from the constraints, in a few products: solvers judge themselves by scaled models.
Sums are held against the sizes of their terms, since they cannot be known better than that.
"""

from __future__ import annotations

from typing import Any

import highspy
import numpy as np

from wdro_model.errors import InaccurateError
from wdro_model.sets.backends import Vector
from wdro_model.sets.cone_program import ConeProgram

CLEAR = 1e-6
"""Sums that are off by less than this are not looked at any closer."""
INACCURATE = 1e-5
"""How far a sum may be off, relative to its terms."""
WAY_OUT = (
    "rescale the variables and constraints so that their numbers have similar sizes, or write the "
    "set as an Oracle with your own solver."
)


class LinearCertificate:
    """{y : A y = b in the first rows, A y <= b in the others, lower <= y <= upper}."""

    def __init__(
        self, matrix: Any, b: Vector, equalities: int, lower: Vector, upper: Vector
    ) -> None:
        """matrix: A, dense or sparse; equalities: the number of rows that are."""
        self._matrix, self._b, self._equalities = matrix, b, equalities
        self._lower, self._upper = lower, upper
        self._no_lower, self._no_upper = (np.flatnonzero(np.isinf(at)) for at in (lower, upper))

    def check_duals(self, cost: Vector, y: Vector, duals: Vector) -> None:
        """Raise InaccurateError unless y is feasible and duals (rows,) show that it is optimal.

        Entries of y that are off their bounds by rounding are set to them.

        For any p with p <= 0 on inequalities and r = c - A'p, the minimum is at least
        p'b + sum of r_j times the lower bound where r_j > 0 and the upper one elsewhere. Where
        there is no bound, a move of y_j by 1 + |y_j| takes its place: what is optimal among such
        points is optimal.
        """
        self.check_feasible(y)
        signed = duals[self._equalities :]
        if signed.size:
            np.minimum(signed, 0.0, out=signed)
        reduced = cost - duals @ self._matrix
        lower, upper = self._lower, self._upper
        if self._no_lower.size:
            lower = _moved(lower, y, self._no_lower, -1.0)
        if self._no_upper.size:
            upper = _moved(upper, y, self._no_upper, 1.0)
        bound = duals @ self._b + np.where(reduced > 0, lower, upper) @ reduced
        value = cost @ y
        if value - bound > CLEAR:
            terms = np.abs(cost) @ np.abs(y) + np.abs(duals) @ (abs(self._matrix) @ np.abs(y))
            _check_gap("HiGHS", value, bound, terms)

    def check_bound(self, cost: Vector, y: Vector, bound: float) -> None:
        """Raise InaccurateError unless y is feasible and as good as the solver's own bound."""
        self.check_feasible(y)
        value = cost @ y
        if value - bound > CLEAR:
            _check_gap("HiGHS", value, bound, np.abs(cost) @ np.abs(y))

    def check_feasible(self, y: Vector) -> None:
        """Move y into its bounds, where the rows must hold."""
        np.maximum(y, self._lower, out=y)
        np.minimum(y, self._upper, out=y)
        excess = self._matrix @ y
        excess -= self._b
        equalities = excess[: self._equalities]
        np.abs(equalities, out=equalities)
        if (excess > CLEAR).any():
            _check_rows("HiGHS", excess, abs(self._matrix) @ np.abs(y) + np.abs(self._b))


def check_cones(program: ConeProgram, cost: Vector, y: Vector, slack: Vector, bound: float) -> None:
    """Raise InaccurateError unless A y + slack = b and the cost of y meets the dual bound.

    slack: the solver's, in its cones.
    """
    excess = np.abs(program.A @ y + slack - program.b)
    if excess.max(initial=0.0) > CLEAR:
        terms = abs(program.A) @ np.abs(y) + np.abs(slack) + np.abs(program.b)
        _check_rows("Clarabel", excess, terms)
    value = cost @ y
    if value - bound > CLEAR:
        _check_gap("Clarabel", value, bound, np.abs(cost) @ np.abs(y))


def _moved(bounds: Vector, y: Vector, where: np.ndarray, sign: float) -> Vector:
    bounds = bounds.copy()
    bounds[where] = y[where] + sign * (1.0 + np.abs(y[where]))
    return bounds


def _check_rows(solver: str, excess: Vector, terms: Vector) -> None:
    share = excess / np.maximum(1.0, terms)
    worst = int(np.argmax(share))
    if share[worst] > INACCURATE:
        raise InaccurateError(
            f"{solver} called a point optimal that violates a constraint by {excess[worst]:.1e}, "
            f"where the terms of the constraint are of size {terms[worst]:.1e}; {WAY_OUT}"
        )


def _check_gap(solver: str, value: Any, bound: Any, terms: Any) -> None:
    if value - bound > INACCURATE * max(1.0, terms):
        raise InaccurateError(
            f"{solver} called a point of cost {value:.6g} optimal, and its own dual bound is "
            f"{bound:.6g}; {WAY_OUT}"
        )


# ------------------------------------------------------------------ the last vertex
TOLERANCE = 1e-9
"""Reduced costs up to this count as zero; costs are scaled to entries of size 1."""
MOST_ROWS = 250
"""Bases of more rows are not inverted."""
_BASIC, _LOWER = int(highspy.HighsBasisStatus.kBasic), int(highspy.HighsBasisStatus.kLower)
_UPPER = int(highspy.HighsBasisStatus.kUpper)


class Basis:
    """An optimal basis of min c'x, lower <= (x, Ax) <= upper, and the inverse of its matrix.

    At a vertex with basis matrix B, y = B^-T c_B are the row duals and c - A'y the reduced costs.
    It stays optimal while no reduced cost has the wrong sign for the bound that its variable sits
    at: one small solve with the factors of B, against a call of the simplex method.
    """

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
