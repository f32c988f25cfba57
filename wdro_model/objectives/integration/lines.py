"""log E [exp(H(t)); low <= t <= high] for t ~ N(0, 1), many functions H at once, on panels.

Let g(t) = H(t) - t^2/2. H may be a loss divided by a tiny temperature: the mass of exp(g) then sits
in a few narrow places far apart, or at an end. Upper bounds of g between the points at which H is
known (`interval_bounds`) show where such a place may hide: a convex H lies under its chords, a
concave H under the extended chords of the neighbouring intervals, and under a line c + m t the
maximum of g on an interval is c + m s - s^2/2, s being m clipped to it. The steps are

1. a scan at geometric distances from 0, cut off at the ends, and a parabolic search for the highest
   mode, which may be an end;
2. equal steps over a window around the mode, if the window fits into the interval: exact to
   rounding for a smooth g, accepted if every second point gives the same integral and the bounds
   leave no mass outside;
3. for all other functions, panels between points of the scan and points beside the mode. Panels
   whose bound lies far below the top are dropped, panels with a kink are bisected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wdro_model.objectives.integration.normal import (
    HALF_LOG_2PI,
    TiltedLaw,
    infinite_laws,
    join_laws,
    log_sum_exp,
)
from wdro_model.sets.deadlines import check_deadline
from wdro_model.solvers.objective import Array

Exponent = Callable[[Array, Array], Array]
"""H at points t (M,) of the functions with indices owner (M,)."""

CONVEX, CONCAVE, UNKNOWN = "convex", "concave", "unknown"
RIGOROUS = (CONVEX, CONCAVE, "affine")
"""Curvatures of H for which the bounds are rigorous. For others the chords beside an interval are
extended into it, which is a guess."""


@dataclass(frozen=True)
class Tolerances:
    """Limits of line quadrature; lengths in standard deviations of t, heights are values of g."""

    log_cut: float = 44.0
    """Intervals on which g lies so far below its top carry no mass."""
    hidden: float = 3.0
    """Largest excess of the bound of an accepted panel over the values of g at its nodes."""
    levels: int = 48
    """Rounds of halving panels, at most; a panel with a kink takes all of them."""
    window_edge: float = 36.0
    """Depth below the top that g must have outside of a window of equal steps."""
    mode_steps: int = 6
    """Parabolic steps towards the highest mode."""
    reach: float = 2.0**20
    """Distance from 0 within which functions of unknown curvature are scanned more densely."""
    step: float = 0.36
    """Step of a window, in standard deviations of the mode: smaller ones give no new digits."""
    room: float = 1e-3
    """Distance to an end of the interval below which a mode is integrated by panels."""
    near: float = 9.0
    """Points of the scan within so many decay lengths of the mode are no ends of panels: the
    `OFFSETS` around the mode are."""


LIMITS = Tolerances()


@dataclass(frozen=True)
class Located:
    """Points of several functions, (F,) or (F, m), and H there."""

    t: Array
    value: Array

    @property
    def height(self) -> Array:
        """g(t) = H(t) - t^2/2."""
        return self.value - 0.5 * self.t**2

    def subset(self, rows: Array) -> Located:
        """The points of some of the functions."""
        return self if len(rows) == len(self.t) else Located(self.t[rows], self.value[rows])

    def where(self, mask: Array, other: Located) -> Located:
        return Located(np.where(mask, self.t, other.t), np.where(mask, self.value, other.value))


@dataclass(frozen=True)
class Exponents:
    """Functions H on intervals [low, high], (F,)."""

    exponent: Exponent
    low: Array
    high: Array
    curvature: str

    def subset(self, rows: Array) -> Exponents:
        """Some of the functions, in order."""
        if len(rows) == len(self.low):
            return self

        def exponent(owner: Array, t: Array) -> Array:
            return self.exponent(rows[owner], t)

        return Exponents(exponent, self.low[rows], self.high[rows], self.curvature)

    def evaluate(self, t: Array) -> Located:
        """H at points (F, ...) of each function in order; +inf for NaN."""
        owner = np.repeat(np.arange(len(t)), t.size // max(1, len(t)))
        values = self.exponent(owner, t.ravel()).reshape(t.shape)
        return Located(t, np.where(np.isnan(values), np.inf, values))

    def clip(self, t: Array) -> Array:
        """Points (F, m) moved into the intervals."""
        return np.clip(t, self.low[:, None], self.high[:, None])


def merge_points(one: Located, other: Located) -> tuple[Located, Array]:
    """The points of both in ascending order, and the permutation that sorts them."""
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
    bound = _line_peaks(values[:, :-1], chord, low, low, high)
    if curvature in (CONVEX, "affine"):
        return bound
    # Bounds by the chords of the interval before and of the one after, extended into this one.
    before = np.full_like(bound, np.inf)
    after = np.full_like(bound, np.inf)
    before[:, 1:] = _line_peaks(values[:, 1:-1], chord[:, :-1], low[:, 1:], low[:, 1:], high[:, 1:])
    after[:, :-1] = _line_peaks(
        values[:, 1:-1], chord[:, 1:], high[:, :-1], low[:, :-1], high[:, :-1]
    )
    # A chord of length zero says nothing about its neighbours.
    before[:, 1:][step[:, :-1] == 0] = np.inf
    after[:, :-1][step[:, 1:] == 0] = np.inf
    if curvature == CONCAVE:
        beside = np.minimum(before, after)
    else:
        beside = np.fmax(*(np.where(np.isposinf(side), np.nan, side) for side in (before, after)))
    return np.maximum(bound, np.where(np.isfinite(beside), beside, bound))


def _line_peaks(value: Array, slope: Array, origin: Array, low: Array, high: Array) -> Array:
    """max over [low, high] of value + slope (t - origin) - t^2/2."""
    s = np.clip(slope, low, high)
    return value + slope * (s - origin) - 0.5 * s * s


def parabola_bounds(t: Array, values: Array) -> Array:
    """The maximum of g between points, where second differences say that H is a parabola.

    +inf elsewhere. Chords alone are poor bounds where H grows nearly as fast as t^2/2.
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


