"""The smoothed quadratic spanning tree, certified, against the paper's sampler.

    python benchmarks smoothed_tree [--quick]

Graph with 50 nodes and 331 edges, 100 samples. The sampler's time for 5000 iterations is its
median time per iteration over a short run in the same process; ours is the whole solve, once
warmed up. One BLAS thread.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import time
import warnings

import cvxpy as cp
import numpy as np

import wdro_model as wdro
from wdro_model.solvers import FrankWolfe, MomentumFrankWolfe

ITERATIONS = 5000


def tree_problem(nodes: int, edges: int, support: wdro.supports.Support) -> wdro.Problem:
    instance = wdro.datasets.quadratic_tree(nodes, edges, seed=0)
    tree = wdro.sets.SpanningTree(instance.graph)
    x = cp.Variable(edges, name="x")
    samples = instance.training.sample(100, seed=1)
    costs = wdro.UncertainParameter((edges, edges), name="costs", samples=samples, support=support)
    return wdro.Problem(
        cp.Minimize(wdro.quadratic_form(x, costs)),
        [wdro.In(x, tree)],
        ambiguity=wdro.WassersteinBall(10.0),
    )


def sampler_seconds(problem: wdro.Problem, epsilon: float, steps: int) -> float:
    """Median seconds per iteration of the paper's algorithm, S = 10, b = 10."""
    solver = MomentumFrankWolfe(batch_size=10, samples=10, max_iterations=steps, dual_bound=2.0)
    problem.solve(method="smoothed", epsilon=epsilon, solver=solver)
    return float(np.median(np.diff(problem.solution.trace["time"])))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    nodes, edges, steps = (15, 60, 20) if quick else (50, 331, 12)
    warnings.simplefilter("ignore")
    print(f"{'support':<14}{'gap':>8}{'ours s':>9}{'status':>12}{'sampler s/it':>14}{'ratio':>9}")
    cases = [("R^d", wdro.supports.Everywhere(), 1e-4, 500)]
    cases.append(("nonnegative", wdro.supports.Nonnegative(), 1e-3, 5))
    for name, support, gap, target in cases:
        problem = tree_problem(nodes, edges, support)
        if name == "R^d":
            problem.solve(method="smoothed", solver=FrankWolfe(gap=gap))
        began = time.perf_counter()
        problem.solve(method="smoothed", solver=FrankWolfe(gap=gap))
        ours, solution = time.perf_counter() - began, problem.solution
        each = sampler_seconds(problem, solution.epsilon, steps)
        ratio = ITERATIONS * each / ours
        print(
            f"{name:<14}{solution.relative_gap:8.1e}{ours:9.2f}{solution.status:>12}"
            f"{each:14.3f}{ratio:9.0f}  (target {target})",
            flush=True,
        )


if __name__ == "__main__":
    main()
