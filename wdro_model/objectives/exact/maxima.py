"""Maxima of affine pieces of the data, written as vectors.

    sum over i = 1..m of  max_j ( a_ji(x) + s_j <b_ji(x), xi[C_i]> )

Maximum i sees the p coordinates C_i of the data. Terms that share coordinates are one maximum of
many coordinates (m = 1). A newsvendor of a thousand products is a thousand maxima of one coordinate
each (p = 1): a few vectors for CVXPY, where one by one they would be thousands of expressions.

Some counterparts are, with v the decision and the counterpart's own variables,

    rest(v) + (1/N) sum over maxima and samples k of max_j ( a_j(v) + s_j <b_j(v), xi_k> ),

a and b affine in v (`SampleMaxima`). Samples whose largest piece is the same add up to one, and a
mean over samples never exceeds the mean of their maxima. With cells of samples in place of the
samples, each at its mean and as heavy as it is large, this is a lower bound. It is sharp at every v
at which the samples of each cell agree on their largest piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.loss.expressions import split_factor
from wdro_model.loss.polynomial import affine_parts, dependence
from wdro_model.model import RobustModel
from wdro_model.objectives.empirical import Program, flat_slope
from wdro_model.sets.deadlines import check_deadline
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.samples import SampleShares

BLOCK_ENTRIES = 2**22
"""Entries of the data that are evaluated at once (32 MiB); larger blocks only need more memory."""

MOST_PARTS = 150
"""Maxima that are taken out of vectors one by one, at most; more stay the vectors that they are."""


@dataclass(frozen=True, eq=False)
class Piece:
    """a(x) + <b(x), xi>, over all coordinates of the data."""

    constant: Any
    """a(x), a CVXPY expression of shape ()."""
    direction: Any
    """b(x) but for its scale, a CVXPY expression of shape (d,)."""
    scale: float
    """b(x) = scale * direction: pieces along one line share the very same direction."""
    seen: Array
    """Mask (d,) of the coordinates whose slope is not identically zero."""

    @cached_property
    def slope(self) -> Any:
        """b(x), a CVXPY expression of shape (d,)."""
        return self.direction if self.scale == 1.0 else self.scale * self.direction

    def values(self, rows: Array) -> Any:
        """a(x) + <b(x), xi_k> for each row, (n,); one number if the piece sees no data."""
        if not self.seen.any():
            return self.constant
        if self.seen.all():
            return self.constant + (self.scale * rows) @ self.direction
        seen = np.flatnonzero(self.seen)
        return self.constant + (self.scale * rows[:, seen]) @ self.direction[seen]

    def evaluate(self, model: RobustModel, x: Array) -> tuple[float, Array]:
        """The numbers a(x) and b(x), (d,); the variables keep the values they have."""
        with model.feasible.layout.holding(x):
            slope = np.asarray(self.slope.value, dtype=float)
            return float(self.constant.value), np.broadcast_to(slope, self.seen.shape)

    @property
    def is_flat(self) -> bool:
        """True for a piece that does not depend on the data."""
        constant = isinstance(self.direction, cp.Constant)
        return self.scale == 0 or (constant and not self.direction.value.any())

    def masked(self, mask: Array, constant: Any) -> Piece:
        """The slope of the piece on some coordinates, with another constant."""
        if mask.all():
            return replace(self, constant=constant)
        direction = cp.multiply(mask.astype(float), self.direction)
        return Piece(constant, direction, self.scale, self.seen & mask)


def write_piece(model: RobustModel, expression: Any) -> Piece:
    """The piece of a scalar expression that is affine in the data."""
    parts = affine_parts(expression, model.joint.parameters)
    scale, direction = split_factor(flat_slope(model, parts.slopes))
    piece = Piece(parts.constant, direction, scale, np.full(model.joint.dimension, scale != 0))
    if scale == 0 or isinstance(direction, cp.Variable):
        return piece
    # Slopes that are affine in the decision are zero at a generic decision only if they always are.
    generic = np.random.default_rng(0).uniform(0.5, 1.5, size=model.loss.dimension)
    seen = piece.evaluate(model, generic)[1] != 0
    if not direction.is_affine():  # others, such as z * pos(x - 2), may be
        layout = model.feasible.layout
        entries = dependence(direction, layout.slices, layout.dimension)
        seen = seen | (np.diff(entries.indptr) > 0)
    return replace(piece, seen=seen)


def sum_pieces(pieces: Sequence[Piece]) -> Piece:
    """The sum of some pieces; along one line where all of them are."""
    if len(pieces) == 1:
        return pieces[0]
    constant = sum_expressions([piece.constant for piece in pieces])
    seen = np.any([piece.seen for piece in pieces], axis=0)
    steep = [piece for piece in pieces if not piece.is_flat] or [pieces[0]]
    direction = steep[0].direction
    if all(piece.direction is direction for piece in steep):
        return Piece(constant, direction, sum(piece.scale for piece in steep), seen)
    return Piece(constant, sum_expressions([piece.slope for piece in steep]), 1.0, seen)


def sum_expressions(terms: Sequence[Any]) -> Any:
    """The sum of some expressions, at least one."""
    return sum(terms[1:], terms[0])


def largest(values: Sequence[Any]) -> Any:
    """The largest of some expressions, entry by entry."""
    return values[0] if len(values) == 1 else cp.maximum(*values)


def block_matrix(numbers: Array, count: int) -> Any:
    """The matrix (n m, m p) whose product with a vector has <numbers_ki, vector_i> in row k m + i.

    numbers (n, m p) and the vector consist of m = count blocks; dense for one block.
    """
    if count == 1:
        return numbers
    n, size = numbers.shape
    starts = np.arange(0, n * size + 1, size // count)
    columns = np.tile(np.arange(size), n)
    return sp.csr_array((numbers.ravel(), columns, starts), shape=(n * count, size))


def matrix_times(matrix: Any, vector: Any) -> Any:
    """matrix @ vector, a constant where the vector is one."""
    return matrix @ vector if vector.variables() else cp.Constant(matrix @ vector.value)


def placement(entries: Array, size: int) -> Any:
    """The matrix that puts a short vector into these entries of a long one."""
    ones, columns = np.ones(len(entries)), np.arange(len(entries))
    return sp.csr_array((ones, (entries, columns)), shape=(size, len(entries)))


@dataclass(frozen=True, eq=False)
class Maxima:
    """m maxima of J affine pieces at some samples, each of p coordinates of its own."""

    index: Array | None
    """Indices of the samples; None for all."""
    coordinates: Array
    """Coordinates of the data that each maximum sees or moves, (m, p)."""
    constants: tuple[Any, ...]
    """a_j for each piece, CVXPY expressions of shape (m,), or () for m = 1."""
    directions: tuple[Any, ...]
    """The different b, CVXPY expressions of shape (m p,)."""
    owners: Array
    """The direction of each piece, (J,)."""
    scales: Array
    """s_j, by which each piece multiplies its direction, (J,)."""
    moves: Array
    """Mask (p,) of the coordinates that the worst case moves; m > 1 maxima move all of theirs."""

    @classmethod
    def of_pieces(cls, pieces: Sequence[Piece], moving: Array) -> Maxima:
        """A single maximum; moving: mask (d,) of the coordinates that the worst case moves."""
        own = np.flatnonzero(moving | np.any([piece.seen for piece in pieces], axis=0))
        steep = {id(piece.direction): piece.direction for piece in pieces if not piece.is_flat}
        places = {key: place for place, key in enumerate(steep)}
        whole = len(own) == len(moving)
        directions = tuple(b if whole else b[own] for b in steep.values())
        return cls(
            None,
            own[None],
            tuple(piece.constant for piece in pieces),
            directions or (cp.Constant(np.zeros(len(own))),),
            np.array([places.get(id(piece.direction), 0) for piece in pieces]),
            np.array([0.0 if piece.is_flat else piece.scale for piece in pieces]),
            moving[own],
        )

    @classmethod
    def of_coordinates(
        cls, constants: Sequence[Any], slopes: Sequence[Any], coordinates: Array
    ) -> Maxima:
        """A maximum for each coordinate, from vectors a_j and b_j (m,)."""
        count = len(slopes)
        return cls(
            None,
            coordinates[:, None],
            tuple(constants),
            tuple(slopes),
            np.arange(count),
            np.ones(count),
            np.array([True]),
        )

    # ------------------------------------------------------------------ as expressions
    @property
    def count(self) -> int:
        """The number of maxima, m."""
        return len(self.coordinates)

    @cached_property
    def moving(self) -> Array:
        """The coordinates that the worst case moves, (m, q)."""
        return self.coordinates[:, self.moves]

    def rows(self, model: RobustModel) -> Array:
        """The samples, (n, d)."""
        return model.rows if self.index is None else model.rows[self.index]

    def shares(self, model: RobustModel) -> SampleShares:
        """The shares of the samples in averages over all samples of the model."""
        return model.shares if self.index is None else model.shares.subset(self.index)

    def values(self, rows: Array) -> list[Any]:
        """Each piece at each sample: vectors of n m entries, sample by sample, or one number."""
        whole = self.count == 1 and self.coordinates.size == rows.shape[1]
        data = block_matrix(rows if whole else rows[:, self.coordinates.ravel()], self.count)
        ones = block_matrix(np.ones((len(rows), self.count)), self.count)
        values = []
        for constant, owner, scale in zip(self.constants, self.owners.tolist(), self.scales):
            value = constant if self.count == 1 else matrix_times(ones, constant)
            if scale != 0:
                value = value + matrix_times(scale * data, self.directions[owner])
            values.append(value)
        return values

    def mean_of_largest(self, values: Sequence[Any], shares: SampleShares) -> Any:
        """The mean over samples of the sum of the largest values, given piece by piece."""
        return shares.repeat(self.count).expression(largest(values))

    def moving_slopes(self) -> list[Any]:
        """The slope of each piece on the coordinates that move, CVXPY vectors (m q,)."""
        whole, some = self.moves.all(), np.flatnonzero(self.moves)
        slopes = []
        for owner, scale in zip(self.owners.tolist(), self.scales.tolist()):
            direction = self.directions[owner] if whole else self.directions[owner][some]
            slopes.append(scale * direction if scale != 1 else direction)
        return slopes

    def longest_directions(self) -> list[tuple[Array, float, Any]]:
        """For each direction its pieces, their longest scale, and the longest slope (m p,)."""
        longest = []
        for k, direction in enumerate(self.directions):
            own = np.flatnonzero((self.owners == k) & (self.scales != 0))
            if len(own):
                scale = float(np.abs(self.scales[own]).max())
                longest.append((own, scale, direction if scale == 1.0 else scale * direction))
        return longest

    def cost_on(self, cost: BoundCost, slope: Any) -> tuple[BoundCost, Any]:
        """For m = 1: the cost of moves of the coordinates that move, and a slope (p,) on these."""
        if self.coordinates.size == cost.dimension and self.moves.all():
            return cost, slope
        if cost.knows("restricted"):
            some = slope if self.moves.all() else slope[np.flatnonzero(self.moves)]
            return cost.restricted(self.moving[0]), some
        return cost, placement(self.coordinates[0], cost.dimension) @ slope

    def evaluate(self, model: RobustModel, x: Array) -> NumericMaxima:
        """The maxima at the decision x; the variables keep the values they have."""

        def stacked(some: Sequence[Any], size: int) -> Array:
            return np.array([np.broadcast_to(e.value, size) for e in some], dtype=float)

        with model.feasible.layout.holding(x):
            constants = stacked(self.constants, self.count)
            directions = stacked(self.directions, self.coordinates.size)
        slopes = self.scales[:, None] * directions[self.owners]
        slopes = slopes.reshape(len(slopes), *self.coordinates.shape)
        return NumericMaxima(constants.T, slopes.swapaxes(0, 1), self.coordinates, self.moves)

    def with_numbers(self, numbers: NumericMaxima) -> Maxima:
        """The same samples and coordinates, with constants for expressions; for m = 1."""
        return replace(
            self,
            constants=tuple(cp.Constant(a) for a in numbers.constants[0]),
            directions=tuple(cp.Constant(b) for b in numbers.slopes[0]),
            owners=np.arange(len(self.owners)),
            scales=np.ones(len(self.scales)),
        )

    def with_gains(self, gains: Sequence[Any]) -> Maxima:
        """The same with something added to each constant."""
        return replace(self, constants=tuple(a + g for a, g in zip(self.constants, gains)))

    def one_by_one(self) -> list[Maxima]:
        """The m maxima, each of its own."""
        if self.count == 1:
            return [self]
        width = self.coordinates.shape[1]
        return [
            replace(
                self,
                coordinates=self.coordinates[[i]],
                constants=tuple(a[i] for a in self.constants),
                directions=tuple(b[i * width : (i + 1) * width] for b in self.directions),
            )
            for i in range(self.count)
        ]

    # ------------------------------------------------------------------ one maximum, cell by cell
    @property
    def is_affine(self) -> bool:
        """True if the pieces are affine in the variables."""
        return all(e.is_affine() for e in (*self.constants, *self.directions))

    @property
    def width(self) -> int:
        """The number of entries of `numbers`."""
        return len(self.constants) + len(self.directions) * self.coordinates.size

    def numbers(self) -> Any:
        """The constants, then the directions, as one CVXPY vector (width,)."""
        parts = [cp.hstack(self.constants), *self.directions]
        return cp.hstack(parts) if len(parts) > 1 else parts[0]

    def sample_count(self, rows: Array) -> int:
        """The number of samples, n."""
        return len(rows) if self.index is None else len(self.index)

    def blocks(self, rows: Array) -> Iterator[tuple[slice, Array]]:
        """(where, data (n, p)) for blocks of samples, one after the other."""
        count, own = self.sample_count(rows), self.coordinates[0]
        step = max(1, BLOCK_ENTRIES // max(1, len(own)))
        for start in range(0, count, step):
            check_deadline()
            where = slice(start, min(start + step, count))
            data = rows[where] if self.index is None else rows[self.index[where]]
            yield where, data if len(own) == rows.shape[1] else data[:, own]

    def forms(self, numbers: Array, rows: Array) -> Array:
        """Each piece at each sample, (J, n), for given numbers (width,)."""
        count = len(self.constants)
        directions = numbers[count:].reshape(len(self.directions), -1)
        forms = np.empty((count, self.sample_count(rows)))
        for where, data in self.blocks(rows):
            products = [data @ direction for direction in directions]
            for j, (owner, scale) in enumerate(zip(self.owners.tolist(), self.scales.tolist())):
                np.multiply(products[owner], scale, out=forms[j, where])
        forms += numbers[:count, None]
        return forms

    def largest_sum(self, data: Array, weights: Array) -> Any:
        """sum_c w_c max_j a_j + s_j <b_j, data_c> as a CVXPY expression, for data (n, p)."""
        products = [data @ direction for direction in self.directions]
        pieces = zip(self.constants, self.scales, self.owners.tolist())
        return weights @ largest([a + s * products[owner] for a, s, owner in pieces])


@dataclass(frozen=True, eq=False)
class NumericMaxima:
    """Maxima at one decision."""

    constants: Array
    """(m, J)."""
    slopes: Array
    """(m, J, p)."""
    coordinates: Array
    """(m, p)."""
    moves: Array
    """Mask (p,) of the coordinates that the worst case moves."""

    def values(self, rows: Array) -> Array:
        """Each piece at each sample, (m, n, J)."""
        data = rows[:, self.coordinates].swapaxes(0, 1)
        return self.constants[:, None] + data @ self.slopes.swapaxes(1, 2)

    def mean_of_largest(self, rows: Array, shares: SampleShares) -> float:
        """The mean over samples of the sum of the maxima."""
        return float(shares.total(self.values(rows).max(axis=2).sum(axis=0)))

    def divided_by(self, unit: float) -> NumericMaxima:
        """The maxima in another unit of the loss."""
        return replace(self, constants=self.constants / unit, slopes=self.slopes / unit)

    @property
    def moving(self) -> Array:
        """The coordinates that the worst case moves, (m, q)."""
        return self.coordinates[:, self.moves]

    @property
    def moving_slopes(self) -> Array:
        """The slopes on the coordinates that move, (m, J, q)."""
        return self.slopes[:, :, self.moves]

    def full_slopes(self, dimension: int) -> Array:
        """The slopes of piece j of all maxima as one row, zero where nothing moves, (J, d)."""
        full = np.zeros((self.slopes.shape[1], dimension))
        full[:, self.moving.ravel()] = self.moving_slopes.swapaxes(0, 1).reshape(len(full), -1)
        return full

    def steepest_slope(self, cost: BoundCost) -> Array:
        """The slopes (d,) of the pieces with the largest dual norm, one from each maximum."""
        slopes = self.full_slopes(cost.dimension)
        if len(self.coordinates) == 1:
            return slopes[int(np.argmax(cost.dual_norms(slopes)))]
        return np.take_along_axis(slopes, np.argmax(np.abs(slopes), axis=0)[None], axis=0)[0]


@dataclass(frozen=True, eq=False)
class SampleMaxima:
    """A risk that sees each sample through single maxima of affine forms only."""

    rest: Any
    """Terms without samples, a CVXPY expression."""
    constraints: tuple[Any, ...]
    """Constraints on the counterpart's own variables."""
    parts: tuple[Maxima, ...]
    """Single maxima, m = 1."""

    @property
    def width(self) -> int:
        """The number of entries of all `numbers`."""
        return sum(part.width for part in self.parts)

    def program(self, rows: Array, cells: Sequence[tuple[Array, Array]]) -> Program | None:
        """The lower bound with cells for samples: (means (c, p), sizes (c,)) for each part."""
        total = self.rest
        for part, (means, sizes) in zip(self.parts, cells):
            total = total + part.largest_sum(means, sizes / len(rows))
        return Program.if_convex(total, self.constraints)

    def with_variables(self, twins: Mapping[int, Any]) -> SampleMaxima:
        """The same with other variables, given by the ids of those that they stand for."""
        if not twins:
            return self
        parts = [
            replace(
                part,
                constants=tuple(a.tree_copy(twins) for a in part.constants),
                directions=tuple(b.tree_copy(twins) for b in part.directions),
            )
            for part in self.parts
        ]
        constraints = tuple(c.tree_copy(twins) for c in self.constraints)
        return SampleMaxima(self.rest.tree_copy(twins), constraints, tuple(parts))

    @classmethod
    def if_affine(
        cls, rest: Any, constraints: Sequence[Any], maxima: Sequence[Maxima]
    ) -> SampleMaxima | None:
        """The risk in this form; None where it has no such form, or too many parts."""
        if sum(some.count for some in maxima if some.count > 1) > MOST_PARTS:
            return None
        written = Program.if_convex(rest, tuple(constraints))
        parts = tuple(part for some in maxima for part in some.one_by_one())
        good = written is not None and parts and all(part.is_affine for part in parts)
        return cls(rest, tuple(constraints), parts) if good else None
