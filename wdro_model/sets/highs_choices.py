"""A program over 0/1 variables that stays in HiGHS; costs and bounds change with the call."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import highspy
import numpy as np
import scipy.sparse as sp

from wdro_model.errors import InaccurateError
from wdro_model.sets.backends import Vector
from wdro_model.sets.held_oracle import HeldOracle, Mask, nothing_left
from wdro_model.sets.items import ItemSet

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
