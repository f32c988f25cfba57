"""Values and gradients of the batched loss, atom by atom, against CVXPY and finite differences."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import pytest

from tests.loss import checks
from tests.loss.cases import CASES, Case
from wdro_model.loss import BatchedLoss

SIZE = 3
everywhere = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def draw(case: Case, at_zero: bool = False):
    rng = np.random.default_rng(5)
    loss = BatchedLoss(case.expression)
    point = {v: rng.normal(size=v.shape) for v in loss.variables}
    if not case.at_zero:
        point = {v: np.abs(value) for v, value in point.items()}
    if at_zero:
        point = {v: np.zeros(v.shape) for v in loss.variables}
    data = checks.draw_data(loss.parameters, SIZE, rng, case.positive_data)
    weights = rng.uniform(0.5, 1.5, size=SIZE if data else 1)
    return loss, point, data, weights


def close(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    scale = 1 + np.abs(expected).max(initial=0.0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale)


@everywhere
@pytest.mark.parametrize("at_zero", [False, True], ids=["generic", "zero"])
def test_values_and_gradients(case: Case, at_zero: bool) -> None:
    if at_zero and not case.at_zero:
        pytest.skip("the gradient at zero is infinite; see test_edges.py")
    loss, point, data, weights = draw(case, at_zero)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values, pullback = loss(point, data)
        in_decision, in_data = pullback(weights), pullback.in_data(weights)
    assert values.shape == weights.shape
    close(values, checks.scenario_values(case.expression, point, data), 1e-12)
    expected = checks.gradient_in_decision(case.expression, point, data, weights)
    assert set(in_decision) == set(case.expression.variables())
    for variable in loss.variables:
        assert in_decision[variable].shape == variable.shape
        close(in_decision[variable], expected[variable], 1e-6)
    expected = checks.gradient_in_data(case.expression, point, data, weights)
    for parameter in loss.parameters:
        assert in_data[parameter].shape == (len(weights), *parameter.shape)
        close(in_data[parameter], expected[parameter], 1e-6)


@everywhere
def test_one_scenario_is_the_first_row_of_many(case: Case) -> None:
    loss, point, data, weights = draw(case)
    values, pullback = loss(point, data)
    first_row = pullback.in_data(weights)
    one, pullback = loss(point, {p: rows[:1] for p, rows in data.items()})
    assert one.shape == (1,)
    close(one, values[:1], 1e-13)
    row = pullback.in_data(weights[:1])
    for parameter in loss.parameters:
        close(row[parameter], first_row[parameter][:1], 1e-12)


CONVEX = [case for case in CASES if case.convex]


@pytest.mark.parametrize("case", CONVEX, ids=lambda case: case.name)
@pytest.mark.parametrize("at_zero", [False, True], ids=["generic", "zero"])
def test_gradient_of_a_convex_loss_supports_it(case: Case, at_zero: bool) -> None:
    loss, point, data, weights = draw(case, at_zero)
    values, pullback = loss(point, data)
    gradient = pullback(weights)
    rng = np.random.default_rng(6)
    start = weights @ values
    for scale in (1e-3, 0.1, 1.0):
        other = {v: point[v] + scale * rng.normal(size=v.shape) for v in loss.variables}
        linear = start + sum(np.sum(gradient[v] * (other[v] - point[v])) for v in loss.variables)
        value = weights @ loss(other, data)[0]
        assert value >= linear - 1e-9 * (1 + abs(value))


def test_the_table_covers_many_losses() -> None:
    assert len(CASES) >= 80
    assert all(isinstance(c.expression, cp.Expression) for c in CASES)
