"""A time limit holds inside one evaluation of the smoothed objective, and leaves a decision."""

from __future__ import annotations

from types import SimpleNamespace

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.sets import deadlines

pytestmark = pytest.mark.filterwarnings("ignore::wdro_model.errors.SamplingWarning")

DATA = np.random.default_rng(0).uniform(-0.5, 0.5, (6, 2))
BOX = wdro.supports.Box(-1.0, 1.0)


def problem(loss, norm: float, support) -> wdro.Problem:
    x = cp.Variable(2)
    z = wdro.UncertainParameter(2, samples=DATA, support=support)
    ball = wdro.WassersteinBall(0.1, wdro.costs.Norm(norm))
    return wdro.Problem(cp.Minimize(loss(x, z)), [x >= -1, x <= 1, cp.sum(x) == 0.5], ball)


CASES = {
    "terms": (lambda x, z: cp.sum(cp.abs(z - x)), 2, BOX, "norms"),
    "a mixture of quadratures": (lambda x, z: cp.logistic(z @ x), 2, None, "norms"),
    "cells": (lambda x, z: cp.logistic(z @ x), np.inf, BOX, "cells"),
}


class Clock:
    """Time passes by a second at each look at it."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    ticking = Clock()
    monkeypatch.setattr(deadlines, "time", SimpleNamespace(perf_counter=ticking.perf_counter))
    return ticking


@pytest.mark.parametrize("name", CASES)
def test_an_evaluation_that_takes_too_long_leaves_a_decision_without_a_value(name, clock):
    *case, strategy = CASES[name]
    asked = {"method": "smoothed", "integration": strategy, "epsilon": 0.01, "progress": False}
    some = problem(*case)
    some.solve(time_limit=2.5, **asked)
    assert some.status == "user_limit"
    assert np.isnan(some.value)
    assert np.isinf(some.solution.gap)
    assert some.solution.lower_bound is None
    assert "before the objective was evaluated" in str(some.solution.notes)
    x = some.variables()[0].value
    assert x.sum() == pytest.approx(0.5)
    assert np.abs(x).max() <= 1 + 1e-6


@pytest.mark.parametrize("name", CASES)
def test_the_clock_is_looked_at_several_times_in_one_evaluation(name, clock):
    *case, strategy = CASES[name]
    some = problem(*case)
    once = wdro.solvers.FrankWolfe(time_limit=1e6, max_iterations=0)
    some.solve(method="smoothed", integration=strategy, epsilon=0.01, solver=once, progress=False)
    assert clock.now > 5
    assert np.isfinite(some.value)
