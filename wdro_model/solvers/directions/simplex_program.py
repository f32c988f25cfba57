"""Convex quadratic programs over the unit simplex, by an active set that begins at a known point.

minimise <w, H w>/2 + <c, w>   over w >= 0, sum w = 1.
"""

from __future__ import annotations

import numpy as np

from wdro_model.solvers.objective import Array

RIDGE = 1e-13
"""Added to the diagonal of H, relative to its mean: vertices may depend on each other."""
CLOSE = 1e-12
"""An entry comes in if it lowers the objective by more than this, relative to its gradients."""


def simplex_minimum(matrix: Array, linear: Array, start: Array) -> Array:
    """The minimiser w (k,), or a point below the start where that takes more than 4 k steps."""
    size = len(linear)
    matrix = matrix + RIDGE * max(float(np.trace(matrix)) / size, 1e-300) * np.eye(size)
    weights = start / start.sum()
    free = weights > 0
    for _ in range(4 * size + 10):
        target = np.zeros(size)
        target[free], price = face_minimum(matrix[np.ix_(free, free)], linear[free])
        falling = free & (target < 0)
        if falling.any():
            lasts = np.full(size, np.inf)
            lasts[falling] = weights[falling] / (weights[falling] - target[falling])
            blocking = int(lasts.argmin())
            weights = np.maximum(weights + lasts[blocking] * (target - weights), 0.0)
            weights[blocking] = 0.0
            free = free & (weights > 0)
            continue
        weights = target
        gradient = matrix @ weights + linear
        below = np.where(free, np.inf, gradient - price)
        entering = int(below.argmin())
        if not below[entering] < -CLOSE * float(np.abs(gradient).max()):
            break
        free[entering] = True
    return weights / weights.sum()


def face_minimum(matrix: Array, linear: Array) -> tuple[Array, float]:
    """The minimiser under sum w = 1 alone, of any sign, and the gradient's entries there."""
    size = len(linear)
    system = np.zeros((size + 1, size + 1))
    system[:size, :size] = matrix
    scale = max(float(np.trace(matrix)) / size, 1e-300)
    system[size, :size] = system[:size, size] = scale
    found = np.linalg.solve(system, np.append(-linear, scale))
    return found[:size], -scale * float(found[size])
