"""Simplices, boxes, balls and hulls: formulas against linear programs and all vertices."""

from itertools import product

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from tests.sets.fuzzing import rounds_well, travels
from wdro_model.errors import InfeasibleError
from wdro_model.sets import Ball, Box, Hull, Simplex, check

RNG = np.random.default_rng(0)
LOWER, UPPER = np.array([-1.0, 0.0, 2.0]), np.array([1.0, 0.5, 2.0])
CENTER = np.array([1.0, -2.0, 0.5])
SIGNS = np.array(list(product([-1.0, 1.0], repeat=3)))
CASES = {
    "simplex": (Simplex(4), np.eye(4)),
    "simplex of 3": (Simplex(4, total=3.0), 3 * np.eye(4)),
    "at most": (Simplex(3, 2.0, at_most=True), np.vstack([2 * np.eye(3), np.zeros(3)])),
    "one number": (Simplex(1), np.ones((1, 1))),
    "box": (Box(LOWER, UPPER), np.array(list(product(*zip(LOWER, UPPER))))),
    "cross": (Ball(3, 1, 2.0, CENTER), np.vstack([2 * np.eye(3), -2 * np.eye(3)]) + CENTER),
    "cube": (Ball(3, np.inf, 0.5, CENTER), CENTER + 0.5 * SIGNS),
    "hull": (Hull(SIGNS[:5] + CENTER), SIGNS[:5] + CENTER),
    "binary hull": (Hull((SIGNS[:5] + 1) / 2), (SIGNS[:5] + 1) / 2),
}


def test_the_euclidean_ball():
    ball = Ball((2, 3), 2, 1.5, center=1.0)
    assert not ball.is_polytope
    assert check(ball, directions=20).passed
    travels(ball)
    for _ in range(5):
        for size in (1e-200, 1.0, 1e200):
            direction = size * RNG.standard_normal(6)
            expected = 1.0 - 1.5 * direction / size / np.linalg.norm(direction / size)
            np.testing.assert_allclose(ball.minimize(direction), expected, atol=1e-12)
    assert np.linalg.norm(ball.minimize(np.zeros(6)) - 1.0) == pytest.approx(1.5)
    assert ball.table(np.arange(6.0)).shape == (2, 3)


@pytest.mark.parametrize("case", ["simplex", "simplex of 3", "at most", "box", "cube"])
def test_bounds_are_met_as_by_a_linear_program(case):
    feasible, _ = CASES[case]
    rng, n = np.random.default_rng(1), feasible.dimension
    own_lower, own_upper = feasible.bounds
    infeasible = 0
    for trial in range(40):
        width = own_upper - own_lower
        lower = own_lower + width * rng.uniform(-0.2, 0.4, n)
        upper = lower + width * rng.uniform(0, 0.9, n)
        direction = rng.integers(-2, 3, n) * 1.0 if trial % 2 else rng.standard_normal(n)
        x = cp.Variable(n)
        form = [*feasible.constraints(x), x >= lower, x <= upper]
        problem = cp.Problem(cp.Minimize(direction @ x), form)
        problem.solve(solver=cp.HIGHS)
        if problem.status == cp.INFEASIBLE:
            infeasible += 1
            with pytest.raises(InfeasibleError):
                feasible.minimize(direction, lower, upper)
            continue
        point = feasible.minimize(direction, lower=lower, upper=upper)
        assert direction @ point == pytest.approx(problem.value, abs=1e-6)
        x.value = point
        assert all(constraint.violation().max() <= 1e-9 for constraint in form)
        only_upper = feasible.minimize(direction, upper=own_upper)
        assert direction @ only_upper == pytest.approx(direction @ feasible.minimize(direction))
    assert infeasible < 30


def test_points_of_a_binary_hull_are_chosen_among_within_bounds():
    hull, points = CASES["binary hull"]
    rounds_well(points, hull)
    vertex = hull.minimize([1.0, 1.0, 1.0], lower=[0, 1, 0])
    assert vertex.tolist() == [0, 1, 0]
    with pytest.raises(InfeasibleError, match="none of the points"):
        hull.minimize(np.ones(3), lower=np.ones(3))


def test_hulls_of_whole_points_round_where_asked():
    points = np.array([[0, 2], [3, 1], [4, 4.0]])
    rounds_well(points, Hull(points, integral=True))
    with pytest.raises(ValueError, match="cannot be rounded"):
        Hull(points).round([1.0, 1.0])


def test_a_hull_keeps_its_own_points():
    points = np.eye(2)
    hull = Hull(points)
    points[:] = 7.0
    vertex = hull.minimize([1.0, 0.0])
    vertex[:] = 9.0
    assert hull.minimize([1.0, 0.0]).tolist() == [0.0, 1.0]


def test_a_robust_portfolio_on_the_simplex():
    rng = np.random.default_rng(0)
    data = rng.normal(0.1, 0.3, size=(15, 4))
    found = []
    for form in (lambda x: [wdro.In(x, Simplex(4))], lambda x: [x >= 0, cp.sum(x) == 1]):
        x = cp.Variable(4)
        returns = wdro.UncertainParameter(4, samples=data)
        problem = wdro.Problem(
            cp.Minimize(-returns @ x), form(x), ambiguity=wdro.WassersteinBall(0.04)
        )
        found.append(problem.solve())
    assert found[0] == pytest.approx(found[1], abs=1e-5)


def test_boxes_take_matrices():
    box = Box(np.zeros((2, 3)), 1)
    assert box.dimension == 6
    assert box.table(box.minimize(-np.ones(6))).shape == (2, 3)
