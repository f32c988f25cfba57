"""The finder of modes: all samples at once, from global starts, and a mixture that covers them.

The target of sample k is the log density h_k(y) of its moves, up to a constant. A loss that is
convex in the data can have many modes and an ascent settles on one of them. Ascents start from the
sample, from the tilt of its gradient, from the pieces of the loss and from modes seen elsewhere;
then, where the modes found so far do not explain what is seen there, from rises of h along rays,
from the corners and the centre of the box, and from where the slopes far out point to.
"""

from __future__ import annotations

import numpy as np

from wdro_model.objectives.integration.importance.correlated import Correlated, correlated
from wdro_model.objectives.integration.importance.curvature import (
    Target,
    clipped,
    confined,
    curvature,
    full_precision,
    unit,
)
from wdro_model.objectives.integration.importance.mode_places import (
    FEW,
    corners,
    outside,
    pointed,
    rays,
    refuse_divergence,
    rises,
)
from wdro_model.objectives.integration.importance.proposals import (
    Bounds,
    Component,
    Mixture,
    component,
    mixture,
    reachable,
)
from wdro_model.objectives.integration.inner_integral import Divergence
from wdro_model.solvers.objective import Array

RUNAWAY = 1e50
"""Deviations at which the Gaussian has long won, if it ever does."""
ROUNDS = 30
"""Steps of an ascent; most end after three."""
SETTLED, FOLLOWED = 0.01, 0.1
"""An ascent ends when its step is below this many deviations; one that follows a mode before."""
CLOSER = 0.8
"""Ascents from a corner that led nowhere are tried again when it is nearer by this factor."""
WINDOW = 20.0
"""Modes of a log mass so far below the best are left out."""
FLOOR = 0.05
"""The least share of a mode in the mixture."""
MODES = 16
"""Modes kept for each sample."""
NEW = np.log(1.5)
"""A mode is new if the ones before predict less than two thirds of its density."""
SECOND = 8
"""Ascents for each sample from places that are not explained."""


