"""Integrals of exp(g), g(t) = H(t) - t^2/2, over panels that are halved until they are resolved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdro_model.objectives.integration.kernel.exponents import Exponent, interval_bounds
from wdro_model.objectives.integration.kernel.laws import TiltedLaw, log_sum_exp
from wdro_model.objectives.integration.kernel.normal import HALF_LOG_2PI
from wdro_model.sets.deadlines import check_deadline
from wdro_model.solvers.objective import Array

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
