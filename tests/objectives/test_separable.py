"""Losses of separate terms against products of one-dimensional integrals."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

import wdro_model as wdro
from wdro_model.loss.expressions import substitute
from wdro_model.loss.polynomial import additive_terms, dependence
from wdro_model.objectives.dual import minimise_dual
from wdro_model.objectives.integration import STRATEGIES, Scales, Stream
from wdro_model.objectives.integration.lines import integrate_lines
from wdro_model.objectives.integration.separable.slice import Separable, separable_refusal
from wdro_model.uncertainty.costs import Mahalanobis, Norm, SquaredEuclidean
from wdro_model.uncertainty.supports import Box, Nonnegative, Polyhedron

pytestmark = pytest.mark.filterwarnings("error")
STREAM = Stream(0)
D, COUNT = 4, 5
NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)


def model_of(loss, cost=None, radius=0.3):
    constraints = [c for v in loss.variables() for c in (v >= -9, v <= 9)]
    ball = wdro.WassersteinBall(radius, cost)
    return wdro.Problem(cp.Minimize(loss), constraints, ball, assume_convex=True)._model


def rule_of(model, epsilon, sigma) -> Separable:
    assert separable_refusal(model) is None
    return STRATEGIES["separable"].build(model, Scales(epsilon, sigma, 1))


def line_integral(h, low, high, kinks=()):
    """log of the integral of exp(h) over [low, high], by Gauss' rule between kinks and nodes."""
    edges = np.unique(np.clip(np.r_[np.linspace(low, high, 400), list(kinks)], low, high))
    half = 0.5 * np.diff(edges)[:, None]
    z = 0.5 * (edges[1:] + edges[:-1])[:, None] + half * NODES
    exponent = h(z.ravel()) + np.log(half * WEIGHTS).ravel()
    return logsumexp(exponent), z.ravel(), np.exp(exponent - logsumexp(exponent))


def by_lines(h, samples, *, dual, epsilon, sigma, weights=1.0, box=(-np.inf, np.inf), kinks=None):
    """mean_k phi_k and its slope for f = sum_i h(i, z_i), each coordinate by itself."""
    value = slope = 0.0
    weights, sigma = (np.broadcast_to(a, samples.shape[1:]) for a in (weights, sigma))
    for row in samples:
        for i, xi in enumerate(row):
            low, high = max(box[0], xi - 25), min(box[1], xi + 25)
            breaks = () if kinks is None else kinks(i)

            def reference(z, xi=xi, i=i):
                return -0.5 * ((z - xi) / sigma[i]) ** 2

            def tilted(z, xi=xi, i=i, reference=reference):
                return (h(i, z) - dual * weights[i] * (z - xi) ** 2) / epsilon + reference(z)

            top, z, shares = line_integral(tilted, low, high, breaks)
            value += top - line_integral(reference, low, high, breaks)[0]
            slope -= shares @ (weights[i] * (z - xi) ** 2)
    return epsilon * value / len(samples), slope / len(samples)


def differences(value, x, step=1e-5):
    units = step * np.eye(len(x))
    return np.array([(value(x + u) - value(x - u)) / (2 * step) for u in units])


def cases(x, xi):
    """Losses, their terms coordinate by coordinate, and where those have kinks."""
    slopes = np.arange(1.0, D + 1)
    return {
        "newsvendor": (
            cp.sum(cp.maximum(2 * (x - xi), 5 * (xi - x))),
            lambda a, i, z: np.maximum(2 * (a[i] - z), 5 * (z - a[i])),
        ),
        "order and shortage": (
            cp.sum(x - xi) + 4 * cp.sum(cp.pos(xi - x)),
            lambda a, i, z: a[i] - z + 4 * np.maximum(z - a[i], 0),
        ),
        "gain, loss and slope": (
            cp.norm1(x - xi) - slopes @ cp.maximum(xi, 1.0) + xi @ slopes,
            lambda a, i, z: np.abs(a[i] - z) - slopes[i] * np.maximum(z, 1.0) + slopes[i] * z,
        ),
        "squares": (
            0.5 * cp.sum_squares(x - xi) + xi[0] * x[1],
            lambda a, i, z: 0.5 * (a[i] - z) ** 2 + (i == 0) * a[1] * z,
        ),
        "logistic": (
            cp.sum(cp.logistic(cp.multiply(x, xi))) - x @ xi,
            lambda a, i, z: np.logaddexp(0, a[i] * z) - a[i] * z,
        ),
        "huber and hinge": (
            cp.sum(cp.huber(xi - x)) + cp.sum(cp.pos(xi - 1)),
            lambda a, i, z: (
                np.where(np.abs(z - a[i]) < 1, (z - a[i]) ** 2, 2 * np.abs(z - a[i]) - 1)
                + np.maximum(z - 1, 0)
            ),
        ),
        "some coordinates": (
            cp.sum(cp.pos(xi[1:3] - x[1:3])) + cp.square(xi[0] - x[0]) / 3 + cp.sum(x),
            lambda a, i, z: (
                (i in (1, 2)) * np.maximum(z - a[i], 0) + (i == 0) * (z - a[i]) ** 2 / 3 + a[i]
            ),
        ),
    }


