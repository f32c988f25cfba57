"""A discrete decision in place of a fractional one."""

from __future__ import annotations

from itertools import combinations, product

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest

import wdro_model as wdro
from tests.references.enumeration import all_paths, all_trees
from wdro_model.solvers import FrankWolfe


def tree_problem(graph, seed=0, radius=4.0, count=6):
    trees = wdro.sets.SpanningTree(graph)
    m = trees.dimension
    x = cp.Variable(m, name="x")
    samples = np.random.default_rng(seed).uniform(size=(count, m, m))
    costs = wdro.UncertainParameter((m, m), name="costs", samples=samples)
    problem = wdro.Problem(
        cp.Minimize(wdro.quadratic_form(x, costs)),
        [wdro.In(x, trees)],
        ambiguity=wdro.WassersteinBall(radius),
    )
    return problem, x, samples.mean(axis=0)


@pytest.mark.parametrize("seed", range(4))
def test_the_tree_is_judged_by_the_worst_case(seed):
    graph = nx.wheel_graph(5)
    problem, x, mean = tree_problem(graph, seed)
    problem.solve(method="exact", solver=FrankWolfe(gap=1e-7))
    fractional = x.value.copy()
    found = problem.round()
    trees = all_trees(graph)
    robust = mean + 2.0 * np.eye(len(mean))
    assert x.value.tolist() in trees.tolist()
    assert found.decision[x].tolist() == x.value.tolist()
    assert found.criterion == "worst-case risk"
    assert found.value == pytest.approx(x.value @ robust @ x.value)
    assert found.fractional_value == pytest.approx(fractional @ robust @ fractional)
    every = np.einsum("ki,ij,kj->k", trees, robust, trees)
    around = np.abs(trees - x.value).sum(axis=1) == 2
    assert found.value <= every[around].min() + 1e-12
    assert found.lower_bound <= every.min()
    assert found.value - every.min() <= found.gap + 1e-12
    assert problem.solution.decision[x] == pytest.approx(fractional)
    assert "above the best discrete decision" in str(found)


@pytest.mark.filterwarnings("ignore::wdro_model.ConvexityWarning")
def test_erm_is_judged_by_the_mean():
    problem, x, mean = tree_problem(nx.complete_graph(4))
    problem.solve(method="erm")
    found = problem.round()
    assert found.criterion == "mean loss over the samples"
    assert found.value == pytest.approx(x.value @ mean @ x.value)
    assert found.lower_bound is None
    assert found.gap is None


def test_the_vertices_of_the_solution_are_candidates():
    problem, x, _ = tree_problem(nx.complete_graph(4))
    problem.solve(method="exact", solver=FrankWolfe(gap=1e-6))
    solution = problem.solution
    assert solution.weights @ solution.vertices == pytest.approx(x.value, abs=1e-9)
    found = problem.round()
    for vertex in solution.vertices:
        assert found.value <= problem.robust_value({x: vertex}) + 1e-9


def test_a_decision_set_by_hand_is_rounded_too():
    problem, x, _ = tree_problem(nx.complete_graph(4))
    problem.solve(method="exact")
    x.value = np.full(6, 0.5)
    found = problem.round()
    assert found.lower_bound is None
    assert found.fractional_value == pytest.approx(problem.robust_value({x: np.full(6, 0.5)}))


def test_a_start_between_the_vertices_is_no_candidate():
    problem, x, _ = tree_problem(nx.complete_graph(4))
    stay = FrankWolfe(max_iterations=0)
    problem.solve(method="exact", solver=stay, start={x: np.full(6, 0.5)})
    assert problem.solution.vertices.tolist() == [[0.5] * 6]
    problem.round()
    assert sorted(set(x.value)) == [0, 1]


@pytest.mark.parametrize("seed", range(4))
def test_paths_are_judged_by_the_worst_case_that_is_not_smooth(seed):
    graph = nx.DiGraph([(0, 1), (0, 2), (1, 3), (2, 3), (0, 3), (1, 2)])
    paths = all_paths(graph, 0, 3)
    x = cp.Variable(6, name="x")
    samples = np.random.default_rng(seed).uniform(0.5, 1.5, size=(8, 6))
    samples[:, 4] += 0.8
    times = wdro.UncertainParameter(6, samples=samples)
    problem = wdro.Problem(
        cp.Minimize(cp.maximum(times @ x, 1.5)),
        [wdro.In(x, wdro.sets.ShortestPath(graph, 0, 3))],
        ambiguity=wdro.WassersteinBall(0.1),
    )
    problem.solve(method="smoothed")
    found = problem.round()
    risks = [problem.robust_value({x: path}) for path in paths]
    assert found.criterion == "worst-case risk"
    assert x.value.tolist() in paths.tolist()
    assert found.value == pytest.approx(problem.robust_value())
    assert found.value == pytest.approx(min(risks))


