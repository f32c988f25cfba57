"""The tilted distribution of the forms: Gaussian where h is quadratic, by quadrature elsewhere.

    density proportional to exp(g(t)),   g(t) = h(u_k + L t)/eps - |t|^2/2,   t in R^r.

On a plane a smooth law with one mode is integrated by equal steps in both directions, scaled by the
Hessian at the mode: exact to rounding where half of the points give the same. Samples for which
they do not, or which have another mode of some height, are integrated by lines within lines. A
maximum of affine pieces of which one outweighs the rest is a Gaussian; others are integrated in
closed form along one direction and by lines along the other.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from wdro_model.objectives.integration.inner_integral import Divergence
from wdro_model.objectives.integration.lines import (
    CONVEX,
    integrate_lines,
    lines_within_lines,
    whole_lines,
)
from wdro_model.objectives.integration.low_rank.forms import Outer
from wdro_model.objectives.integration.modes import Target, ascend
from wdro_model.objectives.integration.normal import (
    HALF_LOG_2PI,
    TiltedLaw,
    integrate_pieces,
    join_laws,
    log_sum_exp,
    normal_interval,
)
from wdro_model.solvers.objective import Array

INNER_BLOCK, WINDOW_BLOCK = 2048, 64
"""Integrals along lines, and samples with a window, that are computed at once: their arrays stay in
the processor's cache."""


@dataclass(frozen=True)
class Tolerances:
    """Limits of the integrals; lengths in standard deviations of t."""

    flat: float = 1e-9
    """A precision below is taken for a density that is not Gaussian."""
    definite: float = 1e-13
    """A precision below means that the law has no mass to normalise by."""
    inner: float = 1e-10
    """Relative error of the inner integrals of lines within lines."""
    plane: float = 1e-9
    """The same for the outer integrals."""
    step: float = 0.5
    """Step of the window around a mode."""
    reach: float = 8.25
    """Radius of the window."""
    agreement: float = 2e-8
    """Relative difference of the sums over all points of a window and over every second one."""
    window: float = 27.0
    """Other modes so far below the highest one, in the log of the density, are left out."""
    dominant: float = 1e-12
    """Relative mass of all other pieces below which one piece is taken for the maximum."""
    difference: float = 1e-2
    """Step of the differences of gradients."""
    precision_range: tuple[float, float] = (0.02, 1e12)
    """Precisions of the Gaussian that scales a window."""


LIMITS = Tolerances()


# ------------------------------
# Tilted laws of quadratic functions: Gaussians, on intervals truncated ones


def gaussian_law(c: Array, b: Array, A: Array) -> TiltedLaw:
    """H = c + b't + t'At/2 on R^r for c (F,), b (F, r), A (F, r, r): t ~ N(C b, C), C = (I - A)^-1.

    The points integrate cubic polynomials exactly (those of degree five for r <= 2).
    """
    size, rank = b.shape
    precision = np.eye(rank) - 0.5 * (A + A.swapaxes(1, 2))
    values, vectors = np.linalg.eigh(precision)
    diverges = values[:, 0] <= LIMITS.definite
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
    round_ = 1.0 - bend > LIMITS.flat
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

    at_ends = integrate_lines(exponent, low[rest], high[rest], curvature="convex")
    return join_laws([(rows, law), (rest, at_ends)], len(c))


def sigma_points(rank: int) -> tuple[Array, Array]:
    """Points (m, r) and weights with the moments of N(0, I_r)."""
    if rank > 2:
        offsets = np.sqrt(rank) * np.concatenate([np.eye(rank), -np.eye(rank)])
        return offsets, np.full(2 * rank, 0.5 / rank)
    nodes, weights = np.sqrt(3.0) * np.array([-1, 0, 1]), np.array([1, 4, 1]) / 6
    grid = np.stack(np.meshgrid(*[nodes] * rank, indexing="ij"), axis=-1).reshape(-1, rank)
    products = np.stack(np.meshgrid(*[weights] * rank, indexing="ij"), axis=-1)
    return grid, products.reshape(-1, rank).prod(axis=1)


# ------------------------------
# The tilted law of t in the cases that need no sampling: h quadratic, or t of rank at most two


ANGLES = 2 * np.pi * np.arange(16) / 16
RING = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
STARTS = np.concatenate([np.zeros((1, 2)), *(r * RING for r in (4.0, 64.0, 4096.0))])
"""Points whose slopes tell where modes may be."""


