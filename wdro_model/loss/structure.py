"""The structure of a loss in its data: degree, curvature, affine pieces. Planning reads it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import cvxpy as cp
from cvxpy.expressions.leaf import Leaf
from cvxpy.reductions.dcp2cone.canonicalizers import CANON_METHODS
from cvxpy.reductions.dcp2cone.canonicalizers.quad import QUAD_CANON_METHODS

from wdro_model.loss.atoms.cvxpy_classes import AffAtom, Atom
from wdro_model.loss.atoms.facts import NoPieces, facts_of
from wdro_model.loss.atoms.linear import linear_maps
from wdro_model.loss.expressions import Walk, broadcast_entry, entry_of, reduced_entries, spread
from wdro_model.loss.polynomial import Degrees, degree, sign_of


@dataclass(frozen=True, eq=False)
class Structure:
    """The structure of a loss f(x, xi); each property is computed when it is first asked for.

    Examples
    --------
    >>> x, price = cp.Variable(2), wdro.UncertainParameter(2, "price", samples=[[1.0, 2.0]])
    >>> structure = wdro.loss.analyse(cp.pos(price @ x), [price])
    >>> structure.curvature_in_data, len(structure.pieces)
    ('convex', 2)
    """

    expression: Any
    """f, of one entry."""
    parameters: tuple[Any, ...]
    """The uncertain parameters."""
    limit: int = 64
    """The largest number of affine pieces that are written out."""

    @cached_property
    def degree(self) -> float:
        """Joint polynomial degree in the data: 0, 1, 2, ... or math.inf."""
        return degree(self.expression, self.parameters)

    @cached_property
    def convex_in_decision(self) -> bool:
        """True if f is convex in x for all data, by CVXPY's rules."""
        # The samples are PSD or NSD as declared; the worst case may leave that cone.
        definite = [p for p in self.parameters if p.attributes["PSD"] or p.attributes["NSD"]]
        plain = {id(p): cp.Parameter(p.shape, p.name(), symmetric=True) for p in definite}
        expression = self.expression.tree_copy(plain) if definite else self.expression
        return bool(expression.is_convex())

    @cached_property
    def convex_on_samples(self) -> bool:
        """True if f is convex in x for data that is PSD or NSD as declared, such as the samples."""
        return bool(self.expression.is_convex())

    @cached_property
    def curvature_in_data(self) -> str:
        """ "affine", "convex", "concave" or "unknown", for every decision."""
        return convexity_in_data(self.expression, self.parameters)

    @cached_property
    def pieces(self) -> tuple[Any, ...] | None:
        """Scalar expressions, affine in the data, whose maximum is f; None if none are known."""
        return pieces(self.expression, self.parameters, self.limit)

    def describe(self) -> str:
        """The convexity in x and the structure in the data, in one line."""
        decision = "convex" if self.convex_in_decision else "not provably convex"
        return f"{decision} in the decision, {self._in_data()}"

    def _in_data(self) -> str:
        names = ", ".join(p.name() for p in self.parameters) or "no parameter"
        if self.degree == 0:
            return "independent of the data"
        if self.degree == 1:
            return f"affine in the data ({names})"
        if self.pieces is not None:
            return f"a maximum of {len(self.pieces)} pieces affine in the data ({names})"
        polynomial = "" if math.isinf(self.degree) else f"polynomial of degree {self.degree:g}, "
        known = self.curvature_in_data
        shape = "of unknown curvature" if known == "unknown" else known
        return f"{polynomial}{shape} in the data ({names})"


def analyse(expression: Any, parameters: Iterable[Any], limit: int = 64) -> Structure:
    """The structure of a scalar loss in the parameters.

    Parameters
    ----------
    limit
        The largest number of affine pieces that are written out.

    Examples
    --------
    >>> x, price = cp.Variable(2), wdro.UncertainParameter(2, "price", samples=[[1.0, 2.0]])
    >>> print(wdro.loss.analyse(price @ x, [price]).describe())
    convex in the decision, affine in the data (price)
    """
    return Structure(expression, tuple(parameters), limit)


