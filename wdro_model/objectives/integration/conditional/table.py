"""The loss over block C as Chebyshev polynomials, the same ones for all samples.

Most nodes have none. That is known of the cells between the points of a table as soon as the least
and the largest slope in each cell are: no node asks for slopes of its own unless its cell may be
concerned.

With zeta = (zeta_A, s) and f affine in zeta_A given s,

    f(x, (zeta_A, s)) = a(x, s) + <B(x, s), zeta_A>:

a and B do not depend on the sample. Where they are smooth in the one or two coordinates of s, a few
hundred evaluations at Chebyshev points s_j tell them everywhere, and all that the integrals of all
samples need of the loss at their nodes are values of polynomials in s,

    f_k(s) = a + <B, xi_k>   and   Q(s) = sum_i sigma_i^2 B_i^2   (by levels of w_i sigma_i^2),

whatever the number of coordinates in block A. Sums of gradients in x over the nodes are the
interpolation the other way round: with weights W_kj = sum_s w_ks L_j(s), L_j the polynomial that is
1 at s_j and 0 at the other points,

    sum_ks w_ks grad f(x, (xi_k + v B(s)/eps, s))
        = sum_j (W_j - 1) grad f(x, (m, s_j)) + grad f(x, (m + D_j + W_j v B(s_j)/eps, s_j)),

m being some point of block A, W_j = sum_k W_kj and D_j = sum_k W_kj (xi_k - m).

Polynomials are taken where their last coefficients, and their values at some of the samples, say
that the exponents of the integrals are right to `RESOLVED`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model.objectives.integration.conditional.integral import (
    BlockIntegral,
    Pairs,
    Sight,
    Slopes,
)
from wdro_model.objectives.integration.conditional.modes import FREE_SIDE
from wdro_model.objectives.integration.frame import Frame
from wdro_model.solvers.objective import Array

if TYPE_CHECKING:
    from wdro_model.objectives.integration.conditional.by_blocks import Conditional


@cache
def extremal_points(size: int) -> Array:
    """Where the polynomial of degree size - 1 is 1 or -1, in order; 0 if there is but one point."""
    return -np.cos(np.pi * np.arange(size) / (size - 1)) if size > 1 else np.zeros(1)


@cache
def transform(size: int) -> Array:
    """From values at these points to coefficients, (size, size)."""
    if size == 1:
        return np.ones((1, 1))
    ends = np.where(np.arange(size) % (size - 1) == 0, 0.5, 1.0)
    values = chebyshev(extremal_points(size), size)
    return 2.0 / (size - 1) * ends[:, None] * values * ends


def chebyshev(u: Array, size: int) -> Array:
    """T_0, ..., T_(size - 1) at u, (size, *u.shape)."""
    found = np.empty((size, *u.shape))
    found[0] = 1.0
    if size > 1:
        found[1] = u
    twice = 2.0 * u
    for i in range(2, size):
        np.multiply(twice, found[i - 1], out=found[i])
        found[i] -= found[i - 2]
    return found


def derivatives(u: Array, values: Array) -> Array:
    """Those of the polynomials, from their values at u, (size, *u.shape)."""
    found = np.zeros(values.shape)
    if len(found) > 1:
        found[1] = 1.0
    for i in range(2, len(found)):
        found[i] = 2.0 * (values[i - 1] + u * found[i - 1]) - found[i - 2]
    return found


# ------------------------------
# Which nodes have a bound of block A in sight, by the slopes of the loss in the cells of a


WIDER = 0.25
"""Slopes over a box may go beyond those at its corners and in the middle by this share of their
range."""


class SlopeRanges:
    """The slopes of the loss over [-1, 1]^2.

    Parameters
    ----------
    frame: that of block A.
    slopes: B at the points of a table, (n0, n1, r).
    interpolated: B (..., r) at places (..., 2).
    """

    def __init__(self, frame: Frame, slopes: Array, interpolated: Callable[[Array], Array]) -> None:
        self._frame, self._interpolated = frame, interpolated
        self._ends = [extremal_points(size) for size in slopes.shape[:2]]
        corners = [slopes]
        for axis, size in enumerate(slopes.shape[:2]):
            if size > 1:
                sides = [np.arange(size - 1), np.arange(1, size)]
                corners = [np.take(c, side, axis=axis) for side in sides for c in corners]
        self._range = widened(np.stack(corners))
        """The least and the largest slopes in the cells, (c0, c1, r)."""
        origins = frame.origins
        self._tightest = (
            np.minimum(frame.lower - origins.min(axis=0), 0.0),
            np.maximum(frame.upper - origins.max(axis=0), 0.0),
        )
        """Bounds of moves that no sample goes beyond, (r,)."""
        self._last: tuple[float, Array] | None = None

    def near(self, owners: Array, u: Array, sight: Sight) -> Pairs:
        """Samples and coordinates with a bound in sight, at one of the nodes u (K, S, 2)."""
        low, high = u.min(axis=1), u.max(axis=1)
        some = self._concerned(low, high, sight)
        if len(some) == 0:
            return some, some
        bounds = self._frame.bounds(owners[some])
        assert bounds is not None
        slopes = self._over_boxes(low[some], high[some])
        samples, coordinates = np.nonzero(sight.lacks_room(*slopes, *bounds))
        return some[samples], coordinates

    def _concerned(self, low: Array, high: Array, sight: Sight) -> Array:
        """Boxes [low, high] (K, 2) that meet a cell from which some sample sees a bound."""
        before = self._cells_before(sight)
        (a0, b0), (a1, b1) = (
            met(self._ends[i], low[:, i], high[:, i], before.shape[i] - 1) for i in (0, 1)
        )
        return np.flatnonzero(before[b0, b1] - before[a0, b1] - before[b0, a1] + before[a0, a1])

    def _cells_before(self, sight: Sight) -> Array:
        """How many cells below and to the left of each point see a bound, (c0 + 1, c1 + 1)."""
        if self._last is None or self._last[0] != sight.dual:
            seen = sight.lacks_room(*self._range, *self._tightest).any(axis=-1)
            found = np.zeros((seen.shape[0] + 1, seen.shape[1] + 1), dtype=int)
            found[1:, 1:] = seen.cumsum(axis=0).cumsum(axis=1)
            self._last = sight.dual, found
        return self._last[1]

    def _over_boxes(self, low: Array, high: Array) -> tuple[Array, Array]:
        """The least and the largest slopes in boxes [low, high] (K, 2), about, (K, r)."""
        middle = 0.5 * (low + high)
        sides = ((low, low), (low, high), (high, low), (high, high), (middle, middle))
        corners = np.stack([np.stack([a[:, 0], b[:, 1]], axis=1) for a, b in sides])
        return widened(self._interpolated(corners))


def met(ends: Array, low: Array, high: Array, cells: int) -> tuple[Array, Array]:
    """The first cell between ends that each interval meets, and the first one beyond."""
    first = np.clip(np.searchsorted(ends, low, "right") - 1, 0, cells - 1)
    return first, np.clip(np.searchsorted(ends, high, "left"), first + 1, cells)


def widened(values: Array) -> tuple[Array, Array]:
    """The range of values along the first axis, and somewhat more."""
    least, most = values.min(axis=0), values.max(axis=0)
    slack = WIDER * (most - least)
    return least - slack, most + slack


# ------------------------------
# The loss over the block C as polynomials, the same ones for all samples


Sizes = tuple[int, int]
"""Points, or coefficients, along both coordinates; one along a coordinate that there is not."""

SIZES = (1, 5, 9, 17, 25, 33, 49, 65)
"""Points along a coordinate."""
RESOLVED = 1e-7
"""Errors of the exponents that are allowed."""
TRIMMED = 1e-4
"""Coefficients below this share of it are left out."""
ROUNDING = 1e-15
"""The same for slopes, as a share of the largest one."""
LAST = 2
"""Coefficients along a coordinate that have to be negligible."""
COMPARED = 16
"""Samples at which polynomials are compared with the loss."""


@dataclass(frozen=True)
class Region:
    """The box of scenarios of block C over which polynomials are taken."""

    low: Array
    """(r,)"""
    high: Array
    is_support: bool

    @classmethod
    def of(cls, frame: Frame) -> Region:
        """The support; where it has no end, what a lattice around the samples looks at."""
        reach = FREE_SIDE[-1] * np.sqrt(frame.spread)
        ends = np.isfinite(frame.lower), np.isfinite(frame.upper)
        low = np.where(ends[0], frame.lower, frame.origins.min(axis=0) - reach)
        high = np.where(ends[1], frame.upper, frame.origins.max(axis=0) + reach)
        return cls(low, high, bool(np.all(ends)))

    def points(self, sizes: Sizes) -> Array:
        """s_j, (J, r), those along the second coordinate side by side."""
        mesh = np.meshgrid(*map(extremal_points, sizes), indexing="ij")
        u = np.stack(mesh, axis=-1).reshape(-1, 2)[:, -len(self.low) :]
        return 0.5 * (self.low + self.high) + self.half * u

    @property
    def half(self) -> Array:
        """Half of its width, (r,)."""
        return 0.5 * (self.high - self.low)

    def relative(self, places: Array) -> Array:
        """Places (..., r) in [-1, 1]^2; with one coordinate, the first is 0."""
        u = (places - 0.5 * (self.low + self.high)) / self.half
        return u if len(self.low) == 2 else np.concatenate([np.zeros(u.shape), u], axis=-1)


@dataclass(frozen=True)
class SharedParts:
    """What tables of all decisions share."""

    region: Region
    affine: Array
    """The columns of block A in the samples, (d_A,)."""
    mean: Array
    """m, (d_A,): that of the samples."""
    shifts: Array
    """xi_k - m, (N, d_A)."""

    @classmethod
    def of(cls, rule: Conditional) -> SharedParts:
        affine = columns_of(rule, rule.affine)
        samples = rule.rows[:, affine]
        mean = samples.mean(axis=0)
        return cls(Region.of(rule.frame), affine, mean, samples - mean)


class BlockTable:
    """f and its slopes over the block C at one decision x, from sizes[0] x sizes[1] points."""

    def __init__(self, rule: Conditional, shared: SharedParts, x: Array, sizes: Sizes) -> None:
        self.rule, self.region, self._shared, self._sizes = rule, shared.region, shared, sizes
        rows, points = rule.rows, shared.region.points(sizes)
        self._scenarios = np.tile(rows[0], (len(points), 1))
        """(m, s_j), (J, d)."""
        self._scenarios[:, shared.affine] = shared.mean
        self._scenarios[:, rule.frame.columns] = points
        self._compared = np.arange(len(rows))[:: -(-len(rows) // COMPARED)]
        every = np.concatenate([self._scenarios, rows[self._compared]])
        values, pullback = rule.loss(x, every)
        slopes = pullback.in_data(np.ones(len(every)), rule.affine)
        count = len(points)
        steep = rule.in_block.of(slopes)
        self._truth = values[count:].copy(), self._squared(steep[count:])
        """f_k and Q at the samples that are compared."""
        self._slopes = steep[:count].copy()
        """B at the points, (J, r_A)."""
        own = values[:count] + shared.shifts @ slopes[:count].T
        self._own = self._coefficients(own)
        """Those of f_k, (N, n0, n1)."""
        self._squares = self._coefficients(self._squared(self._slopes).T)
        """Those of Q, (levels, n0, n1)."""
        self.kept = sizes
        """How many coefficients along both coordinates count."""

    # -------------------------------------------------------------- coefficients
    def _squared(self, slopes: Array) -> Array:
        """Q of slopes (B, r_A), (B, levels)."""
        assert self.rule.block.fold is not None
        return slopes**2 @ self.rule.block.fold

    def _coefficients(self, values: Array) -> Array:
        """Of polynomials with values (..., J) at the points, (..., n0, n1)."""
        shaped = values.reshape(*values.shape[:-1], *self._sizes)
        return transform(self._sizes[0]) @ shaped @ transform(self._sizes[1]).T

    def _exponents(self) -> Iterator[tuple[Array, float]]:
        """The coefficients of f_k and Q, and what makes exponents of them (at a dual of 0)."""
        epsilon = self.rule.epsilon
        yield self._own, 1.0 / epsilon
        yield self._squares, 0.5 / epsilon**2

    def sufficient_sizes(self) -> Sizes | None:
        """Its sizes if they resolve the loss, else the next ones; None if none will."""
        sizes = list(self._sizes)
        for part, factor in self._exponents():
            largest = factor * np.abs(part).max()
            if not np.finfo(float).eps * largest <= RESOLVED:
                return None
            for axis, size in enumerate(self._sizes):
                last = np.moveaxis(part, 1 + axis, 0)[-LAST:]
                if size > 1 and factor * np.abs(last).max() > RESOLVED:
                    sizes[axis] = size + 1
        if max(sizes) > SIZES[-1]:
            return None
        first, second = (next(size for size in SIZES if size >= asked) for asked in sizes)
        return first, second

    def is_true(self) -> bool:
        """Do the polynomials have the values of the loss at some samples?"""
        still = np.zeros((len(self._compared), 1, self.rule.frame.dimension))
        there = TableLoss(self, self._compared, still)
        found = there.values[:, 0], there.slopes.squares[:, 0]
        factors = (factor for _, factor in self._exponents())
        apart = (f * np.abs(a - b).max() for f, a, b in zip(factors, found, self._truth))
        return all(error <= 10.0 * RESOLVED for error in apart)

    def trim(self) -> None:
        """Leave out the last coefficients, where they are negligible."""
        needs = [needed(factor * part, TRIMMED * RESOLVED) for part, factor in self._exponents()]
        n0, n1 = self.kept = max(n for n, _ in needs), max(n for _, n in needs)
        self._own = np.ascontiguousarray(self._own[:, :n0, :n1])
        self._squares = np.ascontiguousarray(self._squares[:, :n0, :n1])

    @cached_property
    def _steep(self) -> Array:
        """Coefficients of B, (r_A, n0, n1)."""
        found = self._coefficients(self._slopes.T)[:, : self.kept[0], : self.kept[1]]
        n0, n1 = needed(found, ROUNDING * float(np.abs(found).max(initial=0.0)))
        return np.ascontiguousarray(found[:, :n0, :n1])

    # -------------------------------------------------------------- at nodes
    def covers(self, owners: Array, moves: Array) -> bool:
        """Do nodes lie where the polynomials are taken?"""
        if self.region.is_support:
            return True
        places = self._places(owners, moves)
        return bool(np.all((places >= self.region.low) & (places <= self.region.high)))

    def _places(self, owners: Array, moves: Array) -> Array:
        """The scenarios of block C at moves (K, S, r) of the samples (K,)."""
        frame = self.rule.frame
        places = frame.origins[owners][:, None] + moves
        return np.clip(places, frame.lower, frame.upper) if frame.bounded else places

    def relative(self, owners: Array, moves: Array) -> Array:
        """The same in [-1, 1]^2, (K, S, 2)."""
        return self.region.relative(self._places(owners, moves))

    def basis(self, places: Array) -> tuple[Array, Array]:
        """The polynomials in both coordinates, (n0, K, S) and (n1, K, S)."""
        return chebyshev(places[..., 0], self.kept[0]), chebyshev(places[..., 1], self.kept[1])

    def slopes(self, owners: Array, places: Array, squares: Array) -> Slopes:
        """Those at places (K, S, 2) with known Q (K, S, levels)."""

        def entries(samples: Array, coordinates: Array) -> Array:
            return self.entries(*self.basis(places[samples]), coordinates)

        return Slopes(owners, squares, partial(self.ranges.near, owners, places), entries)

    def own(self, owners: Array, first: Array, second: Array) -> Array:
        """f_k (K, S), from polynomials (n0, K, S) and (n1, K, S) in the coordinates."""
        along = self._own[owners] @ second.transpose(1, 0, 2)
        return np.einsum("kas,aks->ks", along, first)

    def squares(self, first: Array, second: Array) -> Array:
        """Q, (K, S, levels)."""
        along = np.tensordot(self._squares, second, axes=1)
        return np.einsum("laks,aks->ksl", along, first)

    def entries(self, first: Array, second: Array, coordinates: Array) -> Array:
        """B in one coordinate (P,) each for polynomials (n0, P, S) and (n1, P, S), (P, S)."""
        n0, n1 = self._steep.shape[1:]
        along = self._steep[coordinates] @ second[:n1].transpose(1, 0, 2)
        return np.einsum("pas,aps->ps", along, first[:n0])

    def _slopes_at(self, u: Array) -> Array:
        """B at places in [-1, 1]^2, (..., r_A) for (..., 2)."""
        n0, n1 = self._steep.shape[1:]
        both = chebyshev(u[..., 0], n0)[:, None] * chebyshev(u[..., 1], n1)
        return np.tensordot(both, self._steep, axes=((0, 1), (1, 2)))

    @cached_property
    def ranges(self) -> SlopeRanges:
        """Of the slopes."""
        slopes = self._slopes.reshape(*self._sizes, -1)
        return SlopeRanges(self.rule.block.frame, slopes, self._slopes_at)

    # -------------------------------------------------------------- the other way round
    def _at_points(self, moments: Array) -> Array:
        """Weights (..., J) of the points from sums of weighted polynomials, (..., n0, n1)."""
        left, right = (transform(n)[:k] for n, k in zip(self._sizes, self.kept))
        return (left.T @ moments @ right).reshape(*moments.shape[:-2], -1)

    def gradient(
        self,
        x: Array,
        inner: BlockIntegral,
        owners: Array,
        moments: Array,
        beyond: tuple[Array, Array] | None,
    ) -> Array:
        """The sum of gradients at a decision x.

        moments: sums of weighted polynomials over the nodes of K entries, (K, n0, n1).
        beyond: coordinates (P,) near a bound, and sums (P, n0, n1) of polynomials weighted by how
            far their tilted means are from those on R^d.
        """
        rule, count = self.rule, len(self._scenarios)
        total = self._at_points(moments.sum(axis=0))
        shifts = self._shared.shifts[owners].T @ moments.reshape(len(moments), -1)
        moved = total[:, None] * (self._slopes * (inner.variance / rule.epsilon))
        if beyond is not None:
            coordinates, far = beyond
            sums = np.zeros((moved.shape[1], *self.kept))
            np.add.at(sums, coordinates, far)
            moved += self._at_points(sums).T
        rows = np.concatenate([self._scenarios, self._scenarios])
        rows[count:, self._shared.affine] += self._at_points(shifts.reshape(-1, *self.kept)).T
        rows[count:, rule.block.frame.columns] += moved
        return rule.loss(x, rows)[1](np.concatenate([total - 1.0, np.ones(count)]))


class TableLoss:
    """The loss at nodes, read off a table; keep: are polynomials kept, or computed when asked for?

    The other parameters are those of `LossAtNodes`.
    """

    def __init__(
        self, table: BlockTable, owners: Array, moves: Array, *, keep: bool = True
    ) -> None:
        self._table, self._owners = table, owners
        self.places = table.relative(owners, moves)
        """The nodes in [-1, 1]^2, (K, S, 2)."""
        basis = table.basis(self.places)
        self.values = table.own(owners, *basis)
        self._kept = basis if keep else None
        self.slopes = table.slopes(owners, self.places, table.squares(*basis))

    def _basis(self) -> tuple[Array, Array]:
        return self._table.basis(self.places) if self._kept is None else self._kept

    def outward(self, inner: BlockIntegral) -> Array:
        table, near, flat = self._table, inner.near, self._basis()
        rising = [derivatives(self.places[..., i], flat[i]) for i in (0, 1)]
        found = []
        for first, second in ((rising[0], flat[1]), (flat[0], rising[1])):
            slope = table.own(self._owners, first, second)
            slope += 0.5 / table.rule.epsilon * table.squares(first, second) @ inner.shrinkage
            if near is not None:
                some = near.samples
                steep = table.entries(first[:, some], second[:, some], near.coordinates)
                np.add.at(slope, some, near.beyond * steep)
            found.append(slope)
        half = table.region.half
        return np.stack(found[-len(half) :], axis=-1) / half

    def gradient(self, x: Array, inner: BlockIntegral, weights: Array) -> Array:
        (first, second), near, beyond = self._basis(), inner.near, None
        if near is not None:
            some = near.samples
            far = moments_of(first[:, some], second[:, some], weights[some] * near.beyond)
            beyond = near.coordinates, far
        moments = moments_of(first, second, weights)
        return self._table.gradient(x, inner, self._owners, moments, beyond)


def moments_of(first: Array, second: Array, weights: Array) -> Array:
    """Sums over nodes of products of polynomials, (n0, P, S) and (n1, P, S), weighted by (P, S).

    (P, n0, n1)
    """
    return (first * weights).transpose(1, 0, 2) @ second.transpose(1, 2, 0)


def columns_of(rule: Conditional, parameters: tuple[Any, ...]) -> Array:
    """The columns of some parameters in the samples, side by side."""
    every = np.arange(rule.joint.dimension)
    return np.concatenate([every[rule.joint.slices[p]] for p in parameters])


def needed(coefficients: Array, allowed: float) -> Sizes:
    """How many coefficients (..., n0, n1) along both coordinates are larger than allowed."""
    large = (np.abs(coefficients) > allowed).reshape(-1, *coefficients.shape[-2:]).any(axis=0)
    first, second = (np.flatnonzero(large.any(axis=axis)) for axis in (1, 0))
    return 1 + int(first.max(initial=0)), 1 + int(second.max(initial=0))


# ------------------------------
# Tables of the loss over the block C, one for each decision, where they do


MOST_ENTRIES = 2**24
"""Coefficients of a table (128 MiB), at most."""
TRIES = 3
"""Decisions after which no table is tried any more, if none was found."""
REMEMBERED = 2
"""Decisions whose tables are kept."""


class Tables:
    """Polynomials of the loss at the decisions looked at last; none where they would not do."""

    def __init__(self, rule: Conditional) -> None:
        self._rule = rule
        self._known: list[tuple[Array, BlockTable | None]] = []
        self._sizes: Sizes | None = None
        """Those that the last table needed."""
        self._tries = TRIES
        """How many decisions may still be without a table before there was one."""

    @cached_property
    def _fits(self) -> bool:
        """Is the loss one smooth function of one or two coordinates for all samples?"""
        rule, frame = self._rule, self._rule.frame
        if not (rule.smooth and frame.dimension in (1, 2)) or rule.block.fold is None:
            return False
        still = np.setdiff1d(columns_of(rule, rule.others), frame.moving)
        alike = np.all(rule.rows[:, still] == rule.rows[:1, still])
        return bool(alike)

    @cached_property
    def _shared(self) -> SharedParts:
        return SharedParts.of(self._rule)

    def at(self, x: Array) -> BlockTable | None:
        """The table of a decision; None where the loss is to be evaluated at the nodes."""
        if not self._fits or (self._sizes is None and self._tries == 0):
            return None
        for i, (known, table) in enumerate(self._known):
            if np.array_equal(known, x):
                self._known.insert(0, self._known.pop(i))
                return table
        table = self._made(x)
        self._tries -= 1
        self._known = [(np.array(x), table), *self._known[: REMEMBERED - 1]]
        return table

    def _made(self, x: Array) -> BlockTable | None:
        """The smallest table that resolves the loss, from the size of the last one on."""
        rule = self._rule
        sizes = self._sizes or (SIZES[rule.frame.dimension - 1], SIZES[2])
        while len(rule.rows) * sizes[0] * sizes[1] <= MOST_ENTRIES:
            try:
                with np.errstate(all="ignore"):
                    table = BlockTable(rule, self._shared, x, sizes)
            except (FloatingPointError, ValueError):  # it reaches beyond the domain of the loss
                return None
            larger = table.sufficient_sizes()
            if larger == sizes:
                self._sizes = sizes
                table.trim()
                return table if table.is_true() else None
            if larger is None:
                return None
            sizes = larger
        return None
