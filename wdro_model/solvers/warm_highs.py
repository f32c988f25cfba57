"""A linear program of CVXPY in a HiGHS object that is kept from solve to solve.

CVXPY compiles a program once, to a map from its parameters t to numbers that are affine in them:

    min c(t)'x + d(t)   subject to   A(t) x = b(t) in the first rows,  A(t) x <= b(t) in the others.

The map is kept. A solve with other parameters applies it to those numbers that depend on them,
changes these in place, and starts from the last basis. If only costs have changed, the basis is
still feasible and the primal simplex method goes on from it; otherwise the dual one does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cvxpy as cp
import highspy
import numpy as np
import scipy.sparse as sp
from cvxpy import settings
from cvxpy.reductions.cvx_attr2constr import CvxAttr2Constr
from cvxpy.reductions.dcp2cone.cone_matrix_stuffing import ConeMatrixStuffing
from cvxpy.reductions.solution import Solution
from cvxpy.reductions.solvers.conic_solvers.conic_solver import ConicSolver
from cvxpy.reductions.solvers.utilities import extract_dual_value, get_dual_values

from wdro_model.sets.deadlines import seconds_left
from wdro_model.solvers.patience import highs_program, set_options

Array = np.ndarray

DUAL, PRIMAL = 1, 4
"""HiGHS' numbers for the two simplex methods."""
METHOD = "simplex_strategy"
MOST_CHANGES = 200
"""Most entries of the rows that are changed one by one. More changes mean other data, for which a
start without a basis is faster than one from the old basis."""
DENSE_ENTRIES = 2**12
"""Entries of a map that is applied as a dense matrix."""
BROKEN_ROW = 1e-6
"""How far a row may be from holding; rows are of order one."""
NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class LinearAnswer:
    """An optimal vertex, and the multipliers of the rows."""

    value: float
    x: Array
    multipliers: Array
    iterations: int


@dataclass(frozen=True)
class Places:
    """Places of a problem's variables and multipliers among the numbers of its linear program."""

    dimension: int
    """Entries of the decision: all the variables one after the other."""
    targets: Array
    """Entries of the decision that are in the program; the others are zero."""
    sources: Array
    """The entries of x that hold their values."""
    projections: Sequence[tuple[slice, tuple[int, ...], Callable[[Array], Array]]]
    """Projections onto attributes of variables, as in CVXPY: entries, shape and function."""
    multipliers: Mapping[Any, tuple[Array, Array]]
    """By the id of a constraint: the rows that are its multipliers, and their signs."""

    def decision(self, x: Array) -> Array:
        """The values of the variables, within their attributes."""
        values = np.zeros(self.dimension)
        values[self.targets] = x[self.sources]
        for where, shape, project in self.projections:
            values[where] = np.ravel(project(values[where].reshape(shape)))
        return values

    def multiplier(self, constraint: Any, y: Array) -> Array | None:
        """The value of the multiplier of a constraint; None where it has none."""
        if constraint.id not in self.multipliers:
            return None
        rows, signs = self.multipliers[constraint.id]
        return signs * y[rows]


