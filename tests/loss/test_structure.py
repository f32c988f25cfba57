"""Degree, pieces, affine parts and curvature of a loss in its data."""

from __future__ import annotations

import math

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.loss import checks
from wdro_model.loss import (
    AffineParts,
    BatchedLoss,
    affine_parts,
    analyse,
    convexity_in_data,
    degree,
    pieces,
    quadratic_form,
)
from wdro_model.uncertainty.parameter import UncertainParameter

N = 4
x = cp.Variable(N, name="x")
u = cp.Variable(N, nonneg=True, name="u")
tau = cp.Variable(name="tau")
Y = cp.Variable((2, N), name="Y")
xi = UncertainParameter(N, name="xi")
Xi = UncertainParameter((N, N), name="Xi")
S = UncertainParameter((N, N), name="S", symmetric=True)
F = UncertainParameter((3, N), name="F")
s = UncertainParameter(name="s")
y = UncertainParameter(name="y")
DATA = (xi, Xi, S, F, s, y)
A = np.random.default_rng(2).normal(size=(3, N))
rate = cp.Parameter(name="rate", nonneg=True, value=0.5)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (cp.norm(x) + tau, 0),
        (x @ xi, 1),
        (x @ xi + cp.exp(tau), 1),
        (s * (x @ xi), 2),
        ((x @ xi) * (x @ xi), 2),
        (cp.square(y - x @ xi), 2),
        (cp.sum_squares(x - xi), 2),
        (cp.quad_over_lin(xi, cp.exp(tau)), 2),
        (cp.quad_over_lin(x, cp.exp(s)), math.inf),
        (cp.quad_form(x, S), 1),
        (quadratic_form(x, Xi), 1),
        (quadratic_form(x - xi, Xi), 3),
        (quadratic_form(x - xi, A.T @ A - np.eye(N)), 2),
        (xi @ cp.power(u, 4), 1),
        (cp.sum(cp.power(xi, 3)), 3),
        (cp.sum(cp.power(xi, 0)) + tau, 0),
        (cp.sum(cp.power(xi, 1)), 1),
        (cp.sum(cp.power(cp.exp(xi), 2)), math.inf),
        (cp.sum(cp.power(u, s)), math.inf),
        (cp.sum(cp.sqrt(xi)), math.inf),
        (s / cp.exp(tau), 1),
        (tau / s, math.inf),
        (cp.sum(cp.kron(cp.reshape(xi, (2, 2), order="F"), Y)), 1),
        (cp.sum(cp.convolve(xi, x)), 1),
        (cp.sum(cp.cumsum(cp.hstack([xi[1:], s]))), 1),
        (cp.trace(Xi @ Xi), 2),
        (cp.abs(x @ xi), math.inf),
        (cp.sum(cp.huber(x, rate)) + s, 1),
        (rate * (x @ xi), 1),
    ],
    ids=str,
)
def test_degree(expression, expected) -> None:
    assert degree(expression, DATA) == expected


def test_degree_in_some_of_the_parameters() -> None:
    expression = s * (x @ xi) + cp.exp(y)
    assert degree(expression, [xi]) == 1
    assert degree(expression, [s, xi]) == 2
    assert degree(expression, [y]) == math.inf
    assert degree(expression, [F]) == 0


def test_an_uncertain_option_has_no_degree() -> None:
    threshold = UncertainParameter(nonneg=True)
    assert degree(cp.sum(cp.huber(x, threshold)), [threshold]) == math.inf


def evaluate(expression, point, data) -> np.ndarray:
    """CVXPY's value in every scenario."""
    uncertain = {p: data[p] for p in data if p in set(expression.parameters())}
    values = checks.scenario_values(expression, point, uncertain)
    return np.broadcast_to(values, (len(next(iter(data.values()))),))


def draw(seed: int = 0, size: int = 5):
    rng = np.random.default_rng(seed)
    point = {v: rng.normal(size=v.shape) for v in (x, tau, Y)} | {u: rng.uniform(size=N)}
    return point, checks.draw_data(DATA, size, rng)


