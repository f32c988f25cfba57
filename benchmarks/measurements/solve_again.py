"""Solving again, and exact fits: another radius, another parameter, a path of radii, many samples.

    python benchmarks solve_again [--quick]

Medians after a warm-up, one BLAS thread; each line is a ratio within one run:

- another radius and another parameter of a CVaR portfolio (N = 100), beside CVXPY's own re-solve of
  the program written by hand with parameters;
- a path of 20 radii (the portfolio of Mohajerin Esfahani and Kuhn, m = 10, l1), beside a loop in
  highspy that changes the costs of one loaded model and goes on from its basis: both once loaded or
  compiled, and both from nothing;
- other data of the same size (a window that moves on by a day, folds of a cross-validation), beside
  CVXPY's re-solve of the program written by hand with the data as parameters;
- small exact problems (N = 512, d = 4), declared and solved, beside the programs written by hand;
- logistic regression with fixed labels (the instances of Li, Huang and So), beside its cones;
- smoothed logistic regression on a ball and without constraints, to a relative gap of 1e-6.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import cvxpy as cp
import highspy
import numpy as np
from figures import busy, medians

import wdro_model as wdro


def line(name: str, ours: float, other: float, what: str) -> None:
    times = f"{1e3 * ours:10.2f} ms{1e3 * other:10.2f} ms{ours / other:8.2f}x"
    print(f"{name:<46}{times}  {what}", flush=True)


# ------------------------------------------------------------------ again
def portfolio(size: int) -> tuple[np.ndarray, wdro.Problem, cp.Parameter]:
    """Mean and CVaR at 80% of a portfolio of ten assets."""
    rng, m = np.random.default_rng(0), 10
    steps = np.arange(1, m + 1)
    data = rng.normal(0, 0.02, (size, 1)) + rng.normal(0.03 * steps, 0.025 * steps, (size, m))
    x, level = cp.Variable(m, nonneg=True), cp.Variable()
    most = cp.Parameter(nonneg=True, value=0.6)
    xi = wdro.UncertainParameter(m, samples=data)
    loss = -xi @ x + 10 * (level + cp.pos(-xi @ x - level) / 0.2)
    ball = wdro.WassersteinBall(0.01, wdro.costs.Norm(1))
    return data, wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1, x <= most], ball), most


def by_hand(data: np.ndarray) -> tuple[cp.Problem, cp.Parameter, cp.Parameter]:
    """The same with parameters for the radius and the largest share."""
    size, m = data.shape
    x, level = cp.Variable(m, nonneg=True), cp.Variable()
    s, price = cp.Variable(size), cp.Variable()
    radius, most = cp.Parameter(nonneg=True, value=0.01), cp.Parameter(nonneg=True, value=0.6)
    constraints = [cp.sum(x) == 1, x <= most]
    for slope, constant in ((-1.0, 10.0), (-51.0, -40.0)):
        constraints += [slope * (data @ x) + constant * level <= s]
        constraints += [abs(slope) * cp.norm(x, "inf") <= price]
    return cp.Problem(cp.Minimize(radius * price + cp.sum(s) / size), constraints), radius, most


def repeated(rounds: int) -> Iterator[tuple[str, float, float, float | None]]:
    """Another radius, parameter, day: name, seconds here and of CVXPY's re-solve, the aim."""
    data, problem, most = portfolio(100)
    problem.solve()
    hand, radius, share = by_hand(data)
    radii = iter(np.tile(np.geomspace(1e-3, 1e-1, 20), 100))
    shares = iter(np.tile(np.linspace(0.4, 0.8, 20), 100))

    def set_by_hand(parameter: cp.Parameter, values: Any) -> None:
        parameter.value = next(values)
        hand.solve(solver=cp.CLARABEL)

    def set_here() -> None:
        most.value = next(shares)
        problem.solve()

    here = partial(next, radii)
    times = medians(
        lambda: problem.with_radius(here()).solve(),
        lambda: set_by_hand(radius, radii),
        rounds=rounds,
    )
    yield "another radius, CVaR portfolio, N = 100", *times, 2.0
    times = medians(set_here, lambda: set_by_hand(share, shares), rounds=rounds)
    yield "another parameter, CVaR portfolio, N = 100", *times, 2.0
    for size in (250, 1000):
        yield from other_data(size, rounds // 4 + 1)
    yield folds(200, rounds // 8 + 1)


# ------------------------------------------------------------------ paths
@dataclass(frozen=True)
class PathTimes:
    """Seconds of a path of 20 radii."""

    compiled: float
    """Of a problem that has been solved before."""
    declared: float
    """Of one that has to be declared and compiled."""
    highspy: float
    """Of a loop that changes the costs of a loaded model and goes on from its basis."""
    built: float
    """Of that loop and the loading of the model."""
    error: float
    """By how much the values differ at most."""


def path_times(size: int, rounds: int) -> PathTimes:
    """A path here, beside highspy's loop."""
    hand, radius, _ = by_hand(portfolio(size)[0])
    radii = np.geomspace(1e-3, 1e-1, 20)
    costs = []
    for value in radii:
        radius.value = value
        costs.append(hand.get_problem_data(cp.HIGHS)[0]["c"])
    data = hand.get_problem_data(cp.HIGHS)[0]
    model = loaded(data)
    columns = np.arange(len(costs[0]), dtype=np.int32)

    def loop(model: Any = model) -> list[float]:
        model.clearSolver()
        values = []
        for cost in costs:
            model.changeColsCost(len(cost), columns, cost)
            model.run()
            values.append(model.getInfo().objective_function_value)
        return values

    problem = portfolio(size)[1]
    found = problem.path(radii, progress=False).values
    times = medians(
        lambda: problem.path(radii, progress=False),
        lambda: portfolio(size)[1].path(radii, progress=False),
        loop,
        lambda: loop(loaded(data)),
        rounds=rounds,
    )
    return PathTimes(*times, error=float(np.abs(found - loop()).max()))


# ------------------------------------------------------------------ other data
def other_data(size: int, days: int) -> Iterator[tuple[str, float, float, None]]:
    """A window of the last `size` days that moves on day by day; linear, and with cones."""
    rng = np.random.default_rng(1)
    history = rng.normal(0.05, 0.1, (size + days + 2, 10))
    for name, cost, norm in (("l1", wdro.costs.Norm(1), "inf"), ("l2", wdro.costs.Norm(2), 2)):
        x, level = cp.Variable(10, nonneg=True), cp.Variable()
        xi = wdro.UncertainParameter(10, samples=history[:size])
        loss = level + 10 * cp.pos(-xi @ x - level)
        problem = wdro.Problem(
            cp.Minimize(loss), [cp.sum(x) == 1], wdro.WassersteinBall(0.01, cost)
        )
        problem.solve()
        y, t = cp.Variable(10, nonneg=True), cp.Variable()
        rows = cp.Parameter((size, 10), value=history[:size])
        worst = t + 10 * cp.sum(cp.pos(-rows @ y - t)) / size + 0.1 * cp.norm(y, norm)
        hand = cp.Problem(cp.Minimize(worst), [cp.sum(y) == 1])
        today, tomorrow = iter(range(1, days + 2)), iter(range(1, days + 2))

        def ours(problem: wdro.Problem = problem, today: Any = today) -> None:
            k = next(today)
            problem.with_samples(history[k : k + size]).solve()

        def other(rows: Any = rows, hand: Any = hand, tomorrow: Any = tomorrow) -> None:
            k = next(tomorrow)
            rows.value = history[k : k + size]
            hand.solve(solver=cp.CLARABEL)

        problem.with_samples(history[1 : 1 + size]).solve()  # from here on it has parameters
        times = medians(ours, other, rounds=days)
        yield f"another day of data, CVaR, {name}, N = {size}", *times, None


def folds(size: int, rounds: int) -> tuple[str, float, float, None]:
    """Five folds and five radii, and a last fit at the chosen one."""
    rng = np.random.default_rng(2)
    data = rng.normal(0.05, 0.1, (size, 10))
    radii = [0.001, 0.003, 0.01, 0.03, 0.1]
    x, level = cp.Variable(10, nonneg=True), cp.Variable()
    xi = wdro.UncertainParameter(10, samples=data)
    loss = level + 10 * cp.pos(-xi @ x - level)
    ball = wdro.WassersteinBall(0.01, wdro.costs.Norm(1))
    problem = wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], ball)
    y, t, radius = cp.Variable(10, nonneg=True), cp.Variable(), cp.Parameter(nonneg=True)
    some = size - size // 5
    rows = cp.Parameter((some, 10))
    worst = t + 10 * cp.sum(cp.pos(-rows @ y - t)) / some + 10 * radius * cp.norm(y, "inf")
    hand = cp.Problem(cp.Minimize(worst), [cp.sum(y) == 1])
    parts = np.array_split(rng.permutation(size), 5)

    def by_hand() -> None:
        for part in parts:
            rows.value = np.delete(data, part, axis=0)
            for radius.value in radii:
                hand.solve(solver=cp.CLARABEL)

    def ours() -> None:
        wdro.select_radius(problem, radii, folds=5, progress=False)

    times = medians(ours, by_hand, rounds=rounds)
    return f"5 folds x 5 radii, CVaR, N = {size}", *times, None


