"""Mixtures for densities that are not Gaussian around their modes: several spreads, and shares."""

from __future__ import annotations

import numpy as np

from wdro_model.objectives.integration.importance.modes import FLOOR
from wdro_model.objectives.integration.importance.noise import noise
from wdro_model.objectives.integration.importance.proposals import (
    Component,
    Mixture,
    component,
    defended,
)
from wdro_model.objectives.integration.importance.targets import Tilt
from wdro_model.objectives.integration.inner_integral import PILOT
from wdro_model.solvers.objective import Array

PILOT_DRAWS = 128
"""Draws that choose the shares of the components."""
ROUNDS = 20


def widened(found: Mixture, dimension: int) -> Mixture:
    """Each component at several spreads: away from a wall, or for a cost of order 1, densities
    are not Gaussian."""
    factors = np.exp(np.array([-0.6, 0.0, 0.8]) / np.sqrt(max(1, dimension)))
    components = [
        component(c.center, factor * c.deviation, c.bounds, c.basis, c.scales)
        for factor in factors
        for c in found.components
    ]
    weights = np.concatenate([found.log_weights] * len(factors), axis=1) - np.log(len(factors))
    return Mixture(tuple(components), weights)


def balanced(found: Mixture, target: Tilt, samples: Array, reference: Component) -> Mixture:
    """The shares under which the components are likeliest, on weighted pilot draws.

    shares_j <- mean of the responsibilities shares_j q_j / sum_i shares_i q_i under the target.
    """
    size, dimension = len(samples), target.dimension
    shares = defended(found, np.full(size, 0.5), reference)
    points = [noise(PILOT.generator(int(k)), PILOT_DRAWS, dimension) for k in samples]
    choice = shares.choose(np.stack([point.uniform for point in points]))
    moves = shares.transport(choice, np.stack([point.normal for point in points]))
    owners = np.repeat(samples, PILOT_DRAWS)
    values = target.values(owners, moves.reshape(len(owners), dimension), exact=True)
    exponent = values.reshape(size, PILOT_DRAWS) - shares.log_density(moves)
    exponent -= np.maximum(exponent.max(axis=1, keepdims=True), -1e300)
    weights = np.exp(exponent)
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    densities = np.stack([c.log_density(moves) for c in found.components], axis=2)
    log_shares, used = found.log_weights, np.isfinite(found.log_weights)
    for _ in range(ROUNDS):
        joint = log_shares[:, None] + densities
        joint -= joint.max(axis=2, keepdims=True)
        claims = np.exp(joint)
        claims /= claims.sum(axis=2, keepdims=True)
        mean = np.einsum("ks,ksj->kj", weights, claims)
        mean = np.where(used, np.maximum(mean, 0.2 * FLOOR), 0.0)
        mean /= mean.sum(axis=1, keepdims=True)
        with np.errstate(divide="ignore"):
            log_shares = np.log(mean)
    return Mixture(found.components, log_shares)
