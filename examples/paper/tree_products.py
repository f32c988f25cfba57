"""Products of many fixed symmetric matrices with a slowly moving vector."""

from __future__ import annotations

import numpy as np

from wdro_model.solvers.objective import Array

NEGLIGIBLE = 1e-14
"""Changes of an entry below this fraction of the largest entry are rounding."""
WORTHWHILE = 0.3
"""A product is updated if the vector has changed in fewer entries than this share, up to scale."""
RENEWED = 200
"""After so many updates a product is computed anew: rounding must not add up."""


class MovingProducts:
    """H_k x for k in a batch, where x moves by Frank-Wolfe steps x <- (1 - s) x + s v.

    Since its last visit to matrix k, x has shrunk by a factor r but for the edges of the few trees
    v in between, so that H_k x = r H_k x' + H_k (x - r x') costs a few rows of H_k. That holds for
    any r; the one that leaves the fewest entries is the smallest ratio x / x'.

    matrices: (N, m, m), symmetric.
    """

    def __init__(self, matrices: Array) -> None:
        self.matrices = matrices
        count, m = matrices.shape[:2]
        self._points = np.zeros((count, m))
        self._products = np.zeros((count, m))
        self._updates = np.full(count, RENEWED)

    def at(self, x: Array, batch: Array) -> Array:
        """The products (len(batch), m)."""
        before = self._points[batch]
        ratios = np.divide(x, before, out=np.ones_like(before), where=before > 0).min(axis=1)
        moved = x - ratios[:, None] * before
        changed = np.abs(moved) > NEGLIGIBLE * np.abs(x).max()
        few = (changed.sum(axis=1) <= WORTHWHILE * len(x)) & (self._updates[batch] < RENEWED)
        out = np.empty(before.shape)
        for i, k in enumerate(batch):
            if few[i]:
                entries = np.flatnonzero(changed[i])
                rows = self.matrices[k].take(entries, axis=0)
                out[i] = ratios[i] * self._products[k]
                out[i] += moved[i, entries].astype(rows.dtype) @ rows
            else:
                out[i] = self.matrices[k] @ x.astype(self.matrices.dtype)
        self._updates[batch] = np.where(few, self._updates[batch] + 1, 0)
        self._points[batch], self._products[batch] = x, out
        return out
