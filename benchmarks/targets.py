"""The speed that is aimed at, each line of it measured beside what it is held against.

A measurement yields `Figure`s; `WHY` says what stands in the way where an aim is not met.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("AEQ_SHOW_PROGRESS", "FALSE")

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import cvxpy as cp
import numpy as np
from figures import Figure, busy, medians, peak

import wdro_model as wdro
from wdro_model.solvers import BranchAndBound, FrankWolfe


# ------------------------------------------------------------------ losses and oracles
def batched_losses() -> Iterator[Figure]:
    """A CVXPY loss lowered to NumPy, with its gradient, against the same by hand."""
    import batched_loss as losses

    rng = np.random.default_rng(7)
    cases = (losses.traffic, losses.portfolio, losses.symmetric_quadratic, losses.logistic)
    for make in cases:
        case = make(rng)
        by_hand, ours = losses.measure(case)
        name = f"values and gradient: {case.name}"
        yield Figure(name, ours / 1e3, by_hand / 1e3, "NumPy by hand", 2.0)


def linear_oracles() -> Iterator[Figure]:
    """Linear minimisation over CVXPY constraints against CVXPY's own re-solve."""
    import linear_oracle as oracle

    for build in (oracle.flow, oracle.random_program):
        name, constraints, x, draw = build(np.random.default_rng(0))
        for drift in (True, False):
            sequence = list(oracle.directions(draw, drift))
            found = {
                label: oracle.median(call, sequence)[0] / 1e3
                for label, call in oracle.contenders(constraints, x)
            }
            kind = "Frank-Wolfe's directions" if drift else "random directions"
            text = f"linear oracle: {name}, {kind}"
            other = found["CVXPY, CLARABEL"]
            yield Figure(text, found["compiled"], other, "CVXPY's re-solve", 1 / 15)


def tree_iteration() -> Iterator[Figure]:
    """What an iteration takes beside its oracle, over trees with 10,000 edges."""
    import networkx as nx

    graph, rng = nx.gnm_random_graph(1000, 10_000, seed=0), np.random.default_rng(0)
    tree = wdro.sets.SpanningTree(graph)
    m, spent = tree.dimension, [0.0]
    samples = rng.uniform(1, 2, m) * rng.lognormal(0, 0.3, size=(50, m))

    def timed(direction: np.ndarray) -> np.ndarray:
        seconds, vertex = busy(lambda: tree.minimize(direction))
        spent[0] += seconds
        return vertex

    x, costs = cp.Variable(m), wdro.UncertainParameter(m, samples=samples)
    members = [wdro.In(x, wdro.sets.Oracle(timed, m))]
    problem = wdro.Problem(cp.Minimize(costs @ x), members, wdro.WassersteinBall(100.0))
    counts = []
    for iterations in (20, 120):
        spent[0] = 0.0
        solver = FrankWolfe(gap=1e-12, max_iterations=iterations, direction="plain")
        seconds, _ = busy(partial(problem.solve, solver=solver))
        counts.append((seconds - spent[0], problem.solution.iterations))
    (few, less), (many, more) = counts
    each = (many - few) / (more - less)
    yield Figure("an iteration without its oracle, tree of 10,000 edges", each, aim=1e-3)


# ------------------------------------------------------------------ traffic
def all_or_nothing() -> Iterator[Figure]:
    """All trips on shortest paths, against NetworkX."""
    import all_or_nothing as loading

    aims = {"Sioux Falls": {"scipy": 5.9, "numba": 51.0}, "city": {"scipy": 25.0, "numba": 120.0}}
    for network in (wdro.datasets.sioux_falls(), loading.city(np.random.default_rng(0))):
        rng = np.random.default_rng(1)
        weights = network.free_flow_time * rng.uniform(1, 2, (4, network.n_arcs))
        names = ("networkx", "scipy", "numba")
        sets = [wdro.sets.TrafficFlows(network, backend=name) for name in names]

        def each(flows: Any, weights: np.ndarray = weights) -> None:
            for row in weights:
                flows.minimize(row)

        rounds = 30 if network.n_arcs < 100 else 3
        spent = dict(zip(names, medians(*[partial(each, s) for s in sets], rounds=rounds)))
        for name, aim in aims[network.name].items():
            text = f"all-or-nothing, {network.n_arcs} arcs, {name}"
            seconds, other = spent[name] / 4, spent["networkx"] / 4
            yield Figure(text, seconds, other, "NetworkX", 1 / aim)


