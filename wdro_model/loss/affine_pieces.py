"""f = max_j f_j with each f_j affine in the data: the pieces of a piecewise affine expression.

`pieces` takes a scalar apart, going through the entries of its arguments one by one;
`entry_pieces` all entries of an expression at once, where the atoms act entry by entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from math import prod
from typing import Any

from wdro_model.loss.atoms.expressions import entry_of
from wdro_model.loss.atoms.facts import NotPiecewise, facts_of
from wdro_model.loss.atoms.linear import linear_maps
from wdro_model.loss.polynomial import Degrees

Pieces = list[Any]

PIECES = 16
"""Pieces of an entry that `entry_pieces` writes out."""


def pieces(expression: Any, parameters: Iterable[Any], limit: int = 64) -> tuple[Any, ...] | None:
    """Scalar expressions of degree at most one in the parameters whose maximum is the expression.

    None if the expression is not such a maximum by the facts of its atoms, or has more than
    `limit` pieces: a sum of maxima has as many as the product of theirs.
    """
    if expression.size != 1:
        raise ValueError(f"pieces needs one entry, got shape {expression.shape}.")
    try:
        return tuple(_ScalarPieces(Degrees(parameters), limit).of(expression, 0, 1))
    except NotPiecewise:
        return None


class _ScalarPieces:
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
        return self.at_most(facts_of(e).pieces(e, entry, sign, self))

    def at_most(self, found: Pieces) -> Pieces:
        if len(found) > self.limit:
            raise NotPiecewise
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
                raise NotPiecewise
        fixed = [sum(certain[1:], certain[0])] if certain else []
        return [sum(rest, first) for first, *rest in (fixed + list(c) for c in product(*choices))]

    def scaled(self, factor: Any, e: Any, entry: int, sign: int) -> Pieces:
        """factor * e for a factor without data and of known sign."""
        if self.degrees(factor) > 0:
            raise NotPiecewise
        if factor.is_nonneg():
            return [factor * piece for piece in self.of(e, entry, sign)]
        if factor.is_nonpos():
            return [-factor * piece for piece in self.of(e, entry, -sign)]
        raise NotPiecewise

    def absolute(self, e: Any, entry: int, sign: int) -> Pieces:
        """|e| = max(e, -e), or the one of them that is known to be nonnegative."""
        if sign < 0:
            raise NotPiecewise
        if e.is_nonneg() or e.is_nonpos():
            return self.of(e, entry, 1 if e.is_nonneg() else -1)
        return self.union(self.of(e, entry, turned) for turned in (1, -1))

    def matrices(self, e: Any) -> list[Any]:
        """The matrices of an affine atom, by columns."""
        if id(e) not in self._maps:
            self._maps[id(e)] = [m.tocsc() for m in linear_maps(e)]
        return self._maps[id(e)]


def entry_pieces(expression: Any, degrees: Degrees) -> tuple[int, Pieces] | None:
    """(sign, pieces): sign * expression is the maximum, entry by entry, of affine pieces.

    The pieces have the shape of the expression; None where the facts of its atoms give none.
    """
    for sign in (1, -1):
        try:
            return sign, _EntryPieces(degrees)(expression, sign)
        except NotPiecewise:
            continue
    return None


class _EntryPieces:
    def __init__(self, degrees: Degrees) -> None:
        self.degrees = degrees

    def __call__(self, e: Any, sign: int) -> Pieces:
        if self.degrees(e) <= 1:
            return [e if sign > 0 else -e]
        found = facts_of(e).entry_pieces(e, sign, self)
        if len(found) > PIECES:
            raise NotPiecewise
        return found

    def total(self, choices: list[Pieces]) -> Pieces:
        """The sum of maxima."""
        if prod(len(choice) for choice in choices) > PIECES:
            raise NotPiecewise
        return [sum(rest, first) for first, *rest in product(*choices)]
