"""Processor seconds of smoothed solves with norms as ground costs, on R^d, boxes and half lines.

    python benchmarks norm_costs [loss ...]

Losses of one linear form (affine, CVaR, a maximum of three pieces) and of separate coordinates (a
newsvendor), N = 50, each solved to the relative gap of 1e-4 that is the default, in d = 10 and, on
a box that holds little more than the samples and on half lines, in d = 3 and 10.
"""

from __future__ import annotations

import sys
import time
import warnings
from itertools import product

import cvxpy as cp
import numpy as np

import wdro_model as wdro

D, N = 10, 50
SUPPORTS = {
    "R^d": (-np.inf, np.inf),
    "box": (-3.0, 3.0),
    "tight": (-0.42, 0.82),
    "half": (-0.42, np.inf),
}
CASES = ((10, "R^d"), (10, "box"), (3, "tight"), (10, "tight"), (3, "half"), (10, "half"))
LOSSES = ("affine", "cvar", "newsvendor", "pieces")
NORMS = (1, 2, np.inf)


def problem(loss: str, p: float, support: str, d: int = D, size: int = N) -> wdro.Problem:
    """A random problem; samples lie within the support."""
    rng = np.random.default_rng(0)
    data = np.clip(rng.standard_normal((size, d)) @ rng.standard_normal((d, d)) / d**0.5, -2, 2)
    data = 0.3 * data + 0.2
    box = None if support == "R^d" else wdro.supports.Box(*SUPPORTS[support])
    z = wdro.UncertainParameter(d, samples=data, support=box)
    x, t = cp.Variable(d), cp.Variable()
    simplex = [x >= 0, cp.sum(x) == 1]
    if loss == "affine":
        objective, constraints = -z @ x, simplex
    elif loss == "cvar":
        objective, constraints = t + cp.pos(-z @ x - t) / 0.1, [*simplex, t >= -10, t <= 10]
    elif loss == "newsvendor":
        short, over = rng.uniform(1, 3, d), rng.uniform(0.3, 1, d)
        terms = cp.maximum(cp.multiply(short, z - x), cp.multiply(over, x - z))
        objective, constraints = cp.sum(terms), [x >= -1, x <= 2]
    else:
        form = z @ x
        objective = cp.maximum(-form, 0.2 - 2 * form, 0.5 * form - 0.1)
        constraints = simplex
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(p))
    return wdro.Problem(cp.Minimize(objective), constraints, ball)


def main(losses: tuple[str, ...]) -> None:
    print(f"{'loss':<11}{'norm':>5}{'d':>4} {'support':<8}{'seconds':>8}{'gap':>9}{'value':>11}")
    for loss, p, (d, support) in product(losses, NORMS, CASES):
        some = problem(loss, p, support, d)
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            some.solve(method="smoothed", time_limit=60, progress=False)
        seconds = time.process_time() - start
        found = some.solution
        drawn = "" if found.diagnostics is None else ", drawn"
        print(
            f"{loss:<11}{p:>5}{d:>4} {support:<8}{seconds:>8.2f}"
            f"{found.relative_gap:>9.1e}{found.value:>11.5f}  {some.status}{drawn}",
            flush=True,
        )


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or LOSSES)
