"""Laplace transforms of the law of a linear form under a norm cost.

With z ~ N(0, I), v = <b, z> and c the norm of (rho_i z_i), p = 1, 2 or inf,

    m(theta) = E exp(theta v - a c),   theta = tilt + i omega on a vertical line,

and with it E c exp(...), E c^2 exp(...) and E z exp(...). The sum of distances is a product over
the coordinates; the Euclidean length a mixture of squares (`norms`), the largest move one over
boxes, both summed at equal steps in the logarithm of their parameter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import factorial
from typing import Any

import numpy as np
from scipy.special import erfcx, log_ndtr, wofz

from wdro_model.solvers.objective import Array

ROOT_2PI = float(np.sqrt(2 * np.pi))
CUT = 26.0
"""What lies so far below the mode in logarithm is left out of a mixture."""
TRIALS = 60
"""How often the steps of a mixture are placed anew."""
SMALL = 1e-4
"""Half-widths under which a normal density is flat on its interval."""
LIVELY = 1e-10
"""Components of a smaller probability are left out off the real axis."""
FAR = 25.0
"""Slopes beyond this are those of an asymptotic series."""
REACH = 11.0
"""Moves of z beyond so many deviations have no mass."""


@dataclass(frozen=True)
class TiltedForm:
    """The law tilted by real theta (R,)."""

    log_mass: Array
    """log m."""
    form: Array
    """The mean of v."""
    cost: Array
    """The mean of c."""
    square: Array
    """The mean of c^2."""
    deviation: Array
    """Of v; of a mixture, within its components."""
    moves: Array
    """The mean of z, (R, d)."""


@dataclass(frozen=True)
class Transformed:
    """m and its relatives at points of a vertical line, all divided by m(tilt); (T,)."""

    mass: Array
    form: Array
    """E v exp(...)."""
    cost: Array
    """E c exp(...)."""
    square: Array
    """E c^2 exp(...)."""
    moves: Callable[[Array], Array]
    """sum_t Re(q_t E z exp(...)) for coefficients q (T,), as a vector (d,)."""


class FormLaw(ABC):
    """The law of <b, z> with a norm cost. b, rho: (d,), rho > 0.

    hints: where mixtures had their mass at other decisions.
    """

    def __init__(self, b: Array, rho: Array, hints: dict[int, Any] | None = None) -> None:
        self.b, self.rho, self.hints = b, rho, {} if hints is None else hints

    @abstractmethod
    def tilted(self, rate: float, tilts: Array) -> TiltedForm:
        """At real theta, for the cost at the rate a > 0."""

    @abstractmethod
    def along(self, rate: float, tilts: Array, which: int, omega: Array) -> Transformed:
        """At theta = tilts[which] + i omega."""


# ------------------------------------------------------------------ the sum of distances
class SumOfMoves(FormLaw):
    """p = 1: a product over the coordinates.

    E [exp(q z); z > 0] = g(q) = exp(q^2/2) Phi(q), g' = q g + 1/sqrt(2 pi), g'' = g + q g'.
    """

    def tilted(self, rate: float, tilts: Array) -> TiltedForm:
        found = self._product(rate, np.asarray(tilts, dtype=float))
        return TiltedForm(
            found.log_mass,
            found.moves @ self.b,
            found.cost,
            found.square,
            np.sqrt(np.maximum(found.spread, 0.0) @ self.b**2),
            found.moves,
        )

    def along(self, rate: float, tilts: Array, which: int, omega: Array) -> Transformed:
        tilt = float(tilts[which])
        found = self._product(rate, tilt + 1j * omega)
        mass = np.exp(found.log_mass - self._product(rate, np.array([tilt])).log_mass)
        return Transformed(
            mass,
            mass * (found.moves @ self.b),
            mass * found.cost,
            mass * found.square,
            lambda q: ((q * mass) @ found.moves).real,
        )

    def _product(self, rate: float, theta: Array) -> Factors:
        theta = theta[:, None]
        q = np.stack([theta * self.b - rate * self.rho, -theta * self.b - rate * self.rho])
        logs = _log_half(q)
        top = logs.real.max(axis=0)
        with np.errstate(under="ignore"):
            g, unit = np.exp(logs - top), np.exp(-top) / ROOT_2PI
            slope = q * g + unit
            bend = g + q * slope
            far = (q.real < 0) & (np.abs(q) > FAR)
            if far.any():
                slope = np.where(far, unit * _far_moment(1, q), slope)
                bend = np.where(far, unit * _far_moment(2, q), bend)
        whole = g.sum(axis=0)
        move, length = (slope[0] - slope[1]) / whole, self.rho * slope.sum(axis=0) / whole
        second = bend.sum(axis=0) / whole
        cost = length.sum(axis=1)
        return Factors(
            (top + np.log(whole)).sum(axis=1),
            move,
            cost,
            cost**2 + (self.rho**2 * second - length**2).sum(axis=1),
            second - move**2,
        )


@dataclass(frozen=True)
class Factors:
    """A product of laws of single coordinates at points theta, (T, ...)."""

    log_mass: Array
    moves: Array
    """(T, d)"""
    cost: Array
    square: Array
    spread: Array
    """Variances of z, (T, d)."""


def _far_moment(power: int, q: Array) -> Array:
    """int_0^inf y^power exp(q y - y^2/2) dy for q far to the left, where g' and g'' cancel."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = -1.0 / q
        terms = [
            (-0.5) ** n * factorial(power + 2 * n) / factorial(n) * inverse ** (2 * n)
            for n in range(7)
        ]
        return np.sum(terms, axis=0) * inverse ** (power + 1)


