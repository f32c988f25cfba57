"""Random losses with a steep piece far away, decision fixed, for importance sampling.

A second maximum of the tilted density lies beyond the kink, 3 to 10,000 deviations from the sample.
Values are by quadrature: in the plane, or coordinate by coordinate where loss and cost are sums.
"""

from __future__ import annotations

import time
import warnings

import cvxpy as cp
import numpy as np

import wdro_model as wdro
from tests.references.battery import (
    Answer,
    Array,
    Data,
    Model,
    Support,
    Term,
    answer_of,
    one_cost,
)

COSTS = ("norm1", "norm1", "norm2", "norminf", "squared", "1.5")


def far_term(rng: np.random.Generator, d: int, kind: str, slope: Array, kink: float) -> Term:
    """A loss with a piece <slope, z> - kink; beyond two coordinates it sees the first alone."""
    if d > 2:
        slope = slope * np.eye(d)[0]
        first = np.eye(d)[0]

        def apart(z: Array, x: Array, b: float) -> Array:
            """The part of a coordinate; all of them where there are several."""
            if z.shape[1] == 1:
                steep = np.maximum(0.0, b * z[:, 0] - kink) if b else 0.0
                return z[:, 0] * x[0] + steep
            return z @ x + np.maximum(0.0, z @ slope - kink)

        return Term(
            "far sum",
            lambda z, x: z.dot(x) + cp.pos(z.dot(slope) - kink),
            lambda z, x: apart(z, x, 0.0),
            lambda x: [(first, kink / slope[0])],
            separate=True,
        )
    if kind == "maximum":
        return Term(
            "far maximum",
            lambda z, x: cp.maximum(z.dot(x), z.dot(slope) - kink),
            lambda z, x: np.maximum(z @ x, z @ slope - kink),
            lambda x: [(slope - x, kink)],
        )
    if kind == "abs":
        return Term(
            "far dead zone",
            lambda z, x: z.dot(x) + cp.pos(cp.abs(z.dot(slope)) - kink),
            lambda z, x: z @ x + np.maximum(np.abs(z @ slope) - kink, 0),
            lambda x: [(slope, kink), (slope, -kink)],
        )
    weight = float(rng.choice([0.5, 2.0]))
    return Term(
        "far pos + logistic",
        lambda z, x: cp.logistic(weight * z.dot(x)) + cp.pos(z.dot(slope) - kink),
        lambda z, x: np.logaddexp(0, weight * (z @ x)) + np.maximum(z @ slope - kink, 0),
        lambda x: [(slope, kink)],
    )


class FarModel(Model):
    """A model whose loss, where it is a sum, has the steep part in the first coordinate."""

    steep: tuple[float, float] = (0.0, 0.0)

    def _part(self, i: int, rows: Array) -> Array:
        found = rows[:, 0] * self.x[i]
        slope, kink = self.steep
        return found + np.maximum(0.0, slope * rows[:, 0] - kink) if i == 0 else found


def draw_far(seed: int) -> FarModel:
    """The model of a seed."""
    rng = np.random.default_rng([seed, 27])
    d = int(rng.choice([1, 2, 3, 4], p=[0.3, 0.45, 0.15, 0.1]))
    kinds = [c for c in COSTS if d <= 2 or c not in ("norm2", "norminf")]
    cost = one_cost(rng, d, str(rng.choice(kinds)))
    size = int(rng.choice([1, 1, 2, 4]))
    samples = rng.uniform(0.1, 0.6, (size, d))
    x = np.round(rng.uniform(0.2, 0.8, d), 2)
    sigma = float(f"{10 ** rng.uniform(-1.3, 0.2):.2g}")
    distance = sigma * 10 ** (rng.uniform(0.5, 2.5) if rng.random() < 0.7 else rng.uniform(2, 4))
    way = np.abs(rng.normal(size=d)) + 0.1
    if d > 2:
        way = np.eye(d)[0]
    elif rng.random() < 0.3:
        way *= rng.choice([-1.0, 1.0], d)
    way /= np.linalg.norm(way)
    epsilon = float(f"{10 ** rng.uniform(-2, -0.3):.2g}")
    # From twice distance * epsilon / sigma^2 on the reference alone lets a move be worth it.
    slope = float(f"{2 * distance * epsilon / sigma**2 * 10 ** rng.uniform(0.05, 0.7):.3g}")
    steep = slope * way
    kink = float(f"{slope * distance + (samples @ steep).max():.4g}")
    everywhere = np.full((2, d), np.inf) * np.array([[-1.0], [1.0]])
    where = str(rng.choice(["R^d", "nonnegative", "box"]))
    if where == "R^d" or (way < 0).any():
        support = Support("R^d", [None], *everywhere)
    elif where == "nonnegative":
        support = Support("half", [wdro.supports.Nonnegative()], np.zeros(d), everywhere[1])
    else:
        top = np.full(d, 1.0 + 3 * distance)
        support = Support("box", [wdro.supports.Box(np.zeros(d), top)], np.zeros(d), top)
    kind = str(rng.choice(["maximum", "abs", "smooth"], p=[0.5, 0.15, 0.35]))
    radius = float(f"{10 ** rng.uniform(-1.5, 0.5) * sigma**cost.power:.3g}")
    term = far_term(rng, d, kind, steep, kink)
    given = (term, cost, support, samples, x, radius, epsilon, sigma, 1, "bounds")
    model = FarModel(seed, *given)
    model.steep = (float(steep[0]), kink)
    if d > 2:
        term.at = lambda z, x: z @ x + np.maximum(0.0, z @ steep - kink)
    return model


def by_tilting(model: Model, limit: float = 60.0, **options: object) -> Answer:
    """The library's answer by importance sampling; the status is its refusal where it has none."""
    problem = model.problem()
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(
            method="smoothed",
            integration="tilted",
            epsilon=model.epsilon,
            sigma=model.sigma,
            time_limit=limit,
            solver=wdro.solvers.FrankWolfe(gap=1e-2),
            progress=False,
            **options,
        )
    return answer_of(problem.solution, time.process_time() - began)


def data_of(rows: Array) -> Data:
    """Uncertain data on R^d with these samples."""
    return Data([wdro.UncertainParameter(rows.shape[1], samples=rows)])
