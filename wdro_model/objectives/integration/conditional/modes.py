"""Modes of the marginal density of block C, for all samples at once.

The log density h is evaluated on a lattice over the whole support; ascents from its peaks end in
the modes. A loss that grows faster than the cost has one near the sample and another one at the
edge of the support, as far away as it may be: rays from the sample would miss it.

The loss on the lattice does not depend on the dual variable: for another one the density there
takes no evaluation. A peak of the lattice that no known mode explains is a place to climb from.
Decision and dual move little from one evaluation to the next: Newton steps from the last modes find
the new ones, with the curvature that they had (`track`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

import numpy as np

from wdro_model.objectives.integration.conditional.loss import LossAtNodes, Marginal, SplitLoss
from wdro_model.objectives.integration.inner_integral import Divergence
from wdro_model.objectives.integration.modes import ascend, clip_moves
from wdro_model.objectives.integration.proposals import (
    Bounds,
    Component,
    component,
    reachable,
)
from wdro_model.solvers.objective import Array

SIDE = np.array([0.25, 0.5, 0.75, 1.0])
"""Points of the lattice between a sample and a bound, as shares of the distance."""
FREE_SIDE = np.array([1.0, 2.0, 4.0, 8.0])
"""The same towards infinity, in deviations of the reference."""
OUTWARDS = 2.0 ** np.arange(3, 17)
"""Distances, in deviations of the reference, at which a density must fall in the end."""
KEPT_SLOPES = 2**26
"""Slopes at nodes that are kept (512 MiB); where there are more they are evaluated again."""


@dataclass(frozen=True)
class Tolerances:
    """Limits of search and tracking; lengths in deviations of the density without the loss,
    heights in the log of the density."""

    window: float = 30.0
    """Modes so far below the highest one of their sample get no nodes."""
    counting: float = 12.0
    """Modes less far below the highest one must have nodes: nodes that are missing are added."""
    dual_ahead: float = 0.02
    """Relative change of the dual within which modes that may come into the window have nodes:
    without them, nodes are made again at every step of the search for the dual (8 times as many
    evaluations on Sioux Falls, radius 5)."""
    same_mode: float = 0.5
    """Ends of ascents within this distance are one mode."""
    newton_steps: int = 4
    """Steps that follow a mode before an ascent does; most modes settle after two."""
    settled: float = 0.15
    """Length of the last Newton step."""
    at_rest: float = 0.4
    """Modes that an ascent would move by less stay where they are, and so do their nodes."""
    runaway: float = 2.0**14
    """Distance of an ascent beyond which the density counts as unbounded."""
    largest: float = 1e15
    """Size of a log density from which rounding leaves no correct digits."""
    precision_range: tuple[float, float] = (0.08, 400.0)
    """Precisions of the Gaussian around a mode: bounded where h is flat or convex."""
    dual_change: float = 0.005
    """Relative change of the dual after which the lattice is searched again."""
    dual_retry: float = 0.02
    """The same for a peak from which a climb led to a known mode."""
    height_slack: float = 0.5
    """Height that a peak of the lattice may have above the known mode beside it."""


LIMITS = Tolerances()


@dataclass(frozen=True)
class Modes:
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

    def where(self, which: Array | slice) -> Modes:
        """Some of the modes."""
        return Modes(*(a[which] for a in self.arrays()))

    def arrays(self) -> list[Array]:
        """The fields, in order."""
        return [getattr(self, field.name) for field in fields(self)]

    def count(self) -> Array:
        """For each mode the number of modes of its sample."""
        _, position, counts = np.unique(self.owners, return_inverse=True, return_counts=True)
        return counts[position]

    def highest(self) -> Modes:
        """The highest mode of each sample, in the order of the samples."""
        best = np.lexsort((self.heights, self.owners))
        return self.where(best[np.append(np.diff(self.owners[best]) != 0, True)])

    def in_window(self, window: float, rate: float = 0.0) -> Array:
        """True for modes at most `window` below the highest one of their sample, (P,).

        rate: modes count too that may come so near while the dual variable changes by this
            multiple of epsilon.
        """
        top = self.highest()
        mine = np.searchsorted(top.owners, self.owners)
        reach = np.nan_to_num(np.abs(self.costs - top.costs[mine]))
        return self.heights >= top.heights[mine] - window - rate * reach


def joined(several: list[Modes]) -> Modes:
    """Modes one after the other, sorted by their samples, the highest first."""
    every = Modes(*(np.concatenate(arrays) for arrays in zip(*(m.arrays() for m in several))))
    return every.where(np.lexsort((-every.heights, every.owners)))


# ------------------------------
# The search


class Lattice:
    """The loss on lattices over the supports of some samples, for all dual variables."""

    def __init__(self, split: SplitLoss, x: Array, samples: Array, coarse: bool) -> None:
        self._split, self._x, self._samples = split, np.array(x), samples
        some = slice(1, None, 2) if coarse else slice(None)
        bounds, spread = split.frame.bounds(samples), split.frame.spread
        self._moves = lattice(bounds, spread, len(samples), SIDE[some], FREE_SIDE[some])
        size, count, _ = self._moves.shape
        self._parts = split.chunks(size, count)
        keep = size * count * max(1, split.block.frame.dimension) <= KEPT_SLOPES
        with np.errstate(all="ignore"):
            self._losses = [
                LossAtNodes(split, x, samples[p], self._moves[p], keep=keep, lenient=True)
                for p in self._parts
            ]
        self._looked = -1.0
        """The dual variable at which the lattice was searched last."""
        self._tried = np.full((size, count), np.nan)
        """The dual variable at which a climb began there last."""

    def is_near(self, x: Array, samples: Array, apart: float) -> bool:
        """True for the lattice of these samples at a decision that differs by `apart` at most."""
        moved = float(np.linalg.norm(x - self._x))
        same = np.array_equal(self._samples, samples)
        return same and moved <= apart * float(np.linalg.norm(x))

    def search(self, dual: float) -> Modes:
        """The modes of all samples, by ascents from the samples and the peaks of the lattice."""
        target = Marginal(self._split, self._x, dual)
        refuse_growth(target, self._samples)
        starts = self._peaks(self._heights(dual))
        starts[:, starts.shape[1] // 2] = True
        rows, cells = np.nonzero(starts)
        ends = climb(target, self._samples[rows], self._moves[rows, cells])
        if len(np.unique(ends.owners)) < len(self._samples):
            raise Divergence
        return with_costs(target, with_curvature(target, ends))

    def unexplained_peaks(self, dual: float, known: Modes) -> tuple[Array, Array]:
        """Samples (P,) and moves (P, r) of peaks that no known mode explains.

        A mode explains a peak beside it that is no higher.
        known: modes with their heights at this dual.
        """
        if abs(dual - self._looked) <= LIMITS.dual_change * self._looked:
            return self._samples[:0], self._moves[:0, 0]
        self._looked = dual
        heights = self._heights(dual)
        peaks = self._peaks(heights)
        peaks &= ~(heights <= self._known_heights(known) + LIMITS.height_slack)
        peaks &= ~(np.abs(dual - self._tried) <= LIMITS.dual_retry * self._tried)
        rows, cells = np.nonzero(peaks)
        self._tried[rows, cells] = dual
        return self._samples[rows], self._moves[rows, cells]

    def _heights(self, dual: float) -> Array:
        """h on the lattice, (K, L)."""
        split, heights = self._split, np.empty(self._tried.shape)
        assert split.frame.weights is not None
        precision = 1 / split.frame.spread + 2 * dual * split.frame.weights / split.epsilon
        with np.errstate(all="ignore"):
            for part, loss in zip(self._parts, self._losses):
                inner = split.block.integrate(loss.slopes, dual)
                heights[part] = loss.values / split.epsilon + inner.log_value
            return heights - 0.5 * (self._moves**2 @ precision)

    def _cube(self, values: Array) -> Array:
        """Values (K, L) or (K, L, r) with an axis for each coordinate of the lattice."""
        size, count, r = self._moves.shape
        side = round(count ** (1 / r)) if r else 1
        return values.reshape(size, *[side] * r, *values.shape[2:])

    def _peaks(self, heights: Array) -> Array:
        """Points (K, L) of the lattice that are at least as high as their neighbours."""
        r = self._split.frame.dimension
        cube = self._cube(heights)
        padded = np.pad(cube, [(0, 0)] + [(1, 1)] * r, constant_values=-np.inf)
        peaks = np.isfinite(cube)
        for shift in product((0, 1, 2), repeat=r):
            ends = (slice(s, s + n) for s, n in zip(shift, cube.shape[1:]))
            peaks &= cube >= padded[(slice(None), *ends)]
        return peaks.reshape(heights.shape)

    def _known_heights(self, known: Modes) -> Array:
        """The height of the highest known mode in or next to each cell of the lattice, (K, L)."""
        r = self._split.frame.dimension
        cube = self._cube(self._moves)
        known = known.where(np.isin(known.owners, self._samples))
        rows = np.searchsorted(self._samples, known.owners)
        cells = []
        for i in range(r):
            line: list[Any] = [slice(None), *[0] * r, i]
            line[1 + i] = slice(None)
            along = cube[tuple(line)]
            cells.append(np.abs(along[rows] - known.moves[:, i : i + 1]).argmin(axis=1))
        heights = np.full(cube.shape[:-1], -np.inf)
        for shift in product((-1, 0, 1), repeat=r):
            beside = (
                np.clip(cell + s, 0, n - 1) for cell, s, n in zip(cells, shift, cube.shape[1:])
            )
            np.maximum.at(heights, (rows, *beside), known.heights)
        return heights.reshape(self._tried.shape)


def lattice(bounds: Bounds | None, spread: Array, size: int, side: Array, free: Array) -> Array:
    """Moves (K, L, r) over the support of each sample, with no move in the middle.

    side, free: points between a sample and a bound, and towards infinity.
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


