"""A factor pushed into an expression changes its form, not its value."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

from wdro_model.loss.expressions import times

X, Y = cp.Variable(3), cp.Variable()
A = np.arange(9.0).reshape(3, 3) - 4.0
EXPRESSIONS = {
    "leaf": Y,
    "maximum": cp.maximum(X @ np.ones(3), Y, 1.0),
    "sum of maxima": cp.sum(cp.maximum(2 * (X - 1), 5 * (1 - X))),
    "cvar": Y + cp.pos(-X[0] - Y) / 0.1,
    "norms": cp.norm(A @ X - 1, 2) + cp.norm1(X) + cp.norm_inf(X) - cp.min(X),
    "curved": cp.sum_squares(X) + cp.exp(Y) + cp.max(cp.abs(A @ X)),
    "stacked": cp.sum_largest(cp.hstack([X, Y, 2.0]), 2),
    "quotient": (X[1] - 3) / 4 + cp.square(Y) / 2,
}


@pytest.mark.parametrize("factor", [1e-6, 0.5, 1e7])
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_value_is_the_multiple(name, factor):
    X.value, Y.value = np.array([0.3, -1.2, 2.0]), 0.7
    expression = EXPRESSIONS[name]
    scaled = times(expression, factor)
    assert scaled.value == pytest.approx(factor * expression.value, rel=1e-12)
    assert scaled.is_convex() == expression.is_convex()


@pytest.mark.parametrize(
    "expression",
    [
        1e9 * cp.abs(Y),
        cp.maximum(Y, 3.0) * 1e9,
        1e5 * (1e4 * Y + 1e4 * cp.abs(Y)),
        cp.abs(Y) / 1e-9,
        -1e9 * cp.minimum(Y, 1.0),
        np.array([1e9, 2e9, 5e8]) @ cp.pos(X),
        cp.sum(cp.multiply(np.array([1e9, 2e9, 5e8]), cp.abs(X))),
    ],
    ids=str,
)
def test_large_numbers_in_front_of_an_atom_are_taken_into_the_factor(expression):
    X.value, Y.value = np.array([0.3, -1.2, 2.0]), 0.7
    scaled = times(expression, 1e-9)
    assert scaled.value == pytest.approx(1e-9 * expression.value, rel=1e-12)
    problem = cp.Problem(cp.Minimize(scaled), [X >= -1, Y >= -1])
    data = problem.get_problem_data(cp.CLARABEL)[0]
    for numbers in (data["c"], data["A"].data):
        sizes = np.abs(numbers[numbers != 0])
        assert 0.1 <= sizes.min() <= sizes.max() <= 10


def test_factor_reaches_the_pieces_of_a_maximum():
    scaled = times(cp.maximum(Y, 3.0), 0.5)
    assert [argument.value for argument in scaled.args if argument.is_constant()] == [1.5]
