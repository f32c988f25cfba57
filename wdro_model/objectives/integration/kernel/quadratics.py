"""Tilted laws of quadratic functions: Gaussians, on intervals truncated ones."""

from __future__ import annotations

import numpy as np

from wdro_model.objectives.integration.kernel.laws import TiltedLaw, united
from wdro_model.objectives.integration.kernel.lines import integrate_lines
from wdro_model.objectives.integration.kernel.normal import normal_interval
from wdro_model.solvers.objective import Array

FLAT = 1e-9
"""A precision under this is taken for a density that is not Gaussian."""
DEFINITE = 1e-13
"""The same where there is no end: the law has no mass to normalise by."""


def gaussian_law(c: Array, b: Array, A: Array) -> TiltedLaw:
    """H = c + b't + t'At/2 on R^r for c (F,), b (F, r), A (F, r, r): t ~ N(C b, C), C = (I - A)^-1.

    The points integrate cubic polynomials exactly (those of degree five for r <= 2).
    """
    size, rank = b.shape
    precision = np.eye(rank) - 0.5 * (A + A.swapaxes(1, 2))
    values, vectors = np.linalg.eigh(precision)
    diverges = values[:, 0] <= DEFINITE
    values = np.where(diverges[:, None], 1.0, values)
    along = np.einsum("kr,krs->ks", b, vectors)
    log_mass = c + 0.5 * (along**2 / values - np.log(values)).sum(axis=1)
    offsets, weights = sigma_points(rank)
    scaled = along[:, None] / values[:, None] + offsets / np.sqrt(values)[:, None]
    points = scaled @ vectors.swapaxes(1, 2)
    return TiltedLaw(
        np.where(diverges, np.inf, log_mass),
        np.repeat(np.arange(size), len(offsets)),
        points.reshape(-1, rank),
        np.tile(weights, size),
    )


def quadratic_law(c: Array, b: Array, bend: Array, low: Array, high: Array) -> TiltedLaw:
    """H = c + b t + bend t^2/2 on [low, high], all (F,).

    A Gaussian of precision 1 - bend, restricted to the interval, if that is positive; its
    three points have its mean and variance (and all moments up to the fifth on the whole line).
    Otherwise the mass sits at the ends: by quadrature.
    """
    round_ = 1.0 - bend > FLAT
    rows, rest = np.flatnonzero(round_), np.flatnonzero(~round_)
    p = 1.0 - bend[rows]
    root, mean = np.sqrt(p), b[rows] / p
    part = normal_interval(low[rows] * root, high[rows] * root, mean * root)
    center, spread = part.mean / root, np.sqrt(part.variance) / root
    offsets, weights = sigma_points(1)
    law = TiltedLaw(
        c[rows] + 0.5 * b[rows] * mean - 0.5 * np.log(p) + part.log_mass,
        np.repeat(np.arange(len(rows)), len(offsets)),
        (center[:, None] + spread[:, None] * offsets[:, 0]).reshape(-1, 1),
        np.tile(weights, len(rows)),
    )
    if not len(rest):
        return law

    def exponent(owner: Array, t: Array) -> Array:
        who = rest[owner]
        return c[who] + t * (b[who] + 0.5 * bend[who] * t)

    found = integrate_lines(exponent, low[rest], high[rest], curvature="convex")
    return united([(rows, law), (rest, found)], len(c))


def sigma_points(rank: int) -> tuple[Array, Array]:
    """Points (m, r) and weights with the moments of N(0, I_r)."""
    if rank > 2:
        offsets = np.sqrt(rank) * np.concatenate([np.eye(rank), -np.eye(rank)])
        return offsets, np.full(2 * rank, 0.5 / rank)
    nodes, weights = np.sqrt(3.0) * np.array([-1, 0, 1]), np.array([1, 4, 1]) / 6
    grid = np.stack(np.meshgrid(*[nodes] * rank, indexing="ij"), axis=-1).reshape(-1, rank)
    products = np.stack(np.meshgrid(*[weights] * rank, indexing="ij"), axis=-1)
    return grid, products.reshape(-1, rank).prod(axis=1)
