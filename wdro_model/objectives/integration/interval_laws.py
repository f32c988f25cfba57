"""Standard normals on intervals, tilted by real and by imaginary exponents.

With z ~ N(0, 1) and ends a < b, log P(a <= z <= b) and E z, and the characteristic function

    E [exp(i nu z); a < z < b] = exp(-nu^2/2) (Phi(b - i nu) - Phi(a - i nu)),

in which what lies beyond an end e > 0 is exp(i nu e - e^2/2) w((nu + i e)/sqrt(2))/2, w Faddeeva's
function, and the conjugate at -e.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, wofz

from wdro_model.objectives.integration.kernel.normal import HALF_LOG_2PI
from wdro_model.solvers.objective import Array

NO_MORE = 80.0
"""A lower end at which the exponent of the density is so much smaller cuts nothing off."""
WHOLE = 7.0
"""Ends beyond this cut nothing off."""
DEAD = -23.0
"""Ends whose density relative to the mass is below exp(DEAD) cut nothing off."""
ROUND = float(np.sqrt(28.0 / 3.0))
TAIL = 28.0
"""Twice the exponent to which the density falls within the reach of a law."""


def log_normal_between(low: Array, high: Array) -> Array:
    """log P(low <= t <= high), t ~ N(0, 1); -inf where low >= high."""
    found = np.zeros(np.broadcast_shapes(low.shape, high.shape))
    cut = (low > -WHOLE) | (high < WHOLE)
    low, high = low[cut], high[cut]
    flip = low + high > 0
    low, high = np.where(flip, -high, low), np.where(flip, -low, high)
    found[cut] = _log_between(low, high)
    return found


def _log_between(low: Array, high: Array) -> Array:
    """For low + high <= 0, (n,)."""
    found = log_ndtr(high)
    with np.errstate(invalid="ignore", over="ignore"):
        both = np.flatnonzero(low * low - np.minimum(high, 0.0) ** 2 < NO_MORE)
    # Where low >= high the exponent may be anything: what comes of it is replaced below.
    with np.errstate(all="ignore"):
        found[both] += np.log(-np.expm1(log_ndtr(low[both]) - found[both]))
    found[low >= high] = -np.inf
    return found


def mean_between(low: Array, high: Array, log_mass: Array) -> Array:
    """E t on [low, high]."""
    with np.errstate(under="ignore", over="ignore", invalid="ignore"):
        ends = [np.exp(-0.5 * side**2 - HALF_LOG_2PI - log_mass) for side in (low, high)]
    return np.clip(ends[0] - ends[1], low, high)


@dataclass(frozen=True)
class SumOnBoxes:
    """sum_i scale_i (t_i - E t_i), t_i ~ N(0, 1) on [low_i, high_i], in M boxes; (M, d) each."""

    low: Array
    high: Array
    log_mass: Array
    mean: Array
    scale: Array

    @property
    def reach(self) -> Array:
        """How far from its mean the sum may go, (M,)."""
        outside = np.maximum(np.maximum(self.low, -self.high), 0.0)
        fall = np.sqrt(outside**2 + TAIL) - outside + np.abs(self.mean) * (outside == 0)
        side = np.maximum(self.mean - self.low, self.high - self.mean)
        scale = np.abs(self.scale)
        with np.errstate(invalid="ignore"):
            most = np.where(scale > 0, scale * side, 0.0)
        # Many flat laws are nearly normal, with deviations of side/sqrt(3).
        each = np.minimum(ROUND * most, scale * fall)
        return np.minimum(most.sum(axis=1), np.sqrt((each**2).sum(axis=1)))

    def picked(self, which: Array) -> SumOnBoxes:
        return SumOnBoxes(*(getattr(self, name)[which] for name in self.__dataclass_fields__))

    def characteristic(self, omega: Array, moves: bool) -> tuple[Array, Array | None]:
        """E exp(i omega sum), (M, T), and E t exp(i omega sum), (M, T, d), for omega (M, T)."""
        with np.errstate(under="ignore", invalid="ignore"):
            ends = [-0.5 * side**2 - self.log_mass for side in (self.low, self.high)]
        cut = ((ends[0] > DEAD) | (ends[1] > DEAD)) & (self.scale != 0)
        spread = np.where(cut, 0.0, self.scale**2).sum(axis=1)
        mass = np.exp(-0.5 * spread[:, None] * omega**2).astype(complex)
        owner, column = np.nonzero(cut)
        nu = self.scale[owner, column][:, None] * omega[owner]
        part = Cut(self.low[owner, column], self.high[owner, column], self.log_mass[owner, column])
        values = part.characteristic(nu)
        if len(owner):
            first = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
            mass[owner[first]] *= np.multiply.reduceat(values, first)
        centre = np.where(cut, self.scale * self.mean, 0.0).sum(axis=1)
        mass *= np.exp(-1j * centre[:, None] * omega)
        if not moves:
            return mass, None
        # Of uncut coordinates E t = i nu; those that the sum does not see keep their mean.
        mean = 1j * omega[:, :, None] * self.scale[:, None]
        mean = np.where((self.scale == 0)[:, None], self.mean[:, None], mean)
        if len(owner):
            mean[owner, :, column] = part.mean(nu, values)
        return mass, mass[:, :, None] * mean


@dataclass(frozen=True)
class Cut:
    """Standard normals on intervals, (n,) each."""

    low: Array
    high: Array
    log_mass: Array

    def characteristic(self, nu: Array) -> Array:
        """E exp(i nu t), (n, T)."""
        inside = np.where((self.low < 0) & (self.high >= 0), np.exp(-self.log_mass), 0.0)
        with np.errstate(under="ignore"):
            found = (inside[:, None] * np.exp(-0.5 * nu**2)).astype(complex)
        for end, sign in ((self.low, 1.0), (self.high, -1.0)):
            live = np.flatnonzero(-0.5 * end**2 - self.log_mass > DEAD)
            if len(live):
                found[live] += self._beyond(end, live, nu[live], sign)
        return found

    def _beyond(self, end: Array, live: Array, nu: Array, sign: float) -> Array:
        """What lies beyond an end on its side of 0, with the sign of the difference."""
        at = end[live]
        side = np.where(at >= 0, 1.0, -1.0)
        size = 0.5 * sign * side * np.exp(-0.5 * at**2 - self.log_mass[live])
        w = wofz((side[:, None] * nu + 1j * np.abs(at)[:, None]) / np.sqrt(2))
        return size[:, None] * np.exp(1j * nu * at[:, None]) * w

    def mean(self, nu: Array, mass: Array) -> Array:
        """E t exp(i nu t) / mass, mass = E exp(i nu t), (n, T)."""
        found, mass = 1j * nu, np.where(mass == 0, np.finfo(float).tiny, mass)
        for end, sign in ((self.low, 1.0), (self.high, -1.0)):
            live = np.flatnonzero(-0.5 * end**2 - self.log_mass > DEAD)
            at = end[live][:, None]
            density = np.exp(-0.5 * at**2 - HALF_LOG_2PI - self.log_mass[live][:, None])
            found[live] += sign * density * np.exp(1j * nu[live] * at) / mass[live]
        return found
