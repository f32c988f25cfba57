"""HiGHS over the hull of a set, as CVXPY constraints describe it: one backend for many sets.

A set hands over constraints that its points satisfy, such as those of its hull, and where these are
too many to write a function that finds the rows that a point violates. The linear program comes
first: it is a relaxation, so that an integer answer that violates no row is optimal. A fractional
answer that violates no row which the function finds is left to branch and bound. Rows stay for
later calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import highspy
import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from wdro_model.errors import InaccurateError
from wdro_model.sets.backends import Answer, BoundedOracle, Vector
from wdro_model.sets.cone_program import canonicalise
from wdro_model.sets.deadlines import OutOfTime
from wdro_model.sets.feasible_set import BoundedSet
from wdro_model.sets.persistent import LinearCertificate, linear_model, quiet_highs, run_highs
from wdro_model.sets.rounding import is_whole


@dataclass(frozen=True)
class Tolerances:
    """Errors of rows and of programs."""

    row: float = 1e-6
    """Violation from which on a row is added; smaller ones are a solver's rounding."""
    program: float = 1e-9
    """HiGHS's tolerances of rows, reduced costs and gaps, for costs of size 1."""
    integer: float = 1e-5
    """Largest distance from the integers of an answer that HiGHS calls whole."""
    dense_columns: int = 200
    """Columns up to which products with the rows are dense: fewer entries, less overhead."""
    kept_rows: int = 2000
    """Rows that are kept from call to call; with more, all are given up."""


TOLERANCES = Tolerances()


@dataclass(frozen=True)
class Row:
    """The inequality <values, x[columns]> <= most."""

    columns: np.ndarray
    values: np.ndarray
    most: float

    def is_violated(self, x: Vector) -> bool:
        """Is x outside by more than a solver's tolerance?"""
        return float(self.values @ x[self.columns]) > self.most + TOLERANCES.row


Violated = Callable[[Vector], Iterable[Row]]


def at_least(coordinates: np.ndarray, least: float) -> Row:
    """The row that the sum over a mask (n,) of coordinates is at least `least`."""
    where = np.flatnonzero(coordinates)
    return Row(where, np.full(where.size, -1.0), -least)


def at_most(coordinates: np.ndarray, most: float) -> Row:
    """The row that the sum over a mask (n,) of coordinates is at most `most`."""
    where = np.flatnonzero(coordinates)
    return Row(where, np.ones(where.size), most)


