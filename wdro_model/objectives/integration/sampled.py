"""Monte Carlo slices: draws with losses, costs and importance weights; the dual reweights them.

With draws zeta_s from a proposal q and r_s = log(reference density / q) at zeta_s,

    phi_k ~ eps log mean_s exp((f(x, zeta_s) - l c_s)/eps + r_s),

its derivatives in x and l being averages under the normalised weights.

Draws are quasi-Monte-Carlo points in independent blocks. A block is a Sobol net with a random
digital shift of its own, together with its mirror image. Every single point is uniform, so that
means are unbiased; the variance between the blocks estimates the error (`block_variance`).
The first coordinate of the net chooses the component of a mixture, the others are for the moves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc
from scipy.stats import t as student

from wdro_model.loss.batched import Pullback
from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.inner_integral import Integration, Slice, Stream
from wdro_model.sets.deadlines import check_deadline
from wdro_model.solvers.objective import Array, Diagnostics
from wdro_model.uncertainty.samples import SampleShares

CHUNK_ENTRIES = 2**24
"""Entries of drawn scenarios that exist at once (128 MiB)."""
STORED_ENTRIES = 2**25
"""Entries up to which the draws of a whole stage are stored; beyond, each use draws them again."""


@dataclass(frozen=True)
class Tolerances:
    """Blocks of draws, and limits beyond which the error estimate is not trusted."""

    blocks: int = 8
    """Independent blocks of draws; more estimate errors better, but spread draws less evenly."""
    fewest_blocks: int = 4
    """With fewer blocks the draws count as independent."""
    most_gain: float = 3.0
    """Largest factor by which quasi-Monte-Carlo may lower an independent standard error."""
    net_dimensions: int = 40
    """Coordinates up to which draws come from a Sobol net; with more they are independent."""
    lone_size: float = 2.0
    """Effective sample size below which a single draw dominates the mean of a sample."""
    lone_share: float = 0.05
    """Share of samples dominated by single draws above which the error is reported as infinite."""
    least_tail: int = 20
    """Fewest of the largest weights from which Hill's estimate is taken."""
    heavy_rate: float = 0.7
    """Hill's estimate above which the error estimate is not trusted."""


LIMITS = Tolerances()


@dataclass(frozen=True)
class Draws:
    """S draws for each of K samples."""

    rows: Array
    """Scenarios (K * S, d), the draws of one sample next to each other."""
    costs: Array
    """c(xi_k, zeta_ks), (K, S)."""
    log_ratio: Array | float = 0.0
    """log(reference density / proposal density), (K, S); 0 for draws from the reference."""


