"""Problems that have something in common, solved and judged in threads, as one after the other."""

import pickle
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest

import wdro_model as wdro

THREADS = 4
RADII = np.linspace(0.01, 0.4, 12)


@pytest.fixture(autouse=True)
def threads_take_turns_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


def samples(size, seed=0, count=15):
    return np.random.default_rng(seed).uniform(0.5, 2.0, (count, size))


def portfolio(cost, x=None, **more):
    x = cp.Variable(4, nonneg=True) if x is None else x
    xi = wdro.UncertainParameter(4, samples=samples(4), **more)
    loss = wdro.cvar(-xi @ x, 0.8)
    return wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], wdro.WassersteinBall(0.1, cost))


def over_a_set(made, cost, x=None, **attributes):
    x = cp.Variable(made.dimension, **attributes) if x is None else x
    xi = wdro.UncertainParameter(made.dimension, samples=samples(made.dimension))
    ball = wdro.WassersteinBall(0.1, cost)
    return wdro.Problem(cp.Minimize(cp.square(xi @ x)), [wdro.In(x, made)], ball)


def knapsack():
    x = cp.Variable(4, boolean=True)
    xi = wdro.UncertainParameter(4, samples=samples(4))
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(1))
    loss = cp.abs(xi @ x - 2.0)
    return wdro.Problem(cp.Minimize(loss), [x @ [1.0, 2, 3, 1] <= 5, cp.sum(x) >= 1], ball)


def constrained():
    x = cp.Variable(3, nonneg=True)
    xi = wdro.UncertainParameter(3, samples=samples(3))
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(1))
    limits = [cp.sum(x) == 1, wdro.cvar(xi @ x, 0.8) <= 3.0]
    return wdro.Problem(cp.Minimize(-xi @ x), limits, ball)


def trees(nodes, **options):
    return wdro.sets.SpanningTree(nx.complete_graph(nodes), **options)


def newsvendor():
    order = cp.Variable(2, nonneg=True)
    demand = wdro.UncertainParameter(2, samples=samples(2), nonneg=True)
    loss = cp.sum(order) - 3.0 * cp.sum(cp.minimum(order, demand))
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(1))
    return wdro.Problem(cp.Minimize(loss), [order <= 5], ball)


def grid():
    return nx.DiGraph([(0, 1), (1, 3), (0, 2), (2, 3), (1, 2)])


QUADRATIC = wdro.costs.SquaredEuclidean()
MODELS = {
    "clarabel": (lambda: portfolio(QUADRATIC), {}),
    "a polyhedron": (
        lambda: portfolio(
            wdro.costs.Norm(2),
            support=wdro.supports.Polyhedron(np.vstack([np.eye(4), -np.eye(4)]), [3.0] * 8),
        ),
        {},
    ),
    "highs": (lambda: portfolio(wdro.costs.Norm(1)), {"solver": "HIGHS"}),
    "smoothed": (newsvendor, {"method": "smoothed", "epsilon": 0.1}),
    "shortest paths": (lambda: over_a_set(wdro.sets.ShortestPath(grid(), 0, 3), QUADRATIC), {}),
    "spanning trees": (
        lambda: over_a_set(trees(4), QUADRATIC),
        {},
    ),
    "assignments": (lambda: over_a_set(wdro.sets.Assignment(3), QUADRATIC), {}),
    "trees of choice": (
        lambda: over_a_set(wdro.sets.SpanningTree(nx.cycle_graph(4)), QUADRATIC, boolean=True),
        {},
    ),
    "integers": (knapsack, {}),
    "uncertain constraints": (constrained, {}),
}


def in_threads(work, tasks):
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, tasks))


def solved(problem, radius, options):
    twin = problem.with_radius(radius)
    twin.solve(progress=False, **options)
    [decision] = [v for v in twin.solution.decision.values() if v.size > 1]
    return twin.solution.value, decision, twin