class WarmHighs:
    """A compiled linear program, its map from parameters to numbers, and its solver."""

    def __init__(self, data: dict[str, Any], places: Places, options: Mapping[str, Any]) -> None:
        program = data[settings.PARAM_PROB]
        self.places, self._options = places, dict(options)
        self._theta = np.ones(program.total_param_size + 1)
        columns = program.param_id_to_col
        self._parameters = [
            _ParameterValue(p, self._theta, columns[key]) for key, p in program.id_to_param.items()
        ]
        self._changed_parameters()
        costs = sp.csr_array(program.q)
        self._cost = costs @ self._theta
        """Costs of the columns, then the constant of the objective."""
        self._moving_costs = _with_parameters(costs)
        self._moving_columns = self._moving_costs[self._moving_costs < costs.shape[0] - 1]
        self._moving_columns = self._moving_columns.astype(np.int32)
        self._of_costs = _Affine(costs[self._moving_costs])
        self._matrix = sp.csc_array(data[settings.A])
        self._upper = np.array(data[settings.B], dtype=float)
        self._equalities = int(data[ConicSolver.DIMS].zero)
        self._find_moving_rows(program.reduced_A)
        self._method: int | None = None
        """The simplex method that HiGHS was last set to; None if it was not set."""
        self._highs = self._loaded()
        self._whole = True
        """Does HiGHS hold the current numbers? Not if an interrupt came while they were changed."""

    def _find_moving_rows(self, reduced: Any) -> None:
        """Find the entries of A and b that depend on parameters; CVXPY has [-A, b] by columns."""
        tensor = sp.csr_array(reduced.reduced_mat)
        moving = _with_parameters(tensor)
        indices, indptr, _ = reduced.problem_data_index or (NONE, np.zeros(1), ())
        columns = np.searchsorted(indptr, moving, side="right") - 1
        inside = columns < self._matrix.shape[1]
        self._entries, self._columns = moving[inside], columns[inside]
        self._of_entries = _Affine(tensor[self._entries])
        self._sides = indices[moving[~inside]]
        used = np.unique(sp.coo_array(tensor).coords[1])
        for parameter in self._parameters:
            parameter.moves_rows = bool(np.any((used >= parameter.start) & (used < parameter.stop)))
        self._of_sides = _Affine(tensor[moving[~inside]])

    @classmethod
    def compile(
        cls,
        problem: cp.Problem,
        variables: Sequence[cp.Variable],
        solver: Any,
        options: Mapping[str, Any],
    ) -> WarmHighs | None:
        """Compile a problem for a solver; None where it is no linear program.

        variables: those whose values will be read, in the order of the decision.
        """
        data, chain, inverse = problem.get_problem_data(solver, solver_opts=dict(options))
        program, dims = data.get(settings.PARAM_PROB), data.get(ConicSolver.DIMS)
        if program is None or dims is None or program.is_mixed_integer():
            return None
        quadratic = program.P is not None and sp.coo_array(program.P).count_nonzero() > 0
        bounds = (program.lower_bounds, program.upper_bounds, program.lb_tensor, program.ub_tensor)
        linear = dims.zero + dims.nonneg == data[settings.A].shape[0]
        if quadratic or not linear or any(bound is not None for bound in bounds):
            return None
        places = locate(problem, variables, chain, inverse)
        return None if places is None else cls(data, places, options)

    def run(self) -> LinearAnswer | None:
        """The optimum at the present values of the parameters; None if it is not found in time."""
        primal = self._update() if self._whole else self._renew()
        highs = self._highs
        method = PRIMAL if primal else DUAL
        if METHOD not in self._options and method != self._method:
            highs.setOptionValue(METHOD, method)
            self._method = method
        left = seconds_left()
        if left is not None:  # the clock of HiGHS runs on from solve to solve
            highs.setOptionValue("time_limit", highs.getRunTime() + max(left, 0.0))
        highs.run()
        self._whole = True
        if left is not None:
            highs.setOptionValue("time_limit", self._options.get("time_limit", np.inf))
        if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        if not highs.getInfoValue("max_primal_infeasibility")[1] <= BROKEN_ROW:
            return None
        solution = highs.getSolution()
        iterations = highs.getInfoValue("simplex_iteration_count")[1]
        x = np.array(solution.col_value)
        value = float(self._cost[:-1] @ x + self._cost[-1])
        return LinearAnswer(value, x, -np.array(solution.row_dual), iterations)

    # -------------------------------------------------------------- numbers that change
    def _changed_parameters(self) -> bool:
        """Copy the parameters' values; True if any of them changed."""
        changed = [parameter for parameter in self._parameters if parameter.has_changed()]
        self._moves_rows = any(parameter.moves_rows for parameter in changed)
        return bool(changed)

    def _renew(self) -> bool:
        """Give HiGHS all numbers; its basis is lost."""
        self._changed_parameters()
        self._of_costs.write(self._cost, self._moving_costs, self._theta)
        self._of_entries.write_changes(self._matrix.data, self._entries, self._theta, -1.0)
        self._of_sides.write_changes(self._upper, self._sides, self._theta)
        self._highs = self._loaded()
        return False

    def _update(self) -> bool:
        """Give HiGHS the numbers that have changed; True if its basis is still feasible."""
        self._whole = False
        if not self._changed_parameters():
            return True
        theta, highs = self._theta, self._highs
        self._of_costs.write(self._cost, self._moving_costs, theta)
        if (columns := self._moving_columns).size:
            highs.changeColsCost(columns.size, columns, self._cost[columns])
        if not self._moves_rows:
            return True
        entries = self._of_entries.write_changes(self._matrix.data, self._entries, theta, -1.0)
        sides = self._sides[self._of_sides.write_changes(self._upper, self._sides, theta)]
        if entries.size > MOST_CHANGES:
            return self._renew()
        for place, column in zip(self._entries[entries].tolist(), self._columns[entries].tolist()):
            row, value = int(self._matrix.indices[place]), float(self._matrix.data[place])
            highs.changeCoeff(row, column, value)
        if sides.size:
            sides = sides.astype(np.int32)
            upper = self._upper[sides]
            lower = np.where(sides < self._equalities, upper, -np.inf)
            highs.changeRowsBounds(sides.size, sides, lower, upper)
        return not (entries.size or sides.size)

    def _loaded(self) -> Any:
        """A new HiGHS with the present numbers."""
        highs, self._method = highspy.Highs(), None
        highs.setOptionValue("output_flag", False)
        highs.setOptionValue("parallel", "off")
        set_options(highs, self._options)
        cost = self._cost[:-1]
        highs.passModel(highs_program(cost, self._matrix, self._equalities, self._upper))
        return highs


