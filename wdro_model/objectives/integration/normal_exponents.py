"""Exponential moments of standard normals on half lines and around 0, for complex exponents.

They are logarithms, of any branch, which neither overflow nor cancel.
"""

from __future__ import annotations

from math import factorial

import numpy as np
from scipy.special import erfcx, log_ndtr, wofz

from wdro_model.solvers.objective import Array

ROOT_2PI = float(np.sqrt(2 * np.pi))
SMALL = 1e-4
"""Half-widths under which a normal density is flat on its interval."""


def far_moment(power: int, q: Array) -> Array:
    """int_0^inf y^power exp(q y - y^2/2) dy for q far to the left, where g' and g'' cancel."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = -1.0 / q
        terms = [
            (-0.5) ** n * factorial(power + 2 * n) / factorial(n) * inverse ** (2 * n)
            for n in range(7)
        ]
        return np.sum(terms, axis=0) * inverse ** (power + 1)


def log_half(q: Array) -> Array:
    """log E [exp(q z); z > 0], z ~ N(0, 1), for real or complex q; of any branch."""
    if not np.iscomplexobj(q):
        return 0.5 * q**2 + log_ndtr(q)
    below = q.real <= 0
    small = np.log(0.5 * wofz(np.where(below, -1j * q, 1j * q) / np.sqrt(2)))
    whole = 0.5 * q**2
    top = np.maximum(whole.real, small.real)
    with np.errstate(under="ignore", divide="ignore"):
        rest = top + np.log(np.exp(whole - top) - np.exp(small - top))
    return np.where(below, small, rest)


def log_between(q: Array, end: Array) -> Array:
    """log E [exp(q z); |z| <= end], z ~ N(0, 1)."""
    q, end = np.broadcast_arrays(q, end)
    q = np.where(q.real < 0, -q, q)
    if np.iscomplexobj(q):
        upper, lower = log_half(end - q), log_half(-end - q)
    else:
        upper, lower = _real_half(end - q), _real_half(-end - q)
    with np.errstate(under="ignore", divide="ignore", invalid="ignore"):
        below, above = lower - q * end, upper + q * end
        top = np.maximum(below.real, above.real)
        found = top - 0.5 * end**2 + np.log(np.exp(above - top) - np.exp(below - top))
    if (end < SMALL).any():
        flat = np.log(2 * end / ROOT_2PI) + _log_sinhc(q * end)
        return np.where(end < SMALL, flat, found)
    return found


def _real_half(q: Array) -> Array:
    """log E [exp(q z); z > 0] for real q."""
    return np.where(
        q < 0, np.log(0.5 * erfcx(-np.minimum(q, 0.0) / np.sqrt(2))), 0.5 * q**2 + log_ndtr(q)
    )


def _log_sinhc(x: Array) -> Array:
    """log (sinh(x)/x) for a real part >= 0."""
    with np.errstate(under="ignore", divide="ignore", invalid="ignore"):
        large = x + np.log(-np.expm1(-2 * x) / (2 * x))
    return np.where(np.abs(x) < 1e-4, x**2 / 6, large)
