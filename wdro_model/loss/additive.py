"""A loss as a sum: expressions whose entries are its terms.

    cp.sum(order - d) + 4 * cp.sum(cp.pos(d - order))   ->   [order - d],  [4 * cp.pos(d - order)]

Sums, negation, weights without data, stacking and reshaping are taken apart; sum_squares and norm1
become sums of squares and of absolute values. Anything else is one term.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import cvxpy as cp

from wdro_model.loss import atoms
from wdro_model.loss.polynomial import Degrees

Rule = Callable[[Any, Degrees], "list[Any] | None"]


def additive_terms(expression: Any, parameters: Iterable[Any]) -> list[Any]:
    """Expressions whose entries, all of them, add up to the entries of the expression."""
    return _split(expression, Degrees(parameters))


def _split(expression: Any, degrees: Degrees) -> list[Any]:
    if degrees(expression) <= 1:
        return [expression]
    for cls in type(expression).__mro__:
        if cls in RULES:
            return RULES[cls](expression, degrees) or [expression]
    return [expression]


def _sum_of_arguments(e: Any, degrees: Degrees) -> list[Any]:
    """Reductions by addition and rearrangements: the same entries in all."""
    return [term for argument in e.args for term in _split(argument, degrees)]


def _added(e: Any, degrees: Degrees) -> list[Any]:
    """Arguments that are broadcast count as often as they are used."""
    return [
        _times(e.size // argument.size, term)
        for argument in e.args
        for term in _split(argument, degrees)
    ]


def _negated(e: Any, degrees: Degrees) -> list[Any]:
    return [-term for term in _split(e.args[0], degrees)]


def _weighted(e: Any, degrees: Degrees) -> list[Any] | None:
    """A factor without data: one number for all terms, or one for each entry."""
    factor, other = e.args if degrees(e.args[0]) == 0 else e.args[::-1]
    if degrees(factor) > 0:
        return None
    number = factor.args[0] if isinstance(factor, atoms.PROMOTE) else factor
    if number.size != 1 or other.shape != e.shape:
        return None
    return [cp.multiply(_scalar(number), term) for term in _split(other, degrees)]


def _divided(e: Any, degrees: Degrees) -> list[Any] | None:
    over, by = e.args
    number = by.args[0] if isinstance(by, atoms.PROMOTE) else by
    if degrees(by) > 0 or number.size != 1 or over.shape != e.shape:
        return None
    return [term / _scalar(number) for term in _split(over, degrees)]


def _product(e: Any, degrees: Degrees) -> list[Any] | None:
    """C v for a certain C: the sum over its rows of C_ij v_j."""
    a, b = e.args
    if degrees(a) > 0 and degrees(b) > 0:
        return None
    if b.ndim == 1 and degrees(a) == 0:
        return [cp.multiply(a if a.ndim == 1 else cp.sum(a, axis=0), b)]
    if a.ndim == 1 and degrees(b) == 0:
        return [cp.multiply(a, b if b.ndim == 1 else cp.sum(b, axis=1))]
    return None


def _squares(e: Any, degrees: Degrees) -> list[Any] | None:
    over, by = e.args
    if getattr(e, "axis", None) is not None or degrees(by) > 0:
        return None
    return [cp.square(over) / _scalar(by)]


def _absolute(e: Any, degrees: Degrees) -> list[Any] | None:
    return None if e.axis is not None else [cp.abs(e.args[0])]


def _times(count: int, term: Any) -> Any:
    return term if count == 1 else count * term


def _scalar(number: Any) -> Any:
    return number if number.ndim == 0 else cp.reshape(number, (), order="C")


RULES: dict[Any, Rule] = {
    atoms.ADD: _added,
    atoms.NEGATE: _negated,
    atoms.MULTIPLY: _weighted,
    atoms.DIVIDE: _divided,
    atoms.MATMUL: _product,
    atoms.QUAD_OVER_LIN: _squares,
    atoms.NORM1: _absolute,
    atoms.PROMOTE: _added,
    atoms.SUM: _sum_of_arguments,
    atoms.RESHAPE: _sum_of_arguments,
    atoms.WRAP: _sum_of_arguments,
    atoms.TRANSPOSE: _sum_of_arguments,
    atoms.HSTACK: _sum_of_arguments,
    atoms.VSTACK: _sum_of_arguments,
    atoms.CONCATENATE: _sum_of_arguments,
}
