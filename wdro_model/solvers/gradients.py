"""Gradient rules (full, mini-batch with momentum) and dual rules (exact, vertex, tracking)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wdro_model.solvers.objective import Array, Point, optional_part

PointAt = Callable[[int, Array, float | None], Point]
"""(t, x, dual) -> the objective in iteration t, with a gradient or an estimate of it."""


class GradientRule:
    """A choice of gradient."""

    certified: bool = True
    """True if values and gaps are those of the objective itself, False for estimates."""

    def start(self, objective: Any, rng: np.random.Generator) -> PointAt:
        """The gradients of one run."""
        raise NotImplementedError


@dataclass(frozen=True)
class Full(GradientRule):
    """The gradient over all samples."""

    def start(self, objective: Any, rng: np.random.Generator) -> PointAt:
        return lambda t, x, dual: objective.evaluate(x, dual)


@dataclass(frozen=True)
class Momentum(GradientRule):
    """g_t = b_t G_t + (1 - b_t) g_{t-1}, G_t from a batch drawn without replacement, b_0 = 1.

    Samples with probabilities are drawn by them, with replacement.
    b_t = 4/(t + 8)^(2/3), which is 1 at t = 0 (Mokhtari, Hassani and Karbasi, 2020).
    """

    batch_size: int = 10
    certified = False

    def weight(self, t: int) -> float:
        """b_t."""
        return min(1.0, 4.0 / (t + 8) ** (2 / 3))

    def start(self, objective: Any, rng: np.random.Generator) -> PointAt:
        if self.batch_size > objective.size:
            raise ValueError(
                f"batch_size={self.batch_size} is larger than the {objective.size} samples; "
                f"take a batch_size of at most {objective.size}."
            )
        p = optional_part(objective, "probabilities")
        last: Point | None = None

        def estimate(t: int, x: Array, dual: float | None) -> Point:
            nonlocal last
            batch = rng.choice(objective.size, self.batch_size, replace=p is not None, p=p)
            point: Point = objective.estimate(x, dual, batch, rng)
            if last is not None:
                b, in_dual, before = self.weight(t), point.dual_gradient, last.dual_gradient
                if in_dual is not None and before is not None:
                    in_dual = b * in_dual + (1 - b) * before
                gradient = b * point.gradient + (1 - b) * last.gradient
                point = replace(point, gradient=gradient, dual_gradient=in_dual)
            last = point
            return point

        return estimate


# ------------------------------
# Dual rules: steps of the multiplier of the transport budget during a run


class DualRule:
    """A choice of dual step; by default the dual moves by itself, and has no gap."""

    def start(self) -> float | None:
        """The first dual variable; None where the objective minimises it out."""
        return None

    def direction(self, point: Point) -> float:
        """The direction of the dual variable, per unit of step."""
        return 0.0

    def gap(self, point: Point) -> float:
        """The dual's share of the Frank-Wolfe gap."""
        return 0.0

    def step(self, point: Point, step: float) -> float | None:
        """The dual variable after a step."""
        return None


@dataclass(frozen=True)
class Exact(DualRule):
    """The dual is minimised out at each x; its gap is the residual of that search."""

    def gap(self, point: Point) -> float:
        return point.dual_residual


@dataclass(frozen=True)
class Vertex(DualRule):
    """Frank-Wolfe on [0, bound]: towards the end of the interval that the derivative asks for."""

    bound: float

    def start(self) -> float | None:
        return self.bound / 2

    def direction(self, point: Point) -> float:
        assert point.dual is not None
        assert point.dual_gradient is not None
        return (self.bound if point.dual_gradient < 0 else 0.0) - point.dual

    def gap(self, point: Point) -> float:
        assert point.dual_gradient is not None
        return -point.dual_gradient * self.direction(point)

    def step(self, point: Point, step: float) -> float | None:
        assert point.dual is not None
        # Steps between vertices of an active set may be longer than 1.
        return min(max(point.dual + step * self.direction(point), 0.0), self.bound)


@dataclass(frozen=True)
class Tracking(DualRule):
    """A dual that follows mini-batches: l <- l (C / radius)^rate, C the averaged transport cost.

    C behaves like 1/l^2, so that l sqrt(C / radius) would be the minimiser; a fraction of that step
    is taken in each iteration, since C is an average over past batches.
    """

    first: float
    radius: float
    rate: float = 0.1

    def start(self) -> float | None:
        return self.first

    def step(self, point: Point, step: float) -> float | None:
        assert point.dual is not None
        assert point.dual_gradient is not None
        cost = max(self.radius - point.dual_gradient, 1e-3 * self.radius)
        return point.dual * min(max((cost / self.radius) ** self.rate, 0.5), 2.0)