def equilibria() -> Iterator[Figure]:
    """User equilibria to 1e-6 on bushes, against link flows and AequilibraE."""
    import assignment
    import equilibria as benchmark

    networks = assignment.networks(["sioux", "anaheim", "massachusetts"])
    for network in [*networks, benchmark.grid(26, 387)]:
        calls = benchmark.contenders(network, 60.0)
        if network.n_arcs > 1000:  # AequilibraE takes minutes
            calls = {name: call for name, call in calls.items() if not name.startswith("Aeq")}
        runs = benchmark.measured(calls, 1 if network.n_arcs > 1000 else 3)
        spent = {name: benchmark.seconds(found)[0] for name, found in runs.items()}
        name = f"user equilibrium to 1e-6, {network.name}"
        ours, links = spent["bushes, 1e-6"], spent[benchmark.LINKS]
        yield Figure(name, ours, links, "link flows", 1 / 3)
        if "AequilibraE bfw, 1e-6" in spent:
            other = spent["AequilibraE bfw, 1e-6"]
            yield Figure(name, ours, other, "AequilibraE", 1 / 15)
        yield Figure(f"{name.replace('1e-6', '1e-10')}", spent["bushes, 1e-10"])


def robust_traffic() -> Iterator[Figure]:
    """Robust Sioux Falls, N = 100, certified, against one assignment by AequilibraE."""
    import assignment

    other = None
    if find_spec("aequilibrae"):
        logging.getLogger("aequilibrae").setLevel(logging.ERROR)
        network = wdro.datasets.sioux_falls()
        runs = [assignment.aequilibrae(network, name) for name in ("cfw", "bfw", "cfw", "bfw")]
        other = min(run.processor for run in runs)
    assignment.robust(assignment.CASES[-1], count=5, gap=0.1)
    for case in assignment.CASES:
        run, solution = assignment.robust(case)
        aim = 1.0 if case.radius <= 5 else None
        text = f"robust Sioux Falls to 1e-3, {case}"
        beside = "AequilibraE, one scenario to 1e-4"
        yield Figure(
            text,
            run.processor,
            other,
            beside if other else "",
            aim if other else None,
            note=str(solution.status),
        )


def robust_cities() -> Iterator[Figure]:
    """Robust flows of other networks, N = 100, radius 5 in deviations, to 1e-4."""
    import assignment
    import equilibria

    case = assignment.Case(5.0, "standardize", None)
    assignment.robust(case, count=5, gap=0.1)
    cities = [*assignment.networks(["anaheim", "massachusetts"]), equilibria.grid(28, 200)]
    for network in cities:
        run, solution = assignment.robust(case, gap=assignment.GAP, network=network)
        text = f"robust {network.name}, {network.n_arcs} arcs, to 1e-4, radius 5, standardize"
        yield Figure(text, run.processor, note=f"{solution.status}, {run.iterations} iterations")


def traffic_path() -> Iterator[Figure]:
    """Eight radii of robust Sioux Falls in a row, against one of them alone."""
    import assignment

    assignment.robust(assignment.CASES[-1], count=5, gap=0.1)
    alone, path = assignment.radii_apart_and_in_a_row()
    text = "robust Sioux Falls to 1e-4, path of 8 radii from 0.5 to 20"
    yield Figure(text, path, float(np.mean(alone)), "one of them alone, mean", 3.0)
    yield Figure(text, path, max(alone), "one of them alone, the dearest", 3.0)


# ------------------------------------------------------------------ trees
def smoothed_trees() -> Iterator[Figure]:
    """The paper's quadratic tree, certified, against 5000 iterations of its sampler."""
    import smoothed_tree as trees

    cases = (("R^d", wdro.supports.Everywhere(), 1e-4, 5000),)
    cases += (("nonnegative", wdro.supports.Nonnegative(), 1e-3, 500),)
    for name, support, gap, aim in cases:
        problem = trees.tree_problem(50, 331, support)
        solve = partial(problem.solve, method="smoothed", solver=FrankWolfe(gap=gap))
        solve()
        seconds, _ = busy(solve)
        solution = problem.solution
        each = trees.sampler_seconds(problem, solution.epsilon, 12)
        text = f"smoothed quadratic tree, 331 edges, {name}, to {gap:g}"
        beside = "the paper's sampler, 5000 iterations"
        sampler = trees.ITERATIONS * each
        yield Figure(text, seconds, sampler, beside, 1 / aim, note=str(solution.status))


def integer_tree() -> Iterator[Figure]:
    """One tree of 331 edges and its proof."""
    instance = wdro.datasets.quadratic_tree(50, 331, seed=0)
    x = cp.Variable(331, boolean=True)
    costs = wdro.UncertainParameter(
        (331, 331),
        samples=instance.training.sample(100, seed=1),
        support=wdro.supports.Nonnegative(),
    )
    tree = wdro.sets.SpanningTree(instance.graph)
    ball = wdro.WassersteinBall(10.0)
    problem = wdro.Problem(
        cp.Minimize(wdro.quadratic_form(x, costs)), [wdro.In(x, tree)], ambiguity=ball
    )
    seconds, _ = busy(partial(problem.solve, solver=BranchAndBound(gap=1e-2, time_limit=120)))
    note = f"gap {problem.solution.relative_gap:.2%}"
    yield Figure("integer quadratic tree, 331 edges, to 1%", seconds, aim=10.0, note=note)


