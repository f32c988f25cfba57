"""What is left undone when the time is over: nothing that takes as long as a solve."""

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.objectives.smoothed_risk import Smoothed
from wdro_model.sets.deadlines import OutOfTime
from wdro_model.solve import certify


def test_no_formula_is_worked_out_after_the_time_is_over(monkeypatch):
    def slow(*given):
        raise AssertionError("asked for more than there was time for")

    monkeypatch.setattr(certify, "known_robust_value", slow)
    monkeypatch.setattr(certify, "climb", slow)
    x = cp.Variable(3, nonneg=True)
    xi = wdro.UncertainParameter(3, samples=np.random.default_rng(0).normal(size=(20, 3)))
    problem = wdro.Problem(
        cp.Minimize(cp.logistic(-xi @ x)), [cp.sum(x) == 1], wdro.WassersteinBall(0.1)
    )
    problem.solve(method="smoothed", time_limit=1e-6)
    assert problem.status == "user_limit"
    assert x.value == pytest.approx(np.clip(x.value, 0, 1))
    with pytest.raises(AssertionError, match="more than there was time for"):
        problem.solve(method="smoothed")


def small_problem():
    x = cp.Variable(3, nonneg=True)
    samples = np.random.default_rng(0).uniform(-1, 1, size=(20, 3))
    xi = wdro.UncertainParameter(3, samples=samples, support=wdro.supports.Box(-2, 2))
    loss = cp.log_sum_exp(cp.multiply(xi, x)) + cp.sum_squares(cp.pos(xi + x))
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(1))
    return wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], ball), x


MOMENTUM = wdro.solvers.MomentumFrankWolfe(batch_size=5, samples=4, max_iterations=10**6)


@pytest.mark.parametrize(
    "options",
    [{"integration": "tilted"}, {"integration": "gaussian"}, {"solver": MOMENTUM}],
    ids=["in stages", "on fixed draws", "stochastic"],
)
def test_a_decision_that_there_was_no_time_to_evaluate_is_returned_without_a_value(
    options, monkeypatch
):
    problem, x = small_problem()

    def late(*given, **more):
        raise OutOfTime

    monkeypatch.setattr(Smoothed, "evaluate", late)
    monkeypatch.setattr(Smoothed, "estimate", late)
    problem.solve("smoothed", epsilon=0.1, time_limit=60, **options)
    assert problem.status == "user_limit"
    assert np.isnan(problem.value)
    assert "time limit" in problem.solution.stop
    assert x.value.sum() == pytest.approx(1)


def test_a_stochastic_solve_keeps_time_to_judge_its_decision():
    problem, x = small_problem()
    problem.solve("smoothed", epsilon=0.1, time_limit=3, solver=MOMENTUM)
    assert problem.status == "user_limit"
    assert np.isfinite(problem.value)
    assert np.isfinite(problem.solution.gap)
    assert x.value.sum() == pytest.approx(1)
