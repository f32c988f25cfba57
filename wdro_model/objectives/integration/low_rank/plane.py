"""Tilted laws over a plane, t in R^2.

A smooth law with one mode is integrated by equal steps in both directions, scaled by the Hessian at
the mode: exact to rounding where half of the points give the same. Samples for which they do not,
or which have another mode of some height, are integrated by lines within lines. A maximum of affine
pieces of which one outweighs the rest is a Gaussian; others are integrated in closed form along one
direction and by lines along the other.
"""

from __future__ import annotations

import numpy as np

from wdro_model.objectives.integration.low_rank.form_ascent import FormTarget, ascend
from wdro_model.objectives.integration.low_rank.gaussian_law import sigma_points
from wdro_model.objectives.integration.low_rank.line_bounds import CONVEX
from wdro_model.objectives.integration.low_rank.line_panels import Exponent
from wdro_model.objectives.integration.low_rank.outer import Outer
from wdro_model.objectives.integration.low_rank.piecewise import integrate_pieces
from wdro_model.objectives.integration.low_rank.quadrature import LineIntegral, integrate_lines
from wdro_model.objectives.integration.low_rank.tilted_law import (
    HALF_LOG_2PI,
    TiltedLaw,
    log_sum_exp,
    merged,
)
from wdro_model.solvers.objective import Array

BLOCK = 2048
"""Inner integrals that are computed at once."""
WINDOW_BLOCK = 64
"""Samples whose windows are computed at once: their arrays stay in the processor's cache."""
INNER, PLANE = 1e-10, 1e-9
"""Tolerances of the inner and of the outer integral of lines within lines."""
STEP, REACH = 0.5, 8.25
AGREEMENT = 2e-8
"""Relative difference of the sums over all points and over every second one."""
FLOOR = 27.0
"""Other modes so far below the highest one in logarithm are left out."""
DOMINANT = 1e-12
"""Relative mass of all other pieces under which one piece is taken for the maximum."""
RADII = np.array([4.0, 64.0, 4096.0])
ANGLES = 16


def _window() -> tuple[Array, Array]:
    """Points of a square lattice in a disc, and which of them are on the lattice twice as wide."""
    side = np.arange(-int(REACH / STEP), int(REACH / STEP) + 1)
    index = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)
    index = index[np.linalg.norm(STEP * index, axis=1) <= REACH]
    return STEP * index, (index % 2 == 0).all(axis=1)


POINTS, COARSE = _window()
RIM = np.linalg.norm(POINTS, axis=1) > REACH - 2 * STEP


# ------------------------------------------------------------------ any outer function
def plane_law(outer: Outer, u: Array, L: Array) -> TiltedLaw:
    """The tilted law of h(u_k + L t)/eps, L (K or 1, q, 2)."""
    size = len(u)
    target = FormTarget(outer, u, np.broadcast_to(L, (size, *L.shape[1:])))
    laws, left = [], []
    for start in range(0, size, WINDOW_BLOCK):
        with np.errstate(all="ignore"):
            law, settled = window_law(target, np.arange(start, min(start + WINDOW_BLOCK, size)))
        laws.append(law)
        left.append(start + np.flatnonzero(~settled))
    rest = np.concatenate(left)
    if len(rest):
        laws.append(lines_law(outer, u, target.L, rest))
    return merged(laws, size)


def window_law(target: FormTarget, samples: Array) -> tuple[TiltedLaw, Array]:
    """The law by equal steps around the highest mode, for those samples where that is exact."""
    size = len(samples)
    angles = 2 * np.pi * np.arange(ANGLES) / ANGLES
    ring = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    starts = np.concatenate([np.zeros((1, 2)), (RADII[:, None, None] * ring).reshape(-1, 2)])
    owner = np.repeat(samples, len(starts))
    tilted = target.tilt(owner, np.tile(starts, (size, 1)))
    heights = target(owner, tilted).reshape(size, -1)
    tilted = tilted.reshape(size, -1, 2)
    top = ascend(target, samples, tilted[np.arange(size), heights.argmax(axis=1)])
    values, vectors = np.linalg.eigh(top.precision)
    root = vectors / np.sqrt(values)[:, None]
    t = top.points[:, None] + POINTS @ root.swapaxes(1, 2)
    g = target(np.repeat(samples, len(POINTS)), t.reshape(-1, 2)).reshape(size, -1)
    best = np.maximum(g.max(axis=1), top.heights)
    mass = np.exp(g - best[:, None])
    total = mass.sum(axis=1)
    settled = np.isfinite(total) & (mass[:, RIM].sum(axis=1) < 1e-10 * total)
    noise = 1e-15 * (np.abs(best) + 0.5 * (t * t).sum(axis=-1).max(axis=1))
    allowed = np.maximum(AGREEMENT, 10 * noise)
    settled &= np.abs(4 * mass[:, COARSE].sum(axis=1) - total) <= allowed * total
    for i in (0, 1):
        moment, coarse = mass @ POINTS[:, i], mass[:, COARSE] @ POINTS[COARSE, i]
        settled &= np.abs(4 * coarse - moment) <= 10 * allowed * total
    apart = np.einsum("kms,ksr->kmr", tilted - top.points[:, None], vectors)
    distance = np.sqrt(np.einsum("kmr,kr->km", apart**2, values))
    settled &= ~((distance > REACH) & (heights > best[:, None] - FLOOR)).any(axis=1)
    settled &= ~_rises(target, samples, ring)
    keep = (mass > 1e-17) & settled[:, None]
    row, column = np.nonzero(keep)
    area = STEP**2 / np.sqrt(values.prod(axis=1))
    log_mass = best + np.log(total * area) - 2 * HALF_LOG_2PI
    return (
        TiltedLaw(
            log_mass[settled],
            samples[row],
            t[row, column],
            mass[row, column] / total[row],
            samples=samples[settled],
        ),
        settled,
    )