class HullOracle(BoundedOracle):
    """The minimiser of <direction, x> under constraints on x and rows found by `violated(x)`."""

    def __init__(
        self,
        feasible: BoundedSet,
        constraints: Callable[[Any], list[Any]],
        violated: Violated = lambda x: (),
        discrete: bool = True,
    ) -> None:
        """constraints: of a CVXPY variable (n,); discrete: the points are 0/1 vectors."""
        x = cp.Variable(feasible.dimension)
        self._program = program = canonicalise(constraints(x), [x])
        self._set, self._violated, self._discrete = feasible, violated, discrete
        self._in_use = threading.Lock()  # one thread at a time
        assert program.decision.selection is not None  # x is a variable of its own
        self._places = program.decision.selection
        self._size = program.lower.size
        self._columns = np.arange(self._size, dtype=np.int32)
        rows = np.diff(program.A.indptr) != 1
        self._matrix: Any = program.A[rows]
        self._sides = program.b[rows]
        if self._size <= TOLERANCES.dense_columns:
            self._matrix = self._matrix.toarray()
        self._equalities = int(np.count_nonzero(rows[: program.dims.zero]))
        self._fixed_rows = self._sides.size
        tolerance = TOLERANCES.program
        self._highs = quiet_highs(
            linear_model(program, program.lower, program.upper),
            mip_abs_gap=tolerance,
            mip_feasibility_tolerance=tolerance,
            primal_feasibility_tolerance=tolerance,
            dual_feasibility_tolerance=tolerance,
        )

    def answer(self, direction: Vector, lower: Vector, upper: Vector) -> Answer:
        with self._in_use:
            return self._answer(direction, lower, upper)

    def _answer(self, direction: Vector, lower: Vector, upper: Vector) -> Answer:
        places, highs = self._places, self._highs
        if self._sides.size - self._fixed_rows > TOLERANCES.kept_rows:
            self._forget_rows()
        unit = float(np.abs(direction).max()) or 1.0
        cost = self._program.decision.cost(direction / unit)
        low, high = self._program.lower.copy(), self._program.upper.copy()
        low[places], high[places] = np.maximum(low[places], lower), np.minimum(high[places], upper)
        if np.any(low > high):
            raise self._set.refusal(lower, upper)
        highs.changeColsCost(self._size, self._columns, cost)
        highs.changeColsBounds(self._size, self._columns, low, high)
        y, bound = self._minimum(cost, low, high, integer=False)
        if self._discrete and not is_whole(y[places]):
            self._set_kind(highspy.HighsVarType.kInteger)
            try:
                y, bound = self._minimum(cost, low, high, integer=True)
            finally:
                self._set_kind(highspy.HighsVarType.kContinuous)
        if not self._discrete:
            return y[places], max(unit * (float(cost @ y) - bound), 0.0)
        vertex = np.clip(np.rint(y[places]), lower, upper) + 0.0
        if np.abs(vertex - y[places]).max() > TOLERANCES.integer or not self._set.is_vertex(vertex):
            raise InaccurateError(
                f"HiGHS called a point optimal that is not one of {self._set!r}, up to its "
                f"tolerance only; use backend={self._set.default_backend!r}."
            )
        y[places] = vertex
        return vertex, max(unit * (float(cost @ y) - bound), 0.0)

    def reset(self) -> None:
        """Forget the basis and the rows that were found."""
        self._forget_rows()
        self._highs.clearSolver()

    def _minimum(
        self, cost: Vector, low: Vector, high: Vector, integer: bool
    ) -> tuple[Vector, float]:
        """A minimiser that violates no row, and a bound that no point undercuts."""
        while True:
            self._run(low, high)
            solution = self._highs.getSolution()
            y = np.array(solution.col_value)
            x = y[self._places]
            rows = [row for row in self._violated(x) if row.is_violated(x)]
            if not rows:
                break
            self._add(rows)
        certificate = LinearCertificate(self._matrix, self._sides, self._equalities, low, high)
        if not integer:
            return y, certificate.check_duals(cost, y, np.array(solution.row_dual))
        bound = float(self._highs.getInfoValue("mip_dual_bound")[1])
        certificate.check_bound(cost, y, bound)
        return y, bound - TOLERANCES.program * self._size

    def _run(self, low: Vector, high: Vector) -> None:
        highs, named = self._highs, highspy.HighsModelStatus
        for _ in range(2):
            status = run_highs(highs)
            if status == named.kOptimal:
                return
            if status == named.kTimeLimit:
                raise OutOfTime
            highs.clearSolver()
        if status in (named.kInfeasible, named.kUnboundedOrInfeasible):
            bounds = (side[self._places] for side in (low, high))
            raise self._set.refusal(*bounds)
        raise cp.error.SolverError(
            f"HiGHS stopped with {highs.modelStatusToString(status)!r} on {self._set!r}, a program "
            f"with {self._size} columns and {highs.getNumRow()} rows."
        )

    def _add(self, rows: list[Row]) -> None:
        """Rows on coordinates of x as rows on the columns that stand for them."""
        columns = [self._places[row.columns].astype(np.int32) for row in rows]
        for row, places in zip(rows, columns):
            self._highs.addRow(-highspy.kHighsInf, row.most, places.size, places, row.values)
        starts = np.cumsum([0, *(places.size for places in columns)])
        values = np.concatenate([row.values for row in rows])
        shape = (len(rows), self._size)
        added = sp.csr_array((values, np.concatenate(columns), starts), shape=shape)
        if self._size <= TOLERANCES.dense_columns:
            self._matrix = np.vstack([self._matrix, added.toarray()])
        else:
            self._matrix = sp.csr_array(sp.vstack([self._matrix, added]))
        self._sides = np.append(self._sides, [row.most for row in rows])

    def _forget_rows(self) -> None:
        count, fixed = self._sides.size, self._fixed_rows
        if count > fixed:
            self._highs.deleteRows(count - fixed, np.arange(fixed, count, dtype=np.int32))
            self._matrix, self._sides = self._matrix[:fixed], self._sides[:fixed]

    def _set_kind(self, kind: Any) -> None:
        """Make the columns integers, or continuous again.

        Auxiliary variables too: a choice has whole ones, and HiGHS is faster and safer with them.
        """
        kinds = np.full(self._size, int(kind), np.uint8)
        self._highs.changeColsIntegrality(self._size, self._columns, kinds)


def components(joined: np.ndarray, tails: np.ndarray, heads: np.ndarray, count: int) -> Iterator:
    """The components (n,) of some edges, given by a mask; nodes without one are left out."""
    pairs = (np.ones(int(joined.sum())), (tails[joined], heads[joined]))
    parts, label = connected_components(sp.coo_array(pairs, shape=(count, count)), directed=False)
    met = np.zeros(count, dtype=bool)
    met[tails[joined]] = met[heads[joined]] = True
    for part in range(parts):
        nodes = label == part
        if met[nodes].any():
            yield nodes
