"""Draws from proposals: quasi-Monte-Carlo noise, bounded rejection, and mixtures fitted to draws.

Each block is a Sobol net with a random digital shift of its own, and the mirror image of it. Every
point is uniform by itself, so that means over them are unbiased; the blocks are independent of each
other, so that the differences of their means tell the error of all (`block_variance`). The first
coordinate of the net chooses the component, the others are for the coordinates of the moves, where
there are not too many of them.

Pilot draws, weighted by the target, tell the mean and the covariance of the mass that each
component stands for, and then the shares under which all of them are likeliest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

from wdro_model.objectives.integration.importance.frame import Frame, reference_of
from wdro_model.objectives.integration.importance.modes import LEAST_SHARE
from wdro_model.objectives.integration.importance.proposals import (
    Component,
    Correlated,
    Mixture,
    with_reference,
)
from wdro_model.objectives.integration.importance.targets import Tilt
from wdro_model.objectives.integration.inner_integral import PILOT_STREAM, Stream
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs import BoundCost

BLOCKS = 8
FEWEST_BLOCKS = 4
"""Fewer blocks do not tell an error."""
MOST_GAIN = 3.0
"""Even spread is believed to lower a standard error by this factor at most."""
NET_DIMENSIONS = 40
"""Coordinates that are spread evenly; if there are more, they are independent."""
BITS = 30


@dataclass(frozen=True)
class Noise:
    """Random numbers of S draws for each of K samples."""

    normal: Array
    """(K, S, r)"""
    uniform: Array
    """Numbers that choose the component (K, S), the same for a point and its mirror image."""


def block_size(count: int) -> int:
    """Points of one block, an even number; the last block may have fewer."""
    return 2 * max(1, -(-count // (2 * BLOCKS)))


def whole_blocks(count: float) -> int:
    """The least number of draws from `count` on whose blocks are complete nets."""
    return 2 * BLOCKS * 2 ** max(0, int(np.ceil(np.log2(max(count, 1.0) / (2 * BLOCKS)))))


def draw_noise(stream: Stream, samples: Array, count: int, dimension: int) -> Noise:
    """The random numbers of some samples."""
    points = [_net(stream.generator(int(k)), count, dimension) for k in samples]
    return Noise(np.stack([p[:, 1:] for p in points]), np.stack([p[:, 0] for p in points]))


def _net(generator: np.random.Generator, count: int, dimension: int) -> Array:
    """A uniform number and `dimension` normal ones for each point, (S, 1 + r)."""
    size = block_size(count)
    blocks, even = -(-count // size), dimension <= NET_DIMENSIONS
    net = sobol(1 + (dimension if even else 0), size // 2)
    shifts = generator.integers(2**BITS, size=(blocks, 1, net.shape[1]), dtype=np.int64)
    points = ((net ^ shifts) + 0.5) / 2**BITS
    normal = ndtri(points[:, :, 1:])
    if not even:
        normal = generator.standard_normal((blocks, size // 2, dimension))
    pairs = np.stack([normal, -normal], axis=2)
    both = np.concatenate([np.repeat(points[:, :, None, :1], 2, axis=2), pairs], axis=3)
    return both.reshape(blocks * size, 1 + dimension)[:count]


@lru_cache(maxsize=64)
def sobol(dimension: int, count: int) -> Array:
    """Points of a scrambled Sobol sequence, as whole numbers below 2^BITS."""
    power = max(0, int(np.ceil(np.log2(count))))
    points = qmc.Sobol(dimension, bits=BITS, seed=0).random_base2(power)
    numbers = np.floor(points[:count] * 2**BITS).astype(np.int64)
    numbers.setflags(write=False)
    return numbers


def block_variance(weights: Array) -> Array:
    """The variance (K,) of log mean_s w_s, from blocks of normalised weights (K, S).

    With block sums W_r of n_r draws each, sum_r (W_r - n_r/S)^2 R/(R - 1). So few blocks may agree
    by chance: no more is believed to be gained over independent draws than a factor.
    """
    count = weights.shape[1]
    alone = _spread_of_sums(weights, np.arange(count))
    starts = np.arange(0, count, block_size(count))
    if len(starts) < FEWEST_BLOCKS:
        return alone
    return np.maximum(_spread_of_sums(weights, starts), alone / MOST_GAIN**2)


def _spread_of_sums(weights: Array, starts: Array) -> Array:
    """sum_r (W_r - n_r/S)^2 R/(R - 1) for the blocks that begin at `starts`, (K,)."""
    sums = np.add.reduceat(weights, starts, axis=1)
    expected = np.diff(np.append(starts, weights.shape[1])) / weights.shape[1]
    blocks = len(starts)
    return ((sums - expected) ** 2).sum(axis=1) * blocks / max(1, blocks - 1)


# ------------------------------
# Draws of a mixture by rejection, with a bounded number of tries, and the mass they reveal


TRIES_PER_DRAW = 10_000
"""Proposals for each draw; a tenth if none succeeds."""
LEAST_PROPOSED = 256
"""Proposals in one round, at least."""
MASS_TRIES = 4096
"""Proposals from which the mass of the reference is estimated."""
ROUND_ENTRIES = 2**20
"""Numbers in one round of proposals, at most."""


@dataclass(frozen=True)
class Accepted:
    """Draws (S, r) inside a set, and the share of proposals that fell inside."""

    moves: Array
    tried: int

    @property
    def share(self) -> float:
        """The share; half a success stands for none, since an observed sample lies inside."""
        return max(len(self.moves), 0.5) / self.tried

    @property
    def log_variance(self) -> float:
        """The variance of the log of the share."""
        return (1 / self.share - 1) / self.tried


def accepted_draws(
    proposals: Mixture,
    inside: Callable[[Array], Array],
    generator: np.random.Generator,
    wanted: int,
    least: int,
    most: int,
) -> Accepted:
    """Draws of the mixture of one sample: `least` tries, more until enough succeed, or `most`.

    A tenth of these where none succeeds.
    """
    dimension = proposals.components[0].center.shape[1]
    size = max(1, min(max(LEAST_PROPOSED, wanted, least // 4), ROUND_ENTRIES // max(1, dimension)))
    moves: list[Array] = []
    tried = accepted = 0
    while tried < least or (accepted < wanted and tried < (most if accepted else most // 10)):
        normal = generator.standard_normal((1, size, dimension))
        drawn = proposals.transport(generator.random((1, size)), normal)[0]
        moves.append(drawn[inside(drawn)])
        tried, accepted = tried + size, accepted + len(moves[-1])
    return Accepted(np.concatenate(moves), tried)


class Rejection:
    """Draws inside supports without coordinate structure, or at finite costs of the user."""

    def __init__(self, frame: Frame, cost: BoundCost) -> None:
        self.frame, self.cost = frame, cost
        self.needed = bool(frame.coupled) or cost.may_forbid
        self._log_masses: dict[tuple[int, int], tuple[float, float]] = {}
        self.variances: dict[int, float] = {}
        """Of the log of the masses, of the samples that were drawn last."""

    def draw(
        self, proposals: Mixture, samples: Array, draws: int, stream: Stream
    ) -> tuple[Array, Array]:
        """Draws (K, S, r) inside the support, and log(Z_proposal / Z_reference) (K,)."""
        moves = np.empty((len(samples), draws, self.frame.dimension))
        log_mass = np.empty(len(samples))
        for i, k in enumerate(map(int, samples)):
            inside = partial(self.allowed, k, priced=True)
            most = max(TRIES_PER_DRAW * draws, 10 * TRIES_PER_DRAW)
            one, generator = proposals.subset(np.array([i])), stream.generator(k)
            drawn = accepted_draws(one, inside, generator, draws, 0, most)
            if len(drawn.moves) < draws:
                raise ValueError(
                    f"{len(drawn.moves)} of {drawn.tried} draws fell into the support (or had a "
                    f"finite cost) where {draws} are needed; use a smaller sigma or epsilon, or a "
                    "Box, which is drawn exactly."
                )
            known, variance = self._reference_mass(k, max(MASS_TRIES, 4 * draws))
            moves[i] = drawn.moves[:draws]
            log_mass[i] = np.log(drawn.share) - known
            self.variances[k] = drawn.log_variance + variance
        return moves, log_mass

    def allowed(self, k: int, moves: Array, priced: bool) -> Array:
        """Moves of sample k into the support; with `priced`, at a finite cost."""
        owners = np.full(len(moves), k)
        rows = self.frame.rows(owners, moves)
        good = self.frame.inside(rows)
        if priced and self.cost.may_forbid:
            origins = self.frame.joint.matrix[owners[good]]
            good[good] = np.isfinite(self.cost(origins, rows[good]))
        return good

    def _reference_mass(self, k: int, tries: int) -> tuple[float, float]:
        """log of the share of the reference inside the support, for one sample, and its variance;
        computed once."""
        if not self.frame.coupled:
            return 0.0, 0.0
        if (k, tries) not in self._log_masses:
            reference = Mixture((reference_of(self.frame, np.array([k])),), np.zeros((1, 1)))
            inside = partial(self.allowed, k, priced=False)
            generator = PILOT_STREAM.generator(k)
            drawn = accepted_draws(reference, inside, generator, 16, tries, 1000 * MASS_TRIES)
            self._log_masses[k, tries] = float(np.log(drawn.share)), drawn.log_variance
        return self._log_masses[k, tries]


# ------------------------------
# Mixtures for densities that are not Gaussian around their modes: spreads and shares that fit


PILOT_DRAWS = 128
"""Draws that choose spreads and shares of the components."""
SHARE_ROUNDS = 20
"""Rounds of the search for the likeliest shares."""
FIT_INFLATION = 1.25
"""Of the variance, for components that are fitted to draws."""
TAIL_FACTORS = (1.5, 2.5)
"""Deviations of wider components, in those of the fitted ones: costs of order 1 have long tails."""
DRAWS_PER_DIMENSION = 4.0
"""Effective pilot draws for each dimension from which on they tell a covariance."""


@dataclass(frozen=True)
class PilotDraws:
    """Pilot draws of K samples: moves (K, S, r), weights (K, S) that sum to one."""

    moves: Array
    weights: Array

    @classmethod
    def of(
        cls, proposals: Mixture, target: Tilt, samples: Array, reference: Component
    ) -> PilotDraws:
        """Draws of the mixture, half of them from the reference, with their weights."""
        size, r = len(samples), target.dimension
        wide = with_reference(proposals, np.full(size, 0.5), reference)
        noise = draw_noise(PILOT_STREAM, samples, PILOT_DRAWS, r)
        moves = wide.transport(noise.uniform, noise.normal)
        owners = np.repeat(samples, PILOT_DRAWS)
        values = target.values(owners, moves.reshape(len(owners), r), exact=True)
        exponent = values.reshape(size, PILOT_DRAWS) - wide.log_density(moves)
        return cls(moves, softmax(exponent, axis=1))

    def densities(self, proposals: Mixture) -> Array:
        """Log densities (K, S, J) of the components at the draws."""
        return np.stack([one.log_density(self.moves) for one in proposals.components], axis=2)


def softmax(logs: Array, axis: int) -> Array:
    """Shares proportional to exp(logs); 0 where all logs are -inf."""
    shares = np.exp(logs - np.maximum(logs.max(axis=axis, keepdims=True), -1e300))
    return shares / np.maximum(shares.sum(axis=axis, keepdims=True), 1e-300)


def fit_mixture(proposals: Mixture, target: Tilt, samples: Array, reference: Component) -> Mixture:
    """The mixture at several spreads, with the shares under which they are likeliest."""
    if all(isinstance(one, Correlated) for one in proposals.components):
        fit = fit_covariances(proposals, PilotDraws.of(proposals, target, samples, reference))
        wide = together([proposals, fit, *(scaled(fit, factor) for factor in TAIL_FACTORS)])
    else:
        # Away from a wall, or for a cost of order 1, densities are not Gaussian.
        factors = np.exp(np.array([-0.6, 0.0, 0.8]) / np.sqrt(max(1, target.dimension)))
        wide = together([scaled(proposals, factor) for factor in factors])
    return fit_shares(wide, PilotDraws.of(wide, target, samples, reference))


def fit_covariances(proposals: Mixture, drawn: PilotDraws) -> Mixture:
    """Full covariances around the means of the mass of the components, where that is known."""
    claims = softmax(proposals.log_weights[:, None] + drawn.densities(proposals), axis=2)
    components: list[Component | Correlated] = []
    r = drawn.moves.shape[2]
    for j, one in enumerate(proposals.components):
        assert isinstance(one, Correlated)
        mine = drawn.weights * claims[:, :, j]
        total = mine.sum(axis=1)
        known = total**2 > DRAWS_PER_DIMENSION * r * (mine**2).sum(axis=1)
        shares = mine / np.maximum(total, 1e-300)[:, None]
        mean = np.einsum("ks,ksr->kr", shares, drawn.moves)
        apart = drawn.moves - mean[:, None]
        covariance = FIT_INFLATION * np.einsum("ks,ksi,ksj->kij", shares, apart, apart)
        old = one.root @ np.swapaxes(one.root, 1, 2)
        covariance = np.where(known[:, None, None], covariance + 0.02 * old, old)
        center = np.where(known[:, None], mean, one.center)
        components.append(Correlated(center, np.linalg.cholesky(covariance), one.bounds))
    return Mixture(tuple(components), proposals.log_weights)


def fit_shares(proposals: Mixture, drawn: PilotDraws) -> Mixture:
    """The shares under which the components are likeliest, on weighted pilot draws.

    shares_j <- mean of the responsibilities shares_j q_j / sum_i shares_i q_i under the target.
    """
    densities = drawn.densities(proposals)
    log_shares, used = proposals.log_weights, np.isfinite(proposals.log_weights)
    least = np.minimum(0.2 * LEAST_SHARE, 0.2 / used.sum(axis=1, keepdims=True))
    for _ in range(SHARE_ROUNDS):
        claims = softmax(log_shares[:, None] + densities, axis=2)
        mean = np.einsum("ks,ksj->kj", drawn.weights, claims)
        mean = np.where(used, np.maximum(mean, least), 0.0)
        with np.errstate(divide="ignore"):
            log_shares = np.log(mean / mean.sum(axis=1, keepdims=True))
    return Mixture(proposals.components, log_shares)


def scaled(proposals: Mixture, factor: float) -> Mixture:
    """The mixture with all deviations multiplied."""
    return Mixture(tuple(one.scaled(factor) for one in proposals.components), proposals.log_weights)


def together(several: list[Mixture]) -> Mixture:
    """One mixture of equal parts."""
    weights = np.concatenate([m.log_weights for m in several], axis=1) - np.log(len(several))
    return Mixture(tuple(one for m in several for one in m.components), weights)
