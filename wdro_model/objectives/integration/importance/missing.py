"""Modes that a mixture does not know: how much mass do ascents from random starts reveal?

Draws around some of the modes agree with each other whatever the others carry: their effective
sample size is full, and their standard error knows nothing of it. Ascents from random starts that
end at places which the mixture does not expect are evidence of mass elsewhere. With D new places of
which f1 were reached once and f2 twice, about D + f1 (f1 - 1)/(2 (f2 + 1)) exist (Chao's estimate).
"""

from __future__ import annotations

import numpy as np

from wdro_model.objectives.integration.importance.curvature import Target, clipped
from wdro_model.objectives.integration.importance.modes import NEW, ascend, local
from wdro_model.objectives.integration.importance.proposals import Mixture
from wdro_model.solvers.objective import Array

STARTS = 12
"""Random starts for each sample."""
NEGLIGIBLE = np.log(1e-4)
"""Places with less than this share of the known mass do not count."""


def missing_mass(
    target: Target, owners: Array, known: Mixture, generator: np.random.Generator
) -> Array:
    """log(1 + unknown mass / known mass) for each sample, as far as random starts can tell."""
    size, bounds = len(owners), target.bounds(owners)
    zero = np.zeros((size, target.dimension))
    deviation = np.sqrt(np.broadcast_to(target.variance(owners, zero), zero.shape))
    reach = np.max([np.abs(c.center) for c in known.components], axis=0) + 2 * deviation
    starts = reach[:, None] * generator.uniform(-1, 1, (size, STARTS, target.dimension))
    if bounds is not None:
        starts = np.clip(starts, bounds[0][:, None], bounds[1][:, None])
    who = np.repeat(owners, STARTS)
    moves, values, gradients = ascend(target, who, starts.reshape(len(who), -1))
    shape = (size, STARTS)
    moves, gradients = (part.reshape(*shape, -1) for part in (moves, gradients))
    values = values.reshape(shape)
    masses = _masses(target, owners, known)
    total = np.logaddexp.reduce(masses, axis=1)
    expected = np.full(shape, -np.inf)
    for j, one in enumerate(known.components):
        expected = np.logaddexp(expected, masses[:, j, None] + one.log_density(moves))
    left = np.isfinite(values) & (values > expected + NEW)
    found, once, twice = np.zeros(size), np.zeros(size), np.zeros(size)
    distinct, rows = np.zeros(size), np.arange(size)
    nothing = np.zeros(size, dtype=bool)
    while left.any():
        pick = np.where(left, values, -np.inf).argmax(axis=1)
        any_left = left[rows, pick]
        place = clipped(moves[rows, pick], bounds)
        one = local(target, owners, place, gradients[rows, pick], bounds, nothing)
        mass = values[rows, pick] - one.log_density(place[:, None])[:, 0]
        same = left & (values <= mass[:, None] + one.log_density(moves) + NEW)
        same[rows, pick] |= any_left
        counts = any_left & (mass > total + NEGLIGIBLE)
        reached = np.where(counts, same.sum(axis=1), 0)
        found += np.where(counts, np.exp(np.minimum(mass - total, 50.0)), 0.0)
        distinct += counts
        once += reached == 1
        twice += reached == 2
        left &= ~same
    unseen = once * np.maximum(once - 1, 0) / (2 * (twice + 1))
    scale = 1 + np.divide(unseen, distinct, out=np.zeros(size), where=distinct > 0)
    return np.log1p(found * scale)


def _masses(target: Target, owners: Array, known: Mixture) -> Array:
    """The log mass (K, J) that each component of a mixture stands for; -inf if it is not used."""
    columns = []
    for j, one in enumerate(known.components):
        anchor = np.broadcast_to(one.anchor, (len(owners), target.dimension))
        height = target.values(owners, anchor) - one.log_density(anchor[:, None])[:, 0]
        used = np.isfinite(known.log_weights[:, j])
        columns.append(np.where(used, height, -np.inf))
    return np.stack(columns, axis=1)