def refuse_growth(target: Marginal, samples: Array) -> None:
    """Raise Divergence where h still rises far out, in a coordinate without a bound."""
    bounds, spread = target.bounds(samples), target.frame.spread
    for i, deviation in enumerate(np.sqrt(spread)):
        for side, sign in enumerate((-1.0, 1.0)):
            free = samples if bounds is None else samples[np.isinf(bounds[side][:, i])]
            if len(free) == 0:
                continue
            moves = np.zeros((len(free), len(OUTWARDS), len(spread)))
            moves[:, :, i] = sign * deviation * OUTWARDS
            owners = np.repeat(free, len(OUTWARDS))
            h = target.values(owners, moves.reshape(len(owners), -1)).reshape(moves.shape[:2])
            # Far out h is rounding error alone: its last two reliable values tell if it rises.
            defined = np.cumprod(np.abs(np.nan_to_num(h, nan=np.inf)) < LIMITS.largest, axis=1).sum(
                axis=1
            )
            rows = np.flatnonzero(defined > 1)
            if np.any(h[rows, defined[rows] - 1] > h[rows, defined[rows] - 2]):
                raise Divergence


# ------------------------------
# Modes at the ends of ascents, and of Newton steps


def climb(target: Marginal, owners: Array, starts: Array) -> Modes:
    """The distinct modes at the ends of ascents; raises Divergence if one has no end."""
    ends = ascend(target, owners, starts)
    r = starts.shape[1]
    basis, scales = np.tile(np.eye(r), (len(owners), 1, 1)), np.ones(starts.shape)
    return distinct(_modes(target, owners, ends, basis, scales))