@pytest.mark.parametrize("name", MODELS)
def test_twins_in_threads_are_as_good_as_one_after_the_other(name):
    make, options = MODELS[name]
    alone = make()
    alone.solve(progress=False, **options)
    expected = [solved(alone, radius, options) for radius in RADII]
    shared = make()
    shared.solve(progress=False, **options)
    found = in_threads(lambda radius: solved(shared, radius, options), RADII)
    for (value, decision, _), (true, other, _) in zip(found, expected):
        assert value == pytest.approx(true, rel=1e-4, abs=1e-6)
        if name != "integers":
            assert decision == pytest.approx(other, abs=3e-2)


@pytest.mark.parametrize("name", ["clarabel", "highs", "spanning trees"])
def test_twins_are_judged_in_threads_by_their_own_decisions(name):
    make, options = MODELS[name]
    problem = make()
    twins = [solved(problem, radius, options)[2] for radius in RADII[::2]]

    def judged(twin):
        numbers = [twin.evaluate().mean, twin.robust_value(), twin.worst_case().expected_loss]
        return [*numbers, *twin.losses()]

    expected = [judged(twin) for twin in twins]
    for found, true in zip(in_threads(judged, twins), expected):
        assert found == pytest.approx(true, rel=1e-6, abs=1e-8)


def test_problems_that_share_a_variable_or_a_set_may_be_solved_in_threads():
    x, tree = cp.Variable(4, nonneg=True), trees(4)
    problems = [portfolio(QUADRATIC, x), portfolio(wdro.costs.Norm(1), x)]
    problems += [over_a_set(tree, QUADRATIC), over_a_set(tree, QUADRATIC)]
    expected = [problem.solve() for problem in problems]
    tasks = 5 * list(range(len(problems)))
    found = in_threads(lambda k: problems[k].with_radius(problems[k].radius).solve(), tasks)
    assert found == pytest.approx([expected[k] for k in tasks], rel=1e-4)


def test_other_samples_and_building_are_safe_in_threads():
    x = cp.Variable(4, nonneg=True)
    problem = portfolio(QUADRATIC, x)
    problem.solve()

    def work(seed):
        built = portfolio(wdro.costs.Norm(2), x)
        return problem.with_samples(samples(4, seed)).solve(), built.solve()

    expected = [work(seed) for seed in range(10)]
    found = in_threads(work, range(10))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_selections_and_comparisons_run_in_threads():
    problem = portfolio(QUADRATIC)
    problem.solve()

    def work(k):
        chosen = wdro.select_radius(problem, RADII[:3], folds=3, progress=False)
        report = wdro.compare(problem.with_radius(RADII[k]), methods=("erm", "exact"))
        return [*np.ravel(chosen.scores), *(entry.solution.value for entry in report.entries)]

    expected = [work(k) for k in range(4)]
    for found, true in zip(in_threads(work, range(4)), expected):
        assert found == pytest.approx(true, rel=1e-6)


def test_a_set_can_be_asked_in_threads():
    """A tree by its CVXPY form is minimised by a solver that stays alive between calls."""
    made = trees(6, backend="cvxpy")
    directions = np.random.default_rng(0).standard_normal((60, made.dimension))
    expected = [made.minimize(direction) for direction in directions]
    found = in_threads(made.minimize, directions)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_problems_with_nothing_in_common_do_not_wait():
    """One thread holds a problem in the middle of its solve; another problem is solved."""
    entered, leave = threading.Event(), threading.Event()

    def slow(direction):
        entered.set()
        assert leave.wait(20)
        return np.eye(3)[np.argmin(direction)]

    leave.set()
    held = over_a_set(wdro.sets.Oracle(slow, 3, bounds=(0, 1)), QUADRATIC)
    leave.clear()
    entered.clear()
    worker = threading.Thread(target=lambda: held.solve(progress=False))
    worker.start()
    try:
        assert entered.wait(20)
        assert np.isfinite(portfolio(QUADRATIC).solve())
        assert np.isfinite(pickle.loads(pickle.dumps(portfolio(QUADRATIC))).solve())
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="another thread solved a problem that shares"):
            held.solve(time_limit=0.2)
        assert time.monotonic() - began < 2.0
    finally:
        leave.set()
        worker.join()
    assert np.isfinite(held.value)
