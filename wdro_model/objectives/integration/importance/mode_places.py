"""Places where modes may be: far along rays, in the corners of the support, all around."""

from __future__ import annotations

from itertools import product

import numpy as np

from wdro_model.objectives.integration.importance.curvature import Target, confined, krylov, unit
from wdro_model.objectives.integration.importance.proposals import Bounds
from wdro_model.objectives.integration.inner_integral import Divergence
from wdro_model.solvers.objective import Array

FEW = 8
"""Dimensions in which modes have a full covariance."""
STRIDES = 2.0 ** np.arange(-1, 8)
"""Points of a ray, in deviations."""
FAR = (2.0**16, 2.0**20)
"""Distances, in deviations, at which a density that can be integrated has begun to fall."""
CORNERS, OUTSIDE = 32, 16
"""Corners of the box, and points far out in random directions, that are looked at."""


def refuse_divergence(target: Target, owners: Array, directions: list[Array]) -> None:
    """Raise a Divergence where a target still rises far out along some direction (K, r)."""
    bounds = target.bounds(owners)
    ways = np.stack([sign * one for one in directions for sign in (1.0, -1.0)], axis=1)
    if bounds is not None:
        ends = [np.isfinite(side)[:, None] for side in bounds]
        ways = np.where(np.where(ways > 0, ends[1], ends[0]), 0.0, ways)
    points = np.stack([stride * ways for stride in FAR]).reshape(-1, target.dimension)
    who = np.tile(np.repeat(owners, ways.shape[1]), 2)
    near, far = target.values(who, points).reshape(2, -1)
    if np.any(far > near):
        raise Divergence


def rays(
    target: Target, owners: Array, zero: Array, gradient: Array, deviation: Array
) -> list[Array]:
    """Directions (K, r) to look along: gradient, most convex direction, axes or a random one."""
    found = [deviation * unit(deviation * gradient)]
    directions, _ = krylov(target, owners, zero, gradient, deviation, None)
    found += [deviation * directions[:, j] for j in range(min(2, directions.shape[1]))]
    if target.dimension <= FEW:
        found += [deviation * axis for axis in np.eye(target.dimension)]
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (2, target.dimension))
    if target.dimension <= 3:
        signs = np.array(list(product((1.0, -1.0), repeat=target.dimension)))
        signs = signs[signs[:, 0] > 0] * (1.0 + 0.01 * np.arange(target.dimension))
    return found + [deviation * one for one in signs]


def rises(
    target: Target, owners: Array, directions: list[Array], value: Array, bounds: Bounds | None
) -> tuple[Array, Array]:
    """For each ray the highest point beyond a rise of h, (K, R, r), and h there; -inf for none.

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
    heights = np.where(rising, values, -np.inf)
    best = heights.argmax(axis=2)[:, :, None]
    places = np.take_along_axis(points, best[..., None], axis=2)[:, :, 0]
    return places, np.take_along_axis(heights, best, axis=2)[:, :, 0]


def corners(target: Target, owners: Array) -> Array:
    """Corners and centre (K, C, r) of the support; coordinates without bounds stay."""
    dimension = target.dimension
    if 2**dimension <= CORNERS:
        ends = np.array(list(product((0.0, 1.0), repeat=dimension)))
    else:
        ends = np.random.default_rng(3).choice([0.0, 1.0], (CORNERS, dimension))
    return within(target, owners, np.concatenate([ends, np.full((1, dimension), 0.5)]))


def within(target: Target, owners: Array, shares: Array) -> Array:
    """Moves (K, C, r) at these shares (C, r) or (K, C, r) of the way across the support."""
    room = target.room(owners) if target.walled else target.bounds(owners)  # type: ignore[attr-defined]
    if room is None:
        return np.zeros((len(owners), 0, target.dimension))
    lower, upper = (np.where(np.isfinite(side), side, 0.0)[:, None] for side in room)
    return np.asarray(lower + shares * (upper - lower))


def outside(anchors: list[Array], deviation: Array) -> Array:
    """Moves (K, C, r) in random directions, beyond the modes (K, r) that are known."""
    directions = unit(np.random.default_rng(4).standard_normal((OUTSIDE, deviation.shape[1])))
    lengths = [np.linalg.norm(one / deviation, axis=1) for one in anchors]
    reach = 1.5 * np.max(lengths, axis=0) + 3.0
    return (reach[:, None] * deviation)[:, None] * directions


def pointed(target: Target, owners: Array, points: Array) -> tuple[Array, Array]:
    """The points (K, P, r), or where a step of an ascent leads from them if that is higher; h."""
    size, count, dimension = points.shape
    who = np.repeat(owners, count)
    flat = confined(target, who, points.reshape(-1, dimension))
    values, gradients = target(who, flat)
    moved = confined(target, who, flat + target.variance(who, flat) * gradients)
    further = target.values(who, moved)
    better = further > values
    flat = np.where(better[:, None], moved, flat)
    return flat.reshape(points.shape), np.where(better, further, values).reshape(size, count)
