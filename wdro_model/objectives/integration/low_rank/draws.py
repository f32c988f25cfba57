"""The tilted law of t in three dimensions and more: draws from a mixture around its modes.

For g(t) = h(u_k + L t)/eps - |t|^2/2 and modes m_1, m_2, ... of it, the proposal is a mixture of
Gaussians N(m_i, C_i) with weights p_i exp(g(m_i)) |C_i|^(1/2) normalised, and

    E exp(h/eps) ~ sum_i p_i mean_s exp(g(t_is)) / sum_j p_j N(t_is; m_j, C_j) / (2 pi)^(r/2)

with the same random numbers for each mode, so that the estimate varies smoothly with the modes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from wdro_model.objectives.integration.importance.modes import find
from wdro_model.objectives.integration.importance.noise import block_variance, noise
from wdro_model.objectives.integration.importance.proposals import Mixture, component, mixture
from wdro_model.objectives.integration.inner_integral import Divergence, Stream
from wdro_model.objectives.integration.kernel.laws import TiltedLaw
from wdro_model.objectives.integration.kernel.normal import HALF_LOG_2PI
from wdro_model.objectives.integration.low_rank.outer import FormTarget, Outer
from wdro_model.solvers.objective import Array

INFLATION = 1.2
"""The variance of a proposal over that of the Gaussian that fits at the mode."""
NEGLIGIBLE = 1e-4
"""Modes with a smaller share are left out."""


class QuasiRandom:
    """Standard normal points, those of sample k a function of (stream, k) alone."""

    def __init__(self, draws: int) -> None:
        self.draws = draws
        self._kept: tuple[Stream, int, dict[int, Array]] | None = None

    def normal(self, samples: Array, stream: Stream, rank: int) -> Array:
        """(K, S, r)"""
        if self._kept is None or self._kept[:2] != (stream, rank):
            self._kept = (stream, rank, {})
        known = self._kept[2]
        for k in map(int, samples):
            if k not in known:
                known[k] = noise(stream.generator(k), self.draws, rank).normal
        return np.stack([known[int(k)] for k in samples])


@dataclass(frozen=True)
class DrawnLaw(TiltedLaw):
    """A tilted law by weighted draws."""

    effective_size: Array = field(default_factory=lambda: np.zeros(0))
    """Effective sample size of each sample, between 1 and S."""
    variance_of_log: Array = field(default_factory=lambda: np.zeros(0))
    """Variance of log_mass, from independent blocks of draws."""


def drawn_law(outer: Outer, u: Array, L: Array, normal: Array) -> DrawnLaw:
    """The tilted law for forms u (K, q) moved by L (K or 1, q, r), from normal draws (K, S, r)."""
    size, draws, rank = normal.shape
    L = np.broadcast_to(L, (size, *L.shape[1:]))
    target, everyone = FormTarget(outer, u, L), np.arange(size)
    try:
        known = outer.anatomy.pieces is not None
        proposals = piece_proposals(outer, u, L) if known else found_proposals(target)
    except Divergence:
        infinite, one = np.full(size, np.inf), np.ones(size)
        return DrawnLaw(infinite, everyone, np.zeros((size, rank)), one, None, one, 0 * one)
    owners, points, logs = [], [], []
    for j, share in enumerate(proposals.log_weights.T):
        rows = np.flatnonzero(np.isfinite(share))
        owner = np.repeat(rows, draws)
        moves = proposals.components[j].transport(owner, normal[rows].reshape(-1, rank))
        density = proposals.of(rows).log_density(moves.reshape(len(rows), draws, rank)).ravel()
        height = target.values(owner, moves) - rank * HALF_LOG_2PI
        owners.append(owner)
        points.append(moves)
        logs.append(height - density + share[owner] - np.log(draws))
    owner, log = np.concatenate(owners), np.concatenate(logs)
    top = np.full(size, -np.inf)
    np.maximum.at(top, owner, log)
    weights = np.exp(log - top[owner])
    # Draws with the same random number belong together: their sums are independent in blocks.
    number = np.concatenate([np.tile(np.arange(draws), len(o) // draws) for o in owners])
    sums = np.bincount(owner * draws + number, weights, size * draws).reshape(size, draws)
    total = sums.sum(axis=1)
    sums = sums / total[:, None]
    return DrawnLaw(
        top + np.log(total),
        owner,
        np.concatenate(points),
        weights / total[owner],
        None,
        effective_size=1.0 / np.einsum("ks,ks->k", sums, sums),
        variance_of_log=block_variance(sums),
    )


def found_proposals(target: FormTarget) -> Mixture:
    """Around the modes that the finder knows."""
    modes = find(target, np.arange(len(target.u)))
    found = modes.mixture(0.0, -np.log(NEGLIGIBLE))
    wide = tuple(one.scaled(np.sqrt(INFLATION)) for one in found.components)
    return Mixture(wide, found.log_weights)


def piece_proposals(outer: Outer, u: Array, L: Array) -> Mixture:
    """A maximum of a_p + b_p't: each piece tilts N(0, I) to N(b_p, I), of mass exp(a + b^2/2)."""
    values, slopes = outer.pieces(u)
    b = slopes @ L
    centers = np.broadcast_to(b, (len(u), *b.shape[1:]))
    masses = values + 0.5 * np.einsum("kpr,kpr->kp", centers, centers)
    components = [component(c, np.ones(c.shape), None) for c in centers.swapaxes(0, 1)]
    return mixture(components, masses, 0.0, -np.log(NEGLIGIBLE))
