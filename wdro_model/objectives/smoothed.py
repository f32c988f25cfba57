"""The smoothed robust objective F(x, l) = l * radius + mean_k phi_k(x, l)."""

from __future__ import annotations

import numpy as np

from wdro_model.objectives.base import Array, Point
from wdro_model.objectives.dual import DualMinimum, minimise_dual
from wdro_model.objectives.integration.base import Integration, Slice, Stream


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
        dual_bound: float = np.inf,
        stream: Stream | None = None,
    ) -> None:
        self.integration = integration
        self.size = size
        self.radius = radius
        self.epsilon = epsilon
        self.sigma = sigma
        self.convex = convex
        self.dual_bound = dual_bound
        self.stream = stream or Stream(seed=0)
        self.minimum: DualMinimum | None = None
        """Where the dual was minimised last."""

    def evaluate(self, x: Array, dual: float | None = None) -> Point:
        """F on the fixed draws of the current stage, all samples."""
        return self._point(self.integration.slice(x, np.arange(self.size), self.stream), dual)

    def estimate(
        self, x: Array, dual: float | None, batch: Array, rng: np.random.Generator
    ) -> Point:
        """F estimated from a batch of samples with draws of its own."""
        stream = Stream(int(rng.integers(2**63)), int(rng.integers(2**63)))
        return self._point(self.integration.slice(x, batch, stream), dual)

    def restaged(self, stream: Stream) -> Smoothed:
        """The same objective on other draws."""
        return Smoothed(
            self.integration,
            size=self.size,
            radius=self.radius,
            epsilon=self.epsilon,
            sigma=self.sigma,
            convex=self.convex,
            dual_bound=self.dual_bound,
            stream=stream,
        )

    def _point(self, inner: Slice, dual: float | None) -> Point:
        if dual is None:
            start = self.minimum.dual if self.minimum else None
            self.minimum = minimise_dual(inner.at, self.radius, start, self.dual_bound)
            dual, value, slope = self.minimum.dual, self.minimum.value, None
        else:
            point = inner.at(dual)
            value, slope = dual * self.radius + point.value, self.radius + point.slope
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