# ------------------------------
# Integrals of exp(g), g(t) = H(t) - t^2/2, over panels that are halved until they are resolved


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
        """Both halves of each panel; the cut is a geometric mean if one end is much farther."""
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
    """The tilted distributions of functions, on panels that are halved until each is resolved.

    A panel is resolved if its last Chebyshev coefficients are small relative to the integral of
    the whole function, and if its bound leaves no room for a peak between the nodes.
    best: the highest known value of g for each function, (F,).
    """
    size, best = len(best), best.copy()
    done = [(np.zeros(0, dtype=int), np.zeros(0), np.zeros(0))]
    settled = np.full(size, -np.inf)
    most = 4 * len(panels.owner) + 64 * size
    for level in range(LIMITS.levels):
        owner = panels.owner
        if not len(owner):
            break
        check_deadline()
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
        empty = bound + np.maximum(np.log(2 * half), 0.0) < best[owner] - LIMITS.log_cut
        reliable = (tail + np.log(half) < log_integral + np.log(1e-3)) & ~empty
        total = np.logaddexp(settled, log_sum_exp(log_integral[reliable], owner[reliable], size))
        noise = 2e-15 * (np.abs(values).max(axis=1) + 0.5 * (t * t).max(axis=1))
        allowed = np.log(np.maximum(tolerance, noise))
        # At a kink the integral of a gradient is as good as the tail, whatever the panel's length.
        scale = np.maximum(half, 0.1 * np.exp(total - best)[owner])
        resolved = (tail + np.log(scale) < total[owner] + allowed) & (bound < top + LIMITS.hidden)
        if level == LIMITS.levels - 1 or len(owner) > most:
            resolved[:] = True
        keep = resolved & ~empty
        if keep.any():
            logs = g[keep] + np.log(half[keep, None] * WEIGHTS)
            done.append((np.repeat(owner[keep], DEGREE + 1), t[keep].ravel(), logs.ravel()))
            settled = np.logaddexp(settled, log_sum_exp(log_integral[keep], owner[keep], size))
        panels = panels.where(~resolved & ~empty).halved()
    owner, t, logs = (np.concatenate(part) for part in zip(*done))
    return _laws_from_nodes(owner, t, logs, size)


