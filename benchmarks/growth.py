"""Where the time of a problem goes, and how it grows with the size.

Phases: declaring the model, compiling it (the first solve less a solve of what is compiled),
solving it for another radius, judging the decision on a thousand scenarios. Growth: the whole of it
over sizes, beside the program written by hand in CVXPY where there is one.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import cvxpy as cp
import networkx as nx
import numpy as np
from figures import amount, medians

import wdro_model as wdro

Build = Callable[[int], wdro.Problem]


@dataclass(frozen=True)
class Phases:
    """Seconds of the parts of one problem."""

    what: str
    declare: float
    compile: float
    solve: float
    judge: float

    def row(self) -> str:
        parts = (self.declare, self.compile, self.solve, self.judge)
        cells = (amount(part, "s") if part > 0 else "-" for part in parts)
        return f"| {self.what} | " + " | ".join(cells) + " |"


PHASES_HEAD = "| problem | declare | compile | solve | judge |\n|---|---|---|---|---|"


@dataclass(frozen=True)
class Growth:
    """Seconds over sizes, of ours and of another."""

    what: str
    beside: str
    sizes: tuple[int, ...]
    ours: tuple[float, ...]
    others: tuple[float | None, ...]

    def rows(self) -> str:
        """A table of its own: a column for each size."""
        head = f"| {self.what} | " + " | ".join(f"{size:,}" for size in self.sizes) + " |"
        lines = [head, "|---" * (1 + len(self.sizes)) + "|"]
        pairs = [("here", self.ours)] + ([(self.beside, self.others)] if self.beside else [])
        for name, seconds in pairs:
            cells = ("-" if s is None else amount(s, "s") for s in seconds)
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        return "\n".join(lines)


# ------------------------------------------------------------------ problems
def portfolio(size: int, cost: Any = None) -> wdro.Problem:
    """Worst-case CVaR of ten assets."""
    rng = np.random.default_rng(0)
    data = rng.normal(0, 0.02, (size, 1)) + rng.normal(0.03, 0.05, (size, 10))
    x = cp.Variable(10, nonneg=True)
    returns = wdro.UncertainParameter(10, samples=data)
    ball = wdro.WassersteinBall(0.01, cost or wdro.costs.Norm(1))
    return wdro.Problem(cp.Minimize(wdro.cvar(-returns @ x, 0.9)), [cp.sum(x) == 1], ball)


def regression(size: int) -> wdro.Problem:
    """Logistic regression with twenty features whose labels are held."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(size, 20))
    y = np.where(x @ np.ones(20) + rng.logistic(size=size) > 0, 1.0, -1.0)
    w = cp.Variable(20)
    features = wdro.UncertainParameter(20, samples=x)
    label = wdro.UncertainParameter(samples=y)
    cost = wdro.costs.Norm(2, weights={features: 1.0, label: np.inf})
    loss = cp.logistic(-label * (features @ w))
    return wdro.Problem(cp.Minimize(loss), [], wdro.WassersteinBall(0.05, cost))


