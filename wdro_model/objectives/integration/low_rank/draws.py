"""The tilted law of t in three dimensions and more: draws from a mixture around its modes.

For g(t) = h(u_k + L t)/eps - |t|^2/2 and modes m_1, m_2, ... of it, the proposal is a mixture of
Gaussians N(m_i, C_i) with weights p_i exp(g(m_i)) |C_i|^(1/2) normalised, and

    E exp(h/eps) ~ sum_i p_i mean_s exp(g(t_is)) / sum_j p_j N(t_is; m_j, C_j) / (2 pi)^(r/2)

with the same random numbers for each mode, so that the estimate varies smoothly with the modes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

from wdro_model.objectives.integration.inner_integral import Stream
from wdro_model.objectives.integration.low_rank.form_ascent import FormTarget, ascend
from wdro_model.objectives.integration.low_rank.outer import Outer
from wdro_model.objectives.integration.low_rank.tilted_law import (
    HALF_LOG_2PI,
    TiltedLaw,
    log_sum_exp,
)
from wdro_model.solvers.objective import Array

INFLATION = 1.2
"""The variance of a proposal over that of the Gaussian that fits at the mode."""
NEGLIGIBLE = 1e-4
"""Modes with a smaller share are left out."""
FAR = 2.0 ** np.array([6, 16, 26, 36])


class QuasiRandom:
    """Standard normal points: one Sobol sequence, shifted by random numbers of each sample."""

    def __init__(self, draws: int) -> None:
        self.draws = draws
        self._sobol: Array | None = None
        self._kept: tuple[Stream, int, dict[int, Array]] | None = None

    def normal(self, samples: Array, stream: Stream, rank: int) -> Array:
        """(K, S, r), those of sample k a function of (stream, k) alone."""
        if self._sobol is None or self._sobol.shape[1] != rank:
            power = max(1, int(np.ceil(np.log2(self.draws))))
            sobol = qmc.Sobol(rank, scramble=False).random_base2(power)
            self._sobol = sobol[: self.draws]
        shifts = np.stack([self._shift(int(k), stream, rank) for k in samples])
        uniform = (self._sobol + shifts[:, None]) % 1.0
        return ndtri(np.clip(uniform, 1e-16, 1 - 1e-16))

    def _shift(self, k: int, stream: Stream, rank: int) -> Array:
        if self._kept is None or self._kept[:2] != (stream, rank):
            self._kept = (stream, rank, {})
        known = self._kept[2]
        if k not in known:
            known[k] = stream.generator(k).random(rank)
        return known[k]


@dataclass(frozen=True)
class DrawnLaw(TiltedLaw):
    """A tilted law by weighted draws."""

    effective_size: Array = field(default_factory=lambda: np.zeros(0))
    """Effective sample size of each sample, between 1 and S."""
    variance_of_log: Array = field(default_factory=lambda: np.zeros(0))
    """Variance of log_mass, as for independent draws."""


@dataclass(frozen=True)
class Modes:
    """Proposals of K samples: m Gaussians each."""

    centers: Array
    """(K, m, r)"""
    roots: Array
    """Square roots of the covariances (K, m, r, r)."""
    log_shares: Array
    """(K, m); -inf for a proposal that is not used."""


def drawn_law(outer: Outer, u: Array, L: Array, normal: Array) -> DrawnLaw:
    """The tilted law for forms u (K, q) moved by L (K or 1, q, r), from normal draws (K, S, r)."""
    size, draws, rank = normal.shape
    L = np.broadcast_to(L, (size, *L.shape[1:]))
    target = FormTarget(outer, u, L)
    modes = _piece_modes(outer, u, L) if outer.pieces is not None else _found_modes(target, rank)
    used = np.isfinite(modes.log_shares)
    sample, mode = np.nonzero(used)
    points = modes.centers[sample, mode][:, None] + np.einsum(
        "asr,aqr->asq", normal[sample], modes.roots[sample, mode]
    )
    owner = np.repeat(sample, draws)
    flat = points.reshape(-1, rank)
    density = _log_mixture(modes, sample, points).ravel()
    share = np.repeat(modes.log_shares[sample, mode], draws)
    ratio = target(owner, flat) - rank * HALF_LOG_2PI - density
    logs = ratio + share - np.log(draws)
    log_mass = log_sum_exp(logs, owner, size)
    diverges = _rises(target, rank)
    weights = np.exp(logs - log_mass[owner])
    # Relative variance of the estimate, mode by mode.
    mean = np.exp(ratio - log_mass[owner]).reshape(len(sample), draws)
    shares = np.exp(modes.log_shares[sample, mode])
    spread = shares**2 * mean.var(axis=1) / max(1, draws - 1)
    variance = np.bincount(sample, weights=spread, minlength=size)
    return DrawnLaw(
        np.where(diverges, np.inf, log_mass),
        owner,
        flat,
        weights,
        None,
        effective_size=draws / (1.0 + draws * variance),
        variance_of_log=variance,
    )


def _log_mixture(modes: Modes, sample: Array, points: Array) -> Array:
    """Log density of the mixture of a sample at its points (A, S, r)."""
    total = np.full(points.shape[:2], -np.inf)
    rank = points.shape[-1]
    inverse = np.linalg.inv(modes.roots)
    _, log_det = np.linalg.slogdet(modes.roots)
    for i in range(modes.centers.shape[1]):
        apart = points - modes.centers[sample, i][:, None]
        z = np.einsum("asr,aqr->asq", apart, inverse[sample, i])
        log = -0.5 * np.einsum("asq,asq->as", z, z) - rank * HALF_LOG_2PI
        log += (modes.log_shares[:, i] - log_det[:, i])[sample][:, None]
        total = np.logaddexp(total, log)
    return total


def _shared(heights: Array) -> Array:
    """Log shares of proposals with these log masses (K, m), the negligible ones left out."""
    top = heights.max(axis=1, keepdims=True)
    logs = np.where(heights < top + np.log(NEGLIGIBLE), -np.inf, heights - top)
    return logs - np.log(np.exp(logs).sum(axis=1, keepdims=True))


def _piece_modes(outer: Outer, u: Array, L: Array) -> Modes:
    """A maximum of a_p + b_p't: each piece tilts N(0, I) to N(b_p, I), of mass exp(a + b^2/2)."""
    values, slopes = outer.lines(u)
    b = slopes @ L
    b = np.broadcast_to(b, (len(u), *b.shape[1:]))
    shares = _shared(values + 0.5 * np.einsum("kpr,kpr->kp", b, b))
    order = np.argsort(-shares, axis=1)[:, : max(1, int(np.isfinite(shares).sum(axis=1).max()))]
    rank = b.shape[-1]
    return Modes(
        np.take_along_axis(b, order[..., None], axis=1),
        np.broadcast_to(np.eye(rank), (len(u), order.shape[1], rank, rank)),
        np.take_along_axis(shares, order, axis=1),
    )


