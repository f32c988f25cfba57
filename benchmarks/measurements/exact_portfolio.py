"""Exact mean-CVaR portfolios: building and solving, against a model vectorised by hand.

    python benchmarks exact_portfolio [--sizes 100 1000 10000] [--repeats 7] [--limit 300]

The loss is max_j a_j <x, xi> + b_j tau over the simplex, d = 10, for a 1-Wasserstein ball (l1
ground norm) and a 2-Wasserstein ball. Times are medians of repeats taken in turn, after a warm-up;
in seconds, build and solve.

RSOME and PICOS are run on the first, where they are installed: once for each size, in a process of
their own that is stopped after --limit seconds (PICOS with the Euclidean norm, the one it knows:
another value). Newsvendors with d products, a sum of d maxima, follow: their hand-written model is
a matrix of N x d.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from queue import Empty
from typing import Any

import cvxpy as cp
import numpy as np

import wdro_model as wdro

SLOPES, TAILS = (-1.0, -51.0), (10.0, -40.0)
DISTANCE = 0.05


def returns(size: int, assets: int = 10) -> np.ndarray:
    rng = np.random.default_rng(0)
    rank = np.arange(1, assets + 1)
    market = rng.normal(0.0, 0.02, size=(size, 1))
    return market + rng.normal(0.03 * rank, 0.025 * rank, size=(size, assets))


def ours(data: np.ndarray, order: int) -> float:
    x, tau = cp.Variable(data.shape[1], nonneg=True), cp.Variable()
    xi = wdro.UncertainParameter(data.shape[1], samples=data)
    loss = cp.maximum(*[a * (xi @ x) + b * tau for a, b in zip(SLOPES, TAILS)])
    cost = wdro.costs.Norm(1) if order == 1 else None
    ball = wdro.WassersteinBall.order(order, DISTANCE, cost)
    return wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], ambiguity=ball).solve(method="exact")


def by_hand(data: np.ndarray, order: int) -> float:
    x, tau = cp.Variable(data.shape[1], nonneg=True), cp.Variable()
    dual, worst = cp.Variable(nonneg=True), cp.Variable(len(data))
    gains = data @ x
    constraints = [cp.sum(x) == 1]
    for a, b in zip(SLOPES, TAILS):
        if order == 1:
            constraints += [worst >= a * gains + b * tau, abs(a) * cp.norm(x, "inf") <= dual]
        else:
            bonus = a**2 * cp.quad_over_lin(x, 4 * dual)
            constraints.append(worst >= a * gains + b * tau + bonus)
    objective = DISTANCE**order * dual + cp.sum(worst) / len(data)
    return cp.Problem(cp.Minimize(objective), constraints).solve(solver=cp.CLARABEL)


def by_rsome(data: np.ndarray, order: int) -> float:
    from rsome import E, dro, maxof, norm

    model = dro.Model(len(data))
    z, u = model.rvar(data.shape[1]), model.rvar()
    x, tau = model.dvar(data.shape[1]), model.dvar()
    ball = model.ambiguity()
    for k, row in enumerate(data):
        ball[k].suppset(norm(z - row, 1) <= u)
    ball.exptset(E(u) <= DISTANCE)
    ball.probset(model.p == 1 / len(data))
    loss = maxof(*[a * (z @ x) + b * tau for a, b in zip(SLOPES, TAILS)])
    model.minsup(E(loss), ball)
    model.st(x.sum() == 1, x >= 0)
    model.solve(display=False)
    return model.get()


def by_picos(data: np.ndarray, order: int) -> float:
    import picos

    ball = picos.uncertain.WassersteinAmbiguitySet("xi", 1, DISTANCE, picos.Samples(data.T))
    xi = ball.parameter
    x, tau = picos.RealVariable("x", data.shape[1]), picos.RealVariable("tau")
    bound = picos.RealVariable("bound")
    model = picos.Problem()
    model.minimize = bound
    loss = picos.max([a * (x | xi) + b * tau for a, b in zip(SLOPES, TAILS)])
    model += bound >= loss, picos.sum(x) == 1, x >= 0
    model.solve()
    return float(bound)


PEERS = {"rsome": by_rsome, "picos": by_picos}


def newsvendor(demand: np.ndarray, cost: Any) -> float:
    """Overage 1 and underage 3 for every product, demand in [0, 10] with the l1 norm, else free."""
    products = demand.shape[1]
    support = wdro.supports.Box(0, 10) if cost is not None else None
    x = cp.Variable(products, nonneg=True)
    z = wdro.UncertainParameter(products, samples=demand, support=support)
    loss = cp.sum(cp.maximum(x - z, 3 * (z - x)))
    ball = wdro.WassersteinBall(4.0, cost)
    return wdro.Problem(cp.Minimize(loss), [x <= 20], ambiguity=ball).solve(method="exact")


def newsvendor_by_hand(demand: np.ndarray, cost: Any) -> float:
    size, products = demand.shape
    x, dual = cp.Variable(products, nonneg=True), cp.Variable(nonneg=True)
    order = np.ones((size, 1)) @ cp.reshape(x, (1, products), order="C")
    over, under = order - demand, 3 * (demand - order)
    ones = np.ones((size, products))
    if cost is None:
        square = cp.quad_over_lin(1, 4 * dual)
        worst = cp.maximum(over + square, under + 9 * square)
    else:
        over = over + cp.multiply(demand, cp.pos(1 - dual) * ones)
        worst = cp.maximum(over, under + cp.multiply(10 - demand, cp.pos(3 - dual) * ones))
    objective = 4.0 * dual + cp.sum(worst) / size
    return cp.Problem(cp.Minimize(objective), [x <= 20]).solve(solver=cp.CLARABEL)


def seconds_of(run: Callable[[], float]) -> tuple[float, float]:
    began = time.perf_counter()
    value = run()
    return time.perf_counter() - began, value


def in_child(queue: Any, name: str, size: int) -> None:
    queue.put(seconds_of(partial(PEERS[name], returns(size), 1)))


def with_limit(name: str, size: int, limit: float) -> tuple[float, float] | None:
    """Seconds and value of a peer, run once in a process of its own; None if it takes too long."""
    queue: Any = multiprocessing.get_context("spawn").Queue()
    child = multiprocessing.get_context("spawn").Process(
        target=in_child, args=(queue, name, size), daemon=True
    )
    child.start()
    try:
        return queue.get(timeout=limit)
    except Empty:
        return None
    finally:
        child.kill()


def medians(
    methods: dict[str, Callable[[], float]], repeats: int
) -> dict[str, tuple[float, float]]:
    """Median seconds and value of each method, the methods taken in turn after a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in methods}
    values: dict[str, float] = {}
    for repeat in range(repeats + 1):
        for name, method in methods.items():
            seconds, values[name] = seconds_of(method)
            if repeat:
                times[name].append(seconds)
    return {name: (float(np.median(times[name])), values[name]) for name in methods}


