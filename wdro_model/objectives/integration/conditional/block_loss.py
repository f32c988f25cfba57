"""What the integrals need of the loss at nodes of the block C: evaluated there.

Where f is smooth in block C a few hundred evaluations tell it for all samples (`block_table`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from wdro_model.objectives.integration.conditional.block_integral import BlockIntegral, Slopes
from wdro_model.objectives.integration.importance.targets import probe
from wdro_model.solvers.objective import Array

if TYPE_CHECKING:
    from wdro_model.objectives.integration.conditional.by_blocks import Columns, Conditional


class BlockLoss(Protocol):
    """The loss at S nodes of K samples, at one decision."""

    @property
    def values(self) -> Array:
        """f, the block A at its sample, (K, S); -inf where it is not defined."""

    @property
    def slopes(self) -> Slopes:
        """What the integrals over block A need of the slopes there."""

    def outward(self, inner: BlockIntegral) -> Array:
        """The gradients of f in the moves of block C, the block A at its tilted mean, (K, S, r)."""

    def gradient(self, x: Array, inner: BlockIntegral, weights: Array) -> Array:
        """The sum of gradients at a decision x, near this one or not, weighted by (K, S).

        The block A is at the tilted mean that it has at the decision of the loss.
        """


class LossAtNodes:
    """The loss, evaluated at every node.

    Parameters
    ----------
    owners: the samples, (K,).
    moves: of block C, (K, S, r).
    keep: are the slopes kept? Otherwise they are evaluated again where they are asked for.
    lenient: may nodes lie where the loss is not defined?
    """

    def __init__(
        self,
        rule: Conditional,
        x: Array,
        owners: Array,
        moves: Array,
        *,
        keep: bool = True,
        lenient: bool = False,
    ) -> None:
        self._rule, self._x, self._owners, self._moves = rule, x, owners, moves
        self._lenient = lenient
        self.values, slopes = self._evaluated()
        self._kept = slopes if keep else None
        entries = (
            None if keep else (lambda samples, coordinates: self._steep[samples, :, coordinates])
        )
        self.slopes = rule.block.slopes(owners, slopes, entries)

    def _evaluated(self) -> tuple[Array, Array]:
        """f and its slopes in the moving coordinates of block A, (K, S) and (K, S, r_A)."""
        rule, shape = self._rule, self._moves.shape[:2]
        look = looked if self._lenient else evaluated
        values, slopes = look(rule, self._x, self._rows(), rule.affine, rule.in_block)
        return values.reshape(shape), slopes.reshape(*shape, rule.block.frame.dimension)

    @property
    def _steep(self) -> Array:
        return self._evaluated()[1] if self._kept is None else self._kept

    def _rows(self) -> Array:
        """Scenarios (K S, d), the block A at its samples."""
        repeated = np.repeat(self._owners, self._moves.shape[1])
        moves = self._moves.reshape(len(repeated), self._rule.frame.dimension)
        return self._rule.frame.rows(repeated, moves)

    def tilted_rows(self, inner: BlockIntegral) -> Array:
        """Scenarios (K S, d), the block A at its tilted mean."""
        block, rows = self._rule.block, self._rows()
        rows[:, block.frame.columns] += block.moves(inner, self._steep).reshape(len(rows), -1)
        return rows

    def outward(self, inner: BlockIntegral) -> Array:
        rule = self._rule
        _, slopes = looked(rule, self._x, self.tilted_rows(inner), rule.others, rule.in_others)
        return slopes.reshape(self._moves.shape)

    def gradient(self, x: Array, inner: BlockIntegral, weights: Array) -> Array:
        return self._rule.loss(x, self.tilted_rows(inner))[1](weights.ravel())


def evaluated(
    rule: Conditional, x: Array, rows: Array, parameters: tuple[Any, ...], columns: Columns
) -> tuple[Array, Array]:
    """f and its gradient in the moving coordinates of some parameters, (B,) and (B, r)."""
    values, pullback = rule.loss(x, rows)
    return values.copy(), columns.of(pullback.in_data(np.ones(len(rows)), parameters))


def looked(
    rule: Conditional, x: Array, rows: Array, parameters: tuple[Any, ...], columns: Columns
) -> tuple[Array, Array]:
    """The same; -inf and 0 where f is not defined."""
    try:
        with np.errstate(all="ignore"):
            values, slope = evaluated(rule, x, rows, parameters, columns)
    except (FloatingPointError, ValueError):
        # Some of the rows lie outside the domain of the loss: found one by one.
        good = np.ones(len(rows), dtype=bool)
        values, raw = probe(rule.loss, x, rows, good, True)
        slices = rule.joint.slices
        slope = columns.of(np.concatenate([raw[:, slices[p]] for p in parameters], axis=1))
    return values, slope if np.isfinite(slope).all() else np.where(np.isfinite(slope), slope, 0)
