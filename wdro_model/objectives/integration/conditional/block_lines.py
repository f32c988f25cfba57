"""Conditional integration by lines: adaptive panels over one coordinate, lines within lines of two.

With the affine block A integrated out, what is left is a function of the moves y of block C. In
t = y / sqrt(v), v_i = sigma_i^2 / (1 + 2 l w_i sigma_i^2 / eps), reference and cost make N(0, I):

    phi_k = eps log E[exp(H_k(t)); t in box] + const,   H_k = f(x, (xi_A, s))/eps + log E_A[...].

`integrate_intervals` scans the whole box, bounds what lies between the points, and halves panels
at kinks until they are resolved: whatever H looks like, at every dual variable anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.conditional.marginal import Marginal
from wdro_model.objectives.integration.importance.frame import reference_of
from wdro_model.objectives.integration.importance.targets import blocks
from wdro_model.objectives.integration.low_rank.line_bounds import UNKNOWN
from wdro_model.objectives.integration.low_rank.quadrature import LineIntegral
from wdro_model.objectives.integration.low_rank.tilted_law import TiltedLaw
from wdro_model.objectives.integration.separable.intervals import integrate_intervals
from wdro_model.solvers.objective import Array

if TYPE_CHECKING:
    from wdro_model.objectives.integration.conditional.by_blocks import Conditional

LINE = 1e-10
"""Tolerance of the integral over one coordinate."""
INNER, OUTER = 1e-8, 1e-7
"""Tolerances of lines within lines."""
LINES = 2048
"""Inner integrals that are computed at once."""


class BoxLaws:
    """The tilted laws of block C for some samples, at one decision and one dual variable."""

    def __init__(self, target: Marginal, samples: Array) -> None:
        self._target, self._samples = target, samples
        self._deviation = np.sqrt(target.variance(samples, np.zeros((1, 0)))[0])
        bounds = target.bounds(samples)
        if bounds is None:
            far = np.full((len(samples), target.dimension), np.inf)
            bounds = -far, far
        self._low, self._high = bounds[0] / self._deviation, bounds[1] / self._deviation

    def law(self) -> TiltedLaw:
        """Weighted moves of each sample; log E exp(H) over its box."""
        found = self._line() if self._target.dimension == 1 else self._plane()
        return TiltedLaw(found.log_mass, found.owner, found.points * self._deviation, found.weights)

    def _exponent(self, owner: Array, t: Array) -> Array:
        """H at points t (M, r) of the samples in positions owner (M,)."""
        return self._target.exponents(self._samples[owner], t * self._deviation)

    def _line(self) -> TiltedLaw:
        found = integrate_intervals(
            lambda owner, t: self._exponent(owner, t[:, None]),
            self._low[:, 0],
            self._high[:, 0],
            curvature=UNKNOWN,
            tolerance=LINE,
        )
        return TiltedLaw(found.log_mass, found.owner, found.nodes[:, None], found.weights)

    def _plane(self) -> TiltedLaw:
        """The second coordinate by lines, at the nodes of lines along the first."""

        def exponent(owner: Array, s: Array) -> Array:
            parts = [found.log_mass for _, found in self._inner(owner, s)]
            return np.concatenate([np.zeros(0), *parts])

        lines = integrate_intervals(
            exponent, self._low[:, 0], self._high[:, 0], curvature=UNKNOWN, tolerance=OUTER
        )
        inner = list(self._inner(lines.owner, lines.nodes))
        node = np.concatenate([start + found.owner for start, found in inner])
        second = np.concatenate([found.nodes for _, found in inner])
        weights = np.concatenate([found.weights for _, found in inner])
        return TiltedLaw(
            lines.log_mass,
            lines.owner[node],
            np.column_stack([lines.nodes[node], second]),
            lines.weights[node] * weights,
        )

    def _inner(self, owner: Array, s: Array) -> Iterator[tuple[int, LineIntegral]]:
        """Integrals over the second coordinate, the first at s (M,), and where each part begins."""
        for start in range(0, len(owner), LINES):
            who, first = owner[start : start + LINES], s[start : start + LINES]

            def exponent(line: Array, t: Array, who: Array = who, first: Array = first) -> Array:
                return self._exponent(who[line], np.column_stack([first[line], t]))

            low, high = self._low[who, 1], self._high[who, 1]
            yield (
                start,
                integrate_intervals(exponent, low, high, curvature=UNKNOWN, tolerance=INNER),
            )


@dataclass(frozen=True)
class Measured:
    """The laws at one dual variable, and what follows from them."""

    dual: float
    law: TiltedLaw
    point: DualPoint


class LineSlice:
    """mean_k phi_k at one x, the panels laid anew for every dual variable."""

    trust = np.inf

    def __init__(self, rule: Conditional, x: Array, samples: Array) -> None:
        self._rule, self._x, self._samples = rule, x, samples
        self._known: Measured | None = None
        self.guess = rule.dual
        """Where the minimum over the dual variable may be."""

    def at(self, dual: float) -> DualPoint:
        return self._measured(dual).point

    def _measured(self, dual: float) -> Measured:
        if self._known is None or self._known.dual != dual:
            self._known = self._integrated(dual)
        return self._known

    def _integrated(self, dual: float) -> Measured:
        rule, samples = self._rule, self._samples
        target = Marginal(rule, self._x, dual)
        law = BoxLaws(target, samples).law()
        if np.isposinf(law.log_mass).any():
            return Measured(dual, law, DualPoint(np.inf, -np.inf, np.nan))
        cost, spread = target.cost_moments(samples[law.owner], law.points)
        mean = law.mean(cost)
        spread = spread + (cost - mean[law.owner]) ** 2
        point = DualPoint(
            float(rule.epsilon * (law.log_mass.mean() + self._constant(target))),
            float(-mean.mean()),
            float(law.mean(spread).mean()) / rule.epsilon,
        )
        return Measured(dual, law, point)

    def _constant(self, target: Marginal) -> float:
        """The mean log of the density of the reference over that of N(0, v), at the sample."""
        variance, spread = target.variance(self._samples, np.zeros((1, 0)))[0], target.frame.spread
        origin = np.zeros((len(self._samples), 1, target.dimension))
        reference = reference_of(target.frame, self._samples).log_density(origin)
        log_mass = -reference - 0.5 * np.log(2 * np.pi * spread).sum()
        return float(0.5 * np.log(variance / spread).sum() - log_mass.mean())

    def gradient(self, dual: float) -> Array:
        """That of f at the tilted mean of the block, node by node: f is affine in it."""
        rule, found = self._rule, self._measured(dual)
        if not np.isfinite(found.point.value):
            raise FloatingPointError(
                "the smoothed objective is infinite here: the loss outgrows the cost, and has no "
                "gradient; give the data a bounded support."
            )
        rule.reached(dual)
        law, target = found.law, Marginal(rule, self._x, dual)
        gradient = np.zeros(rule.loss.dimension)
        for some in blocks(len(law.owner), rule.joint.dimension):
            rows = target.tilted_rows(self._samples[law.owner[some]], law.points[some])
            weights = law.weights[some] / len(self._samples)
            gradient += rule.loss(self._x, rows)[1](weights)
        return gradient

    def diagnostics(self, dual: float) -> None:
        return None
