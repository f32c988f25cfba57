"""The adversary of the smoothed problem: in the ball, in the support, and of the right value."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro

DATA = np.random.default_rng(2).normal(0.2, 0.5, (25, 4)).clip(-1.5, 1.5)


def problem_with(loss, support=None, radius=0.05, cost=None):
    x = cp.Variable(4, nonneg=True)
    xi = wdro.UncertainParameter(4, samples=DATA, support=support)
    losses = {
        "affine": lambda: -xi @ x,
        "logistic": lambda: cp.logistic(-3 * (xi @ x)),
        "hinge": lambda: cp.pos(0.5 - xi @ x),
        "squares": lambda: cp.sum_squares(cp.multiply(xi, x)) - xi @ x,
    }
    ball = wdro.WassersteinBall(radius, cost)
    return wdro.Problem(cp.Minimize(losses[loss]()), [cp.sum(x) == 1], ball)


@pytest.mark.parametrize(
    ("loss", "support"),
    [
        ("affine", None),
        ("affine", wdro.supports.Box(-2.0, 2.0)),
        ("logistic", None),
        ("squares", wdro.supports.Box(-2.0, 2.0)),
    ],
)
def test_draws_explain_the_smoothed_value(loss, support):
    problem = problem_with(loss, support)
    value = problem.solve(method="smoothed")
    found = problem.worst_case()
    (rows,) = found.scenarios.values()
    radius = problem.ambiguity.radius
    if support is not None:
        assert support.contains(rows).all()
    assert found.weights.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(np.bincount(found.source, found.weights), 1 / len(DATA))
    moves = np.sum((rows - DATA[found.source]) ** 2, axis=1)
    assert found.transport_cost == pytest.approx(found.weights @ moves)
    assert found.transport_cost <= radius * (1 + 1e-9)
    assert found.transport_cost == pytest.approx(radius, rel=0.05)
    assert found.expected_loss == pytest.approx(found.weights @ problem.losses(rows))
    explained = found.expected_loss - found.penalty + found.dual * (radius - found.transport_cost)
    margin = value - problem.solution.empirical_value
    assert explained == pytest.approx(value, abs=0.03 * margin)
    assert found.penalty >= -1e-3 * margin


def test_expected_loss_is_a_lower_bound_on_the_worst_case_risk():
    problem = problem_with("hinge", radius=0.1)
    problem.solve(method="smoothed")
    found = problem.worst_case()
    assert found.expected_loss <= problem.robust_value() + 1e-9
    assert found.expected_loss > problem.solution.empirical_value
    assert "smoothed" in str(found)


def test_exact_distribution_on_request_and_by_default_after_an_exact_solve():
    problem = problem_with("affine")
    problem.solve(method="smoothed")
    assert problem.worst_case("exact").penalty is None
    problem.solve(method="exact")
    assert problem.worst_case().penalty is None
    with pytest.raises(ValueError, match=r"solve\(method='smoothed'\) first"):
        problem.worst_case("smoothed")
    with pytest.raises(ValueError, match="Did you mean 'smoothed'"):
        problem.worst_case("smothed")


def test_same_draws_each_time():
    problem = problem_with("logistic")
    problem.solve(method="smoothed")
    first, second = problem.worst_case(), problem.worst_case()
    np.testing.assert_array_equal(first.weights, second.weights)
    assert first.expected_loss == second.expected_loss
