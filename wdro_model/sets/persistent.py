"""Persistent solvers for linear minimisation over one cone program, with certificates.

Only the cost changes from one call to the next: HiGHS starts from the basis of the last call,
Clarabel keeps its symbolic factorisation. A call returns the solver's vector y, or raises `Empty`,
`Unbounded` or CVXPY's SolverError with the solver's own status.

There is no silent approximate answer. A point is feasible if its own rows say so, and optimal if a
dual bound meets its cost. Both are computed here from the constraints, in a few products: solvers
judge themselves by scaled models. Sums are held against the sizes of their terms, since they cannot
be known better than that.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import Any

import clarabel
import cvxpy as cp
import highspy
import numpy as np
import scipy.sparse as sp
from cvxpy.reductions.solvers.conic_solvers.clarabel_conif import dims_to_solver_cones

from wdro_model.errors import InaccurateError
from wdro_model.sets.backends import LinearOracle, Vector
from wdro_model.sets.cone_program import ConeProgram
from wdro_model.sets.deadlines import OutOfTime, Unproven, seconds_left


@dataclass(frozen=True)
class Tolerances:
    """Errors of a solver's answer that are accepted, and limits of its search."""

    unquestioned: float = 1e-6
    """Error of a sum below which it is accepted at once; the sizes of its terms do not matter."""
    relative_error: float = 1e-5
    """Error of a sum relative to its terms; answers that are off by more are refused."""
    reduced_cost: float = 1e-9
    """Reduced costs up to this count as zero, for costs with entries of size 1."""
    basis_rows: int = 250
    """Rows of a basis that is inverted; above, the inverse costs more than the simplex method."""
    least_time: float = 0.05
    """Seconds that a call has, however late it is."""


TOLERANCES = Tolerances()
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
        self._no_lower = np.flatnonzero(np.isinf(lower))
        self._no_upper = np.flatnonzero(np.isinf(upper))

    def check_duals(self, cost: Vector, y: Vector, duals: Vector) -> float:
        """A lower bound of the minimum; InaccurateError unless y is feasible and meets it.

        duals: (rows,). Entries of y that are off their bounds by rounding are set to them.

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
            lower = _finite(lower, y, self._no_lower, -1.0)
        if self._no_upper.size:
            upper = _finite(upper, y, self._no_upper, 1.0)
        bound = float(duals @ self._b + np.where(reduced > 0, lower, upper) @ reduced)
        value = cost @ y
        if value - bound > TOLERANCES.unquestioned:
            terms = np.abs(cost) @ np.abs(y) + np.abs(duals) @ (abs(self._matrix) @ np.abs(y))
            _check_gap("HiGHS", value, bound, terms)
        return bound

    def check_bound(self, cost: Vector, y: Vector, bound: float) -> None:
        """Raise InaccurateError unless y is feasible and as good as the solver's own bound."""
        self.check_feasible(y)
        value = cost @ y
        if value - bound > TOLERANCES.unquestioned:
            _check_gap("HiGHS", value, bound, np.abs(cost) @ np.abs(y))

    def check_feasible(self, y: Vector) -> None:
        """Move y into its bounds, where the rows must hold."""
        np.maximum(y, self._lower, out=y)
        np.minimum(y, self._upper, out=y)
        excess = self._matrix @ y
        excess -= self._b
        equalities = excess[: self._equalities]
        np.abs(equalities, out=equalities)
        if (excess > TOLERANCES.unquestioned).any():
            _check_rows("HiGHS", excess, abs(self._matrix) @ np.abs(y) + np.abs(self._b))


def check_cones(program: ConeProgram, cost: Vector, y: Vector, slack: Vector, bound: float) -> None:
    """Raise InaccurateError unless A y + slack = b and the cost of y meets the dual bound.

    slack: the solver's, in its cones.
    """
    excess = np.abs(program.A @ y + slack - program.b)
    if excess.max(initial=0.0) > TOLERANCES.unquestioned:
        terms = abs(program.A) @ np.abs(y) + np.abs(slack) + np.abs(program.b)
        _check_rows("Clarabel", excess, terms)
    value = cost @ y
    if value - bound > TOLERANCES.unquestioned:
        _check_gap("Clarabel", value, bound, np.abs(cost) @ np.abs(y))


def _finite(bounds: Vector, y: Vector, where: np.ndarray, sign: float) -> Vector:
    """The bounds with finite ones in the place of those that are missing."""
    bounds = bounds.copy()
    bounds[where] = y[where] + sign * (1.0 + np.abs(y[where]))
    return bounds


