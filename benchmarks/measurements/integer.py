"""Integer decisions: 200 small problems against enumeration, and the larger ones of the design.

    python benchmarks integer [--cases 200] [--only enumeration tree path matching ...]

- enumeration: trees, paths, assignments, subsets and knapsacks with affine, quadratic and CVaR
  losses, squared and norm costs, solved to a gap of 1e-6; a case is right if its decision is the
  best of all, by formulas written out in `tests/references/integer_cases.py`, and its bound holds.
- tree15: a quadratic tree with n = 15 and m = 35, to a gap of 1e-3, of the paper's kind and with
  uniform costs.
- tree50: the paper's quadratic tree with n = 50 and m = 331, radius 10, to a gap of 1e-2.
- path: a grid with about 100,000 arcs, weights="standardize", three radii.
- matching: worst-case CVaR over perfect matchings of 30 nodes, known by NetworkX alone, to 1e-4.
- round: a tree with m = 10,000 edges, from the mixture to the best tree.
- memory: the path with 100,000 arcs and 1,000 vertices in its active set.

Seconds are of the processor, and of the wall in brackets.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import cvxpy as cp
import networkx as nx
import numpy as np

import wdro_model as wdro
from wdro_model.solvers import BranchAndBound, FrankWolfe

sys.path.insert(0, str(Path(__file__).parents[2]))

GRID = 224


@contextmanager
def timed(name: str) -> Iterator[list[str]]:
    """Print what was put into the list, with the seconds that it took."""
    said: list[str] = []
    wall, processor = time.perf_counter(), time.process_time()
    yield said
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    print(f"{name:<34} {processor:8.2f} s ({wall:.2f})  {'; '.join(said)}", flush=True)


def enumeration(cases: int) -> None:
    """Small problems of all kinds against all their decisions."""
    from tests.references.integer_cases import Case
    from tests.references.integer_cases import cases as some

    right = bounds = 0
    with timed(f"enumeration, {cases} cases") as said:
        for kind, loss, cost, seed in some(cases):
            case = Case(kind, loss, cost, seed)
            case.problem.solve(solver=BranchAndBound(gap=1e-6))
            best = case.risks.min()
            (at,) = np.flatnonzero((case.points == case.x.value).all(axis=1))
            right += bool(case.risks[at] <= best + 2e-6 * abs(best))
            bounds += bool(case.problem.solution.lower_bound <= best * (1 + 1e-6))
        said.append(f"{right} of {cases} are the best, {bounds} bounds hold")


def quadratic(graph: nx.Graph, samples: np.ndarray, gap: float, name: str) -> None:
    """One quadratic tree."""
    m = graph.number_of_edges()
    with timed(name) as said:
        x = cp.Variable(m, boolean=True)
        costs = wdro.UncertainParameter(
            (m, m), samples=samples, support=wdro.supports.Nonnegative()
        )
        problem = wdro.Problem(
            cp.Minimize(wdro.quadratic_form(x, costs)),
            [wdro.In(x, wdro.sets.SpanningTree(graph))],
            ambiguity=wdro.WassersteinBall(10.0),
        )
        problem.solve(solver=BranchAndBound(gap=gap, time_limit=120))
        found = problem.solution
        said.append(f"{found.status}, gap {found.relative_gap:.2e}, {found.iterations} nodes")
        share = found.gap / (found.value - np.sqrt(10.0) * x.value.sum())
        said.append(f"{share:.1%} of the mean loss")


def tree15() -> None:
    """Quadratic trees to 1e-3."""
    for seed in range(3):
        instance = wdro.datasets.quadratic_tree(15, 35, seed=seed)
        samples = instance.training.sample(100, seed=1)
        quadratic(instance.graph, samples, 1e-3, f"tree15, the paper's, seed {seed}")
    graph = nx.gnm_random_graph(15, 35, seed=9)
    samples = np.random.default_rng(9).random((20, 35, 35))
    quadratic(graph, samples, 1e-3, "tree15, uniform")


def tree50() -> None:
    """A quadratic tree to 1e-2."""
    instance = wdro.datasets.quadratic_tree(50, 331, seed=0)
    samples = instance.training.sample(100, seed=1)
    quadratic(instance.graph, samples, 1e-2, "tree50")


def grid() -> tuple[wdro.sets.ShortestPath, np.ndarray]:
    """Paths across a grid, and samples of the times of its arcs."""
    graph = nx.DiGraph()
    for i in range(GRID):
        for j in range(GRID):
            graph.add_edges_from(
                ((i, j), other) for other in ((i + 1, j), (i, j + 1)) if max(other) < GRID
            )
    m = graph.number_of_edges()
    rng = np.random.default_rng(0)
    base, spread = rng.uniform(1, 2, m), rng.uniform(0.05, 0.6, m)
    samples = base * rng.lognormal(0, spread, size=(20, m))
    return wdro.sets.ShortestPath(graph, (0, 0), (GRID - 1, GRID - 1)), samples


def path() -> None:
    """The best path across a large grid."""
    paths, samples = grid()
    x = cp.Variable(paths.dimension, boolean=True)
    times = wdro.UncertainParameter(paths.dimension, samples=samples)
    cost = wdro.costs.SquaredEuclidean(weights="standardize")
    for radius in (1.0, 100.0, 1e4):
        with timed(f"path, {paths.dimension} arcs, radius {radius:g}") as said:
            problem = wdro.Problem(
                cp.Minimize(times @ x), [wdro.In(x, paths)], wdro.WassersteinBall(radius, cost)
            )
            problem.solve()
            said.append(f"{problem.status}, {problem.solution.solver}")


def matching() -> None:
    """Worst-case CVaR over perfect matchings."""
    graph, rng = nx.complete_graph(30), np.random.default_rng(1)
    places, edges = rng.uniform(size=(30, 2)), list(graph.edges)

    def cheapest(costs: np.ndarray) -> np.ndarray:
        weighted = nx.Graph()
        for (a, b), weight in zip(edges, costs):
            weighted.add_edge(a, b, weight=-float(weight))
        chosen = {frozenset(e) for e in nx.max_weight_matching(weighted, maxcardinality=True)}
        return np.array([float(frozenset(e) in chosen) for e in edges])

    length = np.array([np.linalg.norm(places[a] - places[b]) for a, b in edges])
    samples = length * rng.lognormal(0, 0.4, size=(40, len(edges)))
    with timed("matching, CVaR") as said:
        x, t = cp.Variable(len(edges)), cp.Variable()
        costs = wdro.UncertainParameter(len(edges), samples=samples)
        problem = wdro.Problem(
            cp.Minimize(t + cp.pos(costs @ x - t) / 0.2),
            [wdro.In(x, wdro.sets.Oracle(cheapest, len(edges)))],
            ambiguity=wdro.WassersteinBall(0.05),
        )
        problem.solve(method="exact")
        found = problem.solution
        said.append(f"{found.status}, gap {found.relative_gap:.1e}, {found.iterations} iterations")


def rounding() -> None:
    """From a mixture of trees to the best tree."""
    graph, rng = nx.gnm_random_graph(1000, 10_000, seed=0), np.random.default_rng(0)
    m = graph.number_of_edges()
    samples = rng.uniform(1, 2, m) * rng.lognormal(0, rng.uniform(0.05, 0.6, m), size=(100, m))
    x, costs = cp.Variable(m), wdro.UncertainParameter(m, samples=samples)
    cost = wdro.costs.SquaredEuclidean(weights="standardize")
    problem = wdro.Problem(
        cp.Minimize(costs @ x),
        [wdro.In(x, wdro.sets.SpanningTree(graph))],
        wdro.WassersteinBall(100.0, cost),
    )
    problem.solve()
    with timed("round, 10,000 edges") as said:
        said.append(str(problem.round()))


def memory() -> None:
    """What a thousand paths take."""
    paths, samples = grid()
    x, times = (
        cp.Variable(paths.dimension),
        wdro.UncertainParameter(samples.shape[1:], samples=samples),
    )
    problem = wdro.Problem(
        cp.Minimize(times @ x), [wdro.In(x, paths)], ambiguity=wdro.WassersteinBall(1e6)
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with timed("memory, 1500 iterations") as said:
        problem.solve(
            solver=FrankWolfe(gap=1e-9, max_iterations=1500, direction="blended_pairwise")
        )
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        said.append(f"{more:.0f} MB more, {len(problem.solution.active_set)} vertices")


def main() -> None:
    parts: dict[str, Callable[[], None]] = {
        "tree15": tree15,
        "tree50": tree50,
        "path": path,
        "matching": matching,
        "round": rounding,
        "memory": memory,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--only", nargs="+", choices=["enumeration", *parts])
    asked = parser.parse_args()
    chosen = asked.only or ["enumeration", *parts]
    if "enumeration" in chosen:
        enumeration(asked.cases)
    for name in chosen:
        if name in parts:
            parts[name]()


if __name__ == "__main__":
    main()
