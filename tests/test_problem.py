"""Problems from declaration to solution, as a user sees them."""

from __future__ import annotations

import copy
import itertools
import warnings

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wdro_model as wdro
from wdro_model.solvers import Conic, FrankWolfe, MomentumFrankWolfe


# ------------------------------------------------------------------ as documented
def test_cvxpy_constraints_as_documented(rng):
    data = rng.normal(0.05, 0.2, size=(40, 10))
    x = cp.Variable(10, nonneg=True)
    returns = wdro.UncertainParameter(10, samples=data)
    problem = wdro.Problem(
        cp.Minimize(-returns @ x),
        [cp.sum(x) == 1],
        ambiguity=wdro.WassersteinBall(radius=0.01, cost=wdro.costs.SquaredEuclidean()),
    )
    problem.solve()
    w = cp.Variable(10, nonneg=True)
    by_hand = cp.Problem(cp.Minimize(-data.mean(axis=0) @ w + 0.1 * cp.norm(w)), [cp.sum(w) == 1])
    assert problem.value == pytest.approx(by_hand.solve(solver=cp.CLARABEL), abs=1e-7)
    assert problem.status == "optimal"
    assert x.value == pytest.approx(w.value, abs=1e-4)
    assert problem.solution.method == "exact"


def test_combinatorial_oracle_as_documented():
    instance = wdro.datasets.quadratic_tree(8, 20, seed=0)
    graph, m, matrices = instance.graph, 20, instance.training.sample(20, seed=1)
    tree = wdro.sets.SpanningTree(graph)
    x = cp.Variable(tree.dimension)
    costs = wdro.UncertainParameter((m, m), samples=matrices, support=wdro.supports.Nonnegative())
    problem = wdro.Problem(
        cp.Minimize(wdro.quadratic_form(x, costs)),
        [wdro.In(x, tree)],
        ambiguity=wdro.WassersteinBall(radius=10.0),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(
            method="smoothed",
            epsilon=1e-4,
            solver=MomentumFrankWolfe(batch_size=10, samples=10, max_iterations=50),
        )
        assert problem.solution.iterations == 50
        problem.solve(method="exact")
        exact = problem.value
        problem.solve(method="erm")
    assert problem.value < exact
    text = problem.explain()
    for word in ("affine in the data", "spanning trees", "kruskal", "exact", "Frank-Wolfe"):
        assert word in text


def test_plain_cvxpy_problem_solves_by_name(rng):
    x = cp.Variable(3, nonneg=True)
    xi = wdro.UncertainParameter(3, samples=rng.normal(size=(20, 3)))
    constraints = [cp.sum(x) == 1]
    ball = wdro.WassersteinBall(0.1)
    plain = cp.Problem(cp.Minimize(xi @ x), constraints)
    expected = wdro.Problem(cp.Minimize(xi @ x), constraints, ball).solve()
    assert plain.solve(method="wdro", ambiguity=ball) == pytest.approx(expected)


def test_accidental_nominal_solve_is_refused_by_cvxpy(rng):
    x = cp.Variable(3)
    xi = wdro.UncertainParameter(3, name="xi", samples=rng.normal(size=(20, 3)))
    with pytest.raises(cp.error.ParameterError):
        cp.Problem(cp.Minimize(xi @ x), [x == 1]).solve()


# ------------------------------------------------------------------ radius
@pytest.mark.parametrize("method", ["exact", "smoothed", "auto"])
def test_radius_zero_is_erm(portfolio, method):
    problem, x, _ = portfolio
    erm = problem.solve(method="erm")
    decision = x.value.copy()
    still = problem.with_radius(0.0)
    assert still.solve(method=method) == pytest.approx(erm, abs=1e-9)
    assert x.value == pytest.approx(decision, abs=1e-6)


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 5), st.floats(0, 5), st.integers(0, 1000))
def test_larger_radius_never_lowers_the_exact_value(first, second, seed):
    rng = np.random.default_rng(seed)
    x = cp.Variable(3, nonneg=True)
    xi = wdro.UncertainParameter(3, samples=rng.normal(size=(5, 3)))
    problem = wdro.Problem(cp.Minimize(xi @ x), [cp.sum(x) == 1], wdro.WassersteinBall(1.0))
    low, high = sorted((first, second))
    values = [problem.with_radius(r).solve(method="exact") for r in (low, high)]
    assert values[0] <= values[1] + 1e-7


