"""Draws of a mixture by rejection, with a bounded number of tries, and the mass they reveal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from wdro_model.objectives.integration.importance.frame import Frame, reference_of
from wdro_model.objectives.integration.importance.proposals import Mixture
from wdro_model.objectives.integration.inner_integral import PILOT, Stream
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs import BoundCost

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
                reference, partial(self.allowed, k, priced=False), PILOT.generator(k), tries
            )
        return self._log_masses[k, tries]
