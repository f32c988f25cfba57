"""log E exp(max_p (a_p + b_p t)), t ~ N(0, 1), in closed form for many maxima at once.

Each line is the highest one on an interval [lo_p, hi_p], and there
    integral of exp(a + b t) N(t; 0, 1) dt = exp(a + b^2/2) (Phi(hi - b) - Phi(lo - b)).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdro_model.objectives.integration.low_rank.tilted_law import log_sum_exp
from wdro_model.objectives.integration.truncated import truncated_normal
from wdro_model.solvers.objective import Array

FARTHEST = 1e100
"""Lines that cross beyond this are parallel."""

NEGLIGIBLE = 45.0
"""Intervals so far below the others in logarithm are left out."""


@dataclass(frozen=True)
class PieceIntegral:
    """Integrals of several maxima of lines, and the intervals that carry them."""

    log_mass: Array
    """log E exp(max_p ...) of each maximum, (K,)."""
    owner: Array
    """The maximum that each interval belongs to, (M,)."""
    mean: Array
    """The mean of t on the interval under the tilted law."""
    variance: Array
    weights: Array
    """The probability of the interval under the tilted law."""


def integrate_pieces(a: Array, b: Array) -> PieceIntegral:
    """The integrals of max_p (a_kp + b_kp t), a and b of shape (K, P)."""
    a, b = np.broadcast_arrays(a, b)
    return integrate_segments(a, b, *envelope(a, b))


def integrate_segments(a: Array, b: Array, low: Array, high: Array) -> PieceIntegral:
    """The integrals of functions that are a_kp + b_kp t on [low_kp, high_kp], all of shape (K, P).

    An interval with low >= high is empty.
    """
    owner, piece = np.nonzero(_carries_mass(a + 0.5 * b**2, low - b, high - b))
    intercept, slope = a[owner, piece], b[owner, piece]
    part = normal_interval(low[owner, piece], high[owner, piece], slope)
    logs = intercept + 0.5 * slope**2 + part.log_mass
    log_mass = log_sum_exp(logs, owner, len(a))
    return PieceIntegral(log_mass, owner, part.mean, part.variance, np.exp(logs - log_mass[owner]))


def _carries_mass(top: Array, low: Array, high: Array) -> Array:
    """Which intervals [low, high] matter to the sum of exp(top) P(t in it) over a row, (K, P).

    With u the distance of the interval from 0 and h its length, its probability lies between
    exp(-u^2/2 - 2.5) min(h, 1/(1 + u)) and exp(-u^2/2).
    """
    used = low < high
    distance = np.where(used, np.maximum(np.maximum(low, -high), 0.0), 0.0)
    most = np.where(used, top - 0.5 * distance**2, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        length = np.where(used, np.minimum(high - low, 1.0 / (1.0 + distance)), 0.0)
        least = most + np.log(length) - 2.5
    return used & (most >= least.max(axis=1, keepdims=True) - NEGLIGIBLE)


@dataclass(frozen=True)
class NormalInterval:
    """log mass, mean and variance of N(center, 1) on intervals."""

    log_mass: Array
    mean: Array
    variance: Array


def normal_interval(low: Array, high: Array, center: Array | float = 0.0) -> NormalInterval:
    """On [low, high], both ends of which may be infinite.

    The mean is counted from an end of the interval: a center far outside of it would cancel.
    """
    whole = np.isneginf(low) & np.isposinf(high)
    center = np.broadcast_to(center, low.shape)
    log_mass, mean, variance = np.zeros(len(low)), np.array(center), np.ones(len(low))
    cut = np.flatnonzero(~whole)
    if len(cut):
        t = truncated_normal(low[cut] - center[cut], high[cut] - center[cut])
        log_mass[cut] = t.log_mass
        mean[cut] = np.where(t.from_lower, low[cut] + t.depth, high[cut] - t.depth)
        variance[cut] = np.maximum(t.depth_square - t.depth**2, 0.0)
    return NormalInterval(log_mass, mean, variance)


def envelope(a: Array, b: Array) -> tuple[Array, Array]:
    """The interval on which each line is the highest, (K, P) twice; empty where low >= high."""
    low = np.full(a.shape, -np.inf)
    high = np.full(a.shape, np.inf)
    count = a.shape[1]
    for p in range(count):
        for q in range(p + 1, count):
            rise, gap = b[:, q] - b[:, p], a[:, p] - a[:, q]
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                crossing = gap / rise
            # Parallel lines: the lower one is nowhere the highest, equal ones count once.
            crossing = np.where(rise == 0, np.where(gap >= 0, np.inf, -np.inf), crossing)
            crossing = np.where(
                np.abs(crossing) > FARTHEST, np.copysign(np.inf, crossing), crossing
            )
            steeper = rise >= 0
            high[:, p] = np.where(steeper, np.minimum(high[:, p], crossing), high[:, p])
            low[:, q] = np.where(steeper, np.maximum(low[:, q], crossing), low[:, q])
            low[:, p] = np.where(steeper, low[:, p], np.maximum(low[:, p], crossing))
            high[:, q] = np.where(steeper, high[:, q], np.minimum(high[:, q], crossing))
    return low, high