def row(*cells: Any) -> None:
    size, what, name, seconds, ratio, value = cells
    print(f"{size:>6} {what:<12} {name:<10} {seconds:>8} {ratio:>8} {value:>16}", flush=True)


def report(size: int, what: str, found: dict[str, tuple[float, float]]) -> float:
    base = found["by hand"][0]
    for name, (seconds, value) in found.items():
        row(size, what, name, f"{seconds:.3f}", f"{seconds / base:.2f}", f"{value:.8f}")
    return base


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sizes", type=int, nargs="+", default=[100, 1000, 10000])
    options.add_argument("--products", type=int, nargs="+", default=[20, 300])
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--limit", type=float, default=300.0)
    given = options.parse_args()
    row("N", "problem", "method", "seconds", "of hand", "value")
    for size in given.sizes:
        data = returns(size)
        for order in (1, 2):
            methods = {"by hand": partial(by_hand, data, order), "ours": partial(ours, data, order)}
            base = report(size, f"order {order}", medians(methods, given.repeats))
            for name in PEERS if order == 1 else ():
                if find_spec(name) is None:
                    continue
                found = with_limit(name, size, given.limit)
                if found is None:
                    row(size, "order 1", name, f">{given.limit:.0f}", "", "stopped")
                else:
                    ratio = f"{found[0] / base:.1f}"
                    row(size, "order 1", name, f"{found[0]:.2f}", ratio, f"{found[1]:.8f}")
    for products in given.products:
        for name, cost in (("squared", None), ("box, l1", wdro.costs.Norm(1))):
            demand = np.random.default_rng(0).uniform(0, 10, size=(100, products))
            methods = {
                "by hand": partial(newsvendor_by_hand, demand, cost),
                "ours": partial(newsvendor, demand, cost),
            }
            found = medians(methods, max(1, given.repeats // 2))
            report(100, f"{products} {name}", found)


if __name__ == "__main__":
    main()