def memory_of_matrices() -> Iterator[Figure]:
    """The quadratic tree with 1225 edges: what a smoothed solve takes beside its data."""
    instance = wdro.datasets.quadratic_tree(50, 1225, seed=0)
    samples = instance.training.sample(100, seed=1)
    x, tree = cp.Variable(1225), wdro.sets.SpanningTree(instance.graph)
    costs = wdro.UncertainParameter((1225, 1225), samples=samples)
    ball = wdro.WassersteinBall(10.0)
    loss = wdro.quadratic_form(x, costs)
    before = peak()
    problem = wdro.Problem(cp.Minimize(loss), [wdro.In(x, tree)], ambiguity=ball)
    problem.solve(method="smoothed")
    data = samples.nbytes / 2**20
    text = "memory beside the data, quadratic tree, 1225 edges, N = 100"
    note = f"the data has {data:.0f} MB"
    yield Figure(text, peak() - before, aim=0.5 * data, unit="MB", note=note)


def memory_of_vertices() -> Iterator[Figure]:
    """A path over 100,000 arcs with a thousand vertices in its active set."""
    import integer

    paths, samples = integer.grid()
    x = cp.Variable(paths.dimension)
    times = wdro.UncertainParameter(paths.dimension, samples=samples)
    ball = wdro.WassersteinBall(1e6)
    problem = wdro.Problem(cp.Minimize(times @ x), [wdro.In(x, paths)], ambiguity=ball)
    before = peak()
    solver = FrankWolfe(gap=1e-9, max_iterations=1500, direction="blended_pairwise")
    problem.solve(solver=solver)
    note = f"{len(problem.solution.active_set)} vertices"
    text = "memory of a path with 100,000 arcs"
    yield Figure(text, peak() - before, aim=200.0, unit="MB", note=note)


# ------------------------------------------------------------------ exact programs
def exact_programs() -> Iterator[Figure]:
    """Declared and solved, against programs written by hand in CVXPY."""
    import exact_portfolio as portfolio
    import solve_again

    for size, rounds in ((100, 25), (1000, 7), (10_000, 3)):
        data = portfolio.returns(size)
        for order in (1, 2):
            works = partial(portfolio.ours, data, order), partial(portfolio.by_hand, data, order)
            ours, other = medians(*works, rounds=rounds)
            text = f"CVaR portfolio, order {order}, N = {size}, declared and solved"
            yield Figure(text, ours, other, "CVXPY by hand", 1.2)
    for size, aim in ((100, 1.2), (512, 2.0)):
        for name, (ours_of, other_of) in solve_again.small_pairs(size).items():
            ours, other = medians(ours_of, other_of, rounds=25)
            text = f"{name}, N = {size}, d = 4, declared and solved"
            yield Figure(text, ours, other, "CVXPY by hand", aim)


def peers() -> Iterator[Figure]:
    """The CVaR portfolio, N = 100, by RSOME and PICOS where they are installed."""
    import exact_portfolio as portfolio

    ours = medians(partial(portfolio.ours, portfolio.returns(100), 1))[0]
    for name in portfolio.PEERS:
        if find_spec(name) is None:
            continue
        found = portfolio.with_limit(name, 100, 120.0)
        text = "CVaR portfolio, order 1, N = 100, declared and solved"
        other, note = (120.0, "stopped there") if found is None else (found[0], "")
        yield Figure(text, ours, other, name.upper(), note=note)


def again() -> Iterator[Figure]:
    """Another radius, another parameter, other data."""
    import solve_again

    for name, ours, other, aim in solve_again.repeated(40):
        yield Figure(name, ours, other, "CVXPY's re-solve", aim)


def radius_paths() -> Iterator[Figure]:
    """Twenty radii, against a warm loop in highspy."""
    import solve_again

    for size, rounds in ((30, 25), (300, 15), (3000, 3)):
        found = solve_again.path_times(size, rounds)
        beside = "a warm loop in highspy"
        name = f"path of 20 radii, N = {size}"
        yield Figure(name, found.compiled, found.highspy, beside, 2.0)
        name = f"{name}, with declaring and compiling"
        yield Figure(name, found.declared, found.built, f"{beside}, with building its model")


def exact_logistic() -> Iterator[Figure]:
    """The instances of Li, Huang and So, up to 10,000 x 100."""
    import solve_again

    for size, features in ((1000, 100), (10_000, 10), (10_000, 100)):
        x, y = solve_again.instance(size, features)
        for p in (np.inf, 2.0):
            problem = solve_again.logistic(x, y, p)
            seconds, value = busy(partial(problem.solve, method="exact"))
            norm = "l-infinity" if p == np.inf else "l2"
            text = f"exact logistic, labels held, {size} x {features}, {norm}"
            note = f"{problem.status}, value {value:.6f}"
            yield Figure(text, seconds, aim=3.0, note=note)


