"""The same problem in other units of data and decision has the same answer, in those units."""

from __future__ import annotations

from itertools import product

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from tests.references.pairwise import pairwise
from wdro_model.solve.rescale import rescale_model

SOLVED = ("optimal", "optimal_inaccurate")
COSTS = {
    "squared": (None, 2),
    "weighted": (wdro.costs.SquaredEuclidean(weights="standardize"), 0),
    "l1": (wdro.costs.Norm(1), 1),
    "l2": (wdro.costs.Norm(2), 1),
    "mahalanobis": (wdro.costs.Mahalanobis(np.diag([1.0, 2.0, 3.0]) + 0.2), 2),
}
SUPPORTS = {
    "everywhere": lambda unit: None,
    "box": lambda unit: wdro.supports.Box(-unit, 4 * unit),
    "polyhedron": lambda unit: wdro.supports.Polyhedron(
        np.vstack([np.eye(3), -np.eye(3), np.ones((1, 3))]),
        unit * np.array([4.0] * 3 + [1.0] * 3 + [9.0]),
    ),
}
DATA = np.random.default_rng(0).normal(1.0, 0.4, (20, 3)).clip(-0.9, 2.9)


def cvar(unit, cost, support):
    """CVaR of a portfolio: the decision has no unit, its quantile has that of the data."""
    x, level = cp.Variable(3, nonneg=True), cp.Variable()
    xi = wdro.UncertainParameter(3, samples=DATA * unit, support=SUPPORTS[support](unit))
    metric, order = COSTS[cost]
    ball = wdro.WassersteinBall(0.04 * unit**order, metric)
    loss = level + cp.pos(-xi @ x - level) / 0.1
    return wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], ball)


def newsvendor(unit, cost, support):
    """Orders are in the unit of the demand."""
    x = cp.Variable(3)
    xi = wdro.UncertainParameter(3, samples=DATA * unit, support=SUPPORTS[support](unit))
    metric, order = COSTS[cost]
    ball = wdro.WassersteinBall(0.04 * unit**order, metric)
    loss = cp.sum(cp.maximum(2 * (x - xi), 5 * (xi - x)))
    return wdro.Problem(cp.Minimize(loss), [x >= 0, x <= 50 * unit], ball)


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize(
    ("model", "cost", "support", "unit"),
    pairwise(
        case
        for case in product(
            (cvar, newsvendor),
            ("squared", "weighted", "l1", "l2"),
            SUPPORTS,
            (1e-6, 1e-3, 1e4, 1e7),
        )
        if not (case[0] is newsvendor and (case[2] == "polyhedron" or case[1:3] == ("l2", "box")))
    ),
)
def test_value_is_proportional_to_the_unit(model, cost, support, unit):
    """Coupled terms of a newsvendor have too many pieces to be quick."""
    reference = model(1.0, cost, support)
    problem = model(unit, cost, support)
    expected, value = reference.solve(method="exact"), problem.solve(method="exact")
    assert problem.status in SOLVED
    assert value == pytest.approx(expected * unit, rel=1e-5)
    assert problem.robust_value() == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("unit", [1e-5, 1e6])
@pytest.mark.parametrize(("cost", "support"), [("squared", "box"), ("l2", "polyhedron")])
def test_worst_case_is_in_the_units_of_the_data(unit, cost, support):
    reference, problem = cvar(1.0, cost, support), cvar(unit, cost, support)
    for each in (reference, problem):
        each.solve(method="exact")
    plain, scaled = reference.worst_case(), problem.worst_case()
    order = COSTS[cost][1]
    assert scaled.expected_loss == pytest.approx(unit * plain.expected_loss, rel=1e-4)
    assert scaled.transport_cost <= problem.ambiguity.radius * (1 + 1e-6)
    assert scaled.dual == pytest.approx(plain.dual * unit ** (1 - order), rel=1e-2)
    (rows,) = scaled.scenarios.values()
    support_of = problem.uncertain_parameters()[0].support
    assert support_of.contains(rows).all()


@pytest.mark.parametrize("unit", [1e-6, 1e7])
def test_erm_in_other_units(unit):
    reference, problem = (newsvendor(u, "squared", "everywhere") for u in (1.0, unit))
    assert problem.solve(method="erm") == pytest.approx(unit * reference.solve(method="erm"))


def test_bounds_beyond_reach_count_as_none():
    values = []
    for bound in (np.inf, 1e300, 1e12):
        x = cp.Variable(3, nonneg=True)
        xi = wdro.UncertainParameter(
            3, samples=DATA, support=wdro.supports.Box(-bound, bound) if bound < np.inf else None
        )
        problem = wdro.Problem(
            cp.Minimize(cp.abs(xi @ x - 1.0)), [cp.sum(x) == 1], wdro.WassersteinBall(0.1)
        )
        values.append(problem.solve(method="exact"))
    assert values == pytest.approx([values[0]] * 3, rel=1e-6)


def test_parameters_in_different_units_are_measured_apart():
    """A price in cents beside a demand in millions."""
    rng = np.random.default_rng(3)
    price, demand = rng.uniform(1, 2, (15, 2)), rng.uniform(1, 2, 15)

    def value(cents, millions):
        x = cp.Variable(2, nonneg=True)
        p = wdro.UncertainParameter(2, samples=price * cents)
        q = wdro.UncertainParameter((), samples=demand * millions)
        weights = {p: cents**-2, q: millions**-2}
        ball = wdro.WassersteinBall(0.01, wdro.costs.SquaredEuclidean(weights=weights))
        loss = cp.abs(p @ x / cents - q / millions)
        return wdro.Problem(cp.Minimize(loss), [cp.sum(x) == 1], ball).solve(method="exact")

    assert value(1e-4, 1e6) == pytest.approx(value(1.0, 1.0), rel=1e-5)


