"""Affine pieces a(x) + <b(x), xi> of a loss, and clusters of them: maxima of a few pieces."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss.dependence import dependence
from wdro_model.loss.expressions import factored
from wdro_model.loss.polynomial import affine_parts
from wdro_model.model import RobustModel
from wdro_model.objectives.empirical import flat_slope
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.sample_shares import SampleShares


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
