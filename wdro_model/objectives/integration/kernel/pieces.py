"""log E exp(max_p (a_p + b_p t)), t ~ N(0, 1), in closed form for many maxima at once.

Each line is the highest one on an interval [lo_p, hi_p], and there
    integral of exp(a + b t) N(t; 0, 1) dt = exp(a + b^2/2) (Phi(hi - b) - Phi(lo - b)).
"""

from __future__ import annotations

import numpy as np

from wdro_model.objectives.integration.kernel.laws import TiltedLaw, log_sum_exp
from wdro_model.objectives.integration.kernel.normal import normal_interval
from wdro_model.solvers.objective import Array

FARTHEST = 1e100
"""Lines that cross beyond this are parallel."""

NEGLIGIBLE = 45.0
"""Intervals so far below the others in logarithm are left out."""


def integrate_pieces(a: Array, b: Array) -> TiltedLaw:
    """The laws of max_p (a_kp + b_kp t), a and b of shape (K, P)."""
    a, b = np.broadcast_arrays(a, b)
    return integrate_segments(a, b, *envelope(a, b))


def integrate_segments(
    a: Array, b: Array, low: Array, high: Array, whole: Array | None = None
) -> TiltedLaw:
    """The laws of functions that are a_kp + b_kp t on [low_kp, high_kp], all of shape (K, P).

    A point stands for each interval that carries mass; one with low >= high is empty. Where rows
    are parts of a whole, given by its number (K,), what counts is the mass of that.
    """
    whole = np.arange(len(a)) if whole is None else whole
    owner, piece = np.nonzero(_carries_mass(a + 0.5 * b**2, low - b, high - b, whole))
    intercept, slope = a[owner, piece], b[owner, piece]
    part = normal_interval(low[owner, piece], high[owner, piece], slope)
    logs = intercept + 0.5 * slope**2 + part.log_mass
    log_mass = log_sum_exp(logs, owner, len(a))
    weights = np.exp(logs - log_mass[owner])
    return TiltedLaw(log_mass, owner, part.mean[:, None], weights, part.variance)


def _carries_mass(top: Array, low: Array, high: Array, whole: Array) -> Array:
    """Which intervals [low, high] matter to the sum of exp(top) P(t in it) over a whole, (K, P).

    With u the distance of the interval from 0 and h its length, its probability lies between
    exp(-u^2/2 - 2.5) min(h, 1/(1 + u)) and exp(-u^2/2).
    """
    used = low < high
    distance = np.where(used, np.maximum(np.maximum(low, -high), 0.0), 0.0)
    most = np.where(used, top - 0.5 * distance**2, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        length = np.where(used, np.minimum(high - low, 1.0 / (1.0 + distance)), 0.0)
        least = most + np.log(length) - 2.5
    best = np.full(len(top), -np.inf)
    np.maximum.at(best, whole, least.max(axis=1))
    return used & (most >= best[whole, None] - NEGLIGIBLE)


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
