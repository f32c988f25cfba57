"""Empirical risk: the mean loss over the samples."""

from __future__ import annotations

import numpy as np

from wdro_model.model import Model
from wdro_model.solvers.objective import Array, Point

BATCH_ENTRIES = 2**24
"""Entries of scenario data that are evaluated at once (128 MiB)."""


class Empirical:
    """mean_k f(x, xi_k).

    A loss that is affine in the data depends on the samples through their mean alone: the mean
    over N samples is then one evaluation at the average sample.
    """

    def __init__(self, model: Model) -> None:
        self.model, self.loss = model, model.loss
        self.affine = model.affine_in_data
        self.convex = model.convex_on_samples
        self.size = model.size
        self.rows = model.mean_row if self.affine else model.rows

    def evaluate(self, x: Array, dual: float | None = None) -> Point:
        return self._mean(x, self.rows)

    def estimate(
        self, x: Array, dual: float | None, batch: Array, rng: np.random.Generator
    ) -> Point:
        return self._mean(x, self.model.rows[batch])

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