def _check_rows(solver: str, excess: Vector, terms: Vector) -> None:
    share = excess / np.maximum(1.0, terms)
    worst = int(np.argmax(share))
    if share[worst] > TOLERANCES.relative_error:
        raise InaccurateError(
            f"{solver} called a point optimal that violates a constraint by {excess[worst]:.1e}, "
            f"where the terms of the constraint are of size {terms[worst]:.1e}; {WAY_OUT}"
        )


def _check_gap(solver: str, value: Any, bound: Any, terms: Any) -> None:
    if value - bound > TOLERANCES.relative_error * max(1.0, terms):
        raise InaccurateError(
            f"{solver} called a point of cost {value:.6g} optimal, and its own dual bound is "
            f"{bound:.6g}; {WAY_OUT}"
        )


# ------------------------------------------------------------------ the last vertex
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
        self._least = np.where(free & (status != _UPPER), -TOLERANCES.reduced_cost, -np.inf)
        self._most = np.where(free & (status != _LOWER), TOLERANCES.reduced_cost, np.inf)

    def is_optimal(self, cost: Vector) -> bool:
        """Does the vertex minimise this cost?"""
        reduced = self._map @ cost[self._structural]
        reduced[: self._columns] += cost
        return bool((reduced >= self._least).all() and (reduced <= self._most).all())


# ------------------------------
# Solvers that stay alive between linear minimisations over one cone program


_OPTIMAL = highspy.HighsModelStatus.kOptimal


class Empty(Exception):
    """No point satisfies the constraints."""


class Unbounded(Exception):
    """The cost decreases without bound; `ray` is a direction that shows it, where known."""

    def __init__(self, ray: Vector | None = None) -> None:
        super().__init__()
        self.ray = ray


class PersistentHighs:
    """min c'y over linear constraints, with or without integers."""

    def __init__(self, program: ConeProgram) -> None:
        self._program = program
        size = program.lower.size
        self._columns = np.arange(size, dtype=np.int32)
        self._size = size
        self._integer = program.integer if program.is_integer else None
        lower, upper = program.lower, program.upper
        crossed = lower > upper
        slack = 1e-9 * np.maximum(1.0, np.abs(lower, where=crossed, out=np.ones(size)))
        self._crossed = bool(np.any(crossed & (lower > upper + slack)))
        if crossed.any():
            upper = np.maximum(lower, upper)
        self._highs = quiet_highs(linear_model(program, lower, upper), mip_abs_gap=1e-9)
        rows = np.flatnonzero(np.diff(program.A.indptr) != 1)
        small = self._integer is None and 0 < rows.size <= TOLERANCES.basis_rows
        self._matrix = program.A[rows].toarray() if small else None
        self._fixed = np.concatenate([lower == upper, rows < program.dims.zero])
        matrix = program.A[rows] if self._matrix is None else self._matrix
        equalities = int(np.count_nonzero(rows < program.dims.zero))
        self._certificate = LinearCertificate(matrix, program.b[rows], equalities, lower, upper)
        self._basis: Basis | None = None
        self._vertex = np.empty(0)

    def minimize(self, cost: Vector) -> Vector:
        """A vertex that minimises cost'y."""
        highs = self._highs
        if self._crossed:
            raise Empty
        # Often the last vertex stays optimal: a product with the inverse basis tells, no simplex.
        if self._basis is not None and self._basis.is_optimal(cost):
            return self._vertex.copy()
        self._basis = None
        highs.changeColsCost(self._size, self._columns, cost)
        self._run(cost)
        if highs.getModelStatus() == _OPTIMAL:
            with contextlib.suppress(InaccurateError):
                return self._answer(cost)
        self._start_again(cost)
        return self._answer(cost)

    def _answer(self, cost: Vector) -> Vector:
        """HiGHS's solution, once its constraints and its dual bound are checked."""
        solution = self._highs.getSolution()
        y = np.array(solution.col_value, dtype=np.float64)
        if self._integer is not None:
            self._round(y)
            _, bound = self._highs.getInfoValue("mip_dual_bound")
            self._certificate.check_bound(cost, y, bound)
            return y
        self._certificate.check_duals(cost, y, np.array(solution.row_dual, dtype=np.float64))
        self._keep(y)
        return y

    def _keep(self, y: Vector) -> None:
        """Keep the vertex and its inverse basis, if this call took no simplex step."""
        if self._matrix is None or self._highs.getInfoValue("simplex_iteration_count")[1]:
            return
        basis = self._highs.getBasis()
        if not basis.valid:
            return
        with contextlib.suppress(np.linalg.LinAlgError):
            self._basis = Basis(self._matrix, basis, self._fixed)
            self._vertex = y.copy()

    def reset(self) -> None:
        """Forget the basis."""
        self._basis = None
        self._highs.clearSolver()

    def _start_again(self, cost: Vector) -> None:
        """Solve without the old basis; raise if the program is empty or unbounded."""
        highs = self._highs
        status = self._cold(cost)
        if status == _OPTIMAL:
            return
        named = highspy.HighsModelStatus
        if status in (named.kInfeasible, named.kUnbounded, named.kUnboundedOrInfeasible):
            ray = self._ray(cost)
            feasible = self._cold(np.zeros(self._size))
            if feasible == named.kInfeasible:
                raise Empty
            if feasible == _OPTIMAL and status != named.kInfeasible:
                raise Unbounded(ray)
        raise cp.error.SolverError(
            f"HiGHS stopped with {highs.modelStatusToString(status)!r} on the linear subproblem "
            f"({self._size} columns, {self._program.A.shape[0]} rows); rescale the constraints so "
            "that their coefficients have similar sizes."
        )

    def _round(self, y: Vector) -> None:
        violation = float(np.abs(y[self._integer] - np.rint(y[self._integer])).max())
        if violation > 1e-5:
            raise InaccurateError(
                f"HiGHS returned a point {violation:.1e} away from the integers as optimal; "
                f"{WAY_OUT}"
            )
        y[self._integer] = np.rint(y[self._integer])

    def _cold(self, cost: Vector) -> Any:
        self._highs.clearSolver()
        self._highs.changeColsCost(self._size, self._columns, cost)
        self._run(cost)
        return self._highs.getModelStatus()

    def _run(self, cost: Vector) -> None:
        if run_highs(self._highs) == highspy.HighsModelStatus.kTimeLimit:
            raise self._out_of_time(cost)

    def _out_of_time(self, cost: Vector) -> OutOfTime:
        """The error at the time limit, with the best integer point so far where there is one."""
        solution = self._highs.getSolution()
        if self._integer is None or not solution.value_valid:
            return OutOfTime()
        y = np.array(solution.col_value, dtype=np.float64)
        try:
            self._round(y)
            self._certificate.check_feasible(y)
        except InaccurateError:
            return OutOfTime()
        _, bound = self._highs.getInfoValue("mip_dual_bound")
        return Unproven(y, max(float(cost @ y) - bound, 0.0))

    def _ray(self, cost: Vector) -> Vector | None:
        """A ray of the continuous relaxation along which the cost decreases, if HiGHS has one."""
        if self._integer is not None:
            return None
        if self._highs.getNumRow() == 0:
            program = self._program
            rises, falls = np.isinf(program.upper), np.isinf(program.lower)
            return np.where(cost < 0, 1.0 * rises, np.where(cost > 0, -1.0 * falls, 0.0))
        self._highs.setOptionValue("presolve", "off")
        self._cold(cost)
        self._highs.setOptionValue("presolve", "choose")
        _, exists, values = self._highs.getPrimalRay()
        return np.array(values) if exists else None


