"""Solvers behind CVXPY that end with the time of a solve; Clarabel and HiGHS at Ctrl-C as well.

CVXPY takes a solver as an object. These are its own, told at the last moment, after the program was
compiled, how many seconds are left.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import clarabel
import highspy
import numpy as np
import scipy.sparse as sp
from cvxpy import settings
from cvxpy.error import SolverError
from cvxpy.reductions.solvers.conic_solvers.clarabel_conif import CLARABEL, dims_to_solver_cones
from cvxpy.reductions.solvers.conic_solvers.highs_conif import HIGHS
from cvxpy.reductions.solvers.solving_chain import resolve_and_build_chain

from wdro_model.bounds_as_rows import bounds_as_rows
from wdro_model.sets.deadlines import OutOfTime, seconds_left
from wdro_model.solvers.patience import watched

LEAST = 0.05
"""Seconds that a solver has, however late it is."""
LIMITS: dict[str, tuple[str, ...]] = {
    "SCS": ("time_limit_secs",),
    "OSQP": ("time_limit",),
    "HIGHS": ("time_limit",),
    "GLOP": ("time_limit_sec",),
    "PDLP": ("time_limit_sec",),
    "SCIPY": ("scipy_options", "time_limit"),
    "SCIP": ("scip_params", "limits/time"),
    "GUROBI": ("TimeLimit",),
    "COPT": ("TimeLimit",),
    "MOSEK": ("mosek_params", "MSK_DPAR_OPTIMIZER_MAX_TIME"),
    "CPLEX": ("cplex_params", "timelimit"),
    "XPRESS": ("maxtime",),
}
"""Under which option other solvers are told the seconds that they have."""


def patient(problem: Any, name: str) -> Any:
    """The solver of that name, for `problem.solve(solver=...)` and `get_problem_data`.

    Bounds of variables are rows like all others, see `bounds_as_rows`. Raises CVXPY's SolverError
    where the solver cannot take the problem.
    """
    if name == settings.CLARABEL:
        return PATIENT_CLARABEL
    if seconds_left() is None and name != settings.HIGHS:
        return bounds_as_rows(problem, name)
    kind: Any = type(resolve_and_build_chain(problem, solver=name, ignore_dpp=True).solver)
    return PATIENT_HIGHS if kind is HIGHS else _limited(kind)


class PatientClarabel(CLARABEL):
    """Clarabel, which looks up between iterations."""

    STATUS_MAP = CLARABEL.STATUS_MAP | {"CallbackTerminated": settings.USER_LIMIT}

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
    ) -> Any:
        """What CVXPY reads an answer from."""
        if watched().stop:
            raise OutOfTime
        options = self.parse_solver_opts(verbose, solver_opts)
        if (left := seconds_left()) is not None:
            options.time_limit = min(options.time_limit, max(left, LEAST))
        cost, rows = data[settings.C], data[settings.A]
        quadratic = data.get(settings.P, sp.csc_array((cost.size, cost.size)))
        cones = dims_to_solver_cones(data[self.DIMS])
        watch = watched()

        def look(info: Any) -> bool:
            watch.iterations, watch.gap = info.iterations, info.gap_rel
            return watch.stop

        program = sp.triu(quadratic).tocsc(), cost, rows, data[settings.B], cones
        solver = clarabel.DefaultSolver(*program, options)
        solver.set_termination_callback(look)
        return solver.solve()


class PatientHighs(HIGHS):
    """HiGHS for linear and mixed-integer programs; bounds of variables are rows."""

    BOUNDED_VARIABLES = False
    STATUS_MAP = HIGHS.STATUS_MAP | {"kInterrupt": settings.USER_LIMIT}

    def name(self) -> str:
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
        if watched().stop:
            raise OutOfTime
        highs = highspy.Highs()
        highs.setOptionValue("log_to_console", verbose)
        given = {**solver_opts, **solver_opts.get("highs_options", {})}
        given.pop("highs_options", None)
        for name, value in _with_limit(given, LIMITS["HIGHS"]).items():
            if highs.setOptionValue(name, value) == highspy.HighsStatus.kError:
                raise SolverError(f"HiGHS does not take the option {name!r} = {value!r}.")
        highs.passModel(_highs_model(data))
        highs.HandleUserInterrupt = True
        watched().cancel = highs.cancelSolve
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


PATIENT_CLARABEL, PATIENT_HIGHS = PatientClarabel(), PatientHighs()
"""CVXPY knows by the object that a problem was compiled for it."""


def _highs_model(data: dict[str, Any]) -> Any:
    """min c'x under rows, equalities first; 0/1 variables with their bounds."""
    matrix, right = sp.csc_array(data[settings.A]), np.asarray(data[settings.B], dtype=float)
    cost, equalities = np.asarray(data[settings.C], dtype=float), data[HIGHS.DIMS].zero
    lower, upper = np.full(cost.size, -np.inf), np.full(cost.size, np.inf)
    boolean, integer = list(data[settings.BOOL_IDX]), list(data[settings.INT_IDX])
    lower[boolean], upper[boolean] = 0.0, 1.0
    model = highspy.HighsLp()
    model.num_row_, model.num_col_ = matrix.shape
    model.col_cost_, model.col_lower_, model.col_upper_ = cost, lower, upper
    model.row_lower_ = np.where(np.arange(right.size) < equalities, right, -np.inf)
    model.row_upper_ = right
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = matrix.indptr
    model.a_matrix_.index_ = matrix.indices
    model.a_matrix_.value_ = matrix.data
    if boolean or integer:
        kinds = np.full(cost.size, highspy.HighsVarType.kContinuous)
        kinds[[*boolean, *integer]] = highspy.HighsVarType.kInteger
        model.integrality_ = list(kinds)
    return model


@cache
def _limited(kind: Any) -> Any:
    """Another solver of CVXPY, without bounds of variables, told the seconds that are left."""
    where = LIMITS.get(kind.name(kind), ())

    def solve_via_data(
        self: Any,
        data: Any,
        warm_start: bool,
        verbose: bool,
        solver_opts: dict[str, Any],
        solver_cache: Any = None,
    ) -> Any:
        if watched().stop:
            raise OutOfTime
        options = _with_limit(solver_opts, where)
        return kind.solve_via_data(self, data, warm_start, verbose, options, solver_cache)

    changes = {
        "BOUNDED_VARIABLES": False,
        "name": lambda self: kind.name(self).lower(),
        "solve_via_data": solve_via_data,
    }
    return type(kind.__name__, (kind,), changes)()


def _with_limit(options: dict[str, Any], where: tuple[str, ...]) -> dict[str, Any]:
    """The options with the seconds that are left, if there is a limit and the solver has one."""
    left = seconds_left()
    if left is None or not where:
        return options
    inner = dict(options if len(where) == 1 else options.get(where[0], {}))
    inner[where[-1]] = min(inner.get(where[-1], np.inf), max(left, LEAST))
    return inner if len(where) == 1 else {**options, where[0]: inner}