def test_order_two_radius_is_a_distance(portfolio):
    problem, _, _ = portfolio
    by_distance = wdro.Problem(
        problem.objective, problem.constraints, wdro.WassersteinBall.order(2, 0.2)
    )
    assert by_distance.solve() == pytest.approx(problem.solve(), abs=1e-8)


# ------------------------------------------------------------------ exact against brute force
def worst_case_by_ascent(loss, slope, data, radius, weights, lower, upper):
    """max of mean f over moves of each sample within the budget: bisection on the multiplier."""
    low, high = 1e-12, 1e12
    for _ in range(200):
        dual = np.sqrt(low * high)
        moves = np.clip(slope / (2 * dual * weights), lower - data, upper - data)
        if (weights * moves**2).sum(axis=1).mean() > radius:
            low = dual
        else:
            high = dual
    return float(np.mean([loss(row) for row in data + moves]))


@pytest.mark.parametrize("support", ["everywhere", "box", "half-line"])
@pytest.mark.parametrize("weighted", [False, True])
def test_exact_affine_value_is_the_worst_case(support, weighted, rng):
    data = rng.uniform(0.2, 0.8, size=(7, 3))
    supports = {
        "everywhere": (wdro.supports.Everywhere(), -np.inf, np.inf),
        "box": (wdro.supports.Box(0, 1), 0.0, 1.0),
        "half-line": (wdro.supports.Nonnegative(), 0.0, np.inf),
    }
    where, lower, upper = supports[support]
    weights = np.array([1.0, 4.0, 0.5]) if weighted else np.ones(3)
    x = cp.Variable(3)
    xi = wdro.UncertainParameter(3, samples=data, support=where)
    cost = wdro.costs.SquaredEuclidean(weights=weights if weighted else None)
    problem = wdro.Problem(
        cp.Minimize(cp.sum_squares(x) + xi @ x + cp.sum(xi)),
        [x >= -2, x <= 1],
        ambiguity=wdro.WassersteinBall(0.05, cost),
    )
    value = problem.solve(method="exact", solver=FrankWolfe(gap=1e-7))
    at = x.value

    def loss(row):
        return at @ at + row @ at + row.sum()

    reference = worst_case_by_ascent(loss, at + 1, data, 0.05, weights, lower, upper)
    assert value == pytest.approx(reference, rel=1e-6)
    assert problem.solution.robust_value == pytest.approx(reference, rel=1e-6)


def test_box_so_small_that_the_radius_does_not_bind(rng):
    data = rng.uniform(0.4, 0.6, size=(6, 2))
    x = cp.Variable(2, nonneg=True)
    xi = wdro.UncertainParameter(2, samples=data, support=wdro.supports.Box(0, 1))
    problem = wdro.Problem(cp.Minimize(xi @ x), [cp.sum(x) == 1], wdro.WassersteinBall(100.0))
    value = problem.solve(method="exact", solver=FrankWolfe(gap=1e-8))
    assert value == pytest.approx(1.0)
    assert problem.solution.dual == 0