shortfall = -x @ xi - tau
PIECEWISE = {
    "affine": (x @ xi + cp.norm(x), 1),
    "cvar": (tau + 5 * cp.pos(shortfall), 2),
    "two pieces": (cp.maximum(2 * tau - x @ xi, -3 * (x @ xi) - tau), 2),
    "a certain piece": (cp.maximum(x @ xi, tau, 0.1), 3),
    "max of a vector": (cp.max(cp.multiply(x, xi)), N),
    "max of a matrix": (cp.max(F), 12),
    "abs": (cp.abs(y - x @ xi), 2),
    "norm inf": (cp.norm_inf(x - xi), 2 * N),
    "norm 1": (cp.norm1(x - xi), 2**N),
    "total variation": (cp.tv(xi - x), 2 ** (N - 1)),
    "sum of maxima": (cp.sum(cp.pos(x - xi)), 2**N),
    "weighted sum of maxima": (np.arange(1.0, 5) @ cp.maximum(x, xi), 2**N),
    "matrix of weights": (cp.sum(np.abs(A[:2, :2]) @ cp.abs(xi[:2])), 16),
    "two sums": (cp.pos(x @ xi) + cp.abs(s), 4),
    "nested": (cp.maximum(cp.abs(x @ xi) + tau, cp.pos(s)), 4),
    "negated minimum": (-cp.minimum(x @ xi, tau, s), 3),
    "negated min": (-cp.min(cp.multiply(x, xi)) + 1, N),
    "neg": (cp.neg(x @ xi), 2),
    "negative scaling": (-2 * cp.minimum(x @ xi, s), 2),
    "scaling by the decision": (u[0] * cp.pos(x @ xi), 2),
    "scaling by a parameter": (rate * cp.abs(x @ xi), 2),
    "scaling from the right": (cp.abs(x @ xi) * u[1], 2),
    "division": (cp.abs(x @ xi) / 4 + cp.norm(x), 2),
    "division by the decision": (cp.abs(x @ xi) / cp.exp(tau), 2),
    "mean of positive parts": (cp.mean(cp.pos(xi[:3] - x[:3])), 8),
    "largest": (cp.sum_largest(cp.multiply(x, xi), 2), 6),
    "range": (cp.ptp(xi), N * N),
    "quadratic form": (cp.pos(quadratic_form(x, Xi) - tau), 2),
    "max along an axis": (cp.sum(cp.max(cp.multiply(Y, F[:2]), axis=1)), N * N),
    "norms along an axis": (cp.norm_inf(cp.norm1(F[:, :2], axis=1)), 12),
    "indexing": (cp.maximum(x, xi)[2] + cp.maximum(x, xi)[0], 4),
    "stacked": (cp.sum(cp.hstack([cp.abs(s), cp.pos(x @ xi), tau])), 4),
    "broadcast": (cp.sum(cp.maximum(x[:2], s)), 4),
    "one entry, shape (1, 1)": (cp.reshape(cp.abs(x @ xi), (1, 1), order="C"), 2),
    "transposed": (cp.sum(cp.pos(F[:1, :2]).T), 4),
}


@pytest.mark.parametrize("name", PIECEWISE)
def test_the_maximum_of_the_pieces_is_the_loss(name: str) -> None:
    expression, count = PIECEWISE[name]
    found = pieces(expression, DATA)
    assert found is not None
    assert len(found) == count
    point, data = draw()
    for piece in found:
        assert piece.shape == ()
        assert degree(piece, DATA) <= 1
    highest = np.max([evaluate(piece, point, data) for piece in found], axis=0)
    np.testing.assert_allclose(highest, evaluate(expression, point, data), atol=1e-10)


@pytest.mark.parametrize(
    "expression",
    [
        cp.square(x @ xi),
        cp.logistic(x @ xi),
        cp.norm(x - xi),
        -cp.abs(x @ xi),
        cp.minimum(x @ xi, s),
        -cp.maximum(x @ xi, s),
        -cp.norm1(xi),
        tau * cp.abs(x @ xi),
        cp.abs(x @ xi) / tau,
        s * cp.abs(xi[0]),
        cp.abs(s * xi[0]),
        cp.sum_largest(xi, 2.5),
        -cp.sum_largest(xi, 2),
        cp.abs(cp.abs(xi[0]) - 1),
        cp.min(xi),
    ],
    ids=str,
)
def test_no_pieces(expression) -> None:
    assert pieces(expression, DATA) is None


def test_too_many_pieces_are_not_written_out() -> None:
    wide = UncertainParameter(2000)
    assert pieces(cp.norm1(wide), [wide]) is None
    assert pieces(cp.max(wide), [wide]) is None
    assert pieces(cp.norm1(x - xi), [xi], limit=15) is None
    assert len(pieces(cp.norm1(x - xi), [xi], limit=16)) == 16
    assert len(pieces(cp.max(wide), [wide], limit=2000)) == 2000


