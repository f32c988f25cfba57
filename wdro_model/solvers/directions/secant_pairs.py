"""What the last steps tell of the Hessian: steps s_i and the changes y_i of the gradient on them.

The BFGS matrix of m pairs in compact form (Byrd, Nocedal and Schnabel, 1994), with s_i the columns
of S and y_i those of Y, theta = y'y / s'y of the last pair:

    B = B_0 - W M^-1 W',   W = [B_0 S, Y],   M = [[S' B_0 S, L], [L', -D]],   B_0 = theta I,

D the diagonal of S'Y and L what is strictly below it. Other diagonal matrices may stand for B_0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdro_model.solvers.objective import Array

MEMORY = 40
"""The last so many pairs are kept, beside those of a survey."""
CURVED = 1e-8
"""Pairs whose curvature s'y is less than this share of |s| |y| say nothing."""
NOISE = 1e-10
"""Curvatures of a survey below this share of the largest are rounding."""


@dataclass(frozen=True)
class BfgsMatrix:
    """B as a diagonal matrix less one of low rank: products cost no (n, n) matrix."""

    base: Array
    """The diagonal of B_0, (n,)."""
    along: Array
    """W', (2m, n)."""
    solved: Array
    """M^-1 W'."""

    def __matmul__(self, vector: Array) -> Array:
        return self.base * vector - self.along.T @ (self.solved @ vector)

    def dense(self) -> Array:
        """As an (n, n) matrix, symmetric to the last bit."""
        matrix = np.diag(self.base) - self.along.T @ self.solved
        return 0.5 * (matrix + matrix.T)


class SecantPairs:
    """Pairs (s, y) of one objective, or of several that are nearly the same."""

    def __init__(self) -> None:
        self._steps: list[Array] = []
        self._changes: list[Array] = []
        self._surveyed = 0

    def __len__(self) -> int:
        return len(self._steps)

    def copy(self) -> SecantPairs:
        """The same pairs in lists of their own."""
        twin = SecantPairs()
        twin._steps, twin._changes = list(self._steps), list(self._changes)
        twin._surveyed = self._surveyed
        return twin

    def add(self, step: Array, change: Array) -> None:
        """One more pair, if the objective is curved along the step."""
        curvature = float(step @ change)
        size = float(np.linalg.norm(step) * np.linalg.norm(change))
        if np.isfinite(size) and curvature > CURVED * size > 0:
            self._steps.append(step)
            self._changes.append(change)
            if len(self) > self._surveyed + MEMORY:
                # The pairs of the survey stay: nothing else knows of all directions.
                del self._steps[self._surveyed], self._changes[self._surveyed]

    def survey(self, steps: Array, changes: Array) -> None:
        """Pairs of one place (k, n), along any directions, in place of all others.

        They are combined to steps that are conjugate, s_i'y_j = 0, so that B keeps them all.
        """
        products = steps @ changes.T
        curvatures, mixtures = np.linalg.eigh(0.5 * (products + products.T))
        kept = curvatures > NOISE * curvatures[-1]
        if kept.any():
            self._steps = list(mixtures[:, kept].T @ steps)
            self._changes = list(mixtures[:, kept].T @ changes)
            self._surveyed = len(self._steps)

    def quadratic(self, rows: Array) -> Array:
        """rows B rows', (k, k), for vectors in rows (k, n)."""
        base = self._theta()
        along, solved = self._compact(np.array(self._steps) * base, rows)
        return base * (rows @ rows.T) - along.T @ solved

    def matrix(self, size: int, base: Array | None = None) -> BfgsMatrix:
        """B as an operator on R^size; base: the diagonal of B_0, theta by default."""
        if not len(self):
            assert base is not None
            none = np.zeros((0, size))
            return BfgsMatrix(base, none, none)
        base = np.full(size, self._theta()) if base is None else base
        return BfgsMatrix(base, *self._compact(np.array(self._steps) * base))

    def _theta(self) -> float:
        last = self._changes[-1]
        return float(last @ last) / float(self._steps[-1] @ last)

    def _compact(self, based: Array, rows: Array | None = None) -> tuple[Array, Array]:
        """W' and M^-1 W', their columns multiplied by rows where some are given.

        based: the rows of S' B_0.
        """
        S, Y = np.array(self._steps), np.array(self._changes)
        products = S @ Y.T
        below = np.tril(products, -1)
        middle = np.block([[based @ S.T, below], [below.T, -np.diag(np.diag(products))]])
        along = np.concatenate([based, Y])
        along = along if rows is None else along @ rows.T
        # Steps may differ by orders of magnitude: M is scaled to units on its diagonal.
        scale = 1.0 / np.sqrt(np.abs(np.diag(middle)))
        along = along * scale[:, None]
        middle *= np.outer(scale, scale)
        try:
            return along, np.linalg.solve(middle, along)
        except np.linalg.LinAlgError:
            return along, np.linalg.lstsq(middle, along, rcond=1e-14)[0]
