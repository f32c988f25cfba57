"""The density of the block C of the data, the affine block A integrated out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model.objectives.integration.conditional.block_integral import BlockIntegral
from wdro_model.objectives.integration.importance.frame import Frame
from wdro_model.objectives.integration.importance.proposals import Bounds
from wdro_model.objectives.integration.importance.targets import blocks, probe
from wdro_model.solvers.objective import Array

if TYPE_CHECKING:
    from wdro_model.objectives.integration.conditional.by_blocks import Columns, Conditional


CHUNK_ENTRIES = 2**17
"""Scenarios evaluated at once (1 MiB): arrays that stay in the cache."""


def scenarios(rule: Conditional, owners: Array, moves: Array) -> Array:
    """Rows (P S, d): the samples `owners` (P,), with moves (P, S, r) of the block C."""
    repeated = np.repeat(owners, moves.shape[1])
    return rule.frame.rows(repeated, moves.reshape(len(repeated), rule.frame.dimension))


def evaluated(
    rule: Conditional, x: Array, rows: Array, shape: tuple[int, ...]
) -> tuple[Array, Array]:
    """f and its slopes in the moving coordinates of the block A, (*shape) and (*shape, r)."""
    values, pullback = rule.loss(x, rows)
    values = values.reshape(shape).copy()
    slopes = pullback.in_data(np.ones(len(rows)), rule.affine)
    return values, rule.in_block.of(slopes).reshape(*shape, rule.block.frame.dimension)


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
        for some in blocks(len(moves), self.rule.joint.dimension):
            rows = self.frame.rows(owners[some], moves[some])
            _, inner, _ = self._inner(owners[some], rows)
            mean[some] = inner.cost[:, 0] + moves[some] ** 2 @ self.frame.weights
            if inner.cost_variance is not None:
                variance[some] = inner.cost_variance[:, 0]
        return mean, variance

    def exponents(self, owners: Array, moves: Array) -> Array:
        """h without the Gaussian of reference and cost, (B,)."""
        found = np.empty(len(moves))
        with np.errstate(all="ignore"):
            for some in blocks(len(moves), self.rule.joint.dimension):
                rows = self.frame.rows(owners[some], moves[some])
                values, inner, _ = self._inner(owners[some], rows)
                found[some] = values / self.rule.epsilon + inner.log_value[:, 0]
        return found

    def tilted_rows(self, owners: Array, moves: Array) -> Array:
        """Scenarios (B, d) with these moves of block C, and block A at its tilted mean."""
        rows = self.frame.rows(owners, moves)
        _, inner, steep = self._inner(owners, rows)
        return self._tilted(rows, inner, steep)

    def _inner(self, owners: Array, rows: Array) -> tuple[Array, BlockIntegral, Array]:
        """f at the rows, the integral over block A, and the slopes (B, 1, r)."""
        rule = self.rule
        values, steep = self.look(rows, rule.affine, rule.in_block)
        slopes = rule.block.slopes(owners, steep[:, None])
        return values, rule.block.integrate(slopes, self.dual), steep[:, None]

    def _tilted(self, rows: Array, inner: BlockIntegral, steep: Array) -> Array:
        """The rows (changed in place) with block A at its tilted mean."""
        block = self.rule.block
        rows[:, block.frame.columns] += block.moves(inner, steep)[:, 0]
        return rows

    def _evaluate(self, owners: Array, moves: Array, slopes: bool) -> tuple[Array, Array]:
        values, gradients = np.empty(len(moves)), np.zeros(moves.shape)
        with np.errstate(all="ignore"):
            for some in blocks(len(moves), self.rule.joint.dimension):
                values[some], gradients[some] = self._block(owners[some], moves[some], slopes)
        return values, gradients

    def _block(self, owners: Array, moves: Array, slopes: bool) -> tuple[Array, Array]:
        rule = self.rule
        rows = self.frame.rows(owners, moves)
        values, inner, steep = self._inner(owners, rows)
        h = values / rule.epsilon + inner.log_value[:, 0]
        h -= (moves**2 / (2 * self._variance)).sum(axis=1)
        if not slopes:
            return h, np.zeros(moves.shape)
        rows = self._tilted(rows, inner, steep)
        _, outward = self.look(rows, rule.others, rule.in_others)
        gradient = outward / rule.epsilon - moves / self._variance
        gradient[~np.isfinite(h)] = 0.0
        return h, gradient

    def look(
        self, rows: Array, parameters: tuple[Any, ...], columns: Columns
    ) -> tuple[Array, Array]:
        """f and its gradient in the moving coordinates of some parameters; -inf and 0 where f is
        not defined."""
        loss, x = self.rule.loss, self.x
        try:
            with np.errstate(all="ignore"):
                values, pullback = loss(x, rows)
                values = values.copy()
                slope = columns.of(pullback.in_data(np.ones(len(rows)), parameters))
        except (FloatingPointError, ValueError):
            # Some of the rows lie outside the domain of the loss: found one by one.
            good = np.ones(len(rows), dtype=bool)
            values, raw = probe(loss, x, rows, good, True)
            slices = self.rule.joint.slices
            slope = columns.of(np.concatenate([raw[:, slices[p]] for p in parameters], axis=1))
        return values, slope if np.isfinite(slope).all() else np.where(np.isfinite(slope), slope, 0)

    def variance(self, owners: Array, moves: Array) -> Array:
        return self._variance[None]

    def bounds(self, owners: Array) -> Bounds | None:
        return self.frame.bounds(owners)

    def starts(self, owners: Array) -> list[Array]:
        return []
