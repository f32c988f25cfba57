"""The smoothed robust objective F(x, l) = l * radius + mean_k phi_k(x, l)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from wdro_model.errors import UnboundedError
from wdro_model.objectives.dual import DualMinimum, DualPoint, minimise_dual
from wdro_model.objectives.integration.inner_integral import Integration, Slice, Stream
from wdro_model.sets.deadlines import check_deadline
from wdro_model.solvers.objective import Array, Diagnostics, Point
from wdro_model.uncertainty.samples import SampleShares

UNBOUNDED = (
    "the sampled dual is unbounded below: every draw costs more than the radius allows; lower "
    "sigma, draw more samples, or let integration= choose another strategy."
)


def refuse_infinite(value: float, dual: float) -> None:
    """An UnboundedError where the loss outgrows the cost."""
    if np.isposinf(value):
        raise UnboundedError(
            "the smoothed objective is infinite: the loss grows faster than the cost, even at the "
            f"multiplier {dual:.3g}; give the parameter a compact support, for instance "
            "support=wdro.supports.Box(lower, upper), a larger epsilon, or a larger weight in the "
            "cost."
        )


def in_time(inner: Slice) -> Callable[[float], DualPoint]:
    """The function of the dual variable, which ends with the time for the solve."""

    def at(dual: float) -> DualPoint:
        check_deadline()
        return inner.evaluate(dual)

    return at


FAR, ROUGH = 0.1, 1e-5
"""A dual that has changed by this share, and an error of this share of epsilon."""


def is_rough(inner: Slice, point: Point, epsilon: float) -> bool:
    """Is the error large because the integrals were made for a dual that was far from the last?

    The strategy knows the last one now, and makes them anew for it.
    """
    guess = inner.guess
    if guess is None or point.dual is None or point.diagnostics is None:
        return False
    moved = abs(point.dual - guess) > FAR * guess
    return moved and point.diagnostics.standard_error > ROUGH * epsilon


SUSPICIOUS = 0.02
"""A contradiction between values of so many epsilon asks for a search that recalls the modes which
others have seen."""
NOISE = 4.0
"""Standard errors up to which a contradiction may be noise."""


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
        """By which the samples of a batch are drawn; None where all are drawn alike."""
        self.noise = 0.0
        """Relative error of the values, by which those of neighbours may differ."""
        self.minimum: DualMinimum | None = None
        """Where the dual was minimised last."""
        self._last: tuple[Array, Slice, float] | None = None
        """The last decision, its integrals and its dual."""

    @property
    def scale(self) -> float:
        """Values that differ by less are the same to the smoothing: relative gaps end there."""
        return self.epsilon

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
        if dual is None and is_rough(inner, point, self.epsilon):
            assert point.dual is not None
            self.integration.refresh(x, point.dual)
            inner = self.integration.slice(x, samples, self.stream)
            point = self._point(inner, None)
        self._last = (x.copy(), inner, point.dual or 0.0)
        return point

    def fixed_adversary_gradient(self, x: Array) -> Callable[[Array], Array] | None:
        """Gradients at other decisions, the adversary held at its distribution for x.

        None where that is not known: the strategy does not say, or x is not the decision that was
        evaluated last.
        """
        inner, dual = self._evaluated_at(x)
        return None if inner is None else inner.fixed_adversary_gradient(dual)

    def replying_adversary_gradient(self, x: Array) -> Callable[[Array], Array] | None:
        """Gradients at decisions close to x, to which adversary and dual reply; None as above."""
        inner, dual = self._evaluated_at(x)
        return None if inner is None else inner.replying_adversary_gradient(dual)

    def likely_scenarios(self, x: Array) -> Array | None:
        """Where the adversary most likely moves each sample, (N, d); None where not known."""
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
        residual = 0.0
        if dual is None:
            last = self.minimum.dual if self.minimum else None
            start = last if inner.guess is None else inner.guess
            self.minimum = minimise_dual(in_time(inner), self.radius, start, trust=inner.trust)
            refuse_infinite(self.minimum.value, self.minimum.dual)
            if self.minimum.at_bound:
                raise UnboundedError(UNBOUNDED)
            dual, value, slope = self.minimum.dual, self.minimum.value, None
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
        """How much a value at a given dual lies above the minimum over the dual, on its draws."""
        inner = self.integration.slice(x, np.arange(self.size), self.stream)
        found = minimise_dual(inner.evaluate, self.radius, point.dual)
        if found.at_bound:
            return np.inf
        return max(0.0, point.value - found.value) + found.residual

    def describe(self) -> str:
        return (
            "l * radius + epsilon * mean_k log E exp((f(x, zeta) - l c(xi_k, zeta)) / epsilon); "
            + self.integration.describe()
        )


class Moving(Smoothed):
    """F with draws that move along: proposals are made for each decision and its dual.

    Draws made for one decision say little about another that is a percent away, where epsilon is
    small. The random numbers behind the draws stay fixed, so that F remains one function of x and
    the dual up to the Monte Carlo error.
    """

    ROUNDS = 60
    CLOSE = 1e-5
    """Relative error of the transport cost at which the dual is settled; a bracket is closed at
    its square."""

    def evaluate(self, x: Array, dual: float | None = None) -> Point:
        if dual is not None:
            self.integration.refresh(x, dual)
            return super().evaluate(x, dual)
        found, lift = self.settle(x, self.minimum.dual if self.minimum else None)
        point = replace(super().evaluate(x, found.dual), dual_gradient=None)
        return replace(
            point,
            dual_residual=found.residual,
            diagnostics=doubted(point.diagnostics, lift),
        )

    def settle(self, x: Array, start: float | None) -> tuple[DualMinimum, float]:
        """The dual at x over all samples, the proposals moving with it, and how far the values on
        the way contradict convexity: draws that miss a mode at one dual and not at another do."""
        rule = self.integration
        samples = np.arange(self.size)
        while True:
            seen: list[tuple[float, DualPoint]] = []

            def moved(dual: float, seen: list[tuple[float, DualPoint]] = seen) -> DualPoint:
                self.integration.refresh(x, dual)
                point = self.integration.slice(x, samples, self.stream).evaluate(dual)
                seen.append((dual, point))
                return point

            found = minimise_dual(
                moved, self.radius, start, rounds=self.ROUNDS, tolerance=self.CLOSE
            )
            refuse_infinite(found.value, found.dual)
            if found.at_bound:
                raise UnboundedError(UNBOUNDED)
            self.minimum, start = found, found.dual
            lift = contradiction(seen, found.dual)
            if rule.recalls or lift <= SUSPICIOUS * self.epsilon:
                return found, lift
            rule.recalls = True


def contradiction(seen: list[tuple[float, DualPoint]], dual: float) -> float:
    """How far a value lies below the tangent of another, within a factor 2 of the dual."""
    near = np.array(
        [
            (at, point.value, point.slope)
            for at, point in seen
            if dual / 2 <= at <= 2 * dual and np.isfinite(point.value)
        ]
    )
    duals, values, slopes = near.T
    tangents = values[:, None] + slopes[:, None] * (duals - duals[:, None])
    return float(np.max(tangents - values))


def doubted(found: Diagnostics | None, lift: float) -> Diagnostics | None:
    """The diagnostics with a contradiction that noise does not explain as a part of the error."""
    if found is None or lift <= NOISE * found.standard_error:
        return found
    return found.worse_by(0.0, lift)
