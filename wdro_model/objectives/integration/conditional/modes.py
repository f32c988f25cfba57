"""Modes of the marginal density of block C, for all samples at once.

The log density h is looked at on a lattice over the whole support; ascents from its peaks end in
the modes. A loss that grows faster than the cost has one near the sample and another one at the
edge of the support, as far away as it may be: rays from the sample would miss it.

The loss on the lattice does not depend on the dual variable: for another one the density there
takes no evaluation. A peak of the lattice that no known mode explains is a place to climb from.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model.objectives.integration.inner_integral import Divergence
from wdro_model.objectives.integration.modes import Target, ascend, clip_moves
from wdro_model.objectives.integration.proposals import (
    Bounds,
    Component,
    component,
    reachable,
)
from wdro_model.solvers.objective import Array

if TYPE_CHECKING:
    from wdro_model.objectives.integration.conditional.by_blocks import Conditional


SIDE = np.array([0.25, 0.5, 0.75, 1.0])
"""Points of the lattice between a sample and a bound, as shares of the distance."""
FREE_SIDE = np.array([1.0, 2.0, 4.0, 8.0])
"""The same towards infinity, in deviations of the reference."""
WINDOW = 30.0
"""BlockModes so far below the highest one, in the log of the density, do not count."""
SAME = 0.5
"""Ends of ascents within so many deviations are the same mode."""
NEWTON = 4
"""Newton steps that follow a mode; most settle after two."""
SETTLED = 0.15
"""A mode is found when a step is below this many deviations."""
FAR = 2.0**14
"""An ascent that goes so many deviations far has no end."""
OUTWARDS = 2.0 ** np.arange(3, 17)
"""Distances, in deviations of the reference, at which a density must fall in the end."""
LARGEST = 1e15
"""A log density of this size has no digits left."""


class PricedTarget(Target):
    """A target that knows the transport costs of moves."""

    def costs(self, owners: Array, moves: Array) -> Array:
        """The transport costs (B,) of moves (B, r)."""
        raise NotImplementedError


@dataclass(frozen=True)
class BlockModes:
    """P modes, those of one sample next to each other, and the Gaussians around them."""

    owners: Array
    """(P,)"""
    moves: Array
    """(P, r)"""
    heights: Array
    """h there, (P,)."""
    costs: Array
    """The mean transport cost there, (P,): how h falls with the dual variable. NaN: not known."""
    center: Array
    """(P, r); beyond a bound where it stopped the ascent."""
    deviation: Array
    """(P, r), without curvature of the loss."""
    basis: Array
    """Directions (P, r, r) in moves / deviation."""
    scales: Array
    """Factors of the deviation along them, (P, r)."""

    def where(self, which: Array | slice) -> BlockModes:
        """Some of the modes."""
        return BlockModes(*(a[which] for a in self.arrays()))

    def arrays(self) -> list[Array]:
        """The fields, in order."""
        return [getattr(self, field.name) for field in fields(self)]

    def count(self) -> Array:
        """For each mode the number of modes of its sample."""
        _, position, counts = np.unique(self.owners, return_inverse=True, return_counts=True)
        return counts[position]

    def highest(self) -> BlockModes:
        """One of them for each sample."""
        return self.where(self._tops())

    def _tops(self) -> Array:
        """The highest mode of each sample, in the order of the samples."""
        best = np.lexsort((self.heights, self.owners))
        return best[np.append(np.diff(self.owners[best]) != 0, True)]

    def used(self, rate: float = 0.0) -> Array:
        """BlockModes that are not too far below the highest one of their sample.

        rate: they count too if they may come so near while the dual variable changes by this
            multiple of epsilon.
        """
        top = self._tops()
        mine = top[np.searchsorted(self.owners[top], self.owners)]
        reach = np.nan_to_num(np.abs(self.costs - self.costs[mine]))
        return self.heights >= self.heights[mine] - WINDOW - rate * reach


def joined(several: list[BlockModes]) -> BlockModes:
    """BlockModes one after the other, sorted by their samples, the highest first."""
    every = BlockModes(*(np.concatenate(arrays) for arrays in zip(*(m.arrays() for m in several))))
    return every.where(np.lexsort((-every.heights, every.owners)))


def lattice(bounds: Bounds | None, spread: Array, size: int, side: Array, free: Array) -> Array:
    """Moves (K, L, r) over the support of each sample, with no move in the middle.

    side, free: the points between a sample and a bound, and towards infinity.
    """
    ends = bounds or (np.full((size, len(spread)), s * np.inf) for s in (-1.0, 1.0))
    lower, upper = ends
    axes = [
        np.concatenate(
            [
                _towards(lower[:, i], -deviation, side, free)[:, ::-1],
                np.zeros((size, 1)),
                _towards(upper[:, i], deviation, side, free),
            ],
            axis=1,
        )
        for i, deviation in enumerate(np.sqrt(spread))
    ]
    cells = np.array(list(product(range(1 + 2 * len(side)), repeat=len(axes))))
    columns = [axis[:, cells[:, i]] for i, axis in enumerate(axes)]
    return np.stack(columns, axis=2) if columns else np.zeros((size, 1, 0))


def _towards(bound: Array, deviation: float, side: Array, free: Array) -> Array:
    """Points (K, len(side)) between 0 and a bound, which may be infinite."""
    finite = np.isfinite(bound)
    reach = np.where(finite, bound, 0.0)[:, None] * side
    return np.where(finite[:, None], reach, deviation * free)


def search(target: Target, samples: Array, spread: Array) -> BlockModes:
    """The modes of the samples (K,), by ascents from the peaks of a lattice."""
    size = len(samples)
    refuse_growth(target, samples, spread)
    points = lattice(target.bounds(samples), spread, size, SIDE, FREE_SIDE)
    count = points.shape[1]
    heights = target.values(np.repeat(samples, count), points.reshape(size * count, -1))
    peaks = lattice_peaks(heights.reshape(size, count), target.dimension)
    peaks[:, count // 2] = True
    rows, cells = np.nonzero(peaks)
    ends = distinct(climb(target, samples[rows], points[rows, cells]))
    if len(np.unique(ends.owners)) < size:
        raise Divergence
    return bent(target, ends)


def climbed_on(
    target: Target, samples: Array, spread: Array, earlier: BlockModes, rate: float
) -> BlockModes | None:
    """The modes that those of another density lead to; None where a sample has none left.

    rate: that of `used`; modes that do not count stay where they were until they do.
    """
    refuse_growth(target, samples, spread)
    heights, gradients = target(earlier.owners, earlier.moves)
    deviation = np.sqrt(target.variance(earlier.owners, earlier.moves))
    deviation = np.broadcast_to(deviation, earlier.moves.shape)
    earlier = replace(earlier, heights=heights, deviation=deviation)
    counted = earlier.used(rate)
    found = tracked(target, earlier.where(counted), gradients[counted])
    found = distinct(joined([bent(target, found), earlier.where(~counted)]))
    return found if len(np.unique(found.owners)) == len(samples) else None


def refuse_growth(target: Target, samples: Array, spread: Array) -> None:
    """Raise Divergence where h still rises far out, in a coordinate without a bound."""
    bounds = target.bounds(samples)
    for i, deviation in enumerate(np.sqrt(spread)):
        for side, sign in enumerate((-1.0, 1.0)):
            free = samples if bounds is None else samples[np.isinf(bounds[side][:, i])]
            if len(free) == 0:
                continue
            moves = np.zeros((len(free), len(OUTWARDS), len(spread)))
            moves[:, :, i] = sign * deviation * OUTWARDS
            owners = np.repeat(free, len(OUTWARDS))
            h = target.values(owners, moves.reshape(len(owners), -1)).reshape(moves.shape[:2])
            # Beyond some distance nothing of h is left but rounding: the last steps before tell.
            defined = np.cumprod(np.abs(np.nan_to_num(h, nan=np.inf)) < LARGEST, axis=1).sum(axis=1)
            rows = np.flatnonzero(defined > 1)
            if np.any(h[rows, defined[rows] - 1] > h[rows, defined[rows] - 2]):
                raise Divergence


def climb(target: Target, owners: Array, starts: Array) -> BlockModes:
    """The modes at the ends of ascents; raises Divergence if one has no end."""
    ends = ascend(target, owners, starts)
    r = starts.shape[1]
    basis, scales = np.tile(np.eye(r), (len(owners), 1, 1)), np.ones(starts.shape)
    return _modes(target, owners, ends, basis, scales)


def tracked(target: Target, modes: BlockModes, gradients: Array) -> BlockModes:
    """The modes after the density has changed, by Newton steps with the curvature that they had.

    Heights and gradients (P, r) are those of the new density at the old modes. What does not
    settle in a few steps, or would fall, goes on by ascent, and has its curvature measured anew.
    """
    moves, heights = modes.moves.copy(), modes.heights.copy()
    gradients, active = gradients.copy(), np.arange(len(moves))
    bounds, precision = target.bounds(modes.owners), _precision(modes)
    failed = ~np.isfinite(heights)
    for _ in range(NEWTON):
        here = None if bounds is None else (bounds[0][active], bounds[1][active])
        step = _projected(precision[active], gradients[active], moves[active], here)
        trial = clip_moves(moves[active] + step, here)
        size = np.linalg.norm((trial - moves[active]) / modes.deviation[active], axis=1)
        height, gradient = target(modes.owners[active], trial)
        worse = ~(height >= heights[active] - 1e-6 * (1 + np.abs(heights[active])))
        failed[active[worse]] = True
        good = active[~worse]
        moves[good], heights[good], gradients[good] = (
            trial[~worse],
            height[~worse],
            gradient[~worse],
        )
        active = active[~worse & (size > SETTLED)]
        if len(active) == 0:
            break
    failed[active] = True
    again = np.flatnonzero(failed)
    if len(again):
        moves[again], heights[again], gradients[again] = ascend(
            target, modes.owners[again], moves[again]
        )
    found = _modes(target, modes.owners, (moves, heights, gradients), modes.basis, modes.scales)
    if len(again):
        basis, scales = found.basis.copy(), found.scales.copy()
        basis[again], scales[again] = curvature(target, found.where(again))
        found = replace(found, basis=basis, scales=scales)
    return found


def _modes(
    target: Target, owners: Array, ends: tuple[Array, Array, Array], basis: Array, scales: Array
) -> BlockModes:
    """BlockModes from moves, heights and gradients.

    In the interior the center is the mode; where a bound stops the ascent, the center lies beyond
    the bound, at the top of the parabola with slope grad h and curvature -1/v.
    """
    moves, heights, gradients = ends
    bounds = target.bounds(owners)
    variance = np.array(np.broadcast_to(target.variance(owners, moves), moves.shape))
    deviation = np.sqrt(variance)
    far = np.abs(moves) > FAR * deviation
    if bounds is not None:
        far &= np.isinf(np.where(moves > 0, bounds[1], bounds[0]))
    if np.any(np.isposinf(heights)) or far.any():
        raise Divergence
    center = moves + variance * gradients
    settled = np.abs(deviation * gradients) < 0.5
    if bounds is not None:
        settled &= ~reachable(center, deviation, bounds)
    center, costs = np.where(settled, moves, center), np.full(len(owners), np.nan)
    return BlockModes(owners, moves, heights, costs, center, deviation, basis, scales)


def _precision(modes: BlockModes) -> Array:
    """-Hess h as the Gaussians have it, (P, r, r)."""
    inner = np.einsum("pji,pj,pjk->pik", modes.basis, modes.scales**-2.0, modes.basis)
    return inner / (modes.deviation[:, :, None] * modes.deviation[:, None, :])


def _projected(precision: Array, gradients: Array, moves: Array, bounds: Bounds | None) -> Array:
    """Newton steps in the coordinates that no bound holds, (P, r)."""
    if bounds is not None:
        held = ((moves <= bounds[0]) & (gradients < 0)) | ((moves >= bounds[1]) & (gradients > 0))
        gradients = np.where(held, 0.0, gradients)
        apart = held[:, :, None] | held[:, None, :]
        precision = np.where(apart, np.eye(moves.shape[1]), precision)
    return np.linalg.solve(precision, gradients[:, :, None])[:, :, 0]


def distinct(modes: BlockModes) -> BlockModes:
    """One of each: a mode close to a higher one of its sample is left out."""
    modes = joined([modes.where(np.isfinite(modes.heights))])
    index, new = np.arange(len(modes.owners)), np.ones(len(modes.owners), dtype=bool)
    for shift in range(1, int(modes.count().max(initial=1))):
        higher = modes.where(np.maximum(index - shift, 0))
        same = (index >= shift) & (higher.owners == modes.owners)
        new &= ~(same & _close(modes, higher))
    return modes.where(new)


def unknown(modes: BlockModes, known: BlockModes) -> BlockModes:
    """The modes that are not close to one of those known of their sample (which has some)."""
    first, count = np.searchsorted(known.owners, modes.owners), known.count()
    new = np.isfinite(modes.heights)
    for shift in range(int(count.max(initial=1))):
        there = shift < count[first]
        other = known.where(np.where(there, first + shift, first))
        new &= ~(there & _close(modes, other))
    return modes.where(new)


def _close(modes: BlockModes, others: BlockModes) -> Array:
    """Which pairs are within a fraction of a deviation of each other?"""
    return np.linalg.norm((modes.moves - others.moves) / modes.deviation, axis=1) < SAME


def bent(target: Target, modes: BlockModes) -> BlockModes:
    """The modes with the curvature of h there."""
    return replace(modes, **dict(zip(("basis", "scales"), curvature(target, modes))))


def lattice_peaks(heights: Array, dimension: int) -> Array:
    """Points (K, L) of the lattice that are at least as high as their neighbours."""
    size, count = heights.shape
    if dimension == 0:
        return np.isfinite(heights)
    side = round(count ** (1 / dimension))
    cube = heights.reshape(size, *[side] * dimension)
    padded = np.pad(cube, [(0, 0)] + [(1, 1)] * dimension, constant_values=-np.inf)
    peaks = np.isfinite(cube)
    for shift in product((0, 1, 2), repeat=dimension):
        peaks &= cube >= padded[(slice(None), *(slice(s, s + side) for s in shift))]
    return peaks.reshape(size, count)


def priced(target: PricedTarget, modes: BlockModes) -> BlockModes:
    """The modes with their transport costs."""
    return replace(modes, costs=target.costs(modes.owners, modes.moves))


def gaussians(modes: BlockModes, bounds: Bounds | None, wider: float) -> Component:
    """The Gaussians of the modes, restricted to the bounds, P rows."""
    return component(modes.center, wider * modes.deviation, bounds, modes.basis, modes.scales)


def curvature(target: Target, modes: BlockModes) -> tuple[Array, Array]:
    """Eigenvectors of -diag(s) Hess h diag(s) and the factors of the deviations along them."""
    size, r = modes.moves.shape
    if r == 0:
        return modes.basis, modes.scales
    bounds = target.bounds(modes.owners)
    steps = modes.deviation[:, None] * np.eye(r)
    sides = None if bounds is None else (bounds[0][:, None], bounds[1][:, None])
    ahead, back = (clip_moves(modes.moves[:, None] + s * steps, sides) for s in (1.0, -1.0))
    both = np.concatenate([ahead, back]).reshape(-1, r)
    _, slopes = target(np.tile(np.repeat(modes.owners, r), 2), both)
    up, down = slopes.reshape(2, size, r, r)
    apart = np.einsum("pir,pr->pi", np.abs(ahead - back), 1.0 / modes.deviation)
    hessian = (down - up) * modes.deviation[:, None] / np.maximum(apart, 1e-300)[:, :, None]
    hessian = np.where((apart > 0)[:, :, None], hessian, np.eye(r))
    precision, vectors = np.linalg.eigh(0.5 * (hessian + np.swapaxes(hessian, 1, 2)))
    # Where h is flat or convex the precision is not that of a Gaussian: the deviation is bounded.
    return np.swapaxes(vectors, 1, 2), np.clip(precision, 0.08, 400.0) ** -0.5


# ------------------------------
# A lattice over the support of each sample, on which modes show that are not known


LOOKED = 0.005
"""The lattice is looked at again when the dual variable has changed by this share."""
SLACK = 0.5
"""Heights of known modes are exact to this, where the dual has changed since they were taken."""
TRIED = 0.02
"""A peak from which a climb led to nothing new is tried again after such a change."""


class Lookout:
    """The lattices of some samples at one decision: the loss there, for all dual variables."""

    def __init__(self, rule: Conditional, x: Array, samples: Array) -> None:
        self._rule, self._x, self._samples = rule, np.array(x), samples
        frame, size = rule.frame, len(samples)
        some = slice(1, None, 2) if rule.is_coarse else slice(None)
        sides = SIDE[some], FREE_SIDE[some]
        self._moves = lattice(frame.bounds(samples), frame.spread, size, *sides)
        count = self._moves.shape[1]
        self._parts = rule.blocks(x, size, count)
        self._values, self._slopes = np.empty((size, count)), []
        for part in self._parts:
            loss = rule.looked(x, samples[part], self._moves[part], lenient=True)
            self._values[part] = loss.values
            self._slopes.append(loss.slopes)
        self._looked = -1.0
        """The dual variable at which the lattice was looked at last."""
        self._tried = np.full((size, count), np.nan)
        """The dual variable at which a climb began there last."""

    def is_near(self, x: Array, samples: Array, apart: float) -> bool:
        """Is it that of these samples, and of a decision that differs by this share at most?"""
        moved = float(np.linalg.norm(x - self._x))
        same = np.array_equal(self._samples, samples)
        return same and moved <= apart * float(np.linalg.norm(x))

    @staticmethod
    def fits(rule: Conditional, samples: int, entries: int) -> bool:
        """Is there anything to see, and can the slopes be kept in so many entries?"""
        count = (1 + 2 * len(SIDE)) ** rule.frame.dimension
        return count > 1 and samples * count * max(1, rule.block.frame.dimension) <= entries

    def unexplained(self, dual: float, known: BlockModes) -> tuple[Array, Array]:
        """Samples (P,) and moves (P, r) of peaks that no known mode explains.

        A mode explains a peak beside it that is no higher.
        known: with their heights at this dual.
        """
        none = self._samples[:0], self._moves[:0, 0]
        if abs(dual - self._looked) <= LOOKED * self._looked:
            return none
        self._looked = dual
        heights = self._heights(dual)
        peaks = lattice_peaks(heights, self._rule.frame.dimension)
        peaks &= ~(heights <= self._beside(known) + SLACK)
        peaks &= ~(np.abs(dual - self._tried) <= TRIED * self._tried)
        rows, cells = np.nonzero(peaks)
        if len(rows) == 0:
            return none
        self._tried[rows, cells] = dual
        return self._samples[rows], self._moves[rows, cells]

    def _heights(self, dual: float) -> Array:
        """h on the lattice, (K, L)."""
        rule = self._rule
        assert rule.frame.weights is not None
        precision = 1 / rule.frame.spread + 2 * dual * rule.frame.weights / rule.epsilon
        h = self._values / rule.epsilon - 0.5 * (self._moves**2 @ precision)
        for part, slopes in zip(self._parts, self._slopes):
            h[part] += rule.block.integrate(slopes, dual).log_value
        return h

    def _beside(self, known: BlockModes) -> Array:
        """The height of the highest known mode in or next to each cell of the lattice, (K, L)."""
        size, count, r = self._moves.shape
        side = round(count ** (1 / r))
        cube = self._moves.reshape(size, *[side] * r, r)
        known = known.where(np.isin(known.owners, self._samples))
        rows = np.searchsorted(self._samples, known.owners)
        cells = []
        for i in range(r):
            first: list[Any] = [slice(None), *[0] * r, i]
            first[1 + i] = slice(None)
            along = cube[tuple(first)]
            cells.append(np.abs(along[rows] - known.moves[:, i : i + 1]).argmin(axis=1))
        beside = np.full((size, *[side] * r), -np.inf)
        for shift in product((-1, 0, 1), repeat=r):
            near = (np.clip(cell + s, 0, side - 1) for cell, s in zip(cells, shift))
            np.maximum.at(beside, (rows, *near), known.heights)
        return beside.reshape(size, count)