NAMES = tuple(cases(cp.Variable(D), cp.Parameter(D)))
SUPPORTS = {
    "everywhere": (None, (-np.inf, np.inf)),
    "box": (Box(-0.5, 3.2), (-0.5, 3.2)),
    "nonnegative": (Nonnegative(), (0.0, np.inf)),
}


@pytest.mark.parametrize("where", SUPPORTS)
@pytest.mark.parametrize("name", NAMES)
def test_values_and_derivatives_are_those_of_single_integrals(name, where, rng):
    support, box = SUPPORTS[where]
    samples = rng.uniform(0.2, 3.0, size=(COUNT, D))
    xi = wdro.UncertainParameter(D, name="xi", samples=samples, support=support)
    x = cp.Variable(D, name="x")
    loss, term = cases(x, xi)[name]
    weights, sigma = np.array([1.0, 1.4, 0.8, 2.0]), np.array([0.5, 0.6, 0.4, 0.7])
    model = model_of(loss, SquaredEuclidean(weights=weights))
    epsilon, dual = 0.3, 1.9
    rule, at = rule_of(model, epsilon, sigma), rng.uniform(0.4, 2.5, size=D)
    there = rule.slice(at, np.arange(COUNT), STREAM)
    value, slope = by_lines(
        lambda i, z: term(at, i, z),
        samples,
        dual=dual,
        epsilon=epsilon,
        sigma=sigma,
        weights=weights,
        box=box,
        kinks=lambda i: (at[i] - 1, at[i], at[i] + 1, 1.0),
    )
    point = there.evaluate(dual)
    assert point.value == pytest.approx(value, rel=1e-9, abs=1e-9)
    assert point.slope == pytest.approx(slope, rel=1e-8)
    expected = differences(
        lambda y: rule.slice(y, np.arange(COUNT), STREAM).evaluate(dual).value, at
    )
    np.testing.assert_allclose(there.gradient(dual), expected, atol=2e-7)


def test_a_thousand_modes_are_all_seen(rng):
    """Ten products with two modes each; draws around a few modes find part of the mass."""
    d, count = 10, 6
    demand = rng.gamma(4.0, 2.5, size=(count, d))
    xi = wdro.UncertainParameter(d, name="demand", samples=demand)
    x = cp.Variable(d, name="order")
    model = model_of(cp.sum(cp.maximum(2 * (x - xi), 5 * (xi - x))), radius=4.0)
    at, epsilon, sigma = demand.mean(axis=0) + 0.5, 1.0, 0.8
    rule = rule_of(model, epsilon, sigma)
    found = minimise_dual(rule.slice(at, np.arange(count), STREAM).evaluate, 4.0)
    value, _ = by_lines(
        lambda i, z: np.maximum(2 * (at[i] - z), 5 * (z - at[i])),
        demand,
        dual=found.dual,
        epsilon=epsilon,
        sigma=sigma,
        kinks=lambda i: (at[i],),
    )
    assert found.value == pytest.approx(value + 4.0 * found.dual, rel=1e-9)


def test_hundreds_of_coordinates_are_certified(rng):
    d = 200
    demand = rng.gamma(4.0, 2.5, size=(40, d))
    xi = wdro.UncertainParameter(d, name="demand", samples=demand)
    order = cp.Variable(d, name="order")
    model = model_of(cp.sum(cp.maximum(2 * (order - xi), 5 * (xi - order))))
    rule = rule_of(model, 0.05, 0.1)
    x = demand.mean(axis=0)
    there = rule.slice(x, np.arange(40), STREAM)
    found = minimise_dual(there.evaluate, 3.0)
    expected = np.zeros(d)
    for i in (0, 77, 199):  # the others are the same computation
        unit = 1e-4 * np.eye(d)[i]
        up, down = (
            rule.slice(x + s * unit, np.arange(40), STREAM).evaluate(found.dual) for s in (1, -1)
        )
        expected[i] = (up.value - down.value) / 2e-4
        assert there.gradient(found.dual)[i] == pytest.approx(expected[i], abs=1e-6)


