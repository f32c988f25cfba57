"""x' P x for any square matrix."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

from wdro_model.loss import BatchedLoss, quadratic_form
from wdro_model.uncertainty.parameter import UncertainParameter
from wdro_model.uncertainty.supports import Nonnegative

M = 4
x = cp.Variable(M, name="x")
P = np.random.default_rng(3).normal(size=(M, M))


def test_value_with_a_matrix_that_is_not_symmetric() -> None:
    x.value = np.arange(1.0, 5)
    expected = x.value @ P @ x.value
    assert quadratic_form(x, P).value == pytest.approx(expected)
    assert quadratic_form(x, P @ P.T + P - P.T).value == pytest.approx(np.sum((P.T @ x.value) ** 2))


def test_convexity_follows_the_matrix() -> None:
    assert quadratic_form(x, P @ P.T + 3 * (P - P.T)).is_convex()
    assert quadratic_form(x, -P @ P.T).is_concave()
    indefinite = quadratic_form(x, np.diag([1.0, -1.0, 1.0, 1.0]))
    assert not indefinite.is_convex()
    assert not indefinite.is_concave()
    assert not quadratic_form(x, UncertainParameter((M, M))).is_convex()
    assert quadratic_form(x, UncertainParameter((M, M), PSD=True)).is_convex()
    assert quadratic_form(x, cp.Parameter((M, M), NSD=True)).is_concave()


def test_a_certain_semidefinite_form_is_solved_by_cvxpy() -> None:
    problem = cp.Problem(cp.Minimize(quadratic_form(x, P @ P.T + P - P.T)), [cp.sum(x) == 1])
    assert problem.solve(solver=cp.CLARABEL) == pytest.approx(
        1 / np.sum(np.linalg.inv(P @ P.T)), rel=1e-6
    )


def test_a_semidefinite_parameter_is_solved_by_cvxpy() -> None:
    weight = cp.Parameter((M, M), PSD=True, value=P @ P.T)
    problem = cp.Problem(cp.Minimize(quadratic_form(x, weight)), [cp.sum(x) == 1])
    assert problem.solve(solver=cp.CLARABEL) == pytest.approx(
        1 / np.sum(np.linalg.inv(P @ P.T)), rel=1e-6
    )


def test_a_substituted_matrix_gives_a_form_that_cvxpy_solves() -> None:
    Xi = UncertainParameter((M, M))
    loss = quadratic_form(x - 1, Xi) + cp.sum(x)
    fixed = loss.tree_copy({id(Xi): cp.Constant(P @ P.T + np.eye(M))})
    assert cp.Problem(cp.Minimize(fixed)).solve(solver=cp.CLARABEL) < M


def test_sign() -> None:
    costs = UncertainParameter((M, M), support=Nonnegative())
    assert quadratic_form(cp.Variable(M, nonneg=True), costs).is_nonneg()
    assert not quadratic_form(x, costs).is_nonneg()


def test_a_column_is_read_as_a_vector() -> None:
    column = cp.Variable((M, 1))
    column.value = np.ones((M, 1))
    assert quadratic_form(column, P).value == pytest.approx(P.sum())
    loss = BatchedLoss(quadratic_form(column, UncertainParameter((M, M), name="Xi")))
    values, pullback = loss({column: np.ones((M, 1))}, {loss.parameters[0]: P[None]})
    assert values == pytest.approx([P.sum()])
    np.testing.assert_allclose(pullback(np.ones(1))[column][:, 0], P.sum(axis=0) + P.sum(axis=1))


def test_quad_form_of_a_column_with_uncertain_matrix() -> None:
    column, S = cp.Variable((M, 1)), UncertainParameter((M, M), symmetric=True)
    loss = BatchedLoss(cp.quad_form(column, S))
    _, pullback = loss({column: np.ones((M, 1))}, {S: P[None]})
    np.testing.assert_allclose(pullback(np.ones(1))[column][:, 0], P.sum(axis=0) + P.sum(axis=1))


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("batch", [1, 7])
def test_gradients_of_a_batch(order: str, batch: int) -> None:
    rng = np.random.default_rng(batch)
    Xi = UncertainParameter((M, M), name="Xi")
    Z = np.array(rng.normal(size=(batch, M, M)), order=order)
    w, point = rng.normal(size=batch), rng.normal(size=M)
    values, pullback = BatchedLoss(quadratic_form(x, Xi))({x: point}, {Xi: Z})
    np.testing.assert_allclose(values, [point @ z @ point for z in Z])
    np.testing.assert_allclose(
        pullback(w)[x], sum(v * (z + z.T) @ point for v, z in zip(w, Z)), atol=1e-12
    )
    np.testing.assert_allclose(
        pullback.in_data(w)[Xi], [v * np.outer(point, point) for v in w], atol=1e-12
    )


def test_gradient_by_cvxpy() -> None:
    Q = np.diag([1.0, -1.0, 2.0, 0.5]) + np.triu(P)
    form = quadratic_form(2 * x - 1, Q)
    x.value = np.arange(1.0, 5)
    expected = 2 * (Q + Q.T) @ (2 * x.value - 1)
    np.testing.assert_allclose(form.grad[x].toarray().ravel(), expected)


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"square matrix, got P of shape \(4, 3\)"):
        quadratic_form(x, P[:, :3])
    with pytest.raises(ValueError, match=r"needs x of shape \(3,\).*got x of shape \(4,\)"):
        quadratic_form(x, np.eye(3))
    with pytest.raises(ValueError, match="real"):
        quadratic_form(x, np.eye(4) * 1j)
