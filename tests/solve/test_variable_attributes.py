"""Variables with attributes of CVXPY's: right by every method, or refused with the way out."""

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro

DATA = np.random.default_rng(0).uniform(0.5, 2.0, (10, 2, 2))
DIAGONAL = (np.array([0, 1]), np.array([0, 1]))
ATTRIBUTES = [
    {"diag": True},
    {"diag": True, "nonneg": True},
    {"diag": True, "bounds": [-1, 1]},
    {"symmetric": True},
    {"PSD": True},
    {"NSD": True},
    {"sparsity": DIAGONAL},
    {"sparsity": DIAGONAL, "bounds": [-0.2, 1]},
    {"bounds": [-np.ones((2, 2)), 0.2 * np.ones((2, 2))]},
]


def dense(value):
    return value.toarray() if hasattr(value, "toarray") else np.asarray(value)


def model(attributes, cost):
    x = cp.Variable((2, 2), **attributes)
    xi = wdro.UncertainParameter((2, 2), samples=DATA)
    loss = cp.sum(cp.multiply(xi, x)) + cp.sum_squares(x - 0.3)
    ball = wdro.WassersteinBall(0.1, cost)
    return wdro.Problem(cp.Minimize(loss), [cp.norm(x, "fro") <= 2], ball), x


def by_hand(attributes, squared):
    """The mean and the radius times the dual norm, for a variable that CVXPY alone reads."""
    x = cp.Variable((2, 2), **attributes)
    move = np.sqrt(0.1) * cp.norm(x, "fro") if squared else 0.1 * cp.norm(cp.vec(x, "C"), "inf")
    loss = cp.sum(cp.multiply(DATA.mean(axis=0), x)) + cp.sum_squares(x - 0.3) + move
    return cp.Problem(cp.Minimize(loss), [cp.norm(x, "fro") <= 2]).solve(solver="CLARABEL")


@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
def test_attributes_are_kept_by_every_method(attributes):
    for cost, squared in ((wdro.costs.SquaredEuclidean(), True), (wdro.costs.Norm(1), False)):
        true = by_hand(attributes, squared)
        problem, x = model(attributes, cost)
        assert problem.solve() == pytest.approx(true, abs=1e-5)
        assert problem.with_radius(0.1).solve() == pytest.approx(true, abs=1e-5)
        assert problem.robust_value() == pytest.approx(true, abs=1e-5)
        assert problem.worst_case().expected_loss == pytest.approx(true, abs=1e-3)
        assert dense(x.project(dense(x.value))) == pytest.approx(dense(x.value), abs=1e-7)
        if squared:
            assert problem.solve(solver=wdro.solvers.FrankWolfe()) == pytest.approx(true, abs=1e-3)
    assert problem.solve("erm") <= true + 1e-6


@pytest.mark.parametrize("attribute", ["complex", "hermitian", "imag"])
def test_complex_variables_are_refused_with_the_way_out(attribute):
    x = cp.Variable((2, 2), **{attribute: True})
    xi = wdro.UncertainParameter((2, 2), samples=DATA)
    loss = cp.sum(cp.multiply(xi, cp.real(x)))
    with pytest.raises(wdro.MissingRuleError, match="real and imaginary parts as real variables"):
        wdro.Problem(cp.Minimize(loss), [cp.abs(x) <= 1], wdro.WassersteinBall(0.1)).solve()
