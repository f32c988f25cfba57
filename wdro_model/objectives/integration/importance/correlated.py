"""Gaussians with a full covariance on a box, for proposals in a few dimensions.

y = c + L z with L lower triangular is drawn coordinate by coordinate, each truncated to its bounds
given the ones before (Geweke, Hajivassiliou and Keane). The density is that of the Gaussian over
the masses of those intervals, which depend on the earlier coordinates:

    log q(y) = sum_i log phi(z_i) - log L_ii - log(Phi(b_i) - Phi(a_i)).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr

from wdro_model.objectives.integration.importance.proposals import (
    HALF_LOG_2PI,
    Bounds,
    log_scaled_mass,
)
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.sampling import Truncation, inverse_cdf

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