def test_without_an_exact_formula_the_smoothed_risk_is_the_judge():
    graph = nx.complete_graph(4)
    trees = all_trees(graph)
    x = cp.Variable(6, name="x")
    samples = np.random.default_rng(1).uniform(0.5, 1.5, size=(5, 6))
    z = wdro.UncertainParameter(6, samples=samples, support=wdro.supports.Box(0, 2))
    problem = wdro.Problem(
        cp.Minimize(cp.exp(0.3 * (z @ x)) + cp.sum_squares(cp.multiply(z, x))),
        [wdro.In(x, wdro.sets.SpanningTree(graph))],
        ambiguity=wdro.WassersteinBall(0.05),
    )
    problem.solve(method="smoothed", epsilon=0.1, solver=FrankWolfe(gap=1e-3))
    assert problem.robust_value() is None
    found = problem.round()
    assert found.criterion == "smoothed worst-case risk"
    assert x.value.tolist() in trees.tolist()
    assert found.fractional_value == pytest.approx(problem.value, rel=0.02)
    assert found.value >= found.fractional_value * 0.98


def test_integer_points_are_rounded_to():
    y = cp.Variable(4, boolean=True, name="y")
    z = wdro.UncertainParameter(4, samples=np.random.default_rng(0).uniform(size=(5, 4)))
    problem = wdro.Problem(
        cp.Minimize(cp.sum_squares(cp.multiply(z, y))),
        [cp.sum(y) == 2],
        ambiguity=wdro.WassersteinBall(0.01),
    )
    problem.solve(method="erm", solver=FrankWolfe())
    assert 0.01 < y.value.max() < 0.99
    found = problem.round()
    assert sorted(y.value.tolist()) == [0, 0, 1, 1]
    assert found.fractional_value == pytest.approx(problem.value)
    assert found.fractional_value <= found.value


@pytest.mark.parametrize("seed", range(3))
def test_an_optimal_integer_decision_is_kept(seed):
    rng = np.random.default_rng(seed)
    y = cp.Variable(6, boolean=True, name="y")
    samples = rng.normal(0.1, 1.0, size=(15, 6))
    z = wdro.UncertainParameter(6, samples=samples)
    problem = wdro.Problem(
        cp.Minimize(cp.abs(z @ y - 0.3)),
        [cp.sum(y) == 3],
        ambiguity=wdro.WassersteinBall(0.1, cost=wdro.costs.Norm(1)),
    )
    problem.solve(method="exact")
    before, value = y.value.copy(), problem.value
    every = [v for v in product([0.0, 1.0], repeat=6) if sum(v) == 3]
    risks = [np.abs(samples @ v - 0.3).mean() + 0.1 for v in np.array(every)]
    assert value == pytest.approx(min(risks))
    found = problem.round()
    assert found.value == pytest.approx(value)
    assert y.value == pytest.approx(before)
    assert found.gap == pytest.approx(0.0, abs=1e-6)