def smoothed(size: int) -> wdro.Problem:
    """Logistic regression in a box, rows label times features."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(size, 20))
    rows *= np.where(rows @ np.ones(20) + rng.logistic(size=size) > 0, 1.0, -1.0)[:, None]
    w, xi = cp.Variable(20), wdro.UncertainParameter(20, samples=rows)
    ball = wdro.WassersteinBall(0.01)
    return wdro.Problem(cp.Minimize(cp.logistic(-(xi @ w))), [w >= -5, w <= 5], ball)


def tree(edges: int) -> wdro.Problem:
    """Worst-case costs of a spanning tree with ten edges a node, standardised."""
    graph = nx.gnm_random_graph(edges // 10 + 10, edges, seed=0)
    rng = np.random.default_rng(0)
    samples = rng.uniform(1, 2, edges) * rng.lognormal(0, 0.3, size=(50, edges))
    x, costs = cp.Variable(edges), wdro.UncertainParameter(edges, samples=samples)
    cost = wdro.costs.SquaredEuclidean(weights="standardize")
    members = [wdro.In(x, wdro.sets.SpanningTree(graph))]
    return wdro.Problem(cp.Minimize(costs @ x), members, wdro.WassersteinBall(10.0, cost))


def roads(size: int) -> wdro.Problem:
    """Robust Sioux Falls from `size` scenarios, in standard deviations."""
    training = wdro.datasets.training_scenarios(wdro.datasets.sioux_falls())
    parameters = training.parameters(size, seed=0)
    flows = wdro.sets.TrafficFlows(training.network)
    x = cp.Variable(flows.dimension)
    loss = wdro.traffic.beckmann(x, training.network.capacity, *parameters) / 1e5
    ball = wdro.WassersteinBall(2.0, wdro.costs.SquaredEuclidean("standardize"))
    return wdro.Problem(cp.Minimize(loss), [wdro.In(x, flows)], ball)


# ------------------------------------------------------------------ by hand
def portfolio_by_hand(size: int) -> None:
    rng = np.random.default_rng(0)
    data = rng.normal(0, 0.02, (size, 1)) + rng.normal(0.03, 0.05, (size, 10))
    x, level = cp.Variable(10, nonneg=True), cp.Variable()
    tail = level + 10 * cp.sum(cp.pos(-data @ x - level)) / size
    worst = tail + 0.01 * 10 * cp.norm(x, "inf")
    cp.Problem(cp.Minimize(worst), [cp.sum(x) == 1]).solve(solver=cp.CLARABEL)


def regression_by_hand(size: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(size, 20))
    y = np.where(x @ np.ones(20) + rng.logistic(size=size) > 0, 1.0, -1.0)
    w = cp.Variable(20)
    mean = cp.sum(cp.logistic(cp.multiply(-y, x @ w))) / size
    cp.Problem(cp.Minimize(mean + 0.05 * cp.norm(w, 2))).solve(solver=cp.CLARABEL)


# ------------------------------------------------------------------ measuring
def phases() -> Iterator[Phases]:
    """The parts of five problems."""
    cases: tuple[tuple[str, Build, int, str], ...] = (
        ("CVaR portfolio, Norm(1), N = 100", portfolio, 100, "exact"),
        ("CVaR portfolio, Norm(1), N = 3,000", portfolio, 3000, "exact"),
        ("logistic, labels held, N = 10,000", regression, 10_000, "exact"),
        ("smoothed logistic, N = 10,000", smoothed, 10_000, "smoothed"),
        ("tree, 10,000 edges", tree, 10_000, "exact"),
        ("robust Sioux Falls, N = 100", roads, 100, "smoothed"),
    )
    for what, build, size, method in cases:
        yield _phases(what, build, size, method)


def _phases(what: str, build: Build, size: int, method: str, rounds: int = 3) -> Phases:
    build(10 if build is not tree else 100).solve(method)  # what is imported, compiled by Numba
    spent: list[tuple[float, ...]] = []
    for _ in range(rounds):
        marks = [time.perf_counter()]
        problem = build(size)
        marks.append(time.perf_counter())
        problem.solve(method)
        marks.append(time.perf_counter())
        problem.with_radius(1.05 * problem.radius).solve(method)  # a linear program moves to HiGHS
        marks.append(time.perf_counter())
        problem.with_radius(1.1 * problem.radius).solve(method)
        marks.append(time.perf_counter())
        rows = np.arange(1000)
        test = {p: p.samples[rows % len(p.samples)] for p in problem.uncertain_parameters()}
        marks.append(time.perf_counter())
        problem.evaluate(test)
        marks.append(time.perf_counter())
        declare, first, _, again, _, judge = np.diff(marks)
        spent.append((declare, max(first - again, 0.0), again, judge))
    return Phases(what, *(float(m) for m in np.median(spent, axis=0)))


def growth() -> Iterator[Growth]:
    """Whole problems over sizes."""
    decades = (100, 1000, 10_000, 100_000)
    yield _growth("exact CVaR portfolio, N", portfolio, decades, "exact", portfolio_by_hand, 10_000)
    yield _growth(
        "exact logistic, labels held, N", regression, decades, "exact", regression_by_hand, 10_000
    )
    yield _growth("smoothed logistic, N", smoothed, decades, "smoothed")
    yield _growth("tree, edges", tree, (100, 1000, 10_000, 100_000), "exact")
    yield _growth("robust Sioux Falls, N", roads, (10, 30, 100, 300), "smoothed")


def _growth(
    what: str,
    build: Build,
    sizes: tuple[int, ...],
    method: str,
    by_hand: Callable[[int], None] | None = None,
    most: int = 0,
) -> Growth:
    """Declared and solved; by hand up to `most`."""

    def ours(size: int) -> None:
        build(size).solve(method)

    build(sizes[0]).solve(method)
    rounds = [max(1, min(9, 10_000 // size)) for size in sizes]
    here = [medians(partial(ours, s), rounds=r, warm=0)[0] for s, r in zip(sizes, rounds)]
    others: list[float | None] = [None] * len(sizes)
    if by_hand is not None:
        by_hand(sizes[0])
        for k, (size, count) in enumerate(zip(sizes, rounds)):
            if size <= most:
                others[k] = medians(partial(by_hand, size), rounds=count, warm=0)[0]
    beside = "" if by_hand is None else "CVXPY by hand"
    return Growth(what, beside, sizes, tuple(here), tuple(others))
