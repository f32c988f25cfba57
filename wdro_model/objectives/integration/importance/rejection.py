"""Draws of a mixture by rejection, with a bounded number of tries, and the mass they reveal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wdro_model.objectives.base import Array
from wdro_model.objectives.integration.importance.proposals import Mixture

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
    return Accepted(np.concatenate(found)[:count], float(np.log(accepted / tried)))


def log_acceptance(
    proposals: Mixture, inside: Callable[[Array], Array], generator: np.random.Generator
) -> float:
    """The log of the mass that a mixture gives to a set, from at least MASS_TRIES proposals."""
    count = max(1, MASS_TRIES // 4)
    dimension = max(1, proposals.components[0].center.shape[1])
    tried = accepted = 0
    while tried < MASS_TRIES or (accepted < 16 and tried < 100 * MASS_TRIES):
        size = max(1, min(count, ROUND_ENTRIES // dimension))
        accepted += int(inside(proposed(proposals, size, dimension, generator)).sum())
        tried += size
    # An observed sample lies in the support: half a success stands for none.
    return float(np.log(max(accepted, 0.5) / tried))


def proposed(
    proposals: Mixture, count: int, dimension: int, generator: np.random.Generator
) -> Array:
    """Independent draws (count, r) of the mixture of one sample, without rejection."""
    noise = generator.standard_normal((1, count, dimension))
    choice = proposals.choose(generator.random((1, count)))
    return proposals.transport(choice, noise)[0]