class _ParameterValue:
    """A parameter, and the value that it had when it was read last."""

    def __init__(self, parameter: cp.Parameter, theta: Array, start: int) -> None:
        self.start, self.stop = start, start + parameter.size
        self._parameter, self._held = parameter, theta[self.start : self.stop]
        self.moves_rows = True
        """Do entries or sides of the rows depend on it?"""

    def has_changed(self) -> bool:
        """Copy the parameter's value; True if it differs from the last one."""
        value: Any = self._parameter.value
        if self._held.size == 1 and np.ndim(value) == 0:
            changed = bool(self._held[0] != value)
            self._held[0] = value
            return changed
        dense = value.toarray() if sp.issparse(value) else value
        flat = dense if np.ndim(dense) < 2 else np.ravel(dense, order="F")
        changed = not np.array_equal(self._held, flat)
        self._held[:] = flat
        return changed


class _Affine:
    """Numbers that are affine in the parameters t: rows of CVXPY's map."""

    def __init__(self, rows: sp.csr_array) -> None:
        small = rows.shape[0] * rows.shape[1] <= DENSE_ENTRIES
        self._rows: Any = rows.toarray() if small else rows

    def write(self, held: Array, places: Array, theta: Array) -> None:
        """Write the numbers to their places."""
        if places.size:
            held[places] = self._rows @ theta

    def write_changes(self, held: Array, places: Array, theta: Array, sign: float = 1.0) -> Array:
        """Write the numbers to their places; return the indices of those that changed."""
        if not places.size:
            return NONE
        new = sign * (self._rows @ theta)
        changed = np.flatnonzero(new != held[places])
        held[places] = new
        return changed


def _with_parameters(tensor: sp.csr_array) -> Array:
    """The rows of a map that depend on a parameter; the last column is that of the constants."""
    return np.unique(sp.coo_array(tensor[:, :-1]).coords[0])


# ------------------------------------------------------------------ where things stand
def locate(
    problem: cp.Problem, variables: Sequence[cp.Variable], chain: Any, inverse: Any
) -> Places | None:
    """The places of variables and multipliers; None where some variable is no part of x."""
    steps = list(zip(chain.reductions, inverse))
    held = {v.id for v in problem.variables()}
    ids, offsets = {v: v.id for v in variables if v.id in held}, None
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
    ends = np.cumsum([v.size for v in variables])
    own = {v: slice(end - v.size, end) for v, end in zip(variables, ends.tolist()) if v in ids}
    numbers = np.arange(sum(v.size for v in variables))
    entries = [
        np.reshape(np.arange(v.size) + offsets[ids[v]], v.shape, order="F").ravel() for v in own
    ]
    return Places(
        dimension=numbers.size,
        targets=np.concatenate([NONE, *(numbers[where] for where in own.values())]),
        sources=np.concatenate([NONE, *entries]),
        projections=[(own[v], v.shape, _projection(v)) for v in own if _attribute_names(v)],
        multipliers=_multiplier_places(steps),
    )


def _multiplier_places(steps: list[tuple[Any, Any]]) -> dict[Any, tuple[Array, Array]]:
    """Rows and signs of each constraint's multipliers: CVXPY inverts the multipliers 1, 2, ..."""
    (_, last), before = steps[-1], steps[:-1]
    rows = last[ConicSolver.EQ_CONSTR] + last[ConicSolver.NEQ_CONSTR]
    numbers = np.arange(1.0, sum(c.size for c in rows) + 1)
    solution = Solution(
        settings.OPTIMAL, 0.0, {}, get_dual_values(numbers, extract_dual_value, rows), {}
    )
    columns = next(left for r, left in before if isinstance(r, ConeMatrixStuffing)).x_length
    solution.primal_vars = {last[ConicSolver.VAR_ID]: np.zeros(columns)}
    for reduction, left in reversed(before):
        solution = reduction.invert(solution, left)
    places = {key: np.asarray(value).astype(int) for key, value in solution.dual_vars.items()}
    return {key: (np.abs(place) - 1, np.sign(place)) for key, place in places.items()}


def _attribute_names(variable: cp.Variable) -> list[str]:
    """The names of the attributes that a variable has."""
    values = variable.attributes.items()
    return [name for name, value in values if value is not None and value is not False]


def _projection(variable: cp.Variable) -> Callable[[Array], Array]:
    """The projection onto the attributes of a variable, as CVXPY has it."""
    if _attribute_names(variable) == ["nonneg"]:
        return partial(np.maximum, 0.0)
    project: Callable[[Array], Array] = variable.project
    return project
