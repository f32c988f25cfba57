"""Programs over 0/1 variables that stay in HiGHS, with rows added as they are violated.

The linear program comes first. An answer of it that is whole and violates no row is optimal, as the
program has more points than there are choices; an answer that is neither whole nor violates a row
that is known how to find is left to branch and bound. Rows stay for the calls that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import highspy
import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from wdro_model.errors import InaccurateError
from wdro_model.sets.backends import Vector
from wdro_model.sets.choices import ItemSet
from wdro_model.sets.held import HeldOracle, Mask, nothing_left
from wdro_model.sets.vertices import is_binary

MOST_ROWS_KEPT = 2000
"""With more rows found so far they are all given up before the next call."""
OPTIONS = {
    "output_flag": False,
    "parallel": "off",
    "mip_rel_gap": 0.0,
    "mip_abs_gap": 1e-10,
    "mip_feasibility_tolerance": 1e-9,
    "primal_feasibility_tolerance": 1e-9,
    "dual_feasibility_tolerance": 1e-9,
}


@dataclass(frozen=True)
class ViolatedRow:
    """least <= <values, x[columns]> <= most."""

    columns: np.ndarray
    values: np.ndarray
    least: float = -np.inf
    most: float = np.inf

    def is_violated(self, x: Vector) -> bool:
        """Is x outside by more than a solver's tolerance?"""
        sum_ = float(self.values @ x[self.columns])
        return sum_ < self.least - 1e-6 or sum_ > self.most + 1e-6


Violated = Callable[[Vector], Iterable[ViolatedRow]]


def at_least(columns: np.ndarray, least: float) -> ViolatedRow:
    """The sum of some coordinates, given by a mask (n,), is at least so much."""
    where = np.flatnonzero(columns)
    return ViolatedRow(where, np.ones(where.size), least=least)


def at_most(columns: np.ndarray, most: float) -> ViolatedRow:
    """The sum of some coordinates, given by a mask (n,), is at most so much."""
    where = np.flatnonzero(columns)
    return ViolatedRow(where, np.ones(where.size), most=most)


class EdgeProgram:
    """min c'x over rows and bounds, whole or not, and over rows found by `violated(x)`."""

    def __init__(
        self, matrix: Any, least: Vector, most: Vector, lower: Vector, upper: Vector
    ) -> None:
        A = sp.csc_array(matrix)
        model = highspy.HighsLp()
        model.num_row_, model.num_col_ = A.shape
        model.col_cost_ = np.zeros(A.shape[1])
        model.col_lower_, model.col_upper_ = lower, upper
        model.row_lower_, model.row_upper_ = least, most
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_, model.a_matrix_.index_ = A.indptr, A.indices
        model.a_matrix_.value_ = A.data
        self._highs: Any = highspy.Highs()
        for option, value in OPTIONS.items():
            self._highs.setOptionValue(option, value)
        self._highs.passModel(model)
        self._columns = np.arange(A.shape[1], dtype=np.int32)
        self._fixed_rows = A.shape[0]
        self._lower, self._upper = lower, upper
        self._moved = False

    def minimize(self, cost: Vector, lower: Any = None, upper: Any = None) -> Vector | None:
        """A vertex of the linear program, without rows to be found; None if it is empty."""
        self._prepare(cost, lower, upper)
        return self._run()

    def choose(
        self, cost: Vector, violated: Violated, lower: Any = None, upper: Any = None
    ) -> Vector | None:
        """A 0/1 point that minimises c'x and violates no row; None if there is none."""
        self._prepare(cost, lower, upper)
        x = self._without_violations(violated)
        if x is None or is_binary(x):
            return x
        kinds = highspy.HighsVarType
        self._set_kind(kinds.kInteger)
        try:
            x = self._without_violations(violated)
        finally:
            self._set_kind(kinds.kContinuous)
        return None if x is None else np.rint(x)

    def change_rows(self, rows: np.ndarray, least: Vector) -> None:
        """Other least values for some of the rows, whose most is 1."""
        for row, value in zip(rows.tolist(), least.tolist()):
            self._highs.changeRowBounds(row, value, 1.0)

    def row_duals(self) -> Vector:
        """Those of the last linear program."""
        return np.array(self._highs.getSolution().row_dual)

    def reset(self) -> None:
        """Forget the basis and the rows that were found."""
        self._forget_rows()
        self._highs.clearSolver()

    def _prepare(self, cost: Vector, lower: Any, upper: Any) -> None:
        highs, size = self._highs, self._columns.size
        if highs.getNumRow() - self._fixed_rows > MOST_ROWS_KEPT:
            self._forget_rows()
        scale = float(np.abs(cost).max(initial=0.0)) or 1.0
        highs.changeColsCost(size, self._columns, cost / scale)
        bounded = lower is not None or upper is not None
        if bounded or self._moved:
            low = self._lower if lower is None else np.asarray(lower, dtype=np.float64)
            high = self._upper if upper is None else np.asarray(upper, dtype=np.float64)
            highs.changeColsBounds(size, self._columns, low, high)
            self._moved = bounded

    def _forget_rows(self) -> None:
        count = self._highs.getNumRow()
        if count > self._fixed_rows:
            self._highs.deleteRows(
                count - self._fixed_rows, np.arange(self._fixed_rows, count, dtype=np.int32)
            )

    def _without_violations(self, violated: Violated) -> Vector | None:
        while True:
            x = self._run()
            rows = [] if x is None else [row for row in violated(x) if row.is_violated(x)]
            if not rows:
                return x
            for row in rows:
                columns = row.columns.astype(np.int32)
                self._highs.addRow(row.least, row.most, columns.size, columns, row.values)

    def _set_kind(self, kind: Any) -> None:
        size = self._columns.size
        self._highs.changeColsIntegrality(size, self._columns, np.full(size, int(kind), np.uint8))

    def _run(self) -> Vector | None:
        highs, named = self._highs, highspy.HighsModelStatus
        for _ in range(2):
            highs.run()
            status = highs.getModelStatus()
            if status == named.kOptimal:
                return np.array(highs.getSolution().col_value)
            highs.clearSolver()
        if status in (named.kInfeasible, named.kUnboundedOrInfeasible):
            return None
        raise cp.error.SolverError(
            f"HiGHS stopped with {highs.modelStatusToString(status)!r} on a program with "
            f"{self._columns.size} columns and {highs.getNumRow()} rows."
        )