def test_mahalanobis_cost_is_a_change_of_coordinates(rng):
    data = rng.normal(size=(9, 3))
    root = rng.normal(size=(3, 3))
    covariance = root @ root.T + np.eye(3)
    x = cp.Variable(3, nonneg=True)
    xi = wdro.UncertainParameter(3, samples=data)
    cost = wdro.costs.Mahalanobis(covariance)
    problem = wdro.Problem(cp.Minimize(xi @ x), [cp.sum(x) == 1], wdro.WassersteinBall(0.3, cost))
    by_cone = problem.solve(method="exact")
    by_oracle = problem.solve(method="exact", solver=FrankWolfe(gap=1e-8))
    w = cp.Variable(3, nonneg=True)
    factor = np.linalg.cholesky(covariance)
    reference = cp.Problem(
        cp.Minimize(data.mean(axis=0) @ w + np.sqrt(0.3) * cp.norm(factor.T @ w)), [cp.sum(w) == 1]
    ).solve(solver=cp.CLARABEL)
    assert by_cone == pytest.approx(reference, abs=1e-6)
    assert by_oracle == pytest.approx(reference, abs=1e-6)


# ------------------------------------------------------------------ the quadratic spanning tree
def subtour_program(graph, matrix):
    """min x' matrix x over the tree polytope, by all subset inequalities."""
    edges = list(graph.edges)
    x = cp.Variable(len(edges), nonneg=True)
    constraints = [cp.sum(x) == graph.number_of_nodes() - 1]
    for size in range(2, graph.number_of_nodes()):
        for subset in itertools.combinations(graph.nodes, size):
            inside = [i for i, (u, v) in enumerate(edges) if u in subset and v in subset]
            if inside:
                constraints.append(cp.sum(x[inside]) <= size - 1)
    symmetric = (matrix + matrix.T) / 2
    return cp.Problem(cp.Minimize(cp.quad_form(x, cp.psd_wrap(symmetric))), constraints)


def tree_problem(nodes, edges, count, radius, **options):
    instance = wdro.datasets.quadratic_tree(nodes, edges, seed=0)
    matrices = instance.training.sample(count, seed=1)
    tree = wdro.sets.SpanningTree(instance.graph)
    x = cp.Variable(tree.dimension, name="x")
    costs = wdro.UncertainParameter((edges, edges), name="costs", samples=matrices, **options)
    problem = wdro.Problem(
        cp.Minimize(wdro.quadratic_form(x, costs)),
        [wdro.In(x, tree)],
        ambiguity=wdro.WassersteinBall(radius),
    )
    return problem, instance, matrices


def test_exact_tree_by_cvxpy_by_oracle_and_by_hand():
    problem, instance, matrices = tree_problem(8, 28, 20, 10.0)
    matrix = matrices.mean(axis=0) + np.sqrt(10.0) * np.eye(28)
    by_hand = subtour_program(instance.graph, matrix).solve(solver=cp.CLARABEL)
    by_cone = problem.solve(method="exact", solver=Conic())
    by_oracle = problem.solve(method="exact", solver=FrankWolfe(gap=1e-7, max_iterations=5000))
    assert problem.status == "optimal"
    assert by_cone == pytest.approx(by_hand, rel=1e-6)
    assert by_oracle == pytest.approx(by_hand, rel=1e-6)
    assert problem.solution.lower_bound <= by_hand * (1 + 1e-9)


def test_exact_tree_at_full_size_by_cvxpy_and_by_oracle():
    problem, _, _ = tree_problem(50, 331, 20, 10.0, support=wdro.supports.Nonnegative())
    by_cone = problem.solve(method="exact", solver=Conic())
    by_oracle = problem.solve(method="exact")
    assert problem.status == "optimal"
    assert by_oracle == pytest.approx(by_cone, rel=1e-4)


def test_tree_is_convex_once_the_radius_outweighs_the_negative_eigenvalues():
    problem, _, matrices = tree_problem(6, 12, 10, 1e-6)
    mean = matrices.mean(axis=0)
    smallest = np.linalg.eigvalsh((mean + mean.T) / 2)[0]
    assert smallest < 0
    with pytest.warns(wdro.ConvexityWarning, match="assume_convex"):
        problem.solve(method="exact")
    assert problem.status == "stationary"
    assert problem.solution.lower_bound is None
    with pytest.raises(ValueError, match="FrankWolfe"):
        problem.solve(method="exact", solver=Conic())
    convex = problem.with_radius(1.01 * smallest**2)
    convex.solve(method="exact")
    assert convex.status == "optimal"