class Modes:
    """The modes of some samples that are known, with the Gaussians around them."""

    def __init__(
        self, target: Target, owners: Array, most: int, window: float = 10 * WINDOW
    ) -> None:
        self.target, self.owners, self.most, self.window = target, owners, most, window
        self.bounds = target.bounds(owners)
        self.curved = np.zeros(len(owners), dtype=bool)
        """Which of the targets are not Gaussian, (K,)."""
        self.components: list[Component | Correlated] = []
        self.top = np.full(len(owners), -np.inf)
        """h at the highest of them, (K,)."""
        self.lag = np.full(len(owners), np.inf)
        """How far a corner was below them when an ascent from there last led back to them, (K,)."""
        self.masses: list[Array] = []
        """log of the integral that each component stands for, (K,); -inf where there is none."""

    def expected(self, moves: Array) -> Array:
        """The log density (K, C) that the known modes predict at moves (K, C, r)."""
        out = np.full(moves.shape[:2], -np.inf)
        for one, mass in zip(self.components, self.masses):
            out = np.logaddexp(out, mass[:, None] + one.log_density(moves))
        return out

    @property
    def everywhere(self) -> bool:
        """Has each sample a mode?"""
        return bool(self.masses) and bool(np.isfinite(self.masses).any(axis=0).all())

    def again(self, target: Target) -> Modes:
        """The modes of a target that differs little: where ascents from these ones lead.

        Others come up at the ends of the support, or near the sample. A sample with one mode is
        therefore searched from the highest of the corners, if that is less far below the sample
        than the mode is above it; or from itself, if the mode is in a corner.
        """
        found = Modes(target, self.owners, self.most, self.window)
        found.curved |= self.curved
        starts = [clipped(one.anchor, found.bounds) for one in self.components]
        shapes = np.stack([one.covariance for one in self.components], axis=1)
        found.add(np.stack(starts, axis=1), np.isfinite(self.masses).T, shapes=shapes)
        if not found.everywhere:
            return found
        size, rows = len(self.owners), np.arange(len(self.owners))
        ends = np.zeros((size, 1, target.dimension))
        ends = np.concatenate([ends, corners(target, self.owners)], axis=1)
        flat = ends.reshape(-1, target.dimension)
        heights = target.values(np.repeat(self.owners, ends.shape[1]), flat).reshape(size, -1)
        anchors, known = np.stack([c.anchor for c in found.components]), np.isfinite(found.masses)
        mode = np.where(known[:, :, None], anchors, 0.0).sum(axis=0)
        across = np.abs(ends).max(axis=1, keepdims=True)
        across = np.where(across > 0, across, np.inf)
        nearest = np.linalg.norm((ends - mode[:, None]) / across, axis=2).argmin(axis=1)
        own = heights[:, 0].copy()
        heights[rows, nearest] = -np.inf
        best = heights.argmax(axis=1)
        highest = heights[rows, best]
        rises = (highest > own - np.maximum(found.top - own, 0.0)) | (nearest > 0)
        rises &= np.isfinite(highest) & (known.sum(axis=0) == 1)
        lag = np.where(rises, found.top - highest, np.inf)
        asks = rises & (lag < CLOSER * self.lag)
        found.lag = np.where(asks | ~rises, lag, self.lag)
        found.add(ends[rows, best][:, None], asks[:, None])
        return found

    def add(
        self,
        starts: Array,
        alive: Array,
        origin: Array | None = None,
        shapes: Array | None = None,
    ) -> None:
        """Ascend from starts (K, C, r) where alive (K, C) and keep what is new.

        origin: the gradient of h at no move, (K, r); None where it is known which targets bend.
        shapes: covariances (K, C, r, r) of the density around the starts, where they are known.
        """
        target, rows = self.target, np.arange(len(self.owners))
        who, which = np.nonzero(alive)
        moves, values = starts.copy(), np.full(alive.shape, -np.inf)
        gradients = np.zeros(starts.shape)
        known = None if shapes is None else shapes[who, which]
        ends = ascend(target, self.owners[who], starts[who, which], known)
        moves[who, which], values[who, which], gradients[who, which] = ends
        if origin is not None:
            self.curved |= self._bends(moves, gradients, alive, origin)
        self.top = np.maximum(self.top, values.max(axis=1))
        covered, left = self.expected(moves), np.isfinite(values)
        while len(self.components) < self.most:
            score = np.where(left & (values > covered + NEW), values, -np.inf)
            pick = score.argmax(axis=1)
            picked = np.isfinite(score[rows, pick])
            if not picked.any():
                break
            left[rows, pick] = False
            at = moves[rows, pick]
            one = local(
                target, self.owners, at, gradients[rows, pick], self.bounds, self.curved, picked
            )
            # At the mode the target is mass * density of the component.
            height = values[rows, pick] - one.log_density(at[:, None])[:, 0]
            mass = np.where(picked, height, -np.inf)
            self.components.append(one)
            self.masses.append(mass)
            covered = np.logaddexp(covered, mass[:, None] + one.log_density(moves))

    def _bends(self, moves: Array, gradients: Array, alive: Array, origin: Array) -> Array:
        """Does the gradient of h without -y^2/(2v), that of the loss, change along the way?"""
        zero = np.zeros((len(self.owners), self.target.dimension))
        variance = np.broadcast_to(self.target.variance(self.owners, zero), zero.shape)
        slopes = (gradients + moves / variance[:, None]) * np.sqrt(variance)[:, None]
        first = origin * np.sqrt(variance)
        change = np.where(alive[:, :, None], np.abs(slopes - first[:, None]), 0.0)
        size = np.abs(first).max(axis=1, initial=0.0)
        return change.max(axis=(1, 2), initial=0.0) > 1e-7 * (1.0 + size)

    def unexplained(self, points: Array, values: Array, count: int) -> tuple[Array, Array]:
        """Up to `count` of the points (K, P, r), high, apart, and higher than expected."""
        zero = np.zeros((len(self.owners), self.target.dimension))
        deviation = np.sqrt(np.broadcast_to(self.target.variance(self.owners, zero), zero.shape))
        top = np.max(self.masses, axis=0)[:, None]
        left = np.isfinite(values) & (values > self.expected(points) + NEW)
        left &= values > top - self.window
        scaled, rows = points / deviation[:, None], np.arange(len(self.owners))
        starts, alive = [], []
        for _ in range(count):
            pick = np.where(left, values, -np.inf).argmax(axis=1)
            starts.append(points[rows, pick])
            alive.append(left[rows, pick])
            place = scaled[rows, pick][:, None]
            apart = np.maximum(1.0, 0.1 * np.linalg.norm(place, axis=2))
            left &= np.linalg.norm(scaled - place, axis=2) > apart
        return np.stack(starts, axis=1), np.stack(alive, axis=1)

    def mixture(self, floor: float = FLOOR, window: float = WINDOW) -> Mixture:
        """The Gaussians, weighted by what they stand for."""
        if not self.components:
            raise Divergence
        return mixture(self.components, np.stack(self.masses, axis=1), floor, window)


