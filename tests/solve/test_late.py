"""What is left undone when the time is over: nothing that takes as long as a solve."""

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.objectives.cvar_thresholds import LeastThresholds
from wdro_model.objectives.empirical import Empirical
from wdro_model.objectives.smoothed_risk import Smoothed
from wdro_model.sets.deadlines import OutOfTime, deadline
from wdro_model.solve import certify
from wdro_model.solvers import Stop


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


WAYS = {
    "in stages": {"integration": "tilted"},
    "on fixed draws": {"integration": "gaussian"},
    "stochastic": {"solver": MOMENTUM},
}


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(
    ("error", "stop"), [(OutOfTime, "time limit"), (KeyboardInterrupt, "from the keyboard")]
)
def test_a_decision_that_there_was_no_time_to_evaluate_is_returned_without_a_value(
    options, error, stop, monkeypatch
):
    problem, x = small_problem()

    def late(*given, **more):
        raise error

    monkeypatch.setattr(Smoothed, "evaluate", late)
    monkeypatch.setattr(Smoothed, "estimate", late)
    problem.solve("smoothed", epsilon=0.1, time_limit=60, **options)
    assert problem.status == "user_limit"
    assert np.isnan(problem.value)
    assert stop in problem.solution.stop
    assert x.value.sum() == pytest.approx(1)


def test_an_interrupt_of_the_first_exact_evaluation_leaves_a_decision(monkeypatch):
    x = cp.Variable(2, nonneg=True)
    xi = wdro.UncertainParameter(2, samples=[[1.0, 2.0], [2.0, 1.0]])
    loss = cp.square(xi @ x)
    problem = wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], wdro.WassersteinBall(0.1))

    def interrupted(*given, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(Smoothed, "evaluate", interrupted)
    start = {x: np.array([0.25, 0.75])}
    problem.solve("smoothed", epsilon=0.1, start=start)
    assert problem.status == "user_limit"
    assert "keyboard" in problem.solution.stop
    assert np.isnan(problem.value)
    np.testing.assert_array_equal(x.value, start[x])


def test_a_stochastic_solve_keeps_time_to_judge_its_decision():
    problem, x = small_problem()
    problem.solve("smoothed", epsilon=0.1, time_limit=3, solver=MOMENTUM)
    assert problem.status == "user_limit"
    assert np.isfinite(problem.value)
    assert np.isfinite(problem.solution.gap)
    assert x.value.sum() == pytest.approx(1)


def tail_over_an_oracle():
    rng = np.random.default_rng(0)
    subsets = wdro.sets.Subsets(5, k=2)
    costs = wdro.UncertainParameter(5, samples=rng.uniform(0.5, 2, size=(12, 5)))
    x = cp.Variable(5, name="x")
    member = wdro.In(x, wdro.sets.Oracle(subsets.minimize, 5))
    loss = wdro.cvar(cp.maximum(costs @ x, 3 - costs @ x), 0.8)
    return x, wdro.Problem(cp.Minimize(loss), [member], wdro.WassersteinBall(0.2))


def test_a_run_within_a_solve_ends_with_its_time():
    _, problem = tail_over_an_oracle()
    model = problem.with_radius(0)._model
    objective = Empirical(model)
    start = model.feasible.oracle().minimize(np.ones(6))
    with deadline(1e-9):
        outcome = wdro.solvers.FrankWolfe(gap=1e-12).run(
            objective, model.feasible.oracle(), start, rng=np.random.default_rng(0)
        )
    assert outcome.stop is Stop.TIME


def test_a_first_evaluation_that_takes_too_long_leaves_a_decision(monkeypatch):
    def late(*given):
        raise OutOfTime

    x, problem = tail_over_an_oracle()
    monkeypatch.setattr(LeastThresholds, "evaluate", late)
    problem.solve("smoothed", integration="tilted", time_limit=60)
    assert problem.status == "user_limit"
    assert x.value.sum() == pytest.approx(2)
    assert any("longer time_limit" in note for note in problem.solution.notes)


def test_the_first_guess_over_an_oracle_is_a_rough_one(monkeypatch):
    """A loss with kinks is never minimised to the end by Frank-Wolfe: that is no guess."""
    most = []
    plain = wdro.solvers.FrankWolfe.run

    def seen(self, objective, *given, **more):
        if not hasattr(objective, "epsilon"):
            most.append(self.max_iterations)
        return plain(self, objective, *given, **more)

    monkeypatch.setattr(wdro.solvers.FrankWolfe, "run", seen)
    tail_over_an_oracle()[1].solve("smoothed")
    assert most
    assert max(most) <= 200
