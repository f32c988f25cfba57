"""f = max_j f_j with each f_j affine in the data: the pieces of a piecewise affine expression.

`pieces` takes a scalar apart, going through the entries of its arguments one by one;
`entry_pieces` all entries of an expression at once, where the atoms act entry by entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

from wdro_model.loss.atoms.facts import NoPieces, facts_of
from wdro_model.loss.atoms.linear import linear_maps
from wdro_model.loss.expressions import broadcast_entry, entry_of, reduced_entries, spread
from wdro_model.loss.polynomial import Degrees

Pieces = list[Any]

MOST_ENTRY_PIECES = 16
"""Pieces of an entry that `entry_pieces` writes out; each is a row for each sample."""


def pieces(expression: Any, parameters: Iterable[Any], limit: int = 64) -> tuple[Any, ...] | None:
    """Scalar expressions of degree at most one in the parameters whose maximum is the expression.

    None if the expression is not such a maximum by the facts of its atoms, or has more than
    `limit` pieces: a sum of maxima has as many as the product of theirs.

    Examples
    --------
    >>> len(wdro.loss.pieces(cp.abs(price @ x) + cp.maximum(price[0], 0, 1), [price]))
    6
    >>> wdro.loss.pieces(cp.exp(price @ x), [price]) is None
    True
    """
    if expression.size != 1:
        raise ValueError(f"pieces needs one entry, got shape {expression.shape}.")
    try:
        return tuple(PieceSearch(Degrees(parameters), limit).find(expression, 0, 1))
    except NoPieces:
        return None


def entry_pieces(expression: Any, degrees: Degrees) -> tuple[int, Pieces] | None:
    """(sign, pieces): sign * expression is the maximum, entry by entry, of affine pieces.

    The pieces have the shape of the expression; None where the facts of its atoms give none.
    """
    for sign in (1, -1):
        try:
            return sign, PieceSearch(degrees, MOST_ENTRY_PIECES).find(expression, None, sign)
        except NoPieces:
            continue
    return None


class PieceSearch:
    """Pieces of one entry of an expression, in column-major order, or of all at once (None).

    With sign -1 they are those of the negated entry: a minimum is then what a maximum was.
    """

    def __init__(self, degrees: Degrees, limit: int) -> None:
        self.degrees = degrees
        self.limit = limit
        self._maps: dict[int, list[Any]] = {}

    def find(self, e: Any, entry: int | None, sign: int) -> Pieces:
        if self.degrees(e) <= 1:
            value = e if entry is None else entry_of(e, entry)
            return [value if sign > 0 else -value]
        return self.at_most(facts_of(e).pieces(e, sign, AtomEntry(self, e, entry)))

    def at_most(self, pieces: Pieces) -> Pieces:
        """The pieces, unless there are more than the limit."""
        if len(pieces) > self.limit:
            raise NoPieces
        return pieces

    def matrices(self, e: Any) -> list[Any]:
        """The matrices of an affine atom, by columns."""
        if id(e) not in self._maps:
            self._maps[id(e)] = [m.tocsc() for m in linear_maps(e)]
        return self._maps[id(e)]


@dataclass(frozen=True)
class AtomEntry:
    """An entry of an atom, or all at once, with the ways to combine pieces of its arguments."""

    walk: PieceSearch
    atom: Any
    entry: int | None

    @property
    def degrees(self) -> Degrees:
        return self.walk.degrees

    @property
    def number(self) -> int:
        """The entry, for facts that speak of one alone."""
        if self.entry is None:
            raise NoPieces
        return self.entry

    def read(self, argument: Any) -> int | None:
        """The entry of an argument that an entrywise atom reads."""
        if self.entry is None:
            return None
        return broadcast_entry(self.atom.shape, self.entry, argument.shape)

    def part(self, argument: Any) -> Any:
        """The entry of an argument that this entry reads, as a scalar."""
        where = self.read(argument)
        return argument if where is None else entry_of(argument, where)

    def __call__(self, argument: Any, sign: int) -> Pieces:
        """The pieces of the entry of an argument that this entry reads."""
        return self.walk.find(argument, self.read(argument), sign)

    def spread(self, pieces: Pieces) -> Pieces:
        """The pieces broadcast to the shape of the atom."""
        return pieces if self.entry is not None else [spread(p, self.atom.shape) for p in pieces]

    def entry_pieces(self, argument: Any, entry: int, sign: int) -> Pieces:
        """The pieces of any other entry of an argument."""
        return self.walk.find(argument, int(entry), sign)

    def reduced(self) -> list[int]:
        """The entries of the argument that a reduction along axes is taken over."""
        return [int(k) for k in reduced_entries(self.atom)[self.number]]

    def union(self, alternatives: Iterable[Pieces]) -> Pieces:
        """The maximum of maxima."""
        united: Pieces = []
        for pieces_of_one in alternatives:
            united = self.walk.at_most(united + pieces_of_one)
        return united

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
            if count > self.walk.limit:
                raise NoPieces
        fixed = [sum(certain[1:], certain[0])] if certain else []
        return [sum(rest, first) for first, *rest in (fixed + list(c) for c in product(*choices))]

    def absolute(self, argument: Any, entry: int | None, sign: int) -> Pieces:
        """|e| = max(e, -e), or the one of them that is known to be nonnegative."""
        if sign < 0:
            raise NoPieces
        signs = (1,) if argument.is_nonneg() else (-1,) if argument.is_nonpos() else (1, -1)
        return self.union(self.walk.find(argument, entry, turned) for turned in signs)

    def positive(self, factor: Any, sign: int) -> tuple[Any, int]:
        """|factor| and the sign turned by it, for a factor without data and of known sign."""
        if self.degrees(factor) > 0 or not (factor.is_nonneg() or factor.is_nonpos()):
            raise NoPieces
        return (factor, sign) if factor.is_nonneg() else (-factor, -sign)

    def by_matrices(self, sign: int) -> Pieces:
        """The pieces of an affine atom, a combination of entries of its arguments."""

        def terms() -> Iterable[Pieces]:
            for argument, matrix in zip(self.atom.args, self.walk.matrices(self.atom)):
                start, end = matrix.indptr[self.number : self.number + 2]
                for k, c in zip(matrix.indices[start:end], matrix.data[start:end]):
                    if c:
                        own = self.entry_pieces(argument, k, sign if c > 0 else -sign)
                        yield own if abs(c) == 1 else [abs(float(c)) * piece for piece in own]

        return self.total(terms())
