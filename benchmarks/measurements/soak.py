"""A long mini-batch run on many samples: memory stays flat.

    python benchmarks soak [--quick]

Logistic loss over the simplex, N = 100,000 samples in dimension 20; the inner integral has one
affine form and needs no draws. Prints the resident memory during the run.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import resource
import time
from pathlib import Path

import cvxpy as cp
import numpy as np

import wdro_model as wdro
from wdro_model.solvers import MomentumFrankWolfe, State


def resident() -> float:
    """Resident memory in MB now (the peak where the system does not tell)."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    size, steps = (20_000, 100) if quick else (100_000, 600)
    rng = np.random.default_rng(0)
    truth = rng.dirichlet(np.ones(20))
    features = rng.standard_normal((size, 20))
    labels = np.sign(features @ truth + 0.2 * rng.standard_normal(size))
    theta = cp.Variable(20, nonneg=True, name="theta")
    xi = wdro.UncertainParameter(20, name="xi", samples=features * labels[:, None])
    problem = wdro.Problem(
        cp.Minimize(cp.logistic(-5 * (xi @ theta))),
        [cp.sum(theta) == 1],
        ambiguity=wdro.WassersteinBall(0.05),
    )
    seen: list[float] = []

    def watch(state: State) -> None:
        if state.iteration % (steps // 10) == 0:
            seen.append(resident())
            print(f"iteration {state.iteration:5d}  {state.time:7.1f} s  {seen[-1]:8.1f} MB")

    solver = MomentumFrankWolfe(batch_size=500, max_iterations=steps, gap=1e-2, callbacks=[watch])
    began = time.perf_counter()
    problem.solve(method="smoothed", solver=solver, integration="low_rank", dual="exact")
    print(problem.solution)
    print(
        f"data {features.nbytes / 1e6:.0f} MB, growth after the first tenth: "
        f"{seen[-1] - seen[1]:+.1f} MB, at the end {resident():.1f} MB, "
        f"{time.perf_counter() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
