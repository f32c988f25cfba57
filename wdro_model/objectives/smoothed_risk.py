"""The smoothed robust objective F(x, l) = l * radius + mean_k phi_k(x, l)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from wdro_model.errors import UnboundedError
from wdro_model.objectives.dual import DualMinimum, DualPoint, minimise_dual
from wdro_model.objectives.integration.inner_integral import Integration, Slice, Stream
from wdro_model.sets.deadlines import check_deadline
from wdro_model.solvers.objective import Array, Point
from wdro_model.uncertainty.samples import SampleShares


@dataclass(frozen=True)
class Tolerances:
    """Accuracies at which integrals and draws are made again."""

    dual_change: float = 0.1
    """Relative change of the dual since nodes were placed above which they may be misplaced."""
    node_error: float = 1e-5
    """Standard error, in units of epsilon, above which such nodes are placed again."""
    contradiction: float = 0.02
    """Excess of a tangent over a value, in units of epsilon, above which the search for modes is
    repeated from the modes of other dual variables (`Integration.recalls`)."""
    noise: float = 4.0
    """Standard errors up to which such an excess may be noise."""
    transport_cost: float = 1e-5
    """Relative error of the transport cost at which the search for the dual of moving draws ends; a
    bracket is closed at its square."""
    rounds: int = 60
    """Dual variables in one search with moving draws, at most."""


TOLERANCES = Tolerances()


def refuse_infinite(value: float, dual: float) -> None:
    """Raise an UnboundedError where the loss outgrows the cost."""
    if np.isposinf(value):
        raise UnboundedError(
            "the smoothed objective is infinite: the loss grows faster than the cost, even at the "
            f"multiplier {dual:.3g}; give the parameter a compact support, for instance "
            "support=wdro.supports.Box(lower, upper), a larger epsilon, or a larger weight in the "
            "cost."
        )


def check_minimum(minimum: DualMinimum) -> DualMinimum:
    """The minimum over the dual; an UnboundedError where there is none."""
    refuse_infinite(minimum.value, minimum.dual)
    if minimum.at_bound:
        raise UnboundedError(
            "the sampled dual is unbounded below: every draw costs more than the radius allows; "
            "lower sigma, draw more samples, or let integration= choose another strategy."
        )
    return minimum


def value_scale(epsilon: float, radius: float, dual: float | None) -> float:
    """The least scale of relative gaps: epsilon, or dual * radius if that is more, which is about
    what the ball adds to the mean loss."""
    return max(epsilon, radius * (dual or 0.0))


class Smoothed:
    """F(x, l), with the inner integrals left to a strategy and l minimised out or given."""

    def __init__(
        self,
        integration: Integration,
        *,
        size: int,
        radius: float,
        epsilon: float,
        sigma: float | Array,
        convex: bool,
        stream: Stream | None = None,
        probabilities: Array | None = None,
    ) -> None:
        self.integration = integration
        self.size = size
        self.radius = radius
        self.epsilon = epsilon
        self.sigma = sigma
        self.convex = convex
        self.stream = stream or Stream(seed=0)
        self.probabilities = probabilities
        """Probabilities by which a batch is drawn; None for equal ones."""
        self.noise = 0.0
        """Relative error of the values, by which values at close decisions may differ."""
        self.minimum: DualMinimum | None = None
        """The last minimum over the dual."""
        self._last: tuple[Array, Slice, float] | None = None
        """The last decision, its integrals and its dual."""

    @property
    def scale(self) -> float:
        """The least scale of relative gaps, at the last dual."""
        return value_scale(self.epsilon, self.radius, self.minimum.dual if self.minimum else None)

    @property
    def is_exact(self) -> bool:
        """Are differences of gradients free of Monte Carlo error?"""
        return self.integration.exact

    def evaluate(self, x: Array, dual: float | None = None) -> Point:
        """F on the fixed draws of the current stage, all samples."""
        self._last = None
        samples = np.arange(self.size)
        inner = self.integration.slice(x, samples, self.stream)
        point = self._point(inner, dual)
        if dual is None and point.dual is not None and self._is_misplaced(inner, point):
            self.integration.refresh(x, point.dual)
            inner = self.integration.slice(x, samples, self.stream)
            point = self._point(inner, None)
        self._last = (x.copy(), inner, point.dual or 0.0)
        return point

    def _is_misplaced(self, inner: Slice, point: Point) -> bool:
        """True if the error is large and the nodes were placed for a dual far from this one.

        They must then be placed again, for the dual of `point`.
        """
        guess = inner.guess
        if guess is None or point.dual is None or point.diagnostics is None:
            return False
        moved = abs(point.dual - guess) > TOLERANCES.dual_change * guess
        return moved and point.diagnostics.standard_error > TOLERANCES.node_error * self.epsilon

    def fixed_adversary_gradient(self, x: Array) -> Callable[[Array], Array] | None:
        """Gradients at other decisions, with the adversary held at its distribution for x.

        None if the strategy does not offer them, or x is not the decision that was evaluated last.
        """
        inner, dual = self._evaluated_at(x)
        return None if inner is None else inner.fixed_adversary_gradient(dual)

    def replying_adversary_gradient(self, x: Array) -> Callable[[Array], Array] | None:
        """Gradients at decisions near x, with adversary and dual chosen anew; None as above."""
        inner, dual = self._evaluated_at(x)
        return None if inner is None else inner.replying_adversary_gradient(dual)

    def likely_scenarios(self, x: Array) -> Array | None:
        """The most likely scenario of the adversary for each sample, (N, d); None as above."""
        inner, dual = self._evaluated_at(x)
        return None if inner is None else inner.likely_scenarios(dual)

    def _evaluated_at(self, x: Array) -> tuple[Slice | None, float]:
        """The integrals of the last decision and its dual; None if x is another one."""
        if self._last is None or not np.array_equal(x, self._last[0]):
            return None, np.nan
        return self._last[1], self._last[2]

    def estimate(
        self, x: Array, dual: float | None, batch: Array, rng: np.random.Generator
    ) -> Point:
        """F estimated from a batch of samples with draws of its own."""
        shares = None
        if self.probabilities is not None:  # drawn by them, some perhaps more than once
            batch, counts = np.unique(batch, return_counts=True)
            shares = SampleShares.full(len(batch), counts / counts.sum())
        stream = Stream(int(rng.integers(2**63)), int(rng.integers(2**63)))
        return self._point(self.integration.slice(x, batch, stream, shares), dual)

    def value_over(self, x: Array, samples: Array, seed: int) -> float:
        """The least value over the dual of F on some of the samples."""
        stream = Stream(seed)
        return self._point(self.integration.slice(x, samples, stream), None).value

    def _point(self, inner: Slice, dual: float | None) -> Point:
        residual, slope = 0.0, None
        if dual is None:
            last = self.minimum.dual if self.minimum else None
            start = last if inner.guess is None else inner.guess

            def evaluate(dual: float) -> DualPoint:
                check_deadline()
                return inner.evaluate(dual)

            self.minimum = check_minimum(minimise_dual(evaluate, self.radius, start))
            dual, value = self.minimum.dual, self.minimum.value
            residual = self.minimum.residual
        else:
            point = inner.evaluate(dual)
            value, slope = dual * self.radius + point.value, self.radius + point.slope
            refuse_infinite(value, dual)
        return Point(
            value,
            inner.gradient(dual),
            dual=dual,
            dual_gradient=slope,
            dual_residual=residual,
            diagnostics=inner.diagnostics(dual),
        )

    def residual(self, x: Array, point: Point) -> float:
        """The excess of a value at a given dual over the minimum over the dual, on its draws."""
        inner = self.integration.slice(x, np.arange(self.size), self.stream)
        minimum = minimise_dual(inner.evaluate, self.radius, point.dual)
        if minimum.at_bound:
            return np.inf
        return max(0.0, point.value - minimum.value) + minimum.residual

    def describe(self) -> str:
        return (
            "l * radius + epsilon * mean_k log E exp((f(x, zeta) - l c(xi_k, zeta)) / epsilon); "
            + self.integration.describe()
        )


class Moving(Smoothed):
    """F with proposals that are made anew for each decision and its dual (`Integration.adapts`).

    For small epsilon, draws made for one decision say little about another that is a percent away.
    The random numbers behind the draws stay fixed, so that F remains one function of x and the dual
    up to the Monte Carlo error.
    """

    def evaluate(self, x: Array, dual: float | None = None) -> Point:
        if dual is not None:
            self.integration.refresh(x, dual)
            return super().evaluate(x, dual)
        minimum, lift = self._minimise(x, self.minimum.dual if self.minimum else None)
        point = super().evaluate(x, minimum.dual)
        diagnostics = point.diagnostics
        if diagnostics is not None and lift > TOLERANCES.noise * diagnostics.standard_error:
            diagnostics = diagnostics.worse_by(0.0, lift)
        return replace(
            point,
            dual_gradient=None,
            dual_residual=minimum.residual,
            diagnostics=diagnostics,
        )

    def _minimise(self, x: Array, start: float | None) -> tuple[DualMinimum, float]:
        """The minimum over the dual at x, with proposals anew at each dual, and its tangent lift.

        The lift says how far the values contradict convexity in the dual, as they do if the draws
        miss a mode at one dual and find it at another.
        """
        samples, rule = np.arange(self.size), self.integration
        while True:
            seen: list[tuple[float, DualPoint]] = []

            def evaluate(dual: float, seen: list[tuple[float, DualPoint]] = seen) -> DualPoint:
                rule.refresh(x, dual)
                point = rule.slice(x, samples, self.stream).evaluate(dual)
                seen.append((dual, point))
                return point

            self.minimum = check_minimum(
                minimise_dual(
                    evaluate,
                    self.radius,
                    start,
                    rounds=TOLERANCES.rounds,
                    tolerance=TOLERANCES.transport_cost,
                )
            )
            start = self.minimum.dual
            lift = tangent_lift(seen, start)
            if rule.recalls or lift <= TOLERANCES.contradiction * self.epsilon:
                return self.minimum, lift
            rule.recalls = True


def tangent_lift(seen: list[tuple[float, DualPoint]], dual: float) -> float:
    """The largest excess of a tangent over another value, within a factor 2 of the dual.

    The tangents of a convex function lie below its values: a positive excess contradicts convexity.
    """
    near = np.array(
        [
            (other, point.value, point.slope)
            for other, point in seen
            if dual / 2 <= other <= 2 * dual and np.isfinite(point.value)
        ]
    )
    duals, values, slopes = near.T
    tangents = values[:, None] + slopes[:, None] * (duals - duals[:, None])
    return float(np.max(tangents - values))
