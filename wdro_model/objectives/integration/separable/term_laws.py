"""The tilted laws of single coordinates, t ~ N(0, 1) on an interval tilted by exp(H(t))."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdro_model.objectives.integration.low_rank.line_panels import Exponent
from wdro_model.objectives.integration.low_rank.piecewise import (
    integrate_segments,
    normal_interval,
)
from wdro_model.objectives.integration.low_rank.tilted_law import TiltedLaw, log_sum_exp, merged
from wdro_model.objectives.integration.separable.intervals import integrate_intervals
from wdro_model.solvers.objective import Array

NODES, WEIGHTS = np.sqrt(3.0) * np.array([-1, 0, 1]), np.array([1, 4, 1]) / 6
FLAT = 1e-9
"""A precision under this is taken for a density that is not Gaussian."""


def segment_law(a: Array, b: Array, low: Array, high: Array) -> TiltedLaw:
    """H = a_q + b_q t on [low_q, high_q], all (F, Q)."""
    found = integrate_segments(a, b, low, high)
    return TiltedLaw(
        found.log_mass, found.owner, found.mean[:, None], found.weights, found.variance
    )


def quadratic_law(c: Array, b: Array, bend: Array, low: Array, high: Array) -> TiltedLaw:
    """H = c + b t + bend t^2/2 on [low, high], all (F,).

    A Gaussian of precision 1 - bend, restricted to the interval, if that is positive; its
    three points have its mean and variance (and all moments up to the fifth on the whole line).
    Otherwise the mass sits at the ends: by quadrature.
    """
    precision = 1.0 - bend
    round_ = precision > FLAT
    rows, rest = np.flatnonzero(round_), np.flatnonzero(~round_)
    p, mean = precision[rows], b[rows] / precision[rows]
    root = np.sqrt(p)
    part = normal_interval(low[rows] * root, high[rows] * root, mean * root)
    center, spread = part.mean / root, np.sqrt(part.variance) / root
    laws = [
        TiltedLaw(
            c[rows] + 0.5 * b[rows] * mean - 0.5 * np.log(p) + part.log_mass,
            np.repeat(rows, 3),
            (center[:, None] + spread[:, None] * NODES).reshape(-1, 1),
            np.tile(WEIGHTS, len(rows)),
            samples=rows,
        )
    ]
    if len(rest):

        def exponent(owner: Array, t: Array) -> Array:
            who = rest[owner]
            return c[who] + t * (b[who] + 0.5 * bend[who] * t)

        found = smooth_law(exponent, low[rest], high[rest], "convex")
        laws.append(
            TiltedLaw(found.log_mass, rest[found.owner], found.points, found.weights, samples=rest)
        )
    return merged(laws, len(c))


@dataclass(frozen=True)
class Halves:
    """Intervals [low, high] cut at 0 into sides of their own, those of no length left out."""

    rows: Array
    """The function that each side is of, (H,)."""
    side: Array
    """-1 for the left one, 1 for the right one."""
    low: Array
    high: Array
    size: int
    """How many functions there are."""

    def joined(self, law: TiltedLaw) -> tuple[TiltedLaw, Array]:
        """The laws of the functions from those of their sides, and the side of each point."""
        log_mass = log_sum_exp(law.log_mass, self.rows, self.size)
        owner = self.rows[law.owner]
        with np.errstate(invalid="ignore"):
            weights = law.weights * np.exp(law.log_mass[law.owner] - log_mass[owner])
        whole = TiltedLaw(log_mass, owner, law.points, weights, law.variance)
        return whole, self.side[law.owner]


def halves(low: Array, high: Array) -> Halves:
    """Both sides of 0 of intervals (F,) that contain it."""
    rows = np.tile(np.arange(len(low)), 2)
    side = np.repeat([-1.0, 1.0], len(low))
    lows = np.concatenate([low, np.maximum(low, 0.0)])
    highs = np.concatenate([np.minimum(high, 0.0), high])
    used = lows < highs
    return Halves(rows[used], side[used], lows[used], highs[used], len(low))


def smooth_law(exponent: Exponent, low: Array, high: Array, curvature: str) -> TiltedLaw:
    """Any H, by quadrature."""
    found = integrate_intervals(exponent, low, high, curvature=curvature)
    return TiltedLaw(found.log_mass, found.owner, found.nodes[:, None], found.weights)
