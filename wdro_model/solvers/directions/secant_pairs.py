"""What the last steps tell of the Hessian: steps s_i and the changes y_i of the gradient on them.

The BFGS matrix of m pairs in compact form (Byrd, Nocedal and Schnabel, 1994), with s_i the columns
of S and y_i those of Y, theta = y'y / s'y of the last pair:

    B = theta I - W M^-1 W',   W = [theta S, Y],   M = [[theta S'S, L], [L', -D]],

D the diagonal of S'Y and L what is strictly below it.
"""

from __future__ import annotations

import numpy as np

from wdro_model.solvers.objective import Array

MEMORY = 40
"""The last so many pairs are kept."""
CURVED = 1e-8
"""Pairs whose curvature s'y is less than this share of |s| |y| say nothing."""


class SecantPairs:
    """Pairs (s, y) of one objective, or of several that are nearly the same."""

    def __init__(self) -> None:
        self._steps: list[Array] = []
        self._changes: list[Array] = []

    def __len__(self) -> int:
        return len(self._steps)

    def copy(self) -> SecantPairs:
        """The same pairs in lists of their own."""
        twin = SecantPairs()
        twin._steps, twin._changes = list(self._steps), list(self._changes)
        return twin

    def add(self, step: Array, change: Array) -> None:
        """One more pair, if the objective is curved along the step."""
        curvature = float(step @ change)
        size = float(np.linalg.norm(step) * np.linalg.norm(change))
        if np.isfinite(size) and curvature > CURVED * size > 0:
            self._steps, self._changes = self._steps[1 - MEMORY :], self._changes[1 - MEMORY :]
            self._steps.append(step)
            self._changes.append(change)

    def quadratic(self, rows: Array) -> Array:
        """rows B rows', (k, k), for vectors in rows (k, n)."""
        S, Y = np.array(self._steps), np.array(self._changes)
        products = S @ Y.T
        theta = float(Y[-1] @ Y[-1]) / products[-1, -1]
        below = np.tril(products, -1)
        middle = np.block([[theta * (S @ S.T), below], [below.T, -np.diag(np.diag(products))]])
        along = np.concatenate([theta * S, Y]) @ rows.T
        # Steps may differ by orders of magnitude: M is scaled to units on its diagonal.
        scale = 1.0 / np.sqrt(np.abs(np.diag(middle)))
        along *= scale[:, None]
        middle *= np.outer(scale, scale)
        solved = np.linalg.lstsq(middle, along, rcond=1e-14)[0]
        return theta * (rows @ rows.T) - along.T @ solved