def test_pieces_keep_their_curvature_in_the_decision() -> None:
    for piece in pieces(tau + 5 * cp.pos(shortfall), [xi]):
        parts = affine_parts(piece, [xi])
        assert parts.constant.is_affine()
        assert parts.slopes[xi].is_affine()


AFFINE = {
    "dot": x @ xi + tau,
    "negated": -(xi @ x),
    "traffic": xi @ (u + cp.power(u, 4) / 4),
    "scaled": cp.sum(A @ xi) - 2 * (x @ xi) / 3,
    "stacked": cp.hstack([x[:2], x[3:]]) @ cp.hstack([xi[1:3], s]),
    "quadratic form": quadratic_form(x, Xi),
    "quadratic form, symmetric": cp.quad_form(x, S),
    "quadratic form, shifted matrix": quadratic_form(x, 2 * Xi.T - np.eye(N)),
    "quadratic form of an affine map": quadratic_form(A.T @ (A @ x) + 1, Xi),
    "matrix": cp.sum(F @ x) + cp.trace(F @ A.T),
    "matrix from both sides": (A @ x) @ F @ x,
    "matrix products": cp.sum(cp.multiply(A, Y[0, 0] * F @ np.eye(N))),
    "matrix of decisions": cp.sum(Y @ F.T),
    "scalar": s * cp.norm(x) + cp.sum(x),
    "several": s * tau + x @ xi + quadratic_form(x, Xi) + cp.exp(tau),
    "cumulative sum": cp.cumsum(xi) @ x,
    "broadcast": cp.sum(cp.multiply(Y, xi)),
    "broadcast scalar": cp.sum(cp.multiply(Y, s + 1)),
    "column": cp.sum(cp.multiply(Y, cp.sum(F[:2], axis=1, keepdims=True))),
    "index": xi[::-1] @ x + F[1, 2] * tau,
    "fancy index": cp.sum(xi[[0, 0, 2]]) * tau,
    "diagonal": cp.diag(Xi) @ x + cp.trace(Xi),
    "used twice": x @ xi + tau * cp.sum(xi) + s * 2 + s,
    "division by decision": (x @ xi) / cp.exp(tau),
    "affine data": x @ (2 * xi - 1) + (s + 3) * tau,
    "product of affine data": cp.multiply(x, xi - 1) @ np.arange(N) + cp.norm(x),
    "power 1": cp.power(x @ xi, 1),
    "one entry, shape (1, 1)": cp.reshape(x, (1, N), order="C") @ cp.reshape(xi, (N, 1), order="C"),
    "convolution": cp.convolve(np.array([1.0, 2.0]), xi) @ np.arange(N + 1) + tau,
    "kron": cp.sum(cp.kron(np.array([[1.0, 2.0]]), F) @ cp.hstack([x, x])),
    "no data": cp.norm(x),
}


@pytest.mark.parametrize("name", AFFINE)
def test_affine_parts_add_up_to_the_loss(name: str) -> None:
    expression = AFFINE[name]
    parts = affine_parts(expression, DATA)
    assert isinstance(parts, AffineParts)
    assert parts.constant.shape == ()
    assert not set(parts.constant.parameters()) & set(DATA)
    point, data = draw()
    expected = evaluate(expression, point, data)
    total = checks.scenario_values(parts.constant, point, {})[0] + np.zeros(len(expected))
    for parameter in DATA:
        slope = parts.slopes[parameter]
        assert slope.shape == parameter.shape
        assert not set(slope.parameters()) & set(DATA)
        rows = data[parameter] * slope.value
        total = total + rows.reshape(len(expected), -1).sum(axis=1)
    np.testing.assert_allclose(total, expected, atol=1e-10)


@pytest.mark.parametrize("name", AFFINE)
def test_affine_parts_agree_with_the_gradient_in_the_data(name: str) -> None:
    expression = AFFINE[name]
    parts = affine_parts(expression, DATA)
    point, data = draw()
    _, pullback = BatchedLoss(expression)(point, data)
    for parameter, rows in pullback.in_data(np.ones(5)).items():
        for variable, value in point.items():
            variable.save_value(value)
        np.testing.assert_allclose(
            rows, np.broadcast_to(parts.slopes[parameter].value, rows.shape), atol=1e-10
        )