# ------------------------------------------------------------------ large data
def smoothed_samples() -> Iterator[Figure]:
    """A million samples in memory."""
    import smoothed_at_size as size

    data, solve = size.logistic(1_000_000, 20)
    beside = f"memory beside the data ({data.nbytes / 2**20:.0f} MB)"
    yield from _with_memory("smoothed logistic, N = 1,000,000, d = 20", solve, beside)


def smoothed_map() -> Iterator[Figure]:
    """A million samples from a memory map."""
    import smoothed_at_size as size

    _, solve = size.mapped(1_000_000, 20)
    more = "more than the process held before (pages of the map count)"
    yield from _with_memory("smoothed logistic, N = 1,000,000, from a memory map", solve, more)


def _with_memory(text: str, solve: Callable[[], wdro.Problem], what: str) -> Iterator[Figure]:
    """Time and memory of one solve."""
    before = peak()
    seconds, problem = busy(solve)
    note = f"{problem.status}, value {problem.value:.12f}"
    yield Figure(text, seconds, aim=60.0, note=note)
    yield Figure(f"{text}: {what}", peak() - before, aim=500.0, unit="MB")


def smoothed_cluster() -> Iterator[Figure]:
    """A million samples on two processes of Dask."""
    import smoothed_at_size as size

    _, solve = size.on_cluster(1_000_000, 20)
    began = time.perf_counter()
    problem = solve()
    seconds = time.perf_counter() - began
    text = "smoothed logistic, N = 1,000,000, on two Dask workers, by the clock"
    note = f"{problem.status}, value {problem.value:.12f}"
    yield Figure(text, seconds, aim=60.0, note=note)


def quasi_newton() -> Iterator[Figure]:
    """Smoothed logistic regression on a ball and without constraints, to 1e-6."""
    import solve_again

    for name, problem in solve_again.smoothed_problems().items():
        solver = wdro.solvers.QuasiNewton(gap=1e-6)
        seconds, _ = busy(partial(problem.solve, method="smoothed", solver=solver))
        note = f"{problem.status}, gap {problem.solution.relative_gap:.0e}"
        yield Figure(f"smoothed logistic, d = 30, {name}, to 1e-6", seconds, aim=3.0, note=note)


TARGETS: dict[str, Callable[[], Iterator[Figure]]] = {
    measure.__name__: measure
    for measure in (
        batched_losses,
        linear_oracles,
        all_or_nothing,
        equilibria,
        smoothed_trees,
        robust_traffic,
        robust_cities,
        traffic_path,
        exact_programs,
        peers,
        again,
        radius_paths,
        exact_logistic,
        quasi_newton,
        smoothed_samples,
        smoothed_map,
        smoothed_cluster,
        tree_iteration,
        integer_tree,
        memory_of_matrices,
        memory_of_vertices,
    )
}
"""In the order of the page."""

WHY: dict[str, str] = {
    "batched_losses": "**Losses**: by hand the logarithms of 76 flows are taken once and flows of "
    "zero are not provided for; a matrix is read once by hand, where it is known to be symmetric, "
    "and twice here, where draws of it may not be.",
    "linear_oracles": "**Linear oracles**: for directions that have nothing to do with each other "
    "half (flows) to three quarters (random programs) of a call is HiGHS' simplex method, which "
    "goes on from the last basis.",
    "all_or_nothing": "**All-or-nothing**: a call takes as long as in the version before (both in "
    "one run); the ratio to NetworkX was 52 and 154 in other runs, and less in this one.",
    "exact_programs": "**Small programs**: what is done beside the program written by hand takes 6 "
    "(portfolio), 13 (least squares) and 26 ms (logistic) at N = 100; a third of the last is "
    "choosing and writing the counterpart.",
    "radius_paths": "**Paths of thirty samples**: HiGHS takes 0.1 to 0.2 ms a radius from its last "
    "basis; checking and reporting an answer takes as much again, and both vary from run to run.",
    "traffic_path": "**Paths of robust flows**: half of what a radius takes in a path is its "
    "certificate and what depends on the radius alone, and a single solve takes as much: the "
    "faster those are, the fewer of them a path is worth. In other runs, and on other radii, a "
    "path took 2.9 to 3.9 times the mean of its radii, 2.1 to 2.8 times the dearest.",
    "robust_traffic": "**Robust flows**: AequilibraE's time for one scenario was 1.1 to 4.5 s in "
    "different runs.",
}
"""Why an aim of a measurement is not met, for the page."""
