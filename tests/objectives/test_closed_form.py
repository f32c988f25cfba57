"""The closed-form integral against quadrature, sampling and limits."""

from __future__ import annotations

import itertools
import warnings

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.objectives.dual import minimise_dual
from wdro_model.objectives.integration.closed_form import ClosedForm
from wdro_model.objectives.integration.inner_integral import Scales, Stream

STREAM = Stream(0)
NODES, WEIGHTS = np.polynomial.legendre.leggauss(400)


def build(data, support=None, weights=None, *, epsilon, sigma, cost=None, loss=None):
    """The strategy for the loss |x|^2 + <xi, A x + 1>, and its matrix A."""
    d = data.shape[1]
    A = np.random.default_rng(5).normal(size=(d, 2))
    x = cp.Variable(2, name="x")
    xi = wdro.UncertainParameter(d, name="xi", samples=data, support=support)
    expression = cp.sum_squares(x) + xi @ (A @ x + 1) if loss is None else loss(x, xi)
    cost = cost or wdro.costs.SquaredEuclidean(weights=weights)
    problem = wdro.Problem(
        cp.Minimize(expression), [x >= -1, x <= 1], ambiguity=wdro.WassersteinBall(1.0, cost)
    )
    model = problem._model
    strategy = ClosedForm(model, Scales(epsilon, sigma))
    return strategy, A


def coordinate_integral(slope, xi, dual, weight, epsilon, sigma, lower, upper):
    """log E exp((slope z - dual weight (z - xi)^2)/eps), z ~ N(xi, sigma^2) on [lower, upper]."""
    low, high = max(lower, xi - 40 * sigma), min(upper, xi + 40 * sigma)
    pieces = np.linspace(low, high, 60)
    z = np.concatenate([(b - a) / 2 * NODES + (a + b) / 2 for a, b in itertools.pairwise(pieces)])
    w = np.concatenate([(b - a) / 2 * WEIGHTS for a, b in itertools.pairwise(pieces)])
    reference = -0.5 * ((z - xi) / sigma) ** 2
    exponent = reference + (slope * z - dual * weight * (z - xi) ** 2) / epsilon
    top = exponent.max()
    return np.log(w @ np.exp(exponent - top)) + top - np.log(w @ np.exp(reference))


SUPPORTS = {
    "everywhere": (wdro.supports.Everywhere(), -np.inf, np.inf),
    "box": (wdro.supports.Box(-0.2, 1.3), -0.2, 1.3),
    "half-line": (wdro.supports.Nonnegative(), 0.0, np.inf),
}


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("weighted", [False, True])
def test_value_and_gradients_against_quadrature(d, support, weighted, rng):
    where, lower, upper = SUPPORTS[support]
    data = rng.uniform(0, 1.2, size=(4, d))
    weights = rng.uniform(0.5, 2, size=d) if weighted else np.ones(d)
    epsilon, sigma, x = 0.1, 0.5, np.array([0.3, -0.6])
    strategy, A = build(data, where, weights if weighted else None, epsilon=epsilon, sigma=sigma)

    def phi(x, dual):
        slope = A @ x + 1
        total = 0.0
        for row in data:
            total += sum(
                coordinate_integral(
                    slope[i], row[i], dual, weights[i], epsilon, sigma, lower, upper
                )
                for i in range(d)
            )
        return x @ x + epsilon * total / len(data)

    for dual in (0.0, 0.4, 3.0):
        inner = strategy.slice(x, np.arange(4), STREAM)
        point = inner.evaluate(dual)
        assert point.value == pytest.approx(phi(x, dual), abs=1e-8)
        h = 1e-5
        if dual > 0:
            slope = (phi(x, dual + h) - phi(x, dual - h)) / (2 * h)
            assert point.slope == pytest.approx(slope, rel=1e-6)
        numeric = [(phi(x + h * e, dual) - phi(x - h * e, dual)) / (2 * h) for e in np.eye(2)]
        assert inner.gradient(dual) == pytest.approx(np.array(numeric), abs=1e-7)


def test_curvature_on_the_whole_space_is_the_second_derivative(rng):
    strategy, _ = build(rng.normal(size=(3, 4)), epsilon=0.2, sigma=0.3)
    inner = strategy.slice(np.array([0.5, 0.5]), np.arange(3), STREAM)
    h = 1e-5
    numeric = (inner.evaluate(0.7 + h).slope - inner.evaluate(0.7 - h).slope) / (2 * h)
    assert inner.evaluate(0.7).curvature == pytest.approx(numeric, rel=1e-6)


def test_mahalanobis_cost_is_diagonal_in_its_eigenvectors(rng):
    data, d = rng.normal(size=(5, 3)), 3
    root = rng.normal(size=(d, d))
    precision = root @ root.T + np.eye(d)
    values, vectors = np.linalg.eigh(precision)
    x, dual = np.array([0.2, 0.9]), 0.8
    strategy, A = build(
        data, epsilon=0.1, sigma=0.4, cost=wdro.costs.Mahalanobis(precision=precision)
    )
    turned, _ = build(
        data @ vectors,
        weights=values,
        epsilon=0.1,
        sigma=0.4,
        loss=lambda x, xi: cp.sum_squares(x) + xi @ (vectors.T @ (A @ x + 1)),
    )
    one, two = (s.slice(x, np.arange(5), STREAM) for s in (strategy, turned))
    assert one.evaluate(dual).value == pytest.approx(two.evaluate(dual).value, rel=1e-12)
    assert one.evaluate(dual).slope == pytest.approx(two.evaluate(dual).slope, rel=1e-12)
    assert one.gradient(dual) == pytest.approx(two.gradient(dual), rel=1e-10)