def components(joined: np.ndarray, tails: np.ndarray, heads: np.ndarray, count: int) -> Iterator:
    """The components (n,) of some edges, given by a mask; nodes without such an edge are none."""
    pairs = (np.ones(int(joined.sum())), (tails[joined], heads[joined]))
    parts, label = connected_components(sp.coo_array(pairs, shape=(count, count)), directed=False)
    met = np.zeros(count, dtype=bool)
    met[tails[joined]] = met[heads[joined]] = True
    for part in range(parts):
        nodes = label == part
        if met[nodes].any():
            yield nodes


# ------------------------------
# A program over 0/1 variables that stays in HiGHS; costs and bounds change with the call


TOLERANCE = 1e-9
"""Of rows and reduced costs, whose entries are of size 1."""


class HighsChoices(HeldOracle):
    """min <direction, x> over x in {0, 1}^n with row_lower <= A x <= row_upper.

    integer: the linear program has vertices that are not 0/1. The slack of an answer is its cost
    less the dual bound, which branch and bound knows up to its tolerance.
    """

    def __init__(
        self, choices: ItemSet, matrix: Any, row_lower: Vector, row_upper: Vector, integer: bool
    ) -> None:
        self._set, self._integer = choices, integer
        self._matrix = sp.csc_array(matrix)
        self._row_lower, self._row_upper = row_lower, row_upper
        size = self._matrix.shape[1]
        self._columns = np.arange(size, dtype=np.int32)
        self._highs = highspy.Highs()
        options: dict[str, Any] = {
            "output_flag": False,
            "parallel": "off",
            "mip_rel_gap": 0.0,
            "mip_abs_gap": TOLERANCE,
            "primal_feasibility_tolerance": TOLERANCE,
            "dual_feasibility_tolerance": TOLERANCE,
            "mip_feasibility_tolerance": TOLERANCE,
        }
        for option, value in options.items():
            self._highs.setOptionValue(option, value)
        self._highs.passModel(self._model(size))

    def answer(self, direction: Vector, forbidden: Mask, mandatory: Mask) -> tuple[Vector, float]:
        unit = float(np.abs(direction).max())
        cost = direction / (unit or 1.0)
        lower, upper = mandatory.astype(np.float64), 1.0 - forbidden
        highs, size = self._highs, self._columns.size
        highs.changeColsCost(size, self._columns, cost)
        highs.changeColsBounds(size, self._columns, lower, upper)
        highs.run()
        status, named = highs.getModelStatus(), highspy.HighsModelStatus
        if status == named.kInfeasible:
            raise nothing_left(self._set, forbidden, mandatory)
        if status != named.kOptimal:
            raise cp.error.SolverError(
                f"HiGHS stopped with {highs.modelStatusToString(status)!r} on {self._set!r}."
            )
        solution = highs.getSolution()
        found = np.array(solution.col_value, dtype=np.float64)
        vertex = np.clip(np.rint(found), lower, upper)
        if np.abs(vertex - found).max() > 1e-5 or not self._set.is_member(vertex > 0.5):
            raise InaccurateError(
                f"HiGHS called a point optimal that is not one of {self._set!r}, up to its "
                f"tolerance only; use backend={self._set.default_backend!r}."
            )
        bound = self._bound(cost, lower, upper, solution)
        return vertex, max(unit * (float(cost @ vertex) - bound), 0.0)

    def _bound(self, cost: Vector, lower: Vector, upper: Vector, solution: Any) -> float:
        """A number that no choice undercuts: HiGHS' own, or that of the row duals p.

        p'b + sum_j min over the bounds of (c - A'p)_j x_j, b the side of a row that p presses on.
        """
        if self._integer:
            return float(self._highs.getInfoValue("mip_dual_bound")[1]) - TOLERANCE * cost.size
        duals = np.array(solution.row_dual, dtype=np.float64)
        sides = np.where(duals > 0, self._row_lower, self._row_upper)
        duals, sides = (np.where(np.isinf(sides), 0.0, part) for part in (duals, sides))
        reduced = cost - duals @ self._matrix
        return float(duals @ sides + np.minimum(reduced * lower, reduced * upper).sum())

    def _model(self, size: int) -> Any:
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = size, self._matrix.shape[0]
        model.col_cost_ = np.zeros(size)
        model.col_lower_, model.col_upper_ = np.zeros(size), np.ones(size)
        model.row_lower_, model.row_upper_ = self._row_lower, self._row_upper
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_ = self._matrix.indptr
        model.a_matrix_.index_ = self._matrix.indices
        model.a_matrix_.value_ = self._matrix.data
        if self._integer:
            model.integrality_ = [highspy.HighsVarType.kInteger] * size
        return model