class SampledIntegration(Integration, ABC):
    """A strategy that draws scenarios (`Tilted`, `Gaussian`); a subclass gives `draw`.

    The random numbers of sample k depend on (stream, k) alone.
    """

    exact = False
    _stored: tuple[Stream, Draws] | None = None

    @abstractmethod
    def draw(self, samples: Array, stream: Stream) -> Draws:
        """Draws for the samples with these indices; valid until the next call."""

    def slice(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> Slice:
        return SampledSlice(self, x, samples, stream, shares or self.joint.shares_of(samples))

    def stored_draws(self, stream: Stream) -> Draws | None:
        """All draws of a stage, stored between calls; None if they are too large to store."""
        if self.joint.size * self.draws * self.joint.dimension > STORED_ENTRIES:
            return None
        if self._stored is None or self._stored[0] != stream:
            drawn = self.draw(np.arange(self.joint.size), stream)
            self._stored = (stream, Draws(drawn.rows.copy(), drawn.costs, drawn.log_ratio))
        return self._stored[1]


class SampledSlice(Slice):
    """mean_k phi_k at one x, from losses and costs of the draws; a new dual only reweights them."""

    def __init__(
        self,
        rule: SampledIntegration,
        x: Array,
        samples: Array,
        stream: Stream,
        shares: SampleShares,
    ) -> None:
        self._rule, self._x, self._shares = rule, x, shares
        self._samples, self._stream = samples, stream
        self._whole = rule.stored_draws(stream) if len(samples) == rule.joint.size else None
        step = max(1, CHUNK_ENTRIES // (rule.draws * max(1, rule.joint.dimension)))
        step = len(samples) if self._whole is not None else step
        self._chunks = [samples[i : i + step] for i in range(0, len(samples), step)]
        self._pullback: Pullback | None = None
        losses, costs, ratios = [], [], []
        for chunk in self._chunks:
            check_deadline()
            drawn = self._draw(chunk)
            values, pullback = rule.loss(x, drawn.rows)
            losses.append(values.reshape(len(chunk), rule.draws).copy())
            costs.append(drawn.costs)
            ratios.append(np.broadcast_to(drawn.log_ratio, drawn.costs.shape))
        if len(self._chunks) == 1:
            self._pullback = pullback
        self._call = rule.loss.calls
        self.losses, self.costs = np.concatenate(losses), np.concatenate(costs)
        self.log_ratios = np.concatenate(ratios)
        self.forbidden = np.isinf(self.costs)
        """A mask (K, S) of draws with infinite cost, which get weight 0."""
        if self.forbidden.any():
            self.costs = np.where(self.forbidden, 0.0, self.costs)
            lost = self.forbidden.all(axis=1)
            if lost.any():
                raise ValueError(
                    f"all {rule.draws} draws around sample {int(samples[np.argmax(lost)])} have an "
                    "infinite cost; lower sigma or draw more samples."
                )

    def _draw(self, chunk: Array) -> Draws:
        return self._whole if self._whole is not None else self._rule.draw(chunk, self._stream)

    def weights(self, dual: float) -> tuple[Array, Array]:
        """Normalised weights (K, S) and the log mean exp of each row (K,)."""
        exponent = (self.losses - dual * self.costs) / self._rule.epsilon + self.log_ratios
        exponent = np.where(self.forbidden, -np.inf, exponent)
        top = exponent.max(axis=1, keepdims=True)
        weights = np.exp(exponent - top)
        total = weights.sum(axis=1, keepdims=True)
        log_mean = (top + np.log(total))[:, 0] - np.log(self._rule.draws)
        return weights / total, log_mean

    def evaluate(self, dual: float) -> DualPoint:
        weights, log_mean = self.weights(dual)
        mean = np.einsum("ks,ks->k", weights, self.costs)
        spread = np.einsum("ks,ks->k", weights, (self.costs - mean[:, None]) ** 2)
        epsilon, average = self._rule.epsilon, self._shares.total
        return DualPoint(
            float(epsilon * average(log_mean)),
            float(-average(mean)),
            float(average(spread) / epsilon),
        )

    def gradient(self, dual: float) -> Array:
        weights = self._shares.times(self.weights(dual)[0])
        if self._pullback is not None and self._call == self._rule.loss.calls:
            return self._pullback(weights.ravel())
        gradient, start = np.zeros(self._rule.loss.dimension), 0
        for chunk in self._chunks:
            _, pullback = self._rule.loss(self._x, self._draw(chunk).rows)
            gradient += pullback(weights[start : start + len(chunk)].ravel())
            start += len(chunk)
        return gradient

    def diagnostics(self, dual: float) -> Diagnostics:
        weights, _ = self.weights(dual)
        shares = self._shares
        nearest = shares.total(np.where(self.forbidden, np.inf, self.costs).min(axis=1))
        known = sampling_diagnostics(weights, self._rule.epsilon, float(nearest), shares)
        return known.worse_by(self._rule.support_error(self._samples, shares))


def sampling_diagnostics(
    weights: Array, epsilon: float, nearest: float, shares: SampleShares
) -> Diagnostics:
    """The error of eps log mean_s w_s, from the normalised weights (K, S) of its draws.

    The variance v of log mean_s w_s comes from independent blocks of draws. Few blocks make v
    uncertain: the standard error is multiplied by the ratio of Student's quantile to the normal
    one. The log of a mean is v/2 too low on average (its bias). If single draws carry all the
    weight in too many samples, the error is not known, and reported as infinite.
    """
    size, draws = weights.shape
    sizes = 1.0 / np.einsum("ks,ks->k", weights, weights)
    variance = block_variance(weights)
    freedom = size * max(1, min(LIMITS.blocks, draws) - 1)
    wider = student.ppf(0.975, freedom) / student.ppf(0.975, np.inf)
    error = wider * epsilon * shares.error(variance)
    bias = 0.5 * epsilon * float(shares.total(variance))
    blind = float(shares.total((sizes < LIMITS.lone_size).astype(float))) > LIMITS.lone_share
    return Diagnostics(
        draws=draws,
        effective_size=float(np.median(sizes)),
        smallest_effective_size=float(sizes.min()),
        standard_error=float("inf") if blind else float(np.hypot(error, bias)),
        nearest_cost=nearest,
        heavy=heavy_share(weights, shares),
    )


def heavy_share(weights: Array, shares: SampleShares) -> float:
    """The share of samples whose weights have so heavy a tail that error estimates are unreliable.

    Hill's estimate of k in P(w > t) ~ t^(-1/k), from the largest weights, exceeds `heavy_rate`;
    beyond k = 0.5 the weights have no variance.
    """
    count = int(min(0.2 * weights.shape[1], 3 * np.sqrt(weights.shape[1])))
    if count < LIMITS.least_tail:
        return 0.0
    largest = -np.partition(-weights, count, axis=1)[:, : count + 1]
    logs = np.log(np.maximum(largest, 1e-300))
    rate = logs[:, :-1].mean(axis=1) - logs[:, -1]
    return float(shares.total((rate > LIMITS.heavy_rate).astype(float)))


# ------------------------------
# Quasi-Monte-Carlo noise in independent blocks, and the error of means over them


BITS = 30


@dataclass(frozen=True)
class Noise:
    """Random numbers of S draws for each of K samples."""

    normal: Array
    """(K, S, r)"""
    uniform: Array
    """Numbers in [0, 1) that choose the component (K, S); a mirror image has its point's number."""


def block_size(count: int) -> int:
    """Points of one block, an even number; the last block may have fewer."""
    return 2 * max(1, -(-count // (2 * LIMITS.blocks)))


def whole_blocks(count: float) -> int:
    """The smallest number of draws, `count` or more, whose blocks are complete Sobol nets."""
    return (
        2
        * LIMITS.blocks
        * 2 ** max(0, int(np.ceil(np.log2(max(count, 1.0) / (2 * LIMITS.blocks)))))
    )


def draw_noise(stream: Stream, samples: Array, count: int, dimension: int) -> Noise:
    """The random numbers for `count` draws of these samples."""
    points = [_net(stream.generator(int(k)), count, dimension) for k in samples]
    return Noise(np.stack([p[:, 1:] for p in points]), np.stack([p[:, 0] for p in points]))


def _net(generator: np.random.Generator, count: int, dimension: int) -> Array:
    """A uniform number and `dimension` normal ones for each point, (S, 1 + r)."""
    size = block_size(count)
    blocks, even = -(-count // size), dimension <= LIMITS.net_dimensions
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
    """Points of a scrambled Sobol sequence, as integers below 2^BITS: a shift is then an XOR."""
    power = max(0, int(np.ceil(np.log2(count))))
    points = qmc.Sobol(dimension, bits=BITS, seed=0).random_base2(power)
    numbers = np.floor(points[:count] * 2**BITS).astype(np.int64)
    numbers.setflags(write=False)
    return numbers


def block_variance(weights: Array) -> Array:
    """The variance (K,) of log mean_s w_s, from blocks of normalised weights (K, S).

    With sums W_r of the weights in R blocks of n_r draws, sum_r (W_r - n_r/S)^2 R/(R - 1). Few
    blocks may agree by chance: the gain over independent draws is limited to `most_gain`.
    """
    count = weights.shape[1]
    alone = _variance_of_sums(weights, np.arange(count))
    starts = np.arange(0, count, block_size(count))
    if len(starts) < LIMITS.fewest_blocks:
        return alone
    return np.maximum(_variance_of_sums(weights, starts), alone / LIMITS.most_gain**2)


def _variance_of_sums(weights: Array, starts: Array) -> Array:
    """sum_r (W_r - n_r/S)^2 R/(R - 1) for the blocks that begin at `starts`, (K,)."""
    sums = np.add.reduceat(weights, starts, axis=1)
    expected = np.diff(np.append(starts, weights.shape[1])) / weights.shape[1]
    blocks = len(starts)
    return ((sums - expected) ** 2).sum(axis=1) * blocks / max(1, blocks - 1)
