"""The smoothed robust objective F(x, l) = l * radius + mean_k phi_k(x, l)."""

from __future__ import annotations

import numpy as np

from wdro_model.objectives.base import Array, Point
from wdro_model.objectives.dual import DualMinimum, minimise_dual
from wdro_model.objectives.integration.base import Integration, Slice, Stream

STALE = 1 / 3
"""Fresh proposals are wanted when the effective draws fall below this share."""


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
        duals: tuple[float, float] = (0.0, np.inf),
        stream: Stream | None = None,
    ) -> None:
        self.integration = integration
        self.size = size
        self.radius = radius
        self.epsilon = epsilon
        self.sigma = sigma
        self.convex = convex
        self.duals = duals
        """The interval in which the dual is minimised: draws made for one dual say little of others
        that are far from it."""
        self.stream = stream or Stream(seed=0)
        self.minimum: DualMinimum | None = None
        """Where the dual was minimised last."""
        self.last: Point | None = None
        """The last point that was evaluated on the draws of the stage."""

    def evaluate(self, x: Array, dual: float | None = None) -> Point:
        """F on the fixed draws of the current stage, all samples."""
        self.last = self._point(self.integration.slice(x, np.arange(self.size), self.stream), dual)
        return self.last

    def is_stale(self) -> bool:
        """Have the iterates, or the dual, left the draws of the stage behind?"""
        diagnostics = None if self.last is None else self.last.diagnostics
        if diagnostics is None:
            return False
        few = diagnostics.effective_size < STALE * diagnostics.draws
        return few or self.dual_at_end()

    def dual_at_end(self) -> bool:
        """Did the last minimum sit at an end of the interval that is not 0?"""
        minimum = self.minimum
        if minimum is None:
            return False
        return minimum.at_bound or (minimum.at_floor and self.duals[0] > 0)

    def estimate(
        self, x: Array, dual: float | None, batch: Array, rng: np.random.Generator
    ) -> Point:
        """F estimated from a batch of samples with draws of its own."""
        stream = Stream(int(rng.integers(2**63)), int(rng.integers(2**63)))
        return self._point(self.integration.slice(x, batch, stream), dual)

    def _point(self, inner: Slice, dual: float | None) -> Point:
        if dual is None:
            start = self.minimum.dual if self.minimum else None
            floor, bound = self.duals
            self.minimum = minimise_dual(inner.at, self.radius, start, bound, floor)
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
