"""Dual rules: what becomes of the multiplier of the transport budget during a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from wdro_model.solvers.objective import Point


class DualRule(Protocol):
    """A choice of dual step."""

    def start(self) -> float | None:
        """The first dual variable; None where the objective minimises it out."""
        ...

    def direction(self, point: Point) -> float:
        """Where the dual variable moves, per unit of step."""
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
