"""f = max_j f_j with each f_j affine in the data: the pieces of a piecewise affine loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations, product
from math import comb
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss import atoms
from wdro_model.loss.affine import as_scalar
from wdro_model.loss.linear_maps import linear_maps
from wdro_model.loss.polynomial import Degrees
from wdro_model.loss.rules import own_axes

Pieces = list[Any]


def pieces(expression: Any, parameters: Iterable[Any], limit: int = 64) -> tuple[Any, ...] | None:
    """Scalar expressions of degree at most one in the parameters whose maximum is the expression.

    None if the expression is not such a maximum by the rules below, or has more than `limit`
    pieces: a sum of maxima has as many as the product of theirs.
    """
    if expression.size != 1:
        raise ValueError(f"pieces needs one entry, got shape {expression.shape}.")
    try:
        return tuple(_Pieces(Degrees(parameters), limit).of(expression, 0, 1))
    except _NotPiecewise:
        return None


class _NotPiecewise(Exception):
    """The expression is not a maximum of affine pieces, or has too many of them."""


class _Pieces:
    """Pieces of one entry of an expression, counted in column-major order.

    With sign -1 they are those of the negated entry: a minimum is then what a maximum was.
    """

    def __init__(self, degrees: Degrees, limit: int) -> None:
        self.degrees = degrees
        self.limit = limit
        self._maps: dict[int, list[Any]] = {}

    def of(self, e: Any, entry: int, sign: int) -> Pieces:
        if self.degrees(e) <= 1:
            value = entry_of(e, entry)
            return [value if sign > 0 else -value]
        for cls in type(e).__mro__:
            if cls in RULES:
                return self.at_most(RULES[cls](self, e, entry, sign))
        raise _NotPiecewise

    def at_most(self, found: Pieces) -> Pieces:
        if len(found) > self.limit:
            raise _NotPiecewise
        return found

    def union(self, alternatives: Iterable[Pieces]) -> Pieces:
        """The maximum of maxima."""
        found: Pieces = []
        for pieces_of_one in alternatives:
            found = self.at_most(found + pieces_of_one)
        return found

    def total(self, terms: Iterable[Pieces]) -> Pieces:
        """The sum of maxima: one piece for each choice of a piece in every term."""
        certain: list[Any] = []
        choices: list[Pieces] = []
        count = 1
        for term in terms:
            if len(term) == 1:
                certain += term
                continue
            choices.append(term)
            count *= len(term)
            if count > self.limit:
                raise _NotPiecewise
        fixed = [sum(certain[1:], certain[0])] if certain else []
        return [sum(rest, first) for first, *rest in (fixed + list(c) for c in product(*choices))]

    def scaled(self, factor: Any, e: Any, entry: int, sign: int) -> Pieces:
        """factor * e for a factor without data and of known sign."""
        if self.degrees(factor) > 0:
            raise _NotPiecewise
        if factor.is_nonneg():
            return [factor * piece for piece in self.of(e, entry, sign)]
        if factor.is_nonpos():
            return [-factor * piece for piece in self.of(e, entry, -sign)]
        raise _NotPiecewise

    def matrices(self, e: Any) -> list[Any]:
        if id(e) not in self._maps:
            self._maps[id(e)] = [m.tocsc() for m in linear_maps(e)]
        return self._maps[id(e)]


def entry_of(e: Any, entry: int) -> Any:
    """One entry of an expression as a scalar; entries are counted in column-major order."""
    if e.size == 1:
        return as_scalar(e)
    where = tuple(int(i) for i in np.unravel_index(entry, e.shape, order="F"))
    if isinstance(e, cp.Constant):
        return cp.Constant(e.value[where])
    return e[where]


def broadcast_entry(shape: tuple[int, ...], entry: int, source: tuple[int, ...]) -> int:
    """The entry of an argument of shape `source` that an entry of the broadcast shape reads."""
    labels = np.arange(int(np.prod(source))).reshape(source, order="F")
    return int(np.broadcast_to(labels, shape).ravel(order="F")[entry])


def reduced_entries(e: Any, entry: int) -> list[int]:
    """The entries of the argument that one entry of a reduction along axes is taken over."""
    source = e.args[0]
    labels = np.arange(source.size).reshape(source.shape, order="F")
    axes = own_axes(source.ndim, e.axis)
    rows = np.moveaxis(labels, axes, range(-len(axes), 0)) if axes else labels
    kept = rows.reshape((*rows.shape[: rows.ndim - len(axes)], -1))
    return [int(k) for k in kept.reshape((-1, kept.shape[-1]), order="F")[entry]]


RULES: dict[type, Callable[[_Pieces, Any, int, int], Pieces]] = {}


def _rule(*classes: type) -> Callable[[Any], Any]:
    def register(function: Any) -> Any:
        RULES.update(dict.fromkeys(classes, function))
        return function

    return register


@_rule(atoms.ADD)
def _(self: _Pieces, e: Any, entry: int, sign: int) -> Pieces:
    return self.total(self.of(a, broadcast_entry(e.shape, entry, a.shape), sign) for a in e.args)


@_rule(atoms.MULTIPLY)
def _(self: _Pieces, e: Any, entry: int, sign: int) -> Pieces:
    a, b = e.args if self.degrees(e.args[0]) == 0 else e.args[::-1]
    factor = entry_of(a, broadcast_entry(e.shape, entry, a.shape))
    return self.scaled(factor, b, broadcast_entry(e.shape, entry, b.shape), sign)


@_rule(atoms.DIVIDE)
def _(self: _Pieces, e: Any, entry: int, sign: int) -> Pieces:
    a, b = e.args
    over = entry_of(b, broadcast_entry(e.shape, entry, b.shape))
    if self.degrees(b) > 0 or not (over.is_nonneg() or over.is_nonpos()):
        raise _NotPiecewise
    where = broadcast_entry(e.shape, entry, a.shape)
    if over.is_nonneg():
        return [piece / over for piece in self.of(a, where, sign)]
    return [piece / -over for piece in self.of(a, where, -sign)]


@_rule(atoms.MATMUL)
def _(self: _Pieces, e: Any, entry: int, sign: int) -> Pieces:
    a, b = e.args
    if max(a.ndim, b.ndim) > 2 or not (a.shape and b.shape):
        raise _NotPiecewise
    rows = np.arange(a.size).reshape(a.shape, order="F").reshape((-1, a.shape[-1]))
    columns = np.arange(b.size).reshape(b.shape, order="F").reshape((b.shape[0], -1))
    i, k = np.unravel_index(entry, (len(rows), columns.shape[1]), order="F")
    factor, other = (a, b) if self.degrees(a) == 0 else (b, a)

    def term(left: int, right: int) -> Pieces:
        p, q = (left, right) if factor is a else (right, left)
        return self.scaled(entry_of(factor, p), other, q, sign)

    return self.total(term(int(p), int(q)) for p, q in zip(rows[i], columns[:, k]))


@_rule(atoms.AffAtom)
def _(self: _Pieces, e: Any, entry: int, sign: int) -> Pieces:
    """Sums, negation, indexing, stacking...: by the matrix of the atom."""
    if isinstance(e, atoms.BILINEAR):
        raise _NotPiecewise

    def terms() -> Iterable[Pieces]:
        for argument, matrix in zip(e.args, self.matrices(e)):
            start, end = matrix.indptr[entry : entry + 2]
            for k, c in zip(matrix.indices[start:end], matrix.data[start:end]):
                if c:
                    found = self.of(argument, int(k), sign if c > 0 else -sign)
                    yield found if abs(c) == 1 else [abs(float(c)) * piece for piece in found]

    return self.total(terms())


@_rule(atoms.MAXIMUM, atoms.MINIMUM)
def _(self: _Pieces, e: Any, entry: int, sign: int) -> Pieces:
    if sign != (1 if isinstance(e, atoms.MAXIMUM) else -1):
        raise _NotPiecewise
    return self.union(self.of(a, broadcast_entry(e.shape, entry, a.shape), sign) for a in e.args)


@_rule(atoms.MAX, atoms.MIN)
def _(self: _Pieces, e: Any, entry: int, sign: int) -> Pieces:
    if sign != (1 if isinstance(e, atoms.MAX) else -1):
        raise _NotPiecewise
    return self.union(self.of(e.args[0], k, sign) for k in reduced_entries(e, entry))


def _absolute(self: _Pieces, e: Any, entry: int) -> Pieces:
    """|e| = max(e, -e), or the one of them that is known to be nonnegative."""
    if e.is_nonneg() or e.is_nonpos():
        return self.of(e, entry, 1 if e.is_nonneg() else -1)
    return self.union(self.of(e, entry, sign) for sign in (1, -1))


@_rule(atoms.ABS, atoms.NORM1, atoms.NORM_INF)
def _(self: _Pieces, e: Any, entry: int, sign: int) -> Pieces:
    if sign < 0:
        raise _NotPiecewise
    argument = e.args[0]
    if isinstance(e, atoms.ABS):
        return _absolute(self, argument, entry)
    combine = self.union if isinstance(e, atoms.NORM_INF) else self.total
    return combine(_absolute(self, argument, k) for k in reduced_entries(e, entry))


@_rule(atoms.SUM_LARGEST)
def _(self: _Pieces, e: Any, entry: int, sign: int) -> Pieces:
    """The maximum over all choices of k entries of their sum."""
    entries, k = reduced_entries(e, entry), int(e.k)
    if sign < 0 or k != e.k or comb(len(entries), min(k, len(entries))) > self.limit:
        raise _NotPiecewise
    return self.union(
        self.total(self.of(e.args[0], j, 1) for j in chosen)
        for chosen in combinations(entries, min(k, len(entries)))
    )
