"""The smoothed method on large data: many samples, many coordinates, time and memory.

    python benchmarks smoothed_at_size [--quick] [--only NAME]

Each case runs in a process of its own: seconds by the clock and of the processor, status, relative
gap, and by how much the process outgrew the moment when its data lay in memory, declaration
included. One BLAS thread. The script
uses nothing but the public interface: an older version of the library can be put on PYTHONPATH to
compare.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import multiprocessing
import resource
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np

import wdro_model as wdro


def labelled(size: int, features: int) -> np.ndarray:
    """Rows label * features of a noisy linear classifier."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal((size, features))
    weights = rng.standard_normal(features)
    for start in range(0, size, 2**16):
        part = data[start : start + 2**16]
        noisy = part @ weights + rng.logistic(size=len(part))
        part *= np.where(noisy > 0, 1.0, -1.0)[:, None]
    return data


def logistic(size: int, features: int, **options: Any) -> tuple[np.ndarray, Callable]:
    """Logistic regression with |w| <= 5, rows label * features."""
    data = labelled(size, features)
    return data, lambda: on_samples(data, features, **options)


def on_samples(samples: Any, features: int, **options: Any) -> wdro.Problem:
    """The regression, declared and solved."""
    w = cp.Variable(features)
    rows = wdro.UncertainParameter(features, samples=samples)
    problem = wdro.Problem(
        cp.Minimize(cp.logistic(-(rows @ w))),
        [w >= -5, w <= 5],
        ambiguity=wdro.WassersteinBall(0.01),
    )
    problem.solve(method="smoothed", **options)
    return problem


def labels_apart(size: int, features: int, **options: Any) -> tuple[np.ndarray, Callable]:
    """The same with labels of their own, which the adversary does not move."""
    signed = labelled(size, features)
    labels = np.where(np.random.default_rng(1).random(size) < 0.5, -1.0, 1.0)
    signed *= labels[:, None]

    def solve() -> wdro.Problem:
        w = cp.Variable(features)
        rows = wdro.UncertainParameter(features, samples=signed)
        label = wdro.UncertainParameter(samples=labels)
        cost = wdro.costs.SquaredEuclidean(weights={rows: 1.0, label: np.inf})
        problem = wdro.Problem(
            cp.Minimize(cp.logistic(-label * (rows @ w))),
            [w >= -5, w <= 5],
            ambiguity=wdro.WassersteinBall(0.01, cost),
        )
        problem.solve(method="smoothed", **options)
        return problem

    return signed, solve


def mapped(size: int, features: int) -> tuple[np.ndarray, Callable]:
    """The same from a memory map: the data is not in the memory of the process."""
    folder = tempfile.TemporaryDirectory()
    stored = np.memmap(f"{folder.name}/rows", dtype=float, mode="w+", shape=(size, features))
    stored[:] = labelled(size, features)
    stored.flush()
    rows = np.memmap(f"{folder.name}/rows", dtype=float, mode="r", shape=(size, features))
    return rows, lambda: _kept(folder, on_samples(rows, features))


