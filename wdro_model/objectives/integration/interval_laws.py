"""Standard normals on intervals, tilted by real and by imaginary exponents.

With z ~ N(0, 1) and ends a < b, log P(a <= z <= b) and E z, and the characteristic function

    E [exp(i nu z); a < z < b] = exp(-nu^2/2) (Phi(b - i nu) - Phi(a - i nu)),

in which what lies beyond an end e > 0 is exp(i nu e - e^2/2) w((nu + i e)/sqrt(2))/2, w Faddeeva's
function, and the conjugate at -e.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import erfcx, wofz

from wdro_model.objectives.integration.kernel.normal import HALF_LOG_2PI
from wdro_model.solvers.objective import Array

ROOT_2PI = float(np.sqrt(2 * np.pi))
NARROW = 1e-6
"""Intervals with width * (1 + |upper end|) below this have a flat density."""
WHOLE = 7.0
"""Ends beyond this cut nothing off."""
DEAD = -23.0
"""Ends whose density relative to the mass is below exp(DEAD) cut nothing off."""
ROUND = float(np.sqrt(28.0 / 3.0))
TAIL = 28.0
"""Twice the exponent to which the density falls within the reach of a law."""


def normal_between(low: Array, high: Array, width: Array | None = None) -> tuple[Array, Array]:
    """log P(low <= t <= high) and the mean of t there, t ~ N(0, 1); -inf where nothing is there.

    width: high - low, where the ends are so far away that their difference has lost it.
    """
    width = high - low if width is None else np.broadcast_to(width, low.shape)
    cut = (low > -WHOLE) | (high < WHOLE)
    log_mass, mean = np.zeros(low.shape), np.zeros(low.shape)
    low, high = low[cut], high[cut]
    flip = low + high > 0
    low, high = np.where(flip, -high, low), np.where(flip, -low, high)
    logs, means = _left_between(low, high, width[cut])
    log_mass[cut], mean[cut] = logs, np.where(flip, -means, means)
    return log_mass, mean


def _left_between(low: Array, high: Array, width: Array) -> tuple[Array, Array]:
    """For low + high <= 0, (n,): all is seen from the upper end, in units of its density.

    With e the distance from it, int exp(high e - e^2/2) de over [0, width] is known from
    exp(x^2/2) Phi(-x) = erfcx(x/sqrt(2))/2.
    """
    with np.errstate(all="ignore"):
        tails = [0.5 * erfcx(np.abs(end) / np.sqrt(2)) for end in (low, high)]
        last = np.exp(width * (high - 0.5 * width))
        inside = high > 0
        whole = np.where(inside, np.exp(0.5 * np.minimum(high, WHOLE) ** 2), 0.0)
        total = np.where(inside, whole - tails[1], tails[1]) - last * tails[0]
        narrow = width * (1 + np.abs(high)) < NARROW
        total = np.where(narrow, width / ROOT_2PI, total)
        logs = np.log(total) - 0.5 * high**2
        far = inside & (high > WHOLE)
        logs[far] = np.log1p(-np.exp(-0.5 * high[far] ** 2) * (tails[1] + last * tails[0])[far])
        depth = high - (last - 1.0) / (ROOT_2PI * total)
        depth = np.where(narrow, 0.5 * width, np.clip(depth, 0.0, width))
        mean = np.where(far, (last - 1.0) * np.exp(-0.5 * high**2) / ROOT_2PI, high - depth)
    return np.where(width > 0, logs, -np.inf), mean


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
