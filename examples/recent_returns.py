"""Returns in a frame, recent days counting more: samples with probabilities.

Markets drift, and the mean of two years is about the middle of them. With a half-life of 90 days
the data speaks of now, but fewer days speak: the ball around it makes up for that.

python examples/recent_returns.py [picture.png]
"""

from __future__ import annotations

import sys

import cvxpy as cp
import numpy as np
import pandas as pd

import wdro_model as wdro

ASSETS = ["bonds", "gold", "stocks", "energy", "tech", "property"]
DAYS, HALF_LIFE = 500, 90


def market(days: np.ndarray, rng: np.random.Generator) -> pd.DataFrame:
    """Percent a day: what was good two years ago is not what is good now."""
    then = np.array([0.03, 0.02, 0.20, 0.30, 0.02, 0.10])
    now = np.array([0.03, 0.20, 0.10, -0.10, 0.25, 0.02])
    share = (days / DAYS)[:, None]
    spread = np.array([0.2, 0.8, 1.0, 1.4, 1.6, 0.7])
    noise = spread * rng.standard_normal((len(days), len(ASSETS)))
    return pd.DataFrame((1 - share) * then + share * now + noise, columns=ASSETS)


def main(picture: str | None = None) -> None:
    rng = np.random.default_rng(2)
    past = market(np.arange(DAYS), rng)
    ahead = market(np.full(5000, DAYS), rng)[sorted(ASSETS)]  # matched by name, not by order
    p = 0.5 ** (np.arange(DAYS)[::-1] / HALF_LIFE)

    x = cp.Variable(len(ASSETS), nonneg=True, name="x")
    returns = wdro.UncertainParameter(name="returns", samples=past, probabilities=p / p.sum())
    cost = wdro.costs.SquaredEuclidean(weights="standardize")
    recent = wdro.Problem(
        cp.Maximize(returns @ x), [cp.sum(x) == 1], wdro.WassersteinBall(0.01, cost)
    )
    alike = recent.with_samples(past)
    print(recent.explain().splitlines()[3].strip(), "\n")

    print(f"{'days':15}{'method':8}{'promise':>9}{'ahead':>9}  held")
    for name, problem in (("all alike", alike), ("recent more", recent)):
        for method in ("erm", "exact"):
            problem.solve(method)
            seen = problem.evaluate({"returns": ahead})
            weights = pd.Series(x.value, index=returns.columns).nlargest(3)
            held = ", ".join(f"{asset} {w:.0%}" for asset, w in weights.items() if w > 0.005)
            print(f"{name:15}{method:8}{problem.value:9.4f}{seen.mean:9.4f}  {held}")
    if picture is not None:
        wdro.compare(recent, ("erm", "exact"), test=ahead).plot(picture)


if __name__ == "__main__":
    main(*sys.argv[1:2])
