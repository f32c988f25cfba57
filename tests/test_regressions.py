"""Cases in which an answer once looked right and was not."""

from __future__ import annotations

import copy
import pickle
import warnings

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.objectives.integration import STRATEGIES, Scales, Stream
from wdro_model.solvers import FrankWolfe, MomentumFrankWolfe


def newsvendor(demand, radius=4.0):
    order = cp.Variable(3, nonneg=True, name="order")
    d = wdro.UncertainParameter(3, name="demand", samples=demand, support=wdro.supports.Box(0, 50))
    loss = cp.sum(order - d) + 4 * cp.sum(cp.pos(d - order))
    ball = wdro.WassersteinBall(radius)
    return wdro.Problem(cp.Minimize(loss), [order <= 40], ambiguity=ball), order


def newsvendor_by_quadrature(order, dual, demand, radius, epsilon, sigma):
    """F(order, dual) for the separable newsvendor, each coordinate on a fine grid."""
    z = np.linspace(0, 50, 40_001)
    total = 0.0
    for i in range(3):
        h = (order[i] - z) + 4 * np.maximum(z - order[i], 0)
        square = (z - demand[:, i : i + 1]) ** 2
        reference = -square / (2 * sigma**2)
        exponent = (h - dual * square) / epsilon + reference
        top = exponent.max(axis=1, keepdims=True)
        total += np.mean(
            top[:, 0]
            + np.log(np.exp(exponent - top).sum(axis=1))
            - np.log(np.exp(reference).sum(axis=1))
        )
    return dual * radius + epsilon * total


def test_sampled_value_is_that_of_quadrature_and_its_bound_is_below_the_optimum(rng):
    demand = rng.gamma(4.0, 2.5, size=(40, 3))
    problem, order = newsvendor(demand)
    values = []
    for start in (None, 20.0):
        given = None if start is None else {order: np.full(3, start)}
        problem.solve(method="smoothed", start=given, time_limit=20)
        s = problem.solution
        truth = newsvendor_by_quadrature(order.value, s.dual, demand, 4.0, s.epsilon, s.sigma)
        assert s.value == pytest.approx(truth, abs=5 * s.standard_error + 1e-4)
        values.append(s)
    best = min(s.value for s in values)
    assert values[0].value == pytest.approx(values[1].value, rel=1e-3)
    for s in values:
        assert s.lower_bound is None or s.lower_bound <= best + 1e-3


@pytest.mark.parametrize("seed", range(6))
def test_tilted_draws_reach_the_optimum_of_the_closed_form(seed):
    rng = np.random.default_rng(seed)
    x = cp.Variable(5, nonneg=True, name="x")
    xi = wdro.UncertainParameter(5, name="xi", samples=rng.normal(0.1, 0.4, size=(20, 5)))
    radius = float(10 ** rng.uniform(-3, 0))
    problem = wdro.Problem(cp.Minimize(-xi @ x), [cp.sum(x) == 1], wdro.WassersteinBall(radius))
    problem.solve(method="smoothed")
    best, epsilon = problem.value, problem.solution.epsilon
    problem.solve(method="smoothed", integration="tilted", epsilon=epsilon)
    scale = abs(best) + np.sqrt(radius)
    assert problem.value == pytest.approx(best, abs=2e-3 * scale)
    bound = problem.solution.lower_bound
    assert bound is None or bound <= best + 1e-3 * scale


def test_mahalanobis_cost_with_a_sigma_for_each_coordinate(rng):
    root = rng.normal(size=(3, 3))
    cost = wdro.costs.Mahalanobis(precision=root @ root.T + np.eye(3))
    x = cp.Variable(3, nonneg=True, name="x")
    xi = wdro.UncertainParameter(3, name="xi", samples=rng.normal(size=(6, 3)))
    problem = wdro.Problem(cp.Minimize(xi @ x), [cp.sum(x) == 1], wdro.WassersteinBall(0.1, cost))
    model, at = problem._model, np.array([0.2, 0.5, 0.3])
    scales = Scales(0.05, np.array([0.1, 0.3, 0.2]), 1)
    one, two = (
        STRATEGIES[name].build(model, scales).slice(at, np.arange(6), Stream(0))
        for name in ("closed_form", "low_rank")
    )
    for dual in (0.1, 1.0):
        assert one.at(dual).value == pytest.approx(two.at(dual).value, rel=1e-10)
        assert one.at(dual).slope == pytest.approx(two.at(dual).slope, rel=1e-9)
        assert one.gradient(dual) == pytest.approx(two.gradient(dual), rel=1e-8)


@pytest.mark.parametrize(
    "cost",
    [
        wdro.costs.SquaredEuclidean(),
        wdro.costs.SquaredEuclidean(weights=4.0),
        wdro.costs.Norm(1),
        wdro.costs.Norm(2),
        wdro.costs.Norm(np.inf),
        lambda a, b: ((a - b) ** 2).sum(axis=1),
        lambda a, b: 3 * np.abs(a - b).sum(axis=1),
    ],
    ids=["squared", "weighted", "one", "two", "infinity", "own square", "own norm"],
)
def test_reference_moves_cost_half_the_radius(cost, rng):
    from wdro_model.objectives.calibration import default_sigma

    xi = wdro.UncertainParameter(8, name="xi", samples=rng.normal(size=(50, 8)))
    x = cp.Variable(8, nonneg=True)
    ball = wdro.WassersteinBall(0.3, cost)
    model = wdro.Problem(cp.Minimize(xi @ x), [cp.sum(x) == 1], ball)._model
    sigma = default_sigma(model.cost, 0.3, model.joint)
    origin = np.zeros((20_000, 8))
    moved = sigma * rng.standard_normal((20_000, 8))
    assert model.cost(origin, moved).mean() == pytest.approx(0.15, rel=0.35)