def _log_half(q: Array) -> Array:
    """log E [exp(q z); z > 0], z ~ N(0, 1), for real or complex q; of any branch."""
    if not np.iscomplexobj(q):
        return 0.5 * q**2 + log_ndtr(q)
    below = q.real <= 0
    small = np.log(0.5 * wofz(np.where(below, -1j * q, 1j * q) / np.sqrt(2)))
    whole = 0.5 * q**2
    top = np.maximum(whole.real, small.real)
    with np.errstate(under="ignore", divide="ignore"):
        rest = top + np.log(np.exp(whole - top) - np.exp(small - top))
    return np.where(below, small, rest)


# ------------------------------------------------------------------ mixtures
@dataclass(frozen=True)
class Window:
    """Equal steps over the mass of a mixture in the logarithm of its parameter, (R, n)."""

    points: Array
    known: Any
    """What does not depend on the rate."""
    logs: Array
    """The logarithms of that part of the terms, (R, n)."""


class FormMixture(FormLaw):
    """A mixture over a parameter s > 0; the density of log s has one mode."""

    step, coarsest = 0.36, 0.6
    """Steps in standard deviations: those that are made, and those that are still taken."""
    reach = 9.0
    """Deviations from the mean that steps go to at first."""

    def __init__(self, b: Array, rho: Array, hints: dict[int, Any] | None = None) -> None:
        super().__init__(b, rho, hints)
        self._window: tuple[bytes, Window] | None = None

    @abstractmethod
    def _component(self, points: Array, theta: Array) -> tuple[Any, Array]:
        """What is known of the components at log s (R, n) and theta (R,), and its log mass."""

    @abstractmethod
    def _weight(self, rate: float, points: Array) -> Array:
        """The logarithm of the weight that the rate gives to log s."""

    @abstractmethod
    def _ends(self, rate: float, tilts: Array) -> tuple[Array, Array]:
        """Where to look for log s, (R,) twice."""

    def window(self, rate: float, tilts: Array) -> tuple[Window, Array, Array]:
        """Steps over the mass at a rate, their probabilities (R, n) and the log mass (R,)."""
        key = tilts.tobytes()
        if self._window is not None and self._window[0] == key:
            judged = self._judged(self._window[1], rate)
            if judged.good.all():
                return self._window[1], judged.shares, judged.log_mass
            place = (judged.mean, judged.deviation)
        else:
            place = self.hints.get(len(tilts)) or self._scan(rate, tilts)
        left = right = self.reach
        for trial in range(TRIALS):
            if trial == TRIALS // 4:
                place = self._scan(rate, tilts)
            grid = np.arange(-left, right + self.step, self.step)
            points = place[0][:, None] + place[1][:, None] * grid
            window = Window(points, *self._component(points, tilts))
            judged = self._judged(window, rate)
            if judged.good.all() or trial == TRIALS - 1:
                break
            if judged.centred.all():
                left *= 1.0 if (judged.falls[0] > CUT).all() else 1.4
                right *= 1.0 if (judged.falls[1] > CUT).all() else 1.4
            place = (judged.mean, judged.deviation)
        self._window = (key, window)
        self.hints[len(tilts)] = (judged.mean, judged.deviation)
        return window, judged.shares, judged.log_mass

    def _judged(self, window: Window, rate: float) -> JudgedMoves:
        logs = window.logs + self._weight(rate, window.points)
        step = window.points[:, 1] - window.points[:, 0]
        top = logs.max(axis=1)
        with np.errstate(under="ignore"):
            shares = np.exp(logs - top[:, None])
        total = shares.sum(axis=1)
        shares /= total[:, None]
        offset = window.points - window.points[:, :1]
        mean = (shares * offset).sum(axis=1)
        spread = np.sqrt(np.maximum((shares * (offset - mean[:, None]) ** 2).sum(axis=1), 0.0))
        falls = np.stack([top - logs[:, 0], top - logs[:, -1]])
        edge = falls.min(axis=0) < 1.0
        resolved = step <= self.coarsest * spread
        # A peak between two steps: look closer; one at an end: look further.
        deviation = np.where(edge, 4.0 * step / self.step, np.maximum(spread, 0.25 * step))
        centred = ~edge & resolved
        good = centred & (falls > CUT).all(axis=0)
        log_mass = top + np.log(total) + np.log(step)
        return JudgedMoves(
            good, centred, falls, mean + window.points[:, 0], deviation, shares, log_mass
        )

    def _scan(self, rate: float, tilts: Array) -> tuple[Array, Array]:
        """Places of the modes, and widths to begin with."""
        low, high = self._ends(rate, tilts)
        share = np.linspace(0, 1, 400)
        points = low[:, None] + (high - low)[:, None] * share
        logs = self._component(points, tilts)[1] + self._weight(rate, points)
        best = logs.argmax(axis=1)
        return points[np.arange(len(tilts)), best], 2 * (high - low) / 400


