"""HiGHS behind CVXPY, kept alive between solves: a linear program goes on from its last basis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
import scipy.sparse as sp
from cvxpy import settings
from cvxpy.error import SolverError
from cvxpy.reductions.solvers.conic_solvers.highs_conif import HIGHS

from wdro_model.sets.deadlines import seconds_left

ROWS = "warm highs"
"""Under this name a problem of CVXPY keeps the solver."""


@dataclass
class _Running:
    """A HiGHS model and the numbers that it holds."""

    highs: Any
    matrix: sp.csc_array
    cost: np.ndarray
    upper: np.ndarray


class WarmHighs(HIGHS):
    """min c'x subject to rows; numbers that changed since the last solve are changed in place.

    Bounds of variables are rows: CVXPY derives false ones for solvers that take bounds.
    """

    BOUNDED_VARIABLES = False

    def name(self) -> str:
        # CVXPY refuses its own names to other solvers, and reads names in any case.
        return str(super().name()).lower()

    def solve_via_data(
        self,
        data: dict[str, Any],
        warm_start: bool,
        verbose: bool,
        solver_opts: dict[str, Any],
        solver_cache: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """What CVXPY reads an answer from."""
        cache = {} if solver_cache is None else solver_cache
        running = cache.get(ROWS)
        if running is None or not _updated(running, data):
            running = cache[ROWS] = _loaded(data)
        highs = running.highs
        highs.setOptionValue("output_flag", verbose)
        for name, value in solver_opts.items():
            if highs.setOptionValue(name, value) == highspy.HighsStatus.kError:
                raise SolverError(f"HiGHS does not take the option {name!r} = {value!r}.")
        left = seconds_left()
        highs.setOptionValue("time_limit", np.inf if left is None else highs.getRunTime() + left)
        highs.run()
        status = highs.getModelStatus().name
        answer = {
            "solution": highs.getSolution(),
            "info": highs.getInfo(),
            "model_status": status,
            "run_time": highs.getRunTime(),
        }
        if status == "kInfeasible":
            answer["dual_ray"] = highs.getDualRay()
        return answer


WARM_HIGHS = WarmHighs()
"""CVXPY knows by the object that a problem was compiled for it."""


def _loaded(data: dict[str, Any]) -> _Running:
    """A new solver with the model."""
    matrix, upper = sp.csc_array(data[settings.A]), np.asarray(data[settings.B], dtype=float)
    cost = np.asarray(data[settings.C], dtype=float)
    lp = highspy.HighsLp()
    lp.num_row_, lp.num_col_ = matrix.shape
    lp.col_cost_ = cost
    lp.col_lower_, lp.col_upper_ = np.full(cost.size, -np.inf), np.full(cost.size, np.inf)
    lp.row_lower_, lp.row_upper_ = _lower(data, upper), upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = matrix.indptr
    lp.a_matrix_.index_ = matrix.indices
    lp.a_matrix_.value_ = matrix.data
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("parallel", "off")
    highs.passModel(lp)
    return _Running(highs, matrix, cost, upper)


def _lower(data: dict[str, Any], upper: np.ndarray) -> np.ndarray:
    """Equalities come first, all other rows have no lower bound."""
    equalities = data[HIGHS.DIMS].zero
    return np.concatenate([upper[:equalities], np.full(upper.size - equalities, -np.inf)])


def _updated(running: _Running, data: dict[str, Any]) -> bool:
    """Change what is not as it was; False where the pattern of the rows is another."""
    matrix, upper = sp.csc_array(data[settings.A]), np.asarray(data[settings.B], dtype=float)
    cost, old, highs = np.asarray(data[settings.C], dtype=float), running.matrix, running.highs
    same_pattern = (
        matrix.shape == old.shape
        and np.array_equal(matrix.indptr, old.indptr)
        and np.array_equal(matrix.indices, old.indices)
    )
    if not same_pattern:
        return False
    places = np.flatnonzero(matrix.data != old.data)
    columns = np.searchsorted(matrix.indptr, places, side="right") - 1
    for place, column in zip(places.tolist(), columns.tolist()):
        highs.changeCoeff(int(matrix.indices[place]), column, float(matrix.data[place]))
    changed = np.flatnonzero(cost != running.cost).astype(np.int32)
    if changed.size:
        highs.changeColsCost(changed.size, changed, cost[changed])
    moved = np.flatnonzero(upper != running.upper).astype(np.int32)
    if moved.size:
        highs.changeRowsBounds(moved.size, moved, _lower(data, upper)[moved], upper[moved])
    running.matrix, running.cost, running.upper = matrix, cost, upper
    return True