def test_cost_that_forbids_moves(rng):
    def upwards_only(origins, points):
        cost = ((origins - points) ** 2).sum(axis=1)
        return np.where((points < origins).any(axis=1), np.inf, cost)

    x = cp.Variable(2, nonneg=True, name="x")
    xi = wdro.UncertainParameter(2, name="xi", samples=rng.normal(1, 0.1, size=(8, 2)))
    ball = wdro.WassersteinBall(0.05, upwards_only)
    problem = wdro.Problem(cp.Minimize(-xi @ x), [cp.sum(x) == 1], ball)
    solver = MomentumFrankWolfe(batch_size=4, samples=60, max_iterations=20, dual_bound=5.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = problem.solve(method="smoothed", epsilon=0.05, sigma=0.1, solver=solver)
    assert np.isfinite(value)


def test_constant_constraints_beside_an_oracle_set(rng):
    tree = wdro.sets.SpanningTree(nx.complete_graph(3))
    y = cp.Variable(3, name="y")
    xi = wdro.UncertainParameter(3, samples=rng.uniform(1, 2, size=(5, 3)))
    limit = cp.Parameter(value=2.0)
    for bad in (False, cp.Constant(3.0) <= limit):
        with pytest.raises(wdro.InfeasibleError, match="no variable and does not hold"):
            wdro.Problem(cp.Minimize(xi @ y), [wdro.In(y, tree), bad])
    assert wdro.Problem(cp.Minimize(xi @ y), [wdro.In(y, tree), True]).solve(method="erm") > 0


def test_nothing_may_move_is_erm(portfolio):
    problem, _, _ = portfolio
    (returns,) = problem.uncertain_parameters()
    cost = wdro.costs.SquaredEuclidean(weights={returns: np.inf})
    frozen = wdro.Problem(problem.objective, problem.constraints, wdro.WassersteinBall(1.0, cost))
    for method in ("auto", "exact", "smoothed"):
        assert frozen.solve(method=method) == pytest.approx(problem.solve(method="erm"), abs=1e-8)


def test_smoothing_option_with_an_open_method_asks_for_smoothing(portfolio):
    problem, _, _ = portfolio
    problem.solve(epsilon=0.01)
    assert problem.solution.method == "smoothed"
    assert "smoothed" in problem.explain(integration="tilted")
    assert "CLARABEL" in problem.explain(solver="CLARABEL")


def test_cvxpy_problem_keeps_value_and_status(rng):
    x = cp.Variable(3, nonneg=True)
    xi = wdro.UncertainParameter(3, samples=rng.normal(size=(20, 3)))
    plain = cp.Problem(cp.Minimize(xi @ x), [cp.sum(x) == 1])
    value = plain.solve(method="wdro", ambiguity=wdro.WassersteinBall(0.1))
    assert plain.value == value
    assert plain.status == "optimal"


def test_scales_do_not_depend_on_earlier_seeds(rng):
    data = rng.normal(size=(30, 4))

    def fresh():
        theta = cp.Variable(4, name="theta")
        xi = wdro.UncertainParameter(4, name="xi", samples=data)
        return wdro.Problem(
            cp.Minimize(cp.logistic(-xi @ theta)),
            [cp.norm1(theta) <= 2],
            ambiguity=wdro.WassersteinBall(0.1),
        )

    one, two = fresh(), fresh()
    one.solve(method="smoothed", seed=3)
    two.solve(method="smoothed", seed=0)
    two.solve(method="smoothed", seed=3)
    assert one.solution.epsilon == two.solution.epsilon
    assert one.value == pytest.approx(two.value, rel=1e-12)


def test_result_that_is_neither_convex_nor_reliable_is_not_optimal(rng):
    x = cp.Variable(3, nonneg=True, name="x")
    M = wdro.UncertainParameter((3, 3), name="M", samples=rng.normal(size=(10, 3, 3)))
    problem = wdro.Problem(
        cp.Minimize(wdro.quadratic_form(x, M)), [cp.sum(x) == 1], wdro.WassersteinBall(1e-3)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(
            method="smoothed", integration="gaussian", solver=FrankWolfe(samples=5), epsilon=1e-7
        )
    assert not problem.status.startswith("optimal")


def test_start_outside_the_feasible_set_is_refused(portfolio):
    problem, x, _ = portfolio
    with pytest.raises(ValueError, match="outside the feasible set"):
        problem.solve(method="smoothed", start={x: np.array([5.0, 0, 0, 0])})
    assert problem.robust_value({x: np.array([5.0, 0, 0, 0])}) is not None


def test_constraints_may_come_from_a_generator(portfolio):
    problem, x, _ = portfolio
    again = wdro.Problem(problem.objective, (c for c in problem.constraints), problem.ambiguity)
    again.solve()
    assert x.value.sum() == pytest.approx(1.0, abs=1e-6)


def test_solved_problems_can_be_copied_and_solutions_pickled(portfolio):
    problem, _, _ = portfolio
    problem.solve(method="smoothed")
    twin = pickle.loads(pickle.dumps(problem.solution))
    assert twin.value == problem.value
    copy.deepcopy(problem)


def test_failed_solve_leaves_no_old_result(rng):
    total = cp.Parameter(value=1.0, name="total")
    x = cp.Variable(3, nonneg=True)
    xi = wdro.UncertainParameter(3, samples=rng.normal(size=(10, 3)))
    ball = wdro.WassersteinBall(0.1)
    problem = wdro.Problem(cp.Minimize(xi @ x), [cp.sum(x) == total], ball)
    problem.solve()
    total.value = -1.0
    with pytest.raises(wdro.InfeasibleError):
        problem.solve()
    assert problem.value is None
    assert problem.status is None
