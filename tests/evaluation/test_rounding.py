"""A discrete decision in place of a fractional one."""

from __future__ import annotations

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest

import wdro_model as wdro
from tests.sets.enumeration import all_paths, all_trees
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


def test_paths_are_rounded_by_the_mean_where_no_smooth_formula_is_known():
    graph = nx.DiGraph([(0, 1), (0, 2), (1, 3), (2, 3), (0, 3), (1, 2)])
    paths = all_paths(graph, 0, 3)
    x = cp.Variable(6, name="x")
    samples = np.random.default_rng(0).uniform(0.5, 1.5, size=(8, 6))
    times = wdro.UncertainParameter(6, samples=samples)
    problem = wdro.Problem(
        cp.Minimize(cp.maximum(times @ x, 1.5)),
        [wdro.In(x, wdro.sets.ShortestPath(graph, 0, 3))],
        ambiguity=wdro.WassersteinBall(0.1),
    )
    problem.solve(method="smoothed")
    found = problem.round()
    assert found.criterion == "mean loss over the samples"
    assert x.value.tolist() in paths.tolist()
    assert found.value == pytest.approx(np.maximum(samples @ x.value, 1.5).mean())


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


def test_continuous_decisions_are_refused_and_left_alone(portfolio):
    problem, x, _ = portfolio
    with pytest.raises(ValueError, match="has no value yet; call solve"):
        problem.round()
    problem.solve()
    before = x.value.copy()
    with pytest.raises(ValueError, match="cannot be rounded to: its decisions are continuous"):
        problem.round()
    assert (x.value == before).all()
