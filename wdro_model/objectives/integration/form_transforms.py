"""Transforms of the law of one linear form under a cost, and mixtures of them.

With v = <b, z> and a cost c at the rate a, m(theta) = E exp(theta v - a c) and its relatives.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.solvers.objective import Array

CUT = 26.0
"""What lies so far below the mode in logarithm is left out of a mixture."""
TRIALS = 60
"""How often the steps of a mixture are placed anew."""


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
