"""min over vertices v of <c, v> + phi(<w, v>), phi concave and increasing, by a bare oracle.

The objective is concave in (<c, v>, <w, v>), so that a best vertex is one of those that minimise
<c + t w, v> for some t >= 0. Two neighbouring ones, a and b, bound what lies between: all other
vertices are above the lines on which they were found, and a concave function is least at a corner
of the triangle that is left. Chords are cut until no corner is better than the best vertex.

With a maximum, <c, v> + factor max_i u_i v_i, the highest coordinates of the best vertex so far are
forbidden until what is left costs more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wdro_model.errors import InfeasibleError
from wdro_model.sets.deadlines import OutOfTime, deadline, seconds_left
from wdro_model.sets.feasible_set import FeasibleSet, checked_choice
from wdro_model.solvers.driver import Stop
from wdro_model.solvers.objective import Array

ROUNDING = 1e-12
"""Differences of this share of their terms are none."""


@dataclass(frozen=True)
class ChoiceRisk:
    """<c, x> + c0 + phi(<w, x> + w0) at 0/1 points x, phi concave and increasing."""

    costs: Array
    constant: float
    spread: Array
    base: float
    phi: Callable[[float], float]

    def evaluate(self, cost: float, spread: float) -> float:
        """The value at <c, x> = cost and <w, x> = spread."""
        return cost + self.constant + self.phi(max(spread + self.base, 0.0))

    def value(self, x: Array) -> float:
        """The value at a 0/1 point."""
        return self.evaluate(float(self.costs @ x), float(self.spread @ x))


@dataclass(frozen=True)
class ParametricOutcome:
    """The best vertex of a search, and a lower bound."""

    x: Array
    value: float
    lower_bound: float
    calls: int
    stop: Stop


@dataclass(frozen=True)
class _Vertex:
    """A vertex, and the line <c, .> + t <w, .> >= level on which it was found."""

    x: Array
    cost: float
    spread: float
    t: float
    level: float


@dataclass(frozen=True)
class _Chord:
    """Two vertices next to each other so far, and the value at the corner below them."""

    left: _Vertex
    right: _Vertex
    corner: float


class ParametricSearch:
    """A search along the breakpoints of the lower envelope."""

    def __init__(self, feasible: FeasibleSet, risk: ChoiceRisk) -> None:
        self.feasible, self.risk, self.calls = feasible, risk, 0
        self.best: _Vertex | None = None
        self.value = np.inf
        self.slack = self.spread_slack = 0.0
        """Bounds on the errors of levels, in terms of the value: of finite t, and of t = inf."""
        self.open: list[_Chord] = []

    def run(self, time_limit: float | None = None) -> ParametricOutcome:
        """Search until no corner is better; at a limit, or Ctrl-C, the bound covers open chords."""
        stop = Stop.GAP
        with deadline(time_limit):
            first = self._ask(0.0)
            # Every choice costs at least <c, first>, and its spread is no less than zero.
            bound = self.risk.evaluate(first.cost, -self.risk.base) - self.slack
            try:
                if np.any(self.risk.spread):
                    self._cut(first, self._ask(np.inf))
                while self.open and stop is Stop.GAP:
                    bound = self._bound()
                    stop = self._cut_best_chord()
                bound = self._bound()
            except (KeyboardInterrupt, OutOfTime) as error:
                stop = Stop.TIME if isinstance(error, OutOfTime) else Stop.INTERRUPT
        assert self.best is not None
        return ParametricOutcome(self.best.x, self.value, bound, self.calls, stop)

    def _bound(self) -> float:
        """The least of the best value and of the corners of open chords.

        Levels of an inexact oracle may be too high by its slack; the bound is lowered for that.
        """
        least = min((chord.corner for chord in self.open), default=np.inf)
        return min(self.value, least) - self.slack - self.spread_slack

    def _ask(self, t: float) -> _Vertex:
        """The vertex at <c + t w, .>, or at <w, .> for t = inf."""
        risk = self.risk
        direction = risk.spread if np.isinf(t) else risk.costs + t * risk.spread
        self.calls += 1
        self.feasible.calls += 1
        x, slack = self.feasible.minimize_with_slack(direction)
        x = checked_choice(self.feasible, x)
        cost, spread = float(risk.costs @ x), float(risk.spread @ x)
        if np.isinf(t):
            least = max(spread - slack + risk.base, 0.0)
            self.spread_slack = risk.phi(least + slack) - risk.phi(least)
        else:
            self.slack = max(self.slack, slack)
        vertex = _Vertex(x, cost, spread, t, spread if np.isinf(t) else cost + t * spread)
        value = risk.evaluate(cost, spread)
        if value < self.value:
            self.best, self.value = vertex, value
        return vertex

    def _cut_best_chord(self) -> Stop:
        """Ask for a vertex below the chord with the best corner, if there is time."""
        left = seconds_left()
        if left is not None and left <= 0:
            return Stop.TIME
        least = min(range(len(self.open)), key=lambda k: self.open[k].corner)
        chord = self.open.pop(least)
        if chord.corner >= self.value - ROUNDING * abs(self.value):
            self.open.clear()  # the best corner is no better: nor is any other
            return Stop.GAP
        a, b = chord.left, chord.right
        t = (b.cost - a.cost) / (a.spread - b.spread)
        between = self._ask(t)
        rounding = ROUNDING * (abs(a.cost) + abs(b.cost) + t * (abs(a.spread) + abs(b.spread)))
        if between.level < a.cost + t * a.spread - rounding:
            self._cut(a, between)
            self._cut(between, b)
        return Stop.GAP

    def _cut(self, a: _Vertex, b: _Vertex) -> None:
        """Keep the chord from a to b, if something may lie below it."""
        scale = abs(a.spread) + abs(b.spread)
        if a.spread - b.spread <= ROUNDING * scale or b.cost - a.cost <= 0:
            return
        # <c,.> + ta <w,.> = La and <c,.> + tb <w,.> = Lb
        spread = b.spread if np.isinf(b.t) else (b.level - a.level) / (b.t - a.t)
        corner = self.risk.evaluate(a.level - a.t * spread, spread)
        self.open.append(_Chord(a, b, min(corner, self.value)))


@dataclass(frozen=True)
class BottleneckRisk:
    """<c, x> + c0 + factor * max_i u_i x_i at 0/1 points x."""

    costs: Array
    constant: float
    heights: Array
    factor: float

    def value(self, x: Array) -> float:
        """The value at a 0/1 point."""
        highest = float((self.heights * (x > 0.5)).max(initial=0.0))
        return float(self.costs @ x) + self.constant + self.factor * highest

    def search(self, feasible: FeasibleSet, time_limit: float | None = None) -> ParametricOutcome:
        """The best vertex, forbidding the highest coordinates of the last one again and again."""
        with deadline(time_limit):
            return self._search(feasible)

    def _search(self, feasible: FeasibleSet) -> ParametricOutcome:
        calls, stop = 0, Stop.GAP
        upper: Array | None = None
        best, least, bound, slack = np.zeros(0), np.inf, -np.inf, 0.0
        try:
            while stop is Stop.GAP:
                calls += 1
                feasible.calls += 1
                try:
                    x, inexact = feasible.minimize_with_slack(self.costs, None, upper)
                except InfeasibleError:
                    bound = least
                    break
                x, slack = checked_choice(feasible, x), max(slack, inexact)
                if self.value(x) < least:
                    best, least = x, self.value(x)
                bound = float(self.costs @ x) + self.constant
                height = float((self.heights * (x > 0.5)).max(initial=0.0))
                if bound >= least or height == 0:
                    bound = least
                    break
                upper = (self.heights < height).astype(float)
                left = seconds_left()
                stop = Stop.TIME if left is not None and left <= 0 else Stop.GAP
        except (KeyboardInterrupt, OutOfTime) as error:
            if not best.size:
                raise
            stop = Stop.TIME if isinstance(error, OutOfTime) else Stop.INTERRUPT
        return ParametricOutcome(best, least, min(bound, least) - slack, calls, stop)