def _laws_from_nodes(owner: Array, t: Array, logs: Array, size: int) -> TiltedLaw:
    """The tilted distributions from nodes and logs = log(quadrature weight) + g."""
    top = np.full(size, -np.inf)
    np.maximum.at(top, owner, logs)
    keep = logs > top[owner] - LIMITS.log_cut
    owner, t, logs = owner[keep], t[keep], logs[keep]
    log_mass = log_sum_exp(logs, owner, size)
    weights = np.exp(logs - log_mass[owner])
    return TiltedLaw(log_mass - HALF_LOG_2PI, owner, t[:, None], weights)


# ------------------------------
# log E [exp(H(t)); low <= t <= high], t ~ N(0, 1), for many functions H at once


DISTANCES = 2.0 ** np.array([0, 2, 4, 6, 8, 10, 12, 17, 24, 34, 48])
SCAN = np.concatenate([-DISTANCES[::-1], [0.0], DISTANCES])
DENSER = np.linspace(0.0, 1.0, 66) ** 1.0471
"""Points added to the scan of functions of unknown curvature, as shares of the way across. They are
uneven, which keeps ends of panels off round numbers, where a loss is likely to have its kinks."""
SPARE = 8
"""Every eighth point of the dense scan is an end of a panel: panels have nodes of their own."""
STEPS = np.arange(-24, 25)
"""The window: 24 steps to each side, of the length `Tolerances.step`."""
RIM = [0, 8, 40, 48]
"""Points of the window that give the chords at its two ends, for the bounds outside of it."""
SHIFTS = (0.38, 0.72)
"""Shifts of the window, in steps. For functions of unknown curvature the shifted sums must agree
with the sum itself."""
OFFSETS = np.array([1.5, 4.0, 9.0, 20.0, 45.0])
"""Ends of panels to either side of the mode, in lengths over which the density falls by e."""


def integrate_lines(
    exponent: Exponent,
    low: Array,
    high: Array,
    *,
    curvature: str = UNKNOWN,
    tolerance: float = 1e-11,
) -> TiltedLaw:
    """The distributions of t ~ N(0, 1) tilted by exp(H) on intervals [low, high] (F,), low < high.

    curvature: "convex" or "concave" if all functions are, so that the bounds are rigorous. Others
    are scanned more densely, and their bounds extend the chords beside an interval into it.
    """
    lines = Exponents(exponent, low, high, curvature)
    with np.errstate(all="ignore"):
        scan, ends = _scan(lines)
        diverges = _find_divergent(lines, scan)
        mode = _find_mode(lines, scan)
        rows, law = _integrate_windows(lines, scan, mode, np.flatnonzero(~diverges), tolerance)
        left = ~diverges
        left[rows] = False
        rest, parts = np.flatnonzero(left), [(rows, law)]
        if diverges.any():
            parts.append((np.flatnonzero(diverges), infinite_laws(int(diverges.sum()))))
        if len(rest):
            some, seen = lines.subset(rest), scan.subset(rest)
            panels = _first_panels(some, seen, ends[rest], mode.subset(rest))
            best = np.maximum(seen.height.max(axis=1), mode.subset(rest).height)
            parts.append((rest, refine(some.exponent, panels, best, curvature, tolerance)))
        return join_laws(parts, len(low))


def whole_lines(size: int) -> tuple[Array, Array]:
    """The bounds of `size` lines without ends."""
    return np.full(size, -np.inf), np.full(size, np.inf)


