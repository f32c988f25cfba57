"""The density of the block C of the data, the affine block A integrated out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from wdro_model.objectives.integration.conditional.block_integral import BlockIntegral
from wdro_model.objectives.integration.conditional.block_loss import BlockLoss, LossAtNodes
from wdro_model.objectives.integration.importance.frame import Frame
from wdro_model.objectives.integration.importance.proposals import Bounds
from wdro_model.solvers.objective import Array

if TYPE_CHECKING:
    from wdro_model.objectives.integration.conditional.by_blocks import Conditional


class Marginal:
    """Log densities h of the moves of block C; a target of the search for modes.

    h = f(x, (xi_A, s))/eps + log E_A[...] - sum y^2/(2 v), and by the envelope rule its gradient
    is that of f at the tilted mean of block A.
    """

    walled = False

    def __init__(self, rule: Conditional, x: Array, dual: float) -> None:
        self.rule, self.x, self.dual = rule, x, dual
        self.frame: Frame = rule.frame
        self.dimension = self.frame.dimension
        assert self.frame.weights is not None
        spread = self.frame.spread
        self._variance = spread / (1 + 2 * dual * self.frame.weights * spread / rule.epsilon)

    def __call__(self, owners: Array, moves: Array) -> tuple[Array, Array]:
        return self._evaluate(owners, moves, slopes=True)

    def values(self, owners: Array, moves: Array) -> Array:
        return self._evaluate(owners, moves, slopes=False)[0]

    def costs(self, owners: Array, moves: Array) -> Array:
        """The transport cost of moves of block C, with its mean over block A, (B,)."""
        return self.cost_moments(owners, moves)[0]

    def cost_moments(self, owners: Array, moves: Array) -> tuple[Array, Array]:
        """The mean over block A of the transport cost, and its variance: NaN near a bound, (B,)."""
        mean, variance = np.empty(len(moves)), np.full(len(moves), np.nan)
        assert self.frame.weights is not None
        for some, _, inner in self._looked(owners, moves):
            mean[some] = inner.cost[:, 0] + moves[some] ** 2 @ self.frame.weights
            if inner.cost_variance is not None:
                variance[some] = inner.cost_variance[:, 0]
        return mean, variance

    def exponents(self, owners: Array, moves: Array) -> Array:
        """h without the Gaussian of reference and cost, (B,)."""
        found = np.empty(len(moves))
        with np.errstate(all="ignore"):
            for some, loss, inner in self._looked(owners, moves):
                found[some] = (loss.values / self.rule.epsilon + inner.log_value)[:, 0]
        return found

    def tilted_rows(self, owners: Array, moves: Array) -> Array:
        """Scenarios (B, d) with these moves of block C, and block A at its tilted mean."""
        there = LossAtNodes(self.rule, self.x, owners, moves[:, None], lenient=True)
        return there.tilted_rows(self.rule.block.integrate(there.slopes, self.dual))

    def _looked(
        self, owners: Array, moves: Array
    ) -> Iterator[tuple[slice, BlockLoss, BlockIntegral]]:
        """The loss at the moves, and the integral over block A; some after the other."""
        rule = self.rule
        for some in rule.blocks(self.x, len(moves)):
            loss = rule.looked(self.x, owners[some], moves[some, None], lenient=True)
            yield some, loss, rule.block.integrate(loss.slopes, self.dual)

    def _evaluate(self, owners: Array, moves: Array, slopes: bool) -> tuple[Array, Array]:
        h, gradients = np.empty(len(moves)), np.zeros(moves.shape)
        epsilon = self.rule.epsilon
        with np.errstate(all="ignore"):
            for some, loss, inner in self._looked(owners, moves):
                h[some] = (loss.values / epsilon + inner.log_value)[:, 0]
                if slopes:
                    gradients[some] = loss.outward(inner)[:, 0] / epsilon
            h -= (moves**2 / (2 * self._variance)).sum(axis=1)
        if slopes:
            gradients -= moves / self._variance
            gradients[~np.isfinite(h)] = 0.0
        return h, gradients

    def variance(self, owners: Array, moves: Array) -> Array:
        return self._variance[None]

    def bounds(self, owners: Array) -> Bounds | None:
        return self.frame.bounds(owners)

    def starts(self, owners: Array) -> list[Array]:
        return []