def _found_modes(target: FormTarget, rank: int) -> Modes:
    """Modes reached from 0 and from the slopes far out along each axis."""
    size = len(target.u)
    axes = np.concatenate([np.zeros((1, rank)), np.eye(rank), -np.eye(rank)])
    count = len(axes)
    owner = np.repeat(np.arange(size), count)
    start = target.tilt(owner, np.tile(FAR[0] * axes, (size, 1)))
    # Starts that agree lead to one mode: follow the first of them.
    apart = start.reshape(size, count, rank)
    repeats = np.isneginf(_without_repeats(apart, np.zeros((size, count)))).ravel()
    chosen = np.flatnonzero(~repeats)
    top = ascend(target, owner[chosen], start[chosen])
    values, vectors = np.linalg.eigh(top.precision)
    roots = np.broadcast_to(np.eye(rank), (size * count, rank, rank)).copy()
    roots[chosen] = (vectors * np.sqrt(INFLATION / values)[:, None]) @ vectors.swapaxes(1, 2)
    mass = np.full(size * count, -np.inf)
    mass[chosen] = top.heights - 0.5 * np.log(values).sum(axis=1)
    start[chosen] = top.points
    t = start.reshape(size, count, rank)
    shares = _shared(_without_repeats(t, mass.reshape(size, count)))
    used = np.argsort(-shares, axis=1)[:, : max(1, int(np.isfinite(shares).sum(axis=1).max()))]
    return Modes(
        np.take_along_axis(t, used[..., None], axis=1),
        np.take_along_axis(roots.reshape(size, count, rank, rank), used[..., None, None], axis=1),
        np.take_along_axis(shares, used, axis=1),
    )


def _without_repeats(t: Array, mass: Array) -> Array:
    """The log masses, -inf for a mode that another start has found already."""
    mass = mass.copy()
    for i in range(1, t.shape[1]):
        for j in range(i):
            same = np.linalg.norm(t[:, i] - t[:, j], axis=-1) < 0.5
            mass[same & np.isfinite(mass[:, j]), i] = -np.inf
    return mass


def _rises(target: FormTarget, rank: int) -> Array:
    """Which integrals diverge: g rises without end along some axis."""
    size = len(target.u)
    owner = np.arange(size)
    rises = np.zeros(size, dtype=bool)
    for axis in np.concatenate([np.eye(rank), -np.eye(rank)]):
        g = [target(owner, np.tile(far * axis, (size, 1))) for far in FAR[-2:]]
        rises |= (g[1] > g[0]) | np.isposinf(g[1])
    return rises
