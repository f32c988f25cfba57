"""log E [exp(H(t)); low <= t <= high], t ~ N(0, 1), for many functions H at once.

As on the whole line (`low_rank.quadrature`): a scan within the interval and a search for the
highest mode, which may sit at an end; equal steps around it where the window fits into the interval
and bounds leave no mass outside; panels elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from wdro_model.objectives.integration.low_rank.line_bounds import RIGOROUS, interval_bounds
from wdro_model.objectives.integration.low_rank.line_panels import CUT, Exponent, Panels, refine
from wdro_model.objectives.integration.low_rank.quadrature import (
    DENSER,
    EDGE,
    SCAN,
    STEP,
    STEPS,
    LineIntegral,
    Located,
    evaluate,
    integrate_lines,
    narrowed,
    resolved,
    vertex,
)
from wdro_model.objectives.integration.low_rank.tilted_law import HALF_LOG_2PI, log_sum_exp
from wdro_model.solvers.objective import Array

SEARCHES = 6
OFFSETS = np.array([1.5, 4.0, 9.0, 20.0, 45.0])
"""Ends of panels to either side of the mode, in lengths over which the density falls by e."""
UNEVEN = 1.0471
"""Keeps the ends of panels off round numbers, where a loss is likely to have its kinks."""
ROOM = 1e-3
"""A mode closer to an end of its interval is not looked at with equal steps."""
SPARE = 8
"""So many points of the denser scan to one end of a panel: panels have points of their own."""
REACH = 2.0**20
"""Points are added within so many deviations, for functions of unknown curvature."""


def integrate_intervals(
    exponent: Exponent,
    low: Array,
    high: Array,
    *,
    curvature: str,
    tolerance: float = 1e-11,
) -> LineIntegral:
    """The integrals of functions over their intervals [low, high] (size,), low < high."""
    size = len(low)
    if np.isinf(low).all() and np.isinf(high).all():
        return integrate_lines(exponent, size, curvature=curvature, tolerance=tolerance)
    with np.errstate(all="ignore"):
        scan, ends = _scan(exponent, low, high, curvature)
        diverges = _diverges(scan, low, high)
        mode = _highest(exponent, scan)
        inner = np.flatnonzero(~diverges)
        window = _window(exponent, scan, mode, low, high, curvature, tolerance, inner)
        rest = np.setdiff1d(inner, window.rows)
        log_mass = np.full(size, np.inf)
        log_mass[window.rows] = window.logs
        panels = _panels(exponent, scan, ends, mode, low, high, curvature, rest)
        best = np.maximum(scan.height.max(axis=1), mode.height)
        found = refine(exponent, panels, best, curvature, tolerance)
        log_mass[rest] = log_sum_exp(found.logs, found.owner, size)[rest]
        return LineIntegral(
            log_mass - HALF_LOG_2PI,
            np.concatenate([np.repeat(window.rows, len(STEPS)), found.owner]),
            np.concatenate([window.nodes.ravel(), found.nodes]),
            np.concatenate(
                [window.weights.ravel(), np.exp(found.logs - log_mass[found.owner])],
            ),
        )


@dataclass(frozen=True)
class _Window:
    """Integrals by equal steps around modes inside their intervals."""

    rows: Array
    """The functions for which that is exact."""
    logs: Array
    nodes: Array
    """(rows, steps)"""
    weights: Array


def _window(
    exponent: Exponent,
    scan: Located,
    mode: Located,
    low: Array,
    high: Array,
    curvature: str,
    tolerance: float,
    rows: Array,
) -> _Window:
    """Equal steps for those of the rows whose mass lies well inside of the interval."""
    if curvature not in RIGOROUS:
        rows = rows[:0]
    room = np.minimum(mode.t - low, high - mode.t)[rows]
    rows, room = rows[room > ROOM], room[room > ROOM]
    top, some = Located(mode.t[rows], mode.value[rows]), partial(_of, exponent, rows)
    apart = np.minimum(1.0, room)
    beside = evaluate(some, top.t[:, None] + apart[:, None] * np.array([-1.0, 1.0]))
    bend = (beside[:, 0] - 2 * top.value + beside[:, 1]) / apart**2
    width = 1.0 / np.sqrt(np.clip(np.nan_to_num(1.0 - bend, nan=1.0), 1e-12, 1e12))
    fits = width * STEP * STEPS[-1] < room
    rows, width, top = rows[fits], width[fits], Located(top.t[fits], top.value[fits])
    t = top.t[:, None] + width[:, None] * (STEP * STEPS)
    values = evaluate(partial(_of, exponent, rows), t)
    g = values - 0.5 * t * t
    best = np.maximum(g.max(axis=1), top.height) if len(rows) else np.zeros(0)
    mass = np.exp(g - best[:, None])
    total = mass.sum(axis=1)
    noise = 1e-15 * (np.abs(values).max(axis=1, initial=0.0) + np.abs(best))
    good = resolved(mass, total, np.maximum(tolerance, noise), tolerance)
    # What lies outside of the window: the scan, with the window as one of its intervals.
    points = np.concatenate([scan.t[rows], t[:, [0, -1]]], axis=1)
    heights = np.concatenate([scan.value[rows], values[:, [0, -1]]], axis=1)
    order = np.argsort(points, axis=1)
    points, heights = (np.take_along_axis(part, order, axis=1) for part in (points, heights))
    bound = interval_bounds(points, heights, curvature)
    inside = (points[:, :-1] >= t[:, :1]) & (points[:, 1:] <= t[:, -1:])
    good &= np.where(inside, -np.inf, bound).max(axis=1, initial=-np.inf) < best - EDGE
    logs = best + np.log(STEP * width * total)
    return _Window(rows[good], logs[good], t[good], mass[good] / total[good, None])


def _of(exponent: Exponent, rows: Array, owner: Array, t: Array) -> Array:
    """An exponent for some of its functions."""
    return exponent(rows[owner], t)


def _panels(
    exponent: Exponent,
    scan: Located,
    ends: Array,
    mode: Located,
    low: Array,
    high: Array,
    curvature: str,
    rows: Array,
) -> Panels:
    """Where the rows may have mass: between ends among the scan and points beside the mode."""
    if not len(rows):
        return Panels(rows, np.zeros(0), np.zeros(0))
    some, low, high = partial(_of, exponent, rows), low[rows], high[rows]
    top = Located(mode.t[rows], mode.value[rows])
    length = _length(some, top, low, high)
    beside = top.t[:, None] + length[:, None] * np.r_[-OFFSETS[::-1], 0.0, OFFSETS]
    beside = np.clip(beside, low[:, None], high[:, None])
    points = np.concatenate([scan.t[rows], beside], axis=1)
    values = np.concatenate([scan.value[rows], evaluate(some, beside)], axis=1)
    ends = np.concatenate([ends[rows], np.ones(beside.shape, dtype=bool)], axis=1)
    order = np.argsort(points, axis=1)
    points, values, ends = (
        np.take_along_axis(part, order, axis=1) for part in (points, values, ends)
    )
    height = values - 0.5 * points**2
    ends[:, 1:-1] |= (height[:, 1:-1] > height[:, :-2]) & (height[:, 1:-1] > height[:, 2:])
    bound = interval_bounds(points, values, curvature)
    keep = bound > height.max(axis=1)[:, None] - CUT
    # The intervals between two ends make one panel, kept if one of them is.
    ends[:, [0, -1]] = True
    row, column = np.nonzero(ends)
    inner = row[:-1] == row[1:]
    row, first, last = row[:-1][inner], column[:-1][inner], column[1:][inner]
    count = np.concatenate([np.zeros((len(rows), 1), dtype=int), keep.cumsum(axis=1)], axis=1)
    some = (count[row, last] > count[row, first]) & (points[row, last] > points[row, first])
    row, first, last = row[some], first[some], last[some]
    return Panels(rows[row], points[row, first], points[row, last])


def _scan(exponent: Exponent, low: Array, high: Array, curvature: str) -> tuple[Located, Array]:
    """Points within the intervals, from end to end, and H there; which of them end panels."""
    limits = (np.maximum(low, -REACH), np.minimum(high, REACH))
    t = np.clip(SCAN, low[:, None], high[:, None])
    ends = np.ones(t.shape, dtype=bool)
    if curvature not in RIGOROUS:
        share = (0.5 * (1.0 + DENSER)) ** UNEVEN
        denser = limits[0][:, None] + (limits[1] - limits[0])[:, None] * share
        some = np.broadcast_to(np.arange(len(share)) % SPARE == 0, denser.shape)
        t, ends = np.concatenate([t, denser], axis=1), np.concatenate([ends, some], axis=1)
        order = np.argsort(t, axis=1)
        t, ends = np.take_along_axis(t, order, axis=1), np.take_along_axis(ends, order, axis=1)
    return Located(t, evaluate(exponent, t)), ends


def _diverges(scan: Located, low: Array, high: Array) -> Array:
    """Which functions outgrow t^2/2 towards an end that is infinite."""
    g = scan.height
    rises = (np.isinf(low) & (g[:, 0] > g[:, 1])) | (np.isinf(high) & (g[:, -1] > g[:, -2]))
    return rises | np.isposinf(g).any(axis=1)


def _highest(exponent: Exponent, scan: Located) -> Located:
    """The highest mode near the points of a scan, or an end."""
    rows, height = np.arange(len(scan.t)), scan.height
    best = height.argmax(axis=1)
    last = scan.t.shape[1] - 1
    below = np.maximum((scan.t < scan.t[rows, best][:, None]).sum(axis=1) - 1, 0)
    above = np.minimum(last + 1 - (scan.t > scan.t[rows, best][:, None]).sum(axis=1), last)
    lower, mode, upper = (
        Located(scan.t[rows, i], scan.value[rows, i]) for i in (below, best, above)
    )
    for _ in range(SEARCHES):
        t = np.clip(vertex(lower, mode, upper), lower.t, upper.t)
        t = np.where(np.isnan(t), mode.t, t)
        new = Located(t, evaluate(exponent, t[:, None])[:, 0])
        lower, mode, upper = narrowed(lower, mode, upper, new)
    return mode


def _length(exponent: Exponent, mode: Located, low: Array, high: Array) -> Array:
    """The length over which the density falls by about e beside its mode: 1 or less."""
    length = np.ones(len(mode.t))
    for _ in range(3):
        sides = np.stack([mode.t - length, mode.t + length], axis=1)
        sides = np.clip(sides, low[:, None], high[:, None])
        fall = mode.height[:, None] - (evaluate(exponent, sides) - 0.5 * sides**2)
        away = np.abs(sides - mode.t[:, None])
        # Slope and curvature of a fall a s + b s^2 are not told apart: the steeper guess is taken.
        guess = np.where((away > 0) & (fall > 1.0), away / fall, length[:, None])
        length = np.minimum(length, np.nanmin(np.where(away > 0, guess, np.inf), axis=1))
        length = np.where(np.isfinite(length), length, 1.0)
        if not (fall > 4.0).any():
            break
    return np.maximum(length, 1e-12)
