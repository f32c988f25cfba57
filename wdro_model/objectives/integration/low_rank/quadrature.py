"""log E exp(H(t)), t ~ N(0, 1), for many functions H at once, by adaptive panels.

With g(t) = H(t) - t^2/2, where H may be a loss divided by a tiny temperature, the mass sits in a
few narrow places that are far apart. They cannot be missed in logarithms: between two points a
convex H lies under its chord, a concave H under its neighbouring chords, and the line c + m t
reaches at most c + m s - s^2/2 on an interval, s being m clipped to it. So

1. a scan at geometric distances from 0 and a parabolic search for the highest mode;
2. equal steps over a window around it, exact to rounding for a smooth g: accepted where half of
   the points give the same, and bounds outside of the window leave no room for another mode;
3. elsewhere panels: an interval whose bound lies far below the top is dropped, others get
   Clenshaw-Curtis nodes and are halved until the last Chebyshev coefficients of exp(g) are
   negligible and the nodes have seen the height that the bound allows. Kinks are bisected.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdro_model.objectives.integration.low_rank.line_bounds import (
    RIGOROUS,
    UNKNOWN,
    interval_bounds,
    parabola_bounds,
)
from wdro_model.objectives.integration.low_rank.line_panels import CUT, Exponent, Panels, refine
from wdro_model.objectives.integration.low_rank.tilted_law import HALF_LOG_2PI, log_sum_exp
from wdro_model.solvers.objective import Array

EDGE = 36.0
"""How far below the top g must be outside of a window that is integrated by equal steps."""
SEARCHES = 6
DISTANCES = 2.0 ** np.array([0, 2, 4, 6, 8, 10, 12, 17, 24, 34, 48])
SCAN = np.concatenate([-DISTANCES[::-1], [0.0], DISTANCES])
DENSER = np.linspace(-1.0, 1.0, 66)
"""Points that are added for functions of unknown curvature, over the reach of their slopes."""
STEP = 0.36
STEPS = np.arange(-24, 25)
"""The window: 24 steps to each side, each 0.36 standard deviations of the mode long."""
SHIFTS = (0.38, 0.72)
"""Shifts of the window, in steps, that must agree for functions of unknown curvature."""
BREAKS = np.array([0, 8, 16, 24, 32, 40, 48])
"""Points of the window between which panels are laid."""


@dataclass(frozen=True)
class LineIntegral:
    """Integrals of several functions, and the nodes that carry them."""

    log_mass: Array
    """log E exp(H(t)) for each function; +inf where it diverges."""
    owner: Array
    """The function of each node."""
    nodes: Array
    weights: Array
    """Probabilities of the nodes under the tilted law of their function."""


def integrate_lines(
    exponent: Exponent, size: int, *, curvature: str = UNKNOWN, tolerance: float = 1e-11
) -> LineIntegral:
    """The integrals of `size` functions.

    curvature: "convex" or "concave" if all of them are, so that the bounds are rigorous. Others
    are scanned more densely, and their bounds extend the slopes seen beside an interval into it.
    """
    with np.errstate(all="ignore"):
        scan, top = _scan(exponent, size, curvature)
        offsets = top.width[:, None] * (STEP * STEPS)
        t = top.mode.t[:, None] + offsets
        values = evaluate(exponent, t)
        g = values - 0.5 * t * t
        diverges = _diverges(scan) | np.isposinf(values).any(axis=1)
        best = np.maximum(g.max(axis=1), top.mode.height)
        outside = _Outside(scan, t, values, best, curvature)
        mass = np.exp(g - best[:, None])
        total = mass.sum(axis=1)
        noise = 1e-15 * (np.abs(values).max(axis=1) + np.abs(best))
        settled = resolved(mass, total, np.maximum(tolerance, noise), tolerance)
        settled &= outside.empty & ~diverges
        if curvature not in RIGOROUS:
            settled &= _shifted_alike(exponent, t, best, total, np.maximum(10 * tolerance, noise))
        log_mass = np.where(diverges, np.inf, best + np.log(STEP * top.width * total))
        rest = np.flatnonzero(~settled & ~diverges)
        found = refine(exponent, outside.panels(rest), best, curvature, tolerance)
        log_mass[rest] = log_sum_exp(found.logs, found.owner, size)[rest]
        weights = np.exp(found.logs - log_mass[found.owner])
        return LineIntegral(
            log_mass - HALF_LOG_2PI,
            np.concatenate([np.repeat(np.flatnonzero(settled), len(STEPS)), found.owner]),
            np.concatenate([t[settled].ravel(), found.nodes]),
            np.concatenate([(mass[settled] / total[settled, None]).ravel(), weights]),
        )


# ------------------------------------------------------------------ where the mass is
def evaluate(exponent: Exponent, t: Array) -> Array:
    """H at points t (size, m), the rows belonging to the functions in order; +inf for NaN."""
    owner = np.repeat(np.arange(len(t)), t.shape[1])
    values = exponent(owner, t.ravel()).reshape(t.shape)
    return np.where(np.isnan(values), np.inf, values)


@dataclass(frozen=True)
class _Top:
    """The highest mode of each function, and the standard deviation of exp(g) there."""

    mode: Located
    width: Array


def _scan(exponent: Exponent, size: int, curvature: str) -> tuple[Located, _Top]:
    """Points of the scan (size, m) and H there, and the highest mode near them."""
    scan = Located(np.tile(SCAN, (size, 1)), evaluate(exponent, np.tile(SCAN, (size, 1))))
    if curvature not in RIGOROUS:
        scan = _denser(exponent, scan)
    best = np.clip(scan.height.argmax(axis=1), 1, scan.t.shape[1] - 2)
    rows = np.arange(size)
    low, mode, high = (
        Located(scan.t[rows, best + i], scan.value[rows, best + i]) for i in (-1, 0, 1)
    )
    for _ in range(SEARCHES):
        t = vertex(low, mode, high)
        new = Located(t, evaluate(exponent, t[:, None])[:, 0])
        low, mode, high = narrowed(low, mode, high, new)
    # The width from differences one unit apart.
    beside = evaluate(exponent, mode.t[:, None] + np.array([-1.0, 1.0]))
    precision = 1.0 - (beside[:, 0] - 2 * mode.value + beside[:, 1])
    width = 1.0 / np.sqrt(np.clip(np.nan_to_num(precision, nan=1.0), 1e-12, 1e12))
    return scan, _Top(mode, width)


def _denser(exponent: Exponent, scan: Located) -> Located:
    """The scan with equal steps added over the distances that the slopes of H can reach."""
    slopes = np.abs(np.diff(scan.value, axis=1) / np.diff(scan.t, axis=1))
    reach = np.where(np.isfinite(slopes), slopes, 0.0).max(axis=1)
    t = np.clip(1.2 * reach, 8.0, 2.0**20)[:, None] * DENSER
    points = np.concatenate([scan.t, t], axis=1)
    values = np.concatenate([scan.value, evaluate(exponent, t)], axis=1)
    order = np.argsort(points, axis=1)
    return Located(
        np.take_along_axis(points, order, axis=1), np.take_along_axis(values, order, axis=1)
    )


def _diverges(scan: Located) -> Array:
    """Which functions outgrow t^2/2: g is infinite, or still rises at the ends of the scan."""
    g = scan.height
    return (g[:, 0] > g[:, 1]) | (g[:, -1] > g[:, -2]) | np.isposinf(g).any(axis=1)


def resolved(mass: Array, total: Array, allowed: Array, tolerance: float) -> Array:
    """Which windows are integrated well by their equal steps.

    With steps 4, 2 and 1 the errors of a smooth function fall like e, e^2, e^4; at a kink they
    fall like e, e/4, e/16.
    """
    half = np.abs(2 * mass[:, ::2].sum(axis=1) - total) / total
    quarter = np.abs(4 * mass[:, ::4].sum(axis=1) - total) / total
    first = np.abs(2 * (mass[:, ::2] @ STEPS[::2]) - mass @ STEPS) / (10 * total)
    error = np.maximum(half, first)
    return (error <= allowed) | ((error < 10 * tolerance) & (error < quarter**1.5))


def _shifted_alike(
    exponent: Exponent, t: Array, best: Array, total: Array, allowed: Array
) -> Array:
    """Do shifted points give the same sums? A notch between two points is seen by them alone."""
    alike = np.ones(len(t), dtype=bool)
    for shift in SHIFTS:
        moved = t + shift * (t[:, 1:2] - t[:, :1])
        mass = np.exp(evaluate(exponent, moved) - 0.5 * moved**2 - best[:, None])
        alike &= np.abs(mass.sum(axis=1) - total) <= allowed * total
    return alike


class _Outside:
    """The intervals of the scan on both sides of the windows, and bounds of g on them."""

    def __init__(self, scan: Located, t: Array, values: Array, best: Array, curvature: str) -> None:
        self._t, self._best = t, best
        # Points of the scan beyond the window, those of each row next to it; the farthest one is
        # repeated to fill the row.
        last = scan.t.shape[1] - 1
        below = (scan.t < t[:, :1]).sum(axis=1, keepdims=True)
        above = (scan.t > t[:, -1:]).sum(axis=1, keepdims=True)
        left = np.maximum(np.arange(-last - 1, 0) + below, 0)
        right = np.minimum(np.arange(last + 1) + last + 1 - above, last)
        inside = [BREAKS[0], BREAKS[1], BREAKS[-2], BREAKS[-1]]

        def arranged(at_scan: Array, at_window: Array) -> Array:
            sides = (np.take_along_axis(at_scan, side, axis=1) for side in (left, right))
            return np.concatenate([next(sides), at_window[:, inside], next(sides)], axis=1)

        self._points, self._heights = arranged(scan.t, t), arranged(scan.value, values)
        self._bound = interval_bounds(self._points, self._heights, curvature)
        self._bound[:, last + 1 : last + 4] = -np.inf  # the window itself
        self._bound[:, last][below[:, 0] == 0] = -np.inf
        self._bound[:, last + 4][above[:, 0] == 0] = -np.inf
        open_rows = np.flatnonzero(self._bound.max(axis=1) >= best - EDGE)
        if len(open_rows):
            parabolas = parabola_bounds(self._points[open_rows], self._heights[open_rows])
            self._bound[open_rows] = np.minimum(self._bound[open_rows], parabolas)
        self.empty = self._bound.max(axis=1) < best - EDGE
        """Does nothing lie outside of the window?"""

    def panels(self, rows: Array) -> Panels:
        """Where mass may be, for the functions in `rows`: the window and intervals beside it."""
        if not len(rows):
            return Panels(rows, np.zeros(0), np.zeros(0))
        keep = self._bound[rows] > self._best[rows, None] - CUT
        keep &= np.diff(self._points[rows], axis=1) > 0
        row, column = np.nonzero(keep)
        owner = rows[row]
        ends = self._t[rows][:, BREAKS]
        return Panels(
            np.concatenate([owner, np.repeat(rows, len(BREAKS) - 1)]),
            np.concatenate([self._points[owner, column], ends[:, :-1].ravel()]),
            np.concatenate([self._points[owner, column + 1], ends[:, 1:].ravel()]),
        )


@dataclass(frozen=True)
class Located:
    """Points of several functions and H there."""

    t: Array
    value: Array

    @property
    def height(self) -> Array:
        return self.value - 0.5 * self.t**2

    def where(self, mask: Array, other: Located) -> Located:
        return Located(np.where(mask, self.t, other.t), np.where(mask, self.value, other.value))


def vertex(low: Located, mode: Located, high: Located) -> Array:
    """The top of g by a parabola for H through three points, inside the bracket."""
    left = (mode.value - low.value) / (mode.t - low.t)
    right = (high.value - mode.value) / (high.t - mode.t)
    bend = (right - left) / (high.t - low.t)
    slope = left + bend * (mode.t - low.t)
    precision = 1.0 - 2.0 * bend
    t = mode.t + np.where(precision > 0, (slope - mode.t) / precision, np.nan)
    longer = np.where(mode.t - low.t > high.t - mode.t, low.t, high.t)
    stuck = ~((t > low.t) & (t < high.t)) | (np.abs(t - mode.t) < 1e-2)
    aside = mode.t + np.sign(longer - mode.t) * np.minimum(0.5 * np.abs(longer - mode.t), 4.0)
    return np.where(stuck, aside, t)


def narrowed(
    low: Located, mode: Located, high: Located, new: Located
) -> tuple[Located, Located, Located]:
    """The bracket of the highest point, with a new point inside."""
    higher, right = new.height > mode.height, new.t > mode.t
    return (
        mode.where(higher & right, new.where(~higher & ~right, low)),
        new.where(higher, mode),
        mode.where(higher & ~right, new.where(~higher & right, high)),
    )
