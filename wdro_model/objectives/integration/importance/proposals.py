"""Proposal distributions: Gaussian mixtures, one for each sample.

A component has center c, deviations s_i, and r orthonormal directions u_j along which the deviation
is scaled by t_j (curvature of the loss):

    y = c + s * (g + sum_j (t_j - 1) <u_j, g> u_j),   g ~ N(0, 1).

On a box the coordinates near a bound are truncated Gaussians drawn by their quantiles; bounds more
than REACH deviations away are not seen. Densities of truncated coordinates are taken relative to
the point a of the interval nearest to c, so that nothing cancels when c lies far outside.

y = c + L z with L lower triangular is drawn coordinate by coordinate, each truncated to its bounds
given the ones before (Geweke, Hajivassiliou and Keane). The density is that of the Gaussian over
the masses of those intervals, which depend on the earlier coordinates:

    log q(y) = sum_i log phi(z_i) - log L_ii - log(Phi(b_i) - Phi(a_i)).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import erfcx, logsumexp, ndtr

from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.sampling import Truncation, inverse_cdf

REACH = 6.5
"""Bounds so many deviations away are ignored: a mass of 4e-11."""
HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
BLOCK_ENTRIES = 2**20
"""Density terms computed at once."""

Bounds = tuple[Array, Array]


@dataclass(frozen=True)
class Component:
    """One Gaussian for each of K samples; arrays broadcast from a leading axis of 1."""

    center: Array
    """(K, r)"""
    deviation: Array
    """(K, r)"""
    basis: Array | None
    """Orthonormal directions (K, directions, r) in y / deviation; None for none."""
    scales: Array | None
    """Factors of the deviation along them, (K, directions)."""
    anchor: Array
    """The point nearest to the center within the bounds that matter, (K, r)."""
    truncated: Array | None
    """Coordinates drawn as truncated Gaussians, (K, r); None for none."""
    bounds: Bounds | None
    log_norm: Array
    """log of the density at the anchor, (K,)."""

    def log_density(self, moves: Array, owners: slice = slice(None)) -> Array:
        """Log density (K, S) at the moves (K, S, r) of some of the samples."""

        def part(array: Array) -> Array:
            return array if len(array) == 1 else array[owners]

        inverse = 1.0 / part(self.deviation)[:, None]
        anchor, center = part(self.anchor)[:, None], part(self.center)[:, None]
        first = moves - anchor
        first *= inverse
        if self.truncated is None:
            square = np.einsum("ksr,ksr->ks", first, first)
        else:
            square = np.einsum("ksr,ksr->ks", first, first + 2 * (anchor - center) * inverse)
        if self.basis is not None and self.scales is not None:
            along = np.matmul(first, np.swapaxes(part(self.basis), 1, 2))
            square += np.einsum("ksj,kj->ks", along**2, part(self.scales) ** -2.0 - 1.0)
        return part(self.log_norm)[:, None] - 0.5 * square

    def transport(self, owners: Array | slice, noise: Array, along: Array | None = None) -> Array:
        """Moves (M, r) from standard normal noise (M, r); owners (M,) index the K samples.

        Several for each owner from noise (M, S, r), or from that of one for all, (1, S, r).
        along: standard normal numbers (M,) that replace the noise in the first direction.
        """
        if noise.ndim == 2:
            line = None if along is None else along[:, None]
            return self._transported(owners, noise[:, None], line)[:, 0]
        return self._transported(owners, noise, along)

    def _transported(self, owners: Array | slice, noise: Array, along: Array | None) -> Array:
        def part(array: Array) -> Array:
            return array if len(array) == 1 else array[owners]

        center, deviation = part(self.center)[:, None], part(self.deviation)[:, None]
        given = noise
        if self.basis is not None and self.scales is not None:
            basis, factors = part(self.basis), part(self.scales)[:, None] - 1.0
            inner = noise @ np.swapaxes(basis, 1, 2)
            extra = inner * factors
            if along is not None:
                has = np.einsum("mr,mr->m", basis[:, 0], basis[:, 0])[:, None] > 0.5
                first = along * (1 + factors[..., 0]) - inner[..., 0]
                extra[..., 0] = np.where(has, first, 0.0)
            noise = noise + extra @ basis
        moves = center + deviation * noise
        if self.bounds is None:
            return moves
        sides = [part(side)[:, None] for side in self.bounds]
        if self.truncated is not None:
            count, ends = moves.shape[1], (len(moves), 1, moves.shape[2])
            k, i = np.nonzero(np.broadcast_to(part(self.truncated), (len(moves), moves.shape[2])))
            laws = (np.broadcast_to(a, ends)[k, 0, i] for a in (center, deviation, *sides))
            uniform = ndtr(np.broadcast_to(given, moves.shape)[k, :, i])
            law = Truncation(*(np.repeat(a, count) for a in laws))
            moves[k, :, i] = inverse_cdf(law, uniform.ravel()).reshape(uniform.shape)
        return np.clip(moves, *sides)

    def rows(self, owners: Array) -> Component:
        """Those of some of the samples."""

        def part(array: Array) -> Array:
            return array if len(array) == 1 else array[owners]

        return replace(
            self,
            center=part(self.center),
            deviation=part(self.deviation),
            basis=None if self.basis is None else part(self.basis),
            scales=None if self.scales is None else part(self.scales),
            anchor=part(self.anchor),
            truncated=None if self.truncated is None else part(self.truncated),
            bounds=None if self.bounds is None else (part(self.bounds[0]), part(self.bounds[1])),
            log_norm=part(self.log_norm),
        )

    def scaled(self, factor: float) -> Component:
        """With all deviations multiplied."""
        return component(self.center, factor * self.deviation, self.bounds, self.basis, self.scales)


def component(
    center: Array,
    deviation: Array,
    bounds: Bounds | None,
    basis: Array | None = None,
    scales: Array | None = None,
) -> Component:
    """A component from center and deviations (K, r), directions and factors."""
    dimension = center.shape[1]
    log_norm = -dimension * HALF_LOG_2PI - np.log(deviation).sum(axis=1)
    anchor, truncated = center, None
    if bounds is not None:
        truncated = reachable(center, deviation, bounds)
        if basis is not None and scales is not None:
            wide = deviation * np.sqrt(1 + np.einsum("kjr,kj->kr", basis**2, scales**2 - 1.0))
            # A direction must not mix coordinates that are truncated, or would be once scaled.
            mixed = (basis != 0).any(axis=1) & reachable(
                center, np.maximum(wide, deviation), bounds
            )
            spoiled = mixed.any(axis=1)
            scales = np.where(spoiled[:, None], 1.0, scales)
            basis = np.where(spoiled[:, None, None], 0.0, basis)
        if truncated.any():
            anchor = np.where(truncated, np.clip(center, *bounds), center)
            a, b = ((side - center) / deviation for side in bounds)
            mass = np.zeros(truncated.shape)
            mass[truncated] = log_scaled_mass(a[truncated], b[truncated])
            log_norm = log_norm - mass.sum(axis=1)
        else:
            truncated = None
    if scales is not None:
        log_norm = log_norm - np.log(scales).sum(axis=1)
    return Component(center, deviation, basis, scales, anchor, truncated, bounds, log_norm)


def reachable(center: Array, deviation: Array, bounds: Bounds) -> Array:
    """Coordinates with a bound within REACH deviations of the center."""
    lower, upper = bounds
    return (center - lower < REACH * deviation) | (upper - center < REACH * deviation)


def log_scaled_mass(a: Array, b: Array) -> Array:
    """log of the integral of exp((n^2 - t^2)/2) / sqrt(2 pi) over [a, b], n = the t nearest to 0.

    This is the log mass of the standard normal without its exponential factor in the tail.
    """
    flip = a + b > 0
    low, high = np.where(flip, -b, a), np.where(flip, -a, b)
    near = np.minimum(high, 0.0)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        shifted = np.exp(np.minimum(0.5 * (high - low) * (high + low), 0.0))
        tail = 0.5 * (erfcx(-near / np.sqrt(2)) - erfcx(-low / np.sqrt(2)) * shifted)
        mass = np.where(high < 0, tail, ndtr(high) - ndtr(low))
    width = high - low
    narrow = width * np.maximum(1.0, np.abs(near)) < 0.5
    if narrow.any():
        half = 0.5 * width[narrow, None]
        t = low[narrow, None] + half * (1 + NODES)
        n = near[narrow, None]
        values = np.exp(0.5 * (n - t) * (n + t))
        mass[narrow] = half[:, 0] * (values @ WEIGHTS) * np.exp(-HALF_LOG_2PI)
    return np.log(np.maximum(mass, 1e-300))


@dataclass(frozen=True)
class Mixture:
    """Components with log weights (K, J), -inf where a sample does not use one."""

    components: tuple[Any, ...]
    """Each a `Component` or a `Correlated`."""
    log_weights: Array

    def log_density(self, moves: Array) -> Array:
        """Log density (K, S) at the moves (K, S, r)."""
        size, count, dimension = moves.shape
        out = np.empty((size, count))
        step = max(1, BLOCK_ENTRIES // max(1, count * dimension))
        for start in range(0, size, step):
            some = slice(start, start + step)
            out[some] = self._block(moves[some], some)
        return out

    def _block(self, moves: Array, owners: slice) -> Array:
        weights = self.log_weights[owners]
        terms = [
            c.log_density(moves, owners) + weights[:, j, None]
            for j, c in enumerate(self.components)
        ]
        return terms[0] if len(terms) == 1 else logsumexp(np.stack(terms), axis=0)

    def choose(self, uniform: Array) -> Array:
        """The component of each draw: (K, S) numbers in [0, 1) -> indices."""
        edges = np.cumsum(np.exp(self.log_weights), axis=1)
        edges /= edges[:, -1:]
        return (uniform[:, :, None] >= edges[:, None, :-1]).sum(axis=2)

    def transport(self, choice: Array, noise: Array, along: Array | None = None) -> Array:
        """Moves (K, S, r) from the chosen components (K, S) and normal noise (K, S, r)."""
        if len(self.components) == 1:
            owners = np.repeat(np.arange(len(choice)), choice.shape[1])
            flat = noise.reshape(len(owners), noise.shape[2])
            line = None if along is None else along.reshape(-1)
            return self.components[0].transport(owners, flat, line).reshape(noise.shape)
        moves = np.empty_like(noise)
        for j, one in enumerate(self.components):
            rows, columns = np.nonzero(choice == j)
            if len(rows):
                line = None if along is None else along[rows, columns]
                moves[rows, columns] = one.transport(rows, noise[rows, columns], line)
        return moves

    def of(self, owners: Array) -> Mixture:
        """The mixture of some of the samples."""

        return Mixture(tuple(c.rows(owners) for c in self.components), self.log_weights[owners])


def defended(found: Mixture, share: Array, reference: Component) -> Mixture:
    """The mixture with a share (K,) of the reference, which keeps the weights bounded."""
    if not share.any():
        return found
    with np.errstate(divide="ignore"):
        own, kept = np.log(share)[:, None], np.log1p(-share)[:, None]
    return Mixture(
        (*found.components, reference),
        np.concatenate([found.log_weights + kept, own], axis=1),
    )


def mixture(components: Sequence[Any], log_masses: Array, floor: float, window: float) -> Mixture:
    """Weights proportional to the masses (K, J) that the components stand for.

    Components more than `window` below the best in log mass are left out; the others get at least
    the share `floor` (or half of an equal share).
    """
    best = log_masses.max(axis=1, keepdims=True)
    used = log_masses >= best - window
    shares = np.where(used, np.exp(np.minimum(log_masses - best, 0.0)), 0.0)
    shares /= shares.sum(axis=1, keepdims=True)
    smallest = np.minimum(floor, 0.5 / used.sum(axis=1, keepdims=True))
    shares = np.where(used, np.maximum(shares, smallest), 0.0)
    shares /= shares.sum(axis=1, keepdims=True)
    kept = [int(j) for j in np.flatnonzero(used.any(axis=0))]
    with np.errstate(divide="ignore"):
        log_shares = np.log(shares[:, kept])
    return Mixture(tuple(components[j] for j in kept), log_shares)


# ------------------------------
# Gaussians with a full covariance on a box, for proposals in a few dimensions


CERTAIN = 6.5
"""Bounds so many deviations away are not seen: a mass of 4e-11."""


@dataclass(frozen=True)
class Correlated:
    """One Gaussian for each of K samples, restricted to the bounds."""

    center: Array
    """(K, r)"""
    root: Array
    """Lower triangular root of the covariance, (K, r, r)."""
    bounds: Bounds | None

    @property
    def anchor(self) -> Array:
        """The point of the box nearest to the center, coordinate by coordinate."""
        return self.center if self.bounds is None else np.clip(self.center, *self.bounds)

    def log_density(self, moves: Array, owners: slice = slice(None)) -> Array:
        """Log density (K, S) at the moves (K, S, r) of some of the samples."""
        center, root = self.center[owners], self.root[owners]
        scores = np.zeros(moves.shape)
        out = np.full(moves.shape[:2], -moves.shape[2] * HALF_LOG_2PI)
        for i in range(moves.shape[2]):
            mean = center[:, i, None] + np.einsum("ksj,kj->ks", scores[:, :, :i], root[:, i, :i])
            scale = root[:, i, i, None]
            scores[:, :, i] = (moves[:, :, i] - mean) / scale
            out -= 0.5 * scores[:, :, i] ** 2 + np.log(scale)
            if self.bounds is not None:
                low, high = (side[owners, i, None] for side in self.bounds)
                out -= log_mass((low - mean) / scale, (high - mean) / scale)
        return out

    def transport(self, owners: Array, noise: Array, along: Array | None = None) -> Array:
        """Moves (M, r) from standard normal noise (M, r); owners (M,) index the K samples."""
        center, root = self.center[owners], self.root[owners]
        if self.bounds is None:
            return center + np.einsum("mij,mj->mi", root, noise)
        moves, scores = np.empty(noise.shape), np.zeros(noise.shape)
        for i in range(noise.shape[1]):
            mean = center[:, i] + np.einsum("mj,mj->m", scores[:, :i], root[:, i, :i])
            scale = root[:, i, i]
            low, high = (side[owners, i] for side in self.bounds)
            moves[:, i] = mean + scale * noise[:, i]
            near = (mean - low < CERTAIN * scale) | (high - mean < CERTAIN * scale)
            if near.any():
                law = Truncation(mean[near], scale[near], low[near], high[near])
                moves[near, i] = inverse_cdf(law, ndtr(noise[near, i]))
            moves[:, i] = np.clip(moves[:, i], low, high)
            scores[:, i] = (moves[:, i] - mean) / scale
        return moves

    def rows(self, owners: Array) -> Correlated:
        """Those of some of the samples."""
        bounds = self.bounds
        return Correlated(
            self.center[owners],
            self.root[owners],
            None if bounds is None else (bounds[0][owners], bounds[1][owners]),
        )

    def scaled(self, factor: float) -> Correlated:
        """With all deviations multiplied."""
        return replace(self, root=factor * self.root)


def log_mass(a: Array, b: Array) -> Array:
    """log(Phi(b) - Phi(a)), entry by entry."""
    out = np.zeros(a.shape)
    seen = (a > -CERTAIN) | (b < CERTAIN)
    if seen.any():
        a, b = a[seen], b[seen]
        nearest = np.clip(0.0, a, b)
        out[seen] = log_scaled_mass(a, b) - 0.5 * nearest**2
    return out


def correlated(center: Array, precision: Array, bounds: Bounds | None) -> Correlated:
    """From centers (K, r) and precisions (K, r, r)."""
    # The root of the inverse, lower triangular: reverse the order, invert the root, reverse back.
    flipped = np.linalg.cholesky(precision[:, ::-1, ::-1])
    root = np.swapaxes(np.linalg.inv(flipped), 1, 2)[:, ::-1, ::-1]
    return Correlated(center, root, bounds)
