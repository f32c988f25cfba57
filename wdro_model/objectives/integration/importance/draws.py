"""Draws from proposals: quasi-Monte-Carlo noise, fitted mixtures, bounded rejection.

Each block is a Sobol net with a random digital shift of its own, and the mirror image of it. Every
point is uniform by itself, so that means over them are unbiased; the blocks are independent of each
other, so that what their means differ by tells the error of all (`block_variance`).

The first coordinate of the net chooses the component, the second one is for the direction in which
the loss bends, the others are for the coordinates, where there are not too many of them.

Pilot draws, weighted by the target, tell the mean and the covariance of what each component stands
for, and then the shares under which all of them are likeliest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

from wdro_model.objectives.integration.importance.frame import Frame, reference_of
from wdro_model.objectives.integration.importance.modes import FLOOR
from wdro_model.objectives.integration.importance.proposals import Correlated, Mixture, defended
from wdro_model.objectives.integration.importance.targets import Tilt
from wdro_model.objectives.integration.inner_integral import PILOT_STREAM, Stream
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs import BoundCost

BLOCKS = 8
FEWEST = 4
"""Fewer blocks do not tell an error."""
GAINED = 3.0
"""Even spread is believed to lower a standard error by this factor at most."""
EVEN = 40
"""Coordinates that are spread evenly; if there are more, they are independent."""
BITS = 30


@dataclass(frozen=True)
class Noise:
    """S points for one sample."""

    normal: Array
    """(S, r)"""
    along: Array
    """Numbers for the first direction of a component, (S,)."""
    uniform: Array
    """Numbers that choose the component, (S,), the same for a point and its mirror image."""


def block_size(count: int) -> int:
    """Points of one block, an even number; the last block may have fewer."""
    return 2 * max(1, -(-count // (2 * BLOCKS)))


def whole_blocks(count: float) -> int:
    """The least number of draws from `count` on whose blocks are complete nets."""
    return 2 * BLOCKS * 2 ** max(0, int(np.ceil(np.log2(max(count, 1.0) / (2 * BLOCKS)))))


def noise(generator: np.random.Generator, count: int, dimension: int) -> Noise:
    """Points of one sample."""
    size = block_size(count)
    blocks, even = -(-count // size), dimension <= EVEN
    net = sobol(2 + (dimension if even else 0), size // 2)
    shifts = generator.integers(2**BITS, size=(blocks, 1, net.shape[1]), dtype=np.int64)
    points = ((net ^ shifts) + 0.5) / 2**BITS
    scores = ndtri(points[:, :, 1:])
    half = scores[:, :, 1:]
    if not even:
        half = generator.standard_normal((blocks, size // 2, dimension))

    def both(first: Array, second: Array) -> Array:
        joined = np.stack([first, second], axis=2)
        return joined.reshape(blocks * size, *first.shape[2:])[:count]

    line = scores[:, :, 0]
    return Noise(both(half, -half), both(line, -line), both(points[:, :, 0], points[:, :, 0]))


@lru_cache(maxsize=64)
def sobol(dimension: int, count: int) -> Array:
    """Points of a scrambled Sobol sequence, as whole numbers below 2^BITS."""
    power = max(0, int(np.ceil(np.log2(count))))
    points = qmc.Sobol(dimension, bits=BITS, seed=0).random_base2(power)
    found = np.floor(points[:count] * 2**BITS).astype(np.int64)
    found.setflags(write=False)
    return found


def block_variance(weights: Array) -> Array:
    """The variance (K,) of log mean_s w_s, from blocks of normalised weights (K, S).

    With block sums W_r of n_r draws each, sum_r (W_r - n_r/S)^2 R/(R - 1). So few blocks may agree
    by chance: no more is believed to be gained over independent draws than a factor.
    """
    count = weights.shape[1]
    alone = spread_of(weights, np.arange(count))
    starts = np.arange(0, count, block_size(count))
    if len(starts) < FEWEST:
        return alone
    return np.maximum(spread_of(weights, starts), alone / GAINED**2)


def spread_of(weights: Array, starts: Array) -> Array:
    """sum_r (W_r - n_r/S)^2 R/(R - 1) for the blocks that begin at `starts`, (K,)."""
    sums = np.add.reduceat(weights, starts, axis=1)
    expected = np.diff(np.append(starts, weights.shape[1])) / weights.shape[1]
    blocks = len(starts)
    return ((sums - expected) ** 2).sum(axis=1) * blocks / max(1, blocks - 1)


# ------------------------------
# Draws of a mixture by rejection, with a bounded number of tries, and the mass they reveal


TRIES = 10_000
"""Proposals for each draw; a tenth if none succeeds."""
ROUND = 256
"""Least number of proposals in one round."""
MASS_TRIES = 4096
"""Proposals from which the mass of the reference is estimated."""
ROUND_ENTRIES = 2**20


@dataclass(frozen=True)
class Accepted:
    """Draws (S, r) inside a set, and the log of the share of proposals that fell inside."""

    moves: Array
    log_mass: float
    variance: float
    """Of the log of the share."""


def accepted_draws(
    proposals: Mixture,
    count: int,
    inside: Callable[[Array], Array],
    generator: np.random.Generator,
) -> Accepted:
    """`count` draws of the mixture of one sample that lie inside."""
    dimension = proposals.components[0].center.shape[1]
    found: list[Array] = []
    tried = accepted = 0
    size = max(ROUND, count)
    size = max(1, min(size, ROUND_ENTRIES // max(1, dimension)))
    while accepted < count:
        if tried >= TRIES * count or (accepted == 0 and tried >= max(TRIES, TRIES * count // 10)):
            raise ValueError(
                f"{accepted} of {tried} draws fell into the support (or had a finite cost) where "
                f"{count} are needed; use a smaller sigma or epsilon, or a Box, which is drawn "
                "exactly."
            )
        moves = proposed(proposals, size, dimension, generator)
        good = inside(moves)
        found.append(moves[good])
        tried, accepted = tried + size, accepted + int(good.sum())
    share = accepted / tried
    moves = np.concatenate(found)[:count]
    return Accepted(moves, float(np.log(share)), (1 / share - 1) / tried)


def log_acceptance(
    proposals: Mixture,
    inside: Callable[[Array], Array],
    generator: np.random.Generator,
    tries: int,
) -> tuple[float, float]:
    """The log of the mass that a mixture gives to a set, from so many proposals; its variance."""
    count = max(1, tries // 4)
    dimension = max(1, proposals.components[0].center.shape[1])
    tried = accepted = 0
    while tried < tries or (accepted < 16 and tried < 100 * MASS_TRIES):
        size = max(1, min(count, ROUND_ENTRIES // dimension))
        accepted += int(inside(proposed(proposals, size, dimension, generator)).sum())
        tried += size
    # An observed sample lies in the support: half a success stands for none.
    share = max(accepted, 0.5) / tried
    return float(np.log(share)), (1 / share - 1) / tried


def proposed(
    proposals: Mixture, count: int, dimension: int, generator: np.random.Generator
) -> Array:
    """Independent draws (count, r) of the mixture of one sample, without rejection."""
    noise = generator.standard_normal((1, count, dimension))
    choice = proposals.choose(generator.random((1, count)))
    return proposals.transport(choice, noise)[0]


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
        for i, k in enumerate(samples):
            drawn = accepted_draws(
                proposals.of(np.array([i])),
                draws,
                partial(self.allowed, int(k), priced=True),
                stream.generator(int(k)),
            )
            known, variance = self._reference_mass(int(k), max(MASS_TRIES, 4 * draws))
            moves[i], log_mass[i] = drawn.moves, drawn.log_mass - known
            self.variances[int(k)] = drawn.variance + variance
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
            self._log_masses[k, tries] = log_acceptance(
                reference, partial(self.allowed, k, priced=False), PILOT_STREAM.generator(k), tries
            )
        return self._log_masses[k, tries]


# ------------------------------
# Mixtures for densities that are not Gaussian around their modes: spreads and shares that fit


PILOT_DRAWS = 128
"""Draws that choose the shares of the components."""
ROUNDS = 20
WIDER = 1.25
"""Of the variance, for components that are fitted to draws."""
TAILS = (1.5, 2.5)
"""Deviations of wider components, in those of the fitted ones: costs of order 1 have long tails."""
ENOUGH = 4.0
"""Effective pilot draws for each dimension from which on they tell a covariance."""


@dataclass(frozen=True)
class PilotDraws:
    """Pilot draws of K samples: moves (K, S, r), weights (K, S) that sum to one."""

    moves: Array
    weights: Array


def pilot(found: Mixture, target: Tilt, samples: Array, reference: Any) -> PilotDraws:
    """Draws of the mixture, half of them from the reference, with their weights."""
    size, dimension = len(samples), target.dimension
    wide = defended(found, np.full(size, 0.5), reference)
    points = [noise(PILOT_STREAM.generator(int(k)), PILOT_DRAWS, dimension) for k in samples]
    choice = wide.choose(np.stack([point.uniform for point in points]))
    moves = wide.transport(choice, np.stack([point.normal for point in points]))
    owners = np.repeat(samples, PILOT_DRAWS)
    values = target.values(owners, moves.reshape(len(owners), dimension), exact=True)
    exponent = values.reshape(size, PILOT_DRAWS) - wide.log_density(moves)
    exponent -= np.maximum(exponent.max(axis=1, keepdims=True), -1e300)
    weights = np.exp(exponent)
    return PilotDraws(moves, weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300))


def fitted(found: Mixture, drawn: PilotDraws) -> Mixture:
    """Full covariances around the means of what the components stand for, where that is known."""
    claims = shared(densities(found, drawn), found.log_weights)
    out = []
    r = drawn.moves.shape[2]
    for j, one in enumerate(found.components):
        mine = drawn.weights * claims[:, :, j]
        total = mine.sum(axis=1)
        known = total**2 > ENOUGH * r * (mine**2).sum(axis=1)
        shares = mine / np.maximum(total, 1e-300)[:, None]
        mean = np.einsum("ks,ksr->kr", shares, drawn.moves)
        apart = drawn.moves - mean[:, None]
        covariance = WIDER * np.einsum("ks,ksi,ksj->kij", shares, apart, apart)
        old = one.root @ np.swapaxes(one.root, 1, 2)
        covariance = np.where(known[:, None, None], covariance + 0.02 * old, old)
        center = np.where(known[:, None], mean, one.center)
        out.append(Correlated(center, np.linalg.cholesky(covariance), one.bounds))
    return Mixture(tuple(out), found.log_weights)


def densities(found: Mixture, drawn: PilotDraws) -> Array:
    """Log densities (K, S, J) of the components at the draws."""
    return np.stack([c.log_density(drawn.moves) for c in found.components], axis=2)


def shared(known: Array, log_shares: Array) -> Array:
    """The share (K, S, J) that each component has in the density at each draw."""
    joint = log_shares[:, None] + known
    joint -= np.maximum(joint.max(axis=2, keepdims=True), -1e300)
    claims = np.exp(joint)
    return claims / np.maximum(claims.sum(axis=2, keepdims=True), 1e-300)


def widened(found: Mixture, dimension: int) -> Mixture:
    """Each component at several spreads: away from a wall, or for a cost of order 1, densities
    are not Gaussian."""
    factors = np.exp(np.array([-0.6, 0.0, 0.8]) / np.sqrt(max(1, dimension)))
    return together([scaled(found, factor) for factor in factors])


def scaled(found: Mixture, factor: float) -> Mixture:
    return Mixture(tuple(c.scaled(factor) for c in found.components), found.log_weights)


def together(several: list[Mixture]) -> Mixture:
    """One mixture of equal parts."""
    weights = np.concatenate([m.log_weights for m in several], axis=1) - np.log(len(several))
    return Mixture(tuple(c for m in several for c in m.components), weights)


def adapted(found: Mixture, target: Tilt, samples: Array, reference: Any) -> Mixture:
    """The mixture at several spreads, with the shares under which they are likeliest."""
    drawn = pilot(found, target, samples, reference)
    if all(isinstance(c, Correlated) for c in found.components):
        fit = fitted(found, drawn)
        wide = together([found, fit, *(scaled(fit, factor) for factor in TAILS)])
    else:
        wide = widened(found, target.dimension)
    return balanced(wide, pilot(wide, target, samples, reference))


def balanced(found: Mixture, drawn: PilotDraws) -> Mixture:
    """The shares under which the components are likeliest, on weighted pilot draws.

    shares_j <- mean of the responsibilities shares_j q_j / sum_i shares_i q_i under the target.
    """
    known = densities(found, drawn)
    log_shares, used = found.log_weights, np.isfinite(found.log_weights)
    for _ in range(ROUNDS):
        mean = np.einsum("ks,ksj->kj", drawn.weights, shared(known, log_shares))
        least = np.minimum(0.2 * FLOOR, 0.2 / used.sum(axis=1, keepdims=True))
        mean = np.where(used, np.maximum(mean, least), 0.0)
        mean /= mean.sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore"):
            log_shares = np.log(mean)
    return Mixture(found.components, log_shares)