def tilted_law(outer: Outer, u: Array, L: Array) -> TiltedLaw:
    """The tilted laws for forms u (K, q) moved by L (K or 1, q, r), r <= 2 or h quadratic."""
    rank, structure = L.shape[-1], outer.structure
    if rank == 0:
        owner = np.arange(len(u))
        return TiltedLaw(outer(owner, u), owner, np.zeros((len(u), 0)), np.ones(len(u)))
    if structure.quadratic:
        return gaussian_law(*outer.parabolas(u, L))
    if structure.pieces is not None:
        values, slopes = outer.pieces(u)
        b = slopes @ L
        return integrate_pieces(values, b[..., 0]) if rank == 1 else piece_plane_law(values, b)
    if rank == 2:
        return plane_law(outer, u, L)
    exponent = outer.line_exponent(u, L[..., 0])
    return integrate_lines(exponent, *whole_lines(len(u)), curvature=structure.curvature)


# ------------------------------------------------------------------ any function on a plane
@dataclass
class FormTarget(Target):
    """g(t) = h(u_k + L t)/eps - |t|^2/2 for K samples, as a target of ascents.

    u (K, q), L (K, q, r).
    """

    outer: Outer
    u: Array
    L: Array
    dimension: int = field(init=False)

    def __post_init__(self) -> None:
        self.dimension = self.L.shape[-1]

    def __call__(self, owners: Array, moves: Array) -> tuple[Array, Array]:
        """g at points (M, r) of the samples owners (M,), +inf for NaN, and its gradients (M, r)."""
        values, slopes = self.outer.with_slopes(owners, self._forms(owners, moves))
        tilt = np.nan_to_num(np.einsum("mq,mqr->mr", slopes, self.L[owners]))
        return self._lowered(values, moves), tilt - moves

    def values(self, owners: Array, moves: Array) -> Array:
        return self._lowered(self.outer(owners, self._forms(owners, moves)), moves)

    def variance(self, owners: Array, moves: Array) -> Array:
        return np.ones((1, self.dimension))

    def _forms(self, owners: Array, moves: Array) -> Array:
        return self.u[owners] + np.einsum("mqr,mr->mq", self.L[owners], moves)

    def _lowered(self, values: Array, moves: Array) -> Array:
        with np.errstate(invalid="ignore"):
            lowered = values - 0.5 * np.einsum("mr,mr->m", moves, moves)
        return np.where(np.isnan(lowered), np.inf, lowered)


def plane_law(outer: Outer, u: Array, L: Array) -> TiltedLaw:
    """The tilted law of h(u_k + L t)/eps, L (K or 1, q, 2)."""
    size = len(u)
    target = FormTarget(outer, u, np.broadcast_to(L, (size, *L.shape[1:])))
    parts = []
    for start in range(0, size, WINDOW_BLOCK):
        some = np.arange(start, min(start + WINDOW_BLOCK, size))
        with np.errstate(all="ignore"), suppress(Divergence):
            parts.append(window_law(target, some))
    left = np.ones(size, dtype=bool)
    for rows, _ in parts:
        left[rows] = False
    if left.any():
        rest = np.flatnonzero(left)
        parts.append((rest, lines_law(outer, u, target.L, rest)))
    return join_laws(parts, size)


def lines_law(outer: Outer, u: Array, L: Array, samples: Array) -> TiltedLaw:
    """The laws of some samples by lines within lines."""
    curvature = outer.structure.curvature

    def inner(owner: Array, s: Array) -> TiltedLaw:
        parts = []
        for start in range(0, max(1, len(owner)), INNER_BLOCK):
            who = samples[owner[start : start + INNER_BLOCK]]
            base = u[who] + L[who, :, 0] * s[start : start + INNER_BLOCK, None]
            line = outer.line_exponent(base, L[who, :, 1], who)
            law = integrate_lines(
                line, *whole_lines(len(who)), curvature=curvature, tolerance=LIMITS.inner
            )
            parts.append((start + np.arange(len(who)), law))
        return join_laws(parts, len(owner))

    return lines_within_lines(inner, len(samples), curvature, LIMITS.plane)


def _lattice() -> tuple[Array, Array]:
    """Points of a square lattice in a disc, and which of them are on the lattice twice as wide."""
    side = np.arange(-int(LIMITS.reach / LIMITS.step), int(LIMITS.reach / LIMITS.step) + 1)
    index = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)
    index = index[np.linalg.norm(LIMITS.step * index, axis=1) <= LIMITS.reach]
    return LIMITS.step * index, (index % 2 == 0).all(axis=1)


POINTS, COARSE = _lattice()
BORDER = np.linalg.norm(POINTS, axis=1) > LIMITS.reach - 2 * LIMITS.step


