"""Which numbers each entry of an expression can see, by the shape of its tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.expressions.leaf import Leaf

from wdro_model.errors import MissingRuleError
from wdro_model.loss import atoms
from wdro_model.loss.linear_maps import linear_maps
from wdro_model.loss.lowering import ENTRYWISE, hidden_parameters, operands_of
from wdro_model.loss.rules import own_axes

Pattern = Any
"""A sparse matrix (entries, d) of zeros and ones, the entries in column-major order."""


def dependence(expression: Any, columns: Mapping[Any, slice], dimension: int) -> Pattern:
    """For each entry, counted row by row, the coordinates it may depend on: sparse (size, d).

    columns: where each parameter (or variable) sits among the d coordinates, flattened row by row.
    """
    pattern = _Dependence(columns, dimension)(expression)
    order = np.arange(expression.size).reshape(expression.shape, order="F").ravel()
    return pattern[order]


class _Dependence:
    def __init__(self, columns: Mapping[Any, slice], dimension: int) -> None:
        self.columns = {p.id: where for p, where in columns.items()}
        self.dimension = dimension
        self._known: dict[int, tuple[Any, Pattern]] = {}

    def __call__(self, e: Any) -> Pattern:
        if id(e) not in self._known:
            self._known[id(e)] = (e, self._of(e))
        return self._known[id(e)][1]

    def _of(self, e: Any) -> Pattern:
        if isinstance(e, Leaf):
            return self._leaf(e)
        if not any(leaf.id in self.columns for leaf in (*e.parameters(), *e.variables())):
            return self._nothing(e.size)
        if any(p.id in self.columns for p in hidden_parameters(e)):
            return self._everything(e, e.parameters())
        if isinstance(e, ENTRYWISE):
            return _binary(sum(self._spread(a, e.size) for a in operands_of(e)))
        for kind, rule in RULES:
            if isinstance(e, kind):
                found = rule(self, e)
                if found is not None:
                    return _binary(found)
        return self._everything(e, operands_of(e))

    def _leaf(self, e: Any) -> Pattern:
        where = self.columns.get(getattr(e, "id", None))
        if where is None:
            return self._nothing(e.size)
        ids = np.arange(where.start, where.stop).reshape(e.shape).ravel(order="F")
        ones = np.ones(e.size)
        return sp.csr_array((ones, (np.arange(e.size), ids)), (e.size, self.dimension))

    def _nothing(self, size: int) -> Pattern:
        return sp.csr_array((size, self.dimension))

    def _spread(self, e: Any, size: int) -> Pattern:
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


def _matrix_product(self: _Dependence, e: Any) -> Pattern | None:
    """Entry (i, k) of A B sees row i of A and column k of B, but for zeros of a constant."""
    a, b = e.args
    if max(a.ndim, b.ndim) > 2 or not (a.shape and b.shape):
        return None
    rows = 1 if a.ndim == 1 else a.shape[0]
    columns = 1 if b.ndim == 1 else b.shape[1]
    left = _support(a, (rows, a.shape[-1]))
    right = _support(b, (b.shape[0], columns))
    return sp.kron(right.T, sp.eye_array(rows)) @ self(a) + (
        sp.kron(sp.eye_array(columns), left) @ self(b)
    )


def _support(e: Any, shape: tuple[int, int]) -> Pattern:
    """Where an expression may differ from zero."""
    if isinstance(e, cp.Constant):
        value = e.value
        dense = value.toarray() if sp.issparse(value) else np.asarray(value)
        return sp.csr_array((dense.reshape(shape) != 0).astype(float))
    return sp.csr_array(np.ones(shape))


def _affine(self: _Dependence, e: Any) -> Pattern | None:
    """By the matrices of the atom."""
    if isinstance(e, atoms.BILINEAR):
        return None
    try:
        maps = linear_maps(e)
    except MissingRuleError:
        return None
    return sum(abs(m).T @ self(a) for a, m in zip(e.args, maps) if m is not None)


def _along_an_axis(self: _Dependence, e: Any) -> Pattern | None:
    """A reduction along an axis sees the entries that it is taken over."""
    source = e.args[0]
    if e.axis is None or len(e.args) > 1:
        return None
    labels = np.arange(source.size).reshape(source.shape, order="F")
    axes = own_axes(source.ndim, e.axis)
    rows = np.moveaxis(labels, axes, range(-len(axes), 0))
    kept = rows.reshape((*rows.shape[: rows.ndim - len(axes)], -1))
    flat = kept.reshape((-1, kept.shape[-1]), order="F")
    if len(flat) != e.size:
        return None
    owner = np.repeat(np.arange(len(flat)), flat.shape[1])
    taken = sp.csr_array((np.ones(flat.size), (owner, flat.ravel())), (e.size, source.size))
    return taken @ self(source)


RULES: tuple[tuple[Any, Callable[[_Dependence, Any], Pattern | None]], ...] = (
    (atoms.MATMUL, _matrix_product),
    (atoms.AffAtom, _affine),
    (atoms.AxisAtom, _along_an_axis),
)
