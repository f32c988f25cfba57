"""Modes of the tilted densities, found for all samples at once, and a mixture that covers them.

The target of sample k is the log density h_k(y) of its moves, up to a constant; near a mode it is
a Gaussian of variance v, corrected along a few directions by the curvature of the loss. A loss that
is convex in the data can have several modes and an ascent settles on one of them, so ascents start
from the sample, from the pieces of the loss and from every rise of h along a few rays.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from wdro_model.objectives.integration.importance.curvature import (
    Target,
    clipped,
    curvature,
    krylov,
    unit,
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

ROUNDS = 30
"""Steps of an ascent; most end after three."""
SETTLED = 0.01
"""An ascent ends when its step is below this many deviations."""
WINDOW = 30.0
"""Modes of a log mass so far below the best are left out."""
FLOOR = 0.05
"""The least share of a mode in the mixture."""
MODES = 6
"""Modes kept for each sample."""
NEW = np.log(1.5)
"""A mode is new if the ones before predict less than two thirds of its density."""
STRIDES = 2.0 ** np.arange(-1, 8)
"""Points of a ray, in deviations."""


FAR = (2.0**16, 2.0**20)
"""Distances, in deviations, at which a density that can be integrated has begun to fall."""


@dataclass(frozen=True)
class Ascents:
    """Ends of ascents: moves (K, C, r), h (K, C), gradients (K, C, r), and which ones exist."""

    moves: Array
    values: Array
    gradients: Array
    alive: Array
    curved: Array
    """Does the gradient of the loss change between the points looked at? (K,)"""


def cover(target: Target, owners: Array, modes: int = MODES) -> tuple[Mixture, Array]:
    """Mixtures around the modes of the targets, and which of the targets are not Gaussian (K,)."""
    found = ascents(target, owners, modes)
    bounds = target.bounds(owners)
    kept: list[Component] = []
    masses: list[Array] = []
    covered = np.full(found.values.shape, -np.inf)
    left = found.alive.copy()
    for _ in range(modes):
        score = np.where(left & (found.values > covered + NEW), found.values, -np.inf)
        pick = score.argmax(axis=1)
        picked = np.isfinite(score.max(axis=1))
        if not picked.any():
            break
        rows = np.arange(len(owners))
        left[rows, pick] = False
        moves, gradient = found.moves[rows, pick], found.gradients[rows, pick]
        one = local(target, owners, moves, gradient, bounds, found.curved & picked)
        # At the mode the target is mass * density of the component.
        at_mode = one.log_density(moves[:, None])[:, 0]
        mass = np.where(picked, found.values[rows, pick] - at_mode, -np.inf)
        kept.append(one)
        masses.append(mass)
        covered = np.logaddexp(covered, mass[:, None] + one.log_density(found.moves))
    if not kept:
        raise Divergence
    return mixture(kept, np.stack(masses, axis=1), FLOOR, WINDOW), found.curved


def local(
    target: Target,
    owners: Array,
    moves: Array,
    gradients: Array,
    bounds: Bounds | None,
    curved: Array,
) -> Component:
    """The Gaussian that osculates the targets at a mode.

    In the interior its center is the mode; where a bound stops the ascent, the center lies beyond
    the bound, at the top of the parabola with slope grad h and curvature -1/v.
    """
    variance = target.variance(owners, moves)
    deviation = np.sqrt(np.broadcast_to(variance, moves.shape))
    center = moves + variance * gradients
    free = None if bounds is None else ~reachable(center, deviation, bounds)
    settled = np.abs(deviation * gradients) < (np.inf if target.walled else 0.5)
    center = np.where(settled if free is None else settled & free, moves, center)
    basis = scales = None
    if target.walled:
        basis, scales = against_wall(deviation * gradients, free)
    elif curved.any():
        basis, scales = curvature(target, owners, moves, gradients, deviation, free, curved)
    return component(center, deviation, bounds, basis, scales)


def against_wall(slopes: Array, free: Array | None) -> tuple[Array, Array]:
    """The direction in which h still rises at a wall, and a deviation that fits its fall inside."""
    inward = slopes if free is None else np.where(free, slopes, 0.0)
    rate = np.sqrt(np.einsum("kr,kr->k", inward, inward))
    return unit(inward)[:, None], np.minimum(1.0, 1.5 / np.maximum(rate, 1.5))[:, None]


# ------------------------------------------------------------------ ascent
def ascents(target: Target, owners: Array, modes: int) -> Ascents:
    """Ascents from several starts for each sample."""
    bounds = target.bounds(owners)
    zero = np.zeros((len(owners), target.dimension))
    value, gradient = target(owners, zero)
    variance = np.broadcast_to(target.variance(owners, zero), zero.shape)
    tilt = variance * gradient
    starts = [zero, clipped(tilt, bounds)]
    alive = [np.isfinite(value), np.ones(len(owners), dtype=bool)]
    curved = np.zeros(len(owners), dtype=bool)
    if modes > 1 and target.dimension > 0:
        for given in target.starts(owners):
            starts.append(clipped(given, bounds))
            alive.append(np.ones(len(owners), dtype=bool))
        directions = rays(target, owners, zero, gradient, np.sqrt(variance))
        refuse_divergence(target, owners, directions)
        for start, found in rises(target, owners, directions, value, bounds):
            starts.append(start)
            alive.append(found)
    count = len(starts)
    where = np.stack(alive, axis=1)
    moves = np.stack(starts, axis=1)
    rows, columns = np.nonzero(where)
    values = np.full(where.shape, -np.inf)
    gradients = np.zeros((len(owners), count, target.dimension))
    ends = ascend(target, owners[rows], moves[rows, columns])
    moves[rows, columns], values[rows, columns], gradients[rows, columns] = ends
    # The gradient of the loss is that of h without the quadratic -y^2/(2v): affine losses keep it.
    slope = (gradients + moves / variance[:, None] - gradient[:, None]) * np.sqrt(variance)[:, None]
    size = np.sqrt(variance) * np.abs(gradient)
    change = np.where(where[:, :, None], np.abs(slope), 0.0).max(axis=(1, 2), initial=0.0)
    curved |= change > 1e-7 * (1.0 + size.max(axis=1, initial=0.0))
    return Ascents(moves, values, gradients, np.isfinite(values), curved)


def ascend(target: Target, owners: Array, moves: Array) -> tuple[Array, Array, Array]:
    """Monotone ascents of h by scaled gradient steps within the bounds, each with its own length.

    y <- clip(y + t v grad h), with t by the Barzilai-Borwein rule, halved while h would fall. For
    a loss affine in the data one step with t = 1 arrives.
    """
    moves = moves.copy()
    values, gradients = target(owners, moves)
    length = np.ones(len(owners))
    active = np.flatnonzero(np.isfinite(values))
    for _ in range(ROUNDS):
        if len(active) == 0:
            break
        who, here = owners[active], moves[active]
        variance = target.variance(who, here)
        step = length[active, None] * variance * gradients[active]
        trial = clipped(here + step, target.bounds(who))
        move = (trial - here) / np.sqrt(variance)
        size = np.sqrt(np.einsum("br,br->b", move, move))
        value, gradient = target(who, trial)
        better = value >= values[active]
        change = np.sqrt(variance) * (gradient - gradients[active])
        fall = -np.einsum("br,br->b", move, change)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            secant = np.where(fall > 0, size**2 / fall, 4 * length[active])
        grown = np.clip(np.nan_to_num(secant, nan=1.0), 0.05, 8 * np.maximum(1, length[active]))
        length[active] = np.where(better, grown, 0.3 * length[active])
        accepted = active[better]
        moves[accepted], values[accepted] = trial[better], value[better]
        gradients[accepted] = gradient[better]
        active = active[(size > SETTLED) & (length[active] > 1e-4)]
    return moves, values, gradients


# ------------------------------------------------------------------ starts
def refuse_divergence(target: Target, owners: Array, directions: list[Array]) -> None:
    """Raise a Divergence where a target still rises far out along some direction (K, r)."""
    bounds = target.bounds(owners)
    for direction in (sign * one for one in directions for sign in (1.0, -1.0)):
        if bounds is not None:
            stopped = np.isfinite(np.where(direction > 0, bounds[1], bounds[0]))
            direction = np.where(stopped, 0.0, direction)
        near, far = (target.values(owners, stride * direction) for stride in FAR)
        if np.any(far > near):
            raise Divergence


def rays(
    target: Target, owners: Array, zero: Array, gradient: Array, deviation: Array
) -> list[Array]:
    """Directions (K, r) to look along: gradient, most convex direction, axes or a random one."""
    found = [deviation * unit(deviation * gradient)]
    directions, _ = krylov(target, owners, zero, gradient, deviation, None)
    found += [deviation * directions[:, j] for j in range(min(2, directions.shape[1]))]
    if target.dimension <= 3:
        found += [deviation * axis for axis in np.eye(target.dimension)]
        found += [deviation * one for one in diagonals(target.dimension)]
    else:
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (2, target.dimension))
        found += [deviation * one for one in signs]
    return found


def diagonals(dimension: int) -> Array:
    """The directions (+-1, ..., +-1), one of each opposite pair, slightly uneven."""
    signs = np.array(list(product((1.0, -1.0), repeat=dimension)))
    return signs[signs[:, 0] > 0] * (1.0 + 0.01 * np.arange(dimension))


def rises(
    target: Target, owners: Array, directions: list[Array], value: Array, bounds: Bounds | None
) -> list[tuple[Array, Array]]:
    """For each ray the highest point beyond a rise of h, (K, r), and whether there is one, (K,).

    A ray along which h only falls leads to no other mode.
    """
    rays = np.stack([sign * d for d in directions for sign in (1.0, -1.0)], axis=1)
    points = rays[:, :, None] * STRIDES[:, None]
    if bounds is not None:
        points = np.clip(points, bounds[0][:, None, None], bounds[1][:, None, None])
    shape = points.shape[:3]
    flat = points.reshape(-1, target.dimension)
    values = target.values(np.repeat(owners, shape[1] * shape[2]), flat).reshape(shape)
    start = np.broadcast_to(value[:, None, None], (*shape[:2], 1))
    rising = np.isfinite(values) & (values > np.concatenate([start, values[:, :, :-1]], axis=2))
    best = np.where(rising, values, -np.inf).argmax(axis=2)
    rows, found = np.arange(len(owners)), np.any(rising, axis=2)
    return [(points[rows, j, best[:, j]], found[:, j]) for j in range(shape[1])]
