"""Gradient rules (full, mini-batch with momentum) and dual rules (exact, vertex)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from wdro_model.solvers.objective import Array, Point, optional_part


class GradientState(Protocol):
    """The memory of a gradient rule during one run."""

    def __call__(self, t: int, x: Array, dual: float | None) -> Point: ...


class GradientRule(Protocol):
    """A choice of gradient."""

    certified: bool
    """Are values and gaps those of the objective itself, rather than of an estimate?"""

    def start(self, objective: Any, rng: np.random.Generator) -> GradientState: ...


@dataclass(frozen=True)
class Full:
    """The gradient over all samples."""

    certified = True

    def start(self, objective: Any, rng: np.random.Generator) -> GradientState:
        return lambda t, x, dual: objective.evaluate(x, dual)


@dataclass(frozen=True)
class Momentum:
    """g_t = b_t G_t + (1 - b_t) g_{t-1}, G_t from a batch drawn without replacement, b_0 = 1.

    Samples with probabilities are drawn by them, with replacement.
    b_t = 4/(t + 8)^(2/3), which is 1 at t = 0 (Mokhtari, Hassani and Karbasi, 2020).
    """

    batch_size: int = 10
    certified = False

    def weight(self, t: int) -> float:
        return min(1.0, 4.0 / (t + 8) ** (2 / 3))

    def start(self, objective: Any, rng: np.random.Generator) -> GradientState:
        if self.batch_size > objective.size:
            raise ValueError(
                f"batch_size={self.batch_size} is larger than the {objective.size} samples; "
                f"take a batch_size of at most {objective.size}."
            )
        return _Momentum(self, objective, rng)


class _Momentum:
    def __init__(self, rule: Momentum, objective: Any, rng: np.random.Generator) -> None:
        self.rule, self.objective, self.rng = rule, objective, rng
        self.gradient: Array | None = None
        self.dual_gradient: float | None = None
        self.probabilities = optional_part(objective, "probabilities")

    def __call__(self, t: int, x: Array, dual: float | None) -> Point:
        p = self.probabilities
        batch = self.rng.choice(
            self.objective.size, self.rule.batch_size, replace=p is not None, p=p
        )
        point = self.objective.estimate(x, dual, batch, self.rng)
        b = self.rule.weight(t)
        if self.gradient is None:
            self.gradient, self.dual_gradient = point.gradient, point.dual_gradient
        else:
            self.gradient = b * point.gradient + (1 - b) * self.gradient
            if point.dual_gradient is not None and self.dual_gradient is not None:
                self.dual_gradient = b * point.dual_gradient + (1 - b) * self.dual_gradient
        return replace(point, gradient=self.gradient, dual_gradient=self.dual_gradient)


# ------------------------------
# Dual rules: what becomes of the multiplier of the transport budget during a run


class DualRule(Protocol):
    """A choice of dual step."""

    def start(self) -> float | None:
        """The first dual variable; None where the objective minimises it out."""
        ...

    def direction(self, point: Point) -> float:
        """The direction of the dual variable, per unit of step."""
        ...

    def gap(self, point: Point) -> float:
        """The dual's share of the Frank-Wolfe gap."""
        ...

    def step(self, point: Point, step: float) -> float | None:
        """The dual variable after a step."""
        ...


@dataclass(frozen=True)
class Exact:
    """The dual is minimised out at each x: what is left of it is the residual of that search."""

    def start(self) -> float | None:
        return None

    def direction(self, point: Point) -> float:
        return 0.0

    def gap(self, point: Point) -> float:
        return point.dual_residual

    def step(self, point: Point, step: float) -> float | None:
        return None


@dataclass(frozen=True)
class Vertex:
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
class Tracking:
    """A dual that follows mini-batches: l <- l (C / radius)^rate, C the averaged transport cost.

    C behaves like 1/l^2, so that l sqrt(C / radius) would be the minimiser; a fraction of that step
    is taken in each iteration, since C is an average over past batches.
    """

    first: float
    radius: float
    rate: float = 0.1

    def start(self) -> float | None:
        return self.first

    def direction(self, point: Point) -> float:
        return 0.0

    def gap(self, point: Point) -> float:
        return 0.0

    def step(self, point: Point, step: float) -> float | None:
        assert point.dual is not None
        assert point.dual_gradient is not None
        cost = max(self.radius - point.dual_gradient, 1e-3 * self.radius)
        return point.dual * min(max((cost / self.radius) ** self.rate, 0.5), 2.0)


def on_interval(bound: float | None) -> DualRule:
    """Vertex steps where the dual has an upper bound; minimised out without one."""
    return Exact() if bound is None else Vertex(bound)
