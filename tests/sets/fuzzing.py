"""Sets held against all of their points, for directions and held coordinates of many kinds."""

import pickle
from itertools import product

import cvxpy as cp
import numpy as np
import pytest

from wdro_model.errors import InfeasibleError

DIRECTIONS = {
    "random": lambda rng, n: rng.standard_normal(n),
    "positive": lambda rng, n: rng.uniform(0, 1, n),
    "negative": lambda rng, n: -rng.uniform(0, 1, n),
    "zero": lambda rng, n: np.zeros(n),
    "equal": lambda rng, n: np.full(n, -3.0),
    "ties and zeros": lambda rng, n: rng.integers(-1, 2, n).astype(float),
    "tiny": lambda rng, n: 1e-12 * rng.standard_normal(n),
    "huge": lambda rng, n: 1e12 * rng.standard_normal(n),
    "of all sizes": lambda rng, n: rng.standard_normal(n) * 10.0 ** rng.integers(-6, 7, n),
}


def all_choices(n, member):
    """The 0/1 vectors for which member(vector) holds, one a row."""
    rows = np.array(list(product([0.0, 1.0], repeat=n)))
    return np.array([row for row in rows if member(row)])


def is_row(vertex, points):
    return bool(np.any(np.abs(points - vertex).max(axis=1) == 0))


def agrees(points, feasible, seed=0, rounds=2, exact=True):
    """The oracle's answers are points, and no point is cheaper."""
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        for kind, draw in DIRECTIONS.items():
            direction = draw(rng, feasible.dimension)
            if feasible.nonnegative_directions:
                direction = np.abs(direction)
            least = (points @ direction).min()
            rounding = 1e-12 * np.abs(direction).sum() * max(1.0, np.abs(points).max())
            vertex, slack = feasible.minimize_with_slack(direction)
            again = feasible.minimize(direction)
            for answer in (vertex, again):
                if exact:
                    assert is_row(answer, points), (kind, answer)
                assert direction @ answer <= least + slack + rounding, (kind, direction)
            assert direction @ vertex - slack <= least + rounding, (kind, "the bound is no bound")
            assert slack <= 1e-6 * np.abs(direction).sum(), kind


def agrees_when_held(points, feasible, seed=0, trials=40):
    """The same with random coordinates held, and an InfeasibleError where no point is left."""
    rng = np.random.default_rng(seed)
    n, infeasible = feasible.dimension, 0
    kinds = list(DIRECTIONS.values())
    for trial in range(trials):
        direction = kinds[trial % len(kinds)](rng, n)
        if feasible.nonnegative_directions:
            direction = np.abs(direction)
        held = rng.choice(3, n, p=[0.7, 0.18, 0.12])
        lower, upper = (held == 2).astype(float), (held != 1).astype(float)
        left = points[np.all((points >= lower) & (points <= upper), axis=1)]
        if not left.size:
            infeasible += 1
            with pytest.raises(InfeasibleError):
                feasible.minimize(direction, lower, upper)
            continue
        vertex = feasible.minimize(direction, lower=lower, upper=upper)
        assert is_row(vertex, left)
        rounding = 1e-9 * np.abs(direction).sum()
        assert direction @ vertex <= (left @ direction).min() + rounding
        vertex, slack = feasible.minimize_with_slack(direction, lower, upper)
        assert is_row(vertex, left)
        assert direction @ vertex - slack <= (left @ direction).min() + 1e-3 * rounding
    assert infeasible < trials


def is_hull(points, feasible, seed=1, directions=8):
    """The CVXPY form has the minima of the points, and contains them."""
    x, slope = cp.Variable(feasible.dimension), cp.Parameter(feasible.dimension)
    problem = cp.Problem(cp.Minimize(slope @ x), feasible.constraints(x))
    rng = np.random.default_rng(seed)
    size = max(1.0, np.abs(points).max())
    for _ in range(directions):
        slope.value = rng.standard_normal(feasible.dimension)
        problem.solve(solver=cp.CLARABEL)
        assert problem.value == pytest.approx((points @ slope.value).min(), abs=1e-6 * size)
    weights = rng.dirichlet(np.ones(len(points)))
    assert feasible.contains(weights @ points, tolerance=1e-5)


def travels(feasible, seed=2):
    """A copy from another process gives the same answers."""
    twin = pickle.loads(pickle.dumps(feasible))
    rng = np.random.default_rng(seed)
    for _ in range(3):
        direction = np.abs(rng.standard_normal(feasible.dimension))
        np.testing.assert_array_equal(twin.minimize(direction), feasible.minimize(direction))
    assert twin.backend == feasible.backend
    assert twin.describe() == feasible.describe()


def rounds_well(points, feasible, seed=3):
    """Rounding finds the nearest choice, and with a value one that no neighbour beats."""
    rng = np.random.default_rng(seed)
    for _ in range(5):
        x = rng.dirichlet(np.ones(len(points))) @ points
        rounded = feasible.round(x)
        assert is_row(rounded, points)
        nearest = np.linalg.norm(points - x, axis=1).min()
        assert np.linalg.norm(rounded - x) == pytest.approx(nearest)
        target = rng.uniform(0, 1, feasible.dimension)
        value = lambda v, target=target: float(np.sum((v - target) ** 4))  # noqa: E731
        steep = lambda v, value=value: value(v)  # noqa: E731
        steep.gradient = lambda v, target=target: 4 * (v - target) ** 3
        for judge in (value, steep):
            best = feasible.round(x, value=judge)
            assert is_row(best, points)
            assert value(best) <= value(rounded) + 1e-12
            others = list(feasible.neighbours(best, best))
            assert all(is_row(other, points) for other in others)
            assert all(value(other) >= value(best) for other in others)
