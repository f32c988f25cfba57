"""Edges of domains and large numbers: finite gradients, no NaN, no NumPy warning."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import pytest

from wdro_model.loss import BatchedLoss
from wdro_model.uncertainty.parameter import UncertainParameter


@pytest.fixture(autouse=True)
def _no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


x = cp.Variable(3, name="x")
t = cp.Variable(name="t")
beta = UncertainParameter(name="beta")
xi = UncertainParameter(3, name="xi")


def evaluate(expression, point, data=None):
    loss = BatchedLoss(expression)
    data = data or {p: np.ones((2, *p.shape)) for p in loss.parameters}
    values, pullback = loss(point, data)
    weights = np.ones(len(values))
    return values, pullback(weights), pullback.in_data(weights)


ZERO = np.zeros(3)

AT_ZERO = {
    "uncertain power": (cp.sum(cp.power(x, beta)), {beta: np.array([3.0, 4.5])}, 0.0, ZERO),
    "traffic delay": (
        xi @ cp.multiply(x, cp.power(x / 2, beta)),
        {beta: np.array([3.0, 4.5]), xi: np.ones((2, 3))},
        0.0,
        ZERO,
    ),
    "power written with exp and log": (
        cp.sum(cp.exp(beta * cp.log(x))),
        {beta: np.array([3.0, 4.5])},
        0.0,
        ZERO,
    ),
    "power 1.5": (cp.sum(cp.power(x, 1.5)), None, 0.0, ZERO),
    "cube": (cp.sum(cp.power(x, 3)), None, 0.0, ZERO),
    "norm": (cp.norm(x), None, 0.0, ZERO),
    "norm 3": (cp.norm(x, 3), None, 0.0, ZERO),
    "norm of zero data": (cp.norm(x - xi), {xi: np.zeros((2, 3))}, 0.0, ZERO),
    "norm 1": (cp.norm1(x), None, 0.0, ZERO),
    "norm inf": (cp.norm_inf(x), None, 0.0, ZERO),
    "zero over zero": (cp.quad_over_lin(x, t), None, 0.0, ZERO),
    "standard deviation": (cp.std(x), None, 0.0, ZERO),
}


@pytest.mark.parametrize("name", AT_ZERO)
def test_gradient_at_zero(name: str) -> None:
    expression, data, value, gradient = AT_ZERO[name]
    point = {x: ZERO, t: np.zeros(())}
    values, in_decision, in_data = evaluate(expression, point, data)
    np.testing.assert_allclose(values, value, atol=1e-12)
    np.testing.assert_allclose(in_decision[x], gradient, atol=1e-12)
    assert all(np.isfinite(rows).all() for rows in in_data.values())


@pytest.mark.parametrize(
    "expression",
    [
        cp.sum(cp.entr(x)),
        cp.sum(cp.sqrt(x)),
        cp.geo_mean(x),
        cp.geo_mean(cp.hstack([x, cp.exp(x), np.full(100, 2.0)])),
        -cp.sum(cp.log(x)),
        cp.sum(cp.log1p(x - 1)),
        cp.sum(cp.rel_entr(x, xi)),
        cp.sum(cp.kl_div(x, xi)),
        cp.sum(cp.inv_pos(x)),
        cp.sum(cp.power(x, -2)),
        cp.harmonic_mean(x),
        cp.sum(cp.power(x, 0.3)),
    ],
    ids=str,
)
def test_infinite_slopes_are_large_but_not_nan(expression) -> None:
    values, in_decision, _ = evaluate(expression, {x: ZERO})
    assert not np.isnan(values).any()
    assert not np.isnan(in_decision[x]).any()


def test_entropy_and_geometric_mean_vanish_at_zero() -> None:
    for expression in (cp.sum(cp.entr(x)), cp.geo_mean(x), cp.sum(cp.sqrt(x))):
        values, _, _ = evaluate(expression, {x: ZERO})
        assert values == pytest.approx(0.0, abs=1e-140)


def test_rounding_below_zero_counts_as_zero() -> None:
    for expression in (cp.sum(cp.power(x, 1.5)), cp.sum(cp.power(x, beta)), cp.sum(cp.entr(x))):
        values, in_decision, _ = evaluate(
            expression, {x: np.full(3, -1e-9)}, {beta: np.array([3.0])}
        )
        assert values == pytest.approx(0.0, abs=1e-12)
        assert np.isfinite(in_decision[x]).all()


def test_outside_the_domain_is_nan() -> None:
    for expression in (cp.sum(cp.power(x, 1.5)), cp.sum(cp.log(x)), cp.sum(cp.power(x, beta))):
        values, _, _ = evaluate(expression, {x: np.full(3, -1.0)}, {beta: np.array([3.5])})
        assert np.isnan(values).all()


def test_logistic_of_large_numbers() -> None:
    values, in_decision, _ = evaluate(cp.sum(cp.logistic(x)), {x: np.array([-1000.0, 0.0, 1000.0])})
    assert values == pytest.approx(1000 + np.log(2))
    np.testing.assert_allclose(in_decision[x], [0.0, 0.5, 1.0], atol=1e-15)


def test_log_sum_exp_of_large_numbers() -> None:
    values, in_decision, _ = evaluate(cp.log_sum_exp(x), {x: np.array([-1e4, 1e4, 1e4])})
    assert values == pytest.approx(1e4 + np.log(2))
    np.testing.assert_allclose(in_decision[x], [0.0, 0.5, 0.5], atol=1e-15)


def test_norm_of_large_and_tiny_numbers() -> None:
    for scale in (1e-200, 1e200):
        values, in_decision, _ = evaluate(cp.norm(x, 3), {x: np.full(3, scale)})
        assert values == pytest.approx(scale * 3 ** (1 / 3))
        np.testing.assert_allclose(in_decision[x], 3 ** (-2 / 3))


def test_ties_share_a_subgradient() -> None:
    _, in_decision, _ = evaluate(cp.max(x), {x: ZERO})
    np.testing.assert_allclose(in_decision[x], 1 / 3)
    _, in_decision, _ = evaluate(cp.sum_largest(x, 2), {x: ZERO})
    assert in_decision[x].sum() == pytest.approx(2)
    _, in_decision, _ = evaluate(cp.sum(cp.maximum(x, 0)), {x: ZERO})
    assert ((in_decision[x] >= 0) & (in_decision[x] <= 1)).all()
