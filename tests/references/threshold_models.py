"""Random models whose objective has CVaRs, and the same ones with thresholds that are variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

import wdro_model as wdro

LEVELS = (0.05, 0.5, 0.8, 0.95)
COSTS = (
    wdro.costs.Norm(1),
    wdro.costs.Norm(2),
    wdro.costs.Norm(np.inf),
    wdro.costs.SquaredEuclidean(),
    wdro.costs.SquaredEuclidean(),
)


@dataclass
class RiskModel:
    """An objective with CVaRs: `problem` has them, `written_out` has a variable for each."""

    problem: Any
    written_out: Any
    epsilon: float
    sigma: float
    text: str
    terms: int
    fixed: bool


def random_risk_model(seed: int) -> RiskModel:
    """The model of a seed: one to three CVaRs of affine losses and of maxima."""
    rng = np.random.default_rng([27, seed])
    size = int(rng.choice([1, 2, 3, 4, 5, 20]))
    dimension = int(rng.choice([1, 2, 2, 3, 5, 10]))
    scale = float(rng.choice([0.1, 1.0, 30.0]))
    data = rng.normal(0.3, 1.0, (size, dimension))
    if rng.random() < 0.2:
        data[:] = data[0]  # few samples that agree: the quantiles of their losses have no spread
    support, kind = None, str(rng.choice(["everywhere", "box", "nonnegative"]))
    if kind == "box":
        support = wdro.supports.Box(-scale * 4.0, scale * 4.0)
    if kind == "nonnegative":
        data, support = np.abs(data), wdro.supports.Nonnegative()
    cost = COSTS[rng.integers(len(COSTS))]
    distance = float(10 ** rng.uniform(-1.5, 0.0)) * scale
    radius = distance if cost.order == 1 else distance**2
    z = wdro.UncertainParameter(dimension, samples=scale * data, support=support)
    n = int(rng.choice([1, 2, 4]))
    x, fixed = cp.Variable(n), bool(rng.random() < 0.5)
    chosen = rng.uniform(0.2, 1.0, n)
    constraints = [x == chosen / chosen.sum()] if fixed else [cp.sum(x) == 1, x >= 0]

    def affine() -> Any:
        return z @ (rng.normal(size=(dimension, n)) @ x) + scale * rng.normal(size=n) @ x

    terms = int(rng.choice([1, 1, 2, 3]))
    risky, plain, texts, limits = [], [], [], []
    for _ in range(terms):
        loss, level = affine(), float(rng.choice(LEVELS))
        if rng.random() < 0.4:
            loss = cp.maximum(loss, affine())
        risky.append(wdro.cvar(loss, level))
        threshold = cp.Variable()
        limits += [threshold <= 100 * scale, threshold >= -100 * scale]
        plain.append(threshold + cp.pos(loss - threshold) / (1 - level))
        texts.append(f"cvar {level:g} of {'max' if isinstance(loss, cp.maximum) else 'affine'}")
    if rng.random() < 0.3:
        mean = affine()
        risky.append(mean)
        plain.append(mean)
        texts.append("mean")
    ball = wdro.WassersteinBall(radius, cost)
    return RiskModel(
        wdro.Problem(cp.Minimize(sum(risky)), constraints, ball),
        wdro.Problem(cp.Minimize(sum(plain)), constraints + limits, ball),
        epsilon=float(rng.choice([0.02, 0.1])) * distance * dimension**-0.5,
        sigma=0.5 * distance / dimension**0.5,
        text=f"{seed}: d={dimension} N={size} n={n} {'fixed' if fixed else 'free'} {cost!r} {kind} "
        f"radius {radius:.3g}: " + " + ".join(texts),
        terms=terms,
        fixed=fixed,
    )
