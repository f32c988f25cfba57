"""Chebyshev polynomials on [-1, 1]: interpolation at the points where the last one is 1 or -1."""

from __future__ import annotations

from functools import cache

import numpy as np

from wdro_model.solvers.objective import Array


@cache
def extremal_points(size: int) -> Array:
    """Where the polynomial of degree size - 1 is 1 or -1, in order; 0 if there is but one point."""
    return -np.cos(np.pi * np.arange(size) / (size - 1)) if size > 1 else np.zeros(1)


@cache
def transform(size: int) -> Array:
    """From values at these points to coefficients, (size, size)."""
    if size == 1:
        return np.ones((1, 1))
    ends = np.where(np.arange(size) % (size - 1) == 0, 0.5, 1.0)
    values = chebyshev(extremal_points(size), size)
    return 2.0 / (size - 1) * ends[:, None] * values * ends


def chebyshev(u: Array, size: int) -> Array:
    """T_0, ..., T_(size - 1) at u, (size, *u.shape)."""
    found = np.empty((size, *u.shape))
    found[0] = 1.0
    if size > 1:
        found[1] = u
    twice = 2.0 * u
    for i in range(2, size):
        np.multiply(twice, found[i - 1], out=found[i])
        found[i] -= found[i - 2]
    return found


def derivatives(u: Array, values: Array) -> Array:
    """Those of the polynomials, from their values at u, (size, *u.shape)."""
    found = np.zeros(values.shape)
    if len(found) > 1:
        found[1] = 1.0
    for i in range(2, len(found)):
        found[i] = 2.0 * (values[i - 1] + u * found[i - 1]) - found[i - 2]
    return found
