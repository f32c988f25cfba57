"""Each set as a constraint of a problem, against its CVXPY form in CVXPY alone."""

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model import sets

SETS = {
    "simplex": lambda: sets.Simplex(5),
    "box": lambda: sets.Box(np.zeros(5), 0.5),
    "ball 1": lambda: sets.Ball(5, 1, 1.0),
    "ball 2": lambda: sets.Ball(5, 2, 1.0),
    "ball inf": lambda: sets.Ball((2, 3), np.inf, 0.3),
    "hull": lambda: sets.Hull(np.random.default_rng(5).standard_normal((8, 4))),
    "subsets": lambda: sets.Subsets(6, 2, mandatory=[3]),
    "assignment": lambda: sets.Assignment(3, 4, forbidden=[(0, 0)]),
    "knapsack": lambda: sets.Knapsack([3, 4, 5, 6, 7], 12),
    "matroid": lambda: sets.Matroid(5, lambda s: len(s) <= 2 and not s >= {0, 1}, bases=True),
    "partition": lambda: sets.Partition([[0, 1, 2], [3, 4]], [2, 1]),
    "base polytope": lambda: sets.BasePolytope(lambda s: len(s) ** 0.5, 5),
    "nuclear ball": lambda: sets.NuclearBall((3, 4), 1.0),
    "spectraplex": lambda: sets.Spectraplex(3),
}


@pytest.mark.parametrize("name", SETS)
def test_a_solve_over_the_oracle_is_that_over_the_form(name):
    feasible, rng = SETS[name](), np.random.default_rng(0)
    n = feasible.dimension
    data = rng.normal(0.3, 0.5, size=(6, n))
    x = cp.Variable(n)
    target = wdro.UncertainParameter(n, samples=data)
    problem = wdro.Problem(
        cp.Minimize(cp.sum_squares(x - target)),
        [wdro.In(x, feasible)],
        ambiguity=wdro.WassersteinBall(0.1),
    )
    value = problem.solve(method="erm", solver=wdro.solvers.FrankWolfe())
    gap = problem.solution.gap
    y = cp.Variable(n)
    spread = np.sum((data - data.mean(axis=0)) ** 2) / len(data)
    form = cp.Problem(
        cp.Minimize(cp.sum_squares(y - data.mean(axis=0)) + spread), feasible.constraints(y)
    )
    least = form.solve(solver=cp.CLARABEL)
    assert least - 1e-6 <= value <= least + gap + 1e-6
    assert value == pytest.approx(least, rel=0.01)
    assert feasible.contains(x.value, tolerance=1e-5)


def test_further_constraints_may_stand_beside_a_set():
    x = cp.Variable(4)
    price = wdro.UncertainParameter(4, samples=np.arange(12.0).reshape(3, 4))
    problem = wdro.Problem(
        cp.Minimize(price @ x),
        [wdro.In(x, sets.Subsets(4, 2)), x[0] <= 0.25],
        ambiguity=wdro.WassersteinBall(0.0),
    )
    problem.solve(method="erm")
    np.testing.assert_allclose(x.value, [0.25, 1, 0.75, 0], atol=1e-5)


def test_a_backend_of_the_users_own_holds_pairs_by_prices():
    class Table(sets.Assignment):
        pass

    def factory(table):
        plain = sets.Assignment(*table.shape)
        return lambda direction: plain.minimize(direction)

    sets.register_backend(Table, "mine", factory)
    costs = np.random.default_rng(0).standard_normal(12)
    held = {"forbidden": [(0, 1), (2, 2)], "mandatory": [(1, 3)]}
    mine, known = Table(3, 4, backend="mine", **held), sets.Assignment(3, 4, **held)
    np.testing.assert_array_equal(mine.minimize(costs), known.minimize(costs))
    assert mine.minimize_with_slack(costs)[1] == 0.0


@pytest.mark.parametrize(
    "feasible",
    [
        sets.Box(np.zeros(3), 1.5),
        sets.Box(np.zeros(3), [1, 1, 2]),
        sets.Box([0, -1, 0], 1.0),
        sets.Simplex(3, 2.5, at_most=True),
        sets.Simplex(3, 2.0, at_most=True),
        sets.Flow(nx.DiGraph([(0, 1), (1, 0), (0, 2)]), {0: 1, 2: -1}, capacity=2),
    ],
    ids=repr,
)
def test_a_boolean_variable_needs_a_set_of_zeros_and_ones(feasible):
    """The point of least sum may be one of zeros and ones where others are not."""
    x = cp.Variable(3, boolean=True, name="x")
    z = wdro.UncertainParameter(3, samples=np.random.default_rng(1).normal(-1, 0.3, size=(6, 3)))
    with pytest.raises(ValueError, match=r"'x' is declared boolean .* other entries than 0 and 1"):
        wdro.Problem(cp.Minimize(z @ x), [wdro.In(x, feasible)], wdro.WassersteinBall(0.05))


@pytest.mark.parametrize("feasible", [sets.Box(np.zeros(3), 0.5), sets.Simplex(3, 0.5, True)])
def test_a_set_with_fractional_vertices_is_not_rounded_to(feasible):
    with pytest.raises(ValueError, match="cannot be rounded to"):
        feasible.check_rounds()


@pytest.mark.parametrize(
    "feasible",
    [
        sets.Box(np.zeros(3), 1.0),
        sets.Simplex(3),
        sets.Flow(nx.DiGraph([(0, 1), (1, 2), (0, 2)]), {0: 1, 2: -1}, capacity=2),
    ],
    ids=repr,
)
def test_wide_bounds_that_no_point_reaches_are_boolean_all_the_same(feasible):
    x = cp.Variable(3, boolean=True, name="x")
    z = wdro.UncertainParameter(3, samples=np.random.default_rng(1).normal(-1, 0.3, size=(6, 3)))
    problem = wdro.Problem(cp.Minimize(z @ x), [wdro.In(x, feasible)], wdro.WassersteinBall(0.05))
    problem.solve()
    assert set(x.value) <= {0.0, 1.0}
