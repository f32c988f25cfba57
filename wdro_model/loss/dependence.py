"""The entries of an expression: which numbers each of them can see, and some of them alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.expressions.leaf import Leaf

from wdro_model.loss.atoms.facts import facts_of, hidden_parameters
from wdro_model.loss.expressions import Walk, as_scalar, the_number

Pattern = Any
"""A sparse matrix (entries, d) of zeros and ones, the entries in column-major order."""


def dependence(expression: Any, columns: Mapping[Any, slice], dimension: int) -> Pattern:
    """For each entry, counted row by row, the coordinates it may depend on: sparse (size, d).

    columns: where each parameter (or variable) sits among the d coordinates, flattened row by row.
    """
    pattern = _Dependence(columns, dimension)(expression)
    order = np.arange(expression.size).reshape(expression.shape, order="F").ravel()
    return pattern[order]


class _Dependence(Walk):
    def __init__(self, columns: Mapping[Any, slice], dimension: int) -> None:
        super().__init__()
        self.columns = {p.id: where for p, where in columns.items()}
        self.dimension = dimension

    def visit(self, e: Any) -> Pattern:
        if isinstance(e, Leaf):
            return self.leaf(e)
        if not any(leaf.id in self.columns for leaf in (*e.parameters(), *e.variables())):
            return self._nothing(e.size)
        if any(p.id in self.columns for p in hidden_parameters(e)):
            return self._everything(e, e.parameters())
        found = facts_of(e).dependence(e, self)
        if found is None:
            return self._everything(e, facts_of(e).operands(e))
        return _binary(found)

    def leaf(self, e: Any) -> Pattern:
        where = self.columns.get(getattr(e, "id", None))
        if where is None:
            return self._nothing(e.size)
        ids = np.arange(where.start, where.stop).reshape(e.shape).ravel(order="F")
        ones = np.ones(e.size)
        return sp.csr_array((ones, (np.arange(e.size), ids)), (e.size, self.dimension))

    def _nothing(self, size: int) -> Pattern:
        return sp.csr_array((size, self.dimension))

    def spread(self, e: Any, size: int) -> Pattern:
        """The pattern of an operand, that of a number for every entry (an exponent, say)."""
        pattern = self(e)
        return pattern if e.size == size else sp.kron(np.ones((size, 1)), pattern)

    def _everything(self, e: Any, arguments: list[Any]) -> Pattern:
        """Each entry may see what any entry of the arguments sees."""
        seen = np.zeros(self.dimension)
        for argument in arguments:
            seen += np.asarray(self(argument).sum(axis=0)).ravel()
        row = sp.csr_array((seen > 0).astype(float)[None])
        return sp.csr_array(sp.kron(np.ones((e.size, 1)), row))


def _binary(pattern: Pattern) -> Pattern:
    pattern = sp.csr_array(pattern)
    pattern.data = (pattern.data != 0).astype(float)
    pattern.eliminate_zeros()
    return pattern


# ------------------------------------------------------------------ some of the entries
def selected(expression: Any, entries: np.ndarray) -> Any:
    """A vector of some entries, counted row by row."""
    if facts_of(expression).is_entrywise:
        return expression.copy(
            [
                a if a.ndim == 0 else selected(a, _read(expression, a).ravel()[entries])
                for a in expression.args
            ]
        )
    flat = cp.reshape(expression, (expression.size,), order="C")
    everything = len(entries) == expression.size and np.array_equal(
        entries, np.arange(expression.size)
    )
    return flat if everything else flat[np.asarray(entries)]


def entry(expression: Any, where: int) -> Any:
    """One entry, counted row by row, as a scalar."""
    if expression.size == 1:
        return as_scalar(expression)
    index = tuple(int(i) for i in np.unravel_index(where, expression.shape))
    if isinstance(expression, cp.Constant):
        return cp.Constant(expression.value[index])
    if (number := the_number(expression)) is not expression:
        return as_scalar(number)
    if facts_of(expression).is_entrywise:
        return expression.copy(
            [entry(a, int(_read(expression, a)[index])) for a in expression.args]
        )
    return expression[index]


def _read(expression: Any, argument: Any) -> np.ndarray:
    """The entry of an argument that each entry of an entrywise atom reads."""
    labels = np.arange(argument.size).reshape(argument.shape)
    return np.broadcast_to(labels, expression.shape)
