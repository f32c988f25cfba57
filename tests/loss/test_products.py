"""Products and reductions of random shapes, against NumPy on one scenario at a time."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wdro_model.loss import BatchedLoss
from wdro_model.uncertainty.parameter import UncertainParameter

lengths = st.integers(1, 4)
quick = settings(max_examples=60, deadline=None)


def leaf(kind: str, shape: tuple[int, ...], rng: np.random.Generator):
    if kind == "decision":
        return cp.Variable(shape)
    if kind == "data":
        return UncertainParameter(shape)
    return cp.Constant(rng.normal(size=shape))


def draw(leaves, batch: int, rng: np.random.Generator):
    point = {e: rng.normal(size=e.shape) for e in leaves if isinstance(e, cp.Variable)}
    data = {
        e: rng.normal(size=(batch, *e.shape)) for e in leaves if isinstance(e, UncertainParameter)
    }
    return point, data


def value_of(e, point, data, b: int) -> np.ndarray:
    if e in point:
        return point[e]
    return data[e][b] if e in data else e.value


def check_against_one_scenario_at_a_time(expression, leaves, function, batch, rng) -> None:
    """function(*values of the leaves) -> value and gradient in each leaf, for one scenario."""
    loss = BatchedLoss(expression)
    point, data = draw(leaves, batch, rng)
    values, pullback = loss(point, data)
    size = len(values)
    weights = rng.normal(size=size)
    in_decision, in_data = pullback(weights), pullback.in_data(weights)
    expected = {v: np.zeros(v.shape) for v in point}
    for b in range(size):
        value, gradients = function(*(value_of(e, point, data, b) for e in leaves))
        assert values[b] == pytest.approx(value, abs=1e-10)
        for e, gradient in zip(leaves, gradients):
            if e in point:
                expected[e] += weights[b] * gradient
            if e in data:
                np.testing.assert_allclose(in_data[e][b], weights[b] * gradient, atol=1e-10)
    for v, gradient in expected.items():
        np.testing.assert_allclose(in_decision[v], gradient, atol=1e-10)


kinds = st.sampled_from(["decision", "data", "constant"])


@quick
@given(
    dims=st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2)]),
    left=kinds,
    right=kinds,
    sizes=st.tuples(lengths, lengths, lengths),
    batch=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_matrix_products(dims, left, right, sizes, batch, seed) -> None:
    rng = np.random.default_rng(seed)
    i, j, k = sizes
    a = leaf(left, (i, j)[2 - dims[0] :], rng)
    b = leaf(right, (j, k)[: dims[1]], rng)
    product = cp.atoms.affine.binary_operators.MulExpression(a, b)
    C = rng.normal(size=product.shape)

    def by_hand(u, v):
        U, V = u.reshape(-1, j), v.reshape(j, -1)
        G = C.reshape(U.shape[0], V.shape[1])
        return np.sum(C * (u @ v)), ((G @ V.T).reshape(u.shape), (U.T @ G).reshape(v.shape))

    check_against_one_scenario_at_a_time(
        cp.sum(cp.multiply(C, product)), (a, b), by_hand, batch, rng
    )


@quick
@given(
    shape=st.lists(lengths, min_size=3, max_size=3),
    left=kinds,
    right=kinds,
    seed=st.integers(0, 1000),
)
def test_products_of_stacks_of_matrices(shape, left, right, seed) -> None:
    rng = np.random.default_rng(seed)
    i, j, k = shape
    a, b = leaf(left, (2, i, j), rng), leaf(right, (2, j, k), rng)
    C = rng.normal(size=(2, i, k))

    def by_hand(u, v):
        return np.sum(C * (u @ v)), (C @ v.swapaxes(1, 2), u.swapaxes(1, 2) @ C)

    check_against_one_scenario_at_a_time(cp.sum(cp.multiply(C, a @ b)), (a, b), by_hand, 2, rng)


@quick
@given(
    small=st.lists(st.booleans(), min_size=2, max_size=2),
    drop=st.booleans(),
    left=kinds,
    right=kinds,
    seed=st.integers(0, 1000),
)
def test_products_with_broadcasting(small, drop, left, right, seed) -> None:
    rng = np.random.default_rng(seed)
    full = (3, 2)
    reduced = tuple(1 if one else n for one, n in zip(small, full))
    reduced = reduced[1:] if drop else reduced
    a, b = leaf(left, full, rng), leaf(right, reduced, rng)
    C = rng.normal(size=full)

    def shrink(g):
        g = g.sum(axis=0) if len(reduced) == 1 else g
        axes = tuple(i for i, n in enumerate(reduced) if n == 1)
        return g.sum(axis=axes, keepdims=True)

    def by_hand(u, v):
        return np.sum(C * u * v), (C * v, shrink(C * u))

    expression = cp.sum(cp.multiply(C, cp.multiply(a, b)))
    check_against_one_scenario_at_a_time(expression, (a, b), by_hand, 2, rng)


REDUCTIONS = {
    "sum": (cp.sum, np.sum),
    "max": (cp.max, np.max),
    "min": (cp.min, np.min),
    "norm1": (cp.norm1, lambda v, axis, keepdims: np.abs(v).sum(axis=axis, keepdims=keepdims)),
    "norm_inf": (
        cp.norm_inf,
        lambda v, axis, keepdims: np.abs(v).max(axis=axis, keepdims=keepdims),
    ),
    "log_sum_exp": (
        cp.log_sum_exp,
        lambda v, axis, keepdims: np.log(np.exp(v).sum(axis=axis, keepdims=keepdims)),
    ),
    "sum_squares": (
        cp.sum_squares,
        lambda v, axis, keepdims: np.square(v).sum(axis=axis, keepdims=keepdims),
    ),
    "geo_mean": (
        lambda v, axis, keepdims: cp.geo_mean(cp.exp(v), axis=axis, keepdims=keepdims),
        lambda v, axis, keepdims: np.exp(v.mean(axis=axis, keepdims=keepdims)),
    ),
    "sum_largest": (
        lambda v, axis, keepdims: cp.sum_largest(v, 1.5, axis=axis, keepdims=keepdims),
        lambda v, axis, keepdims: (
            np.apply_over_axes(_largest, v, axis)
            if keepdims
            else np.squeeze(np.apply_over_axes(_largest, v, axis), axis=axis)
        ),
    ),
}


def _largest(v, axis):
    ordered = -np.sort(-v, axis=axis)
    top = np.take(ordered, [0], axis=axis)
    return top + 0.5 * np.take(ordered, [1], axis=axis) if ordered.shape[axis] > 1 else top


@quick
@given(
    name=st.sampled_from(sorted(REDUCTIONS)),
    shape=st.tuples(lengths, lengths),
    axis=st.sampled_from([0, 1, -1]),
    keepdims=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_reductions_along_an_axis(name, shape, axis, keepdims, seed) -> None:
    rng = np.random.default_rng(seed)
    ours, by_hand = REDUCTIONS[name]
    x, xi = cp.Variable(shape), UncertainParameter(shape)
    reduced = ours(x + xi, axis=axis, keepdims=keepdims)
    C = rng.normal(size=reduced.shape)
    loss = BatchedLoss(cp.sum(cp.multiply(C, reduced)))
    point, data = rng.normal(size=shape), rng.normal(size=(3, *shape))

    def value(p, rows):
        return np.array(
            [np.sum(C * by_hand(p + row, axis=axis, keepdims=keepdims)) for row in rows]
        )

    weights = rng.normal(size=3)
    values, pullback = loss({x: point}, {xi: data})
    in_decision, in_data = pullback(weights)[x], pullback.in_data(weights)[xi]
    np.testing.assert_allclose(values, value(point, data), atol=1e-10)
    step = 1e-6
    for index in np.ndindex(shape):
        move = np.zeros(shape)
        move[index] = step
        slope = (value(point + move, data) - value(point - move, data)) / (2 * step)
        np.testing.assert_allclose(in_decision[index], weights @ slope, atol=1e-5)
        np.testing.assert_allclose(in_data[(slice(None), *index)], weights * slope, atol=1e-5)
