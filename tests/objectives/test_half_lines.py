"""Truncated Gaussians on half lines from the moments of the samples, against sums over them."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.objectives.integration import Choice, Scales, Stream, closed_form
from wdro_model.objectives.integration.closed_form import Compressed

STREAM = Stream(0)
LOWER = np.array([0.0, -np.inf, -np.inf, 0.0, 0.1])
UPPER = np.array([np.inf, 2.0, np.inf, np.inf, np.inf])


def rules(rng, monkeypatch, spread):
    """The integral over all samples and the one from their moments."""
    monkeypatch.setattr(closed_form, "SURROGATE_ENTRIES", 1)
    middle = np.array([0.4, 1.5, 0.0, 0.02, 0.3])
    data = middle + spread * (rng.gamma(4.0, size=(60, 5)) - 4.0) / 2.0
    data = np.clip(data, np.where(np.isfinite(LOWER), LOWER, -9), np.where(UPPER < 9, UPPER, 9))
    xi = wdro.UncertainParameter(5, samples=data, support=wdro.supports.Box(LOWER, UPPER))
    x = cp.Variable(2)
    A = rng.normal(size=(5, 2))
    problem = wdro.Problem(
        cp.Minimize(cp.sum_squares(x) + xi @ (A @ x + 0.3)),
        [cp.norm(x) <= 2],
        wdro.WassersteinBall(0.1),
    )
    rule = Choice("closed_form", "").build(problem._model, Scales(0.1, 0.3, 1))
    easier = rule.surrogate()
    assert isinstance(easier, Compressed)
    return rule, easier


@pytest.mark.parametrize(("spread", "error"), [(0.004, 1e-9), (0.02, 2e-5), (0.15, 2e-2)])
def test_moments_stand_for_the_samples(rng, monkeypatch, spread, error):
    """To rounding where samples are close together, roughly where two nodes stand for them."""
    rule, easier = rules(rng, monkeypatch, spread)
    for x in (np.array([0.3, -0.6]), np.array([-1.2, 0.4])):
        full, few = rule.slice(x, np.arange(60), STREAM), easier.slice(x, np.arange(1), STREAM)
        for dual in (0.0, 0.5, 4.0):
            wanted, found = full.at(dual), few.at(dual)
            assert found.value == pytest.approx(wanted.value, abs=error)
            assert found.slope == pytest.approx(wanted.slope, rel=10 * error)
            np.testing.assert_allclose(few.gradient(dual), full.gradient(dual), atol=10 * error)


def test_values_and_slopes_of_moments_agree(rng, monkeypatch):
    """The slope is the derivative of the value, the gradient that in x: one function."""
    _, easier = rules(rng, monkeypatch, 0.01)
    x, dual, h = np.array([0.3, -0.6]), 0.7, 1e-5

    def value(x, dual):
        return easier.slice(x, np.arange(1), STREAM).at(dual).value

    here = easier.slice(x, np.arange(1), STREAM)
    numeric = (value(x, dual + h) - value(x, dual - h)) / (2 * h)
    assert here.at(dual).slope == pytest.approx(numeric, rel=1e-5)
    moves = [(value(x + h * e, dual) - value(x - h * e, dual)) / (2 * h) for e in np.eye(2)]
    np.testing.assert_allclose(here.gradient(dual), moves, atol=1e-5)
