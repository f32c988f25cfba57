"""Integrals of exp(g), g(t) = H(t) - t^2/2, over panels that are halved until they are resolved.

Between points at which H is known g has upper bounds. A convex H lies under its chords, a concave H
under the chords beside an interval, and a line c + m t reaches at most c + m s - s^2/2 on an
interval, s being m clipped to it. So no narrow place that carries mass is overlooked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wdro_model.objectives.integration.kernel.laws import TiltedLaw, log_sum_exp
from wdro_model.objectives.integration.kernel.normal import HALF_LOG_2PI
from wdro_model.solvers.objective import Array

Exponent = Callable[[Array, Array], Array]
"""H at points t (M,) of the functions with indices owner (M,)."""

CONVEX, CONCAVE, UNKNOWN = "convex", "concave", "unknown"
RIGOROUS = (CONVEX, CONCAVE, "affine")
"""Curvatures for which the bounds are certain; for others, slopes seen beside an interval are
extended into it."""

CUT = 44.0
"""Intervals so far below the top in logarithm carry nothing."""
HIDDEN = 3.0
"""How far the bound of an accepted panel may lie above the values at its nodes."""
LEVELS = 48
DEGREE = 16


def _clenshaw_curtis(n: int) -> tuple[Array, Array, Array]:
    """Nodes on [-1, 1], weights, and the map from values to the last Chebyshev coefficients."""
    angles = np.pi * np.arange(n + 1) / n
    ends = np.where((np.arange(n + 1) % n) == 0, 0.5, 1.0)
    degrees = np.arange(n + 1)
    coefficients = (2 / n) * np.cos(np.outer(degrees, angles)) * ends * ends[:, None]
    integrals = np.where(degrees % 2 == 0, 2.0 / (1.0 - degrees**2 + (degrees == 1)), 0.0)
    order = slice(None, None, -1)
    return np.cos(angles)[order], (integrals @ coefficients)[order], coefficients[-3:, order].T


NODES, WEIGHTS, TAIL = _clenshaw_curtis(DEGREE)


@dataclass(frozen=True)
class Panels:
    """Intervals [low, high], and the function each belongs to."""

    owner: Array
    low: Array
    high: Array

    def halved(self) -> Panels:
        """Both halves of each; where one end is much farther from 0, in logarithm."""
        near = np.minimum(np.abs(self.low), np.abs(self.high))
        far = np.maximum(np.abs(self.low), np.abs(self.high))
        geometric = (self.low * self.high > 0) & (far > 4 * near)
        mean = np.sign(self.low) * np.sqrt(near * far)
        middle = np.where(geometric, mean, 0.5 * (self.low + self.high))
        return Panels(
            np.repeat(self.owner, 2),
            np.column_stack([self.low, middle]).ravel(),
            np.column_stack([middle, self.high]).ravel(),
        )

    def where(self, mask: Array) -> Panels:
        return Panels(self.owner[mask], self.low[mask], self.high[mask])


def refine(
    exponent: Exponent, panels: Panels, best: Array, curvature: str, tolerance: float
) -> TiltedLaw:
    """The laws of functions from panels that are halved until each one is resolved.

    best: the highest g that is known of each function, (F,).
    """
    size, best = len(best), best.copy()
    done = [(np.zeros(0, dtype=int), np.zeros(0), np.zeros(0))]
    settled = np.full(size, -np.inf)
    most = 4 * len(panels.owner) + 64 * size
    for level in range(LEVELS):
        owner = panels.owner
        if not len(owner):
            break
        half = 0.5 * (panels.high - panels.low)
        t = 0.5 * (panels.high + panels.low)[:, None] + half[:, None] * NODES
        values = exponent(np.repeat(owner, DEGREE + 1), t.ravel()).reshape(t.shape)
        values = np.where(np.isnan(values), -np.inf, values)
        g = values - 0.5 * t * t
        top = g.max(axis=1)
        np.maximum.at(best, owner, top)
        mass = np.exp(g - top[:, None])
        log_integral = top + np.log(half * (mass @ WEIGHTS))
        tail = top + np.log(np.abs(mass @ TAIL).max(axis=1))
        bound = interval_bounds(t, values, curvature).max(axis=1)
        empty = bound + np.maximum(np.log(2 * half), 0.0) < best[owner] - CUT
        reliable = (tail + np.log(half) < log_integral + np.log(1e-3)) & ~empty
        total = np.logaddexp(settled, log_sum_exp(log_integral[reliable], owner[reliable], size))
        noise = 2e-15 * (np.abs(values).max(axis=1) + 0.5 * (t * t).max(axis=1))
        allowed = np.log(np.maximum(tolerance, noise))
        # At a kink the integral of a gradient is as good as the tail, whatever the panel's length.
        scale = np.maximum(half, 0.1 * np.exp(total - best)[owner])
        resolved = (tail + np.log(scale) < total[owner] + allowed) & (bound < top + HIDDEN)
        if level == LEVELS - 1 or len(owner) > most:
            resolved[:] = True
        keep = resolved & ~empty
        if keep.any():
            logs = g[keep] + np.log(half[keep, None] * WEIGHTS)
            done.append((np.repeat(owner[keep], DEGREE + 1), t[keep].ravel(), logs.ravel()))
            settled = np.logaddexp(settled, log_sum_exp(log_integral[keep], owner[keep], size))
        panels = panels.where(~resolved & ~empty).halved()
    owner, t, logs = (np.concatenate(part) for part in zip(*done))
    return _law(owner, t, logs, size)


def _law(owner: Array, t: Array, logs: Array, size: int) -> TiltedLaw:
    """The laws from nodes and the logarithms of weight times exp(g)."""
    top = np.full(size, -np.inf)
    np.maximum.at(top, owner, logs)
    keep = logs > top[owner] - CUT
    owner, t, logs = owner[keep], t[keep], logs[keep]
    log_mass = log_sum_exp(logs, owner, size)
    weights = np.exp(logs - log_mass[owner])
    return TiltedLaw(log_mass - HALF_LOG_2PI, owner, t[:, None], weights)


# ------------------------------------------------------------------ bounds
def interval_bounds(t: Array, values: Array, curvature: str) -> Array:
    """Upper bounds of g between consecutive points t (P, m): (P, m - 1)."""
    low, high = t[:, :-1], t[:, 1:]
    step = high - low
    chord = np.where(step > 0, np.diff(values, axis=1) / np.where(step > 0, step, 1.0), 0.0)
    bound = _peak(values[:, :-1], chord, low, low, high)
    if curvature in (CONVEX, "affine"):
        return bound
    before = np.full_like(bound, np.inf)
    after = np.full_like(bound, np.inf)
    before[:, 1:] = _peak(values[:, 1:-1], chord[:, :-1], low[:, 1:], low[:, 1:], high[:, 1:])
    after[:, :-1] = _peak(values[:, 1:-1], chord[:, 1:], high[:, :-1], low[:, :-1], high[:, :-1])
    # A chord of length zero says nothing about its neighbours.
    before[:, 1:][step[:, :-1] == 0] = np.inf
    after[:, :-1][step[:, 1:] == 0] = np.inf
    if curvature == CONCAVE:
        beside = np.minimum(before, after)
    else:
        beside = np.fmax(*(np.where(np.isposinf(side), np.nan, side) for side in (before, after)))
    return np.maximum(bound, np.where(np.isfinite(beside), beside, bound))


def _peak(value: Array, slope: Array, origin: Array, low: Array, high: Array) -> Array:
    """max over [low, high] of value + slope (t - origin) - t^2/2."""
    s = np.clip(slope, low, high)
    return value + slope * (s - origin) - 0.5 * s * s


def parabola_bounds(t: Array, values: Array) -> Array:
    """The maximum of g between points where H is one parabola as far as its neighbours can tell.

    Chords alone are poor bounds where H grows nearly as fast as t^2/2. +inf elsewhere.
    """
    low, high = t[:, :-1], t[:, 1:]
    step = np.diff(t, axis=1)
    chord = np.where(step > 0, np.diff(values, axis=1) / step, np.nan)
    # Second divided differences around the points, NaN at both ends; two to each interval.
    bend = np.full((len(t), t.shape[1] + 2), np.nan)
    bend[:, 2:-2] = np.diff(chord, axis=1) / (step[:, :-1] + step[:, 1:])
    before, after = bend[:, 1:-2], bend[:, 2:-1]
    first = np.where(np.isnan(before), bend[:, 3:], before)
    second = np.where(np.isnan(after), bend[:, :-3], after)
    known = np.where(np.isnan(before), after, before)
    same = np.abs(first - second) <= 1e-6 * np.minimum(np.abs(first), np.abs(second))
    same &= (np.abs(first - known) <= 1e-6 * np.abs(known)) & (known < 0.5)
    s = np.clip((chord - known * (low + high)) / (1.0 - 2.0 * known), low, high)
    peak = values[:, :-1] + chord * (s - low) + known * (s - low) * (s - high) - 0.5 * s * s
    return np.where(same, peak, np.inf)