def test_slopes_keep_their_curvature() -> None:
    assert affine_parts(AFFINE["traffic"], [xi]).slopes[xi].is_convex()
    assert affine_parts(x @ xi + tau, [xi]).slopes[xi].is_affine()
    assert affine_parts(-3 * (x @ xi), [xi]).slopes[xi].is_affine()
    assert affine_parts(AFFINE["scalar"], [s]).slopes[s].is_convex()
    assert affine_parts(x @ xi + tau, [xi]).constant.is_affine()


def test_the_slope_of_a_large_quadratic_form_is_one_product() -> None:
    m = 300
    z, matrix = cp.Variable(m), UncertainParameter((m, m))
    slope = affine_parts(quadratic_form(z, matrix), [matrix]).slopes[matrix]
    assert slope.shape == (m, m)
    z.value = np.arange(m)
    np.testing.assert_array_equal(slope.value, np.outer(z.value, z.value))


def test_affine_parts_of_another_degree_are_refused() -> None:
    with pytest.raises(ValueError, match=r"not affine in 'xi'.*degree is 2"):
        affine_parts(cp.sum_squares(x - xi), [xi])
    with pytest.raises(ValueError, match="one entry"):
        affine_parts(cp.multiply(x, xi), [xi])
    with pytest.raises(ValueError, match="one entry"):
        pieces(cp.multiply(x, xi), [xi])


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (x @ xi, "affine"),
        (quadratic_form(x, Xi), "affine"),
        (cp.norm(x), "affine"),
        (cp.square(y - x @ xi), "convex"),
        (cp.square(quadratic_form(x, Xi)), "convex"),
        (cp.logistic(-(x @ xi)), "convex"),
        (cp.norm(x - xi), "convex"),
        (u @ cp.square(xi), "convex"),
        (x @ xi - cp.sum_squares(xi), "concave"),
        (-cp.logistic(x @ xi), "concave"),
        (cp.minimum(s, x @ xi), "concave"),
        (x @ cp.square(xi), "unknown"),
        (s * (x @ xi), "unknown"),
        (cp.sum(cp.power(u, s)), "unknown"),
        (cp.sum(x) / s, "unknown"),
        (quadratic_form(xi, A.T @ A), "convex"),
        (quadratic_form(xi, np.diag([1.0, -1.0, 1.0, 1.0])), "unknown"),
        (cp.exp(cp.square(xi[0])), "convex"),
    ],
    ids=str,
)
def test_curvature_in_the_data(expression, expected) -> None:
    assert convexity_in_data(expression, DATA) == expected


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.integers(1, 3), terms=st.integers(1, 3))
def test_random_sums_of_maxima(seed: int, size: int, terms: int) -> None:
    rng = np.random.default_rng(seed)
    expression = 0
    for _ in range(terms):
        columns = [rng.normal() * (x @ xi) + rng.normal() * tau + rng.normal() for _ in range(size)]
        expression = expression + rng.uniform() * cp.max(cp.hstack([*columns, s]))
    found = pieces(expression, DATA, limit=(size + 1) ** terms)
    assert found is not None
    point, data = draw(seed, 3)
    highest = np.max([evaluate(piece, point, data) for piece in found], axis=0)
    np.testing.assert_allclose(highest, evaluate(expression, point, data), atol=1e-9)


def test_analyse_describes_the_loss() -> None:
    cvar = analyse(tau + 5 * cp.pos(shortfall), [xi])
    assert cvar.convex_in_decision
    assert cvar.curvature_in_data == "convex"
    assert len(cvar.pieces) == 2
    assert "maximum of 2 pieces affine in the data (xi)" in cvar.describe()
    tree = analyse(quadratic_form(x, Xi), [Xi])
    assert tree.degree == 1
    assert not tree.convex_in_decision
    assert tree.describe() == "not provably convex in the decision, affine in the data (Xi)"
    squares = analyse(cp.square(y - x @ xi), [y, xi])
    assert squares.pieces is None
    assert "polynomial of degree 2, convex in the data (y, xi)" in squares.describe()
    assert "independent of the data" in analyse(cp.norm(x), []).describe()
    assert "of unknown curvature" in analyse(cp.sum(cp.power(u, s)), [s]).describe()
    assert cvar.parameters == (xi,)