# ------------------------------------------------------------------ curvature in the data
def convexity_in_data(expression: Any, parameters: Iterable[Any]) -> str:
    """ "affine", "convex", "concave" or "unknown", in the parameters and for every decision.

    Subexpressions that are affine in the data become variables, those without data become
    parameters of the same sign; CVXPY's composition rules then speak about the data.

    Examples
    --------
    >>> wdro.loss.convexity_in_data(cp.exp(price @ x), [price])
    'convex'
    """
    degrees = Degrees(parameters)
    if degrees(expression) <= 1:
        return "affine"

    def swap(walk: Walk, e: Any) -> Any:
        """The expression with the roles of decision and data swapped."""
        degree = degrees(e)
        if degree == 0 and not e.variables():
            return e
        if degree == 0:
            return cp.Parameter(e.shape, **sign_of(e), **_definiteness(e))
        if degree == 1:
            return cp.Variable(e.shape, **sign_of(e))
        return e.copy([walk(argument) for argument in e.args])

    try:
        swapped = Walk(swap)(expression)
    except (ValueError, cp.error.DCPError):
        return "unknown"  # some atoms take no variable as the argument that is data
    if any(p.id in degrees.ids for p in swapped.parameters()):
        return "unknown"
    if swapped.is_convex():
        return "convex"
    return "concave" if swapped.is_concave() else "unknown"


def _definiteness(expression: Any) -> dict[str, bool]:
    """PSD or NSD as an attribute of a leaf, which in CVXPY has a sign or a cone, not both."""
    if expression.ndim != 2 or sign_of(expression):
        return {}
    if expression.is_psd():
        return {"PSD": True}
    return {"NSD": True} if expression.is_nsd() else {}


# ------------------------------------------------------------------ affine pieces
# f = max_j f_j with each f_j affine in the data. `pieces` gives the f_j of a scalar, from the
# pieces of single entries of its arguments. `entry_pieces` gives those of all entries of an
# expression at once, where its atoms act entry by entry.
Pieces = list[Any]

MOST_ENTRY_PIECES = 16
"""Largest number of pieces of an entry in `entry_pieces`; each is a row for each sample."""


