"""Sums of terms along single coordinates: as vectors, and written out one by one."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from tests.references.pairwise import pairwise
from wdro_model.evaluation.worst_case import worst_case
from wdro_model.objectives import exact
from wdro_model.objectives.exact.decomposition import decompose
from wdro_model.solve.true_risk import known_robust_value

D, N = 5, 7
WEIGHTS = np.array([1.0, 2.0, 0.5, 1.5, 0.7])


# Each loss twice: as vectors (x, y, z), and as a sum over i of scalars.
def _entries(some):
    return [some[i] for i in range(D)]


LOSSES = {
    "newsvendor": (
        lambda x, y, z: cp.sum(cp.maximum(x - z, 3 * (z - x))) + cp.sum_squares(x),
        lambda x, y, z: (
            sum(cp.maximum(a - c, 3 * (c - a)) for a, c in zip(_entries(x), _entries(z)))
            + cp.sum_squares(x)
        ),
    ),
    "weighted": (
        lambda x, y, z: WEIGHTS @ cp.abs(z - x) + cp.sum(z) - 0.1 * (x @ z),
        lambda x, y, z: (
            sum(w * cp.abs(c - a) for w, a, c in zip(WEIGHTS, _entries(x), _entries(z)))
            + cp.sum(z)
            - 0.1 * (x @ z)
        ),
    ),
    "slopes that are decided": (
        lambda x, y, z: cp.sum(cp.maximum(cp.multiply(x, z), cp.multiply(y, z) - 1, -2)),
        lambda x, y, z: sum(
            cp.maximum(a * c, b * c - 1, -2)
            for a, b, c in zip(_entries(x), _entries(y), _entries(z))
        ),
    ),
    "two terms on some": (
        lambda x, y, z: cp.sum(cp.pos(x - z)) + 2 * cp.sum(cp.pos(z - y)[1:4]) + z[0],
        lambda x, y, z: (
            sum(cp.pos(a - c) for a, c in zip(_entries(x), _entries(z)))
            + 2 * sum(cp.pos(z[i] - y[i]) for i in (1, 2, 3))
            + z[0]
        ),
    ),
    "with a joint term": (
        lambda x, y, z: cp.norm1(z - x) / 2 + cp.pos(y[0] * z[0] + y[1] * z[1] - 1),
        lambda x, y, z: (
            sum(cp.abs(c - a) / 2 for a, c in zip(_entries(x), _entries(z)))
            + cp.pos(y[0] * z[0] + y[1] * z[1] - 1)
        ),
    ),
    "reversed": (
        lambda x, y, z: cp.sum(cp.maximum(x - z[::-1], 0)) + cp.sum(cp.pos(z - y)),
        lambda x, y, z: (
            sum(cp.maximum(x[i] - z[D - 1 - i], 0) for i in range(D))
            + sum(cp.pos(c - b) for b, c in zip(_entries(y), _entries(z)))
        ),
    ),
}
BALLS = {
    "squared": wdro.WassersteinBall(0.8),
    "weighted": wdro.WassersteinBall(0.8, wdro.costs.SquaredEuclidean(weights=WEIGHTS)),
    "norm1": wdro.WassersteinBall(0.9, wdro.costs.Norm(1)),
    "norm2": wdro.WassersteinBall(0.9, wdro.costs.Norm(2, weights=WEIGHTS)),
}
SUPPORTS = {
    "everywhere": wdro.supports.Everywhere(),
    "box": wdro.supports.Box(-3.0, 3.0),
    "half bounded": wdro.supports.Box(
        [-3.0, -np.inf, -3.0, -np.inf, -1.0], [np.inf, 3.0, 3.0, np.inf, 1.0]
    ),
}
CASES = pairwise(
    (loss, ball, support)
    for loss in LOSSES
    for ball, support in [
        ("squared", "everywhere"),
        ("weighted", "everywhere"),
        ("norm1", "everywhere"),
        ("norm2", "everywhere"),
        ("squared", "box"),
        ("weighted", "half bounded"),
        ("norm1", "box"),
        ("norm1", "half bounded"),
    ]
)


def built(write, ball, support):
    rng = np.random.default_rng(5)
    x, y = cp.Variable(D, name="x"), cp.Variable(D, name="y")
    data = rng.uniform(-1, 1, size=(N, D))
    z = wdro.UncertainParameter(D, name="z", samples=data, support=SUPPORTS[support])
    constraints = [cp.abs(x) <= 2, cp.abs(y) <= 2]
    return wdro.Problem(cp.Minimize(write(x, y, z)), constraints, ambiguity=BALLS[ball])


def vectors_of(problem):
    """The coordinates of maxima that are written as vectors."""
    (group,) = decompose(problem._model)
    return [list(m.coordinates[:, 0]) for m in group.maxima if m.count > 1]


def both(loss, ball, support):
    return tuple(built(write, ball, support) for write in LOSSES[loss])


@pytest.mark.parametrize(("loss", "ball", "support"), CASES)
def test_vectors_and_scalars_have_one_value(loss, ball, support):
    vector, scalar = both(loss, ball, support)
    assert vectors_of(vector)
    value = vector.solve(method="exact")
    assert value == pytest.approx(scalar.solve(method="exact"), rel=1e-6, abs=1e-6)
    assert vector.robust_value() == pytest.approx(value, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("loss", "ball", "support"), CASES)
def test_worst_case_of_vectors_attains_the_value(loss, ball, support):
    problem, scalar = both(loss, ball, support)
    rng = np.random.default_rng(8)
    values = {v.name(): rng.uniform(-1.5, 1.5, D) for v in problem.variables()}
    x = problem._model.feasible.layout.join({v: values[v.name()] for v in problem.variables()})
    same = scalar._model.feasible.layout.join({v: values[v.name()] for v in scalar.variables()})
    value = known_robust_value(problem._model, x)
    assert value == pytest.approx(known_robust_value(scalar._model, same), rel=1e-9)
    found = worst_case(problem._model, x)
    (atoms,) = found.scenarios.values()
    assert problem.uncertain_parameters()[0].support.contains(atoms).all()
    assert found.transport_cost <= problem.radius * (1 + 1e-6)
    assert found.weights @ problem._model.loss.values(x, atoms) == pytest.approx(value, abs=2e-4)


def test_a_newsvendor_of_many_products_is_a_few_atoms():
    """The size of what CVXPY sees does not grow with the number of products."""
    rng = np.random.default_rng(0)

    def atoms(products):
        x = cp.Variable(products)
        z = wdro.UncertainParameter(products, samples=rng.uniform(size=(4, products)))
        loss = cp.sum(cp.maximum(x - z, 3 * (z - x)))
        problem = wdro.Problem(cp.Minimize(loss), [cp.abs(x) <= 1], wdro.WassersteinBall(0.1))
        program = exact.counterpart(problem._model).program(problem._model)
        return _count(program.expression)

    assert atoms(400) == atoms(4)


def _count(expression):
    return 1 + sum(_count(argument) for argument in expression.args)


def test_many_products_by_hand():
    """Against the dual written by hand: (price of transport, one square) for all products."""
    rng = np.random.default_rng(1)
    data = rng.uniform(0, 10, size=(30, 60))
    x = cp.Variable(60, nonneg=True)
    z = wdro.UncertainParameter(60, samples=data, support=wdro.supports.Box(0, 10))
    ball = wdro.WassersteinBall(4.0, wdro.costs.Norm(1))
    loss = cp.sum(cp.maximum(x - z, 3 * (z - x)))
    value = wdro.Problem(cp.Minimize(loss), [x <= 20], ball).solve(method="exact")
    price, level = cp.Variable(nonneg=True), np.ones((30, 1)) @ cp.reshape(x, (1, 60), order="C")
    low = level - data + cp.multiply(data, cp.pos(1 - price) * np.ones((30, 60)))
    high = 3 * (data - level) + cp.multiply(10 - data, cp.pos(3 - price) * np.ones((30, 60)))
    risk = 4.0 * price + cp.sum(cp.maximum(low, high)) / 30
    assert value == pytest.approx(cp.Problem(cp.Minimize(risk), [x <= 20]).solve(), rel=1e-6)


@pytest.mark.parametrize("support", [None, wdro.supports.Box(0, 10), wdro.supports.Nonnegative()])
@pytest.mark.parametrize("cost", [None, wdro.costs.Norm(1)])
def test_a_python_sum_over_products_is_gathered(support, cost):
    """Ten scalar maxima, with slopes that are numbers and slopes that are decided."""
    data = np.random.default_rng(2).uniform(0, 10, size=(12, 10))
    x, ball = cp.Variable(10, nonneg=True), wdro.WassersteinBall(4.0, cost)
    z = wdro.UncertainParameter(10, samples=data, support=support)
    vector = cp.sum(cp.maximum(x - z, 3 * (z - x), cp.multiply(0.1 * x, z) - 5))
    scalar = sum(
        cp.maximum(x[i] - z[i], 3 * (z[i] - x[i]), 0.1 * x[i] * z[i] - 5) for i in range(10)
    )
    problems = [wdro.Problem(cp.Minimize(f), [x <= 20], ball) for f in (vector, scalar)]
    for problem in problems:
        (group,) = decompose(problem._model)
        assert [maxima.count for maxima in group.maxima] == [10]
    values = [problem.solve(method="exact") for problem in problems]
    assert values[1] == pytest.approx(values[0], rel=1e-6)
    assert problems[1].robust_value() == pytest.approx(values[1], rel=1e-6)


def test_lines_of_several_parameters_and_shapes():
    rng = np.random.default_rng(3)
    demand = wdro.UncertainParameter((2, 3), name="demand", samples=rng.uniform(0, 5, (9, 2, 3)))
    price = wdro.UncertainParameter(2, name="price", samples=rng.uniform(1, 2, (9, 2)))
    x = cp.Variable((2, 3), nonneg=True)
    loss = cp.sum(cp.maximum(x - demand, 2 * (demand - x))) + cp.sum(cp.abs(price - 1.5)) + price[0]
    problem = wdro.Problem(cp.Minimize(loss), [x <= 9], wdro.WassersteinBall(0.5))
    assert sorted(len(where) for where in vectors_of(problem)) == [2, 6]
    value = problem.solve(method="exact")
    terms = [
        cp.maximum(x[i, j] - demand[i, j], 2 * (demand[i, j] - x[i, j]))
        for i in range(2)
        for j in range(3)
    ]
    written = sum(terms) + cp.abs(price[0] - 1.5) + cp.abs(price[1] - 1.5) + price[0]
    again = wdro.Problem(cp.Minimize(written), [x <= 9], wdro.WassersteinBall(0.5))
    assert value == pytest.approx(again.solve(method="exact"), rel=1e-6)


def test_coordinates_held_fixed_are_no_lines():
    rng = np.random.default_rng(4)
    z = wdro.UncertainParameter(3, samples=rng.normal(size=(6, 3)))
    x = cp.Variable(3)
    cost = wdro.costs.SquaredEuclidean(weights=[np.inf, 1.0, 1.0])
    problem = wdro.Problem(
        cp.Minimize(cp.sum(cp.abs(x - z))), [cp.abs(x) <= 2], wdro.WassersteinBall(0.4, cost)
    )
    assert vectors_of(problem) == [[1, 2]]
    value = problem.solve(method="exact")
    found = problem.worst_case()
    np.testing.assert_array_equal(found.scenarios[z][:, 0], z.samples[found.source, 0])
    assert found.expected_loss == pytest.approx(value, rel=1e-5)