def sparse_portfolio(seed, assets=7, most=3, radius=0.05):
    """At most so many assets: shares w <= z with z boolean, and the risk of each choice."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(20, 3)) @ rng.normal(size=(3, assets))
    samples = 0.5 * common + 0.5 * rng.normal(size=(20, assets)) + rng.uniform(0, 0.2, assets)
    w = cp.Variable(assets, nonneg=True, name="w")
    z = cp.Variable(assets, boolean=True, name="z")
    r = wdro.UncertainParameter(assets, name="r", samples=samples)
    problem = wdro.Problem(
        cp.Minimize(cp.square(r @ w - 0.1)),
        [cp.sum(w) == 1, w <= z, cp.sum(z) <= most],
        ambiguity=wdro.WassersteinBall(radius),
    )

    def risk(chosen):
        """(root mean square + sqrt(radius) |w|)^2 over shares of the chosen assets."""
        v = cp.Variable(assets, nonneg=True)
        spread = cp.norm(samples @ v - 0.1) / np.sqrt(len(samples))
        held = [cp.sum(v) == 1, v <= np.asarray(chosen)]
        objective = cp.Minimize(spread + np.sqrt(radius) * cp.norm(v))
        return cp.Problem(objective, held).solve(solver=cp.CLARABEL) ** 2

    choices = [np.isin(np.arange(assets), c) for c in combinations(range(assets), most)]
    return problem, w, z, risk, choices


@pytest.mark.parametrize("seed", [0, 2, 4])
def test_continuous_variables_are_solved_again_for_the_integers(seed):
    problem, w, z, risk, choices = sparse_portfolio(seed)
    problem.solve(method="smoothed", solver=FrankWolfe(gap=1e-3))
    found = problem.round()
    assert set(z.value.tolist()) <= {0.0, 1.0}
    assert z.value.sum() <= 3
    assert (w.value <= z.value + 1e-6).all()
    assert w.value.sum() == pytest.approx(1)
    assert found.criterion == "worst-case risk"
    assert found.value == pytest.approx(problem.robust_value())
    assert found.value == pytest.approx(risk(z.value), rel=1e-5)
    assert found.value == pytest.approx(min(map(risk, choices)), rel=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_open_facilities_are_supplied_as_well_as_possible(seed):
    rng = np.random.default_rng(seed)
    places, customers = rng.uniform(size=(4, 2)), rng.uniform(size=(5, 2))
    distance = np.linalg.norm(places[:, None] - customers[None], axis=2)
    rent = rng.uniform(0.2, 0.6, 4)
    samples = distance + 0.3 * rng.uniform(size=(10, 4, 5))
    y = cp.Variable(4, boolean=True, name="y")
    s = cp.Variable((4, 5), nonneg=True, name="s")
    costs = wdro.UncertainParameter((4, 5), name="costs", samples=samples)
    problem = wdro.Problem(
        cp.Minimize(rent @ y + cp.sum(cp.multiply(costs, s))),
        [cp.sum(s, axis=0) == 1, *(s[:, j] <= y for j in range(5))],
        ambiguity=wdro.WassersteinBall(0.2),
    )

    def risk(opened):
        t = cp.Variable((4, 5), nonneg=True)
        mean = rent @ opened + cp.sum(cp.multiply(samples.mean(axis=0), t))
        supplied = [cp.sum(t, axis=0) == 1, *(t[:, j] <= opened for j in range(5))]
        objective = cp.Minimize(mean + np.sqrt(0.2) * cp.norm(t, "fro"))
        return cp.Problem(objective, supplied).solve(solver=cp.CLARABEL)

    problem.solve(method="exact", solver=FrankWolfe())
    found = problem.round()
    best = min(risk(np.array(o)) for o in product([0, 1], repeat=4) if any(o))
    assert found.value == pytest.approx(risk(y.value), rel=1e-5)
    assert found.value == pytest.approx(best, rel=1e-5)
    assert found.lower_bound <= best + 1e-6


def test_the_continuous_part_is_solved_on_the_samples_of_the_problem():
    problem, w, z, _, _ = sparse_portfolio(1)
    other = problem.with_samples(np.random.default_rng(9).normal(0.3, 0.4, size=(12, 7)))
    other.solve(method="smoothed", solver=FrankWolfe(gap=1e-3))
    found = other.round()
    kept = {z: z.value.copy(), w: w.value.copy()}
    assert found.value == pytest.approx(other.robust_value(kept))
    for i, j in combinations(np.flatnonzero(kept[z]), 2):
        moved = kept[w].copy()
        step = min(1e-3, moved[i])
        moved[i], moved[j] = moved[i] - step, moved[j] + step
        assert other.robust_value({z: kept[z], w: moved}) >= found.value - 1e-8


def test_a_loss_that_is_a_function_is_completed_too():
    rng = np.random.default_rng(0)
    w = cp.Variable(5, nonneg=True, name="w")
    z = cp.Variable(5, boolean=True, name="z")
    samples = rng.normal(0.2, 1.0, size=(15, 5))
    r = wdro.UncertainParameter(5, name="r", samples=samples)

    def loss(x, scenarios):
        residual = scenarios[r] @ x[w] - 0.3

        def pullback(weights):
            return {w: 2 * (weights * residual) @ scenarios[r], z: np.zeros(5)}

        return residual**2, pullback

    problem = wdro.Problem(
        wdro.CallableLoss(loss, variables=[w, z], parameters=[r], convex=True),
        [cp.sum(w) == 1, w <= z, cp.sum(z) <= 2],
    )
    problem.solve(solver=FrankWolfe())
    found = problem.round()
    best = np.inf
    for chosen in combinations(range(5), 2):
        v = cp.Variable(2, nonneg=True)
        error = cp.sum_squares(samples[:, list(chosen)] @ v - 0.3) / 15
        best = min(best, cp.Problem(cp.Minimize(error), [cp.sum(v) == 1]).solve(cp.CLARABEL))
    assert found.value == pytest.approx(best, rel=1e-3)


def test_a_tree_beside_a_continuous_block():
    graph = nx.complete_graph(4)
    x, share = cp.Variable(6, name="x"), cp.Variable(2, nonneg=True, name="share")
    samples = np.random.default_rng(0).uniform(size=(6, 8))
    z = wdro.UncertainParameter(8, samples=samples)
    problem = wdro.Problem(
        cp.Minimize(z[:6] @ x + z[6:] @ share + cp.sum_squares(share)),
        [wdro.In(x, wdro.sets.SpanningTree(graph)), cp.sum(share) == 1],
        ambiguity=wdro.WassersteinBall(0.5),
    )
    problem.solve(solver=FrankWolfe())
    found = problem.round()
    mean, best = samples.mean(axis=0), np.inf
    for tree in all_trees(graph):
        v = cp.Variable(2, nonneg=True)
        risk = mean[:6] @ tree + mean[6:] @ v + cp.sum_squares(v)
        risk += np.sqrt(0.5) * cp.norm(cp.hstack([tree, v]))
        best = min(best, cp.Problem(cp.Minimize(risk), [cp.sum(v) == 1]).solve(cp.CLARABEL))
    assert found.value == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_integers_under_constraints_are_improved_one_by_one(seed):
    rng = np.random.default_rng(seed)
    y = cp.Variable(6, boolean=True, name="y")
    samples, weights = rng.normal(1, 1, size=(10, 6)), rng.integers(1, 5, 6)
    z = wdro.UncertainParameter(6, samples=samples)
    problem = wdro.Problem(
        cp.Minimize(cp.square(z @ y - 2.0)),
        [weights @ y <= weights.sum() // 2],
        ambiguity=wdro.WassersteinBall(0.1),
    )
    problem.solve(method="smoothed", solver=FrankWolfe(gap=1e-3))
    found = problem.round()
    every = np.array(list(product([0.0, 1.0], repeat=6)))
    every = every[every @ weights <= weights.sum() // 2]
    spread = np.sqrt(((every @ samples.T - 2.0) ** 2).mean(axis=1))
    risks = (spread + np.sqrt(0.1) * np.linalg.norm(every, axis=1)) ** 2
    assert y.value.tolist() in every.tolist()
    assert found.value == pytest.approx(risks[every.tolist().index(y.value.tolist())], rel=1e-5)
    closer = np.abs(every - y.value).sum(axis=1) <= 1
    assert found.value <= risks[closer].min() * (1 + 1e-6)


def test_the_way_over_the_hull_is_offered_where_no_solver_takes_the_integers(monkeypatch):
    """Each call that a message of a conic solver offers works, and round() finds the optimum."""
    monkeypatch.setattr("wdro_model.solvers.cone_solver.MIXED_INTEGER", ("HIGHS",))
    samples = np.random.default_rng(0).normal(1, 1, size=(10, 5))
    every = np.array([v for v in product([0.0, 1.0], repeat=5) if sum(v) == 2])
    y = cp.Variable(5, boolean=True, name="y")
    z = wdro.UncertainParameter(5, samples=samples)
    length = np.sqrt(0.1 * 2)
    spread = np.sqrt(((every @ samples.T - 2.0) ** 2).mean(axis=1))
    for loss, call, best in (
        (z @ y, "method='exact'", (every @ samples.mean(axis=0)).min() + length),
        (cp.square(z @ y - 2.0), "method='smoothed'", ((spread + length) ** 2).min()),
    ):
        problem = wdro.Problem(
            cp.Minimize(loss), [cp.sum(y) == 2], ambiguity=wdro.WassersteinBall(0.1)
        )
        offered = rf"solve\({call}, solver=wdro_model\.solvers\.FrankWolfe\(\)\).*round\(\)"
        with pytest.raises(ValueError, match=offered):
            problem.solve(solver=wdro.solvers.Conic())
        assert problem.solve() == pytest.approx(best, rel=1e-3)
        assert y.value.tolist() in every.tolist()
        problem.solve(method=call.split("'")[1], solver=FrankWolfe())
        assert problem.round().value == pytest.approx(best, rel=1e-5)


def test_continuous_decisions_are_refused_and_left_alone(portfolio):
    problem, x, _ = portfolio
    with pytest.raises(ValueError, match="has no value yet; call solve"):
        problem.round()
    problem.solve()
    before = x.value.copy()
    with pytest.raises(ValueError, match="cannot be rounded to: its decisions are continuous"):
        problem.round()
    assert (x.value == before).all()


def test_a_continuous_part_without_bounds_is_completed():
    """CVaR's own variable is free: the oracle is asked for the discrete part alone."""
    data = np.random.default_rng(5).lognormal(size=(12, 6))
    feasible = wdro.sets.Subsets(6, 3)
    x, t = cp.Variable(6, boolean=True), cp.Variable()
    z = wdro.UncertainParameter(6, samples=data)
    problem = wdro.Problem(
        cp.Minimize(t + cp.pos(z @ x - t) / 0.3),
        [wdro.In(x, feasible)],
        ambiguity=wdro.WassersteinBall(0.1, wdro.costs.Norm(2)),
    )
    problem.solve(relax=True)
    found = problem.round()
    assert feasible.is_vertex(x.value)
    losses = data @ x.value
    tail = min(level + np.maximum(losses - level, 0).mean() / 0.3 for level in losses)
    assert found.value == pytest.approx(tail + 0.1 * np.sqrt(3) / 0.3, rel=1e-5)
