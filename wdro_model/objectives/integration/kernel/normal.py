"""The standard normal distribution restricted to an interval: mass and moments, in the tails too.

    Z = Phi(b) - Phi(a),   E t = (phi(a) - phi(b)) / Z,   E t^2 = 1 + (a phi(a) - b phi(b)) / Z

These differences cancel in narrow intervals and far from the origin, where t hardly leaves the end
of the interval that is nearest to it. Moments are therefore given of the depth e >= 0 from the
heavier end: t = b - e, or t = a + e where the interval was reflected.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import erfcx, log_ndtr

from wdro_model.solvers.objective import Array

SHORT_NODES, SHORT_WEIGHTS = np.polynomial.legendre.leggauss(16)
LONG_NODES, LONG_WEIGHTS = np.polynomial.legendre.leggauss(64)
NARROW = 0.5
"""Intervals with width * (1 + |midpoint|) below this are integrated by a few nodes."""
TAIL = -5.0
"""Intervals whose heavier end lies below this are integrated on the scale of their decay."""
DECAY = 45.0
"""The tail is cut where it has decayed by exp(-45)."""
FRACTION_TERMS = 60
HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)


@dataclass(frozen=True)
class TruncatedNormal:
    """N(0, 1) on intervals [a, b], entry by entry."""

    log_mass: Array
    """log Z."""
    depth: Array
    """E e, e the distance from the heavier end."""
    depth_square: Array
    """E e^2."""
    from_lower: Array
    """Is the heavier end the lower one?"""


def truncated_normal(a: Array, b: Array) -> TruncatedNormal:
    """Mass and moments on the intervals [a, b], a < b, of which one end at least is finite."""
    a, b = np.broadcast_arrays(np.asarray(a, dtype=float), np.asarray(b, dtype=float))
    if np.isneginf(a).all():
        return TruncatedNormal(*left_tail(b), np.zeros(b.shape, dtype=bool))
    if np.isposinf(b).all():
        return TruncatedNormal(*left_tail(-a), np.ones(a.shape, dtype=bool))
    from_lower = a + b > 0
    low, high = np.where(from_lower, -b, a), np.where(from_lower, -a, b)
    parts = [np.empty(low.shape) for _ in range(3)]
    open_ = np.isneginf(low)
    middle = np.where(open_, 0.0, (low + high) / 2)
    narrow = (high - low) * (1 + np.abs(middle)) < NARROW
    tail = ~narrow & ~open_ & (high < TAIL)
    central = ~narrow & ~open_ & ~tail
    rules = (
        (narrow, _narrow),
        (open_, lambda a, b: left_tail(b)),
        (tail, _tail),
        (central, _central),
    )
    for where, rule in rules:
        if where.any():
            for part, values in zip(parts, rule(low[where], high[where])):
                part[where] = values
    return TruncatedNormal(parts[0], parts[1], parts[2], from_lower)


def interval_log_mass(a: Array, b: Array) -> Array:
    """log Z alone on the intervals [a, b], arrays (d,)."""
    if np.isneginf(a).all():
        return log_ndtr(b)
    if np.isposinf(b).all():
        return log_ndtr(-a)
    found, ended = np.zeros(len(a)), np.isfinite(a) | np.isfinite(b)
    found[ended] = truncated_normal(a[ended], b[ended]).log_mass
    return found


@dataclass(frozen=True)
class NormalInterval:
    """log mass, mean and variance of N(center, 1) on intervals, entry by entry."""

    log_mass: Array
    mean: Array
    variance: Array


def normal_interval(low: Array, high: Array, center: Array | float = 0.0) -> NormalInterval:
    """On [low, high], both ends of which may be infinite.

    The mean is counted from an end of the interval: a center far outside of it would cancel.
    """
    whole = np.isneginf(low) & np.isposinf(high)
    if whole.any():
        center = np.broadcast_to(center, whole.shape)
        log_mass, mean, variance = np.zeros(whole.shape), np.array(center), np.ones(whole.shape)
        if not whole.all():
            part = normal_interval(low[~whole], high[~whole], center[~whole])
            log_mass[~whole], mean[~whole] = part.log_mass, part.mean
            variance[~whole] = part.variance
        return NormalInterval(log_mass, mean, variance)
    t = truncated_normal(low - center, high - center)
    mean = np.where(t.from_lower, low + t.depth, high - t.depth)
    return NormalInterval(t.log_mass, mean, np.maximum(t.depth_square - t.depth**2, 0.0))


def hazard(b: Array) -> Array:
    """phi(b) / Phi(b), with full relative accuracy for b -> -inf."""
    with np.errstate(over="ignore"):
        return np.sqrt(2 / np.pi) / erfcx(-np.asarray(b) / np.sqrt(2))


def left_tail(b: Array) -> tuple[Array, Array, Array]:
    """log mass, E e and E e^2 on (-inf, b], b finite.

    E e = b + phi(b)/Phi(b) cancels for b -> -inf, where the continued fraction
    1/(y + 2/(y + 3/(y + ...))), y = -b, is used, and E e^2 = 1 + b E e.
    """
    depth = b + hazard(b)
    square = 1.0 + b * depth
    far = b < TAIL
    if far.any():
        y = -b[far]
        inner = y.copy()
        for k in range(FRACTION_TERMS, 2, -1):
            inner = y + k / inner
        depth[far] = 1.0 / (y + 2.0 / inner)
        square[far] = 2.0 / (y * inner + 2.0)
    return log_ndtr(b), depth, square


def _central(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """a + b <= 0 and b not far in the tail: the textbook formulas, relative to the end b."""
    log_b = log_ndtr(b)
    with np.errstate(under="ignore"):
        share = -np.expm1(np.minimum(log_ndtr(a) - log_b, 0.0))
        log_mass = log_b + np.log(share)
        at_b = hazard(b) / share
        finite = np.where(np.isfinite(a), a, 0.0)
        density = np.exp(-0.5 * finite**2 - HALF_LOG_2PI - log_mass)
    at_a = np.where(np.isfinite(a), density, 0.0)
    mean = at_a - at_b
    square = 1.0 + finite * at_a - b * at_b
    return log_mass, b - mean, b * b - 2 * b * mean + square


def _narrow(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """Short intervals: exp(-b^2/2) times the integral of exp(b e - e^2/2) over the depth e."""
    half = (b - a)[..., None] / 2
    e = half * (1.0 + SHORT_NODES)
    density = SHORT_WEIGHTS * np.exp(e * (b[..., None] - 0.5 * e))
    return _from_nodes(b, e, half[..., 0] * density.T)


def _tail(a: Array, b: Array) -> tuple[Array, Array, Array]:
    """Far in the tail the depth decays like exp(b e): nodes on that scale."""
    half = np.minimum(b - a, DECAY / -b)[..., None] / 2
    e = half * (1.0 + LONG_NODES)
    density = LONG_WEIGHTS * np.exp(e * (b[..., None] - 0.5 * e))
    return _from_nodes(b, e, half[..., 0] * density.T)


def _from_nodes(b: Array, e: Array, density: Array) -> tuple[Array, Array, Array]:
    """Mass and moments from depths e (..., nodes) and weighted densities (nodes, ...)."""
    mass = density.sum(axis=0)
    depth = (density * e.T).sum(axis=0) / mass
    square = (density * e.T**2).sum(axis=0) / mass
    return -0.5 * b * b - HALF_LOG_2PI + np.log(mass), depth, square
