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
"""The last so many pairs are kept, beside those of a survey."""
CURVED = 1e-8
"""Pairs whose curvature s'y is less than this share of |s| |y| say nothing."""
NOISE = 1e-10
"""Curvatures of a survey below this share of the largest are rounding."""


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
        try:
            solved = np.linalg.solve(middle, along)
        except np.linalg.LinAlgError:
            solved = np.linalg.lstsq(middle, along, rcond=1e-14)[0]
        return theta * (rows @ rows.T) - along.T @ solved
