"""The smoothed robust objective F(x, l) = l * radius + mean_k phi_k(x, l)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wdro_model.errors import UnboundedError
from wdro_model.objectives.dual import DualMinimum, minimise_dual
from wdro_model.objectives.integration.base import Integration, Slice, Stream
from wdro_model.solvers.objective import Array, Point

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
    ) -> None:
        self.integration = integration
        self.size = size
        self.radius = radius
        self.epsilon = epsilon
        self.sigma = sigma
        self.convex = convex
        self.stream = stream or Stream(seed=0)
        self.minimum: DualMinimum | None = None
        """Where the dual was minimised last."""

    @property
    def starts_at_erm(self) -> bool:
        """Is the ERM decision, and not a vertex of the set, where a run should begin?"""
        return getattr(self.integration, "starts_at_erm", False)

    def evaluate(self, x: Array, dual: float | None = None) -> Point:
        """F on the fixed draws of the current stage, all samples."""
        return self._point(self.integration.slice(x, np.arange(self.size), self.stream), dual)

    def estimate(
        self, x: Array, dual: float | None, batch: Array, rng: np.random.Generator
    ) -> Point:
        """F estimated from a batch of samples with draws of its own."""
        stream = Stream(int(rng.integers(2**63)), int(rng.integers(2**63)))
        return self._point(self.integration.slice(x, batch, stream), dual)

    def _point(self, inner: Slice, dual: float | None) -> Point:
        if dual is None:
            last = self.minimum.dual if self.minimum else None
            # Strategies may know better where to look, and how far.
            start, trust = getattr(inner, "guess", last), getattr(inner, "trust", np.inf)
            self.minimum = minimise_dual(inner.at, self.radius, start, trust=trust)
            refuse_infinite(self.minimum.value, self.minimum.dual)
            if self.minimum.at_bound:
                raise UnboundedError(UNBOUNDED)
            dual, value, slope = self.minimum.dual, self.minimum.value, None
        else:
            point = inner.at(dual)
            value, slope = dual * self.radius + point.value, self.radius + point.slope
            refuse_infinite(value, dual)
        return Point(
            value,
            inner.gradient(dual),
            dual=dual,
            dual_gradient=slope,
            diagnostics=inner.diagnostics(dual),
        )

    def describe(self) -> str:
        return (
            "l * radius + epsilon * mean_k log E exp((f(x, zeta) - l c(xi_k, zeta)) / epsilon); "
            + self.integration.describe()
        )


class Moving(Smoothed):
    """F with draws that move along: proposals are made for each decision and its dual.

    Draws made for one decision say little about another that is a percent away, where epsilon is
    small. The random numbers behind the draws stay fixed, so that F remains one function of x up to
    the Monte Carlo error; the dual is found by Newton steps with the proposals moving along.
    """

    ROUNDS = 6
    CLOSE = 1e-5
    """Relative error of the transport cost at which the dual is settled."""

    def evaluate(self, x: Array, dual: float | None = None) -> Point:
        if dual is not None:
            self.integration.refresh(x, dual)
            return super().evaluate(x, dual)
        dual = self.settle(x, self.minimum.dual if self.minimum else 1.0)
        point = super().evaluate(x, dual)
        self.minimum = DualMinimum(dual, point.value)
        return replace(point, dual_gradient=None)

    def settle(self, x: Array, dual: float) -> float:
        """The dual at x over all samples, the proposals moving with it."""
        samples, infinite, steps = np.arange(self.size), 0.0, 0
        for _ in range(10 * self.ROUNDS):
            self.integration.refresh(x, dual)
            point = self.integration.slice(x, samples, self.stream).at(dual)
            cost = -point.slope
            if np.isposinf(cost):  # the loss outgrows the cost: the dual is larger
                infinite, dual = dual, (1.2 if steps else 2.0) * dual
                continue
            if not (cost > 0 and np.isfinite(cost)) or steps == self.ROUNDS:
                break
            residual = np.sqrt(self.radius / cost) - 1.0
            rate = 0.5 * (1.0 + residual) * point.curvature / cost
            if abs(residual) <= self.CLOSE or not rate > 0:
                break
            least = max(dual / 2, np.sqrt(infinite * dual))
            dual, steps = float(np.clip(dual - residual / rate, least, dual * 2)), steps + 1
        return dual
