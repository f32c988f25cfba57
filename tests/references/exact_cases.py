"""Small problems with an exact counterpart, each with its loss written a second time in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

import wdro_model as wdro

SAMPLES = 6
TRIANGLE = wdro.supports.Polyhedron([[1.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], [2.0, 1.5, 1.5])
BOX = wdro.supports.Box(-1.5, [1.5, 2.0])
SUPPORTS = {"plane": wdro.supports.Everywhere(), "box": BOX, "triangle": TRIANGLE}

COSTS = {
    "squared": wdro.costs.SquaredEuclidean(),
    "weighted": wdro.costs.SquaredEuclidean(weights=[2.0, 0.5]),
    "mahalanobis": wdro.costs.Mahalanobis(precision=[[2.0, 0.5], [0.5, 1.0]]),
    "norm1": wdro.costs.Norm(1),
    "norm2": wdro.costs.Norm(2),
    "norminf": wdro.costs.Norm(np.inf),
    "weighted1": wdro.costs.Norm(1, weights=[2.0, 0.5]),
    "weighted2": wdro.costs.Norm(2, weights=[2.0, 0.5]),
}


def cost_of(name: str, delta: np.ndarray) -> np.ndarray:
    """The ground costs once more, on displacements (..., 2)."""
    weights = np.array([2.0, 0.5])
    if name == "mahalanobis":
        return np.einsum("...i,ij,...j", delta, np.array([[2.0, 0.5], [0.5, 1.0]]), delta)
    if name in ("squared", "weighted"):
        return (delta**2 * (weights if name == "weighted" else 1.0)).sum(axis=-1)
    p = {"norm1": 1, "weighted1": 1, "norm2": 2, "weighted2": 2, "norminf": np.inf}[name]
    scaled = delta * weights if name.startswith("weighted") else delta
    return np.linalg.norm(scaled, ord=p, axis=-1)


# Each loss: expression(x, t, xi) in CVXPY and values(x, t, points (..., 2)) in NumPy.
def _cvar(x, t, xi):
    return t + 4 * cp.pos(-(x @ xi) - t) - 0.5 * (x @ xi)


def _separate(x, t, xi):
    return cp.sum(cp.maximum(x - xi, 3 * (xi - x))) + cp.sum_squares(x)


LOSSES = {
    "affine": (
        lambda x, t, xi: x @ xi + 0.3 * cp.sum_squares(x) + t,
        lambda x, t, z: z @ x + 0.3 * x @ x + t,
    ),
    "cvar": (
        _cvar,
        lambda x, t, z: t + 4 * np.maximum(-(z @ x) - t, 0) - 0.5 * (z @ x),
    ),
    "separate": (
        _separate,
        lambda x, t, z: np.maximum(x - z, 3 * (z - x)).sum(axis=-1) + x @ x,
    ),
    "absolute": (
        lambda x, t, xi: 2 * cp.abs(x @ xi - t) + cp.norm(x, 1),
        lambda x, t, z: 2 * np.abs(z @ x - t) + np.abs(x).sum(),
    ),
    "certain piece": (
        lambda x, t, xi: cp.maximum(x @ xi, 0.2, t),
        lambda x, t, z: np.maximum(np.maximum(z @ x, 0.2), t),
    ),
    "products": (
        lambda x, t, xi: cp.pos(x @ xi - t) + cp.abs(xi[0] - xi[1]),
        lambda x, t, z: np.maximum(z @ x - t, 0) + np.abs(z[..., 0] - z[..., 1]),
    ),
    "square": (
        lambda x, t, xi: 0.5 * cp.square(t - x @ xi) + cp.sum_squares(x),
        lambda x, t, z: 0.5 * (t - z @ x) ** 2 + x @ x,
    ),
    "logistic": (
        lambda x, t, xi: cp.logistic(-(x @ xi) - t) + 0.1 * cp.norm(x, 2),
        lambda x, t, z: np.logaddexp(0, -(z @ x) - t) + 0.1 * np.linalg.norm(x),
    ),
    "huber": (
        lambda x, t, xi: cp.huber(x @ xi - t, 0.5),
        lambda x, t, z: np.where(
            np.abs(z @ x - t) <= 0.5, (z @ x - t) ** 2, np.abs(z @ x - t) - 0.25
        ),
    ),
}


@dataclass
class Case:
    problem: wdro.Problem
    model: Any
    loss: Any
    rows: np.ndarray
    x: np.ndarray
    t: float
    cost: str

    @property
    def flat(self) -> np.ndarray:
        """The decision (x, t) in the order of the problem's variables."""
        layout = self.model.feasible.layout
        values = {v: self.t if v.shape == () else self.x for v in layout.variables}
        return layout.join(values)

    def losses(self, points: np.ndarray) -> np.ndarray:
        return self.loss(self.x, self.t, points)

    def allowed_costs(self, points: np.ndarray) -> np.ndarray:
        """(N, M), infinite outside the support."""
        costs = cost_of(self.cost, points[None] - self.rows[:, None])
        return np.where(self.model.joint.contains(points)[None], costs, np.inf)


def case(loss: str, cost: str, support: str, radius: float, seed: int = 0) -> Case:
    rng = np.random.default_rng(seed)
    rows = rng.uniform(-1.0, 1.0, size=(SAMPLES, 2))
    xi = wdro.UncertainParameter(2, name="xi", samples=rows, support=SUPPORTS[support])
    x, t = cp.Variable(2, name="x"), cp.Variable(name="t")
    expression, values = LOSSES[loss]
    problem = wdro.Problem(
        cp.Minimize(expression(x, t, xi)),
        [cp.abs(x) <= 2, cp.abs(t) <= 2],
        ambiguity=wdro.WassersteinBall(radius, COSTS[cost]),
    )
    return Case(
        problem, problem._model, values, rows, rng.normal(size=2), float(rng.normal()), cost
    )
