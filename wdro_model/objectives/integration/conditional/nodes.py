"""Nodes of conditional integration, and the density of the block that they stand in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wdro_model.objectives.base import Array
from wdro_model.objectives.integration.importance.frame import Frame
from wdro_model.objectives.integration.importance.proposals import HALF_LOG_2PI, Bounds
from wdro_model.objectives.integration.importance.targets import blocks, probe

if TYPE_CHECKING:
    from wdro_model.objectives.integration.conditional.strategy import Conditional

STEP = 0.8
EXTENT = 5.5
"""The rule covers normal scores up to this size."""


@dataclass(frozen=True)
class Nodes:
    """S nodes in the block C for each of N samples."""

    moves: Array
    """(N, S, r)"""
    log_weights: Array
    """log of weight times reference density, (N, S)."""
    scores: Array | None
    """Normal scores of the nodes of one component, (S / J, r); None for draws."""


def normal_scores(dimension: int) -> tuple[Array, Array]:
    """Points (S, r) of the trapezoidal rule for the standard normal, and the log weights (S,)."""
    if dimension == 0:
        return np.zeros((1, 0)), np.zeros(1)
    half = int(np.ceil(EXTENT / STEP))
    line = STEP * (np.arange(-half, half) + 0.5)
    mesh = np.meshgrid(*[line] * dimension, indexing="ij")
    points = np.stack([axis.ravel() for axis in mesh], axis=1)
    points = points[np.linalg.norm(points, axis=1) <= EXTENT + STEP]
    weights = dimension * (np.log(STEP) - HALF_LOG_2PI) - 0.5 * (points**2).sum(axis=1)
    return points, weights


class Marginal:
    """Log densities of the moves of block C, block A integrated out."""

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

    def _evaluate(self, owners: Array, moves: Array, slopes: bool) -> tuple[Array, Array]:
        values, gradients = np.empty(len(moves)), np.zeros(moves.shape)
        for some in blocks(len(moves), self.rule.joint.dimension):
            values[some], gradients[some] = self._block(owners[some], moves[some], slopes)
        return values, gradients

    def _block(self, owners: Array, moves: Array, slopes: bool) -> tuple[Array, Array]:
        rule = self.rule
        rows = self.frame.rows(owners, moves)
        everywhere = np.ones(len(rows), dtype=bool)
        values, raw = probe(rule.loss, self.x, rows, everywhere, True)
        inner = rule.block.integrate(owners, rule.block.frame.pulled(raw), self.dual)
        h = values / rule.epsilon + inner.log_value - (moves**2 / (2 * self._variance)).sum(axis=1)
        if not slopes:
            return h, np.zeros(moves.shape)
        rows[:, rule.block.frame.moving] += inner.move
        _, raw = probe(rule.loss, self.x, rows, np.isfinite(values), True)
        gradient = self.frame.pulled(raw) / rule.epsilon - moves / self._variance
        gradient[~np.isfinite(h)] = 0.0
        return h, gradient

    def variance(self, owners: Array, moves: Array) -> Array:
        return self._variance[None]

    def bounds(self, owners: Array) -> Bounds | None:
        return self.frame.bounds(owners)

    def starts(self, owners: Array) -> list[Array]:
        return []
