"""BlockNodes of conditional integration: a trapezoidal rule in normal scores around each mode."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from wdro_model.objectives.integration.importance.proposals import HALF_LOG_2PI
from wdro_model.solvers.objective import Array

STEP = 0.8
EXTENT = 5.5
"""The rule covers normal scores up to this size."""


@dataclass(frozen=True)
class Grid:
    """A trapezoidal rule for densities that are close to a standard normal in their scores.

    For an integrand whose deviation in these scores is u, the rule is accurate to a relative
    exp(-2 (pi u / step)^2), and to the mass that it leaves outside.
    """

    step: float
    extent: float
    """Scores that must be covered."""
    reach: float
    """Scores that have nodes."""
    wider: float
    """BlockNodes spread so much wider than the density when they are placed: the dual will move."""
    narrowest: float
    """The least variance of a density that is resolved."""
    most_outside: float
    """The largest mass beyond extent - step of a density that is covered."""

    @cache  # noqa: B019  (few grids, of a few hundred numbers each)
    def scores(self, dimension: int) -> tuple[Array, Array]:
        """Points (S, r), and the log weights (S,) of the standard normal at them."""
        if dimension == 0:
            return np.zeros((1, 0)), np.zeros(1)
        half = int(np.ceil(self.extent / self.step))
        line = self.step * (np.arange(-half, half) + 0.5)
        mesh = np.meshgrid(*[line] * dimension, indexing="ij")
        points = np.stack([axis.ravel() for axis in mesh], axis=1)
        points = points[np.linalg.norm(points, axis=1) <= self.reach]
        weights = dimension * (np.log(self.step) - HALF_LOG_2PI) - 0.5 * (points**2).sum(axis=1)
        return points, weights

    @cache  # noqa: B019
    def halves(self, dimension: int) -> tuple[Array, Array]:
        """The points of two rules with twice the step, (S,) each."""
        places = np.round(self.scores(dimension)[0] / self.step - 0.5).astype(int)
        return tuple(np.all(places % 2 == parity, axis=1) for parity in (0, 1))

    def expected_error(self, variances: Array) -> Array:
        """Of a rule with twice the step, for normal densities of these variances (P, r): (P,)."""
        return 2 * np.exp(-2 * variances * (np.pi / (2 * self.step)) ** 2).sum(axis=1)


COARSE = Grid(step=1.3, extent=2.6, reach=2.8, wider=1.1, narrowest=0.4, most_outside=0.6)
"""A few nodes: 1e-2 in the log of the integral, nearly the same at neighbouring decisions."""


def fine() -> Grid:
    """Accurate to 1e-8 right after the nodes are placed, and to 4e-4 where they move next."""
    return Grid(
        STEP,
        EXTENT,
        reach=EXTENT + STEP,
        wider=1.25,
        narrowest=(0.625 * STEP) ** 2,
        most_outside=1e-3,
    )


@dataclass(frozen=True)
class BlockNodes:
    """S nodes in the block C around each of P modes; a sample may have several."""

    owners: Array
    """The samples of the modes, (P,)."""
    moves: Array
    """(P, S, r)"""
    log_weights: Array
    """log of weight times reference density, (P, S)."""
    scores: Array
    """Normal scores of the nodes, (S, r)."""

    def of(self, samples: Array) -> BlockNodes:
        """The nodes of some samples, in their order; for modes in the order of their samples."""
        if np.array_equal(samples, self.owners):
            return self
        low, high = (np.searchsorted(self.owners, samples, side=s) for s in ("left", "right"))
        counts = high - low
        before = np.cumsum(counts) - counts
        which = np.repeat(low - before, counts) + np.arange(counts.sum())
        return self[which]

    def updated(self, which: Array, new: BlockNodes) -> BlockNodes:
        """With the nodes of some of the modes replaced."""
        moves, log_weights = self.moves.copy(), self.log_weights.copy()
        moves[which], log_weights[which] = new.moves, new.log_weights
        return BlockNodes(self.owners, moves, log_weights, self.scores)

    def __getitem__(self, which: Array | slice) -> BlockNodes:
        """The nodes of some of the modes."""
        return BlockNodes(
            self.owners[which], self.moves[which], self.log_weights[which], self.scores
        )