def loaded(data: dict[str, Any]) -> Any:
    """A HiGHS model of what CVXPY gives it."""
    matrix, upper, dims = data["A"].tocsc(), data["b"], data["dims"]
    lp = highspy.HighsLp()
    lp.num_row_, lp.num_col_ = matrix.shape
    lp.col_cost_ = data["c"]
    free = np.full(matrix.shape[1], np.inf)
    lower_bounds, upper_bounds = data["lower_bounds"], data["upper_bounds"]
    lp.col_lower_ = -free if lower_bounds is None else lower_bounds
    lp.col_upper_ = free if upper_bounds is None else upper_bounds
    lp.row_lower_ = np.where(np.arange(len(upper)) < dims.zero, upper, -np.inf)
    lp.row_upper_ = upper
    lp.a_matrix_.start_, lp.a_matrix_.index_ = matrix.indptr, matrix.indices
    lp.a_matrix_.value_ = matrix.data
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.passModel(lp)
    return highs


# ------------------------------------------------------------------ exact fits
def instance(size: int, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Li, Huang and So: beta normalised, x ~ N(0, I), labels by the logistic model."""
    rng = np.random.default_rng(0)
    beta = rng.normal(size=features)
    beta /= np.linalg.norm(beta)
    x = rng.normal(size=(size, features))
    return x, np.where(rng.random(size) < 1 / (1 + np.exp(-x @ beta)), 1.0, -1.0)


def logistic(x: np.ndarray, y: np.ndarray, p: float) -> wdro.Problem:
    w = cp.Variable(x.shape[1])
    features = wdro.UncertainParameter(x.shape[1], name="x", samples=x)
    label = wdro.UncertainParameter(name="y", samples=y)
    cost = wdro.costs.Norm(p, weights={features: 1.0, label: np.inf})
    loss = cp.logistic(-label * (features @ w))
    return wdro.Problem(cp.Minimize(loss), [], wdro.WassersteinBall(0.1, cost))


Work = Callable[[], Any]


def small_pairs(size: int) -> dict[str, tuple[Work, Work]]:
    """Small problems in dimension 4, declared and solved here and by hand."""
    x, y = instance(size, 4)
    targets = x @ np.ones(4) + np.random.default_rng(1).normal(size=size)

    def solved(objective: Any, constraints: Any = ()) -> None:
        cp.Problem(cp.Minimize(objective), list(constraints)).solve(solver=cp.CLARABEL)

    def logistic_by_hand() -> None:
        w = cp.Variable(4)
        solved(cp.sum(cp.logistic(cp.multiply(-y, x @ w))) / size + 0.1 * cp.norm(w, 2))

    def squares_by_hand() -> None:
        w = cp.Variable(4)
        solved(cp.square(cp.norm(targets - x @ w, 2) / np.sqrt(size) + 0.1 * cp.norm(w, 2)))

    def squares() -> None:
        w = cp.Variable(4)
        features = wdro.UncertainParameter(4, samples=x)
        label = wdro.UncertainParameter(samples=targets)
        cost = wdro.costs.SquaredEuclidean(weights={features: 1.0, label: np.inf})
        loss = cp.square(label - features @ w)
        wdro.Problem(cp.Minimize(loss), [], wdro.WassersteinBall(0.01, cost)).solve(method="exact")

    def portfolio_by_hand() -> None:
        w = cp.Variable(4, nonneg=True)
        solved(-x.mean(axis=0) @ w + 0.1 * cp.norm(w, 2), [cp.sum(w) == 1])

    def weights() -> None:
        w = cp.Variable(4, nonneg=True)
        xi = wdro.UncertainParameter(4, samples=x)
        wdro.Problem(cp.Minimize(-xi @ w), [cp.sum(w) == 1], wdro.WassersteinBall(0.01)).solve()

    return {
        "logistic": (lambda: logistic(x, y, 2).solve(method="exact"), logistic_by_hand),
        "least squares": (squares, squares_by_hand),
        "portfolio": (weights, portfolio_by_hand),
    }


def large(sizes: list[tuple[int, int]], cones: bool) -> None:
    for size, features in sizes:
        x, y = instance(size, features)
        for p in (np.inf, 2.0):
            problem = logistic(x, y, p)
            began = time.perf_counter()
            value = problem.solve(method="exact")
            seconds = time.perf_counter() - began
            text = f"logistic ({size}, {features}), l{p:g}".replace("linf", "l-inf")
            print(f"{text:<46}{seconds:10.2f} s   {problem.status}, value {value:.8f}", end="")
            if cones and size * features <= 100_000:
                began = time.perf_counter()
                known = problem.solve(method="exact", solver=wdro.solvers.Conic())
                seconds = time.perf_counter() - began
                print(f", cones {seconds:.2f} s, apart by {abs(value - known):.0e}", end="")
            print(flush=True)


def smoothed_problems() -> dict[str, wdro.Problem]:
    """Smoothed logistic regression on a ball and without constraints."""
    rng, d = np.random.default_rng(1), 30
    truth = rng.normal(size=d)
    x = rng.normal(size=(500, d))
    rows = x * np.sign(x @ truth + 2 * rng.normal(size=500))[:, None]
    found = {}
    for name, bound in (("on a ball", 5.0), ("without constraints", None)):
        w = cp.Variable(d)
        xi = wdro.UncertainParameter(d, samples=rows)
        constraints = [] if bound is None else [cp.norm(w, 2) <= bound]
        loss = cp.Minimize(cp.logistic(-xi @ w))
        found[name] = wdro.Problem(loss, constraints, wdro.WassersteinBall(0.05))
    return found


def smoothed() -> None:
    for name, problem in smoothed_problems().items():
        solve = partial(problem.solve, "smoothed", solver=wdro.solvers.QuasiNewton(gap=1e-6))
        seconds, found = busy(solve)[0], problem.solution
        text = f"smoothed logistic d = 30 {name}"
        print(f"{text:<46}{seconds:10.2f} s   {found.status}, gap {found.relative_gap:.0e}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    print(f"{'':<46}{'ours':>13}{'other':>13}{'ratio':>9}")
    for name, ours, other, _ in repeated(4 if quick else 40):
        line(name, ours, other, "CVXPY's re-solve")
    for size in (30, 300) if quick else (30, 300, 3000):
        found = path_times(size, 3 if quick or size > 1000 else 15)
        text = f"path of 20 radii, N = {size}"
        line(text, found.compiled, found.highspy, f"warm highspy (values to {found.error:.0e})")
        line("  with declaring, compiling", found.declared, found.built, "with loading the model")
    for size in (100, 512):
        for name, pair in small_pairs(size).items():
            line(
                f"{name}, N = {size}, d = 4", *medians(*pair, rounds=3 if quick else 15), "by hand"
            )
    large([(1000, 10)] if quick else [(1000, 100), (10_000, 10), (10_000, 100)], cones=True)
    smoothed()


if __name__ == "__main__":
    main()
