"""Random models: the worst case is a distribution of the ball, and attains the worst-case value."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from tests.references.worst_case_models import random_model

MODELS = 125
"""Each loss with each cost and each support."""
HARD = (121, 172, 173, 244, 304, 329, 361, 479, 553)
"""Tight polyhedra, one sample, moves without end, linear programs on which a solver fails."""


@pytest.mark.parametrize("seed", range(MODELS))
def test_the_worst_case_attains_the_worst_case_value(seed):
    check_worst_case(seed)


@pytest.mark.parametrize("seed", HARD)
def test_the_worst_case_attains_the_value_where_solvers_struggle(seed):
    check_worst_case(seed)


def check_worst_case(seed):
    some = random_model(seed)
    found = some.problem.worst_case(decision={some.x: some.decision})
    points, radius = found.scenarios[some.parameter], some.radius
    shares = np.bincount(found.source, found.weights, minlength=len(some.samples))
    np.testing.assert_allclose(shares, some.shares, atol=1e-9, err_msg=some.words)
    assert np.all(found.weights >= 0)
    assert some.contains(points), some.words
    spent = float(found.weights @ some.transport(some.samples[found.source], points))
    assert spent <= radius * (1 + 1e-9), some.words
    assert spent == pytest.approx(found.transport_cost, rel=1e-9, abs=1e-12)
    attained, value = some.risk(points, found.weights), some.worst_risk()
    sizes = np.abs(some.constants + some.samples @ some.slopes.T).max()
    size = max(abs(value), sizes)
    assert found.expected_loss == pytest.approx(attained, abs=1e-8 * size), some.words
    # Both programs are solved to 1e-8 of what is in them.
    assert attained + found.shortfall == pytest.approx(value, abs=5e-6 * size), some.words
    assert found.shortfall <= 5e-6 * size, f"{some.words}: {found}"


def tent():
    """max(z - 3, 0) with one sample at 1 on the half-line, and that parameter."""
    x = cp.Variable()
    z = wdro.UncertainParameter(samples=[1.0], support=wdro.supports.Nonnegative())
    loss = cp.pos(z - 3) + 0 * x
    return wdro.Problem(
        cp.Minimize(loss), [x == 0], wdro.WassersteinBall(0.5, wdro.costs.Norm())
    ), z


def test_a_worst_case_that_is_only_approached_says_so():
    problem, _ = tent()
    assert problem.solve() == pytest.approx(0.5)
    found = problem.worst_case()
    assert found.is_limit
    assert found.expected_loss == pytest.approx(0.5, rel=1e-6)
    assert "no distribution attains the worst case: a vanishing mass" in str(found)
    assert "vanishing mass" in found._repr_html_()


def test_a_worst_case_on_a_box_is_attained_and_does_not_speak_of_infinity():
    x = cp.Variable()
    z = wdro.UncertainParameter(samples=[1.0], support=wdro.supports.Box(0, 1e4))
    loss = cp.pos(z - 3) + 0 * x
    ball = wdro.WassersteinBall(0.5, wdro.costs.Norm())
    found = wdro.Problem(cp.Minimize(loss), [x == 0], ball).worst_case(decision={x: 0.0})
    assert not found.is_limit
    assert "infinity" not in str(found)
    assert found.expected_loss == pytest.approx(0.5 * (1e4 - 3) / (1e4 - 1))


def test_a_shortfall_is_said(monkeypatch):
    from wdro_model.evaluation import worst_case as module

    problem, _ = tent()
    monkeypatch.setattr(module, "robust_value", lambda *_: 0.6)
    found = problem.worst_case(decision=dict.fromkeys(problem.variables(), 0.0))
    assert found.shortfall == pytest.approx(0.1, abs=1e-6)
    assert "falls short of the worst-case value by 0.1" in str(found)


def test_a_smoothed_solve_that_was_stopped_has_no_worst_case():
    from dataclasses import replace

    x = cp.Variable(2, nonneg=True)
    z = wdro.UncertainParameter(2, samples=np.ones((4, 2)) + np.eye(4)[:, :2])
    problem = wdro.Problem(
        cp.Minimize(cp.logistic(z @ x)), [cp.sum(x) == 1], wdro.WassersteinBall(0.1)
    )
    problem.solve("smoothed")
    problem.solution = replace(problem.solution, value=np.nan, dual=None)
    with pytest.raises(ValueError, match="stopped before it had evaluated its decision"):
        problem.worst_case()
