"""Random models: data, supports, costs, losses and constraints, and how the library is told them.

A model is drawn in units of order one, in which the judge computes, and told to the library in
other units: data times `data`, losses times `loss`, decisions times `decision`. Worst cases are
then multiplied by `loss` exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

import wdro_model as wdro
from random_models.references import Ball, Constraints, Cost, Pieces, affine, maximum


@dataclass(frozen=True)
class Units:
    """The units in which the library is told a model."""

    data: float = 1.0
    loss: float = 1.0
    decision: float = 1.0


def draw_units(rng: np.random.Generator) -> Units:
    """Units of one for half of the models, between 1e-3 and 1e3 for the others."""
    if rng.random() < 0.5:
        return Units()
    return Units(*(float(10.0 ** rng.uniform(-3, 3)) for _ in range(3)))


@dataclass(frozen=True)
class Term:
    """A loss: its pieces for the judge, and its CVXPY expression for the library."""

    pieces: Pieces
    write: Callable[[list[Any]], Any]
    """From the expressions of the pieces."""
    kind: str


def draw_affine(rng: np.random.Generator, n: int, d: int) -> Pieces:
    """An affine piece in n decisions and d data."""
    return affine(
        float(rng.normal()), rng.normal(size=n), rng.normal(size=d), rng.normal(size=(d, n))
    )


def zero_piece(n: int, d: int) -> Pieces:
    """The function that is zero."""
    return affine(0.0, np.zeros(n), np.zeros(d), np.zeros((d, n)))


def draw_term(rng: np.random.Generator, n: int, d: int, kind: str | None = None) -> Term:
    """A random loss that is a maximum of affine pieces."""
    kind = kind or str(rng.choice(["affine", "maximum", "absolute", "positive", "scalar product"]))
    one = draw_affine(rng, n, d)
    if kind == "scalar product" and n == d:
        return Term(affine(0.0, np.zeros(n), np.zeros(d), np.eye(d)), lambda e: e[0], kind)
    if kind == "absolute":
        other = Pieces(-one.a0, -one.A, -one.b0, -one.B)
        return Term(maximum(one, other), lambda e: cp.abs(e[0]), kind)
    if kind == "positive":
        return Term(maximum(one, zero_piece(n, d)), lambda e: cp.pos(e[0]), kind)
    if kind == "maximum":
        parts = [draw_affine(rng, n, d) for _ in range(int(rng.integers(2, 5)))]
        return Term(maximum(*parts), lambda e: cp.maximum(*e), kind)
    return Term(one, lambda e: e[0], "affine")


def draw_cost(rng: np.random.Generator, d: int) -> tuple[Cost, str]:
    """A norm, a weighted squared cost or a Mahalanobis cost."""
    kind = str(rng.choice(["norm", "norm", "squared", "Mahalanobis"]))
    w = rng.uniform(0.3, 3.0, size=d) if rng.random() < 0.4 else np.ones(d)
    if kind == "norm":
        p = [1, 2, np.inf][int(rng.integers(3))]
        return Cost(p=p, weights=w), f"Norm({p})"
    if kind == "squared":
        return Cost(weights=w, covariance=np.diag(1.0 / w)), "squared"
    root = rng.normal(size=(d, d))
    return Cost(covariance=root @ root.T + 0.1 * np.eye(d)), "Mahalanobis"


def write_cost(cost: Cost) -> Any:
    """The library's object."""
    if cost.is_norm:
        return wdro.costs.Norm(cost.p, weights=cost.weights)
    if cost.weights is not None:
        return wdro.costs.SquaredEuclidean(weights=cost.weights)
    return wdro.costs.Mahalanobis(covariance=cost.covariance)


def draw_radius(rng: np.random.Generator) -> float:
    """Zero at times, else between 1e-6 and 30."""
    return 0.0 if rng.random() < 0.05 else float(10.0 ** rng.uniform(-6, 1.5))


