"""The tilted law where h is quadratic in the forms: a Gaussian, in any rank."""

from __future__ import annotations

import numpy as np

from wdro_model.objectives.integration.low_rank.outer import Outer
from wdro_model.objectives.integration.low_rank.tilted_law import TiltedLaw
from wdro_model.solvers.objective import Array


def gaussian_law(outer: Outer, u: Array, L: Array) -> TiltedLaw:
    """h quadratic: c + b't + t'At/2, and t ~ N(C b, C) with C = (I - A)^-1 if that is definite.

    The points integrate cubic polynomials exactly (those of degree five for r <= 2).
    """
    size, rank = len(u), L.shape[-1]
    owner = np.arange(size)
    L = np.broadcast_to(L, (size, *L.shape[1:]))
    c = outer(owner, u)
    at_rest = outer.slopes(owner, u)
    # Differences over steps of the size of u: those over L would cancel for a small temperature.
    length = np.linalg.norm(L, axis=1)
    step = np.divide(
        1 + np.linalg.norm(u, axis=1)[:, None], length, where=length > 0, out=np.ones_like(length)
    )
    A = np.empty((size, rank, rank))
    for i in range(rank):
        moved = outer.slopes(owner, u + step[:, i, None] * L[:, :, i])
        A[:, i] = np.einsum("kq,kqr->kr", moved - at_rest, L) / step[:, i, None]
    precision = np.eye(rank) - 0.5 * (A + A.swapaxes(1, 2))
    b = np.einsum("kq,kqr->kr", at_rest, L)
    values, vectors = np.linalg.eigh(precision)
    diverges = values[:, 0] <= 1e-13
    values = np.where(diverges[:, None], 1.0, values)
    along = np.einsum("kr,krs->ks", b, vectors)
    log_mass = c + 0.5 * (along**2 / values - np.log(values)).sum(axis=1)
    offsets, weights = sigma_points(rank)
    scaled = along[:, None] / values[:, None] + offsets / np.sqrt(values)[:, None]
    points = scaled @ vectors.swapaxes(1, 2)
    return TiltedLaw(
        np.where(diverges, np.inf, log_mass),
        np.repeat(owner, len(offsets)),
        points.reshape(-1, rank),
        np.tile(weights, size),
    )


def sigma_points(rank: int) -> tuple[Array, Array]:
    """Points (m, r) and weights with the moments of N(0, I_r)."""
    if rank > 2:
        offsets = np.sqrt(rank) * np.concatenate([np.eye(rank), -np.eye(rank)])
        return offsets, np.full(2 * rank, 0.5 / rank)
    nodes, weights = np.sqrt(3.0) * np.array([-1, 0, 1]), np.array([1, 4, 1]) / 6
    grid = np.stack(np.meshgrid(*[nodes] * rank, indexing="ij"), axis=-1).reshape(-1, rank)
    products = np.stack(np.meshgrid(*[weights] * rank, indexing="ij"), axis=-1)
    return grid, products.reshape(-1, rank).prod(axis=1)
