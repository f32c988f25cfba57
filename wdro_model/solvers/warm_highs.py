"""A linear program of CVXPY in a HiGHS that lives on between solves.

CVXPY compiles a program once, to a map from its parameters t to numbers that are affine in them:

    min c(t)'x + d(t)   subject to   A(t) x = b(t) in the first rows,  A(t) x <= b(t) in the others.

The map is kept. A solve with other parameters applies it to those numbers that depend on them,
changes these in place, and goes on from the last basis: where costs alone have changed it is still
feasible, and the primal simplex method goes on from it, else the dual one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import highspy
import numpy as np
import scipy.sparse as sp
from cvxpy import settings
from cvxpy.error import SolverError
from cvxpy.reductions.cvx_attr2constr import CvxAttr2Constr
from cvxpy.reductions.dcp2cone.cone_matrix_stuffing import ConeMatrixStuffing
from cvxpy.reductions.solution import Solution
from cvxpy.reductions.solvers.conic_solvers.conic_solver import ConicSolver
from cvxpy.reductions.solvers.utilities import extract_dual_value, get_dual_values

Array = np.ndarray

DUAL, PRIMAL = 1, 4
"""HiGHS' numbers for the two simplex methods."""
METHOD = "simplex_strategy"
FEW = 200
"""Entries of the rows that are changed one by one; with more, all rows are given anew."""
BROKEN = 1e-6
"""How far a row may be from holding, relative to its terms or to one."""


@dataclass(frozen=True)
class LinearAnswer:
    """An optimal vertex, and the multipliers of the rows."""

    value: float
    x: Array
    multipliers: Array
    iterations: int


@dataclass(frozen=True)
class Places:
    """Where the numbers of a user's problem stand among those of its linear program."""

    variables: Mapping[cp.Variable, Array]
    """The entries of x that are the variable, in its shape."""
    multipliers: Mapping[Any, Array]
    """By the id of a constraint: the rows, counted from 1, that are its multipliers; negative where
    the sign is the other one."""

    def decision(self, variable: cp.Variable, x: Array) -> Array:
        """The value of a variable, within its attributes."""
        value = x[self.variables[variable]]
        return variable.project(value) if _has_attributes(variable) else value

    def multiplier(self, constraint: Any, y: Array) -> Array | None:
        """The value of the multiplier of a constraint; None where it has none."""
        places = self.multipliers.get(constraint.id)
        return None if places is None else np.sign(places) * y[np.abs(places) - 1]


class WarmHighs:
    """A compiled linear program, its map from parameters to numbers, and its solver."""

    def __init__(
        self, problem: cp.Problem, data: dict[str, Any], places: Places, options: Mapping[str, Any]
    ) -> None:
        program = data[settings.PARAM_PROB]
        self.places = places
        self._options = dict(options)
        self._problem, self._parameters = problem, program.id_to_param
        self._columns = program.param_id_to_col
        self._theta = np.ones(program.total_param_size + 1)
        self._costs = sp.csr_array(program.q)
        self._rows = _MovingRows(data)
        self._equalities = int(data[ConicSolver.DIMS].zero)
        self._read_parameters()
        *self._cost, self._offset = self._costs @ self._theta
        self._cost = np.asarray(self._cost)
        self._highs = self._loaded()

    @classmethod
    def of(cls, problem: cp.Problem, solver: Any, options: Mapping[str, Any]) -> WarmHighs | None:
        """That of a problem which was compiled for a solver; None where it is no linear program."""
        data, chain, inverse = problem.get_problem_data(solver, solver_opts=dict(options))
        program, dims = data.get(settings.PARAM_PROB), data.get(ConicSolver.DIMS)
        if program is None or dims is None or program.P is not None or program.is_mixed_integer():
            return None
        bounds = (program.lower_bounds, program.upper_bounds, program.lb_tensor, program.ub_tensor)
        linear = dims.zero + dims.nonneg == data[settings.A].shape[0]
        if not linear or any(bound is not None for bound in bounds):
            return None
        places = places_of(problem, chain, inverse)
        return None if places is None else cls(problem, data, places, options)

    def run(self) -> LinearAnswer | None:
        """The optimum with the present values of the parameters; None if it is not found."""
        primal = self._update()
        highs = self._highs
        if METHOD not in self._options:
            highs.setOptionValue(METHOD, PRIMAL if primal else DUAL)
        highs.run()
        if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        found, info = highs.getSolution(), highs.getInfo()
        x = np.array(found.col_value)
        if not self._rows.hold(x, self._equalities):
            return None
        value = float(self._cost @ x + self._offset)
        return LinearAnswer(value, x, -np.array(found.row_dual), info.simplex_iteration_count)

    # -------------------------------------------------------------- numbers that change
    def _read_parameters(self) -> None:
        for key, parameter in self._parameters.items():
            value, start = parameter.value, self._columns[key]
            flat = np.ravel(value.toarray() if sp.issparse(value) else value, order="F")
            self._theta[start : start + flat.size] = flat

    def _update(self) -> bool:
        """Give HiGHS the numbers that have changed; is its basis still a feasible one?"""
        before = self._theta.copy()
        self._read_parameters()
        if np.array_equal(before, self._theta):
            return True
        cost = self._costs @ self._theta
        self._offset = cost[-1]
        changed = np.flatnonzero(cost[:-1] != self._cost).astype(np.int32)
        if changed.size:
            self._cost = cost[:-1]
            self._highs.changeColsCost(changed.size, changed, self._cost[changed])
        entries, sides = self._rows.changes(self._theta)
        if entries.size > FEW:
            basis = self._highs.getBasis()
            self._highs = self._loaded()
            self._highs.setBasis(basis)
            return False
        for k in entries.tolist():
            self._highs.changeCoeff(*self._rows.entry(k))
        if sides.size:
            upper = self._rows.upper
            self._highs.changeRowsBounds(sides.size, sides, self._lower()[sides], upper[sides])
        return not (entries.size or sides.size)

    def _lower(self) -> Array:
        upper = self._rows.upper
        lower = np.full(upper.size, -np.inf)
        lower[: self._equalities] = upper[: self._equalities]
        return lower

    def _loaded(self) -> Any:
        """A new HiGHS with the present numbers."""
        rows, lp = self._rows, highspy.HighsLp()
        lp.num_row_, lp.num_col_ = rows.matrix.shape
        lp.col_cost_ = self._cost
        free = np.full(rows.matrix.shape[1], np.inf)
        lp.col_lower_, lp.col_upper_ = -free, free
        lp.row_lower_, lp.row_upper_ = self._lower(), rows.upper
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_ = rows.matrix.indptr
        lp.a_matrix_.index_ = rows.matrix.indices
        lp.a_matrix_.value_ = rows.matrix.data
        highs = highspy.Highs()
        highs.setOptionValue("output_flag", False)
        highs.setOptionValue("parallel", "off")
        for name, value in self._options.items():
            if highs.setOptionValue(name, value) == highspy.HighsStatus.kError:
                raise SolverError(f"HiGHS does not take the option {name!r} = {value!r}.")
        highs.passModel(lp)
        return highs