def track_from(target: Marginal, samples: Array, earlier: Modes, rate: float) -> Modes | None:
    """The modes that those of another density lead to; None where a sample has none left.

    Modes that do not count stay where they were until they do.
    """
    refuse_growth(target, samples)
    heights, gradients = target(earlier.owners, earlier.moves)
    deviation = np.sqrt(target.variance(earlier.owners, earlier.moves))
    deviation = np.broadcast_to(deviation, earlier.moves.shape)
    earlier = replace(earlier, heights=heights, deviation=deviation)
    counted = earlier.in_window(LIMITS.window, rate)
    modes = track(target, earlier.where(counted), gradients[counted])
    modes = distinct(joined([with_curvature(target, modes), earlier.where(~counted)]))
    return with_costs(target, modes) if len(np.unique(modes.owners)) == len(samples) else None


def track(target: Marginal, modes: Modes, gradients: Array) -> Modes:
    """The modes after the density has changed, by Newton steps with the curvature that they had.

    Heights and gradients (P, r) are those of the new density at the old modes. A mode that does
    not settle in a few steps, or would fall, goes on by ascent, and gets a new curvature.
    """
    moves, heights = modes.moves.copy(), modes.heights.copy()
    gradients, active = gradients.copy(), np.arange(len(moves))
    bounds, precision = target.bounds(modes.owners), _precision(modes)
    failed = ~np.isfinite(heights)
    for _ in range(LIMITS.newton_steps):
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
        active = active[~worse & (size > LIMITS.settled)]
        if len(active) == 0:
            break
    failed[active] = True
    again = np.flatnonzero(failed)
    if len(again):
        moves[again], heights[again], gradients[again] = ascend(
            target, modes.owners[again], moves[again]
        )
    modes = _modes(target, modes.owners, (moves, heights, gradients), modes.basis, modes.scales)
    if len(again):
        basis, scales = modes.basis.copy(), modes.scales.copy()
        basis[again], scales[again] = curvature(target, modes.where(again))
        modes = replace(modes, basis=basis, scales=scales)
    return modes


