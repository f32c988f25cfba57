"""Random problems with one feasible decision: what is left of the smoothed method is F itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

import wdro_model as wdro
from tests.references.cubature import Reference


@dataclass(frozen=True)
class FixedDecision:
    """One problem, twice: as the library sees it and in plain numpy."""

    expression: Callable[[Any, Any], Any]
    plain: Callable[[np.ndarray], np.ndarray]
    cost: Any
    plain_cost: Callable[[np.ndarray], np.ndarray]
    samples: np.ndarray
    decision: np.ndarray
    radius: float
    epsilon: float | None
    integration: str | None
    half_width: float
    """Of the support, a box around 0; infinite for R^d."""

    def problem(self) -> wdro.Problem:
        d = self.samples.shape[1]
        x = cp.Variable(d)
        box = wdro.supports.Box(-self.half_width, self.half_width)
        support = box if np.isfinite(self.half_width) else None
        z = wdro.UncertainParameter(d, samples=self.samples, support=support)
        constraints = [x >= self.decision, x <= self.decision]
        ball = wdro.WassersteinBall(self.radius, self.cost)
        return wdro.Problem(cp.Minimize(self.expression(x, z)), constraints, ball)

    def reference(self, epsilon: float, sigma: float) -> Reference:
        return Reference(
            self.plain,
            self.plain_cost,
            self.samples,
            epsilon,
            sigma,
            self.radius,
            -self.half_width,
            self.half_width,
        )

    def mean_loss(self) -> float:
        return float(self.plain(self.samples).mean())


def losses(rng: np.random.Generator, d: int) -> dict[str, tuple[Any, Any, float]]:
    """For each name: the loss in CVXPY, in numpy, and its order of growth in the data."""
    a, b, c = (rng.standard_normal(d) for _ in range(3))
    s = float(np.exp(rng.uniform(-1, 1.5)))
    return {
        "affine": (lambda x, z: z @ x + x @ a, lambda x, z: z @ x + x @ a, 1),
        "pieces": (
            lambda x, z: cp.maximum(z @ x, s * (z @ b) - 0.3, -(z @ c)),
            lambda x, z: np.max([z @ x, s * (z @ b) - 0.3, -(z @ c)], axis=0),
            1,
        ),
        "logistic": (
            lambda x, z: cp.logistic(s * (z @ x)) + cp.logistic(-(z @ b)),
            lambda x, z: np.logaddexp(0, s * (z @ x)) + np.logaddexp(0, -(z @ b)),
            1,
        ),
        "hinge": (
            lambda x, z: cp.pos(1 - s * (z @ x)) + cp.sum(cp.abs(z - a)),
            lambda x, z: np.maximum(0, 1 - s * (z @ x)) + np.abs(z - a).sum(1),
            1,
        ),
        "norm": (
            lambda x, z: cp.norm(z - a) * s + z @ x,
            lambda x, z: s * np.linalg.norm(z - a, axis=1) + z @ x,
            1,
        ),
        "log-sum-exp": (
            lambda x, z: cp.log_sum_exp(cp.hstack([s * (z @ x), z @ b, 0.0])),
            lambda x, z: np.logaddexp(np.logaddexp(s * (z @ x), z @ b), 0),
            1,
        ),
        "exp": (lambda x, z: cp.exp(0.7 * (z @ x)), lambda x, z: np.exp(0.7 * (z @ x)), 9),
        "squares": (
            lambda x, z: cp.sum_squares(z - a) * s,
            lambda x, z: s * ((z - a) ** 2).sum(1),
            2,
        ),
    }


def costs(kind: str) -> tuple[Any, Any, float]:
    """A cost of the library, the same for moves in numpy, and its order of growth."""
    if kind == "squared":
        return wdro.costs.SquaredEuclidean(), lambda m: (m**2).sum(1), 2
    if kind == "norm1":
        return wdro.costs.Norm(1), lambda m: np.abs(m).sum(1), 1
    if kind == "norm2":
        return wdro.costs.Norm(2), lambda m: np.sqrt((m**2).sum(1)), 1
    between = wdro.costs.Callable(lambda u, v: (np.abs(u - v) ** 1.5).sum(axis=1))
    return between, lambda m: (np.abs(m) ** 1.5).sum(1), 1.5


def random_problem(seed: int) -> FixedDecision:
    """One or two coordinates, up to five samples, any loss that the cost holds."""
    rng = np.random.default_rng(seed)
    d, count = int(rng.integers(1, 3)), int(rng.integers(1, 6))
    cost, plain_cost, order = costs(str(rng.choice(["squared", "norm1", "norm2", "callable"])))
    boxed = bool(rng.integers(2))
    table = losses(rng, d)
    names = [name for name, (_, _, growth) in table.items() if boxed or growth <= order]
    expression, plain, _ = table[str(rng.choice(names))]
    samples = rng.uniform(-0.9, 0.9, (count, d)) if boxed else rng.standard_normal((count, d))
    radius = float(10 ** rng.uniform(-2, 0.5))
    epsilon = None if rng.uniform() < 0.5 else float(10 ** rng.uniform(-2.5, 0))
    integration = "tilted" if rng.uniform() < 0.5 else None
    decision = rng.standard_normal(d)
    return FixedDecision(
        expression,
        lambda z: plain(decision, z),
        cost,
        plain_cost,
        samples,
        decision,
        radius,
        epsilon,
        integration,
        1.0 if boxed else np.inf,
    )