@dataclass(frozen=True)
class Setting:
    """Data, support, cost and radius: for the judge in `ball`, for the library by `parameter`."""

    ball: Ball
    support: str
    cost: str
    units: Units
    weighted: bool = False

    @property
    def text(self) -> str:
        N, d = self.ball.samples.shape
        units = self.units
        scales = "" if units == Units() else f", units {units.data:.1e} {units.loss:.1e}"
        scales += "" if units == Units() else f" {units.decision:.1e}"
        return f"N={N} d={d} {self.support} {self.cost} radius {self.ball.radius:.3g}{scales}"

    def write_support(self) -> Any:
        """The library's support, in its units."""
        scale, ball = self.units.data, self.ball
        d = ball.samples.shape[1]
        if self.support == "R^d":
            return wdro.supports.Everywhere()
        if self.support == "nonnegative":
            return wdro.supports.Nonnegative()
        if self.support == "box":
            return wdro.supports.Box(-scale * ball.h[d:], scale * ball.h[:d])
        return wdro.supports.Polyhedron(ball.C, scale * ball.h)

    def parameter(self, samples: np.ndarray | None = None, name: str = "z") -> Any:
        """The library's uncertain parameter."""
        rows = self.ball.samples if samples is None else samples
        probabilities = self.ball.probabilities if self.weighted else None
        return wdro.UncertainParameter(
            rows.shape[1],
            name=name,
            samples=self.units.data * rows,
            support=self.write_support(),
            probabilities=probabilities,
        )

    def write_radius(self, radius: float | None = None) -> float:
        """The radius in the library's units."""
        r = self.ball.radius if radius is None else radius
        return r * (self.units.data if self.ball.cost.is_norm else self.units.data**2)

    def write_ball(self) -> Any:
        """The library's ball."""
        return wdro.WassersteinBall(self.write_radius(), write_cost(self.ball.cost))

    def write_pieces(self, pieces: Pieces, x: Any, z: Any) -> list[Any]:
        """CVXPY expressions of the pieces, in the library's units."""
        loss, data, decision = self.units.loss, self.units.data, self.units.decision
        written = []
        for j in range(pieces.count):
            total = loss * pieces.a0[j]
            if np.any(pieces.A[j]):
                total = total + (loss / decision * pieces.A[j]) @ x
            slope = loss / data * pieces.b0[j]
            if np.any(pieces.B[j]):
                slope = slope + (loss / data / decision * pieces.B[j]) @ x
            if np.any(pieces.b0[j]) or np.any(pieces.B[j]):
                total = total + z @ slope
            written.append(total)
        return written

    def write_term(self, term: Term, x: Any, z: Any) -> Any:
        """The library's expression of a loss."""
        return term.write(self.write_pieces(term.pieces, x, z))


def draw_setting(
    rng: np.random.Generator,
    d: int,
    supports: tuple[str, ...] = ("R^d", "box", "nonnegative", "polyhedron"),
    most_samples: int = 8,
    units: Units | None = None,
) -> Setting:
    """Random data, support, cost and radius."""
    N = int(rng.integers(1, most_samples + 1))
    samples = rng.normal(size=(N, d)) * rng.choice([0.3, 1.0]) + rng.normal(size=d)
    if N > 2 and rng.random() < 0.15:
        samples[1] = samples[0]
    support = str(rng.choice(supports))
    C = h = None
    if support == "nonnegative":
        samples = np.abs(samples)
        C, h = -np.eye(d), np.zeros(d)
    elif support == "box":
        low = samples.min(axis=0) - rng.choice([0.0, 0.1, 2.0]) * rng.random(d)
        high = samples.max(axis=0) + rng.choice([0.1, 2.0]) * rng.random(d) + 1e-3
        C, h = np.vstack([np.eye(d), -np.eye(d)]), np.concatenate([high, -low])
    elif support == "polyhedron":
        C = rng.normal(size=(int(rng.integers(1, 4)), d))
        h = (samples @ C.T).max(axis=0) + rng.choice([0.0, 0.3, 2.0]) * rng.random(len(C)) + 1e-6
    weighted = bool(rng.random() < 0.25)
    p = rng.dirichlet(np.full(N, 2.0)) if weighted else np.full(N, 1.0 / N)
    cost, name = draw_cost(rng, d)
    ball = Ball(samples, p, cost, draw_radius(rng), C, h)
    return Setting(ball, support, name, draw_units(rng) if units is None else units, weighted)


def draw_constraints(rng: np.random.Generator, n: int) -> tuple[Constraints, str]:
    """A bounded feasible set for n numbers, in units of one."""
    kind = str(rng.choice(["simplex", "box", "polytope", "ball"]))
    if kind == "simplex":
        return lambda x: [cp.sum(x) == 1, x >= 0], kind
    if kind == "box":
        low, high = -rng.random(n), 0.1 + rng.random(n)
        return lambda x: [x >= low, x <= high], kind
    if kind == "ball":
        centre, radius = rng.normal(size=n), float(rng.uniform(0.3, 2.0))
        return lambda x: [cp.norm(x - centre, 2) <= radius], kind
    G = rng.normal(size=(n + 1, n))
    h = G @ rng.normal(size=n) + rng.uniform(0.1, 1.0, size=n + 1)
    return lambda x: [G @ x <= h, cp.abs(x) <= 5], kind


def violation(constraints: Constraints, x: np.ndarray) -> float:
    """The largest violation of the constraints at a point."""
    point = cp.Variable(len(x))
    rows = constraints(point)
    point.value = np.asarray(x, dtype=float)
    return max(float(np.max(row.violation())) for row in rows)