def on_cluster(size: int, features: int) -> tuple[np.ndarray, Callable]:
    """The same through Dask, on two processes of this machine."""
    import dask
    import dask.array as da
    from distributed import Client, LocalCluster

    # Dask's workers give freed memory back at once (MALLOC_TRIM_THRESHOLD_), and every array of an
    # integral then costs its page faults.
    threads = {"OPENBLAS_NUM_THREADS": 1, "OMP_NUM_THREADS": 1}
    dask.config.set({"distributed.nanny.pre-spawn-environ": threads})
    data = labelled(size, features)

    def solve() -> wdro.Problem:
        quiet: dict[str, Any] = {"dashboard_address": None, "silence_logs": 50}
        with (
            LocalCluster(n_workers=2, threads_per_worker=1, processes=True, **quiet) as cluster,
            Client(cluster),
        ):
            return on_samples(da.from_array(data, chunks=(size // 8, features)), features)

    return data, solve


def _kept(folder: Any, problem: wdro.Problem) -> wdro.Problem:
    folder.cleanup()
    return problem


def portfolio(assets: int, size: int, **options: Any) -> tuple[np.ndarray, Callable]:
    """CVaR at 10 % of a portfolio on the simplex."""
    rng = np.random.default_rng(0)
    market = rng.normal(0.0, 0.02, size=(size, 1))
    data = market + rng.normal(0.001, 0.03, size=(size, assets))

    def solve() -> wdro.Problem:
        x, tau = cp.Variable(assets, nonneg=True), cp.Variable()
        returns = wdro.UncertainParameter(assets, samples=data)
        loss = tau + 10 * cp.pos(-(returns @ x) - tau)
        problem = wdro.Problem(
            cp.Minimize(loss),
            [cp.sum(x) == 1, tau >= -1, tau <= 1],
            ambiguity=wdro.WassersteinBall(1e-4),
        )
        problem.solve(method="smoothed", **options)
        return problem

    return data, solve


def tree(nodes: int, edges: int, gap: float) -> tuple[np.ndarray, Callable]:
    """The quadratic spanning tree over nonnegative costs."""
    instance = wdro.datasets.quadratic_tree(nodes, edges, seed=0)
    data = np.array(instance.training.sample(100, seed=1))

    def solve() -> wdro.Problem:
        x = cp.Variable(edges)
        costs = wdro.UncertainParameter(
            (edges, edges), samples=data, support=wdro.supports.Nonnegative()
        )
        problem = wdro.Problem(
            cp.Minimize(wdro.quadratic_form(x, costs)),
            [wdro.In(x, wdro.sets.SpanningTree(instance.graph))],
            ambiguity=wdro.WassersteinBall(10.0),
        )
        problem.solve(method="smoothed", solver=wdro.solvers.FrankWolfe(gap=gap))
        return problem

    return data, solve


def three_forms(size: int) -> tuple[np.ndarray, Callable]:
    """A smooth maximum of three affine forms of the data and zero: rank three."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal((size, 8))

    def solve() -> wdro.Problem:
        x = cp.Variable(8)
        xi = wdro.UncertainParameter(8, samples=data)
        loss = cp.log_sum_exp(
            cp.hstack([xi[:3] @ x[:3], xi[3:6] @ x[3:6], xi[6:] @ x[6:], 0.0])
        ) + 0.1 * cp.sum_squares(x - 1)
        problem = wdro.Problem(
            cp.Minimize(loss), [x >= -2, x <= 2], ambiguity=wdro.WassersteinBall(0.1)
        )
        problem.solve(method="smoothed")
        return problem

    return data, solve


CASES: dict[str, tuple[Callable, Callable]] = {
    "logistic N=20,000 d=10": (lambda: logistic(20_000, 10), lambda: logistic(500, 10)),
    "  the same, epsilon=1e-3": (
        lambda: logistic(20_000, 10, epsilon=1e-3),
        lambda: logistic(500, 10, epsilon=1e-3),
    ),
    "logistic N=1,000,000 d=20": (lambda: logistic(1_000_000, 20), lambda: logistic(5000, 20)),
    "  from a memory map": (lambda: mapped(1_000_000, 20), lambda: mapped(5000, 20)),
    "  on two Dask workers": (lambda: on_cluster(1_000_000, 20), lambda: on_cluster(5000, 20)),
    "  labels apart": (lambda: labels_apart(1_000_000, 20), lambda: labels_apart(5000, 20)),
    "CVaR N=100 d=300": (lambda: portfolio(300, 100), lambda: portfolio(30, 20)),
    "tree n=50 m=331 N=100": (lambda: tree(50, 331, 1e-3), lambda: tree(15, 60, 1e-3)),
    "three forms N=200": (lambda: three_forms(200), lambda: three_forms(20)),
}


def peak() -> float:
    """The most memory that the process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(name: str, quick: bool) -> None:
    """One case, its line printed."""
    warnings.simplefilter("ignore")
    data, solve = CASES[name][int(quick)]()
    before, began, worked = peak(), time.perf_counter(), time.process_time()
    solution = solve().solution
    seconds, busy = time.perf_counter() - began, time.process_time() - worked
    print(
        f"{name:<28}{seconds:9.2f}{busy:9.2f}{solution.status:>20}{solution.relative_gap:10.1e}"
        f"{solution.value:14.8f}{data.nbytes / 2**20:10.0f}{peak() - before:10.0f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    print(
        f"{'':<28}{'seconds':>9}{'busy':>9}{'status':>20}{'gap':>10}{'value':>14}"
        f"{'data MB':>10}{'more MB':>10}"
    )
    start = multiprocessing.get_context("spawn")
    for name in CASES:
        if arguments.only in name:
            process = start.Process(target=measure, args=(name, arguments.quick))
            process.start()
            process.join()


if __name__ == "__main__":
    main()
