"""Empirical risk as a CVXPY program, vectorised over the samples."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.loss.polynomial import vectorise

RNG = np.random.default_rng(0)
X = cp.Variable(3, name="x")
T = cp.Variable(name="t")
U = wdro.UncertainParameter(3, name="u", samples=RNG.normal(size=(7, 3)))
Y = wdro.UncertainParameter(name="y", samples=RNG.choice([-1.0, 1.0], size=7))
MATRIX = wdro.UncertainParameter((3, 3), name="m", samples=RNG.normal(size=(7, 3, 3)))
FEE = cp.Parameter(name="fee", value=0.7)

VECTOR = {
    "logistic with labels": cp.logistic(-Y * (U @ X)),
    "label outside": cp.logistic(-(U @ X) * Y) + cp.sum_squares(X),
    "least squares": cp.square(U @ X + T - Y),
    "sum of squares of a number": cp.sum_squares(U @ X - Y),
    "hinge": cp.pos(1 - Y * (U @ X)) * 3,
    "huber": cp.huber(U @ X - T, 0.3),
    "entries": cp.abs(U[0] * X[1] - U[2]) + cp.exp(U[1] * T),
    "multiply and sum": cp.square(cp.sum(cp.multiply(U, X)) / 2),
    "scaled data": cp.exp(-(2 * U) @ X / 3),
    "certain parameter": FEE * cp.square(U @ X),
    "maximum": cp.maximum(U @ X, 0.3, T) ** 2,
    "matrix": cp.square(cp.sum(MATRIX @ X)),
    "sums of entries": cp.square(cp.sum(U - X)) + cp.exp((MATRIX @ X)[1] - Y),
}
OTHER = {
    "norm of a vector": cp.norm(X - U),
    "exponent": cp.sum(cp.power(U, 2)) * T,
    "quadratic form": cp.exp(wdro.quadratic_form(X, MATRIX)),
    "log-sum-exp": cp.log_sum_exp(cp.multiply(U, X)),
}


def losses_by_cvxpy(expression) -> np.ndarray:
    out = []
    for k in range(7):
        for p in (U, Y, MATRIX):
            p.save_value(p.samples[k])
        out.append(float(expression.value))
    for p in (U, Y, MATRIX):
        p.save_value(None)
    return np.array(out)


@pytest.mark.parametrize("name", VECTOR)
def test_vector_of_losses_is_that_of_cvxpy(name):
    expression = VECTOR[name]
    vector = vectorise(expression, {p: p.samples for p in (U, Y, MATRIX)})
    assert vector.shape == (7,)
    assert not any(isinstance(p, wdro.UncertainParameter) for p in vector.parameters())
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X.value, T.value = rng.normal(size=3), rng.normal()
        assert vector.value == pytest.approx(losses_by_cvxpy(expression), rel=1e-12)
    assert vector.is_convex() == expression.is_convex()


@pytest.mark.parametrize("name", OTHER)
def test_other_trees_are_left_to_copies(name):
    assert vectorise(OTHER[name], {p: p.samples for p in (U, Y, MATRIX)}) is None


@pytest.mark.parametrize("name", ["logistic with labels", "least squares", "hinge", "huber"])
def test_conic_erm_agrees_with_frank_wolfe(name):
    constraints = [cp.norm1(X) <= 2, T >= -1, T <= 1]
    problem = wdro.Problem(cp.Minimize(VECTOR[name]), constraints)
    by_cone = problem.solve(method="erm")
    assert "conic" in problem.solution.solver
    solver = wdro.solvers.FrankWolfe(gap=1e-6, max_iterations=3000)
    by_oracle = problem.solve(method="erm", solver=solver)
    assert by_oracle == pytest.approx(by_cone, rel=2e-3, abs=1e-5)


def test_conic_erm_by_copies_agrees_with_frank_wolfe():
    problem = wdro.Problem(cp.Minimize(OTHER["norm of a vector"]), [X <= 2, X >= -2])
    by_cone = problem.solve(method="erm")
    by_oracle = problem.solve(method="erm", solver=wdro.solvers.FrankWolfe(gap=1e-6))
    assert by_oracle == pytest.approx(by_cone, rel=1e-4)


def test_a_quotient_whose_denominator_is_uncertain():
    """The denominator differs by sample, so the quotient is written for each of them."""
    samples = np.array([[0.8], [1.5]])
    x = cp.Variable(2, nonneg=True)
    z = wdro.UncertainParameter(1, samples=samples, support=wdro.supports.Box([0.2], [3.0]))
    loss = cp.Minimize(cp.quad_over_lin(x, z[0]))
    problem = wdro.Problem(loss, [cp.sum(x) == 1], wdro.WassersteinBall(0.1))
    assert problem.solve(method="erm") == pytest.approx(0.5 * np.mean(1 / samples), rel=1e-6)
