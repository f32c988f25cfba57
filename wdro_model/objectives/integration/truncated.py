"""The standard normal distribution restricted to an interval: mass and moments, in the tails too.

    Z = Phi(b) - Phi(a),   E t = (phi(a) - phi(b)) / Z,   E t^2 = 1 + (a phi(a) - b phi(b)) / Z

The differences cancel for narrow intervals and underflow far from the origin. Intervals are first
reflected into the left half; ratios phi/Phi come from the scaled complementary error function;
narrow intervals are integrated by Gauss-Legendre nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import erfcx, log_ndtr

from wdro_model.objectives.base import Array

NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
NARROW = 0.5
"""Intervals with width * (1 + |midpoint|) below this are integrated by nodes."""
HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)


@dataclass(frozen=True)
class TruncatedNormal:
    """log Z, E t and E t^2 of N(0, 1) on each interval [a, b]."""

    log_mass: Array
    mean: Array
    square: Array


def truncated_normal(a: Array, b: Array) -> TruncatedNormal:
    """Mass and moments on the intervals [a, b], a < b, infinite ends allowed."""
    a, b = np.broadcast_arrays(np.asarray(a, dtype=float), np.asarray(b, dtype=float))
    if np.isneginf(a).all():
        return left_tail(b)
    if np.isposinf(b).all():
        mirrored = left_tail(-a)
        return TruncatedNormal(mirrored.log_mass, -mirrored.mean, mirrored.square)
    flip = a + b > 0
    low, high = np.where(flip, -b, a), np.where(flip, -a, b)
    result = _interval(low, high)
    middle = np.where(np.isfinite(low), (low + high) / 2, -1e300)
    narrow = (high - low) * (1 + np.abs(middle)) < NARROW
    if narrow.any():
        small = _narrow(low[narrow], high[narrow])
        result.log_mass[narrow] = small.log_mass
        result.mean[narrow] = small.mean
        result.square[narrow] = small.square
    return TruncatedNormal(
        result.log_mass, np.where(flip, -result.mean, result.mean), result.square
    )


def left_tail(b: Array) -> TruncatedNormal:
    """On (-inf, b]."""
    ratio = hazard(b)
    product = np.where(np.isposinf(b), 0.0, np.where(np.isposinf(b), 0.0, b) * ratio)
    return TruncatedNormal(log_ndtr(b), -ratio, 1.0 - product)


def hazard(b: Array) -> Array:
    """phi(b) / Phi(b), with full relative accuracy for b -> -inf."""
    with np.errstate(over="ignore"):
        return np.sqrt(2 / np.pi) / erfcx(-np.asarray(b) / np.sqrt(2))


def _interval(a: Array, b: Array) -> TruncatedNormal:
    """On [a, b] with a + b <= 0, not narrow: everything relative to the larger end b."""
    with np.errstate(invalid="ignore", over="ignore", under="ignore", divide="ignore"):
        log_b, log_a = log_ndtr(b), log_ndtr(a)
        share = -np.expm1(np.minimum(log_a - log_b, 0.0))
        log_mass = log_b + np.log(share)
        at_b = hazard(b) / share
        # phi(a)/Z = phi(b)/Z exp((b^2 - a^2)/2)
        finite_a = np.where(np.isfinite(a), a, 0.0)
        finite_b = np.where(np.isfinite(b), b, 0.0)
        log_at_a = -0.5 * finite_a**2 - HALF_LOG_2PI - log_mass
        at_a = np.where(np.isfinite(a), np.exp(log_at_a), 0.0)
        mean = at_a - at_b
        square = 1.0 + finite_a * at_a - finite_b * at_b
    return TruncatedNormal(log_mass, mean, square)


def _narrow(a: Array, b: Array) -> TruncatedNormal:
    """On short intervals: exp(-m^2/2) times the integral of exp(-m u - u^2/2), m the midpoint."""
    middle, half = (a + b) / 2, (b - a) / 2
    u = half[..., None] * NODES
    density = WEIGHTS * np.exp(-u * (middle[..., None] + 0.5 * u))
    mass = density.sum(axis=-1)
    first = (density * u).sum(axis=-1) / mass
    second = (density * u * u).sum(axis=-1) / mass
    log_mass = -0.5 * middle**2 - HALF_LOG_2PI + np.log(half * mass)
    square = middle**2 + 2 * middle * first + second
    return TruncatedNormal(log_mass, middle + first, square)
