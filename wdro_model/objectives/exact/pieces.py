"""Maxima of affine pieces: over the joint data, and coordinate by coordinate.

A newsvendor of a thousand products is a thousand maxima that each see one demand. Written as
vectors they are one expression for CVXPY, where one by one they would be thousands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.loss.affine_pieces import entry_pieces
from wdro_model.loss.expressions import factored, spread
from wdro_model.loss.polynomial import Degrees, affine_parts, constant_part, dependence, selected
from wdro_model.model import RobustModel
from wdro_model.objectives.empirical import flat_slope
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.samples import SampleShares


@dataclass(frozen=True, eq=False)
class Piece:
    """a(x) + <b(x), xi>."""

    constant: Any
    """a(x), a CVXPY expression of shape ()."""
    direction: Any
    """b(x) but for its scale, a CVXPY expression of shape (d,)."""
    scale: float = 1.0
    """b(x) = scale * direction: pieces along one line share the very same direction."""
    memory: dict[str, Any] = field(default_factory=dict, repr=False)
    """The coordinates that the piece sees, once they were asked for."""

    @cached_property
    def slope(self) -> Any:
        """b(x), a CVXPY expression of shape (d,)."""
        return self.direction if self.scale == 1.0 else self.scale * self.direction

    def values(self, seen: Array, rows: Array) -> Any:
        """a(x) + <b(x), xi_k> for each row, a vector of n entries (or one where no data is seen).

        seen: the coordinates with a slope that is not zero, as indices.
        """
        if not len(seen):
            return self.constant
        whole = len(seen) == rows.shape[1]
        scaled = self.scale * (rows if whole else rows[:, seen])
        return self.constant + scaled @ (self.direction if whole else self.direction[seen])


@dataclass(frozen=True, eq=False)
class Cluster:
    """A maximum of affine pieces."""

    pieces: tuple[Piece, ...]
    seen: Array
    """Coordinates with a slope that is not zero, as indices."""
    moving: Array
    """Coordinates that the worst case moves, as indices; those of no other cluster."""

    def values(self, rows: Array) -> list[Any]:
        """Each piece at each sample, vectors of n entries (or one where no data is seen)."""
        return [piece.values(self.seen, rows) for piece in self.pieces]

    def mean_of_largest(self, values: list[Any], shares: SampleShares) -> Any:
        """The average over samples of the largest of some values for each piece."""
        return shares.expression(largest(values))

    def numeric(self, model: RobustModel, x: Array) -> NumericCluster:
        """The pieces at the decision x."""
        found = [evaluate_piece(model, piece, x) for piece in self.pieces]
        constants, slopes = zip(*found)
        return NumericCluster(np.array(constants), np.array(slopes), self.moving)


@dataclass(frozen=True, eq=False)
class NumericCluster:
    """The pieces of a cluster at one decision."""

    constants: Array
    """(J,)."""
    slopes: Array
    """(J, d)."""
    moving: Array

    def values(self, rows: Array) -> Array:
        """Each piece at each sample, (n, J)."""
        return self.constants + rows @ self.slopes.T

    def over(self, unit: float) -> NumericCluster:
        """The pieces in another unit."""
        return NumericCluster(self.constants / unit, self.slopes / unit, self.moving)

    def as_expressions(self, seen: Array) -> Cluster:
        """The numbers in the form of a cluster of expressions."""
        numbers = zip(self.constants, self.slopes)
        pieces = tuple(Piece(cp.Constant(a), cp.Constant(b)) for a, b in numbers)
        return Cluster(pieces, seen, self.moving)

    @cached_property
    def moving_slopes(self) -> Array:
        """The slopes with zeros for coordinates that do not move."""
        out = np.zeros_like(self.slopes)
        out[:, self.moving] = self.slopes[:, self.moving]
        return out


def largest(values: list[Any]) -> Any:
    """The largest of some expressions, entry by entry."""
    return values[0] if len(values) == 1 else cp.maximum(*values)


def evaluate_piece(model: RobustModel, piece: Piece, x: Array) -> tuple[float, Array]:
    """a(x) and b(x), (d,); the variables keep the values they have."""
    with model.feasible.layout.holding(x):
        slope = np.asarray(piece.slope.value, dtype=float)
        return float(piece.constant.value), np.broadcast_to(slope, (model.joint.dimension,))


def pattern_of(model: RobustModel, found: tuple[Piece, ...]) -> Array:
    """Which slopes are not identically zero in x, (d,)."""
    for piece in found:
        if "pattern" not in piece.memory:
            piece.memory["pattern"] = _pattern(model, piece)
    return np.any([piece.memory["pattern"] for piece in found], axis=0)


def _pattern(model: RobustModel, piece: Piece) -> Array:
    """Slopes that are affine in the decision are those that are not zero at a generic one.

    Of others, such as z * pos(x - 2), every entry counts that sees a variable at all.
    """
    if isinstance(piece.direction, cp.Variable):
        return np.full(model.joint.dimension, piece.scale != 0)
    generic = np.random.default_rng(0).uniform(0.5, 1.5, size=model.loss.dimension)
    seen = evaluate_piece(model, piece, generic)[1] != 0
    if piece.scale != 0 and not piece.direction.is_affine():
        layout = model.feasible.layout
        entries = dependence(piece.direction, layout.slices, layout.dimension)
        seen = seen | (np.diff(entries.indptr) > 0)
    return seen


def piece_of(model: RobustModel, expression: Any) -> Piece:
    """A scalar expression that is affine in the data."""
    parts = affine_parts(expression, model.joint.parameters)
    scale, direction = factored(flat_slope(model, parts.slopes))
    return Piece(parts.constant, direction, scale)


def as_piece(model: RobustModel, expression: Any) -> tuple[Piece, Array]:
    """A scalar expression that is affine in the data, and the coordinates that it sees."""
    piece = piece_of(model, expression)
    return piece, np.flatnonzero(pattern_of(model, (piece,)))


def sum_of_pieces(some: tuple[Piece, ...]) -> Piece:
    """The sum of some pieces; along one line where all of them are."""
    if len(some) == 1:
        return some[0]
    constant = total([p.constant for p in some])
    steep = [p for p in some if not is_flat(p)] or [some[0]]
    direction = steep[0].direction
    if all(p.direction is direction for p in steep):
        return Piece(constant, direction, sum(p.scale for p in steep))
    return Piece(constant, total([p.slope for p in steep]))


def is_flat(piece: Piece) -> bool:
    """Does the piece not depend on the data?"""
    constant = isinstance(piece.direction, cp.Constant)
    return piece.scale == 0 or (constant and not piece.direction.value.any())


def masked(piece: Piece, mask: Array, constant: Any | None = None) -> Piece:
    """The slope of a piece on some coordinates, with another constant."""
    constant = cp.Constant(0.0) if constant is None else constant
    if mask.all():
        return Piece(constant, piece.direction, piece.scale)
    return Piece(constant, cp.multiply(mask, piece.direction), piece.scale)


def total(terms: list[Any]) -> Any:
    """The sum of some expressions, at least one."""
    return sum(terms[1:], terms[0])


# ------------------------------
# Terms along coordinates of their own, many at once: sum_i max_j ( a_ji(x) + b_ji(x) xi_i )


FEWEST, MANY = 2, 8
"""Fewer maxima than this are not worth the vectors, where they are written as such or not."""


@dataclass(frozen=True, eq=False)
class Lines:
    """m maxima of J pieces, each along a coordinate of its own."""

    constants: tuple[Any, ...]
    """a_j(x) for each piece, CVXPY expressions of shape (m,)."""
    slopes: tuple[Any, ...]
    """b_j(x) for each piece, CVXPY expressions of shape (m,)."""
    where: Array
    """The coordinate of the data that each maximum sees, (m,)."""

    @cached_property
    def fixed_slopes(self) -> Array | None:
        """The slopes (J, m) where they do not depend on the decision."""
        if any(slope.variables() for slope in self.slopes):
            return None
        return np.array([slope.value for slope in self.slopes], dtype=float)

    def values(self, rows: Array) -> list[Any]:
        """Each piece at each sample, flat vectors of n m entries, sample by sample."""
        data = rows[:, self.where]
        ones = np.ones_like(data)
        return [along(ones, a) + along(data, b) for a, b in zip(self.constants, self.slopes)]

    def mean_of_largest(self, values: list[Any], shares: SampleShares) -> Any:
        """The sum over coordinates of the averages of the largest of some values for each piece."""
        return shares.repeat(len(self.where)).expression(largest(values))

    def numeric(self, model: RobustModel, x: Array) -> NumericLines:
        """The lines at the decision x."""
        with model.feasible.layout.holding(x):
            constants, slopes = (
                np.array([np.broadcast_to(e.value, self.where.shape) for e in some], dtype=float)
                for some in (self.constants, self.slopes)
            )
        return NumericLines(constants, slopes, self.where)


@dataclass(frozen=True, eq=False)
class NumericLines:
    """The same at one decision."""

    constants: Array
    """(J, m)."""
    slopes: Array
    """(J, m)."""
    where: Array

    def values(self, rows: Array) -> Array:
        """Each piece at each sample, (J, n, m)."""
        return self.constants[:, None] + rows[:, self.where] * self.slopes[:, None]


def along(numbers: Array, vector: Any) -> Any:
    """numbers (n, m) times a vector (m,), entry by entry, as a flat vector of n m entries."""
    if not vector.variables():
        return cp.Constant((numbers * vector.value).ravel())
    n, m = numbers.shape
    starts = np.arange(n * m + 1)
    columns = np.tile(np.arange(m), n)
    return sp.csr_array((numbers.ravel(), columns, starts), shape=(n * m, m)) @ vector


def find_lines(
    model: RobustModel, terms: list[Any], tied: Array, limit: int
) -> tuple[tuple[Lines, ...], list[Any]]:
    """The lines among additive terms (expressions whose entries add up), and the other terms.

    tied: which coordinates (d,) cost or support couple with others, or hold fixed.
    limit: at most so many pieces of one maximum.
    """
    degrees = Degrees(model.joint.parameters)
    bent = [i for i, term in enumerate(terms) if degrees(term) > 1]
    if not any(terms[i].size >= FEWEST for i in bent):
        return (), terms
    columns, d = model.joint.slices, model.joint.dimension
    patterns = [dependence(terms[i], columns, d) for i in bent]
    entries = np.array([_only_entry(pattern) for pattern in patterns])
    clean = ~tied & np.all(entries != SHARED, axis=0)
    taken: dict[int, list[Array]] = {}
    lines = []
    signatures, owner = np.unique(entries[:, clean] >= 0, axis=1, return_inverse=True)
    for s, signature in enumerate(signatures.T):
        where = np.flatnonzero(clean)[np.ravel(owner) == s]
        if not signature.any() or len(where) < FEWEST:
            continue
        members = np.flatnonzero(signature)
        parts = [selected(terms[bent[m]], entries[m, where]) for m in members]
        found = _lines(model, parts, where, degrees, limit)
        if found is not None:
            lines.append(found)
            for m in members:
                taken.setdefault(bent[m], []).append(entries[m, where])
    rest = [_without(term, taken.get(i)) for i, term in enumerate(terms)]
    return tuple(lines), [term for term in rest if term is not None]


def gather_lines(
    model: RobustModel, clusters: list[Cluster]
) -> tuple[list[Cluster], tuple[Lines, ...]]:
    """Many clusters of one coordinate each, as a Python sum over products has them, as lines."""
    alone: dict[int, list[Cluster]] = {}
    for cluster in clusters:
        if len(cluster.moving) == 1 and np.array_equal(cluster.seen, cluster.moving):
            alone.setdefault(len(cluster.pieces), []).append(cluster)
    many = [some for some in alone.values() if len(some) >= MANY]
    taken = {id(cluster) for some in many for cluster in some}
    lines = tuple(_gathered(some) for some in many)
    return [cluster for cluster in clusters if id(cluster) not in taken], lines


def _gathered(clusters: list[Cluster]) -> Lines:
    where = np.array([cluster.moving[0] for cluster in clusters])
    columns = [[c.pieces[j] for c in clusters] for j in range(len(clusters[0].pieces))]
    return Lines(
        tuple(_stacked([piece.constant for piece in column]) for column in columns),
        tuple(
            _stacked([piece.scale * piece.direction[int(i)] for piece, i in zip(column, where)])
            for column in columns
        ),
        where,
    )


def _stacked(scalars: list[Any]) -> Any:
    """Some scalars as a vector, a constant where all of them are."""
    if not any(e.variables() for e in scalars):
        return cp.Constant(np.array([float(e.value) for e in scalars]))
    return cp.hstack(scalars)


SHARED = -2


def _only_entry(pattern: Any) -> Array:
    """For each coordinate the one entry that sees it, and it alone; -1 for none, SHARED else."""
    found = np.full(pattern.shape[1], -1)
    for_column = sp.csc_array(pattern)
    seen_by = np.diff(for_column.indptr)
    once = np.flatnonzero(seen_by == 1)
    entry = for_column.indices[for_column.indptr[once]]
    alone = np.diff(sp.csr_array(pattern).indptr)[entry] == 1
    found[once] = np.where(alone, entry, SHARED)
    found[seen_by > 1] = SHARED
    return found


def _lines(
    model: RobustModel, parts: list[Any], where: Array, degrees: Degrees, limit: int
) -> Lines | None:
    """The sum of vectors of maxima that see the same coordinates in the same order."""
    choices = []
    for part in parts:
        found = entry_pieces(part, degrees)
        if found is None or found[0] < 0:
            return None
        choices.append(found[1])
    if prod(len(choice) for choice in choices) > limit:
        return None
    pieces = [sum(rest, first) for first, *rest in product(*choices)]
    slopes = []
    for piece in pieces:
        # No two entries see one coordinate: the slopes of their sum are those of the entries.
        summed = affine_parts(cp.sum(piece), model.joint.parameters).slopes
        slopes.append(_settled(flat_slope(model, summed)[where]))
    shape = where.shape
    constants = [_settled(spread(constant_part(piece, degrees), shape)) for piece in pieces]
    return Lines(tuple(constants), tuple(slopes), where)


def _settled(e: Any) -> Any:
    """The expression as a constant, where it is one."""
    return e if e.variables() else cp.Constant(e.value)


def _without(term: Any, taken: list[Array] | None) -> Any | None:
    """The entries of a term that are not taken; None if all are."""
    if taken is None:
        return term
    left = np.setdiff1d(np.arange(term.size), np.concatenate(taken))
    return selected(term, left) if len(left) else None
