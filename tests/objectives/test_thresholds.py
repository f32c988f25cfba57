"""Thresholds of smoothed CVaRs: against quadrature, bounds, and thresholds that are written out.

`tests/references/threshold_models.py` has models of any size.
"""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from scipy.special import logsumexp

import wdro_model as wdro
from tests.references.threshold_models import random_risk_model
from wdro_model.objectives import cvar_thresholds
from wdro_model.objectives.cvar_thresholds import minimise_thresholds
from wdro_model.solvers.objective import Point

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("size", [1, 2])
def test_few_samples_that_agree(size):
    """The quantile of their losses is far from the best threshold, and tells no scale."""
    z = wdro.UncertainParameter(10, samples=np.full((size, 10), 0.5))
    x = cp.Variable(10)
    risk = wdro.cvar(z @ x, 0.5)
    problem = wdro.Problem(cp.Minimize(risk), [x == 1], wdro.WassersteinBall(0.8))
    value = problem.solve("smoothed")
    assert problem.status == "optimal"
    assert 8.5 < value <= problem.robust_value() + 1e-6
    assert problem.solution.gap <= 1e-4 * value


@pytest.mark.parametrize("seed", range(6))
def test_thresholds_are_accurate_enough_for_the_decision_to_converge(seed):
    """Values that still vary with the search for thresholds would leave the line search no gain."""
    data = np.random.default_rng(seed).normal(0.05, 0.2, size=(50, 5))
    x = cp.Variable(5, nonneg=True)
    returns = wdro.UncertainParameter(5, samples=data)
    risk = wdro.cvar(-returns @ x, 0.9)
    problem = wdro.Problem(cp.Minimize(risk), [cp.sum(x) == 1], wdro.WassersteinBall(0.01))
    problem.solve("smoothed", solver=wdro.solvers.FrankWolfe(max_iterations=30))
    assert problem.status == "optimal"


def least_by_quadrature(loss, cost, rows, level, radius, epsilon, sigma, low, high):
    """F of one CVaR of a loss of one number, on a grid, minimised over threshold and dual."""
    z = np.linspace(max(low, rows.min() - 14 * sigma - 8), min(high, rows.max() + 8), 6001)
    values, costs = loss(z), [cost(z - row) for row in rows]
    references = [-0.5 * ((z - row) / sigma) ** 2 for row in rows]

    def at_threshold(t):
        tail = t + np.maximum(values - t, 0.0) / (1 - level)

        def at_dual(log):
            dual = np.exp(log)
            terms = [
                logsumexp((tail - dual * c) / epsilon + r) - logsumexp(r)
                for c, r in zip(costs, references)
            ]
            return dual * radius + epsilon * np.mean(terms)

        return minimize_scalar(at_dual, bounds=(-9, 9), method="bounded").fun

    ends = float(values.min()), float(values.max())
    return minimize_scalar(
        at_threshold, bounds=ends, method="bounded", options={"xatol": 1e-6 * (ends[1] - ends[0])}
    ).fun


@pytest.mark.parametrize("seed", range(50))
def test_one_number_agrees_with_quadrature_and_stays_below_the_worst_case(seed):
    rng = np.random.default_rng([4, seed])
    rows = rng.normal(0.5, 1.0, int(rng.choice([1, 1, 2, 3, 5]))).clip(-1.9, 1.9)
    rows[:] = rows[0] if seed % 4 == 0 else rows
    squared, level = seed % 3 > 0, float(rng.choice([0.05, 0.5, 0.8, 0.95]))
    cost = wdro.costs.SquaredEuclidean() if squared else wdro.costs.Norm(1)
    radius = float(rng.choice([0.02, 0.2]))
    slope, other = rng.normal(size=2)
    z = wdro.UncertainParameter((), samples=rows, support=wdro.supports.Box(-2.0, 2.0))
    x = cp.Variable()
    kinked = seed % 2 == 1
    loss = cp.maximum(slope * z * x, other * z + 0.3) if kinked else slope * z * x
    ball = wdro.WassersteinBall(radius, cost)
    problem = wdro.Problem(cp.Minimize(wdro.cvar(loss, level)), [x == 1], ball)
    epsilon, sigma = 0.05, 0.5 * radius ** (0.5 if squared else 1.0) + 0.05
    value = problem.solve("smoothed", epsilon=epsilon, sigma=sigma)
    truth = least_by_quadrature(
        lambda z: np.maximum(slope * z, other * z + 0.3) if kinked else slope * z,
        np.square if squared else np.abs,
        rows,
        level,
        radius,
        epsilon,
        sigma,
        -2.0,
        2.0,
    )
    assert problem.status in ("optimal", "optimal_inaccurate")
    assert value == pytest.approx(truth, abs=2e-4 * max(abs(truth), epsilon))
    assert value <= problem.robust_value() + 1e-6