class PersistentClarabel:
    """min c'y over convex cones."""

    def __init__(self, program: ConeProgram) -> None:
        self._program = program
        # Directions are scaled to a largest entry of 1: equilibrate for such a cost.
        typical = program.decision.cost(np.ones(program.decision.offset.size))
        self._solver = self._new(typical)
        self._allowed = float(self._solver.get_settings().time_limit)

    def minimize(self, cost: Vector) -> Vector:
        """A point that minimises cost'y."""
        self._limit()
        self._solver.update(q=cost)
        solution = self._solver.solve()
        if solution.status == clarabel.SolverStatus.MaxTime:
            raise OutOfTime
        if solution.status == clarabel.SolverStatus.Solved:
            with contextlib.suppress(InaccurateError):
                return self._answer(cost, solution)
        return self._start_again(cost)

    def _answer(self, cost: Vector, solution: Any) -> Vector:
        """Clarabel's solution, once its rows and its dual value are checked."""
        y = np.array(solution.x)
        check_cones(self._program, cost, y, np.array(solution.s), solution.obj_val_dual)
        return y

    def reset(self) -> None:
        """Nothing to forget: only the structure of the factorisation is kept."""

    def _limit(self) -> None:
        """Give the kept solver the time that is left of this solve; no limit without one."""
        left = seconds_left()
        allowed = np.inf if left is None else max(left, TOLERANCES.least_time)
        if allowed != self._allowed:
            settings = self._solver.get_settings()
            settings.time_limit = allowed
            self._solver.update(settings=settings)
            self._allowed = allowed

    def _new(self, cost: Vector, tolerance: float = 1e-8) -> Any:
        settings = clarabel.DefaultSettings()
        if (left := seconds_left()) is not None:
            settings.time_limit = max(left, TOLERANCES.least_time)
        settings.verbose = False
        settings.max_threads = 1
        settings.presolve_enable = False
        settings.chordal_decomposition_enable = False
        settings.tol_feas = settings.tol_gap_abs = settings.tol_gap_rel = tolerance
        program = self._program
        size = program.lower.size
        cones = dims_to_solver_cones(program.dims)
        quadratic = sp.csc_array((size, size))
        return clarabel.DefaultSolver(
            quadratic, cost, sp.csc_array(program.A), program.b, cones, settings
        )

    def _start_again(self, cost: Vector) -> Vector:
        """Solve with scalings for this cost, then to 1e-6; raise if empty or unbounded."""
        named = clarabel.SolverStatus
        for tolerance in (1e-8, 1e-6):
            solution = self._new(cost, tolerance).solve()
            if solution.status == named.Solved:
                return self._answer(cost, solution)
            if solution.status == named.MaxTime:
                raise OutOfTime
            if solution.status == named.PrimalInfeasible and self._is_empty():
                raise Empty
            if solution.status == named.DualInfeasible:
                ray = np.array(solution.x)
                if self._is_empty():
                    raise Empty
                raise Unbounded(ray)
        raise cp.error.SolverError(
            f"Clarabel stopped with status {solution.status} on the conic subproblem "
            f"({cost.size} columns, {self._program.A.shape[0]} rows); rescale the constraints so "
            "that their coefficients have similar sizes."
        )

    def _is_empty(self) -> bool:
        """Does no point satisfy the constraints, whatever its cost?"""
        solution = self._new(np.zeros(self._program.lower.size)).solve()
        return bool(solution.status == clarabel.SolverStatus.PrimalInfeasible)


