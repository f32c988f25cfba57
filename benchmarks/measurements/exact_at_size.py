"""Exact counterparts of losses with a few pieces, at many samples: aggregation beside the cones.

    python benchmarks exact_at_size [--quick] [--only NAME] [--alone]

Each case runs in a process of its own: seconds by the clock and of the processor, the relative gap,
by how much the process outgrew its data; and, where the program over all samples is not too large,
the seconds of the processor and the value of the conic solver beside them. `--alone` leaves the
cones out. One BLAS thread.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import multiprocessing
import resource
import time
import warnings
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np

import wdro_model as wdro

COSTS: dict[str, Callable[..., Any]] = {
    "l2": lambda **weights: wdro.costs.Norm(2, **weights),
    "l-inf": lambda **weights: wdro.costs.Norm(np.inf, **weights),
    "squared": lambda **weights: wdro.costs.SquaredEuclidean(**weights),
}
LARGEST = 2_000_000
"""Numbers of data up to which the cones are tried."""


def regression(size: int, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Features and noisy linear targets."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal((size, features))
    truth = rng.standard_normal(features) / np.sqrt(features)
    return data, data @ truth + 0.5 * rng.standard_normal(size)


def absolute(size: int, features: int, cost: str) -> wdro.Problem:
    """Least absolute deviations, labels moving with the features."""
    data, targets = regression(size, features)
    x = cp.Variable(features)
    xi, y = (
        wdro.UncertainParameter(features, samples=data),
        wdro.UncertainParameter(samples=targets),
    )
    ball = wdro.WassersteinBall(0.01, COSTS[cost]())
    return wdro.Problem(cp.Minimize(cp.abs(y - xi @ x)), [], ambiguity=ball)


def quantile(size: int, features: int, cost: str) -> wdro.Problem:
    """The quantile at 90 % in a ball."""
    data, targets = regression(size, features)
    x = cp.Variable(features)
    xi, y = (
        wdro.UncertainParameter(features, samples=data),
        wdro.UncertainParameter(samples=targets),
    )
    error = y - xi @ x
    ball = wdro.WassersteinBall(0.01, COSTS[cost]())
    loss = cp.maximum(0.9 * error, -0.1 * error)
    return wdro.Problem(cp.Minimize(loss), [cp.norm(x) <= 1], ambiguity=ball)


def hinge(size: int, features: int, cost: str) -> wdro.Problem:
    """A support vector machine whose labels are held."""
    data, targets = regression(size, features)
    x = cp.Variable(features)
    xi = wdro.UncertainParameter(features, samples=data)
    y = wdro.UncertainParameter(samples=np.where(targets > 0, 1.0, -1.0))
    ball = wdro.WassersteinBall(0.01, COSTS[cost](weights={xi: 1.0, y: np.inf}))
    return wdro.Problem(cp.Minimize(cp.pos(1 - y * (xi @ x))), [], ambiguity=ball)


def portfolio(size: int, assets: int, cost: str) -> wdro.Problem:
    """CVaR at 5 % on the simplex."""
    rng = np.random.default_rng(0)
    data = rng.normal(0.0, 0.02, (size, 1)) + rng.normal(0.001, 0.03, (size, assets))
    x, level = cp.Variable(assets, nonneg=True), cp.Variable()
    returns = wdro.UncertainParameter(assets, samples=data)
    radius = 1e-4 if cost == "squared" else 0.01
    ball = wdro.WassersteinBall(radius, COSTS[cost]())
    loss = level + 20 * cp.pos(-(returns @ x) - level)
    return wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], ambiguity=ball)


def newsvendor(size: int, products: int, cost: str) -> wdro.Problem:
    """Orders for several products under one budget."""
    demand = np.exp(0.5 * np.random.default_rng(0).standard_normal((size, products)))
    x = cp.Variable(products, nonneg=True)
    xi = wdro.UncertainParameter(products, samples=demand)
    ball = wdro.WassersteinBall(0.01, COSTS[cost]())
    loss = cp.sum(x - 3 * cp.minimum(x, xi))
    return wdro.Problem(cp.Minimize(loss), [cp.sum(x) <= products], ambiguity=ball)


CASES: list[tuple[Callable[..., wdro.Problem], int, int, str]] = [
    (absolute, 10_000, 10, "l2"),
    (absolute, 10_000, 100, "l2"),
    (absolute, 100_000, 20, "l2"),
    (absolute, 100_000, 20, "squared"),
    (absolute, 1_000_000, 10, "l2"),
    (quantile, 100_000, 20, "l2"),
    (hinge, 10_000, 100, "l-inf"),
    (hinge, 100_000, 20, "l2"),
    (hinge, 100_000, 20, "squared"),
    (hinge, 1_000_000, 10, "l2"),
    (portfolio, 100_000, 20, "l2"),
    (portfolio, 100_000, 20, "squared"),
    (newsvendor, 100_000, 10, "l2"),
]


def peak() -> float:
    """The most memory that the process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def solved(problem: wdro.Problem, **options: Any) -> tuple[float, float]:
    """Seconds by the clock and of the processor."""
    began, worked = time.perf_counter(), time.process_time()
    problem.solve(method="exact", progress=False, **options)
    return time.perf_counter() - began, time.process_time() - worked


def measure(number: int, quick: bool, alone: bool) -> None:
    """One case, its line printed."""
    warnings.simplefilter("ignore")
    build, size, width, cost = CASES[number]
    size = size // 10 if quick else size
    problem = build(size, width, cost)
    before = peak()
    seconds, busy = solved(problem, solver=wdro.solvers.Aggregation())
    solution, more = problem.solution, peak() - before
    assert solution is not None
    line = (
        f"{build.__name__:<11}{cost:<8}{size:>10,} x {width:<4}{seconds:8.2f}{busy:8.2f}"
        f"{solution.relative_gap:10.1e}{more:8.0f}"
    )
    if not alone and size * width <= LARGEST:
        cones = solved(problem, solver="CLARABEL")[1]
        assert problem.value is not None
        far = abs(problem.value - solution.value) / abs(problem.value)
        line += f"{cones:10.2f}{cones / busy:7.1f} x{far:10.1e}"
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--alone", action="store_true")
    arguments = parser.parse_args()
    print(
        f"{'':<36}{'seconds':>8}{'busy':>8}{'gap':>10}{'MB':>8}{'cones':>10}{'ratio':>9}"
        f"{'apart':>10}"
    )
    start = multiprocessing.get_context("spawn")
    for number, case in enumerate(CASES):
        if arguments.only in case[0].__name__:
            options = (number, arguments.quick, arguments.alone)
            process = start.Process(target=measure, args=options)
            process.start()
            process.join()


if __name__ == "__main__":
    main()