def pieces(expression: Any, parameters: Iterable[Any], limit: int = 64) -> tuple[Any, ...] | None:
    """Scalar expressions of degree at most one in the parameters whose maximum is the expression.

    None if the facts of its atoms give no such maximum, or one of more than `limit` pieces. A sum
    of maxima with m and n pieces has m n pieces.

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
        return tuple(AtomEntry(expression, 0, Degrees(parameters), limit).pieces(1))
    except NoPieces:
        return None


def entry_pieces(expression: Any, degrees: Degrees) -> tuple[int, Pieces] | None:
    """(sign, pieces): sign * expression is the entrywise maximum of affine pieces.

    The pieces have the shape of the expression. None where the facts of its atoms give no pieces.
    """
    for sign in (1, -1):
        try:
            return sign, AtomEntry(expression, None, degrees, MOST_ENTRY_PIECES).pieces(sign)
        except NoPieces:
            continue
    return None


@dataclass(frozen=True)
class AtomEntry:
    """An entry of an atom whose pieces are asked for: the `at` of the fact `pieces`.

    The methods give the pieces of entries of the arguments, and combine them.
    """

    atom: Any
    entry: int | None
    """In column-major order; None for all entries at once."""
    degrees: Degrees
    limit: int
    """The largest number of pieces."""
    maps: dict[int, list[Any]] = field(default_factory=dict)
    """Matrices of affine atoms by id, stored by columns."""

    def pieces(self, sign: int) -> Pieces:
        """The affine expressions whose maximum is sign * the entry."""
        if self.degrees(self.atom) <= 1:
            value = self.atom if self.entry is None else entry_of(self.atom, self.entry)
            return [value if sign > 0 else -value]
        return self._at_most(facts_of(self.atom).pieces(self.atom, sign, self))

    def entry_pieces(self, argument: Any, entry: int | None, sign: int) -> Pieces:
        """The pieces of sign * an entry of an argument."""
        entry = None if entry is None else int(entry)
        return replace(self, atom=argument, entry=entry).pieces(sign)

    def _at_most(self, pieces: Pieces) -> Pieces:
        if len(pieces) > self.limit:
            raise NoPieces
        return pieces

    @property
    def number(self) -> int:
        """The entry; NoPieces where all entries are asked for at once."""
        if self.entry is None:
            raise NoPieces
        return self.entry

    def read(self, argument: Any) -> int | None:
        """The entry of an argument that an entrywise atom reads for this entry; None for all."""
        if self.entry is None:
            return None
        return broadcast_entry(self.atom.shape, self.entry, argument.shape)

    def part(self, argument: Any) -> Any:
        """The entry of an argument that this entry reads, as a scalar."""
        where = self.read(argument)
        return argument if where is None else entry_of(argument, where)

    def __call__(self, argument: Any, sign: int) -> Pieces:
        """The pieces of sign * the entry of an argument that this entry reads."""
        return self.entry_pieces(argument, self.read(argument), sign)

    def spread(self, pieces: Pieces) -> Pieces:
        """The pieces broadcast to the shape of the atom."""
        return pieces if self.entry is not None else [spread(p, self.atom.shape) for p in pieces]

    def reduced(self) -> list[int]:
        """The entries of the argument that this entry of a reduction along axes combines."""
        return [int(k) for k in reduced_entries(self.atom)[self.number]]

    def union(self, alternatives: Iterable[Pieces]) -> Pieces:
        """The pieces of a maximum, given the pieces of each of its terms."""
        united: Pieces = []
        for pieces_of_one in alternatives:
            united = self._at_most(united + pieces_of_one)
        return united

    def total(self, terms: Iterable[Pieces]) -> Pieces:
        """The pieces of a sum: one for each choice of a piece of every term."""
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
                raise NoPieces
        fixed = [sum(certain[1:], certain[0])] if certain else []
        return [sum(rest, first) for first, *rest in (fixed + list(c) for c in product(*choices))]

    def absolute(self, argument: Any, entry: int | None, sign: int) -> Pieces:
        """The pieces of |e| = max(e, -e); of the one that is nonnegative, where that is known."""
        if sign < 0:
            raise NoPieces
        signs = (1,) if argument.is_nonneg() else (-1,) if argument.is_nonpos() else (1, -1)
        return self.union(self.entry_pieces(argument, entry, turned) for turned in signs)

    def positive(self, factor: Any, sign: int) -> tuple[Any, int]:
        """(|factor|, sign * sign of factor) for a factor without data and of known sign."""
        if self.degrees(factor) > 0 or not (factor.is_nonneg() or factor.is_nonpos()):
            raise NoPieces
        return (factor, sign) if factor.is_nonneg() else (-factor, -sign)

    def by_matrices(self, sign: int) -> Pieces:
        """The pieces of an affine atom, a combination of entries of its arguments."""

        def terms() -> Iterable[Pieces]:
            if id(self.atom) not in self.maps:
                self.maps[id(self.atom)] = [m.tocsc() for m in linear_maps(self.atom)]
            for argument, matrix in zip(self.atom.args, self.maps[id(self.atom)]):
                start, end = matrix.indptr[self.number : self.number + 2]
                for k, c in zip(matrix.indices[start:end], matrix.data[start:end]):
                    if c:
                        own = self.entry_pieces(argument, k, sign if c > 0 else -sign)
                        yield own if abs(c) == 1 else [abs(float(c)) * piece for piece in own]

        return self.total(terms())


# ------------------------------------------------------------------ atoms that CVXPY can solve
def is_canonicalisable(expression: Any) -> bool:
    """True if CVXPY can write the expression for its solvers, which know all of its atoms.

    Examples
    --------
    >>> x, costs = cp.Variable(2), wdro.UncertainParameter((2, 2))
    >>> wdro.loss.is_canonicalisable(cp.exp(cp.sum(x)))
    True
    >>> wdro.loss.is_canonicalisable(wdro.quadratic_form(x, costs))
    False
    """

    def visit(walk: Walk, e: Any) -> bool:
        """Look the atom up by its exact class, as CVXPY does; constants need no entry."""
        if isinstance(e, Leaf) or (e.is_constant() and not e.parameters()):
            return True
        cls = type(e)
        known = cls in CANON_METHODS or cls in QUAD_CANON_METHODS
        if not known and issubclass(cls, AffAtom):
            known = cls.graph_implementation is not Atom.graph_implementation
        return known and all(walk(argument) for argument in e.args)

    return bool(Walk(visit)(expression))
