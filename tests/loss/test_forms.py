"""The affine forms through which a loss sees the data."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

from wdro_model.loss import BatchedLoss, affine_parts, degree, pieces, quadratic_form
from wdro_model.loss.batched import Layout, Stacked
from wdro_model.loss.polynomial import affine_forms
from wdro_model.uncertainty.parameter import UncertainParameter

N = 3
x = cp.Variable(N, name="x")
u = cp.Variable(N, nonneg=True, name="u")
tau = cp.Variable(name="tau")
xi = UncertainParameter(N, name="xi")
Xi = UncertainParameter((N, N), name="Xi")
y = UncertainParameter(name="y")
s = UncertainParameter(name="s", nonneg=True)
MOVING = (xi, Xi)
HELD = (y, s)
A = np.random.default_rng(0).normal(size=(2, N))

CASES = {
    "logistic": (cp.logistic(-(x @ xi)), 1),
    "label": (cp.logistic(-y * (x @ xi + tau)), 1),
    "label outside": (s * cp.pos(1 - x @ xi) + cp.exp(y), 1),
    "cvar": (tau + cp.pos(-(x @ xi) - tau) / 0.05, 1),
    "least squares": (cp.square(y - x @ xi), 1),
    "affine": (x @ xi + cp.norm(x), 1),
    "quadratic form in the decision": (cp.pos(quadratic_form(x, Xi) - tau), 1),
    "written twice": (cp.pos(x @ xi - 1) + cp.square(x @ xi - 1), 1),
    "indexed twice": (cp.exp(xi[0]) + cp.square(xi[0]) + cp.abs(xi[1:2])[0], 2),
    "vector": (cp.norm1(A @ xi - tau), 2),
    "matrix": (cp.sum(cp.abs(Xi @ np.ones((N, 2)))), 2 * N),
    "product": ((x @ xi) * (x[::-1] @ xi), 2),
    "quadratic form in the data": (quadratic_form(x - xi, np.eye(N)), N),
    "two parameters": (cp.logistic(x @ xi - cp.trace(Xi)), 1),
    "pieces": (cp.maximum(x @ xi, cp.sum(Xi @ x), 0.3), 2),
    "no moving data": (cp.logistic(y * tau), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_the_outer_function_of_the_forms_is_the_loss(name) -> None:
    loss, count = CASES[name]
    found = affine_forms(loss, MOVING)
    assert found is not None
    assert found.count == count
    assert all(degree(form.expression, MOVING) == 1 for form in found.forms)
    assert not {p.id for p in MOVING} & {p.id for p in found.outer.parameters()}
    rng = np.random.default_rng(1)
    point = {v: rng.uniform(0.1, 1.0, v.shape) for v in (x, u, tau)}
    rows = {p: rng.normal(size=(6, *p.shape)) for p in MOVING} | {
        p: rng.uniform(0.5, 1.0, size=6) for p in HELD
    }
    expected = BatchedLoss(loss, (*MOVING, *HELD))(point, rows)[0]
    inside = dict(rows)
    for form in found.forms:
        parts = [form.expression[i] for i in np.ndindex(form.expression.shape)]
        values = [BatchedLoss(part, (*MOVING, *HELD))(point, rows)[0] for part in parts]
        inside[form.placeholder] = np.stack(values, 1).reshape(6, *form.expression.shape)
    values = BatchedLoss(found.outer, (*found.placeholders, *HELD))(point, inside)[0]
    np.testing.assert_allclose(values, expected, rtol=1e-12)


def test_a_label_that_moves_is_a_form_of_its_own() -> None:
    loss = cp.logistic(-y * (x @ xi))
    assert affine_forms(loss, (xi, y)).count == 2
    assert affine_forms(loss, (xi,)).count == 1
    assert affine_forms(loss, (y,)).count == 1


def test_placeholders_keep_the_sign_that_pieces_need() -> None:
    found = affine_forms(cp.maximum(cp.abs(s), s - 1), (s,))
    assert found.placeholders[0].is_nonneg()
    assert len(pieces(found.outer, found.placeholders)) == 2


def test_pieces_survive_the_placeholders() -> None:
    found = affine_forms(tau + cp.pos(-(x @ xi) - tau) / 0.05, MOVING)
    written = pieces(found.outer, found.placeholders)
    slopes = sorted(
        float(affine_parts(p, found.placeholders).slopes[found.placeholders[0]].value)
        for p in written
    )
    assert slopes == pytest.approx([0.0, 20.0])


def test_different_constants_make_different_forms() -> None:
    one, two = np.ones(N), 2 * np.ones(N)
    assert affine_forms(cp.abs(one @ xi) + cp.square(two @ xi), MOVING).count == 2
    assert affine_forms(cp.abs(one @ xi) + cp.square(np.ones(N) @ xi), MOVING).count == 1


def test_no_placeholder_can_stand_for_an_exponent() -> None:
    assert affine_forms(cp.sum(cp.power(u, s)), (s,)) is None
    assert affine_forms(cp.sum(cp.power(u, s)), (xi,)).count == 0


def test_stacked_expressions_and_their_gradients() -> None:
    expressions = [A @ xi * tau, Xi @ x, cp.sum(x) + tau]
    layout = Layout((x, tau))
    columns = {xi: slice(0, N), Xi: slice(N, N + N * N)}
    stacked = Stacked(expressions, layout, columns)
    rng = np.random.default_rng(2)
    point, rows = rng.normal(size=N + 1), rng.normal(size=(4, N + N * N))
    values = stacked(point, rows)
    for b in range(4):
        z, Z = rows[b, :N], rows[b, N:].reshape(N, N)
        expected = np.concatenate([A @ z * point[N], Z @ point[:N], [point[:N].sum() + point[N]]])
        np.testing.assert_allclose(values[b], expected)
    seeds = rng.normal(size=values.shape)
    in_data, in_decision = stacked.in_data(seeds), stacked.in_decision(seeds)
    step = 1e-6
    for i in range(N + N * N):
        move = np.zeros(N + N * N)
        move[i] = step
        change = (stacked(point, rows + move) - stacked(point, rows - move)) / (2 * step)
        np.testing.assert_allclose(in_data[:, i], (seeds * change).sum(axis=1), atol=1e-8)
    for i in range(N + 1):
        move = np.zeros(N + 1)
        move[i] = step
        change = (stacked(point + move, rows) - stacked(point - move, rows)) / (2 * step)
        assert in_decision[i] == pytest.approx((seeds * change).sum(), abs=1e-7)
    np.testing.assert_allclose(
        stacked.jacobians(point, rows)[2], stacked.jacobian(point, rows[2]), atol=1e-14
    )