def _modes(
    target: Marginal, owners: Array, ends: tuple[Array, Array, Array], basis: Array, scales: Array
) -> Modes:
    """Modes from moves, heights and gradients.

    In the interior the center is the mode; where a bound stops the ascent, the center lies beyond
    the bound, at the top of the parabola with slope grad h and curvature -1/v.
    """
    moves, heights, gradients = ends
    bounds = target.bounds(owners)
    variance = np.array(np.broadcast_to(target.variance(owners, moves), moves.shape))
    deviation = np.sqrt(variance)
    far = np.abs(moves) > LIMITS.runaway * deviation
    if bounds is not None:
        far &= np.isinf(np.where(moves > 0, bounds[1], bounds[0]))
    if np.any(np.isposinf(heights)) or far.any():
        raise Divergence
    center = moves + variance * gradients
    settled = np.abs(deviation * gradients) < 0.5
    if bounds is not None:
        settled &= ~reachable(center, deviation, bounds)
    center, costs = np.where(settled, moves, center), np.full(len(owners), np.nan)
    return Modes(owners, moves, heights, costs, center, deviation, basis, scales)


def _precision(modes: Modes) -> Array:
    """The precisions of the Gaussians around the modes, (P, r, r)."""
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


def distinct(modes: Modes) -> Modes:
    """The modes without those that are close to a higher one of their sample."""
    modes = joined([modes.where(np.isfinite(modes.heights))])
    index, new = np.arange(len(modes.owners)), np.ones(len(modes.owners), dtype=bool)
    for shift in range(1, int(modes.count().max(initial=1))):
        higher = modes.where(np.maximum(index - shift, 0))
        same = (index >= shift) & (higher.owners == modes.owners)
        new &= ~(same & _close(modes, higher))
    return modes.where(new)


def new_modes(modes: Modes, known: Modes) -> Modes:
    """The modes that are not close to a known one of their sample, which has at least one."""
    first, count = np.searchsorted(known.owners, modes.owners), known.count()
    new = np.isfinite(modes.heights)
    for shift in range(int(count.max(initial=1))):
        there = shift < count[first]
        other = known.where(np.where(there, first + shift, first))
        new &= ~(there & _close(modes, other))
    return modes.where(new)


def _close(modes: Modes, others: Modes) -> Array:
    """True for pairs within a fraction of a deviation of each other, (P,)."""
    return np.linalg.norm((modes.moves - others.moves) / modes.deviation, axis=1) < LIMITS.same_mode


def with_curvature(target: Marginal, modes: Modes) -> Modes:
    """The modes with the curvature of h there."""
    return replace(modes, **dict(zip(("basis", "scales"), curvature(target, modes))))


def with_costs(target: Marginal, modes: Modes) -> Modes:
    """The modes with their transport costs."""
    return replace(modes, costs=target.costs(modes.owners, modes.moves))


def gaussians(modes: Modes, bounds: Bounds | None, wider: float) -> Component:
    """The Gaussians of the modes, restricted to the bounds, P rows."""
    return component(modes.center, wider * modes.deviation, bounds, modes.basis, modes.scales)


def curvature(target: Marginal, modes: Modes) -> tuple[Array, Array]:
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
    return np.swapaxes(vectors, 1, 2), np.clip(precision, *LIMITS.precision_range) ** -0.5
