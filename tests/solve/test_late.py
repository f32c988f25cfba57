"""What is left undone when the time is over: nothing that takes as long as a solve."""

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
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
