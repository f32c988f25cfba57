"""Laplace transforms of the law of a linear form under a norm cost.

With z ~ N(0, I), v = <b, z> and c the norm of (rho_i z_i), p = 1, 2 or inf,

    m(theta) = E exp(theta v - a c),   theta = tilt + i omega on a vertical line,

and with it E c exp(...), E c^2 exp(...) and E z exp(...). The sum of distances is a product over
the coordinates; the Euclidean length a mixture of squares (`norms`), the largest move one over
boxes, both summed at equal steps in the logarithm of their parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.objectives.integration.form_transforms import (
    CUT,
    FormLaw,
    FormMixture,
    TiltedForm,
    Transformed,
)
from wdro_model.objectives.integration.normal_exponents import (
    ROOT_2PI,
    far_moment,
    log_between,
    log_half,
)
from wdro_model.solvers.objective import Array

LIVELY = 1e-10
"""Components of a smaller probability are left out off the real axis."""
FAR = 25.0
"""Slopes beyond this are those of an asymptotic series."""
REACH = 11.0
"""Moves of z beyond so many deviations have no mass."""


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
        logs = log_half(q)
        top = logs.real.max(axis=0)
        with np.errstate(under="ignore"):
            g, unit = np.exp(logs - top), np.exp(-top) / ROOT_2PI
            slope = q * g + unit
            bend = g + q * slope
            far = (q.real < 0) & (np.abs(q) > FAR)
            if far.any():
                slope = np.where(far, unit * far_moment(1, q), slope)
                bend = np.where(far, unit * far_moment(2, q), bend)
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
        logs[..., seen] = log_between(q[..., seen], end[..., seen])
        logs[..., ~seen] = log_between(np.zeros(1), end[..., ~seen])
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


LAWS: dict[float, type[FormLaw]] = {1.0: SumOfMoves, 2.0: LengthOfMoves, np.inf: LargestOfMoves}
