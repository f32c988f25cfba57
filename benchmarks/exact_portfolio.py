"""Exact mean-CVaR portfolios: building and solving, against a model vectorised by hand.

    python benchmarks/exact_portfolio.py [--sizes 100 1000 10000] [--repeats 3]

The loss is max_j a_j <x, xi> + b_j tau over the simplex, d = 10, for a 1-Wasserstein ball (l1
ground norm) and a 2-Wasserstein ball. RSOME and PICOS are timed on the first where they are
installed, once, at N = 100 (PICOS with the Euclidean norm, the one it knows: another value). Other
times are medians of repeats taken in turn, after a warm-up; in seconds, build and solve.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import cvxpy as cp
import numpy as np

import wdro_model as wdro

SLOPES, TAILS = (-1.0, -51.0), (10.0, -40.0)
DISTANCE = 0.05
SLOW, PEERS = 100, ("rsome", "picos")


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


def seconds_of(run: Callable[[], float]) -> tuple[float, float]:
    began = time.perf_counter()
    value = run()
    return time.perf_counter() - began, value


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sizes", type=int, nargs="+", default=[100, 1000, 10000])
    options.add_argument("--repeats", type=int, default=7)
    given = options.parse_args()
    print(f"{'N':>6} {'order':>5} {'method':<10} {'seconds':>8} {'of hand':>8} {'value':>14}")
    for size in given.sizes:
        data = returns(size)
        for order in (1, 2):
            rows = {"by hand": by_hand, "wdro_model": ours}
            if order == 1 and size <= SLOW:
                rows |= {"rsome": by_rsome} if find_spec("rsome") else {}
                rows |= {"picos": by_picos} if find_spec("picos") else {}
            times: dict[str, list[float]] = {name: [] for name in rows}
            values: dict[str, float] = {}
            for repeat in range(given.repeats + 1):
                for name, method in rows.items():
                    if name in PEERS and repeat:
                        continue
                    seconds, values[name] = seconds_of(partial(method, data, order))
                    if repeat or name in PEERS:
                        times[name].append(seconds)
            base = np.median(times["by hand"])
            for name in rows:
                middle = np.median(times[name])
                print(
                    f"{size:>6} {order:>5} {name:<10} {middle:>8.3f} {middle / base:>8.2f} "
                    f"{values[name]:>14.8f}"
                )


if __name__ == "__main__":
    main()