def test_erm_on_the_tree_is_stationary_and_says_so_once():
    problem, _, _ = tree_problem(6, 12, 10, 1.0)
    with pytest.warns(wdro.ConvexityWarning):
        problem.solve(method="erm")
    assert problem.status == "stationary"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problem.solve(method="erm")


# ------------------------------------------------------------------ where others fail
def test_one_parameter_used_twice_is_one_parameter(rng):
    data = rng.normal(size=(10, 2))
    x = cp.Variable(2, nonneg=True)
    xi = wdro.UncertainParameter(2, samples=data)
    ball = wdro.WassersteinBall(0.3)
    once = wdro.Problem(cp.Minimize(2 * xi @ x), [cp.sum(x) == 1], ball)
    twice = wdro.Problem(cp.Minimize(xi @ x + xi @ x), [cp.sum(x) == 1], ball)
    assert once.solve() == pytest.approx(twice.solve(), abs=1e-7)


def test_duplicate_samples_and_a_single_sample(rng):
    row = rng.normal(size=(1, 3))
    values = []
    for data in (row, np.repeat(row, 5, axis=0)):
        x = cp.Variable(3, nonneg=True)
        xi = wdro.UncertainParameter(3, samples=data)
        problem = wdro.Problem(cp.Minimize(xi @ x), [cp.sum(x) == 1], wdro.WassersteinBall(0.2))
        values.append(problem.solve())
    assert values[0] == pytest.approx(values[1], abs=1e-8)


def test_column_of_labels_is_a_vector_of_labels(rng):
    X, y = rng.normal(size=(30, 2)), rng.normal(size=30)
    values = []
    for labels in (y, y[:, None]):
        theta = cp.Variable(2)
        features = wdro.UncertainParameter(2, samples=X)
        label = wdro.UncertainParameter(samples=labels)
        problem = wdro.Problem(cp.Minimize(cp.square(features @ theta - label)))
        values.append(problem.solve(method="erm"))
    reference = np.mean((X @ np.linalg.lstsq(X, y, rcond=None)[0] - y) ** 2)
    assert values == pytest.approx([reference, reference], abs=1e-7)


def test_nothing_uncertain_is_an_ordinary_problem():
    x = cp.Variable(2)
    problem = wdro.Problem(cp.Minimize(cp.sum_squares(x - 1)), [x <= 0.5, x >= -1])
    assert problem.solve() == pytest.approx(0.5, abs=1e-6)
    assert problem.losses() == pytest.approx([0.5], abs=1e-6)
    assert "nothing is uncertain" in problem.explain()


def test_a_certain_piece_in_a_maximum(rng):
    data = rng.normal(size=(40, 1))
    x = cp.Variable(1)
    xi = wdro.UncertainParameter(1, samples=data)
    problem = wdro.Problem(cp.Minimize(cp.maximum(0.3, xi[0] - x[0]) + 0.2 * cp.abs(x[0])))
    value = problem.solve(method="erm")
    grid = np.linspace(-5, 5, 20001)
    brute = (np.maximum(0.3, data - grid).mean(axis=0) + 0.2 * np.abs(grid)).min()
    assert value == pytest.approx(brute, abs=1e-4)


def test_global_random_state_is_left_alone(portfolio):
    problem, _, _ = portfolio
    np.random.seed(7)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(method="smoothed", solver=MomentumFrankWolfe(max_iterations=5))
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002


