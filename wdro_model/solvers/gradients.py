"""Gradient rules: all samples at once, or a few with momentum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from wdro_model.solvers.objective import Array, Point


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
        self.probabilities = getattr(objective, "probabilities", None)

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