def test_held_data_differs_from_sample_to_sample(rng):
    prices = rng.uniform(1, 3, size=COUNT)
    samples = rng.uniform(0.2, 3.0, size=(COUNT, 2))
    xi = wdro.UncertainParameter(2, name="xi", samples=samples, support=Box(0, 4))
    price = wdro.UncertainParameter(name="price", samples=prices)
    x = cp.Variable(2, name="x")
    kinds = {
        "pieces": (price * cp.sum(cp.pos(xi - x)), lambda p, a, z: p * np.maximum(z - a, 0)),
        "squares": (price * cp.sum_squares(xi - x), lambda p, a, z: p * (z - a) ** 2),
        "smooth": (cp.sum(cp.logistic(price * xi - x)), lambda p, a, z: np.logaddexp(0, p * z - a)),
        "slope": (price * (x @ xi) + cp.sum(cp.pos(xi)), lambda p, a, z: p * a * z + z),
    }
    cost = SquaredEuclidean(weights={xi: 1.0, price: np.inf})
    at, dual, epsilon, sigma = np.array([0.9, 1.8]), 4.0, 0.2, 0.5
    for name, (loss, term) in kinds.items():
        rule = rule_of(model_of(loss, cost), epsilon, sigma)
        total = 0.0
        for row, p in zip(samples, prices):
            total += by_lines(
                lambda i, z, p=p, term=term: term(p, at[i], z),
                row[None],
                dual=dual,
                epsilon=epsilon,
                sigma=sigma,
                box=(0.0, 4.0),
                kinks=lambda i: (at[i],),
            )[0]
        there = rule.slice(at, np.arange(COUNT), STREAM)
        assert there.evaluate(dual).value == pytest.approx(total / COUNT, rel=1e-9), name
        expected = differences(
            lambda y, rule=rule: rule.slice(y, np.arange(COUNT), STREAM).evaluate(dual).value, at
        )
        np.testing.assert_allclose(there.gradient(dual), expected, atol=1e-6)


def test_groups_of_coordinates_go_through_their_forms(rng):
    """Two logistic terms of two coordinates each, a kink and a slope, against a product rule."""
    samples = rng.normal(size=(3, 5))
    xi = wdro.UncertainParameter(5, name="xi", samples=samples)
    x = cp.Variable(5, name="x")
    loss = (
        cp.logistic(x[:2] @ xi[:2]) + cp.logistic(2 * xi[2] - xi[3]) + cp.abs(xi[4] - x[4]) + xi @ x
    )
    model = model_of(loss)
    epsilon, sigma, dual = 0.3, 0.5, 1.2
    rule = rule_of(model, epsilon, sigma)
    assert "2 groups" in rule.describe()
    at = rng.normal(size=5)
    there = rule.slice(at, np.arange(3), STREAM)
    z = np.linspace(-6, 6, 481)
    a, b = (grid.ravel() for grid in np.meshgrid(z, z))
    total = 0.0
    for row in samples:
        for pair in ((0, 1), (2, 3)):
            move = a**2 + b**2
            u = row[pair[0]] + a, row[pair[1]] + b
            inner = at[0] * u[0] + at[1] * u[1] if pair == (0, 1) else 2 * u[0] - u[1]
            f = np.logaddexp(0, inner) + at[pair[0]] * u[0] + at[pair[1]] * u[1]
            reference = -move / (2 * sigma**2)
            tilted = logsumexp((f - dual * move) / epsilon + reference)
            total += epsilon * (tilted - logsumexp(reference))
    total /= 3
    total += by_lines(
        lambda i, z: np.abs(z - at[4]) + at[4] * z,
        samples[:, 4:],
        dual=dual,
        epsilon=epsilon,
        sigma=sigma,
        kinks=lambda i: (at[4],),
    )[0]
    assert there.evaluate(dual).value == pytest.approx(total, rel=1e-8)
    expected = differences(lambda y: rule.slice(y, np.arange(3), STREAM).evaluate(dual).value, at)
    np.testing.assert_allclose(there.gradient(dual), expected, atol=2e-6)