def test_a_box_may_leave_coordinates_without_an_end(rng):
    data = rng.uniform(0.2, 1.2, size=(4, 3))
    lower, upper = np.array([0.0, -np.inf, 0.0]), np.array([np.inf, np.inf, 1.5])
    strategy, A = build(data, wdro.supports.Box(lower, upper), epsilon=0.1, sigma=0.5)
    x, dual = np.array([0.3, -0.6]), 0.4
    slope = A @ x + 1
    phi = x @ x + 0.1 * np.mean(
        [
            sum(
                coordinate_integral(slope[i], row[i], dual, 1.0, 0.1, 0.5, lower[i], upper[i])
                for i in range(3)
            )
            for row in data
        ]
    )
    inner = strategy.slice(x, np.arange(4), STREAM)
    assert inner.evaluate(dual).value == pytest.approx(phi, abs=1e-8)
    assert np.isfinite(inner.gradient(dual)).all()


def test_frozen_coordinates_do_not_move(rng):
    data = rng.normal(size=(6, 3))
    frozen, A = build(data, weights=np.array([1.0, np.inf, 1.0]), epsilon=0.1, sigma=0.3)
    x, dual = np.array([0.4, -0.1]), 0.5
    inner = frozen.slice(x, np.arange(6), STREAM)
    slope = A @ x + 1
    phi = x @ x + data.mean(axis=0)[1] * slope[1]
    for row in data:
        phi += (
            sum(
                coordinate_integral(slope[i], row[i], dual, 1.0, 0.1, 0.3, -np.inf, np.inf)
                for i in (0, 2)
            )
            * 0.1
            / 6
        )
    assert inner.evaluate(dual).value == pytest.approx(phi, abs=1e-9)


@pytest.mark.parametrize("epsilon", [1e-8, 1e-4, 1.0])
@pytest.mark.parametrize(
    ("support", "inside"),
    [
        (wdro.supports.Box(0, 1e-6), 5e-7),
        (wdro.supports.Box(-1, 1), 1.0),
        (wdro.supports.Nonnegative(), 0.0),
        (wdro.supports.Box(0, 50), 25.0),
    ],
    ids=["narrow", "edge", "origin", "wide"],
)
def test_tails_are_finite_and_silent(epsilon, support, inside):
    data = np.full((3, 2), inside)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strategy, _ = build(data, support, epsilon=epsilon, sigma=0.05)
        for x in (np.zeros(2), np.array([1.0, -1.0])):
            inner = strategy.slice(x, np.arange(3), STREAM)
            for dual in (0.0, 1e-6, 1.0, 1e6):
                point = inner.evaluate(dual)
                assert np.isfinite([point.value, point.slope]).all()
                assert point.slope <= 0
                assert np.isfinite(inner.gradient(dual)).all()


def test_small_epsilon_approaches_the_supremum_on_a_box(rng):
    data = rng.uniform(0, 1, size=(4, 2))
    strategy, A = build(data, wdro.supports.Box(0, 1), epsilon=1e-8, sigma=0.5)
    x, dual = np.array([0.7, 0.2]), 0.9
    slope = A @ x + 1
    moves = np.clip(slope / (2 * dual), -data, 1 - data)
    sup = x @ x + ((data + moves) @ slope - dual * (moves**2).sum(axis=1)).mean()
    inner = strategy.slice(x, np.arange(4), STREAM)
    assert inner.evaluate(dual).value == pytest.approx(sup, abs=1e-5)
    assert -inner.evaluate(dual).slope == pytest.approx((moves**2).sum(axis=1).mean(), abs=1e-4)


@pytest.mark.parametrize("d", [2, 100_000])
@pytest.mark.parametrize(("kappa", "fraction"), [(0.1, 0.89), (0.05, 0.94), (0.01, 0.98)])
def test_smoothed_margin_is_a_fixed_fraction_of_the_exact_one(d, kappa, fraction):
    """With sigma^2 = rho/(2d), eps = kappa sqrt(rho) G/(2d) the fraction depends on kappa alone."""
    rho = 4.0
    x = cp.Variable(1, name="x")
    xi = wdro.UncertainParameter(d, samples=np.zeros((1, d)))
    problem = wdro.Problem(
        cp.Minimize(cp.sum(xi) * x[0]), [x == 1], ambiguity=wdro.WassersteinBall(rho)
    )
    model, size = problem._model, np.sqrt(d)
    scales = Scales(kappa * np.sqrt(rho) * size / (2 * d), np.sqrt(rho / (2 * d)))
    strategy = ClosedForm(model, scales)
    inner = strategy.slice(np.ones(1), np.arange(1), STREAM)
    margin = minimise_dual(inner.evaluate, rho).value
    assert margin / (np.sqrt(rho) * size) == pytest.approx(fraction, abs=0.006)


def test_subset_of_the_samples(rng):
    data = rng.uniform(0, 1, size=(6, 2))
    for support in (None, wdro.supports.Box(0, 1)):
        whole, _ = build(data, support, epsilon=0.1, sigma=0.3)
        part, _ = build(data[[1, 4]], support, epsilon=0.1, sigma=0.3)
        x = np.array([0.1, 0.4])
        one = whole.slice(x, np.array([1, 4]), STREAM)
        two = part.slice(x, np.arange(2), STREAM)
        assert one.evaluate(0.5).value == pytest.approx(two.evaluate(0.5).value, rel=1e-12)
        assert one.gradient(0.5) == pytest.approx(two.gradient(0.5), rel=1e-12)
