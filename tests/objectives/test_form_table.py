"""Tables in the form of the data, against integrals sample by sample."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from scipy.special import logsumexp

import wdro_model as wdro
from wdro_model.objectives.integration import Choice, Scales, Stream

N, D = 3000, 4
STREAM = Stream(0)


def plain_logistic(rng):
    z = wdro.UncertainParameter(D, name="z", samples=rng.normal(0.3, 1.0, size=(N, D)))
    w = cp.Variable(D, name="w")
    return cp.logistic(-z @ w), w, None


def labelled(rng):
    z = wdro.UncertainParameter(D, name="z", samples=rng.normal(size=(N, D)))
    y = wdro.UncertainParameter(name="y", samples=rng.choice([-1.0, 1.0], size=N))
    w, b = cp.Variable(D, name="w"), cp.Variable(name="b")
    return cp.logistic(-y * (z @ w + b)), w, {y: np.inf, z: np.array([1.0, 2.0, 0.5, 1.0])}


def huber(rng):
    z = wdro.UncertainParameter(D, name="z", samples=rng.normal(0.3, 1.0, size=(N, D)))
    w = cp.Variable(D, name="w")
    return cp.huber(z @ w - 1, 0.5) + cp.sum_squares(w), w, None


def saturating(rng):
    """Not convex in the data."""
    z = wdro.UncertainParameter(D, name="z", samples=rng.normal(0.3, 1.0, size=(N, D)))
    w = cp.Variable(D, name="w")
    return cp.exp(-cp.logistic(z @ w)), w, None


CASES = [plain_logistic, labelled, huber, saturating]


def rule_of(case, rng, epsilon):
    loss, _, weights = case(rng)
    ball = wdro.WassersteinBall(0.1, wdro.costs.SquaredEuclidean(weights=weights))
    variables = loss.variables()
    problem = wdro.Problem(
        cp.Minimize(loss), [cp.norm(v) <= 5 for v in variables], ball, assume_convex=True
    )
    model = problem._model
    rule = Choice("low_rank", "").build(model, Scales(epsilon, 0.1, 100))
    return rule, rng.normal(0.0, 0.6, size=model.loss.dimension)


def in_batches(rule, x, dual, size=75):
    """Value, slope and gradient from batches that are too small for a table."""
    slices = [rule.slice(x, np.arange(i, i + size), STREAM) for i in range(0, N, size)]
    points = [one.evaluate(dual) for one in slices]
    assert all(one._last[1][0].table is None for one in slices)
    return (
        np.mean([p.value for p in points]),
        np.mean([p.slope for p in points]),
        np.mean([one.gradient(dual) for one in slices], axis=0),
    )


@pytest.mark.parametrize("epsilon", [3e-2, 1e-3])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_the_samples(rng, case, epsilon):
    rule, x = rule_of(case, rng, epsilon)
    for dual in (2.0, 6.0, 40.0):
        value, slope, gradient = in_batches(rule, x, dual)
        whole = rule.slice(x, np.arange(N), STREAM)
        point = whole.evaluate(dual)
        assert point.value == pytest.approx(value, rel=1e-9, abs=1e-9 * epsilon)
        assert point.slope == pytest.approx(slope, rel=1e-8)
        np.testing.assert_allclose(
            whole.gradient(dual), gradient, rtol=1e-7, atol=1e-8 * np.abs(gradient).max()
        )


@pytest.mark.parametrize("case", [plain_logistic, labelled])
def test_interpolated_integrals_are_those_of_a_fine_grid(rng, case):
    """log E exp(h(u + L t)/eps) at random samples, by equal steps in t."""
    epsilon, dual = 1e-2, 6.0
    rule, x = rule_of(case, rng, epsilon)
    whole = rule.slice(x, np.arange(N), STREAM)
    (chunk,) = whole._integrals(dual)
    assert chunk.table is not None
    assert len(chunk.table.places) < N / 8
    found = chunk.table.at_samples(chunk.law.log_mass[:, None])[:, 0]
    t = np.linspace(-30, 30, 60_001)
    for k in rng.choice(N, size=25, replace=False):
        group = chunk.part.group.member[k]
        L = chunk.part.projection(np.array([dual])).forms
        width = L[min(group, len(L) - 1), 0, 0]
        u = chunk.table.u[k] + width * t
        exponent = np.logaddexp(0, u) / epsilon  # the form is minus the margin, or its sign
        other = np.logaddexp(0, -u) / epsilon
        logs = [logsumexp(h - t**2 / 2) + np.log(t[1] - t[0]) for h in (exponent, other)]
        expected = np.array(logs) - 0.5 * np.log(2 * np.pi)
        assert np.abs(found[k] - expected).min() <= 1e-9 * np.abs(expected).max()


@pytest.mark.parametrize("case", [plain_logistic, labelled])
def test_blocks_of_samples_and_of_places_change_nothing(rng, case, monkeypatch):
    rule, x = rule_of(case, rng, 1e-2)
    together = rule.slice(x, np.arange(N), STREAM)
    value, gradient = together.evaluate(6.0), together.gradient(6.0)
    folder = "wdro_model.objectives.integration.low_rank"
    monkeypatch.setattr(f"{folder}.table.SAMPLE_BLOCK", 500)
    monkeypatch.setattr(f"{folder}.slice.FORM_BLOCK", 700)
    monkeypatch.setattr(f"{folder}.slice.PLACE_BLOCK", 40)
    apart = rule.slice(x, np.arange(N), STREAM)
    found = apart.evaluate(6.0)
    assert apart._last[1][0].table is not None
    assert found.value == pytest.approx(value.value, rel=1e-12)
    assert found.slope == pytest.approx(value.slope, rel=1e-10)
    np.testing.assert_allclose(apart.gradient(6.0), gradient, rtol=1e-9, atol=1e-12)


def test_table_that_does_not_pay_is_given_up(rng):
    """Steep forms and a cheap transport: two modes that take turns within a hair of each other."""
    rule, x = rule_of(plain_logistic, rng, 1e-4)
    x = 30 * x
    value, slope, gradient = in_batches(rule, x, 3.0)
    whole = rule.slice(x, np.arange(N), STREAM)
    point = whole.evaluate(3.0)
    assert whole._last[1][0].table is None
    assert point.value == pytest.approx(value, rel=1e-11)
    assert point.slope == pytest.approx(slope, rel=1e-9)
    np.testing.assert_allclose(whole.gradient(3.0), gradient, rtol=1e-8, atol=1e-10)


def test_samples_that_are_all_alike(rng):
    z = wdro.UncertainParameter(2, name="z", samples=np.tile([[0.5, -0.2]], (1000, 1)))
    w = cp.Variable(2, name="w")
    problem = wdro.Problem(
        cp.Minimize(cp.logistic(-z @ w)), [cp.norm(w) <= 2], wdro.WassersteinBall(0.1)
    )
    rule = Choice("low_rank", "").build(problem._model, Scales(1e-2, 0.1, 100))
    x = np.array([1.0, 0.4])
    many, one = (rule.slice(x, np.arange(size), STREAM) for size in (1000, 1))
    assert many.evaluate(2.0).value == pytest.approx(one.evaluate(2.0).value, rel=1e-10)
    np.testing.assert_allclose(many.gradient(2.0), one.gradient(2.0), rtol=1e-8)
