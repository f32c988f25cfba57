"""The paper's estimator and algorithm, against the closed form."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.objectives.integration.closed_form import ClosedForm
from wdro_model.objectives.integration.inner_integral import Scales, Stream
from wdro_model.objectives.integration.tilted import Gaussian
from wdro_model.objectives.scales import calibrate_dual
from wdro_model.solvers import FrankWolfe, MomentumFrankWolfe

EPSILON, SIGMA, RADIUS = 0.5, 0.4, 0.3


@pytest.fixture
def affine(rng):
    """A 3-dimensional affine loss over the simplex."""
    x = cp.Variable(3, nonneg=True, name="x")
    xi = wdro.UncertainParameter(3, name="xi", samples=rng.normal(1.0, 0.5, size=(12, 3)))
    return wdro.Problem(
        cp.Minimize(xi @ x), [cp.sum(x) == 1], ambiguity=wdro.WassersteinBall(RADIUS)
    )


def strategies(problem, draws):
    model = problem._model
    scales = Scales(EPSILON, SIGMA, draws)
    return Gaussian(model, scales), ClosedForm(model, scales)


def test_estimator_converges_to_the_closed_form(affine):
    """Errors shrink like 1/sqrt(S), and lie within their standard errors at the largest S."""
    x, dual, samples = np.array([0.2, 0.5, 0.3]), 0.3, np.arange(12)
    errors = []
    for draws in (10, 100, 10_000):
        sampled, exact = strategies(affine, draws)
        truth = exact.slice(x, samples, Stream(0))
        runs = [sampled.slice(x, samples, Stream(seed, 9)) for seed in range(10)]
        values = np.array([run.evaluate(dual).value for run in runs])
        gradients = np.array([run.gradient(dual) for run in runs])
        slopes = np.array([run.evaluate(dual).slope for run in runs])
        errors.append(
            [
                np.sqrt(np.mean((values - truth.evaluate(dual).value) ** 2)),
                np.sqrt(np.mean((gradients - truth.gradient(dual)) ** 2)),
                np.sqrt(np.mean((slopes - truth.evaluate(dual).slope) ** 2)),
            ]
        )
        standard = np.mean([run.diagnostics(dual).standard_error for run in runs])
    errors = np.array(errors)
    assert (errors[2] < errors[0] / 8).all()
    assert errors[2, 0] < 2 * standard
    assert abs(values.mean() - truth.evaluate(dual).value) < 4 * standard / np.sqrt(10)


def test_algorithm_two_reaches_the_optimum_of_the_closed_form(affine):
    affine.solve(
        method="smoothed", epsilon=EPSILON, sigma=SIGMA, solver=FrankWolfe(gap=1e-8), seed=1
    )
    best, dual = affine.value, affine.solution.dual
    solver = MomentumFrankWolfe(batch_size=6, samples=200, max_iterations=1500, dual_bound=2.0)
    affine.solve(method="smoothed", epsilon=EPSILON, sigma=SIGMA, solver=solver, seed=1)
    found = affine.solution
    assert found.value == pytest.approx(best, abs=0.01 + 3 * found.standard_error)
    assert found.dual == pytest.approx(dual, abs=0.08)
    x = np.concatenate([v.ravel() for v in found.decision.values()])
    exact = strategies(affine, 1)[1].slice(x, np.arange(12), Stream(0))
    assert RADIUS * dual + exact.evaluate(dual).value == pytest.approx(best, abs=3e-3)


def test_exact_and_vertex_dual_reach_the_same_optimum(affine):
    values = []
    for dual, solver in (
        ("exact", FrankWolfe(gap=1e-7)),
        ("vertex", FrankWolfe(gap=1e-6, max_iterations=5000)),
    ):
        affine.solve(
            method="smoothed", epsilon=EPSILON, sigma=SIGMA, dual=dual, solver=solver, seed=2
        )
        values.append(affine.value)
    assert values[0] == pytest.approx(values[1], rel=1e-3)


def test_draws_of_a_sample_do_not_depend_on_its_batch(affine):
    sampled, _ = strategies(affine, 7)
    alone = sampled.draw(np.array([4]), Stream(1)).rows.copy()
    among = sampled.draw(np.array([9, 4, 0]), Stream(1)).rows[7:14].copy()
    assert np.array_equal(alone, among)


def test_large_draws_are_regenerated_to_the_same_numbers(affine, monkeypatch):
    from wdro_model.objectives.integration import sampled as module

    x = np.array([0.2, 0.5, 0.3])
    stored = strategies(affine, 20)[0].slice(x, np.arange(12), Stream(3))
    expected = stored.evaluate(0.4), stored.gradient(0.4)
    monkeypatch.setattr(module, "STORED_ENTRIES", 0)
    monkeypatch.setattr(module, "CHUNK_ENTRIES", 130)
    chunked = strategies(affine, 20)[0].slice(x, np.arange(12), Stream(3))
    assert chunked.evaluate(0.4).value == pytest.approx(expected[0].value, rel=1e-13)
    assert chunked.gradient(0.4) == pytest.approx(expected[1], rel=1e-12)


def test_calibration_is_dispersion_over_twice_the_cost(affine):
    """For an affine loss the spread of S draws and the mean cost are known on average."""
    sampled, _ = strategies(affine, 400)
    oracle = affine._model.feasible.oracle()
    start = np.array([1.0, 0.0, 0.0])
    scale = calibrate_dual(sampled, oracle.minimize, start, Stream(0))
    assert scale.mean_cost == pytest.approx(3 * SIGMA**2, rel=0.05)
    expected_range = 2 * 2.96  # of 400 standard normal draws
    assert scale.dispersion == pytest.approx(expected_range * SIGMA, rel=0.1)
    assert scale.bound == pytest.approx(scale.dispersion / (2 * scale.mean_cost))


def test_few_effective_draws_are_reported(affine):
    with pytest.warns(wdro.SamplingWarning, match="effective sample size"):
        affine.solve(
            method="smoothed",
            epsilon=1e-4,
            sigma=SIGMA,
            solver=MomentumFrankWolfe(batch_size=4, samples=10, max_iterations=5),
        )
    assert affine.solution.effective_sample_size < 20
    assert affine.solution.diagnostics.smallest_effective_size >= 1


def test_draws_farther_than_the_radius_are_reported(rng):
    x = cp.Variable(40, nonneg=True)
    xi = wdro.UncertainParameter(40, samples=rng.normal(size=(5, 40)))
    problem = wdro.Problem(cp.Minimize(xi @ x), [cp.sum(x) == 1], wdro.WassersteinBall(0.1))
    solver = MomentumFrankWolfe(batch_size=2, samples=5, max_iterations=3)
    with pytest.warns(wdro.SamplingWarning, match="unbounded below"):
        problem.solve(method="smoothed", sigma=1.0, epsilon=1.0, solver=solver)


def test_radius_that_does_not_bind_is_reported(affine):
    wide = affine.with_radius(1e4)
    with pytest.warns(wdro.SamplingWarning, match="radius does not bind"):
        wide.solve(method="smoothed", epsilon=1e6, sigma=40.0)
    assert wide.solution.dual == 0


@pytest.mark.parametrize(
    "cost", [wdro.costs.Norm(1), wdro.costs.Norm(2), lambda a, b: np.abs(a - b).sum(axis=1) ** 1.5]
)
def test_norm_and_callable_costs_are_sampled(cost, rng):
    x = cp.Variable(2, nonneg=True)
    xi = wdro.UncertainParameter(2, samples=rng.normal(1, 0.2, size=(10, 2)))
    ball = wdro.WassersteinBall(0.3, cost)
    problem = wdro.Problem(cp.Minimize(xi @ x), [cp.sum(x) == 1], ball)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = problem.solve(
            method="smoothed", epsilon=0.05, sigma=0.15, integration="gaussian", seed=3
        )
    assert problem.solve(method="erm") < value


@pytest.mark.parametrize(
    "loss", [lambda z, x: cp.exp(2 * z @ x), lambda z, x: cp.maximum(z @ x, 30 * (z[0] - 1.5))]
)
@pytest.mark.filterwarnings("ignore")
def test_the_error_knows_of_modes_that_no_draw_has_reached(loss):
    """The weights alone tell errors of 0.05 and 0.026 of values that are off by 9 and by 0.7."""
    rows = np.random.default_rng(0).uniform(0, 0.5, (1, 3))
    z = wdro.UncertainParameter(3, samples=rows, support=wdro.supports.Box(0.0, 2.0))
    x = cp.Variable(3)
    ball = wdro.WassersteinBall(0.3)
    problem = wdro.Problem(cp.Minimize(loss(z, x)), [x == 0.5], ball)
    value = problem.solve("smoothed", integration="gaussian", epsilon=0.05)
    error = problem.solution.standard_error
    assert problem.status != "optimal"
    truth = problem.solve("smoothed", integration="tilted", epsilon=0.05)
    assert abs(value - truth) <= 2 * error