@dataclass(frozen=True)
class JudgedMoves:
    """Whether steps do for a rate, and where better ones are."""

    good: Array
    centred: Array
    falls: Array
    """How far the ends lie below the top, (2, R)."""
    mean: Array
    deviation: Array
    shares: Array
    log_mass: Array


class LengthOfMoves(FormMixture):
    """p = 2: with s the precision that a squared cost adds, z_i ~ N(0, 1/(1 + 2 s rho_i^2))."""

    def _component(self, points: Array, theta: Array) -> tuple[Any, Array]:
        with np.errstate(over="ignore"):
            v = 1.0 / (1.0 + 2.0 * np.exp(points)[:, :, None] * self.rho**2)
        spread = v @ self.b**2
        return (v, spread), 0.5 * np.log(v).sum(axis=2) + 0.5 * theta[:, None] ** 2 * spread

    def _weight(self, rate: float, points: Array) -> Array:
        with np.errstate(over="ignore"):
            fall = 0.25 * rate**2 * np.exp(-points)
        return np.log(rate / (2 * np.sqrt(np.pi))) - 0.5 * points - fall

    def _ends(self, rate: float, tilts: Array) -> tuple[Array, Array]:
        most = 0.5 * tilts**2 * float(self.b @ self.b) + 2 * CUT
        high = max(2 * np.log(rate), -2 * np.log(self.rho.min())) + 2 * CUT
        return np.log(0.25 * rate**2 / most) - 1.0, np.full(len(tilts), high)

    def tilted(self, rate: float, tilts: Array) -> TiltedForm:
        window, shares, log_mass = self.window(rate, tilts)
        v, spread = window.known
        mean = shares * spread
        # E_s c^2, with the mean move theta v b; E c is 2 s/a times that.
        weighted = v @ self.rho**2 + tilts[:, None] ** 2 * (v**2 @ (self.rho * self.b) ** 2)
        return TiltedForm(
            log_mass,
            tilts * mean.sum(axis=1),
            (shares * weighted * np.exp(window.points)).sum(axis=1) * (2.0 / rate),
            (shares * weighted).sum(axis=1),
            np.sqrt(mean.sum(axis=1)),
            tilts[:, None] * (shares[:, None] @ v)[:, 0] * self.b,
        )

    def along(self, rate: float, tilts: Array, which: int, omega: Array) -> Transformed:
        window, all_shares, _ = self.window(rate, tilts)
        v, spread = (part[which] for part in window.known)
        tilt = float(tilts[which])
        theta = tilt + 1j * omega
        weights = all_shares[which] * np.exp(0.5 * (theta**2 - tilt**2)[:, None] * spread)
        squares = v @ self.rho**2 + theta[:, None] ** 2 * (v**2 @ (self.rho * self.b) ** 2)
        costs = weights * squares
        return Transformed(
            weights.sum(axis=1),
            theta * (weights @ spread),
            costs @ (2.0 * np.exp(window.points[which]) / rate),
            costs.sum(axis=1),
            lambda q: (((q * theta) @ weights) @ v).real * self.b,
        )