@pytest.mark.parametrize("seed", [5, 12, 15, 24, 27, 31])
def test_several_thresholds_are_those_of_the_model_written_out(seed):
    """The last one crept back from thresholds of 1e10, for minutes."""
    model = random_risk_model(seed)
    scales = {"epsilon": model.epsilon, "sigma": model.sigma}
    value = model.problem.solve("smoothed", **scales)
    assert model.problem.status == "optimal"
    assert value <= model.problem.robust_value() + 1e-6 * abs(value)
    plain = model.written_out.solve("smoothed", **scales)
    assert value <= plain + 2e-4 * max(abs(plain), model.epsilon)
    if model.written_out.status == "optimal":
        assert value == pytest.approx(plain, abs=2e-4 * max(abs(plain), model.epsilon))


# ------------------------------------------------------------------ the search itself
def smooth(rng, size, width):
    """A mean of softened CVaRs' objectives in several thresholds that depend on each other."""
    rates, data = rng.uniform(1.1, 20.0, size), rng.normal(size=(7, size)) * 3

    def at(t):
        far = (data - t) / width
        tail = rates * width * np.logaddexp(0.0, far)
        terms = t.sum() + tail.sum(axis=1)
        top = terms.max()
        weights = np.exp(terms - top)
        shares = 1 / (1 + np.exp(-np.clip(far, -500, 500)))
        slope = 1 - (weights[:, None] * rates * shares).sum(axis=0) / weights.sum()
        return Point(float(top + np.log(weights.mean())), slope), slope

    return at


@pytest.mark.parametrize("seed", range(30))
def test_the_search_finds_the_least_value_from_any_start(seed):
    rng = np.random.default_rng(seed)
    size, width = int(rng.integers(1, 4)), float(rng.choice([0.3, 1.0]))
    at, start = smooth(rng, size, width), rng.normal(size=size) * 10 ** rng.uniform(-1, 2)
    guess = 10.0 ** rng.uniform(-3, 2)
    found = minimise_thresholds(at, start, np.eye(size) * guess, np.full(size, guess), 0.1)
    best = min(
        minimize(lambda t: at(t)[0].value, begin, method="Nelder-Mead", tol=1e-10).fun
        for begin in (np.zeros(size), found.t)
    )
    assert found.point.value <= best + 2e-5 * max(abs(best), 0.1)
    assert found.residual <= 1e-5 * max(abs(best), 0.1)


def kinked(t):
    slope = np.where(t > [1.0, -2.0], [1.0, 3.0], [-19.0, -0.2])
    value = float(slope @ (t - [1.0, -2.0]))
    return Point(value, slope), slope


def test_kinks_are_found_and_their_gradient_is_a_mean_of_both_sides():
    found = minimise_thresholds(kinked, np.array([30.0, 40.0]), np.eye(2), np.ones(2), 0.1)
    assert found.point.value == pytest.approx(0.0, abs=1e-6)
    assert found.residual <= 1e-6
    np.testing.assert_allclose(found.point.gradient, 0.0, atol=1e-6)


def test_a_search_that_is_cut_short_says_how_far_it_may_be(monkeypatch):
    few = cvar_thresholds.Tolerances(evaluations=4, line_evaluations=4)
    monkeypatch.setattr(cvar_thresholds, "TOLERANCES", few)
    found = minimise_thresholds(kinked, np.array([30.0, 40.0]), np.eye(2), np.ones(2), 0.1)
    assert found.point.value > 1.0
    assert found.residual > 0.5
