"""The smoothed inner integral by brute force on a grid, in one or two dimensions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import logsumexp


def grid(lower, upper, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Midpoints of a product grid (G, d) and the volume of a cell."""
    axes, volume = [], 1.0
    for low, high in zip(np.atleast_1d(lower), np.atleast_1d(upper)):
        step = (high - low) / size
        axes.append(low + step * (np.arange(size) + 0.5))
        volume *= step
    mesh = np.meshgrid(*axes, indexing="ij")
    return np.stack([m.ravel() for m in mesh], axis=1), volume


def brute_force(
    loss: Callable[[np.ndarray], np.ndarray],
    cost: Callable[[np.ndarray, np.ndarray], np.ndarray],
    samples: np.ndarray,
    *,
    dual: float,
    epsilon: float,
    sigma,
    reach: float,
    size: int = 20_001,
    inside: Callable[[np.ndarray], np.ndarray] | None = None,
    lower=-np.inf,
    upper=np.inf,
) -> tuple[float, float]:
    """mean_k phi_k and its slope in the dual, over grids of half-width `reach` around samples."""
    values, slopes = [], []
    for row in samples:
        low, high = np.maximum(lower, row - reach), np.minimum(upper, row + reach)
        points, _ = grid(low, high, size)
        if inside is not None:
            points = points[inside(points)]
        origin = np.broadcast_to(row, points.shape)
        log_reference = -0.5 * (((points - row) / sigma) ** 2).sum(axis=1)
        log_reference -= logsumexp(log_reference)
        costs = cost(origin, points)
        exponent = (loss(points) - dual * costs) / epsilon + log_reference
        total = logsumexp(exponent)
        values.append(epsilon * total)
        weights = np.exp(exponent - total)
        slopes.append(-(weights @ np.where(weights > 0, costs, 0.0)))
    return float(np.mean(values)), float(np.mean(slopes))
