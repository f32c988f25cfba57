"""Mistakes whose messages once came from elsewhere, or said nothing of the way out."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from cvxpy.transforms.partial_optimize import partial_optimize

import wdro_model as wdro

x = cp.Variable(2, name="x")
z = wdro.UncertainParameter(2, "z", samples=[[1.0, 2.0], [2.0, 1.0]])
matrix = wdro.UncertainParameter((2, 2), "costs", samples=np.ones((3, 2, 2)))


def overflowing(values, scenarios):
    with np.errstate(over="ignore"):
        return np.log1p(np.exp(1e4 * scenarios[z] @ values[x])), lambda w: {x: w @ scenarios[z]}


def square(values, scenarios):
    r = values[x] - scenarios[z]
    return (r**2).sum(axis=1), lambda weights: {x: 2 * weights @ r}


@pytest.mark.parametrize("objective", [cp.Minimize, cp.Maximize])
def test_a_callable_loss_is_passed_as_it_is(objective) -> None:
    with pytest.raises(TypeError, match=r"Problem\(loss, constraints\), without cp.Minimize"):
        wdro.Problem(objective(wdro.CallableLoss(square, x, z)))


@pytest.mark.parametrize("form", [lambda: x @ matrix @ x, lambda: cp.quad_form(x, matrix)])
def test_a_quadratic_form_of_uncertain_costs(form) -> None:
    with pytest.raises(ValueError, match=r"'costs' is not declared .*quadratic_form\(x, P\)"):
        form()


def test_other_uses_of_a_matrix_stay() -> None:
    assert cp.trace(matrix).shape == ()
    symmetric = wdro.UncertainParameter((2, 2), samples=np.ones((3, 2, 2)), symmetric=True)
    assert (x @ symmetric @ x).shape == ()
    assert not (matrix + matrix.T).is_hermitian()


def test_an_overflow_says_so() -> None:
    problem = wdro.Problem(wdro.CallableLoss(overflowing, x, z, convex=True), [x >= 1, x <= 2])
    with pytest.raises(ValueError, match=r"overflows, write np.logaddexp\(0, v\)"):
        problem.solve()


@pytest.mark.parametrize("name", ["precision", "covariance"])
def test_a_matrix_for_each_parameter(name) -> None:
    with pytest.raises(ValueError, match=r"order of problem.uncertain_parameters.*block_diag"):
        wdro.costs.Mahalanobis(**{name: {z: np.eye(2)}})


@pytest.mark.parametrize("demand", [z, np.array([3.0, 1.0])])
@pytest.mark.parametrize(
    "build",
    [
        lambda g: wdro.Problem(cp.Minimize(cp.sum(x) + 2 * g), [x >= 0]),
        lambda g: wdro.Problem(cp.Maximize(-wdro.cvar(cp.sum(x) + g, 0.5)), [x >= 0]),
        lambda g: wdro.Problem(cp.Minimize(z @ x), [x >= 0, g <= 1]),
        lambda g: wdro.Problem(cp.Minimize(cp.sum(x)), [wdro.expectation(g) <= 1]),
    ],
)
def test_the_minimum_over_some_variables(demand, build) -> None:
    y = cp.Variable(2)
    g = partial_optimize(cp.Problem(cp.Minimize(cp.sum(y)), [y >= demand - x, y >= 0]), [y])
    with pytest.raises(ValueError, match=r"partial_optimize.*here and now.*CallableLoss"):
        build(g)