def lines_within_lines(
    inner: Callable[[Array, Array], TiltedLaw], size: int, curvature: str, tolerance: float
) -> TiltedLaw:
    """The tilted distributions on the plane of `size` functions H(s, t), by iterated integrals.

    The outer integral over s has the exponent log E_t exp(H(s, t)), the log mass of the inner one.
    inner: the distributions in t at points s (M,) of the functions owner (M,).
    """
    lines = integrate_lines(
        lambda owner, s: inner(owner, s).log_mass,
        *whole_lines(size),
        curvature=curvature,
        tolerance=tolerance,
    )
    across = inner(lines.owner, lines.points[:, 0])
    return TiltedLaw(
        lines.log_mass,
        lines.owner[across.owner],
        np.column_stack([lines.points[across.owner, 0], across.points[:, 0]]),
        lines.weights[across.owner] * across.weights,
        across.variance,
    )


# ------------------------------------------------------------------ where the mass is
def _scan(lines: Exponents) -> tuple[Located, Array]:
    """H at points from end to end of the intervals, and a mask of the points that end panels."""
    size = len(lines.low)
    scan = lines.evaluate(lines.clip(np.tile(SCAN, (size, 1))))
    ends = np.ones(scan.t.shape, dtype=bool)
    if lines.curvature in RIGOROUS:
        return scan, ends
    # With a slope m of H the mode of g is at t = m: scan about as far as the steepest slope.
    slopes = np.abs(np.diff(scan.value, axis=1) / np.diff(scan.t, axis=1))
    steepest = np.where(np.isfinite(slopes), slopes, 0.0).max(axis=1)
    reach, start = np.clip(1.2 * steepest, 8.0, LIMITS.reach), np.clip(0.0, lines.low, lines.high)
    left = np.where(np.isinf(lines.low), start - reach, np.maximum(lines.low, start - LIMITS.reach))
    right = np.where(
        np.isinf(lines.high), start + reach, np.minimum(lines.high, start + LIMITS.reach)
    )
    denser = lines.evaluate(lines.clip(left[:, None] + (right - left)[:, None] * DENSER))
    some = np.broadcast_to(np.arange(len(DENSER)) % SPARE == 0, denser.t.shape)
    scan, order = merge_points(scan, denser)
    return scan, np.take_along_axis(np.concatenate([ends, some], axis=1), order, axis=1)


def _find_divergent(lines: Exponents, scan: Located) -> Array:
    """A mask (F,) of functions that outgrow t^2/2 towards an infinite end, or are infinite."""
    g = scan.height
    down, up = np.isinf(lines.low), np.isinf(lines.high)
    rises = (down & (g[:, 0] > g[:, 1])) | (up & (g[:, -1] > g[:, -2]))
    return rises | np.isposinf(g).any(axis=1)


def _find_mode(lines: Exponents, scan: Located) -> Located:
    """The highest mode of g near the points of a scan, or the end where g is highest."""
    rows, last = np.arange(len(scan.t)), scan.t.shape[1] - 1
    best = scan.height.argmax(axis=1)
    top = scan.t[rows, best][:, None]
    below = np.maximum((scan.t < top).sum(axis=1) - 1, 0)
    above = np.minimum(last + 1 - (scan.t > top).sum(axis=1), last)
    lower, mode, upper = (
        Located(scan.t[rows, i], scan.value[rows, i]) for i in (below, best, above)
    )
    for _ in range(LIMITS.mode_steps):
        t = np.clip(_parabola_top(lower, mode, upper), lower.t, upper.t)
        new = lines.evaluate(np.where(np.isnan(t), mode.t, t))
        lower, mode, upper = _narrow_bracket(lower, mode, upper, new)
    return mode


def _parabola_top(low: Located, mode: Located, high: Located) -> Array:
    """The top of g if H is the parabola through three points; else a point of the longer side."""
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