def test_same_seed_same_result(portfolio):
    problem, x, _ = portfolio
    solver = MomentumFrankWolfe(batch_size=5, samples=20, max_iterations=40)
    decisions = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in (3, 3, 4):
            problem.solve(method="smoothed", solver=solver, seed=seed)
            decisions.append((problem.value, x.value.copy()))
    assert decisions[0][0] == decisions[1][0]
    assert np.array_equal(decisions[0][1], decisions[1][1])
    assert decisions[0][0] != decisions[2][0]


# ------------------------------------------------------------------ feasible sets together
def test_two_oracle_sets_and_constraints_on_other_variables(rng):
    tree = wdro.sets.SpanningTree(nx.complete_graph(4))
    path = wdro.sets.ShortestPath(nx.DiGraph([(0, 1), (1, 2), (0, 2)]), 0, 2)
    x, y, z = cp.Variable(6, name="x"), cp.Variable(3, name="y"), cp.Variable(2, name="z")
    xi = wdro.UncertainParameter(11, samples=rng.uniform(1, 2, size=(8, 11)))
    problem = wdro.Problem(
        cp.Minimize(xi @ cp.hstack([x, y, z])),
        [wdro.In(x, tree), wdro.In(y, path), z >= 1, z <= 3],
        ambiguity=wdro.WassersteinBall(1e-4),
    )
    mean = xi.samples.mean(axis=0)
    expected = mean[:6] @ tree.minimize(mean[:6]) + mean[6:9] @ path.minimize(mean[6:9])
    assert problem.solve(method="erm") == pytest.approx(expected + mean[9:].sum())
    assert z.value == pytest.approx([1, 1])


def test_constraints_beside_an_oracle_set_with_a_cvxpy_form(rng):
    tree = wdro.sets.SpanningTree(nx.complete_graph(4))
    x = cp.Variable(6, name="x")
    xi = wdro.UncertainParameter(6, samples=rng.uniform(1, 2, size=(8, 6)))
    mean = xi.samples.mean(axis=0)
    cheapest = int(mean.argmin())
    problem = wdro.Problem(cp.Minimize(xi @ x), [wdro.In(x, tree), x[cheapest] <= 0.25])
    value = problem.solve(method="erm", solver=FrankWolfe(gap=1e-9))
    w = cp.Variable(6)
    reference = cp.Problem(cp.Minimize(mean @ w), [*tree.constraints(w), w[cheapest] <= 0.25])
    assert value == pytest.approx(reference.solve(solver=cp.CLARABEL), abs=1e-6)
    assert x.value[cheapest] == pytest.approx(0.25, abs=1e-6)


def test_integer_variables_are_a_mixed_integer_program_or_a_hull(rng):
    weights, data = np.array([3.0, 4.0, 5.0]), rng.uniform(1, 2, size=(6, 3))
    x = cp.Variable(3, boolean=True, name="x")
    xi = wdro.UncertainParameter(3, samples=data)
    problem = wdro.Problem(cp.Minimize(-xi @ x), [weights @ x <= 8])
    integer = problem.solve(method="erm")
    best = min(
        -data.mean(axis=0) @ np.array(point)
        for point in itertools.product([0, 1], repeat=3)
        if weights @ np.array(point) <= 8
    )
    assert integer == pytest.approx(best)
    assert problem.solve(method="erm", solver=FrankWolfe()) == pytest.approx(best)


def test_symmetric_matrix_variable(rng):
    X = cp.Variable((2, 2), symmetric=True, name="X")
    xi = wdro.UncertainParameter((2, 2), samples=rng.normal(size=(10, 2, 2)))
    problem = wdro.Problem(cp.Minimize(cp.trace(xi @ X) + cp.sum_squares(X)), [X <= 1, X >= -1])
    by_cone = problem.solve(method="erm")
    by_oracle = problem.solve(method="erm", solver=FrankWolfe(gap=1e-8))
    assert by_oracle == pytest.approx(by_cone, rel=1e-6)
    assert X.value == pytest.approx(X.value.T)


