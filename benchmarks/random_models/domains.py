"""Losses with limited domains, on supports inside their domain and outside."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np

import wdro_model as wdro
from random_models.blurred import RELATIVE, read_smoothing
from random_models.smoothing import smoothed_by_quadrature
from random_models.trial import Answer, NoReferenceError, Trial, read_answer

ERRORS = 4.0


def draw_domain(rng: np.random.Generator) -> Trial:
    """sqrt, log, inverse and the like: refused where the support leaves the domain, else right."""
    d = int(rng.integers(1, 3))
    N = int(rng.integers(1, 4))
    kind = str(
        rng.choice(["sqrt", "log", "inverse", "ratio", "minus log", "quad over lin", "power"])
    )
    samples = rng.uniform(0.5, 2.0, size=(N, d))
    inside = bool(rng.random() < 0.6)
    box = bool(rng.random() < 0.5) or inside
    low = np.full(d, float(rng.uniform(0.1, 0.4)) if inside else -1.0)
    high = np.full(d, float(rng.uniform(2.1, 4.0)))
    if not box:
        low, high = np.full(d, -np.inf), np.full(d, np.inf)
    support: Any = wdro.supports.Box(low, high) if box else wdro.supports.Everywhere()
    z = wdro.UncertainParameter(d, name="z", samples=samples, support=support)
    x = cp.Variable(d, nonneg=True, name="x")
    loss, at = {
        "sqrt": (
            lambda: cp.sqrt(z[0]) * x[0] + z @ x,
            lambda s, u: np.sqrt(s[:, 0]) * u[0] + s @ u,
        ),
        "log": (lambda: cp.log(z[0]) * x[0], lambda s, u: np.log(s[:, 0]) * u[0]),
        "minus log": (lambda: -cp.log(z @ x), lambda s, u: -np.log(s @ u)),
        "inverse": (
            lambda: cp.sum(cp.multiply(x, cp.inv_pos(z))),
            lambda s, u: np.sum(u / s, axis=1),
        ),
        "ratio": (lambda: cp.sum(x / z), lambda s, u: np.sum(u / s, axis=1)),
        "quad over lin": (
            lambda: cp.quad_over_lin(x, z[0]),
            lambda s, u: np.sum(u**2) / s[:, 0],
        ),
        "power": (lambda: cp.power(z[0], -0.5) * x[0], lambda s, u: u[0] * s[:, 0] ** -0.5),
    }[kind]
    radius = float(10.0 ** rng.uniform(-3, -0.3))
    p = [1, 2][int(rng.integers(2))]
    squared = bool(rng.random() < 0.6)
    cost: Any = wdro.costs.SquaredEuclidean() if squared else wdro.costs.Norm(p)

    def solve(limit: float) -> Answer:
        problem = wdro.Problem(
            cp.Minimize(loss()),
            [cp.sum(x) == 1, x >= 0.05],
            wdro.WassersteinBall(radius, cost),
        )
        problem.solve(time_limit=limit)
        smoothing = None
        if problem.solution.method == "smoothed":
            smoothing = read_smoothing(problem, samples, radius, low, high)
        return read_answer(problem, x.value, smoothing=smoothing)

    def distance(xi: np.ndarray, points: np.ndarray) -> np.ndarray:
        if squared:
            return np.sum((points - xi) ** 2, axis=1)
        return np.linalg.norm(points - xi, p, axis=1)

    def judge(answer: Answer) -> list[str]:
        smoothing = answer.more["smoothing"]
        if smoothing is None:
            raise NoReferenceError("no smoothing to compare with")
        steepest = 2.0 + 1.0 / float(low[0]) ** 2
        first = steepest / (np.sqrt(radius) if squared else 1.0)

        def value(u: np.ndarray) -> float:
            return smoothed_by_quadrature(
                lambda points: at(points, u), distance, smoothing, steepest, first
            )

        own = value(answer.decision)
        scale = max(1e-2, abs(own), float(np.abs(at(samples, answer.decision)).max()))
        allowed = RELATIVE * scale + ERRORS * (answer.standard_error or 0.0)
        if abs(answer.value - own) > allowed:
            return [f"value {answer.value:.8g}, by quadrature {own:.8g}"]
        gap = max(answer.gap or 0.0, 0.0)
        for other in [] if d == 1 else [np.array([0.1, 0.9]), np.array([0.6, 0.4])]:
            if value(other) < answer.value - gap - allowed:
                return [f"value {answer.value:.8g}, gap {gap:.2g}, {value(other):.8g} at {other}"]
        return []

    def refuse(answer: Answer) -> list[str]:
        return [f"value {answer.value:.6g}, though the loss leaves its domain on the support"]

    where = "box inside" if inside else ("box outside" if box else "R^d")
    name = "squared" if squared else f"Norm({p})"
    text = f"{kind} on {where}, d={d} N={N} {name} radius {radius:.3g}"
    return Trial(text, solve, judge if inside else refuse, must_be_refused=not inside)