def _narrow_bracket(
    low: Located, mode: Located, high: Located, new: Located
) -> tuple[Located, Located, Located]:
    """The three points around the higher one of `mode` and a new point inside the bracket."""
    higher, right = new.height > mode.height, new.t > mode.t
    return (
        mode.where(higher & right, new.where(~higher & ~right, low)),
        new.where(higher, mode),
        mode.where(higher & ~right, new.where(~higher & right, high)),
    )


# ------------------------------------------------------------------ equal steps
def _integrate_windows(
    lines: Exponents, scan: Located, mode: Located, rows: Array, tolerance: float
) -> tuple[Array, TiltedLaw]:
    """The rows for which equal steps around the mode suffice, and their tilted distributions."""
    room = np.minimum(mode.t - lines.low, lines.high - mode.t)
    rows = rows[room[rows] > LIMITS.room]
    width = _mode_width(lines.subset(rows), mode.subset(rows), np.minimum(1.0, room[rows]))
    fits = width * LIMITS.step * STEPS[-1] < room[rows]
    rows, width = rows[fits], width[fits]
    some, top = lines.subset(rows), mode.subset(rows)
    window = some.evaluate(top.t[:, None] + width[:, None] * (LIMITS.step * STEPS))
    g = window.height
    best = np.maximum(g.max(axis=1), top.height)
    mass = np.exp(g - best[:, None])
    total = mass.sum(axis=1)
    noise = 1e-15 * (np.abs(window.value).max(axis=1) + np.abs(best))
    good = _is_resolved(mass, total, np.maximum(tolerance, noise), tolerance)
    good &= _is_empty_outside(scan.subset(rows), window, best, lines.curvature)
    if lines.curvature not in RIGOROUS:
        so_far, allowed = np.flatnonzero(good), np.maximum(10 * tolerance, noise) * total
        sums = _shifted_sums(some.subset(so_far), window.t[so_far], best[so_far])
        good[so_far] = (np.abs(sums - total[so_far]) <= allowed[so_far]).all(axis=0)
    log_mass = best + np.log(LIMITS.step * width * total) - HALF_LOG_2PI
    diverges = np.isposinf(window.value).any(axis=1)
    log_mass[diverges] = np.inf
    good |= diverges
    owner = np.repeat(np.arange(int(good.sum())), len(STEPS))
    weights = (mass[good] / total[good, None]).ravel()
    return rows[good], TiltedLaw(log_mass[good], owner, window.t[good].reshape(-1, 1), weights)


def _mode_width(lines: Exponents, mode: Located, apart: Array) -> Array:
    """The standard deviation (-g'')^(-1/2) at the mode, g'' by differences over steps `apart`."""
    beside = lines.evaluate(mode.t[:, None] + apart[:, None] * np.array([-1.0, 1.0])).value
    bend = (beside[:, 0] - 2 * mode.value + beside[:, 1]) / apart**2
    return 1.0 / np.sqrt(np.clip(np.nan_to_num(1.0 - bend, nan=1.0), 1e-12, 1e12))


def _is_resolved(mass: Array, total: Array, allowed: Array, tolerance: float) -> Array:
    """A mask (F,) of windows whose sum over equal steps is accurate.

    With steps 4, 2 and 1 the errors of a smooth function fall like e, e^2, e^4; with a kink they
    fall like e, e/4, e/16. The sums with steps 4 and 2 tell the two cases apart.
    """
    half = np.abs(2 * mass[:, ::2].sum(axis=1) - total) / total
    quarter = np.abs(4 * mass[:, ::4].sum(axis=1) - total) / total
    first = np.abs(2 * (mass[:, ::2] @ STEPS[::2]) - mass @ STEPS) / (10 * total)
    error = np.maximum(half, first)
    return (error <= allowed) | ((error < 10 * tolerance) & (error < quarter**1.5))


