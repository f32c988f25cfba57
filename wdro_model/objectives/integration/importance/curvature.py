"""Targets of the search for modes, and their curvature in a few directions.

The Hessian of h is seen through differences of gradients: Lanczos' method finds the directions in
which the loss bends, at the price of two gradients each.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from wdro_model.objectives.integration.importance.proposals import Bounds
from wdro_model.solvers.objective import Array

DIRECTIONS = 3
"""Directions in which the curvature of the loss is measured."""


class Target(Protocol):
    """Log densities of the moves y (r,) of the samples, up to a constant for each."""

    dimension: int
    walled: bool
    """Does the support end elsewhere than at the bounds of the coordinates?"""

    def __call__(self, owners: Array, moves: Array) -> tuple[Array, Array]:
        """h (B,) and its gradients (B, r); -inf and 0 where h is not defined."""
        ...

    def values(self, owners: Array, moves: Array) -> Array:
        """h alone."""
        ...

    def variance(self, owners: Array, moves: Array) -> Array:
        """Variances (B, r) of the density around the moves, without curvature of the loss."""
        ...

    def bounds(self, owners: Array) -> Bounds | None:
        """Bounds (B, r) of the moves; None on R^r."""
        ...

    def starts(self, owners: Array) -> list[Array]:
        """Moves (B, r) that are worth an ascent, beside 0."""
        ...


def curvature(
    target: Target,
    owners: Array,
    moves: Array,
    gradients: Array,
    deviation: Array,
    free: Array | None,
    curved: Array,
) -> tuple[Array, Array]:
    """Directions (K, j, r) and factors (K, j) of the deviation that the curvature of h asks for."""
    rows = np.flatnonzero(curved)
    count = min(DIRECTIONS, target.dimension)
    basis = np.zeros((len(owners), count, target.dimension))
    scales = np.ones((len(owners), count))
    mask = None if free is None else free[rows]
    found, precisions = krylov(
        target, owners[rows], moves[rows], gradients[rows], deviation[rows], mask
    )
    # Where h is flat or convex the precision is not that of a Gaussian: the deviation is bounded,
    # at 3.5 times that of an affine loss.
    used = np.einsum("kjr,kjr->kj", found, found) > 0.5
    safe = np.clip(precisions, 0.08, 400.0)
    basis[rows, : found.shape[1]] = np.where(used[:, :, None], found, 0.0)
    scales[rows, : found.shape[1]] = np.where(used, safe**-0.5, 1.0)
    return basis, scales


def full_precision(
    target: Target, owners: Array, moves: Array, deviation: Array, held: Array
) -> Array:
    """-diag(s) Hess h diag(s) made definite, (K, r, r); held coordinates are apart from others."""
    size, r = moves.shape
    units, bounds = np.eye(r), target.bounds(owners)
    sides = None if bounds is None else (bounds[0][:, None], bounds[1][:, None])
    hessian = np.broadcast_to(units, (size, r, r)).copy()
    left = np.ones((size, r), dtype=bool)
    for stride in (1.0, 0.1, 1e-3):
        who, axis = np.nonzero(left)
        if len(who) == 0:
            break
        steps = stride * deviation[:, None] * units
        ends = [clipped(moves[:, None] + sign * steps, sides)[who, axis] for sign in (1.0, -1.0)]
        heights, slopes = target(np.tile(owners[who], 2), np.concatenate(ends))
        apart = ((ends[0] - ends[1]) / deviation[who]).sum(axis=1)
        good = np.isfinite(heights).reshape(2, -1).all(axis=0) & (apart > 0)
        up, down = slopes.reshape(2, len(who), r)
        change = (down - up)[good] * deviation[who[good]] / apart[good, None]
        hessian[who[good], axis[good]] = change
        left[who[good], axis[good]] = False
    separate = held[:, :, None] | held[:, None, :]
    hessian = np.where(separate & (units == 0), 0.0, 0.5 * (hessian + np.swapaxes(hessian, 1, 2)))
    values, vectors = np.linalg.eigh(hessian)
    # Where h is flat or convex the precision is not that of a Gaussian: the deviation is bounded.
    return (vectors * np.clip(values, 0.02, 1e4)[:, None]) @ np.swapaxes(vectors, 1, 2)


def krylov(
    target: Target,
    owners: Array,
    moves: Array,
    gradients: Array,
    deviation: Array,
    free: Array | None,
) -> tuple[Array, Array]:
    """Orthonormal directions (K, j, r) and the precisions of h along them, the flattest first.

    Lanczos' method on -diag(s) Hess h diag(s), the products being differences of gradients over
    one deviation each way; it starts from the gradient of the loss.
    """
    size, dimension = moves.shape
    count = min(DIRECTIONS, dimension)
    basis = np.zeros((size, count, dimension))
    images = np.zeros((size, count, dimension))
    mask = np.ones(moves.shape, dtype=bool) if free is None else free
    direction = unit(np.where(mask, deviation * gradients + moves / deviation, 0.0))
    empty = np.einsum("kr,kr->k", direction, direction) < 0.5
    if dimension and empty.any():
        even = np.random.default_rng(1).standard_normal(dimension)
        direction[empty] = unit(np.where(mask[empty], even, 0.0))
    for j in range(count):
        basis[:, j] = direction
        image = hessian_product(target, owners, moves, deviation, direction)
        images[:, j] = np.where(mask, image, 0.0)
        rest = images[:, j].copy()
        for _ in range(2):
            inner = np.einsum("kjr,kr->kj", basis, rest)
            rest -= np.einsum("kj,kjr->kr", inner, basis)
        weight = np.sqrt(np.einsum("kr,kr->k", rest, rest))
        scale = np.sqrt(np.einsum("kr,kr->k", images[:, j], images[:, j]))
        direction = np.where((weight > 1e-3 * (1e-3 + scale))[:, None], unit(rest), 0.0)
        if not direction.any():
            basis, images = basis[:, : j + 1], images[:, : j + 1]
            break
    projected = np.einsum("kir,kjr->kij", basis, images)
    projected = 0.5 * (projected + np.swapaxes(projected, 1, 2))
    missing = np.einsum("kjr,kjr->kj", basis, basis) < 0.5
    projected += missing[:, :, None] * np.eye(basis.shape[1]) * 1e6
    precisions, vectors = np.linalg.eigh(projected)
    return np.einsum("kij,kir->kjr", vectors, basis), precisions


def hessian_product(
    target: Target, owners: Array, moves: Array, deviation: Array, direction: Array
) -> Array:
    """-diag(s) Hess h diag(s) u, by gradients one deviation to either side, (K, r).

    Where a side is outside the domain of h the points come closer; the product is u if none fits.
    """
    out = direction.copy()
    bounds = target.bounds(owners)
    rows = np.flatnonzero(np.einsum("kr,kr->k", direction, direction) > 0.5)
    for stride in (1.0, 0.1, 1e-3):
        if len(rows) == 0:
            break
        who, step = owners[rows], stride * (deviation * direction)[rows]
        sides = None if bounds is None else (bounds[0][rows], bounds[1][rows])
        ahead, back = clipped(moves[rows] + step, sides), clipped(moves[rows] - step, sides)
        up, rise_up = target(who, ahead)
        down, rise_down = target(who, back)
        good = np.isfinite(up) & np.isfinite(down)
        apart = np.linalg.norm((ahead - back) / deviation[rows], axis=1)
        good &= apart > 0
        difference = (rise_down - rise_up) * deviation[rows]
        out[rows[good]] = difference[good] / apart[good, None]
        rows = rows[~good]
    return out


def unit(vectors: Array) -> Array:
    """Rows scaled to length one; zero rows stay."""
    peak = np.abs(vectors).max(axis=1, keepdims=True, initial=0.0)
    scaled = vectors / np.where(peak > 0, peak, 1.0)
    length = np.linalg.norm(scaled, axis=1, keepdims=True)
    return scaled / np.where(length > 0, length, 1.0)


def clipped(moves: Array, bounds: Bounds | None) -> Array:
    return moves if bounds is None else np.clip(moves, *bounds)


def confined(target: Target, owners: Array, moves: Array) -> Array:
    """The moves (B, r), brought back to the support as far as its shape is known."""
    inside = clipped(moves, target.bounds(owners))
    if not target.walled:
        return inside
    return target.within_walls(owners, inside)  # type: ignore[attr-defined]