# ------------------------------------------------------------------ running
def test_interrupt_returns_the_best_point_so_far(portfolio, monkeypatch):
    problem, x, _ = portfolio
    oracle = problem._model.feasible.oracle()
    calls = itertools.count()
    original = oracle.minimize

    def minimize(direction):
        if next(calls) == 12:
            raise KeyboardInterrupt
        return original(direction)

    monkeypatch.setattr(oracle, "minimize", minimize)
    problem.solve(method="exact", solver=FrankWolfe(gap=0.0, direction="plain"))
    assert problem.status == "user_limit"
    assert "keyboard" in problem.solution.stop
    assert x.value.sum() == pytest.approx(1)
    assert problem.value == pytest.approx(problem.solution.robust_value)


def test_time_limit_is_a_user_limit(portfolio):
    problem, _, _ = portfolio
    problem.solve(method="exact", solver=FrankWolfe(gap=0.0), time_limit=1e-9)
    assert problem.status == "user_limit"
    assert problem.solution.stop == "time limit"


def test_callbacks_see_the_run_and_can_stop_it(portfolio):
    problem, _, _ = portfolio
    seen = []

    def callback(state):
        seen.append(state.gap)
        return len(seen) == 3

    solver = FrankWolfe(gap=0.0, direction="plain", callbacks=[callback])
    problem.solve(method="exact", solver=solver)
    assert len(seen) == 3
    assert problem.solution.stop == "a callback asked to stop"


def test_start_from_an_earlier_solution(portfolio):
    problem, x, _ = portfolio
    solver = FrankWolfe(gap=1e-8)
    problem.solve(method="exact", solver=solver)
    first = problem.solution
    given = {x: np.full(4, 0.25)}
    before = copy.deepcopy(given[x])
    problem.solve(method="exact", solver=solver, start=given)
    assert problem.value == pytest.approx(first.value, abs=1e-7)
    assert np.array_equal(given[x], before)
    problem.solve(method="exact", solver=solver, start=first)
    assert problem.solution.iterations <= 3


def test_verbose_prints_a_table(portfolio, capsys):
    problem, _, _ = portfolio
    problem.solve(method="exact", solver=FrankWolfe(), verbose=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["iteration", "value", "gap", "dual", "step", "seconds"]
    assert len(lines) >= 3


def test_solution_prints_what_matters(portfolio):
    problem, _, _ = portfolio
    problem.solve(method="smoothed")
    text = str(problem.solution)
    for word in ("method", "status", "gap", "epsilon", "robust value", "integration"):
        assert word in text


def test_losses_on_held_out_data(portfolio, rng):
    problem, x, _ = portfolio
    problem.solve()
    held_out = rng.normal(size=(7, 4))
    (returns,) = problem.uncertain_parameters()
    assert problem.losses(held_out) == pytest.approx(-held_out @ x.value)
    assert problem.losses({returns: held_out}) == pytest.approx(-held_out @ x.value)
    assert problem.losses().mean() == pytest.approx(problem.solution.empirical_value)


def test_callable_loss_agrees_with_the_expression(rng):
    data = rng.normal(size=(25, 3))
    x = cp.Variable(3, nonneg=True, name="x")
    xi = wdro.UncertainParameter(3, name="xi", samples=data)

    def loss(values, scenarios):
        r = scenarios[xi] @ values[x]

        def pullback(w):
            return {x: (2 * w * r) @ scenarios[xi], xi: (2 * w * r)[:, None] * values[x]}

        return r**2, pullback

    constraints = [cp.sum(x) == 1]
    by_callable = wdro.Problem(
        wdro.CallableLoss(loss, variables=[x], parameters=[xi], convex=True), constraints
    ).solve(method="erm", solver=FrankWolfe(gap=1e-8))
    by_expression = wdro.Problem(cp.Minimize(cp.square(xi @ x)), constraints).solve(method="erm")
    assert by_callable == pytest.approx(by_expression, rel=1e-6)
