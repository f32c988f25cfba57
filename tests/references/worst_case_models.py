"""Random models with a worst case, and their worst-case risk by a dual program of its own.

With pieces a_j + <b_j, zeta>, support {C zeta <= h}, price l and multipliers g >= 0,

    min l radius + sum_k p_k s_k,  s_k >= a_j + <b_j, xi_k> + <g_kj, h - C xi_k> + c*(b_j - C' g_kj)

where the conjugate c* of the cost is |u|^2 / (4 l) for a squared cost, and the condition
|u|_dual <= l for a norm (Mohajerin Esfahani and Kuhn, 2018, theorem 4.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

import wdro_model as wdro

LOSSES = ("affine", "maximum", "absolute", "cvar", "square")
COSTS = ("norm1", "norm2", "norminf", "squared", "mahalanobis")
SUPPORTS = ("everywhere", "nonnegative", "box", "polyhedron", "ball of rows")


@dataclass(frozen=True)
class RandomModel:
    """A problem with a fixed decision, and what an independent program needs to know of it."""

    words: str
    problem: Any
    parameter: Any
    x: Any
    decision: np.ndarray
    samples: np.ndarray
    shares: np.ndarray
    radius: float
    cost: str
    precision: np.ndarray
    """Of the Mahalanobis cost; the identity for the others."""
    rows: np.ndarray
    limits: np.ndarray
    constants: np.ndarray
    slopes: np.ndarray
    level: float | None
    """Of the CVaR of the largest piece; None for its mean, NaN for its mean square."""

    def contains(self, points: np.ndarray) -> bool:
        size = 1.0 + np.abs(self.limits).max(initial=0.0) + np.abs(points).max()
        return bool(np.all(points @ self.rows.T <= self.limits + 1e-8 * size))

    def transport(self, origins: np.ndarray, points: np.ndarray) -> np.ndarray:
        moves = points - origins
        if self.cost.startswith("norm"):
            return np.linalg.norm(moves, ord={"1": 1, "2": 2, "f": np.inf}[self.cost[-1]], axis=1)
        return np.einsum("ki,ij,kj->k", moves, self.precision, moves)

    def risk(self, points: np.ndarray, weights: np.ndarray) -> float:
        """The objective under a distribution, CVaR from its definition."""
        losses = (self.constants + points @ self.slopes.T).max(axis=1)
        if self.level is None:
            return float(weights @ losses)
        if np.isnan(self.level):
            return float(weights @ losses**2)
        tail = losses + (np.maximum(losses[None] - losses[:, None], 0) @ weights) / (1 - self.level)
        return float(tail.min())

    def worst_risk(self) -> float:
        """The worst-case risk from the dual."""
        if self.level is not None and np.isnan(self.level):  # (y - <x, xi>)^2 on R^d
            losses = (self.constants + self.samples @ self.slopes.T).max(axis=1)
            length = np.sqrt(self.slopes[0] @ np.linalg.solve(self.precision, self.slopes[0]))
            return float((np.sqrt(self.shares @ losses**2) + np.sqrt(self.radius) * length) ** 2)
        size = len(self.samples)
        price, tops, threshold = cp.Variable(nonneg=True), cp.Variable(size), cp.Variable()
        factor = 1.0 if self.level is None else 1.0 / (1.0 - self.level)
        limits: list[Any] = [threshold == 0] if self.level is None else [tops >= 0]
        root = np.linalg.inv(np.linalg.cholesky(self.precision))
        slack = np.maximum(self.limits - self.samples @ self.rows.T, 0.0)
        for constant, slope in zip(self.constants, self.slopes):
            left = np.tile(slope, (size, 1))
            value = constant + self.samples @ slope - threshold
            if len(self.limits):
                multipliers = cp.Variable(slack.shape, nonneg=True)
                value = value + cp.sum(cp.multiply(slack, multipliers), axis=1)
                left = left - multipliers @ self.rows
            for k in range(size):
                own = left[k]
                if self.cost.startswith("norm"):
                    dual = {"1": "inf", "2": 2, "f": 1}[self.cost[-1]]
                    limits += [cp.norm(own, dual) <= price, value[k] <= tops[k]]
                else:
                    limits.append(value[k] + cp.quad_over_lin(root @ own, 4 * price) <= tops[k])
        aim = threshold + factor * (price * self.radius + self.shares @ tops)
        program = cp.Problem(cp.Minimize(aim), limits)
        program.solve(solver="CLARABEL")
        return float(program.value)


def random_model(seed: int) -> RandomModel:
    """The model that belongs to a seed: every loss, cost and support comes up in turn."""
    rng = np.random.default_rng(seed)
    loss, cost, support = (
        names[seed // step % 5] for names, step in zip((LOSSES, COSTS, SUPPORTS), (1, 5, 25))
    )
    support = SUPPORTS[rng.integers(5)] if seed >= 125 else support
    if loss == "square" and (support != "everywhere" or cost[:4] == "norm"):
        loss = "maximum"
    size = int(rng.choice([1, 1, 2, 3, 6]))
    dimension = int(rng.integers(1, 6))
    radius = float(rng.choice([1e-3, 0.1, 1.0, 30.0]))
    samples = rng.normal(size=(size, dimension))
    rows, limits = np.zeros((0, dimension)), np.zeros(0)
    eye = np.eye(dimension)
    if support == "everywhere":
        domain: Any = wdro.supports.Everywhere()
    elif support == "nonnegative":
        samples = np.abs(samples)
        domain, rows, limits = wdro.supports.Nonnegative(), -eye, np.zeros(dimension)
    elif support == "box":
        low, high = samples.min(axis=0) - rng.uniform(0, 1), samples.max(axis=0) + 0.5
        domain = wdro.supports.Box(low, high)
        rows, limits = np.vstack([-eye, eye]), np.concatenate([-low, high])
    else:
        count = 2 if support == "polyhedron" else 2 * dimension + 2
        rows = rng.normal(size=(count, dimension))
        rows = np.vstack([rows, -rows[:1]]) if support == "polyhedron" else rows
        room = rng.choice([0.0, 0.05, 1.0], size=len(rows)) + 1e-12
        limits = (samples @ rows.T).max(axis=0) + room
        domain = wdro.supports.Polyhedron(rows, limits)
    root = eye + 0.3 * rng.normal(size=(dimension, dimension))
    precision = root @ root.T if cost == "mahalanobis" else eye
    ground = {
        "norm1": lambda: wdro.costs.Norm(1),
        "norm2": lambda: wdro.costs.Norm(2),
        "norminf": lambda: wdro.costs.Norm(np.inf),
        "squared": wdro.costs.SquaredEuclidean,
        "mahalanobis": lambda: wdro.costs.Mahalanobis(precision=precision),
    }[cost]()
    shares = np.full(size, 1.0 / size)
    if seed % 3 == 0 and size > 1:
        shares = rng.dirichlet(np.ones(size))
    z = wdro.UncertainParameter(
        dimension,
        "z",
        samples=samples,
        support=domain,
        probabilities=shares if seed % 3 == 0 else None,
    )
    pieces = {"affine": 1, "square": 1, "maximum": int(rng.integers(2, 4)), "absolute": 2}
    matrices = rng.normal(size=(pieces.get(loss, 1), dimension, dimension))
    constants = rng.normal(size=pieces.get(loss, 1))
    x = cp.Variable(dimension, "x")
    decision = rng.normal(size=dimension)
    if loss == "absolute":
        matrices[1], constants[1] = -matrices[0], -constants[0]
    terms = [constant + z @ (matrix @ x) for matrix, constant in zip(matrices, constants)]
    level = None
    expression = terms[0] if len(terms) == 1 else cp.maximum(*terms)
    if loss == "absolute":
        expression = cp.abs(terms[0])
    if loss == "cvar":
        level = float(rng.choice([0.3, 0.9]))
        expression = wdro.cvar(terms[0], level)
    if loss == "square":
        level, expression = np.nan, cp.square(terms[0])
    problem = wdro.Problem(
        cp.Minimize(expression), [cp.abs(x) <= 1], wdro.WassersteinBall(radius, ground)
    )
    if seed % 4 == 0:
        problem.solve("exact")
        decision = np.array(x.value)
    words = f"{seed}: {loss}, {cost}, {support}, N = {size}, d = {dimension}, radius {radius:g}"
    return RandomModel(
        words,
        problem,
        z,
        x,
        decision,
        samples,
        shares,
        radius,
        cost,
        precision,
        rows,
        limits,
        constants,
        np.array([matrix @ decision for matrix in matrices]),
        level,
    )