def test_ordinary_models_are_left_as_they_are():
    model = cvar(1.0, "squared", "box")._model
    assert rescale_model(model).model is model


def test_radius_far_from_the_data_is_measured_too():
    """|x| sqrt(radius) is added for an affine loss: a formula, at any radius."""
    for radius in (1e-12, 1e10):
        x = cp.Variable(3, nonneg=True)
        xi = wdro.UncertainParameter(3, samples=DATA, support=wdro.supports.Everywhere())
        problem = wdro.Problem(
            cp.Minimize(cp.maximum(-xi @ x, -2 * (xi @ x) - 1)),
            [cp.sum(x) == 1],
            wdro.WassersteinBall(radius),
        )
        value = problem.solve(method="exact")
        assert problem.robust_value() == pytest.approx(value, rel=1e-5)


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize(
    ("loss", "bounded", "unit"),
    pairwise(
        product(
            ("square", "abs", "pinball", "huber", "insensitive"),
            (False, True),
            (1e-8, 1e-4, 1e5, 1e6, 1e8),
        )
    ),
)
def test_regression_with_labels_in_dollars(loss, bounded, unit):
    """Coefficients are in the unit of the labels, which nothing in the data of order one tells."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 3)) + 0.5
    labels = features @ [1.0, -1.0, 0.5] + 0.3 * rng.normal(size=40)

    def value(u):
        f = wdro.UncertainParameter(3, samples=features)
        y = wdro.UncertainParameter(samples=u * labels)
        theta, b = cp.Variable(3), cp.Variable()
        residual = y - f @ theta - b
        written = {
            "square": cp.square(residual),
            "abs": cp.abs(residual),
            "pinball": cp.maximum(0.9 * residual, -0.1 * residual),
            "huber": cp.huber(residual / u),
            "insensitive": cp.pos(cp.abs(residual) - 0.1 * u),
        }[loss]
        metric = wdro.costs.SquaredEuclidean if loss == "square" else wdro.costs.Norm
        ball = wdro.WassersteinBall(0.1, metric(weights={f: 1.0, y: np.inf}))
        constraints = [cp.abs(theta) <= 3 * u] if bounded else []
        problem = wdro.Problem(cp.Minimize(written), constraints, ball)
        return problem.solve(method="exact") / {"square": u**2, "huber": 1.0}.get(loss, u)

    assert value(unit) == pytest.approx(value(1.0), rel=1e-5)


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("budget", [1e4, 1e6, 1e8])
@pytest.mark.parametrize("method", ["exact", "erm"])
def test_a_budget_in_cents(budget, method):
    """The constraints alone tell how large the decision is."""
    data = np.random.default_rng(1).normal(0.05, 0.2, size=(30, 4))

    def value(total):
        r = wdro.UncertainParameter(4, samples=data)
        x, t = cp.Variable(4, nonneg=True), cp.Variable()
        loss = t + cp.pos(-r @ x - t) / 0.1
        problem = wdro.Problem(cp.Minimize(loss), [cp.sum(x) == total], wdro.WassersteinBall(0.01))
        return problem.solve(method=method) / total

    assert value(budget) == pytest.approx(value(1.0), rel=1e-5)


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize(
    ("cost", "support", "unit"),
    pairwise(product(("squared", "l1", "l2"), ("everywhere", "box"), (1e-6, 1e5, 1e7))),
)
def test_constraints_in_the_unit_of_the_data(cost, support, unit):
    """A row in millions does not loosen the others."""

    def value(u):
        problem = cvar(u, cost, support)
        x, level = problem.variables()
        x, level = (x, level) if level.ndim == 0 else (level, x)
        constraints = [cp.sum(x) == 1.3, x >= 0.1, cp.abs(level) <= 3 * u]
        return wdro.Problem(problem.objective, constraints, problem.ambiguity).solve("exact") / u

    assert value(unit) == pytest.approx(value(1.0), rel=1e-5)


@pytest.mark.parametrize("data", ["shares", "zero-sum"])
@pytest.mark.parametrize("method", ["exact", "erm"])
def test_rows_of_one_sum(data, method):
    """At equal weights all losses cancel: what is left of them is rounding, and no unit."""
    rng = np.random.default_rng(1)
    rows = rng.dirichlet(np.ones(3), 8) if data == "shares" else rng.normal(size=(8, 3))
    rows = rows if data == "shares" else rows - rows.mean(axis=1, keepdims=True)
    z, x = wdro.UncertainParameter(3, samples=rows), cp.Variable(3, nonneg=True)
    constraints = [np.array([1.0, 2.0, 3.0]) @ x >= 2, x <= 1]
    value = wdro.Problem(cp.Minimize(z @ x), constraints, wdro.WassersteinBall(0.05)).solve(method)
    by_hand = rows.mean(axis=0) @ x + (0.05**0.5 * cp.norm(x, 2) if method == "exact" else 0)
    assert value == pytest.approx(cp.Problem(cp.Minimize(by_hand), constraints).solve(), rel=1e-6)
