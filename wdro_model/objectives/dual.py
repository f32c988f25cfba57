"""The dual variable of the transport budget, minimised exactly at one decision.

This search is for smoothed objectives, whose transport cost is continuous in the dual. The cost of
exact objectives jumps at the minimum, and both sides of the jump are needed: `exact.adversary` has
a bisection of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

Costs = Callable[[float], float]
"""A map from the dual variable to the transport cost."""


@dataclass(frozen=True)
class Tolerances:
    """Accuracies and step lengths of the search for the dual."""

    secant_error: float = 1e-6
    """Relative error of the root of the transport cost that is enough without a curvature: the
    value is flat at its minimum."""
    infinite_dual: float = 1e30
    """Multiple of the first guess (or of one) from which duals count as infinite."""
    expected_range: float = 1.5
    """Factor of the dual within which the model of the transport cost is used."""
    seen_range: float = 1.01
    """Factor of the dual within which the model overrules an end of the bracket."""
    most_misses: int = 4
    """Roots of the model that were wrong, after which the model is no longer used."""
    slow_newton: float = 0.1
    """Share of the last residual above which a Newton step has failed: a secant step follows."""
    closed: float = 1e-12
    """Relative width at which a bracket is closed, at least."""


TOLERANCES = Tolerances()


@dataclass(frozen=True)
class DualPoint:
    """A convex function of the dual variable: value, slope and curvature at one point."""

    value: float
    slope: float
    curvature: float
    expected_costs: Callable[[], Costs | None] = lambda: None
    """A function that makes a model of the transport cost at duals nearby, exact at this one. The
    model is None if it would say no more than the curvature."""


@dataclass(frozen=True)
class DualMinimum:
    """The minimiser of l -> l * radius + phi(l) over [floor, bound], and its place in there."""

    dual: float
    value: float
    residual: float = 0.0
    """Bound on the value's excess over the minimum, by convexity over the bracket; infinite where
    no end of it is known."""
    at_floor: bool = False
    """The function increases from the floor on; at 0 this says that the radius does not bind."""
    at_bound: bool = False
    """The function still decreases at the bound."""


def minimise_dual(
    phi: Callable[[float], DualPoint],
    radius: float,
    start: float | None = None,
    bound: float = np.inf,
    floor: float = 0.0,
    rounds: int = 200,
    tolerance: float = 1e-9,
) -> DualMinimum:
    """Minimise l * radius + phi(l), phi convex and decreasing, by safeguarded root finding.

    At the minimum the transport cost C(l) = -phi'(l) equals the radius. C behaves like 1/l^2, so
    the equation is solved as 1/sqrt(C(l)) = 1/sqrt(radius), nearly linear in l: by Newton's method
    where phi gives a curvature, by secants where it does not. A step that leaves the bracket of the
    root is replaced by the geometric mean of the bracket. Where phi has a model of its costs
    nearby, the next point is the root of the model, as long as these roots come true.

    start: an earlier minimiser, which saves most of the work.
    """
    ceiling = min(bound, TOLERANCES.infinite_dual * max(1.0, start or 0.0))
    if start == 0.0 and floor == 0.0:
        point = phi(0.0)
        if -point.slope <= radius:
            return DualMinimum(0.0, point.value, at_floor=True)
    dual = start if start and np.isfinite(start) and start > 0 else 1.0
    dual = min(max(dual, floor), ceiling)
    bracket = Bracket()
    before: tuple[float, float] | None = None  # the last dual and its residual
    earlier = np.inf  # the residual before that
    misses, modelled = 0, False  # roots of models that were wrong; was the last point one?
    finite: tuple[float, DualPoint] | None = None  # the least dual with a finite value
    for _ in range(rounds):
        point, here = phi(dual), dual
        if np.isfinite(point.value) and (finite is None or dual < finite[0]):
            finite = dual, point
        cost = -point.slope
        if cost > radius and dual >= ceiling:
            return DualMinimum(dual, dual * radius + point.value, at_bound=True)
        if cost <= radius and dual <= floor:
            return DualMinimum(dual, dual * radius + point.value, at_floor=True)
        residual = np.sqrt(radius / cost) - 1.0 if cost > 0 else np.inf
        bracket = bracket.with_point(dual, residual)
        enough = tolerance if point.curvature > 0 else max(tolerance, TOLERANCES.secant_error)
        if abs(residual) <= enough or bracket.is_closed(max(tolerance**2, TOLERANCES.closed)):
            break  # where the cost jumps the value changes by the jump times the width
        lingers = before is not None and abs(residual) > 0.5 * abs(before[1])
        misses += lingers and modelled
        trial = None
        costs = point.expected_costs() if misses < TOLERANCES.most_misses else None
        if costs is not None:
            bracket = bracket.agreeing(costs, radius, dual)
            trial = expected_root(costs, radius, dual, bracket)
        modelled = trial is not None
        if trial is None:
            slope = 0.5 * (1.0 + residual) * point.curvature / cost if cost > 0 else np.nan
            # A Newton step that gained little had a curvature that is not the function's: draws
            # that move with the dual have one of their own.
            least = np.inf if before is None else TOLERANCES.slow_newton * abs(before[1])
            if (least < abs(residual) < 1 or not slope > 0) and dual > 0:
                slope = secant_slope(dual, residual, before)
            trial = bracket.next(dual, residual, slope)
            if lingers and before is not None:
                # Still on the same side of the root and little nearer: look further.
                if np.isinf(bracket.high):
                    trial = max(trial, 4 * dual)
                elif bracket.low == 0.0 and np.isinf(bracket.low_value):
                    trial = min(trial, dual / 4)
                elif residual * before[1] > 0 or abs(residual) > 0.5 * earlier:
                    # The cost is nearly constant here, and steps are tiny, or it falls steeply
                    # between two such stretches, and steps jump from one to the other.
                    trial = bracket.middle()
        earlier = np.inf if before is None else abs(before[1])
        before = (dual, residual)
        dual = min(max(trial, floor), ceiling)
    if not np.isfinite(point.value) and finite is not None:
        here, point = finite  # the minimum sits where the function becomes infinite
    rise = radius + point.slope
    low, high = max(bracket.low, floor), min(bracket.high, bound)
    if np.isinf(high) and abs(residual) <= enough:
        high = 2 * here  # C falls like 1/l^2: a root so near does not lie beyond
    reach = here - low if rise > 0 else high - here
    excess = abs(rise) * reach if rise != 0 else 0.0
    return DualMinimum(float(here), float(here * radius + point.value), float(excess))


def expected_root(costs: Costs, radius: float, dual: float, bracket: Bracket) -> float | None:
    """The dual nearby at which expected costs equal the radius, or the one nearest to it.

    None where that is not inside the bracket.
    """
    rises = costs(dual) > radius  # the root is at a larger dual
    factor = TOLERANCES.expected_range
    far = min(bracket.high, factor * dual) if rises else max(bracket.low, dual / factor)
    if (costs(far) > radius) == rises:
        return far if bracket.low < far < bracket.high else None
    ends = sorted((dual, far))
    return float(brentq(lambda other: costs(other) - radius, *ends, xtol=1e-15 * dual, rtol=1e-15))


def secant_slope(dual: float, value: float, before: tuple[float, float] | None) -> float:
    """The slope through the last two points; at the first, that of C = const / l^2."""
    if before is not None and before[0] != dual and np.isfinite(before[1]) and np.isfinite(value):
        slope = (value - before[1]) / (dual - before[0])
        if slope > 0:
            return slope
    return (1.0 + value) / dual


@dataclass(frozen=True)
class Bracket:
    """An interval around the root of an increasing function, and its values at both ends."""

    low: float = 0.0
    low_value: float = -np.inf
    high: float = np.inf
    high_value: float = np.inf
    zero_after: float = 0.0
    """Zero itself is tried once the root is known to lie below this."""

    def with_point(self, dual: float, value: float) -> Bracket:
        if value < 0:
            return Bracket(dual, value, self.high, self.high_value, self.zero_after)
        zero_after = self.zero_after if np.isfinite(self.high) else 1e-2 * dual
        return Bracket(self.low, self.low_value, dual, value, zero_after)

    def agreeing(self, costs: Costs, radius: float, dual: float) -> Bracket:
        """The bracket without an end close to the dual that the expected costs contradict.

        Integrals that follow the dual were others when that end was seen.
        """
        close = TOLERANCES.seen_range
        if dual / close < self.low < dual and costs(self.low) <= radius:
            return Bracket(0.0, -np.inf, self.high, self.high_value, self.zero_after)
        if dual < self.high < dual * close and costs(self.high) >= radius:
            return Bracket(self.low, self.low_value, zero_after=self.zero_after)
        return self

    def is_closed(self, tolerance: float) -> bool:
        return bool(np.isfinite(self.high)) and self.high - self.low <= tolerance * self.high

    def middle(self) -> float:
        """The geometric mean of the ends; a small part of the high one where the low one is 0."""
        return float(np.sqrt(self.low * self.high)) if self.low > 0 else self.high / 16

    def next(self, dual: float, value: float, slope: float) -> float:
        """The next dual to evaluate, from the last one with its value and slope (NaN: unknown)."""
        with np.errstate(over="ignore", invalid="ignore"):
            newton = dual - np.float64(value) / slope if slope > 0 else np.nan
        if np.isinf(self.high):
            return min(newton, 100 * dual) if newton > dual else 16 * dual
        if self.low == 0.0 and np.isinf(self.low_value) and self.high <= self.zero_after:
            return 0.0
        if self.low < newton < self.high and (self.low > 0 or newton > 1e-3 * self.high):
            return newton
        if np.isfinite(self.low_value) and np.isfinite(self.high_value) and not slope > 0:
            share = self.low_value / (self.low_value - self.high_value)
            return self.low + min(max(share, 0.01), 0.99) * (self.high - self.low)
        return self.middle()
