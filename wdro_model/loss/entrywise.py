"""Expressions entry by entry: some of the entries, and the affine pieces of all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss import atoms
from wdro_model.loss.affine import as_scalar
from wdro_model.loss.lowering import ENTRYWISE
from wdro_model.loss.polynomial import Degrees

PIECES = 16
"""Pieces of an entry that are written out."""


def selected(expression: Any, entries: np.ndarray) -> Any:
    """A vector of some entries, counted row by row; entrywise atoms act on the selection alone."""
    if isinstance(expression, ENTRYWISE):
        labels = np.arange(expression.size).reshape(expression.shape)
        chosen = []
        for argument in expression.args:
            if argument.ndim == 0:
                chosen.append(argument)
                continue
            source = np.arange(argument.size).reshape(argument.shape)
            read = np.broadcast_to(source, labels.shape).ravel()
            chosen.append(selected(argument, read[entries]))
        return expression.copy(chosen)
    flat = cp.reshape(expression, (expression.size,), order="C")
    everything = len(entries) == expression.size and np.array_equal(
        entries, np.arange(expression.size)
    )
    return flat if everything else flat[np.asarray(entries)]


def entry(expression: Any, where: int) -> Any:
    """One entry, counted row by row, as a scalar; entrywise atoms act on their entries alone."""
    if expression.size == 1:
        return as_scalar(expression)
    index = tuple(int(i) for i in np.unravel_index(where, expression.shape))
    if isinstance(expression, cp.Constant):
        return cp.Constant(expression.value[index])
    if isinstance(expression, atoms.PROMOTE):
        return as_scalar(expression.args[0])
    if isinstance(expression, ENTRYWISE):
        chosen = []
        for argument in expression.args:
            source = np.arange(argument.size).reshape(argument.shape)
            read = np.broadcast_to(source, expression.shape)
            chosen.append(entry(argument, int(read[index])))
        return expression.copy(chosen)
    return expression[index]


class _NotPiecewise(Exception):
    """The entries are not maxima of affine pieces by the rules below."""


def entry_pieces(expression: Any, degrees: Degrees) -> tuple[int, list[Any]] | None:
    """(sign, pieces): sign * expression is the maximum, entry by entry, of affine pieces.

    The pieces have the shape of the expression; None where no rule finds them.
    """
    for sign in (1, -1):
        try:
            return sign, _pieces(expression, sign, degrees)
        except _NotPiecewise:
            continue
    return None


def _pieces(e: Any, sign: int, degrees: Degrees) -> list[Any]:
    if degrees(e) <= 1:
        return [e if sign > 0 else -e]
    for cls in type(e).__mro__:
        if cls in RULES:
            found = RULES[cls](e, sign, degrees)
            if len(found) <= PIECES:
                return found
            break
    raise _NotPiecewise


def spread(e: Any, shape: tuple[int, ...]) -> Any:
    """The expression broadcast to a shape, in atoms that all of CVXPY's backends know if it can."""
    if e.shape == shape:
        return e
    if isinstance(e, cp.Constant) and isinstance(e.value, np.ndarray | np.generic):
        return cp.Constant(np.broadcast_to(e.value, shape))
    return atoms.PROMOTE(e, shape) if e.shape == () else cp.broadcast_to(e, shape)


def _added(e: Any, sign: int, degrees: Degrees) -> list[Any]:
    choices = [[spread(p, e.shape) for p in _pieces(a, sign, degrees)] for a in e.args]
    if np.prod([len(choice) for choice in choices]) > PIECES:
        raise _NotPiecewise
    return [sum(rest, first) for first, *rest in product(*choices)]


def _extreme(kind: int) -> Callable[[Any, int, Degrees], list[Any]]:
    """Of maxima (kind 1) and minima (kind -1)."""

    def rule(e: Any, sign: int, degrees: Degrees) -> list[Any]:
        if sign != kind:
            raise _NotPiecewise
        return [spread(p, e.shape) for a in e.args for p in _pieces(a, sign, degrees)]

    return rule


def _absolute(e: Any, sign: int, degrees: Degrees) -> list[Any]:
    if sign < 0:
        raise _NotPiecewise
    return [*_pieces(e.args[0], 1, degrees), *_pieces(e.args[0], -1, degrees)]


def _scaled(e: Any, sign: int, degrees: Degrees) -> list[Any]:
    """A product with, or a quotient by, something without data and of known sign."""
    a, b = e.args
    swapped = not isinstance(e, atoms.DIVIDE) and degrees(a) == 0
    factor, other = (a, b) if swapped else (b, a)
    if degrees(factor) > 0 or not (factor.is_nonneg() or factor.is_nonpos()):
        raise _NotPiecewise
    turned = sign if factor.is_nonneg() else -sign
    positive = factor if factor.is_nonneg() else -factor

    def times(piece: Any) -> Any:
        divided = isinstance(e, atoms.DIVIDE)
        return piece / positive if divided else cp.multiply(positive, piece)

    return [spread(times(p), e.shape) for p in _pieces(other, turned, degrees)]


def _rearranged(e: Any, sign: int, degrees: Degrees) -> list[Any]:
    return [e.copy([p]) for p in _pieces(e.args[0], sign, degrees)]


RULES: dict[Any, Callable[[Any, int, Degrees], list[Any]]] = {
    atoms.ADD: _added,
    atoms.MAXIMUM: _extreme(1),
    atoms.MINIMUM: _extreme(-1),
    atoms.ABS: _absolute,
    atoms.NEGATE: lambda e, sign, degrees: _pieces(e.args[0], -sign, degrees),
    atoms.MULTIPLY: _scaled,
    atoms.DIVIDE: _scaled,
    atoms.INDEX: _rearranged,
    atoms.SPECIAL_INDEX: _rearranged,
    atoms.RESHAPE: _rearranged,
    atoms.TRANSPOSE: _rearranged,
    atoms.PROMOTE: _rearranged,
    atoms.BROADCAST: _rearranged,
}