def _is_empty_outside(scan: Located, window: Located, best: Array, curvature: str) -> Array:
    """A mask (F,) of functions whose bounds leave no mass outside of the window."""
    first, last = window.t[:, :1], window.t[:, -1:]
    inside = (scan.t >= first) & (scan.t <= last)
    # Points of the scan inside the window are replaced by copies of the farthest point: next to the
    # window the points of its rim give better chords.
    far = Located(scan.t[:, -1:], scan.value[:, -1:])
    around, _ = merge_points(
        far.where(inside, scan), Located(window.t[:, RIM], window.value[:, RIM])
    )
    inside = (around.t[:, :-1] >= first) & (around.t[:, 1:] <= last)
    bound = np.where(inside, -np.inf, interval_bounds(around.t, around.value, curvature))
    open_ = np.flatnonzero(bound.max(axis=1) >= best - LIMITS.window_edge)
    if len(open_):
        bound[open_] = np.minimum(
            bound[open_], parabola_bounds(around.t[open_], around.value[open_])
        )
    return bound.max(axis=1) < best - LIMITS.window_edge


def _shifted_sums(lines: Exponents, t: Array, best: Array) -> Array:
    """Sums over shifted windows, (shifts, F): they see a notch between two points of the window."""
    step = t[:, 1:2] - t[:, :1]
    shifted = (lines.evaluate(lines.clip(t + shift * step)).height for shift in SHIFTS)
    return np.stack([np.exp(height - best[:, None]).sum(axis=1) for height in shifted])


# ------------------------------------------------------------------ panels
def _first_panels(lines: Exponents, scan: Located, ends: Array, mode: Located) -> Panels:
    """Panels that may hold mass; their ends are points of the scan and points beside the mode."""
    length = _decay_length(lines, mode)[:, None]
    middle = mode.t[:, None]
    beside = lines.evaluate(lines.clip(middle + length * np.r_[-OFFSETS[::-1], 0.0, OFFSETS]))
    ends = ends & (np.abs(scan.t - middle) >= LIMITS.near * length)
    ends = np.concatenate([ends, np.ones(beside.t.shape, dtype=bool)], axis=1)
    points, order = merge_points(scan, beside)
    ends, height = np.take_along_axis(ends, order, axis=1), points.height
    ends[:, 1:-1] |= (height[:, 1:-1] > height[:, :-2]) & (height[:, 1:-1] > height[:, 2:])
    ends[:, [0, -1]] = True
    bound = interval_bounds(points.t, points.value, lines.curvature)
    keep = bound > height.max(axis=1)[:, None] - LIMITS.log_cut
    # The intervals between two ends make one panel, kept if one of them is.
    row, column = np.nonzero(ends)
    inner = row[:-1] == row[1:]
    row, first, last = row[:-1][inner], column[:-1][inner], column[1:][inner]
    count = np.concatenate([np.zeros((len(keep), 1), dtype=int), keep.cumsum(axis=1)], axis=1)
    panels = Panels(row, points.t[row, first], points.t[row, last])
    return panels.where((count[row, last] > count[row, first]) & (panels.high > panels.low))


def _decay_length(lines: Exponents, mode: Located) -> Array:
    """The length over which the density falls by about e beside its mode: 1 or less."""
    length = np.ones(len(mode.t))
    for _ in range(3):
        sides = lines.evaluate(
            lines.clip(mode.t[:, None] + length[:, None] * np.array([-1.0, 1.0]))
        )
        fall = mode.height[:, None] - sides.height
        away = np.abs(sides.t - mode.t[:, None])
        # A fall a s + b s^2 has two unknowns and one value: the shorter of both lengths is taken.
        guess = np.where((away > 0) & (fall > 1.0), away / fall, length[:, None])
        length = np.minimum(length, np.nanmin(np.where(away > 0, guess, np.inf), axis=1))
        length = np.where(np.isfinite(length), length, 1.0)
        if not (fall > 4.0).any():
            break
    return np.maximum(length, 1e-12)