class LargestOfMoves(FormMixture):
    """p = inf: given c = s, one move sits at an end of [-s, s]/rho, the others lie between."""

    def _component(self, points: Array, theta: Array) -> tuple[Any, Array]:
        found = self._inside(np.exp(points), theta[:, None])
        with np.errstate(divide="ignore"):
            return found, found.log_mass + np.log(found.rate)

    def _weight(self, rate: float, points: Array) -> Array:
        return points - rate * np.exp(points)

    def _ends(self, rate: float, tilts: Array) -> tuple[Array, Array]:
        steep = np.abs(tilts[:, None] * self.b)
        typical = np.maximum(max(rate, 1.0 / float(self.rho.min())), (steep / self.rho).max(axis=1))
        low = -np.log(typical) - (CUT + 6.0) / len(self.b) - 3.0
        high = np.log((self.rho * (steep + REACH)).max(axis=1))
        return np.minimum(low, high - 1.0), high

    def tilted(self, rate: float, tilts: Array) -> TiltedForm:
        window, shares, log_mass = self.window(rate, tilts)
        s, found = np.exp(window.points), window.known
        with np.errstate(divide="ignore", invalid="ignore"):
            inverse = np.where(shares > 0, shares / found.rate, 0.0)
        moves = (inverse[:, None] @ found.flows)[:, 0]
        return TiltedForm(
            log_mass,
            moves @ self.b,
            (shares * s).sum(axis=1),
            (shares * s**2).sum(axis=1),
            np.sqrt((shares * (found.spread @ self.b**2)).sum(axis=1)),
            moves,
        )

    def along(self, rate: float, tilts: Array, which: int, omega: Array) -> Transformed:
        window, shares, log_mass = self.window(rate, tilts)
        points = window.points[which]
        step = np.log(points[1] - points[0])
        points = points[shares[which] > LIVELY]
        s = np.exp(points)
        found = self._inside(s[None], (float(tilts[which]) + 1j * omega)[:, None])
        fixed = self._weight(rate, points) + step - log_mass[which]
        inside = np.exp(found.log_mass + fixed)
        weights = inside * found.rate
        moves = (inside[:, None] @ found.flows)[:, 0]
        return Transformed(
            weights.sum(axis=1),
            moves @ self.b,
            weights @ s,
            weights @ s**2,
            lambda q: (q @ moves).real,
        )

    def _inside(self, s: Array, theta: Array) -> Inside:
        """Mass and moves at lengths s (T or 1, S) and points theta (T, 1)."""
        q = theta[:, :, None] * self.b
        end = s[:, :, None] / self.rho
        seen = self.b != 0
        logs = np.empty(np.broadcast_shapes(q.shape, end.shape), dtype=q.dtype)
        logs[..., seen] = _log_between(q[..., seen], end[..., seen])
        logs[..., ~seen] = _log_between(np.zeros(1), end[..., ~seen])
        with np.errstate(under="ignore"):
            fall = -0.5 * end**2 - np.log(ROOT_2PI) - logs
            at_high, at_low = np.exp(q * end + fall), np.exp(-q * end + fall)
        mean = q - (at_high - at_low)
        each = (at_high + at_low) / self.rho
        rate = each.sum(axis=2)
        flows = (rate[:, :, None] - each) * mean + end / self.rho * (at_high - at_low)
        spread = np.maximum((1 - end * (at_high + at_low) + q * mean - mean**2).real, 0.0)
        return Inside(logs.sum(axis=2), rate, flows, spread)


@dataclass(frozen=True)
class Inside:
    """The law of z in a box of lengths s, tilted by theta; (T, S, ...)."""

    log_mass: Array
    """log E [exp(theta v); c <= s]."""
    rate: Array
    """d/ds of it."""
    flows: Array
    """The rate times E [z | c = s], (T, S, d)."""
    spread: Array
    """Variances of z inside of the box, (T, S, d)."""


def _log_between(q: Array, end: Array) -> Array:
    """log E [exp(q z); |z| <= end], z ~ N(0, 1)."""
    q, end = np.broadcast_arrays(q, end)
    q = np.where(q.real < 0, -q, q)
    if np.iscomplexobj(q):
        upper, lower = _log_half(end - q), _log_half(-end - q)
    else:
        upper, lower = _real_half(end - q), _real_half(-end - q)
    with np.errstate(under="ignore", divide="ignore", invalid="ignore"):
        below, above = lower - q * end, upper + q * end
        top = np.maximum(below.real, above.real)
        found = top - 0.5 * end**2 + np.log(np.exp(above - top) - np.exp(below - top))
    if (end < SMALL).any():
        flat = np.log(2 * end / ROOT_2PI) + _log_sinhc(q * end)
        return np.where(end < SMALL, flat, found)
    return found


def _real_half(q: Array) -> Array:
    """log E [exp(q z); z > 0] for real q."""
    return np.where(
        q < 0, np.log(0.5 * erfcx(-np.minimum(q, 0.0) / np.sqrt(2))), 0.5 * q**2 + log_ndtr(q)
    )


def _log_sinhc(x: Array) -> Array:
    """log (sinh(x)/x) for a real part >= 0."""
    with np.errstate(under="ignore", divide="ignore", invalid="ignore"):
        large = x + np.log(-np.expm1(-2 * x) / (2 * x))
    return np.where(np.abs(x) < 1e-4, x**2 / 6, large)


LAWS: dict[float, type[FormLaw]] = {1.0: SumOfMoves, 2.0: LengthOfMoves, np.inf: LargestOfMoves}
