"""An independent search for what a mixture misses.

Draws around some of the modes agree with each other whatever the others carry: their effective
sample size is full, and their standard error knows nothing of it. Here ascents start from random
places that the finder has not used: of the reference, as far out as the draws, all over the
support. What they reach and the
mixture does not expect is mass elsewhere. With D such places, of which f1 were reached once and f2
twice, about D + f1 (f1 - 1)/(2 (f2 + 1)) exist (Chao's estimate).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.objectives.integration.importance.curvature import clipped, confined
from wdro_model.objectives.integration.importance.modes import NEW, ascend, local, within
from wdro_model.objectives.integration.importance.proposals import Mixture
from wdro_model.objectives.integration.importance.targets import Tilt
from wdro_model.solvers.objective import Array

STARTS = 12
"""Random starts for each sample."""
NEGLIGIBLE = np.log(1e-4)
"""Places with less than this share of the known mass do not count."""
AROUND, LACKING = 32, np.log(4.0)
"""Draws around a place, and the factor by which it has more than the mixture gives to it."""
KNOWN = 128
"""Draws of the mixture that tell the mass it covers."""
LEARNED = 8
"""Places that are remembered."""


@dataclass(frozen=True)
class Missed:
    """What a mixture does not cover."""

    log_mass: Array
    """log(1 + unknown mass / known mass) for each sample, as far as random starts can tell."""
    places: Array
    """Moves (P, r) to where it was found, the largest first."""


def missed_by(
    known: Mixture, target: Tilt, owners: Array, reference: Any, generator: np.random.Generator
) -> Missed:
    """Search from random places for mass that the mixtures of these samples do not cover."""
    size, r, bounds = len(owners), target.dimension, target.bounds(owners)
    rows = np.arange(size)

    def at(law: Any, count: int) -> Array:
        normal = generator.standard_normal((size, count, r))
        return law.transport(np.repeat(rows, count), normal.reshape(-1, r)).reshape(normal.shape)

    def heights(moves: Array) -> Array:
        flat = moves.reshape(-1, r)
        found = target.values(np.repeat(owners, moves.shape[1]), flat, exact=True)
        return found.reshape(moves.shape[:2])

    choice = known.choose(generator.random((size, KNOWN)))
    drawn = known.transport(choice, generator.standard_normal((size, KNOWN, r)))
    weights = heights(drawn) - known.log_density(drawn)
    total = np.logaddexp.reduce(weights, axis=1) - np.log(KNOWN)
    reach = np.abs(drawn).max(axis=1)[:, None]
    third = STARTS // 3
    own = reference if len(reference.center) == size else reference.rows(np.zeros(size, dtype=int))
    across = generator.random((size, third, r))
    ends = generator.random(across.shape) < 0.7
    spread = [
        at(own, third),
        reach * generator.uniform(-1, 1, (size, third, r)),
        within(target, owners, np.where(ends, np.round(across), across)),
    ]
    starts = np.concatenate(spread, axis=1)
    who = np.repeat(owners, starts.shape[1])
    inside = confined(target, who, starts.reshape(-1, r))
    moves, _, gradients = ascend(target, who, inside)
    moves, gradients = moves.reshape(starts.shape), gradients.reshape(starts.shape)
    values = heights(moves)
    left = np.isfinite(values) & (values > total[:, None] + known.log_density(moves) + NEW)
    found, once, twice, distinct = (np.zeros(size) for _ in range(4))
    places: list[tuple[float, Array]] = []
    while left.any():
        pick = np.where(left, values, -np.inf).argmax(axis=1)
        some = left[rows, pick]
        place = clipped(moves[rows, pick], bounds)
        one = local(target, owners, place, gradients[rows, pick], bounds, some, some)
        # What it has there, and what the mixture gives to the same place, by draws.
        around = at(one, AROUND)
        own = one.log_density(around)
        there = np.logaddexp.reduce(heights(around) - own, axis=1) - np.log(AROUND)
        given = np.logaddexp.reduce(known.log_density(around) - own, axis=1) - np.log(AROUND)
        lacks = there - total > given + LACKING
        mass = values[rows, pick] - one.log_density(place[:, None])[:, 0]
        same = left & (values <= mass[:, None] + one.log_density(moves) + NEW)
        same[rows, pick] |= some
        counts = some & lacks & (there > total + NEGLIGIBLE)
        reached = np.where(counts, same.sum(axis=1), 0)
        extra = np.where(counts, np.exp(np.minimum(there - total, 50.0)), 0.0)
        places += [(float(extra[k]), place[k]) for k in np.flatnonzero(counts)]
        found += extra
        distinct += counts
        once += reached == 1
        twice += reached == 2
        left &= ~same
    unseen = once * np.maximum(once - 1, 0) / (2 * (twice + 1))
    scale = 1 + np.divide(unseen, distinct, out=np.zeros(size), where=distinct > 0)
    places.sort(key=lambda item: -item[0])
    moved = np.array([place for _, place in places[:LEARNED]]).reshape(-1, r)
    return Missed(np.log1p(found * scale), moved)