class _MovingRows:
    """A and b, and the part of CVXPY's map that gives those of their entries which can change.

    CVXPY writes [-A, b] as one matrix by columns; the map gives its entries.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        reduced = data[settings.PARAM_PROB].reduced_A
        self.matrix = sp.csc_array(data[settings.A])
        self.upper = np.array(data[settings.B], dtype=float)
        tensor = sp.csr_array(reduced.reduced_mat)
        moving = np.unique(sp.coo_array(tensor[:, :-1]).row)
        indices, indptr, _ = reduced.problem_data_index or (np.zeros(0, int), np.zeros(1, int), ())
        columns = np.searchsorted(indptr, moving, side="right") - 1
        inside = columns < self.matrix.shape[1]
        self._entries, self._sides = moving[inside], indices[moving[~inside]]
        self._of_entries = tensor[self._entries]
        self._of_sides = tensor[moving[~inside]]
        self._column = columns[inside]

    def changes(self, theta: Array) -> tuple[Array, Array]:
        """Set the numbers; the places of A and the rows of b that are not what they were."""
        none = np.zeros(0, dtype=np.int32)
        entries, sides = none, none
        if self._entries.size:
            new = -(self._of_entries @ theta)
            changed = new != self.matrix.data[self._entries]
            self.matrix.data[self._entries] = new
            entries = np.flatnonzero(changed)
        if self._sides.size:
            upper = self._of_sides @ theta
            changed = upper != self.upper[self._sides]
            self.upper[self._sides] = upper
            sides = self._sides[changed].astype(np.int32)
        return entries, sides

    def entry(self, k: int) -> tuple[int, int, float]:
        """Row, column and value of an entry that can change."""
        place = self._entries[k]
        row, value = self.matrix.indices[place], self.matrix.data[place]
        return int(row), int(self._column[k]), float(value)

    def hold(self, x: Array, equalities: int) -> bool:
        """Does x meet all rows?"""
        over = self.matrix @ x - self.upper
        over[:equalities] = np.abs(over[:equalities])
        if over.max(initial=0.0) <= BROKEN:
            return True
        terms = abs(self.matrix) @ np.abs(x) + np.abs(self.upper)
        return bool(np.all(over <= BROKEN * np.maximum(1.0, terms)))


# ------------------------------------------------------------------ where things stand
def places_of(problem: cp.Problem, chain: Any, inverse: Any) -> Places | None:
    """Where variables and multipliers stand; None where they are more than entries of x."""
    steps = list(zip(chain.reductions, inverse))
    ids, offsets = {v: v.id for v in problem.variables()}, None
    for reduction, left in steps:
        if isinstance(reduction, CvxAttr2Constr) and left:
            twins = {v: left[0][i] for v, i in ids.items()}
            if any(twin.shape != v.shape for v, twin in twins.items()):
                return None
            ids = {v: twin.id for v, twin in twins.items()}
        elif isinstance(reduction, ConeMatrixStuffing):
            offsets = left.var_offsets
    if offsets is None or any(i not in offsets for i in ids.values()):
        return None
    entries = {
        v: np.reshape(np.arange(v.size) + offsets[i], v.shape, order="F") for v, i in ids.items()
    }
    return Places(entries, _multiplier_places(steps))


def _multiplier_places(steps: list[tuple[Any, Any]]) -> dict[Any, Array]:
    """The way of the numbers 1, 2, ... from the rows to the multipliers of the constraints."""
    (_, last), before = steps[-1], steps[:-1]
    rows = last[ConicSolver.EQ_CONSTR] + last[ConicSolver.NEQ_CONSTR]
    numbers = np.arange(1.0, sum(c.size for c in rows) + 1)
    found = Solution(
        settings.OPTIMAL, 0.0, {}, get_dual_values(numbers, extract_dual_value, rows), {}
    )
    columns = next(left for r, left in before if isinstance(r, ConeMatrixStuffing)).x_length
    found.primal_vars = {last[ConicSolver.VAR_ID]: np.zeros(columns)}
    for reduction, left in reversed(before):
        found = reduction.invert(found, left)
    return {key: np.asarray(value).astype(int) for key, value in found.dual_vars.items()}


def _has_attributes(variable: cp.Variable) -> bool:
    return any(value is not None and value is not False for value in variable.attributes.values())