def test_subsets_average_to_the_whole(rng):
    samples = rng.uniform(0.2, 3.0, size=(COUNT, D))
    xi = wdro.UncertainParameter(D, name="xi", samples=samples, support=Box(0, 4))
    x = cp.Variable(D, name="x")
    for name in ("order and shortage", "squares", "logistic"):
        rule, at = rule_of(model_of(cases(x, xi)[name][0]), 0.3, 0.5), rng.normal(size=D)
        whole = rule.slice(at, np.arange(COUNT), STREAM)
        parts = [rule.slice(at, np.array([k]), STREAM) for k in range(COUNT)]
        assert whole.evaluate(1.0).value == pytest.approx(
            np.mean([p.evaluate(1.0).value for p in parts])
        )
        np.testing.assert_allclose(
            whole.gradient(1.0), np.mean([p.gradient(1.0) for p in parts], axis=0), atol=1e-9
        )


def test_a_pinned_coordinate_never_moves(rng):
    support = Box([0.0, 1.0], [4.0, 1.0])
    samples = np.column_stack([rng.uniform(0, 4, size=COUNT), np.ones(COUNT)])
    xi = wdro.UncertainParameter(2, name="xi", samples=samples, support=support)
    x = cp.Variable(2, name="x")
    rule = rule_of(model_of(cp.sum(cp.pos(xi - x))), 0.3, 0.5)
    at = np.array([1.0, 0.2])
    expected, _ = by_lines(
        lambda i, z: np.maximum(z - at[0], 0),
        samples[:, :1],
        dual=1.0,
        epsilon=0.3,
        sigma=0.5,
        box=(0.0, 4.0),
        kinks=lambda i: (at[0],),
    )
    found = rule.slice(at, np.arange(COUNT), STREAM)
    assert found.evaluate(1.0).value == pytest.approx(expected + 0.8, rel=1e-9)


def test_a_square_that_outgrows_the_cost_is_infinite():
    xi = wdro.UncertainParameter(2, name="xi", samples=[[0.4, -0.3], [1.0, 0.8]])
    x = cp.Variable(2, name="x")
    rule = rule_of(model_of(cp.sum_squares(xi - x)), 0.1, 1.0)
    there = rule.slice(np.zeros(2), np.arange(2), STREAM)
    assert there.evaluate(0.5).value == np.inf
    found = minimise_dual(there.evaluate, 0.1)
    assert np.isfinite(found.value)
    assert found.dual > 0.9


# ------------------------------------------------------------------ what applies
def test_what_is_refused_and_why(rng):
    data = rng.uniform(0.2, 0.8, size=(4, 3))
    free = wdro.UncertainParameter(3, name="free", samples=data)
    boxed = wdro.UncertainParameter(3, name="boxed", samples=data, support=Box(0, 1))
    triangle = Polyhedron(np.ones((1, 3)), [4.0])
    coupled = wdro.UncertainParameter(3, name="coupled", samples=data, support=triangle)
    x = cp.Variable(3, name="x")
    pos = cp.sum(cp.pos(free - x))
    assert separable_refusal(model_of(pos)) is None
    assert separable_refusal(model_of(pos, Norm(1))) is None
    assert "squared" in separable_refusal(model_of(pos, Norm(2)))
    assert "squared" in separable_refusal(model_of(pos, Mahalanobis(precision=np.eye(3))))
    assert "affine" in separable_refusal(model_of(free @ x))
    assert "same coordinates" in separable_refusal(model_of(cp.logistic(free @ x)))
    assert "coordinate structure" in separable_refusal(model_of(cp.sum(cp.pos(coupled - x))))
    together = separable_refusal(model_of(cp.exp(boxed @ x) + cp.sum(cp.pos(boxed - x))))
    assert "boxed[0], boxed[1]" in together
    assert "bounded support" in together


def test_the_compiler_takes_it_and_says_so(rng):
    xi = wdro.UncertainParameter(3, name="xi", samples=rng.uniform(size=(8, 3)))
    x = cp.Variable(3, name="x")
    problem = wdro.Problem(
        cp.Minimize(cp.sum(cp.maximum(x - xi, 3 * (xi - x)))),
        [x >= 0, x <= 2],
        wdro.WassersteinBall(0.1),
    )
    assert "separable (not closed_form" in problem.explain(method="smoothed")
    problem.solve(method="smoothed")
    assert problem.status == "optimal"
    assert problem.solution.diagnostics is None
    assert "3 piece by piece" in problem.solution.integration


