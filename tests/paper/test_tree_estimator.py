"""The paper's estimator by its law, against drawing every entry of every matrix."""

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp

import wdro_model as wdro
from tree_estimator import (
    RadialDraws,
    TreeGaussian,
    calibrated_dual_bound,
)
from tree_products import MovingProducts
from wdro_model.objectives.integration.inner_integral import Stream

M, EPSILON, SIGMA, DRAWS, DUAL = 6, 0.05, 0.1, 5, 0.7
LEAST = 1e-4
"""Equal laws give a p-value below this once in ten thousand."""


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(11)
    return rng.random((4, M, M)), rng.random(M)


def symmetric(matrices):
    return matrices + matrices.transpose(0, 2, 1)


def drawn_in_full(matrices, x, rng):
    """Gradient, value and derivative in the dual, from S matrices per sample, entry by entry."""
    moves = SIGMA * rng.standard_normal((len(matrices), DRAWS, M, M))
    scenarios = matrices[:, None] + moves
    losses = np.einsum("i,ksij,j->ks", x, scenarios, x)
    costs = np.einsum("ksij,ksij->ks", moves, moves)
    exponents = (losses - DUAL * costs) / EPSILON
    weights = np.exp(exponents)
    values = EPSILON * np.log(weights.mean(axis=1))
    weights /= weights.sum(axis=1, keepdims=True)
    both = scenarios + scenarios.transpose(0, 1, 3, 2)
    gradient = np.einsum("ks,ksij,j->i", weights, both, x) / len(matrices)
    return [*gradient, values.mean(), -(weights * costs).sum(axis=1).mean()]


def test_estimates_have_the_law_of_full_draws(data):
    matrices, x = data
    rule = TreeGaussian(symmetric(matrices), epsilon=EPSILON, sigma=SIGMA, draws=DRAWS)
    rng, ours, full = np.random.default_rng(3), [], []
    for r in range(2500):
        slice_ = rule.slice(x, np.arange(4), Stream(5, r))
        point = slice_.evaluate(DUAL)
        ours.append([*slice_.gradient(DUAL), point.value, point.slope])
        full.append(drawn_in_full(matrices, x, rng))
    ours, full = np.array(ours), np.array(full)
    for one, other in zip(ours.T, full.T):
        assert ks_2samp(one, other).pvalue > LEAST
    # Joint behaviour: random combinations of gradient, value and slope.
    scale, mix = full.std(axis=0), rng.standard_normal((M + 2, 6))
    for one, other in zip((ours / scale @ mix).T, (full / scale @ mix).T):
        assert ks_2samp(one, other).pvalue > LEAST


def test_what_a_loss_sees_of_a_gaussian_matrix():
    rng, x, count = np.random.default_rng(7), np.arange(1.0, M + 1), 20_000
    matrices = rng.standard_normal((count, M, M))
    unit = x / np.linalg.norm(x)
    forward = np.einsum("i,kij,j->k", unit, matrices, unit)
    both = (matrices + matrices.transpose(0, 2, 1)) @ unit
    sideways = both - 2 * forward[:, None] * unit
    radial = RadialDraws.drawn(M, count, 1, rng)
    pairs = [
        (radial.along[:, 0], forward),
        (radial.across[:, 0], np.einsum("ki,ki->k", sideways, sideways) / 2),
        (radial.squared_norm[:, 0], np.einsum("kij,kij->k", matrices, matrices)),
    ]
    for ours, full in pairs:
        assert ks_2samp(ours, full).pvalue > LEAST
    correlations = [np.corrcoef([pair[k] for pair in pairs]) for k in (0, 1)]
    np.testing.assert_allclose(*correlations, atol=0.05)


def test_many_draws_come_near_the_closed_form(data):
    matrices, x = data
    rule = TreeGaussian(symmetric(matrices), epsilon=1.0, sigma=SIGMA, draws=20_000)
    drawn = rule.slice(x, np.arange(4), Stream(1))
    # E exp(sigma |x|^2 a - l sigma^2 |Z|^2) for standard normal a and Z: the Gaussian integral.
    mean, square, shrunk = matrices.mean(axis=0), x @ x, 1.0 + 2.0 * DUAL * SIGMA**2
    value = x @ mean @ x + SIGMA**2 * square**2 / (2 * shrunk) - M**2 / 2 * np.log(shrunk)
    slope = -(SIGMA**2) * ((SIGMA * square / shrunk) ** 2 + M**2 / shrunk)
    gradient = (mean + mean.T) @ x + 2 * SIGMA**2 / shrunk * square * x
    assert drawn.evaluate(DUAL).value == pytest.approx(value, rel=1e-3)
    assert drawn.evaluate(DUAL).slope == pytest.approx(slope, rel=5e-3)
    np.testing.assert_allclose(drawn.gradient(DUAL), gradient, rtol=5e-3)


def test_a_slice_keeps_its_draws():
    rng = np.random.default_rng(0)
    matrices = symmetric(rng.random((3, M, M)))
    rule = TreeGaussian(matrices, epsilon=1.0, sigma=0.5, draws=8)
    slice_ = rule.slice(rng.random(M), np.arange(3), Stream(2))
    first = slice_.gradient(0.1)
    slice_.gradient(5.0)
    np.testing.assert_array_equal(slice_.gradient(0.1), first)


def test_calibration_agrees_with_the_one_for_any_loss():
    instance = wdro.datasets.quadratic_tree(8, 16, seed=1)
    samples = instance.training.sample(60, seed=2)
    x = cp.Variable(16)
    costs = wdro.UncertainParameter((16, 16), samples=samples)
    problem = wdro.Problem(
        cp.Minimize(wdro.quadratic_form(x, costs)),
        [wdro.In(x, wdro.sets.SpanningTree(instance.graph))],
        ambiguity=wdro.WassersteinBall(10.0),
    )
    solver = wdro.solvers.MomentumFrankWolfe(samples=10, max_iterations=1)
    with pytest.warns(wdro.SamplingWarning):
        problem.solve("smoothed", epsilon=1e-4, solver=solver)
    sigma = np.sqrt(10.0 / (2 * 16**2))
    bounds = [
        calibrated_dual_bound(16, 8, 60, sigma=sigma, draws=10, rng=np.random.default_rng(k))
        for k in range(20)
    ]
    assert abs(problem.solution.dual_bound - np.mean(bounds)) < 4 * np.std(bounds)


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 12), st.integers(0, 2**32 - 1))
def test_moving_products_are_products(m, seed):
    rng = np.random.default_rng(seed)
    matrices = symmetric(rng.standard_normal((5, m, m)))
    products, x = MovingProducts(matrices), (rng.random(m) < 0.4).astype(float)
    for t in range(30):
        batch = rng.choice(5, 2, replace=False)
        np.testing.assert_allclose(products.at(x, batch), matrices[batch] @ x, atol=1e-12)
        step = 2.0 / (t + 7)
        x = (1 - step) * x + step * (rng.random(m) < 0.3)
