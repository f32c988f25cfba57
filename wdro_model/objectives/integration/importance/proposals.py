"""Proposal distributions: Gaussian mixtures, one for each sample.

A component has center c, deviations s_i, and r orthonormal directions u_j along which the deviation
is scaled by t_j (curvature of the loss):

    y = c + s * (g + sum_j (t_j - 1) <u_j, g> u_j),   g ~ N(0, 1).

On a box the coordinates near a bound are truncated Gaussians drawn by their quantiles; bounds far
away are not seen. Densities of truncated coordinates are taken relative to the point a of the
interval nearest to c, so that nothing cancels when c lies far outside.

y = c + L z with L lower triangular is drawn coordinate by coordinate, each truncated to its bounds
given the ones before (Geweke, Hajivassiliou and Keane). The density is that of the Gaussian over
the masses of those intervals, which depend on the earlier coordinates:

    log q(y) = sum_i log phi(z_i) - log L_ii - log(Phi(b_i) - Phi(a_i)).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import erfcx, logsumexp, ndtr

from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.sampling import Truncation, inverse_cdf

BOUND_REACH = 6.5
"""Bounds farther from a center than so many deviations are ignored: a mass of 4e-11."""
HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)
NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
BLOCK_ENTRIES = 2**20
"""Density terms computed at once."""

Bounds = tuple[Array, Array]


def of_owners(array: Array, owners: Array | slice) -> Array:
    """The entries of some samples; an array with a leading axis of 1 serves all of them."""
    return array if len(array) == 1 else array[owners]


@dataclass(frozen=True)
class Component:
    """One Gaussian for each of K samples; arrays broadcast from a leading axis of 1."""

    center: Array
    """(K, r)"""
    deviation: Array
    """(K, r)"""
    basis: Array
    """Orthonormal directions (K, directions, r) in y / deviation, or zeros."""
    scales: Array
    """Factors of the deviation along them, (K, directions)."""
    anchor: Array
    """The point nearest to the center within the bounds that matter, (K, r)."""
    truncated: Array | None
    """Coordinates drawn as truncated Gaussians, (K, r); None for none."""
    bounds: Bounds | None
    log_norm: Array
    """log of the density at the anchor, (K,)."""

    def log_density(self, moves: Array, owners: Array | slice = slice(None)) -> Array:
        """Log density (K, S) at the moves (K, S, r) of some of the samples."""
        one = self.subset(owners)
        inverse = 1.0 / one.deviation[:, None]
        anchor, center = one.anchor[:, None], one.center[:, None]
        first = moves - anchor
        first *= inverse
        if self.truncated is None:
            square = np.einsum("ksr,ksr->ks", first, first)
        else:
            square = np.einsum("ksr,ksr->ks", first, first + 2 * (anchor - center) * inverse)
        if one.basis.shape[1]:
            along = first @ np.swapaxes(one.basis, 1, 2)
            square += np.einsum("ksj,kj->ks", along**2, one.scales**-2.0 - 1.0)
        return one.log_norm[:, None] - 0.5 * square

    def transport(self, owners: Array | slice, noise: Array) -> Array:
        """Moves (M, S, r) from normal noise (M, S, r), or (1, S, r) for all owners (M,)."""
        one = self.subset(owners)
        center, deviation = one.center[:, None], one.deviation[:, None]
        bent = noise
        if one.basis.shape[1]:
            inner = noise @ np.swapaxes(one.basis, 1, 2)
            bent = noise + (inner * (one.scales[:, None] - 1.0)) @ one.basis
        moves = center + deviation * bent
        if one.bounds is None:
            return moves
        sides = [side[:, None] for side in one.bounds]
        if one.truncated is not None:
            # The coordinates that are truncated, each with all of its draws.
            size, count, r = moves.shape
            k, i = np.nonzero(np.broadcast_to(one.truncated, (size, r)))
            parts = (np.broadcast_to(a, (size, 1, r))[k, 0, i] for a in (center, deviation, *sides))
            law = Truncation(*(np.repeat(a, count) for a in parts))
            uniform = ndtr(np.broadcast_to(noise, moves.shape)[k, :, i])
            moves[k, :, i] = inverse_cdf(law, uniform.ravel()).reshape(uniform.shape)
        return np.clip(moves, *sides)

    def subset(self, owners: Array | slice) -> Component:
        """The Gaussians of some of the samples."""
        bounds = self.bounds
        return Component(
            of_owners(self.center, owners),
            of_owners(self.deviation, owners),
            of_owners(self.basis, owners),
            of_owners(self.scales, owners),
            of_owners(self.anchor, owners),
            None if self.truncated is None else of_owners(self.truncated, owners),
            None
            if bounds is None
            else (of_owners(bounds[0], owners), of_owners(bounds[1], owners)),
            of_owners(self.log_norm, owners),
        )

    def scaled(self, factor: float) -> Component:
        """The Gaussians with all deviations multiplied."""
        return component(self.center, factor * self.deviation, self.bounds, self.basis, self.scales)


def component(
    center: Array,
    deviation: Array,
    bounds: Bounds | None,
    basis: Array | None = None,
    scales: Array | None = None,
) -> Component:
    """A component from center and deviations (K, r), directions and factors."""
    r = center.shape[1]
    basis = np.zeros((1, 0, r)) if basis is None else basis
    scales = np.ones(basis.shape[:2]) if scales is None else scales
    log_norm = -r * HALF_LOG_2PI - np.log(deviation).sum(axis=1)
    anchor, truncated = center, None
    if bounds is not None:
        truncated = reachable(center, deviation, bounds)
        if basis.shape[1]:
            # A direction must not mix coordinates that are truncated, or would be once scaled.
            wide = deviation * np.sqrt(1 + np.einsum("kjr,kj->kr", basis**2, scales**2 - 1.0))
            near = reachable(center, np.maximum(wide, deviation), bounds)
            spoiled = ((basis != 0).any(axis=1) & near).any(axis=1)
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
    log_norm = log_norm - np.log(scales).sum(axis=1)
    return Component(center, deviation, basis, scales, anchor, truncated, bounds, log_norm)


def reachable(center: Array, deviation: Array, bounds: Bounds) -> Array:
    """Coordinates with a bound within BOUND_REACH deviations of the center."""
    lower, upper = bounds
    return (center - lower < BOUND_REACH * deviation) | (upper - center < BOUND_REACH * deviation)


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

    components: tuple[Component | Correlated, ...]
    log_weights: Array

    def log_density(self, moves: Array) -> Array:
        """Log density (K, S) at the moves (K, S, r)."""
        size, count, dimension = moves.shape
        out = np.empty((size, count))
        step = max(1, BLOCK_ENTRIES // max(1, count * dimension))
        for start in range(0, size, step):
            own = slice(start, start + step)
            terms = [
                one.log_density(moves[own], own) + weights[own, None]
                for one, weights in zip(self.components, self.log_weights.T)
            ]
            out[own] = terms[0] if len(terms) == 1 else logsumexp(np.stack(terms), axis=0)
        return out

    def transport(self, uniform: Array, noise: Array) -> Array:
        """Moves (K, S, r) from numbers in [0, 1), which choose components, and normal noise."""
        if len(self.components) == 1:
            return self.components[0].transport(slice(None), noise)
        edges = np.cumsum(np.exp(self.log_weights), axis=1)
        edges /= edges[:, -1:]
        choice = (uniform[:, :, None] >= edges[:, None, :-1]).sum(axis=2)
        moves = np.empty_like(noise)
        for j, one in enumerate(self.components):
            rows, columns = np.nonzero(choice == j)
            if len(rows):
                moves[rows, columns] = one.transport(rows, noise[rows, columns][:, None])[:, 0]
        return moves

    def subset(self, owners: Array) -> Mixture:
        """The mixtures of some of the samples."""
        return Mixture(
            tuple(one.subset(owners) for one in self.components), self.log_weights[owners]
        )


def with_reference(proposals: Mixture, share: Array, reference: Component) -> Mixture:
    """The mixture with a share (K,) of the reference, which keeps the weights bounded."""
    if not share.any():
        return proposals
    with np.errstate(divide="ignore"):
        own, kept = np.log(share)[:, None], np.log1p(-share)[:, None]
    log_weights = np.concatenate([proposals.log_weights + kept, own], axis=1)
    return Mixture((*proposals.components, reference), log_weights)


def mixture(
    components: Sequence[Component | Correlated], log_masses: Array, floor: float, window: float
) -> Mixture:
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

    def log_density(self, moves: Array, owners: Array | slice = slice(None)) -> Array:
        """Log density (K, S) at the moves (K, S, r) of some of the samples."""
        one = self.subset(owners)
        scores = np.zeros(moves.shape)
        out = np.full(moves.shape[:2], -moves.shape[2] * HALF_LOG_2PI)
        for i in range(moves.shape[2]):
            mean, scale, ends = one.conditional(i, scores)
            scores[:, :, i] = (moves[:, :, i] - mean) / scale
            out -= 0.5 * scores[:, :, i] ** 2 + np.log(scale)
            if ends is not None:
                out -= log_mass(*((end - mean) / scale for end in ends))
        return out

    def transport(self, owners: Array | slice, noise: Array) -> Array:
        """Moves (M, S, r) from standard normal noise (M, S, r) of owners (M,)."""
        one = self.subset(owners)
        if one.bounds is None:
            return one.center[:, None] + noise @ np.swapaxes(one.root, 1, 2)
        moves, scores = np.empty(noise.shape), np.zeros(noise.shape)
        for i in range(noise.shape[2]):
            mean, scale, ends = one.conditional(i, scores)
            assert ends is not None
            moves[:, :, i] = mean + scale * noise[:, :, i]
            law = [np.broadcast_to(part, mean.shape) for part in (mean, scale, *ends)]
            near = (mean - ends[0] < BOUND_REACH * scale) | (ends[1] - mean < BOUND_REACH * scale)
            if near.any():
                moves[near, i] = inverse_cdf(
                    Truncation(*(part[near] for part in law)), ndtr(noise[near, i])
                )
            moves[:, :, i] = np.clip(moves[:, :, i], *ends)
            scores[:, :, i] = (moves[:, :, i] - mean) / scale
        return moves

    def conditional(self, i: int, scores: Array) -> tuple[Array, Array, Bounds | None]:
        """Mean (K, S), deviation (K, 1) and bounds (K, 1) of coordinate i given those before."""
        before = np.einsum("ksj,kj->ks", scores[:, :, :i], self.root[:, i, :i])
        ends = (
            None
            if self.bounds is None
            else (self.bounds[0][:, i, None], self.bounds[1][:, i, None])
        )
        return self.center[:, i, None] + before, self.root[:, i, i, None], ends

    def subset(self, owners: Array | slice) -> Correlated:
        """The Gaussians of some of the samples."""
        bounds = self.bounds
        return Correlated(
            self.center[owners],
            self.root[owners],
            None if bounds is None else (bounds[0][owners], bounds[1][owners]),
        )

    def scaled(self, factor: float) -> Correlated:
        """The Gaussians with all deviations multiplied."""
        return replace(self, root=factor * self.root)


def log_mass(a: Array, b: Array) -> Array:
    """log(Phi(b) - Phi(a)), entry by entry."""
    out = np.zeros(a.shape)
    seen = (a > -BOUND_REACH) | (b < BOUND_REACH)
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
