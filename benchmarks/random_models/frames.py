"""Data with labels in any order: frames, series of weights and bounds, covariances, edges."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import networkx as nx
import numpy as np
import pandas as pd

import wdro_model as wdro
from random_models.choices import edge_vectors
from random_models.references import (
    Ball,
    Cost,
    affine,
    least_worst_case,
    maximum,
)
from random_models.trial import Answer, NoReferenceError, Trial, read_answer

RELATIVE = 1e-5


def draw_frames(rng: np.random.Generator) -> Trial:
    """A model whose labelled data is permuted; labels say what belongs to what."""
    kind = str(
        rng.choice(
            [
                "weights",
                "covariance",
                "bounds",
                "scenarios",
                "rows",
                "edges",
                "probabilities",
                "items",
            ]
        )
    )
    if kind in ("edges", "items"):
        return draw_named_choice(rng, kind)
    d, N = int(rng.integers(2, 6)), int(rng.integers(4, 12))
    names = [f"asset {k}" for k in range(d)]
    samples = np.abs(rng.normal(1.0, 0.6, size=(N, d))) + 0.05
    order = rng.permutation(d)
    shuffled = [names[k] for k in order]
    weights = rng.uniform(0.2, 5.0, size=d)
    radius = float(10.0 ** rng.uniform(-2, 0))
    frame = pd.DataFrame(samples, columns=names)
    x = cp.Variable(d, nonneg=True, name="x")
    slope = rng.normal(size=d)
    pieces = maximum(
        affine(0.0, np.zeros(d), np.zeros(d), np.eye(d)),
        affine(0.0, np.zeros(d), slope, np.zeros((d, d))),
    )
    others = pd.DataFrame(rng.normal(size=(N, d)), columns=names)
    row_order = rng.permutation(N)
    low, high = samples.min(axis=0) - rng.random(d), samples.max(axis=0) + rng.random(d)
    C = h = None
    p = np.full(N, 1.0 / N)
    cost = Cost(p=2, weights=np.ones(d))
    judged_samples = samples
    if kind == "weights":
        cost = Cost(p=1, weights=weights)
    elif kind == "covariance":
        root = rng.normal(size=(d, d))
        cost = Cost(covariance=root @ root.T + 0.2 * np.eye(d))
    elif kind == "bounds":
        C = np.vstack([np.eye(d), -np.eye(d)])
        h = np.concatenate([high, -low])
    elif kind == "probabilities":
        p = rng.dirichlet(np.ones(N))
    elif kind == "scenarios":
        judged_samples = samples + 0.3 * rng.normal(size=samples.shape)
    ball = Ball(judged_samples, p, cost, radius, C, h)

    def write() -> Any:
        support: Any = wdro.supports.Everywhere()
        if kind == "bounds":
            lower = pd.Series(low, index=names)[shuffled]
            upper = pd.Series(high, index=names)[shuffled]
            support = wdro.supports.Box(lower, upper)
        probabilities: Any = None
        if kind == "probabilities":
            probabilities = pd.Series(p, index=frame.index)[row_order]
        z = wdro.UncertainParameter(
            name="z", samples=frame, support=support, probabilities=probabilities
        )
        ground: Any = wdro.costs.Norm(2)
        if kind == "weights":
            ground = wdro.costs.Norm(1, weights=pd.Series(weights, index=names)[shuffled])
        elif kind == "covariance":
            table = pd.DataFrame(cost.covariance, index=names, columns=names)
            ground = wdro.costs.Mahalanobis(covariance=table.loc[shuffled, shuffled])
        loss: Any = cp.maximum(z @ x, z @ slope)
        if kind == "rows":
            # Two parameters of the same scenarios, the second with its rows in another order.
            w = wdro.UncertainParameter(name="w", samples=others.iloc[row_order])
            ground = wdro.costs.Norm(2, weights={z: 1.0, w: np.inf})
            loss = cp.maximum(z @ x, w @ slope)
        problem = wdro.Problem(
            cp.Minimize(loss), [cp.sum(x) == 1], wdro.WassersteinBall(radius, ground)
        )
        if kind == "scenarios":
            moved = pd.DataFrame(judged_samples, columns=names)[shuffled]
            problem = problem.with_samples(moved)
        return problem

    def solve(limit: float) -> Answer:
        problem = write()
        problem.solve(time_limit=limit)
        losses = problem.losses({"z": frame[shuffled]}) if kind == "scenarios" else None
        return read_answer(problem, x.value, losses=losses)

    def judge(answer: Answer) -> list[str]:
        if kind == "rows":
            u = cp.Variable(d, nonneg=True)
            inside = cp.maximum(samples @ u, others.to_numpy() @ slope)
            goal = cp.sum(inside) / N + radius * cp.norm(u, 2)
            program = cp.Problem(cp.Minimize(goal), [cp.sum(u) == 1])
            best = program.solve(solver="CLARABEL")
            if abs(answer.value - best) <= RELATIVE * max(1.0, abs(best)):
                return []
            return [f"value {answer.value:.8g}, with rows matched {best:.8g}"]
        found = least_worst_case(pieces, ball, lambda u: [cp.sum(u) == 1, u >= 0])
        if found is None:
            raise NoReferenceError("infeasible")
        wrong = []
        if abs(answer.value - found[0]) > RELATIVE * max(1.0, abs(found[0])):
            wrong.append(f"value {answer.value:.8g}, with labels matched {found[0]:.8g}")
        if answer.more.get("losses") is not None:
            own = pieces.values(answer.decision, samples)
            if np.abs(answer.more["losses"] - own).max() > 1e-8:
                wrong.append("losses of a permuted frame are others")
        return wrong

    return Trial(f"{kind} permuted, d={d} N={N} radius {radius:.3g}", solve, judge)


def draw_named_choice(rng: np.random.Generator, kind: str) -> Trial:
    """Columns that are called like the edges or items of a set, in another order."""
    N = int(rng.integers(2, 8))
    if kind == "edges":
        graph = nx.DiGraph([("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("b", "c"), ("a", "d")])
        names: list[Any] = list(graph.edges)
        paths = [list(nx.utils.pairwise(p)) for p in nx.all_simple_paths(graph, "a", "d")]
        points = edge_vectors(graph, paths)
        chosen: Any = wdro.sets.ShortestPath(graph, "a", "d")
    else:
        names = [f"item {k}" for k in range(6)]
        chosen = wdro.sets.Subsets(names, 2)
        points = np.array(
            [[float(k in (i, j)) for k in range(6)] for i in range(6) for j in range(i)]
        )
    m = len(names)
    samples = rng.uniform(1.0, 20.0, size=(N, m))
    order = rng.permutation(m)
    frame = pd.DataFrame(samples, columns=pd.Index(names, tupleize_cols=False))
    frame = frame.iloc[:, order]
    x = cp.Variable(m, boolean=True, name="x")
    radius = float(10.0 ** rng.uniform(-2, 0))

    def solve(limit: float) -> Answer:
        z = wdro.UncertainParameter(name="z", samples=frame)
        problem = wdro.Problem(
            cp.Minimize(z @ x), [wdro.In(x, chosen)], wdro.WassersteinBall(radius)
        )
        problem.solve(time_limit=limit)
        return read_answer(problem, x.value)

    def judge(answer: Answer) -> list[str]:
        def risks(vectors: np.ndarray) -> np.ndarray:
            return vectors @ samples.mean(axis=0) + np.sqrt(radius * vectors.sum(axis=1))

        best = float(risks(points).min())
        wrong = []
        if abs(answer.value - best) > 1e-4 * best + (answer.gap or 0.0):
            wrong.append(f"value {answer.value:.8g}, with names matched {best:.8g}")
        return wrong

    return Trial(f"{kind} as columns, permuted, N={N} radius {radius:.3g}", solve, judge)