def cover(target: Target, owners: Array, modes: int = MODES) -> tuple[Mixture, Array]:
    """Mixtures around the modes of the targets, and which of the targets are not Gaussian (K,)."""
    found = find(target, owners, modes)
    return found.mixture(), found.curved


def find(target: Target, owners: Array, modes: int = MODES, window: float = 10 * WINDOW) -> Modes:
    """The modes of the targets; window: how far below the highest they are looked for."""
    found = Modes(target, owners, modes, window)
    bounds, shape = found.bounds, (len(owners), target.dimension)
    zero = np.zeros(shape)
    value, gradient = target(owners, zero)
    variance = np.broadcast_to(target.variance(owners, zero), shape)
    starts = [zero, variance * gradient]
    wide = modes > 1 and target.dimension > 0
    if wide:
        starts += [np.broadcast_to(start, shape) for start in target.starts(owners)]
    alive = np.ones((len(owners), len(starts)), dtype=bool)
    alive[:, 0] = np.isfinite(value)
    found.add(np.stack([clipped(s, bounds) for s in starts], axis=1), alive, gradient)
    if wide and found.components:
        deviation = np.sqrt(variance)
        directions = rays(target, owners, zero, gradient, deviation)
        refuse_divergence(target, owners, directions)
        points, values = rises(target, owners, directions, value, bounds)
        if found.curved.any() or np.isfinite(values).any():
            more = corners(target, owners), outside([c.anchor for c in found.components], deviation)
            seen = pointed(target, owners, np.concatenate(more, axis=1))
            points = np.concatenate([points, seen[0]], axis=1)
            values = np.concatenate([values, seen[1]], axis=1)
            places, unknown = found.unexplained(points, values, SECOND)
            if unknown.any():
                found.add(places, unknown, gradient)
    return found


def local(
    target: Target,
    owners: Array,
    moves: Array,
    gradients: Array,
    bounds: Bounds | None,
    curved: Array,
    wanted: Array,
) -> Component | Correlated:
    """The Gaussian that osculates the targets at a mode.

    In the interior its center is the mode; where a bound stops the ascent, the center lies beyond
    the bound, at the top of the parabola with slope grad h and curvature -1/v.
    """
    variance = target.variance(owners, moves)
    deviation = np.sqrt(np.broadcast_to(variance, moves.shape))
    if 1 < target.dimension <= FEW and (curved.any() or target.walled):
        return osculating(target, owners, moves, gradients, deviation, bounds, wanted)
    center = moves + variance * gradients
    free = None if bounds is None else ~reachable(center, deviation, bounds)
    settled = np.abs(deviation * gradients) < (np.inf if target.walled else 0.5)
    center = np.where(settled if free is None else settled & free, moves, center)
    basis = scales = None
    curved = curved & wanted
    if target.walled:
        basis, scales = against_wall(deviation * gradients, free)
    elif curved.any():
        basis, scales = curvature(target, owners, moves, gradients, deviation, free, curved)
    return component(center, deviation, bounds, basis, scales)


