"""Assignments of rows to columns, each to one of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, Literal

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment

from wdro_model.sets.arguments import as_names
from wdro_model.sets.backends import (
    LARGEST,
    LinearOracle,
    Vector,
    register_backend,
    scaled_to_integers,
)
from wdro_model.sets.choices import ItemSet
from wdro_model.sets.edge_program import HighsChoices
from wdro_model.sets.feasible_set import as_direction, as_flat
from wdro_model.sets.held import HeldOracle, Mask, nothing_left

AssignmentBackend = Literal["scipy", "ortools", "highs"]
"""Those that are built in; `register_backend` adds others."""


class AssignmentSet(ItemSet):
    """The assignments of n rows to n of m >= n columns, `sets.Assignment`.

    x_ij = 1 if row i goes to column j, flattened in row-major order; for n = m the hull is
    Birkhoff's polytope. Backends: "scipy" (default), "ortools" (costs scaled to whole numbers, with
    the error in the slack), "highs" (a linear program).

    Parameters
    ----------
    rows, columns
        Names, or their numbers n and m; as many columns as rows by default.
    forbidden, mandatory
        Pairs (row, column).

    Attributes
    ----------
    pairs
        The pair (row, column) of each coordinate.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> jobs = wdro.sets.Assignment(["Ann", "Bob"], ["bake", "cook", "serve"])
    >>> jobs.selected(jobs.minimize([3.0, 1.0, 2.0, 2.0, 1.0, 9.0]))
    [('Ann', 'cook'), ('Bob', 'bake')]
    """

    default_backend = "scipy"
    has_constraints = True
    thing = "pair"

    def __init__(
        self,
        rows: Any,
        columns: Any = None,
        backend: AssignmentBackend | str | None = None,
        *,
        forbidden: Iterable[Any] | None = None,
        mandatory: Iterable[Any] | None = None,
    ) -> None:
        self.rows = as_names(rows, "row")
        self.columns = self.rows if columns is None else as_names(columns, "column")
        self.shape = (len(self.rows), len(self.columns))
        if self.shape[0] > self.shape[1]:
            raise ValueError(
                f"an Assignment gives every row a column of its own, got {self.shape[0]} rows and "
                f"{self.shape[1]} columns; exchange rows and columns."
            )
        self.pairs = self.items = self.names = tuple(product(self.rows, self.columns))
        self.dimension = len(self.pairs)
        self.use_backend(backend)
        self.hold(forbidden, mandatory)

    def table(self, x: ArrayLike) -> np.ndarray:
        """A point as an array (n, m).

        Examples
        --------
        >>> import wdro_model as wdro
        >>> jobs = wdro.sets.Assignment(2, 3)
        >>> jobs.table(jobs.minimize([3.0, 1.0, 2.0, 2.0, 1.0, 9.0]))
        array([[0., 1., 0.],
               [1., 0., 0.]])
        """
        return as_direction(x, self.dimension, kind="x").reshape(self.shape)

    def plot(self, x: ArrayLike, path: Any = None, *, ax: Any = None) -> Any:
        """Draw x as a table of rows and columns; the figure, or `ax` where it is given."""
        from wdro_model.sets.set_pictures import draw_table

        return draw_table(self.table(np.ravel(x)), self.rows, self.columns, path, ax)

    def is_member(self, chosen: np.ndarray) -> bool:
        table = chosen.reshape(self.shape)
        return bool(np.all(table.sum(axis=1) == 1) and np.all(table.sum(axis=0) <= 1))

    def describe(self) -> str:
        n, m = self.shape
        return (
            f"assignments of {n} rows to {m} columns{self._held_words()}, minimised by "
            f"{self.backend}"
        )

    def _hull(self, x: Any) -> list[Any]:
        table = cp.reshape(as_flat(x, self.dimension), self.shape, order="C")
        full = self.shape[0] == self.shape[1]
        columns = cp.sum(table, axis=0)
        return [table >= 0, cp.sum(table, axis=1) == 1, columns == 1 if full else columns <= 1]

    def _moves(self, vertex: Vector, x: Vector) -> Iterator[tuple[float, Vector]]:
        """Two rows exchange their columns, or one takes a column that is free."""
        lower, upper = (side.reshape(self.shape) for side in self.own_bounds())
        along, table = (x - vertex).reshape(self.shape), vertex.reshape(self.shape)
        column_of = table.argmax(axis=1)
        rows = np.arange(self.shape[0])
        unused = np.flatnonzero(table.sum(axis=0) == 0)
        targets = np.append(column_of, unused)  # of the row itself, of another, of none
        gains = along[:, targets] - along[rows, column_of][:, None]
        gains[:, : rows.size] = np.triu(gains[:, : rows.size] + gains[:, : rows.size].T, 1)
        for at in np.argsort(-gains, axis=None, kind="stable"):
            i, t = map(int, np.unravel_index(at, gains.shape))
            if t <= i:
                continue
            other = table.copy()
            other[i, column_of[i]], other[i, targets[t]] = 0.0, 1.0
            if t < rows.size:
                other[t, targets[t]], other[t, column_of[i]] = 0.0, 1.0
            if np.all(other >= lower) and np.all(other <= upper):
                yield float(gains[i, t]), other.ravel()

    def __repr__(self) -> str:
        return f"Assignment({self.shape[0]} rows, {self.shape[1]} columns)"


class _RestOfTable(HeldOracle):
    """Mandatory pairs are taken out with their row and column; the rest is solved for."""

    def __init__(self, assignments: AssignmentSet) -> None:
        self._set = assignments

    def answer(self, direction: Vector, forbidden: Mask, mandatory: Mask) -> tuple[Vector, float]:
        assignments, shape = self._set, self._set.shape
        costs = direction.reshape(shape)
        without = forbidden.reshape(shape) if forbidden.any() else None
        if not mandatory.any():
            found = self._columns(costs, without)
            if found is None:
                raise nothing_left(assignments, forbidden, mandatory)
            vertex = np.zeros(shape)
            vertex[np.arange(shape[0]), found[0]] = 1.0
            return vertex.ravel(), found[1]
        vertex = mandatory.reshape(shape).astype(np.float64)
        rows, columns = (np.flatnonzero(vertex.sum(axis=axis) == 0) for axis in (1, 0))
        twice = shape[0] - rows.size < mandatory.sum() or shape[1] - columns.size < mandatory.sum()
        rest = np.ix_(rows, columns)
        if without is not None:
            without = without[rest]
        found = None if twice else self._columns(costs[rest], without)
        if found is None:
            raise nothing_left(assignments, forbidden, mandatory)
        vertex[rows, columns[found[0]]] = 1.0
        return vertex.ravel(), found[1]

    def _columns(self, costs: np.ndarray, without: Mask | None) -> tuple[np.ndarray, float] | None:
        """The column of each row and the slack; None if there is no assignment."""
        raise NotImplementedError


class _Scipy(_RestOfTable):
    def _columns(self, costs: np.ndarray, without: Mask | None) -> tuple[np.ndarray, float] | None:
        if without is not None:
            costs = np.where(without, np.inf, costs)
        try:
            return linear_sum_assignment(costs)[1], 0.0
        except ValueError:  # what scipy calls an infeasible cost matrix
            return None


class _OrTools(_RestOfTable):
    def _columns(self, costs: np.ndarray, without: Mask | None) -> tuple[np.ndarray, float] | None:
        from ortools.graph.python import linear_sum_assignment as graph

        n, m = costs.shape
        if n == 0:
            return np.zeros(0, dtype=np.int64), 0.0
        allowed = np.ones((m, m), dtype=bool)  # rows beyond n take the columns that are left over
        if without is not None:
            allowed[:n] = ~without
        if not (allowed.any(axis=1).all() and allowed.any(axis=0).all()):
            return None  # OR-Tools would not count a node without arcs
        # Costs are multiplied by the number of nodes inside, and prices add up over all of them.
        integers, unit = scaled_to_integers(costs, LARGEST // (32 * (m + 1) ** 2))
        padded = np.zeros((m, m), dtype=np.int64)
        padded[:n] = integers
        rows, columns = np.nonzero(allowed)
        solver = graph.SimpleLinearSumAssignment()
        solver.add_arcs_with_cost(rows, columns, padded[allowed])
        status = solver.solve()
        if status == solver.INFEASIBLE:
            return None
        if status != solver.OPTIMAL:
            raise cp.error.SolverError(f"OR-Tools stopped with {status} on {self._set!r}.")
        error = np.abs(costs - unit * integers.astype(np.float64)).max()
        return np.array([solver.right_mate(i) for i in range(n)]), 2 * n * float(error)


def _highs(assignments: AssignmentSet) -> LinearOracle:
    n, m = assignments.shape
    rows = sp.kron(sp.eye_array(n), np.ones((1, m)))
    columns = sp.kron(np.ones((1, n)), sp.eye_array(m))
    least = np.concatenate([np.ones(n), np.full(m, float(n == m))])
    return HighsChoices(assignments, sp.vstack([rows, columns]), least, np.ones(n + m), False)


register_backend(AssignmentSet, "scipy", _Scipy)
register_backend(AssignmentSet, "ortools", _OrTools)
register_backend(AssignmentSet, "highs", _highs)
