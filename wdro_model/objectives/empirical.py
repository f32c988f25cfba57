"""Empirical risk: the mean loss over the samples."""

from __future__ import annotations

import numpy as np

from wdro_model.loss.flat_vectors import FlatLoss
from wdro_model.objectives.base import Array, Point
from wdro_model.uncertainty.joint import JointSamples

BATCH_ENTRIES = 2**24
"""Entries of scenario data that are evaluated at once (128 MiB)."""


class Empirical:
    """mean_k f(x, xi_k).

    A loss that is affine in the data depends on the samples through their mean alone: the mean
    over N samples is then one evaluation at the average sample.
    """

    def __init__(
        self, loss: FlatLoss, joint: JointSamples | None, *, affine: bool, convex: bool
    ) -> None:
        self.loss = loss
        self.size = 1 if joint is None else joint.size
        self.joint = joint
        self.rows = joint.mean[None] if joint is not None and affine else self.samples
        self.affine = affine
        self.convex = convex

    @property
    def samples(self) -> Array:
        """The samples as rows (N, d); one empty row where nothing is uncertain."""
        return np.zeros((1, 0)) if self.joint is None else self.joint.matrix

    def evaluate(self, x: Array, dual: float | None = None) -> Point:
        return self._mean(x, self.rows)

    def estimate(
        self, x: Array, dual: float | None, batch: Array, rng: np.random.Generator
    ) -> Point:
        return self._mean(x, self.samples[batch])

    def _mean(self, x: Array, rows: Array) -> Point:
        value, gradient = 0.0, np.zeros(self.loss.dimension)
        step = max(1, BATCH_ENTRIES // max(1, rows.shape[1]))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            weights = np.full(len(part), 1.0 / len(rows))
            values, pullback = self.loss(x, part)
            value += float(weights @ values)
            gradient += pullback(weights)
        return Point(value, gradient)

    def describe(self) -> str:
        if self.affine:
            return f"f(x, mean of {self.size} samples), the loss being affine in the data"
        return f"mean of f(x, xi_k) over {self.size} samples"