def osculating(
    target: Target,
    owners: Array,
    moves: Array,
    gradients: Array,
    deviation: Array,
    bounds: Bounds | None,
    wanted: Array,
) -> Correlated:
    """The Gaussian with the precision of h at its modes, where they are wanted.

    Coordinates that a bound holds are independent of the others. Along a wall the density falls
    with the slope of h.
    """
    rows = np.flatnonzero(wanted)
    precision = np.broadcast_to(np.eye(moves.shape[1]), (*moves.shape, moves.shape[1])).copy()
    slopes = deviation * gradients
    held = np.zeros(moves.shape, dtype=bool)
    if bounds is not None:
        held = ((moves <= bounds[0]) & (slopes < 0)) | ((moves >= bounds[1]) & (slopes > 0))
    precision[rows] = full_precision(target, owners[rows], moves[rows], deviation[rows], held[rows])
    diagonal = np.einsum("kii->ki", precision)
    step = np.where(held, slopes / diagonal, 0.0)
    if target.walled:
        walls, inwards = target.frame.held_by_walls(  # type: ignore[attr-defined]
            owners, moves, np.where(held, 0.0, slopes), deviation
        )
        precision += walls / 1.5**2
        step += inwards
    scaled = precision / (deviation[:, :, None] * deviation[:, None, :])
    return correlated(moves + deviation * step, scaled, bounds)


def against_wall(slopes: Array, free: Array | None) -> tuple[Array, Array]:
    """The direction in which h still rises at a wall, and a deviation that fits its fall inside."""
    inward = slopes if free is None else np.where(free, slopes, 0.0)
    rate = np.sqrt(np.einsum("kr,kr->k", inward, inward))
    return unit(inward)[:, None], np.minimum(1.0, 1.5 / np.maximum(rate, 1.5))[:, None]


# ------------------------------------------------------------------ ascent
def ascend(
    target: Target, owners: Array, moves: Array, shapes: Array | None = None
) -> tuple[Array, Array, Array]:
    """Monotone ascents of h by scaled gradient steps within the bounds, each with its own length.

    y <- clip(y + t v grad h), with t by the Barzilai-Borwein rule, halved while h would fall. For
    a loss affine in the data one step with t = 1 arrives. Raises a Divergence where h rises so far
    out that nothing will bend it.

    shapes: covariances (B, r, r) in the place of v, as long as they lead upwards, for ascents that
    begin next to a mode and need not end so close to it.
    """
    moves = moves.copy()
    values, gradients = target(owners, moves)
    length = np.ones(len(owners))
    shaped = np.full(len(owners), shapes is not None)
    settled = SETTLED if shapes is None else FOLLOWED
    active = np.flatnonzero(np.isfinite(values))
    for _ in range(ROUNDS):
        variance = np.broadcast_to(
            target.variance(owners[active], moves[active]), moves[active].shape
        )
        step = variance * gradients[active]
        if shapes is not None:
            newton = np.einsum("bij,bj->bi", shapes[active], gradients[active])
            step = np.where(shaped[active, None], newton, step)
        trial = confined(target, owners[active], moves[active] + length[active, None] * step)
        move = (trial - moves[active]) / np.sqrt(variance)
        size = np.sqrt(np.einsum("br,br->b", move, move))
        going = (size > settled) & (length[active] > 1e-4)
        if not going.any():
            break
        active, trial, move, size, variance = (
            part[going] for part in (active, trial, move, size, variance)
        )
        value, gradient = target(owners[active], trial)
        better = value >= values[active]
        if np.any(better & (np.abs(trial / np.sqrt(variance)).max(axis=1, initial=0.0) > RUNAWAY)):
            raise Divergence
        change = np.sqrt(variance) * (gradient - gradients[active])
        fall = -np.einsum("br,br->b", move, change)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            secant = np.where(fall > 0, size**2 / fall, 4 * length[active])
        grown = np.clip(np.nan_to_num(secant, nan=1.0), 0.05, 8 * np.maximum(1, length[active]))
        grown = np.where(shaped[active], 1.0, grown)
        shorter = np.where(shaped[active], 1.0, 0.3 * length[active])
        length[active] = np.where(better, grown, shorter)
        shaped[active] &= better
        accepted = active[better]
        moves[accepted], values[accepted] = trial[better], value[better]
        gradients[accepted] = gradient[better]
    return moves, values, gradients
