"""Ascent in the data: inside the ball and the support, below the exact risk and close to it."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from tests.references.exact_cases import case
from wdro_model.objectives.ascent import climb
from wdro_model.solve.true_risk import known_robust_value
from wdro_model.uncertainty.joint import JointSamples

QUADRATIC = [
    ("affine", "squared", "plane"),
    ("affine", "squared", "box"),
    ("square", "squared", "plane"),
]


@pytest.mark.parametrize(("loss", "cost", "support"), QUADRATIC)
def test_reaches_the_exact_risk_of_smooth_losses(loss, cost, support):
    some = case(loss, cost, support, 0.3)
    found = climb(some.model, some.flat)
    value = known_robust_value(some.model, some.flat)
    margin = value - some.losses(some.rows).mean()
    assert found.expected_loss <= value + 1e-9
    assert found.expected_loss >= value - 0.02 * margin


@pytest.mark.parametrize(
    ("loss", "cost", "support"),
    [("cvar", "squared", "plane"), ("cvar", "norm1", "box"), ("affine", "norm1", "plane")],
)
def test_never_passes_the_exact_risk(loss, cost, support):
    some = case(loss, cost, support, 0.3)
    found = climb(some.model, some.flat)
    assert found.expected_loss <= known_robust_value(some.model, some.flat) + 1e-9
    assert found.expected_loss >= some.losses(some.rows).mean()
    assert some.model.joint.contains(found.rows).all()
    assert found.transport_cost <= 0.3 * (1 + 1e-9)
    assert found.transport_cost == pytest.approx(some.model.cost(some.rows, found.rows).mean())


@pytest.mark.parametrize("kind", ["squared", "weighted", "mahalanobis", "l1", "l2", "linf", "l3"])
def test_gradient_of_the_cost_against_differences(kind):
    costs = {
        "squared": wdro.costs.SquaredEuclidean(),
        "weighted": wdro.costs.SquaredEuclidean(weights=[1.0, 2.0, 0.5]),
        "mahalanobis": wdro.costs.Mahalanobis(np.diag([1.0, 2.0, 3.0]) + 0.3),
        "l1": wdro.costs.Norm(1),
        "l2": wdro.costs.Norm(2),
        "linf": wdro.costs.Norm(np.inf),
        "l3": wdro.costs.Norm(3, weights=[1.0, 2.0, 0.5]),
    }
    xi = wdro.UncertainParameter(3, samples=np.zeros((2, 3)))
    cost = costs[kind].bind(JointSamples([xi]))
    delta = np.array([[0.3, -0.7, 1.1], [-1.0, 0.2, 0.4]])
    differences = np.empty_like(delta)
    for i in range(3):
        step = np.zeros(3)
        step[i] = 1e-6
        differences[:, i] = (
            cost.of_displacements(delta + step) - cost.of_displacements(delta - step)
        ) / 2e-6
    np.testing.assert_allclose(cost.gradient(delta), differences, atol=1e-6)


def test_solution_marks_the_bound_where_no_formula_is_known():
    data = np.random.default_rng(0).uniform(0.2, 0.8, (15, 3))
    x = cp.Variable(3, nonneg=True)
    xi = wdro.UncertainParameter(3, samples=data, support=wdro.supports.Box(0.0, 1.0))
    loss = cp.sum(cp.multiply(cp.exp(xi), x)) + cp.sum_squares(x)
    problem = wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], wdro.WassersteinBall(0.05))
    problem.solve(method="smoothed")
    found = problem.solution
    assert found.robust_value_is_bound
    # F is below the worst-case risk; the adversary's own moves beat the smoothed law.
    assert found.value - 1e-6 <= found.robust_value
    assert ">=" in str(found)


def test_no_bound_where_a_formula_is_known():
    data = np.random.default_rng(0).normal(size=(15, 3))
    x = cp.Variable(3, nonneg=True)
    xi = wdro.UncertainParameter(3, samples=data)
    problem = wdro.Problem(cp.Minimize(-xi @ x), [cp.sum(x) == 1], wdro.WassersteinBall(0.05))
    problem.solve(method="smoothed")
    assert not problem.solution.robust_value_is_bound


def test_samples_that_the_smoothed_adversary_moved_far_are_looked_at():
    """A loss that is flat at the sample and steep farther out: ascent from there finds nothing."""
    x, box = cp.Variable(1), wdro.supports.Box(-1.0, 4.0)
    point = wdro.UncertainParameter(1, samples=[[0.0]], support=box)
    loss = cp.sum(cp.power(cp.pos(point - 2.0), 3)) + 0.0 * cp.sum(x)
    ball = wdro.WassersteinBall(9.0)
    problem = wdro.Problem(cp.Minimize(loss), [x == 0], ambiguity=ball)
    model, at = problem._model, np.zeros(1)
    assert climb(model, at, 1.0).expected_loss == 0.0
    found = climb(model, at, 1.0, likely=np.array([[4.0]]))
    assert found.expected_loss == pytest.approx(1.0)  # at distance 3, all that the budget allows
    assert found.transport_cost == pytest.approx(9.0)
