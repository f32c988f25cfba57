"""Random problems of three to five uncertain coordinates with one feasible decision.

    python -m tests.references.sampled_decisions --first 0 --count 100

solves each of them by sampling and compares F, minimised over the dual, with particles.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

import wdro_model as wdro
from tests.references.annealed import Annealed

HALF = 1.0
"""Half of the width of boxes."""


@dataclass(frozen=True)
class SampledDecision:
    """One problem, twice: as the library sees it and in plain numpy."""

    name: str
    expression: Callable[[Any, Any], Any]
    plain: Callable[[np.ndarray], np.ndarray]
    cost: Any
    plain_cost: Callable[[np.ndarray], np.ndarray]
    samples: np.ndarray
    decision: np.ndarray
    radius: float
    epsilon: float | None
    integration: str | None
    support: Any
    inside: Callable[[np.ndarray], np.ndarray] | None

    def problem(self) -> wdro.Problem:
        d = self.samples.shape[1]
        x = cp.Variable(d)
        z = wdro.UncertainParameter(d, samples=self.samples, support=self.support)
        constraints = [x >= self.decision, x <= self.decision]
        ball = wdro.WassersteinBall(self.radius, self.cost)
        return wdro.Problem(
            cp.Minimize(self.expression(x, z)), constraints, ball, assume_convex=True
        )

    def reference(self, epsilon: float, sigma: Any, **settings: Any) -> Annealed:
        boxed = isinstance(self.support, wdro.supports.Box)
        return Annealed(
            self.plain,
            self.plain_cost,
            self.samples,
            epsilon,
            np.asarray(sigma, dtype=float),
            self.radius,
            -HALF if boxed else -np.inf,
            HALF if boxed else np.inf,
            self.inside,
            **settings,
        )

    def mean_loss(self) -> float:
        return float(self.plain(self.samples).mean())


def losses(rng: np.random.Generator, d: int) -> dict[str, tuple[Any, Any, float]]:
    """For each name: the loss in CVXPY, in numpy, and its order of growth in the data."""
    a, b, c, e = (rng.standard_normal(d) for _ in range(4))
    s = float(np.exp(rng.uniform(-1, 1.2)))
    A, B = rng.standard_normal((2, d)), rng.standard_normal((1, d))
    return {
        "logistic": (
            lambda x, z: cp.logistic(s * (z @ x)) + cp.logistic(-(z @ b)) + cp.logistic(z @ c),
            lambda x, z: sum(np.logaddexp(0, u) for u in (s * (z @ x), -(z @ b), z @ c)),
            1,
        ),
        "log-sum-exp": (
            lambda x, z: cp.log_sum_exp(cp.hstack([s * (z @ x), z @ b, z @ c, z @ e])),
            lambda x, z: np.logaddexp.reduce([s * (z @ x), z @ b, z @ c, z @ e]),
            1,
        ),
        "exp": (
            lambda x, z: cp.exp(-0.7 * (z @ x)) + 0.5 * cp.exp(0.8 * (z @ b)),
            lambda x, z: np.exp(-0.7 * (z @ x)) + 0.5 * np.exp(0.8 * (z @ b)),
            9,
        ),
        "huber": (
            lambda x, z: s * cp.sum(cp.huber(z - a, 0.5)) + z @ x,
            lambda x, z: (
                s * np.where(np.abs(z - a) < 0.5, (z - a) ** 2, np.abs(z - a) - 0.25).sum(1) + z @ x
            ),
            1,
        ),
        "pieces": (
            lambda x, z: cp.maximum(z @ x, s * (z @ b) - 0.3, -(z @ c), 0.5 * (z @ e) + 0.1),
            lambda x, z: np.max([z @ x, s * (z @ b) - 0.3, -(z @ c), 0.5 * (z @ e) + 0.1], axis=0),
            1,
        ),
        "indefinite": (
            lambda x, z: cp.sum_squares(A @ z) - s * cp.sum_squares(B @ z) + z @ x,
            lambda x, z: ((z @ A.T) ** 2).sum(1) - s * ((z @ B.T) ** 2).sum(1) + z @ x,
            9,
        ),
        "norm": (
            lambda x, z: s * cp.norm(z - a) + cp.norm(cp.multiply(z, x), 1),
            lambda x, z: s * np.linalg.norm(z - a, axis=1) + np.abs(z * x).sum(1),
            1,
        ),
        "norm inf": (
            lambda x, z: s * cp.norm(z - a, "inf") + z @ x,
            lambda x, z: s * np.abs(z - a).max(1) + z @ x,
            1,
        ),
        "product": (
            lambda x, z: s * cp.multiply(z[0], z[1]) + cp.multiply(z[1], z[2]) + z @ x,
            lambda x, z: s * z[:, 0] * z[:, 1] + z[:, 1] * z[:, 2] + z @ x,
            9,
        ),
        "absolute": (
            lambda x, z: cp.abs(z @ x) + s * cp.abs(z @ b - 0.2) + cp.pos(z @ c),
            lambda x, z: np.abs(z @ x) + s * np.abs(z @ b - 0.2) + np.maximum(z @ c, 0),
            1,
        ),
    }


def costs(rng: np.random.Generator, d: int) -> tuple[str, Any, Any, float]:
    """The name of a cost, the cost, the same for moves in numpy, and its order of growth."""
    kind = str(
        rng.choice(["squared", "weighted", "mahalanobis", "norm1", "norm2", "norminf", "power"])
    )
    w = np.exp(rng.uniform(-1, 1, d))
    root = np.eye(d) + 0.4 * rng.standard_normal((d, d))
    precision = root @ root.T
    power = wdro.costs.Callable(lambda u, v: (np.abs(u - v) ** 1.5).sum(axis=1))
    table = {
        "squared": (wdro.costs.SquaredEuclidean(), lambda m: (m**2).sum(1), 2),
        "weighted": (wdro.costs.SquaredEuclidean(weights=w), lambda m: (m**2) @ w, 2),
        "mahalanobis": (
            wdro.costs.Mahalanobis(precision=precision),
            lambda m: ((m @ precision) * m).sum(1),
            2,
        ),
        "norm1": (wdro.costs.Norm(1), lambda m: np.abs(m).sum(1), 1),
        "norm2": (wdro.costs.Norm(2), lambda m: np.sqrt((m**2).sum(1)), 1),
        "norminf": (wdro.costs.Norm(np.inf), lambda m: np.abs(m).max(1), 1),
        "power": (power, lambda m: (np.abs(m) ** 1.5).sum(1), 1.5),
    }
    return (kind, *table[kind])


def random_decision(seed: int) -> SampledDecision:
    """Three to five coordinates, up to three samples, any loss that the cost holds."""
    rng = np.random.default_rng([7, seed])
    d, count = int(rng.integers(3, 6)), int(rng.integers(1, 4))
    kind, cost, plain_cost, order = costs(rng, d)
    where = str(rng.choice(["everywhere", "box", "box", "polyhedron"]))
    table = losses(rng, d)
    names = [n for n, (_, _, growth) in table.items() if where != "everywhere" or growth <= order]
    name = str(rng.choice(names))
    expression, plain, _ = table[name]
    support, inside = None, None
    samples = rng.standard_normal((count, d))
    if where == "box":
        samples = rng.uniform(-0.9, 0.9, (count, d))
        support = wdro.supports.Box(-HALF, HALF)
    elif where == "polyhedron":
        # A box with corners cut off.
        samples = rng.uniform(-0.4, 0.4, (count, d))
        normals = np.vstack([np.eye(d), -np.eye(d), rng.choice([-1.0, 1.0], (2, d))])
        limits = np.concatenate([np.ones(2 * d), np.full(2, 0.55 * d)])
        support = wdro.supports.Polyhedron(normals, limits)

        def inside(z: np.ndarray) -> np.ndarray:
            return np.all(z @ normals.T <= limits, axis=1)

    radius = float(10 ** rng.uniform(-2, 0.3))
    epsilon = None if rng.uniform() < 0.4 else float(10 ** rng.uniform(-2, 0))
    integration = "tilted" if rng.uniform() < 0.8 else None
    decision = rng.standard_normal(d)
    return SampledDecision(
        f"{name}, {kind}, {where}, d={d}, N={count}",
        expression,
        lambda z: plain(decision, z),
        cost,
        plain_cost,
        samples,
        decision,
        radius,
        epsilon,
        integration,
        support,
        inside,
    )


@dataclass(frozen=True)
class Verdict:
    """A solve against the reference."""

    status: str
    value: float
    error: float
    """What the solve promises: gap and standard error."""
    truth: float
    truth_error: float
    margin: float
    seconds: float

    @property
    def deviation(self) -> float:
        """By how many common standard errors value and truth differ."""
        noise = np.hypot(self.error, self.truth_error) + 1e-7 * abs(self.truth)
        return abs(self.value - self.truth) / noise

    @property
    def wrong(self) -> bool:
        return self.deviation > 4.0


def judged(case: SampledDecision, time_limit: float | None = None, **settings: Any) -> Verdict:
    """Solve a case and the reference."""
    began = time.perf_counter()
    problem = case.problem()
    options: dict[str, Any] = {"method": "smoothed", "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(
            epsilon=case.epsilon, integration=case.integration, time_limit=time_limit, **options
        )
    seconds = time.perf_counter() - began
    found = problem.solution
    reference = case.reference(found.epsilon, found.sigma, **settings)
    truth, error, _ = reference.minimum(found.dual)
    promised = max(found.gap, 0.0)
    if found.diagnostics is not None:
        promised = float(np.hypot(promised, found.diagnostics.standard_error))
    margin = abs(truth - case.mean_loss())
    return Verdict(problem.status, found.value, promised, truth, error, margin, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--limit", type=float, default=20.0)
    parser.add_argument("--particles", type=int, default=1024)
    given = parser.parse_args()
    counts = {"right": 0, "wrong": 0, "not optimal": 0, "error": 0}
    total = 0.0
    for seed in range(given.first, given.first + given.count):
        case = random_decision(seed)
        try:
            one = judged(case, given.limit, particles=given.particles, draws=2**16)
        except Exception as error:  # a battery goes on
            counts["error"] += 1
            print(f"{seed:4d} ERROR {case.name}: {type(error).__name__}: {str(error)[:150]}")
            continue
        total += one.seconds
        optimal = one.status == "optimal"
        kind = ("wrong" if one.wrong else "right") if optimal else "not optimal"
        counts[kind] += 1
        mark = "" if kind == "right" else kind.upper()
        mark += " wrong beyond its error" if kind == "not optimal" and one.wrong else ""
        print(
            f"{seed:4d} {case.name} [{case.integration}] {one.status}: {one.value:.6g} "
            f"({(one.value - one.truth) / max(one.margin, 1e-12):+.1e} of margin, "
            f"{one.deviation:.1f} s.e., own {one.error:.1e} ref {one.truth_error:.1e}) "
            f"{one.seconds:.1f} s {mark}",
            flush=True,
        )
    print(counts, f"{total:.0f} s")


if __name__ == "__main__":
    main()
