"""Functions H(t) on intervals, points of them, and bounds of g(t) = H(t) - t^2/2 between those.

A convex H lies under its chords, a concave H under the chords beside an interval, and a line
c + m t reaches at most c + m s - s^2/2 on an interval, s being m clipped to it. So no narrow place
that carries mass is overlooked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wdro_model.solvers.objective import Array

Exponent = Callable[[Array, Array], Array]
"""H at points t (M,) of the functions with indices owner (M,)."""

CONVEX, CONCAVE, UNKNOWN = "convex", "concave", "unknown"
RIGOROUS = (CONVEX, CONCAVE, "affine")
"""Curvatures for which the bounds are certain; for others, slopes seen beside an interval are
extended into it."""


@dataclass(frozen=True)
class Located:
    """Points of several functions, (F,) or (F, m), and H there."""

    t: Array
    value: Array

    @property
    def height(self) -> Array:
        """g"""
        return self.value - 0.5 * self.t**2

    def of(self, rows: Array) -> Located:
        """The points of some of the functions."""
        return self if len(rows) == len(self.t) else Located(self.t[rows], self.value[rows])

    def where(self, mask: Array, other: Located) -> Located:
        return Located(np.where(mask, self.t, other.t), np.where(mask, self.value, other.value))


@dataclass(frozen=True)
class Exponents:
    """Functions H on intervals."""

    exponent: Exponent
    low: Array
    high: Array
    curvature: str

    def of(self, rows: Array) -> Exponents:
        """Some of the functions, in order."""
        if len(rows) == len(self.low):
            return self

        def exponent(owner: Array, t: Array) -> Array:
            return self.exponent(rows[owner], t)

        return Exponents(exponent, self.low[rows], self.high[rows], self.curvature)

    def at(self, t: Array) -> Located:
        """H at points (F, ...) of each function in order; +inf for NaN."""
        owner = np.repeat(np.arange(len(t)), t.size // max(1, len(t)))
        values = self.exponent(owner, t.ravel()).reshape(t.shape)
        return Located(t, np.where(np.isnan(values), np.inf, values))

    def clip(self, t: Array) -> Array:
        """Points (F, m) moved into the intervals."""
        return np.clip(t, self.low[:, None], self.high[:, None])


def merged(one: Located, other: Located) -> tuple[Located, Array]:
    """Points of both in order, and the order."""
    t = np.concatenate([one.t, other.t], axis=1)
    order = np.argsort(t, axis=1)
    value = np.concatenate([one.value, other.value], axis=1)
    ordered = (np.take_along_axis(part, order, axis=1) for part in (t, value))
    return Located(*ordered), order


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
