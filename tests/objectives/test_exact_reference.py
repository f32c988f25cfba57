"""Exact counterparts on data whose optimal values are known from other packages."""

from __future__ import annotations

import os
from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import wdro_model as wdro

FOLDER = Path(
    os.environ.get(
        "WDRO_REFERENCE", Path(__file__).parents[2].parent / "shared" / "data" / "reference"
    )
)
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="no folder of reference values")


def reference(name):
    with np.load(FOLDER / f"{name}.npz") as arrays:
        return {key: arrays[key] for key in arrays}


def portfolio(ball):
    x, tau = cp.Variable(10, nonneg=True), cp.Variable()
    returns = wdro.UncertainParameter(10, samples=reference("portfolio")["returns"])
    gain = returns @ x
    loss = cp.maximum(-gain + 10 * tau, -51 * gain - 40 * tau)
    return wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], ambiguity=ball), x, tau


def newsvendor(support, radius=1.5):
    x = cp.Variable()
    demand = wdro.UncertainParameter(1, samples=reference("newsvendor")["demand"], support=support)
    loss = cp.maximum(x - demand[0], 4 * (demand[0] - x))
    ball = wdro.WassersteinBall(radius, wdro.costs.Norm(1))
    return wdro.Problem(cp.Minimize(loss), [x >= 0, x <= 8], ambiguity=ball)


def test_portfolio_erm():
    problem, _, _ = portfolio(wdro.WassersteinBall(0.0))
    assert problem.solve(method="exact") == pytest.approx(-1.4690968462, rel=1e-6)


def test_portfolio_order_one():
    problem, _, _ = portfolio(wdro.WassersteinBall(0.05, wdro.costs.Norm(1)))
    assert problem.solve(method="exact") == pytest.approx(-1.0053926595, rel=1e-6)


def test_portfolio_order_two():
    """The published value is 4e-6 above the optimum: any x and l bound the optimum from above."""
    problem, x, tau = portfolio(wdro.WassersteinBall(0.05**2))
    value = problem.solve(method="exact")
    data, w = reference("portfolio")["returns"], x.value / x.value.sum()
    gains, spread = data @ w, w @ w

    def dual(price):
        first = -gains + 10 * tau.value + spread / (4 * price)
        second = -51 * gains - 40 * tau.value + 51**2 * spread / (4 * price)
        return price * 0.05**2 + np.maximum(first, second).mean()

    bound = minimize_scalar(dual, bounds=(1, 1e4), method="bounded", options={"xatol": 1e-9}).fun
    assert value == pytest.approx(bound, rel=1e-7)
    assert value == pytest.approx(-0.9860114511, rel=1e-5)
    assert value <= -0.9860114511


@pytest.mark.parametrize(
    ("support", "optimum"),
    [
        (wdro.supports.Box(0, 8), 4.7777757463),
        (wdro.supports.Nonnegative(), 8.6485013996),
        (wdro.supports.Everywhere(), 8.6485014052),
    ],
)
def test_newsvendor(support, optimum):
    assert newsvendor(support).solve(method="exact") == pytest.approx(optimum, rel=1e-6)


def test_newsvendor_erm():
    problem = newsvendor(wdro.supports.Box(0, 8), radius=0.0)
    assert problem.solve(method="exact") == pytest.approx(2.6485014003, rel=1e-6)


@pytest.mark.parametrize("written", ["power", "sum_squares", "negated"])
def test_least_squares_with_certain_labels(written):
    arrays = reference("regression")
    theta, b = cp.Variable(5), cp.Variable()
    features = wdro.UncertainParameter(5, samples=arrays["X"])
    label = wdro.UncertainParameter(samples=arrays["y"])
    error = theta @ features + b - label
    loss = {
        "power": error**2,
        "sum_squares": cp.sum_squares(error),
        "negated": 2 * cp.square(-error) / 2,
    }[written]
    cost = wdro.costs.SquaredEuclidean(weights={label: np.inf})
    problem = wdro.Problem(
        cp.Minimize(loss), [], ambiguity=wdro.WassersteinBall.order(2, 0.1, cost)
    )
    assert problem.solve(method="exact") == pytest.approx(0.5940511305, rel=1e-6)
