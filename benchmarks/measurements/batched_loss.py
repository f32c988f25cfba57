"""The batched loss from a CVXPY tree against the same loss written by hand in NumPy.

    OPENBLAS_NUM_THREADS=1 python benchmarks batched_loss

Each call computes the values of a batch and one weighted gradient in x. Times are medians in
milliseconds, after warm-up, the two sides taking turns; BLAS runs on one thread.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss import BatchedLoss, quadratic_form
from wdro_model.uncertainty.parameter import UncertainParameter

TARGET = 3.0
Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """One loss: its expression, a point, scenarios, weights, and the hand-written version."""

    name: str
    expression: Any
    point: dict[Any, Array]
    scenarios: dict[Any, Array]
    weights: Array
    by_hand: Callable[[], tuple[Array, Array]]


def traffic(rng: np.random.Generator, batch: int = 1000, arcs: int = 76) -> Case:
    """t @ (x + alpha/(beta + 1) x (x/c)^beta): travel times with uncertain t, alpha, beta."""
    x = cp.Variable(arcs, nonneg=True)
    t = UncertainParameter(arcs, nonneg=True)
    alpha, beta = UncertainParameter(nonneg=True), UncertainParameter(pos=True)
    capacity = rng.uniform(5, 25, arcs)
    delay = x + cp.multiply(x, cp.power(x / capacity, beta)) * (alpha / (beta + 1))
    flow = rng.uniform(0, 30, arcs)
    T = rng.uniform(1, 10, (batch, arcs))
    a, b = rng.uniform(0.1, 0.2, batch), rng.uniform(3, 5, batch)
    w = rng.dirichlet(np.ones(batch))

    def by_hand() -> tuple[Array, Array]:
        TP = T * np.exp(b[:, None] * np.log(flow / capacity))
        return T @ flow + a / (b + 1) * (TP @ flow), w @ T + (w * a) @ TP

    return Case(f"traffic, B={batch}", t @ delay, {x: flow}, {t: T, alpha: a, beta: b}, w, by_hand)


def portfolio(rng: np.random.Generator, batch: int = 1000, assets: int = 50) -> Case:
    """Mean and conditional value-at-risk: the larger of two pieces."""
    x, tau = cp.Variable(assets), cp.Variable()
    xi = UncertainParameter(assets)
    a, b = np.array([-1.0, -11.0]), np.array([1.0, -9.0])
    r = x @ xi
    expression = cp.maximum(a[0] * r + b[0] * tau, a[1] * r + b[1] * tau)
    Z = rng.normal(0.1, 1, (batch, assets))
    w = rng.dirichlet(np.ones(batch))
    point, level = rng.dirichlet(np.ones(assets)), np.asarray(0.1)

    def by_hand() -> tuple[Array, Array]:
        ret = Z @ point
        p0, p1 = a[0] * ret + b[0] * level, a[1] * ret + b[1] * level
        second = p1 > p0
        slope, offset = np.where(second, a[1], a[0]), np.where(second, b[1], b[0])
        return np.where(second, p1, p0), np.concatenate([(w * slope) @ Z, [w @ offset]])

    return Case(f"portfolio, B={batch}", expression, {x: point, tau: level}, {xi: Z}, w, by_hand)


def symmetric_quadratic(rng: np.random.Generator, batch: int = 100, m: int = 100) -> Case:
    """CVXPY's quad_form with an uncertain matrix declared symmetric."""
    x = cp.Variable(m)
    Xi = UncertainParameter((m, m), symmetric=True)
    Z = rng.normal(size=(batch, m, m))
    Z = (Z + Z.transpose(0, 2, 1)) / 2
    w, point = rng.dirichlet(np.ones(batch)), rng.normal(size=m)

    def by_hand() -> tuple[Array, Array]:
        Zx = (Z.reshape(-1, m) @ point).reshape(-1, m)
        return Zx @ point, 2 * (w @ Zx)

    name = f"quad_form, m={m}, B={batch}"
    return Case(name, cp.quad_form(x, Xi), {x: point}, {Xi: Z}, w, by_hand)


def quadratic(rng: np.random.Generator, batch: int = 100, m: int = 100) -> Case:
    """quadratic_form with matrices that are not symmetric."""
    x = cp.Variable(m)
    Xi = UncertainParameter((m, m))
    Z = rng.normal(size=(batch, m, m))
    w, point = rng.dirichlet(np.ones(batch)), rng.normal(size=m)

    def by_hand() -> tuple[Array, Array]:
        Zx = (Z.reshape(-1, m) @ point).reshape(-1, m)
        return Zx @ point, w @ Zx + w @ (point @ Z)

    name = f"quadratic_form, m={m}, B={batch}"
    return Case(name, quadratic_form(x, Xi), {x: point}, {Xi: Z}, w, by_hand)


def logistic(rng: np.random.Generator, batch: int = 10000, d: int = 20) -> Case:
    """Logistic regression with uncertain features and labels."""
    x = cp.Variable(d)
    u, y = UncertainParameter(d), UncertainParameter()
    U, L = rng.normal(size=(batch, d)), rng.choice([-1.0, 1.0], batch)
    w, point = rng.dirichlet(np.ones(batch)), rng.normal(size=d)

    def by_hand() -> tuple[Array, Array]:
        m = -L * (U @ point)
        e = np.exp(-np.abs(m))
        slope = np.where(m > 0, 1, e) / (1 + e)
        return np.maximum(m, 0) + np.log1p(e), (-w * slope * L) @ U

    expression = cp.logistic(-y * (x @ u))
    return Case(f"logistic, B={batch}", expression, {x: point}, {u: U, y: L}, w, by_hand)


def medians(*functions: Callable[[], Any], seconds: float = 2.0) -> list[float]:
    """Median milliseconds of each function, called in turns."""
    for function in functions:
        for _ in range(5):
            function()
    times: list[list[float]] = [[] for _ in functions]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for function, record in zip(functions, times):
            for _ in range(10):
                start = time.perf_counter()
                function()
                record.append(time.perf_counter() - start)
    return [1e3 * float(np.median(record)) for record in times]


def measure(case: Case) -> tuple[float, float]:
    """Milliseconds by hand and from the tree, after checking that both agree."""
    loss = BatchedLoss(case.expression)

    def ours() -> tuple[Array, dict[Any, Array]]:
        values, pullback = loss(case.point, case.scenarios)
        return values, pullback(case.weights)

    (values, gradient), (expected, slope) = ours(), case.by_hand()
    flat = np.concatenate([np.ravel(gradient[v]) for v in case.point])
    np.testing.assert_allclose(values, expected, rtol=1e-9)
    np.testing.assert_allclose(flat, slope, rtol=1e-9, atol=1e-12)
    by_hand, from_tree = medians(case.by_hand, ours)
    return by_hand, from_tree


def main() -> None:
    rng = np.random.default_rng(7)
    print(f"{'loss':34s} {'by hand ms':>11s} {'ours ms':>9s} {'ratio':>6s} {'target':>7s}")
    cases: list[Callable[[], Case]] = [
        lambda: traffic(rng),
        lambda: portfolio(rng),
        lambda: symmetric_quadratic(rng),
        lambda: quadratic(rng),
        lambda: quadratic(rng, m=331),
        lambda: quadratic(rng, batch=1, m=331),
        lambda: logistic(rng),
    ]
    for make in cases:
        case = make()
        by_hand, ours = measure(case)
        ratio = ours / by_hand
        print(f"{case.name:34s} {by_hand:11.3f} {ours:9.3f} {ratio:6.2f} {'<= ' + str(TARGET):>7s}")


if __name__ == "__main__":
    main()