def _rises(target: FormTarget, samples: Array, ring: Array) -> Array:
    """For which samples does g rise far out in some direction?"""
    rays = [
        target(np.repeat(samples, len(ring)), np.tile(r * ring, (len(samples), 1)))
        for r in (2.0**24, 2.0**40)
    ]
    rises = (rays[1] > rays[0]) | np.isposinf(rays[1])
    return np.any(rises.reshape(len(samples), -1), axis=1)


def lines_law(outer: Outer, u: Array, L: Array, samples: Array) -> TiltedLaw:
    """The law of some samples by lines within lines."""

    def inner(owner: Array, s: Array) -> list[tuple[int, LineIntegral]]:
        blocks = []
        for start in range(0, len(owner), BLOCK):
            who = samples[owner[start : start + BLOCK]]
            base = u[who] + L[who, :, 0] * s[start : start + BLOCK, None]
            line = along(outer, base, L[who, :, 1], who)
            blocks.append(
                (start, integrate_lines(line, len(who), curvature=outer.curvature, tolerance=INNER))
            )
        return blocks

    def exponent(owner: Array, s: Array) -> Array:
        return np.concatenate([found.log_mass for _, found in inner(owner, s)])

    lines = integrate_lines(exponent, len(samples), curvature=outer.curvature, tolerance=PLANE)
    found = inner(lines.owner, lines.nodes)
    empty = LineIntegral(np.zeros(0), np.zeros(0, dtype=int), np.zeros(0), np.zeros(0))
    found = found or [(0, empty)]
    node = np.concatenate([start + part.owner for start, part in found])
    t = np.concatenate([part.nodes for _, part in found])
    weights = np.concatenate([part.weights for _, part in found])
    return TiltedLaw(
        lines.log_mass,
        samples[lines.owner[node]],
        np.column_stack([lines.nodes[node], t]),
        lines.weights[node] * weights,
        samples=samples,
    )


def along(outer: Outer, base: Array, direction: Array, sample: Array | None = None) -> Exponent:
    """H(owner, t) = h(base + direction t)/eps."""
    common = len(direction) == 1

    def exponent(owner: Array, t: Array) -> Array:
        moves = direction[0] if common else direction[owner]
        points = base[owner] + moves * t[:, None]
        return outer(owner if sample is None else sample[owner], points)

    return exponent


# ------------------------------------------------------------------ maxima of affine pieces
def piece_plane_law(a: Array, b: Array) -> TiltedLaw:
    """A maximum of a_p + b_p't, a (K, P), b (K or 1, P, 2).

    E exp(max_p) lies between the largest of exp(a_p + |b_p|^2/2) and the sum of them.
    """
    size = len(a)
    b = np.broadcast_to(b, (*a.shape, 2))
    mass = a + 0.5 * np.einsum("kpr,kpr->kp", b, b)
    lead, rows = mass.argmax(axis=1), np.arange(size)
    others = mass.copy()
    others[rows, lead] = -np.inf
    count = a.shape[1]
    rest = log_sum_exp(others.ravel(), np.repeat(rows, count), size)
    alone = rest - mass[rows, lead] < np.log(DOMINANT)
    single, several = np.flatnonzero(alone), np.flatnonzero(~alone)
    laws = []
    if len(single):
        offsets, weights = sigma_points(2)
        points = b[single, lead[single]][:, None] + offsets
        laws.append(
            TiltedLaw(
                mass[single, lead[single]],
                np.repeat(single, len(offsets)),
                points.reshape(-1, 2),
                np.tile(weights, len(single)),
                samples=single,
            )
        )
    if len(several):
        laws.append(_piece_lines_law(a[several], b[several], several))
    return merged(laws, size)


def _piece_lines_law(a: Array, b: Array, samples: Array) -> TiltedLaw:
    """In closed form along the second direction, by lines along the first."""

    def at(owner: Array, s: Array) -> tuple[Array, Array]:
        return a[owner] + b[owner, :, 0] * s[:, None], b[owner, :, 1]

    def exponent(owner: Array, s: Array) -> Array:
        return integrate_pieces(*at(owner, s)).log_mass

    lines = integrate_lines(exponent, len(a), curvature=CONVEX, tolerance=PLANE)
    inner = integrate_pieces(*at(lines.owner, lines.nodes))
    return TiltedLaw(
        lines.log_mass,
        samples[lines.owner[inner.owner]],
        np.column_stack([lines.nodes[inner.owner], inner.mean]),
        lines.weights[inner.owner] * inner.weights,
        inner.variance,
        samples=samples,
    )
