"""Uncertain constraints that no decision meets, and some that are met: right, or refused."""

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from tests.references.infeasible_models import draw_model

SEEDS = range(120)


@pytest.mark.parametrize("start", range(0, len(SEEDS), 20))
def test_infeasible_models_are_refused_and_feasible_ones_are_right(start):
    for seed in SEEDS[start : start + 20]:
        drawn = draw_model(seed)
        if not drawn.feasible:
            with pytest.raises(wdro.InfeasibleError):
                drawn.problem.solve()
            continue
        value = drawn.problem.solve()
        assert drawn.problem.status == "optimal", seed
        assert value == pytest.approx(drawn.value, rel=5e-6, abs=5e-6), seed
        assert drawn.risk_of(drawn.x.value) < 5e-6, seed


def test_a_constraint_out_of_reach_by_one_hundredth():
    """The least CVaR over the simplex is 1.2324."""
    x = cp.Variable(2, name="x")
    support = wdro.supports.Polyhedron([[1.02], [0.53]], [0.8222, 0.3233])
    samples = np.array([[0.33], [-1.51], [-0.53], [-1.03], [0.61]])
    z = wdro.UncertainParameter(1, "z", samples=samples, support=support)
    loss = (
        -0.32
        + np.array([1.54, 1.19]) @ x
        + z @ (np.array([-0.16]) + np.array([[-0.44, -0.08]]) @ x)
    )
    ball = wdro.WassersteinBall(0.001, wdro.costs.Norm(1))
    certain = [cp.sum(x) == 1, x >= 0]
    bound = wdro.cvar(loss, 0.9) <= 1.2224
    problem = wdro.Problem(cp.Minimize(x[0] + cp.sum(z)), [*certain, bound], ball)
    with pytest.raises(wdro.InfeasibleError, match="cannot be met"):
        problem.solve()


def test_small_squared_radii_of_sums_of_cvars():
    """The price of such a radius is in the hundreds: it has a unit of its own."""
    for seed in range(40):
        rng = np.random.default_rng([14, seed])
        n, size = int(rng.integers(2, 4)), int(rng.integers(2, 12))
        x = cp.Variable(n, nonneg=True, name="x")
        xi = wdro.UncertainParameter(n, samples=rng.normal(0.5, 1, size=(size, n)))
        more = rng.normal(size=(n, n))
        first, second = rng.choice([0.5, 0.8, 0.9, 0.95], 2)
        largest = cp.maximum(xi @ (more @ x) + 1, -xi @ x + 0.3)
        objective = wdro.cvar(xi @ x, first) + wdro.cvar(largest, second)
        ball = wdro.WassersteinBall(float(rng.choice([1e-6, 2e-6, 5e-6, 1e-5])))
        problem = wdro.Problem(cp.Minimize(objective), [cp.sum(x) == 1], ball)
        value = problem.solve()
        assert problem.status == "optimal", seed
        assert value == pytest.approx(problem.robust_value(), rel=1e-6), seed
