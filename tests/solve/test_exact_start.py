"""Smoothed runs begin at the exact robust decision, over oracles too."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.objectives.integration import closed_form
from wdro_model.solve import scales, smoothed
from wdro_model.solve.options import Options

D, RADIUS = 5, 0.3


def over_a_simplex(rng, support):
    """An affine loss over the probability simplex, known by its vertices alone."""
    x = cp.Variable(D, name="x")
    samples = np.abs(rng.normal(1.0, 0.2, size=(40, D)))
    xi = wdro.UncertainParameter(D, name="xi", samples=samples, support=support)
    simplex = wdro.sets.Oracle(lambda g: np.eye(D)[np.argmin(g)], D, name="simplex")
    return wdro.Problem(cp.Minimize(xi @ x), [wdro.In(x, simplex)], wdro.WassersteinBall(RADIUS))


def by_cvxpy(problem):
    """mean f + sqrt(radius) |x|: x >= 0 moves the data up, which the orthant allows."""
    x = cp.Variable(D, nonneg=True)
    mean = problem._model.rows.mean(axis=0)
    cp.Problem(cp.Minimize(mean @ x + np.sqrt(RADIUS) * cp.norm(x)), [cp.sum(x) == 1]).solve()
    return x.value


@pytest.mark.parametrize("support", [wdro.supports.Everywhere(), wdro.supports.Nonnegative()])
def test_exact_decision_over_an_oracle(rng, support):
    problem = over_a_simplex(rng, support)
    found = scales.robust_decision(problem._model, Options())
    np.testing.assert_allclose(found, by_cvxpy(problem), atol=2e-2)


def test_long_integrals_begin_there(rng, monkeypatch):
    monkeypatch.setattr(closed_form, "SURROGATE_ENTRIES", 1)
    begun = []
    place = smoothed.choose_start

    def watched(*given):
        begun.append(place(*given))
        return begun[-1]

    monkeypatch.setattr(smoothed, "choose_start", watched)
    problem = over_a_simplex(rng, wdro.supports.Nonnegative())
    value = problem.solve(method="smoothed")
    np.testing.assert_allclose(begun[0], by_cvxpy(problem), atol=2e-2)
    assert problem.solution.status == cp.OPTIMAL
    x = problem._model.feasible.layout.variables[0]
    again = problem.solve(method="smoothed", start={x: np.eye(D)[0]})
    assert value == pytest.approx(again, rel=2e-4)
