"""Newton directions by the oracle: quadratic models over flows, trees and simplices."""

from __future__ import annotations

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.datasets import sioux_falls, training_scenarios
from wdro_model.model.compiled import RobustModel
from wdro_model.objectives.empirical import Empirical
from wdro_model.objectives.integration import Choice, Scales, Stream
from wdro_model.objectives.smoothed_risk import Smoothed
from wdro_model.solvers import FrankWolfe
from wdro_model.solvers.directions import GradientSource
from wdro_model.solvers.directions.newton import NewtonState, OracleQuadratic, SecantPairs


def flow_problem(count: int = 5, radius: float = 2.0, backend: str = "scipy") -> wdro.Problem:
    scenarios = training_scenarios(sioux_falls())
    flows = wdro.sets.TrafficFlows(scenarios.network, backend=backend)
    x = cp.Variable(flows.dimension, name="flow")
    parameters = scenarios.parameters(count, seed=0)
    loss = wdro.traffic.beckmann(x, scenarios.network.capacity, *parameters) / 1e5
    ball = wdro.WassersteinBall(radius, wdro.costs.SquaredEuclidean("standardize"))
    return wdro.Problem(cp.Minimize(loss), [wdro.In(x, flows)], ambiguity=ball)


@pytest.mark.parametrize("seed", range(6))
def test_a_quadratic_model_is_minimised_over_an_oracle_as_by_a_conic_solver(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = wdro.sets.SpanningTree(nx.gnm_random_graph(6, 12, seed=seed))
    n = tree.dimension
    factor = rng.normal(size=(n, n))
    curvature, gradient = factor @ factor.T / n + 0.1 * np.eye(n), rng.normal(size=n)
    x = tree.minimize(rng.normal(size=n))
    found = OracleQuadratic(tree)(gradient, curvature, x)
    z = cp.Variable(n)
    model = gradient @ (z - x) + 0.5 * cp.quad_form(z - x, cp.psd_wrap(curvature))
    known = cp.Problem(cp.Minimize(model), tree.constraints(z)).solve(solver=cp.CLARABEL)
    step = found - x
    reached = float(gradient @ step + 0.5 * step @ curvature @ step)
    assert tree.contains(found)
    assert known - 1e-6 <= reached <= known + 0.02 * abs(known) + 1e-6


def test_the_bfgs_matrix_as_an_operator_is_the_matrix() -> None:
    rng = np.random.default_rng(3)
    hessian = np.diag(rng.uniform(1, 5, 7))
    pairs = SecantPairs()
    for _ in range(4):
        step = rng.normal(size=7)
        pairs.add(step, hessian @ step)
    for base in (None, rng.uniform(1, 2, 7)):
        found, vector = pairs.matrix(7, base), rng.normal(size=7)
        np.testing.assert_allclose(found @ vector, found.dense() @ vector, rtol=1e-12)
        # The secant equation of the last pair, and a positive definite matrix.
        np.testing.assert_allclose(found @ step, hessian @ step, rtol=1e-9)
        assert np.linalg.eigvalsh(found.dense()).min() > 0
    rows = rng.normal(size=(3, 7))
    expected = rows @ pairs.matrix(7).dense() @ rows.T
    np.testing.assert_allclose(pairs.quadratic(rows), expected, rtol=1e-9)


def test_the_second_derivatives_of_a_sum_over_coordinates_are_found() -> None:
    weights = np.array([1.0, 4.0, 0.0, 2.0])

    def gradient(x: np.ndarray) -> np.ndarray:
        return weights * x**3

    x = np.array([1.0, 2.0, 3.0, 0.5])
    source = GradientSource(gradient, fixed_adversary=lambda: gradient)
    state = NewtonState(lambda g, B, x: x, source, dense=True)
    matrix = state.curvature(x, gradient(x))
    np.testing.assert_allclose(np.diag(matrix)[[0, 1, 3]], 3 * (weights * x**2)[[0, 1, 3]], 1e-3)
    assert 0 < matrix[2, 2] < 0.01 * np.median(np.diag(matrix))  # not curved, and still definite


def test_a_loss_that_is_no_such_sum_is_left_to_the_steps() -> None:

    def gradient(x: np.ndarray) -> np.ndarray:
        return np.ones((3, 3)) @ x

    x = np.array([1.0, 2.0, 3.0])
    source = GradientSource(gradient, fixed_adversary=lambda: gradient)
    matrix = NewtonState(lambda g, B, x: x, source, dense=True).curvature(x, gradient(x))
    np.testing.assert_allclose(matrix, matrix[0, 0] * np.eye(3), rtol=1e-9)


def test_gradients_with_the_adversary_held_begin_with_the_gradient() -> None:
    problem = flow_problem()
    model = problem._model
    assert isinstance(model, RobustModel)
    rule = Choice("conditional", "").build(model, Scales(0.01, 0.05, 10))
    flows = model.feasible.oracle()
    x = 0.5 * (flows.minimize(np.ones(76)) + flows.minimize(np.arange(1.0, 77.0)))
    inner = rule.slice(x, np.arange(model.joint.size), Stream(0))
    dual = 2.0
    inner.evaluate(dual)
    gradient = inner.gradient(dual)
    held = inner.fixed_adversary_gradient(dual)
    assert held is not None
    np.testing.assert_allclose(held(x), gradient, rtol=1e-12)
    # Jensen's side: F is above the expected loss under the distribution that is held, and touches
    # it at x, so that along any line the held slope grows no faster.
    away = flows.minimize(np.linspace(2.0, 1.0, 76)) - x
    ahead = x + 1e-3 * away
    other = rule.slice(ahead, np.arange(model.joint.size), Stream(0))
    other.evaluate(dual)
    assert (other.gradient(dual) - held(ahead)) @ away >= -1e-9 * abs(gradient @ away)


@pytest.mark.parametrize("radius", [0.3, 2.0, 6.0, 15.0])
def test_the_reply_to_a_step_is_the_change_of_the_gradient(radius: float) -> None:
    """Against the gradients of evaluations that move nodes and search for the dual themselves."""
    model = flow_problem(10, radius)._model
    rule = Choice("conditional", "").build(model, Scales(0.05, 0.05, 10))
    objective = Smoothed(rule, size=10, radius=radius, epsilon=0.05, sigma=0.05, convex=True)
    flows = model.feasible.oracle()
    x = 0.5 * (flows.minimize(np.ones(76)) + flows.minimize(np.arange(1.0, 77.0)))
    for _ in range(3):
        x = 0.8 * x + 0.2 * flows.minimize(objective.evaluate(x).gradient)
    away = flows.minimize(np.linspace(2.0, 1.0, 76)) - x
    step = 1e-7
    up, down = (objective.evaluate(x + s * away).gradient for s in (step, -step))
    gradient = objective.evaluate(x).gradient
    replied, held = objective.replying_adversary_gradient(x), objective.fixed_adversary_gradient(x)
    assert replied is not None
    assert held is not None
    np.testing.assert_allclose(replied(x), gradient, rtol=1e-9)
    change = (replied(x + 0.1 * step * away) - gradient) / (0.1 * step)
    expected = (up - down) / (2 * step)
    np.testing.assert_allclose(change, expected, atol=2e-3 * np.abs(expected).max())
    # The adversary replies to its own advantage: the risk bends more than the loss does.
    alone = (held(x + step * away) - gradient) / step
    assert change @ away >= (1 - 1e-6) * (alone @ away)
    assert (
        objective.replying_adversary_gradient(x + away) is None
    )  # not the decision that was evaluated last


def test_of_the_mean_loss_nothing_is_held() -> None:
    problem = flow_problem()
    mean = Empirical(problem._model)
    flows = problem._model.feasible.oracle()
    x, y = flows.minimize(np.ones(76)), flows.minimize(np.arange(1.0, 77.0))
    np.testing.assert_allclose(mean.fixed_adversary_gradient(x)(y), mean.evaluate(y).gradient)


@pytest.mark.parametrize("method", ["erm", "smoothed"])
def test_robust_flows_are_those_of_biconjugate_directions_in_fewer_iterations(method: str) -> None:
    newton, conjugate = flow_problem(), flow_problem()
    fast = newton.solve(method=method, solver=FrankWolfe(gap=1e-5))
    slow = conjugate.solve(method=method, solver=FrankWolfe(gap=1e-5, direction="biconjugate"))
    assert newton.status == conjugate.status == "optimal"
    assert abs(fast - slow) <= 2e-5 * abs(slow)
    assert newton.solution.lower_bound <= slow + 1e-9
    assert conjugate.solution.lower_bound <= fast + 1e-9
    assert 3 * newton.solution.iterations < conjugate.solution.iterations


def test_slow_oracles_keep_directions_that_ask_once_for_an_iteration() -> None:
    network = sioux_falls()
    fast = wdro.sets.TrafficFlows(network, backend="scipy")
    slow = wdro.sets.TrafficFlows(network, backend="networkx")
    assert FrankWolfe().direction_name(fast) == "oracle_newton"
    assert FrankWolfe().direction_name(slow) == "biconjugate"


def test_newton_directions_by_name_over_another_oracle() -> None:
    tree = wdro.sets.SpanningTree(nx.complete_graph(5))
    x = cp.Variable(tree.dimension)
    target = np.linspace(0, 1, tree.dimension)
    problem = wdro.Problem(cp.Minimize(cp.sum_squares(x - target)), [wdro.In(x, tree)])
    value = problem.solve(solver=FrankWolfe(direction="oracle_newton", gap=1e-6))
    known = cp.Problem(cp.Minimize(cp.sum_squares(x - target)), tree.constraints(x)).solve()
    assert abs(value - known) <= 1e-5 * abs(known)
