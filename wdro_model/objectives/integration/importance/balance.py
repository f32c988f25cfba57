"""Mixtures for densities that are not Gaussian around their modes: spreads and shares that fit.

Pilot draws, weighted by the target, tell the mean and the covariance of what each component stands
for, and then the shares under which all of them are likeliest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.objectives.integration.importance.correlated import Correlated
from wdro_model.objectives.integration.importance.modes import FLOOR
from wdro_model.objectives.integration.importance.noise import noise
from wdro_model.objectives.integration.importance.proposals import Mixture, defended
from wdro_model.objectives.integration.importance.targets import Tilt
from wdro_model.objectives.integration.inner_integral import PILOT
from wdro_model.solvers.objective import Array

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
    points = [noise(PILOT.generator(int(k)), PILOT_DRAWS, dimension) for k in samples]
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
