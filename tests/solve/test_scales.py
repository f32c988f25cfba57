"""The default epsilon and sigma: a fixed fraction of what the adversary gains."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.objectives.scales import KAPPA, adversary_gain, default_sigma
from wdro_model.solve import scales
from wdro_model.solvers import FrankWolfe

D, RADIUS = 12, 0.1


def separable(rng, loss, unit=1.0, bound=10.0):
    """A classifier that can separate its samples."""
    truth = rng.normal(size=D)
    features = rng.normal(size=(40, D))
    folded = features * np.sign(features @ truth)[:, None]
    w = cp.Variable(D, name="w")
    z = wdro.UncertainParameter(D, name="z", samples=unit * folded)
    ball = wdro.WassersteinBall(RADIUS * unit**2)
    return wdro.Problem(cp.Minimize(loss(z @ w / unit)), [cp.norm(w, 2) <= bound], ball)


def logistic(margin):
    return cp.logistic(-margin)


def hinge(margin):
    return cp.pos(1 - margin)


def worst_gain(margins, length, loss):
    """sup over the ball of the mean of loss(u) minus its mean, u a form with a slope of `length`:
    min over l of l radius + mean_k sup_s loss(u_k - length s) - l s^2, on a grid."""
    steps = np.linspace(0, 12, 6001)
    values = loss(margins[:, None] - length * steps)
    prices = np.geomspace(1e-3, 30, 400)
    dual = [p * RADIUS + (values - p * steps**2).max(axis=1).mean() for p in prices]
    return min(dual) - loss(margins).mean()


@pytest.mark.parametrize(
    ("loss", "plain"),
    [(logistic, lambda u: np.logaddexp(0, -u)), (hinge, lambda u: np.maximum(0, 1 - u))],
    ids=["logistic", "hinge"],
)
def test_gain_of_a_loss_that_is_flat_at_the_samples(rng, loss, plain):
    model = separable(rng, loss)._model
    rows = model.rows
    w = 10 * rows.mean(axis=0) / np.linalg.norm(rows.mean(axis=0))
    kept = model.with_joint(model.joint.take(np.flatnonzero(rows @ w > 4.0)))
    truth = worst_gain(kept.rows @ w, np.linalg.norm(w), plain)
    assert plain(kept.rows @ w).mean() < 0.01  # saturated: the slopes say nothing
    assert adversary_gain(kept, w) == pytest.approx(truth, rel=0.05)


def test_affine_losses_keep_the_first_order(rng):
    x = cp.Variable(4, nonneg=True, name="x")
    xi = wdro.UncertainParameter(4, name="xi", samples=rng.normal(1, 0.3, size=(20, 4)))
    problem = wdro.Problem(cp.Minimize(xi @ x), [cp.sum(x) == 1], wdro.WassersteinBall(RADIUS))
    problem.solve(method="erm")
    slope = np.linalg.norm(x.value)
    problem.solve(method="smoothed")
    expected = KAPPA * np.sqrt(RADIUS) * slope / (2 * 4)
    assert problem.solution.epsilon == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("loss", [logistic, hinge])
def test_epsilon_follows_the_units_of_the_data(rng, loss):
    state = rng.bit_generator.state
    found = []
    for unit in (1.0, 1e4):
        rng.bit_generator.state = state
        problem = separable(rng, loss, unit)
        problem.solve(method="smoothed", solver=FrankWolfe(max_iterations=1))
        found.append(problem.solution.epsilon)
    assert found[0] > 1e-5
    assert found[1] == pytest.approx(found[0], rel=0.1)


def test_separable_data_is_solved_by_default(rng):
    problem = separable(rng, logistic)
    problem.solve(method="smoothed")
    solution = problem.solution
    assert solution.status == cp.OPTIMAL
    w = next(iter(solution.decision.values()))
    margins = problem._model.rows @ w

    def plain(u):
        return np.logaddexp(0, -u)

    worst = plain(margins).mean() + worst_gain(margins, np.linalg.norm(w), plain)
    assert 0.85 * worst < solution.value <= worst + 1e-4


@pytest.mark.parametrize("radius", [1.0, 100.0, 1e4])
def test_scales_end_with_the_support(rng, radius):
    """Newsvendor on [0, 10]: beyond the width the worst case is min_x max(8 (10 - x), 2 x)."""
    demand = wdro.UncertainParameter(
        name="demand", samples=rng.uniform(2, 8, 30), support=wdro.supports.Box(0, 10)
    )
    x = cp.Variable(name="x")
    problem = wdro.Problem(
        cp.Minimize(cp.maximum(8 * (demand - x), 2 * (x - demand))),
        [x >= 0, x <= 10],
        wdro.WassersteinBall(radius),
    )
    model = problem._model
    assert np.max(default_sigma(model.cost, radius, model.joint)) <= 10
    exact = problem.solve(method="exact")
    assert exact <= 16 + 1e-4
    mean = problem.solution.empirical_value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wdro.SamplingWarning)
        value = problem.solve(method="smoothed")
    assert mean + 0.8 * (exact - mean) <= value <= exact + 1e-4


def test_some_of_many_samples_set_the_scale(rng):
    """No program over all samples, and the epsilon that their ERM decision has, up to noise."""
    truth = rng.normal(size=3)
    features = rng.normal(size=(6000, 3))
    labels = np.sign(features @ truth + rng.logistic(size=6000))
    w = cp.Variable(3, name="w")
    z = wdro.UncertainParameter(3, name="z", samples=features * labels[:, None])
    problem = wdro.Problem(
        cp.Minimize(cp.logistic(-z @ w)), [cp.norm(w, 2) <= 5], wdro.WassersteinBall(0.05)
    )
    problem.solve(method="erm")
    everything = KAPPA * adversary_gain(problem._model, w.value) / (2 * 3)
    asked = []
    original = scales.solve_program

    def counting(model, *rest):
        asked.append(model.size)
        return original(model, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scales, "solve_program", counting)
        problem.solve(method="smoothed")
    assert problem.solution.status == cp.OPTIMAL
    assert max(asked) <= scales.LIMITS.first_samples
    assert problem.solution.epsilon == pytest.approx(everything, rel=0.1)


def test_loss_that_is_least_at_every_sample(rng):
    """|4 x - xi|^2 at x = xi / 4: no slope at all, and a worst case of exactly the radius."""
    x = cp.Variable(2, name="x")
    xi = wdro.UncertainParameter(2, name="xi", samples=np.array([[1.0, 2.0]]))
    problem = wdro.Problem(
        cp.Minimize(cp.sum_squares(4 * x - xi)), [x >= 0, x <= 1], wdro.WassersteinBall(0.1)
    )
    assert adversary_gain(problem._model, np.array([0.25, 0.5])) == pytest.approx(0.1, rel=1e-6)
    value = problem.solve(method="smoothed")
    assert 0.08 <= value <= 0.1 + 1e-6
    assert problem.solution.robust_value <= 0.1 + 1e-6


@pytest.mark.parametrize("p", [1, 2, np.inf])
def test_a_loss_that_vanishes_at_the_best_decision_has_a_temperature(p):
    """x' Q x over a box around 0: what a solver leaves of zero there is no scale."""
    rows = np.random.default_rng(0).uniform(0.2, 2.0, size=(12, 2, 2))
    x = cp.Variable(2, name="x")
    q = wdro.UncertainParameter((2, 2), samples=rows, support=wdro.supports.Nonnegative())
    ball = wdro.WassersteinBall(0.16, wdro.costs.Norm(p))
    problem = wdro.Problem(cp.Minimize(wdro.quadratic_form(x, q)), [x >= -1, x <= 2], ball)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(method="smoothed", time_limit=20)
    assert np.isfinite(problem.value)
    assert 1e-6 < problem.solution.epsilon < 1.0