# ------------------------------------------------------------------ taking a loss apart
def test_terms_add_up_to_the_loss(rng):
    x, xi = cp.Variable(4), cp.Parameter(4)
    matrix = rng.normal(size=(3, 4))
    losses = [
        cp.sum(cp.pos(xi - x) + cp.sum(x)) - 2 * cp.norm1(xi - x) / 3,
        cp.mean(cp.square(xi)) + cp.sum_squares(x - xi),
        rng.normal(size=4) @ cp.logistic(xi),
        cp.sum(matrix @ cp.abs(xi)) + cp.sum(cp.hstack([cp.exp(xi), cp.pos(x)])),
        cp.sum(cp.reshape(cp.square(xi), (2, 2), order="C").T @ np.ones(2)),
        cp.sum(3 + cp.square(xi[0])) + cp.max(xi),
    ]
    x.value, xi.value = rng.normal(size=4), rng.normal(size=4)
    for loss in losses:
        terms = additive_terms(loss, (xi,))
        assert sum(float(np.sum(term.value)) for term in terms) == pytest.approx(float(loss.value))


def test_dependence_contains_every_derivative(rng):
    """Which entries change when a coordinate does, by trying."""
    A = wdro.UncertainParameter((2, 3), name="A", samples=rng.normal(size=(1, 2, 3)))
    b = wdro.UncertainParameter(3, name="b", samples=rng.normal(size=(1, 3)))
    M = np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])
    expressions = [
        A @ b,
        cp.multiply(A, M + 1),
        M @ b,
        cp.pos(A.T @ M),
        cp.max(A, axis=1),
        cp.sum(cp.square(A), axis=0),
        cp.hstack([b, A[0]])[1:5],
        cp.norm(A, axis=0),
        cp.power(b, 3) + A[1],
        cp.log_sum_exp(A),
        cp.vec(A, order="F")[::2],
        cp.maximum(A, cp.reshape(b, (1, 3), order="C")),
    ]
    columns = {A: slice(0, 6), b: slice(6, 9)}
    data = rng.normal(size=9)

    def value(expression, row):
        return np.ravel(substitute(expression, {A: row[:6].reshape(2, 3), b: row[6:]}).value)

    for expression in expressions:
        pattern = dependence(expression, columns, 9).toarray()
        seen = np.zeros(pattern.shape)
        for _ in range(5):
            data = rng.normal(size=9)
            for i in range(9):
                moved = data.copy()
                moved[i] += 2.0
                seen[:, i] += value(expression, moved) != value(expression, data)
        np.testing.assert_array_equal(pattern > 0, seen > 0, err_msg=str(expression))


@settings(max_examples=30, deadline=None)
@given(
    low=st.floats(-30, 5),
    width=st.floats(1e-3, 60),
    slope=st.floats(-30, 30),
    bend=st.floats(-5, 5),
    scale=st.sampled_from([1.0, 10.0, 1000.0]),
)
def test_integrals_over_intervals(low, width, slope, bend, scale):
    def H(t):
        return scale * (np.sqrt(1 + (slope * t / 10) ** 2) + bend * np.abs(t - 1) / 10)

    curvature = "convex" if bend >= 0 else "unknown"
    found = integrate_lines(
        lambda owner, t: H(t), np.array([low]), np.array([low + width]), curvature=curvature
    )
    edges = np.unique(np.r_[np.linspace(low, low + width, 6001), np.clip(1.0, low, low + width)])
    half = 0.5 * np.diff(edges)[:, None]
    t = 0.5 * (edges[1:] + edges[:-1])[:, None] + half * NODES
    exponent = (H(t) - 0.5 * t**2 + np.log(half * WEIGHTS)).ravel()
    expected = logsumexp(exponent) - 0.5 * np.log(2 * np.pi)
    assert found.log_mass[0] == pytest.approx(expected, rel=1e-9, abs=1e-8)
    mean = np.exp(exponent - logsumexp(exponent)) @ t.ravel()
    assert (found.weights * found.points[:, 0]).sum() == pytest.approx(mean, rel=1e-6, abs=1e-6)