def window_law(target: FormTarget, samples: Array) -> tuple[Array, TiltedLaw]:
    """The samples that equal steps around the highest mode integrate well, and their laws."""
    size = len(samples)
    owner = np.repeat(samples, len(STARTS))
    # Where the mode would be if h were affine with the slope that it has at a start.
    starts = np.tile(STARTS, (size, 1))
    tilted = target(owner, starts)[1] + starts
    heights = target.values(owner, tilted).reshape(size, -1)
    tilted = tilted.reshape(size, -1, 2)
    start = tilted[np.arange(size), heights.argmax(axis=1)]
    mode, height, gradient = ascend(target, samples, start)
    values, vectors = _axes(target, samples, mode, gradient)
    root = vectors / np.sqrt(values)[:, None]
    t = mode[:, None] + POINTS @ root.swapaxes(1, 2)
    g = target.values(np.repeat(samples, len(POINTS)), t.reshape(-1, 2)).reshape(size, -1)
    best = np.maximum(g.max(axis=1), height)
    mass = np.exp(g - best[:, None])
    noise = 1e-15 * (np.abs(best) + 0.5 * (t * t).sum(axis=-1).max(axis=1))
    settled = _agrees(mass, np.maximum(LIMITS.agreement, 10 * noise))
    apart = np.einsum("kms,ksr->kmr", tilted - mode[:, None], vectors)
    distance = np.sqrt(np.einsum("kmr,kr->km", apart**2, values))
    settled &= ~((distance > LIMITS.reach) & (heights > best[:, None] - LIMITS.window)).any(axis=1)
    settled &= ~_rises(target, samples)
    total = mass.sum(axis=1)[settled]
    area = LIMITS.step**2 / np.sqrt(values.prod(axis=1)[settled])
    log_mass = best[settled] + np.log(total * area) - 2 * HALF_LOG_2PI
    row, column = np.nonzero(mass[settled] > 1e-17)
    weights = mass[settled][row, column] / total[row]
    return samples[settled], TiltedLaw(log_mass, row, t[settled][row, column], weights)


def _agrees(mass: Array, allowed: Array) -> Array:
    """For which samples do sums over a window and over every second point of it agree?"""
    total = mass.sum(axis=1)
    good = np.isfinite(total) & (mass[:, BORDER].sum(axis=1) < 1e-10 * total)
    good &= np.abs(4 * mass[:, COARSE].sum(axis=1) - total) <= allowed * total
    for i in (0, 1):
        moment, coarse = mass @ POINTS[:, i], mass[:, COARSE] @ POINTS[COARSE, i]
        good &= np.abs(4 * coarse - moment) <= 10 * allowed * total
    return good


def _rises(target: FormTarget, samples: Array) -> Array:
    """For which samples does g rise far out in some direction?"""
    owner = np.repeat(samples, len(RING))
    near, far = (
        target.values(owner, np.tile(r * RING, (len(samples), 1))) for r in (2.0**24, 2.0**40)
    )
    rises = (far > near) | np.isposinf(far)
    return np.any(rises.reshape(len(samples), -1), axis=1)


def _axes(target: FormTarget, owner: Array, t: Array, gradient: Array) -> tuple[Array, Array]:
    """Eigenvalues, kept positive, and eigenvectors of -Hess g by differences of gradients."""
    moved = [target(owner, t + step)[1] for step in LIMITS.difference * np.eye(2)]
    hessian = (np.stack(moved, axis=1) - gradient[:, None]) / LIMITS.difference
    values, vectors = np.linalg.eigh(-0.5 * (hessian + hessian.swapaxes(1, 2)))
    return np.clip(values, *LIMITS.precision_range), vectors


# ------------------------------------------------------------------ maxima of affine pieces
def piece_plane_law(a: Array, b: Array) -> TiltedLaw:
    """A maximum of a_p + b_p't, a (K, P), b (K or 1, P, 2).

    E exp(max_p) lies between the largest of exp(a_p + |b_p|^2/2) and the sum of them.
    """
    size, rows = len(a), np.arange(len(a))
    b = np.broadcast_to(b, (*a.shape, 2))
    mass = a + 0.5 * np.einsum("kpr,kpr->kp", b, b)
    lead, others = mass.argmax(axis=1), mass.copy()
    others[rows, lead] = -np.inf
    rest = log_sum_exp(others.ravel(), np.repeat(rows, a.shape[1]), size)
    alone = rest - mass[rows, lead] < np.log(LIMITS.dominant)
    single, several = np.flatnonzero(alone), np.flatnonzero(~alone)
    parts = []
    if len(single):
        offsets, weights = sigma_points(2)
        points = b[single, lead[single]][:, None] + offsets
        owner = np.repeat(np.arange(len(single)), len(offsets))
        law = TiltedLaw(
            mass[single, lead[single]], owner, points.reshape(-1, 2), np.tile(weights, len(single))
        )
        parts.append((single, law))
    if len(several):
        a, b = a[several], b[several]

        def inner(owner: Array, s: Array) -> TiltedLaw:
            return integrate_pieces(a[owner] + b[owner, :, 0] * s[:, None], b[owner, :, 1])

        parts.append((several, lines_within_lines(inner, len(a), CONVEX, LIMITS.plane)))
    return join_laws(parts, size)
