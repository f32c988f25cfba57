"""Statistics of losses against NumPy, pandas, and a minimisation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from wdro_model.evaluation.statistics import (
    LossStatistics,
    conditional_value_at_risk,
    standard_error,
    tail_error,
)

samples = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=60).map(np.array)


@settings(max_examples=50, deadline=None)
@given(samples)
def test_statistics_are_those_of_pandas(losses):
    pandas = pytest.importorskip("pandas")
    series, found = pandas.Series(losses), LossStatistics.of(losses)
    assert found.count == series.size
    assert found.mean == pytest.approx(series.mean(), abs=1e-9)
    assert found.deviation == pytest.approx(series.std(), abs=1e-9)
    assert found.standard_error == pytest.approx(series.sem(), abs=1e-9)
    assert found.worst == series.max()
    for level, quantile in found.quantiles.items():
        assert quantile == pytest.approx(series.quantile(level), abs=1e-9)
    assert found.median == pytest.approx(series.median(), abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(samples, st.sampled_from([0.0, 0.5, 0.9, 0.95]))
def test_cvar_is_the_minimum_of_rockafellar_and_uryasev(losses, level):
    def objective(t):
        return t + np.maximum(losses - t, 0).mean() / (1 - level)

    kinks = min(objective(t) for t in losses)
    line = minimize_scalar(objective, bounds=(losses.min() - 1, losses.max() + 1), method="bounded")
    cvar = conditional_value_at_risk(losses, level)
    assert cvar == pytest.approx(kinks, abs=1e-8)
    assert cvar <= line.fun + 1e-8
    assert losses.mean() - 1e-8 <= cvar <= losses.max() + 1e-8


def test_cvar_of_whole_shares_by_hand():
    losses = np.arange(1.0, 101.0)
    assert conditional_value_at_risk(losses, 0.95) == pytest.approx(98.0)
    assert conditional_value_at_risk(losses[:10], 0.95) == 10.0


def test_standard_errors_are_the_spread_of_repetitions():
    rng = np.random.default_rng(0)
    draws = rng.exponential(size=(1500, 400))
    means, tails = draws.mean(axis=1), [conditional_value_at_risk(d, 0.95) for d in draws]
    claimed = np.mean([standard_error(d) for d in draws])
    claimed_tail = np.mean([tail_error(d, 0.95) for d in draws])
    assert claimed == pytest.approx(means.std(), rel=0.06)
    assert claimed_tail == pytest.approx(np.std(tails), rel=0.12)


def test_one_loss_has_no_standard_error():
    found = LossStatistics.of(np.array([3.0]))
    assert (found.mean, found.deviation, found.tail, found.worst) == (3.0, 0.0, 3.0, 3.0)
    assert np.isnan([found.standard_error, found.tail_error]).all()


@pytest.mark.parametrize("losses", [[], [[1.0, 2.0]], 3.0])
def test_what_is_no_vector_of_losses_is_refused(losses):
    with pytest.raises(ValueError, match="a vector of at least one loss, got shape"):
        LossStatistics.of(losses)


def test_a_decision_is_evaluated_on_scenarios(portfolio, rng):
    problem, x, data = portfolio
    test = rng.normal(size=(40, 4))
    with pytest.raises(ValueError, match="has no value yet"):
        problem.evaluate()
    problem.solve()
    assert problem.evaluate().mean == pytest.approx(-(data @ x.value).mean())
    assert problem.evaluate(test) == LossStatistics.of(problem.losses(test))
    other = {x: np.array([1.0, 0, 0, 0])}
    assert problem.evaluate(test, decision=other).worst == pytest.approx(-test[:, 0].min())
    assert problem.evaluate(decision=problem.solution).mean == problem.evaluate().mean
    with pytest.raises(ValueError, match="shape"):
        problem.evaluate(decision={x: np.ones(3)})
    text = str(problem.evaluate(test))
    for word in ("scenarios  40", "mean", "standard error", "quantiles", "95%", "CVaR", "worst"):
        assert word in text
