"""The value of an exact solve is that of its decision, over mixed supports and scales."""

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro


def draw_support(rng, data, unit):
    kind, d = rng.integers(4), data.shape[1]
    if kind == 1:
        above = rng.uniform(0, 1, d) * unit
        return wdro.supports.Box(data.min(axis=0) - 0.1 * unit, data.max(axis=0) + above)
    if kind == 2:
        rows = rng.normal(size=(2, d))
        return wdro.supports.Polyhedron(rows, (data @ rows.T).max(axis=0) + 0.2 * unit)
    return wdro.supports.Everywhere()


def draw_problem(seed):
    """Two or three parameters in units from 1e-3 to 1e4, under one cost."""
    rng = np.random.default_rng([10, seed])
    size, x = int(rng.integers(1, 10)), cp.Variable(2, name="x")
    first = second = 0.0
    for k in range(int(rng.integers(2, 4))):
        d, unit = int(rng.integers(1, 3)), float(10 ** rng.uniform(-3, 4))
        data = unit * rng.normal(size=(size, d))
        support = draw_support(rng, data, unit)
        z = wdro.UncertainParameter(d, f"z{k}", samples=data, support=support)
        first = first + z @ (rng.normal(size=(d, 2)) @ x + rng.normal(size=d))
        second = second + z @ (rng.normal(size=(d, 2)) @ x)
    risks = [first, cp.maximum(first, second), cp.pos(first), wdro.cvar(first, 0.8)]
    costs = [wdro.costs.Norm(p) for p in (1, 2, np.inf)] + [wdro.costs.SquaredEuclidean()]
    ball = wdro.WassersteinBall(float(10 ** rng.uniform(-3, 2)), costs[rng.integers(4)])
    certain = [[cp.sum(x) == 1, x >= 0], [x >= -1, x <= 2]][rng.integers(2)]
    return wdro.Problem(cp.Minimize(risks[rng.integers(4)]), certain, ball)


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize(
    "start",
    [
        0,
        25,
        # One of these models has scales for which the adversary's program is refused as too mixed.
        pytest.param(50, marks=pytest.mark.xfail(raises=cp.SolverError, strict=False)),
        75,
    ],
)
def test_the_value_is_that_of_the_decision(start):
    for seed in range(start, start + 25):
        problem = draw_problem(seed)
        value = problem.solve(method="exact")
        known = problem.robust_value()
        difference = abs(value - known)
        assert difference <= 1e-6 * abs(known) + 1e-9 or (
            problem.status != "optimal" and difference <= problem.solution.gap
        ), seed