PersistentSolver = PersistentHighs | PersistentClarabel


def persistent_solver(program: ConeProgram) -> PersistentSolver:
    """The solver for the program's cones."""
    return PersistentHighs(program) if program.is_linear else PersistentClarabel(program)


def linear_oracle(program: ConeProgram, solver: PersistentSolver) -> LinearOracle:
    """direction (n,) -> decision (n,), within the bounds that are known.

    The direction is scaled to a largest entry of 1: solvers stop at absolute tolerances, and a
    gradient of size 1e-9 would look like zero to them.
    """
    decision, in_use = program.decision, threading.Lock()  # one thread at a time
    lower, upper = decision.interval(program.lower, program.upper)
    # A part of HiGHS' vector is within its bounds already.
    outside = not (program.is_linear and decision.selection is not None)
    has_lower = outside and bool(np.isfinite(lower).any())
    has_upper = outside and bool(np.isfinite(upper).any())

    def point(y: Vector) -> Vector:
        x = decision.point(y)
        if has_lower:
            np.maximum(x, lower, out=x)
        if has_upper:
            np.minimum(x, upper, out=x)
        return x

    def minimize(direction: Vector) -> Vector:
        size = np.abs(direction).max()
        scaled = direction / size if size > 0 else direction
        try:
            with in_use:
                return point(solver.minimize(decision.cost(scaled)))
        except Unproven as left:
            raise Unproven(point(left.point), size * left.slack) from None

    return minimize


def quiet_highs(model: Any, **options: Any) -> Any:
    """HiGHS with a model, in one thread, without output; integers are solved to the end."""
    highs = highspy.Highs()
    given = {"output_flag": False, "parallel": "off", "mip_rel_gap": 0.0, **options}
    for option, value in given.items():
        highs.setOptionValue(option, value)
    highs.passModel(model)
    return highs


def run_highs(highs: Any) -> Any:
    """HiGHS's status after a run that takes no longer than the solve may."""
    left = seconds_left()
    if left is None:
        highs.run()
    else:
        seconds = max(left, TOLERANCES.least_time)
        highs.setOptionValue("time_limit", highs.getRunTime() + seconds)
        highs.run()
        highs.setOptionValue("time_limit", np.inf)
    return highs.getModelStatus()


def linear_model(program: ConeProgram, lower: Vector, upper: Vector) -> Any:
    """The HiGHS model without the rows that are bounds of one variable."""
    equalities = program.dims.zero
    kept = np.diff(program.A.indptr) != 1
    A = sp.csc_array(program.A[kept])
    row_lower = np.where(np.arange(program.b.size) < equalities, program.b, -np.inf)[kept]
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = program.lower.size, A.shape[0]
    model.col_cost_ = np.zeros(program.lower.size)
    model.col_lower_, model.col_upper_ = lower, upper
    model.row_lower_, model.row_upper_ = row_lower, program.b[kept]
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_, model.a_matrix_.index_ = A.indptr, A.indices
    model.a_matrix_.value_ = A.data
    if program.is_integer:
        kinds = highspy.HighsVarType
        model.integrality_ = [kinds.kInteger if i else kinds.kContinuous for i in program.integer]
    return model
