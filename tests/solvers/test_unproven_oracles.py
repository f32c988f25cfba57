"""Oracles that stop before they have a proof: what they lack is in the bound of the decision."""

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from wdro_model.sets import ConvexSet, FeasibleSet
from wdro_model.sets.deadlines import OutOfTime, deadline
from wdro_model.solvers import relaxations
from wdro_model.solvers.parametric import BottleneckRisk, ChoiceRisk, ParametricSearch


class Hasty(FeasibleSet):
    """Some 0/1 points, of which any that is good enough is returned, with what it lacks."""

    def __init__(self, points, rng):
        self.points, self.rng = points, rng
        self.dimension = points.shape[1]

    def minimize_with_slack(self, direction, lower=None, upper=None):
        allowed = self.points if upper is None else self.points[(self.points <= upper).all(axis=1)]
        if not len(allowed):
            raise wdro.InfeasibleError("no point is left; allow more.")
        values = allowed @ direction
        good = np.flatnonzero(values <= values.min() + self.rng.exponential() * np.ptp(values))
        chosen = int(self.rng.choice(good))
        return allowed[chosen], float(values[chosen] - values.min())


def hasty(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 9))
    points = np.unique(rng.integers(0, 2, size=(30, n)), axis=0).astype(float)
    return Hasty(points, rng), rng


@pytest.mark.parametrize("seed", range(60))
def test_the_bound_of_a_search_along_one_parameter_holds(seed):
    chosen, rng = hasty(seed)
    n, factor = chosen.dimension, float(rng.choice([0.1, 1.0, 5.0]))
    costs, spread = rng.normal(size=n), rng.uniform(0, 2, n)
    base = float(rng.choice([0.0, 1.0]))
    risk = ChoiceRisk(costs, 0.3, spread, base, lambda u: factor * np.sqrt(u))
    found = ParametricSearch(chosen, risk).run()
    best = min(risk.value(x) for x in chosen.points)
    assert found.lower_bound <= best + 1e-12
    assert best <= found.value + 1e-12
    assert found.value == pytest.approx(risk.value(found.x))


@pytest.mark.parametrize("seed", range(40))
def test_the_bound_of_a_search_below_heights_holds(seed):
    chosen, rng = hasty(seed)
    n = chosen.dimension
    risk = BottleneckRisk(rng.normal(size=n), -0.1, rng.uniform(0, 2, n), 1.5)
    found = risk.search(chosen)
    best = min(risk.value(x) for x in chosen.points)
    assert found.lower_bound <= best + 1e-12 <= found.value + 2e-12


def knapsack(n=35):
    rng = np.random.default_rng(0)
    x = cp.Variable(n, boolean=True)
    rooms = rng.uniform(1, 10, (5, n))
    return x, [rooms @ x <= rooms.sum(axis=1) / 3], rng.uniform(1, 5, n)


def test_an_integer_program_out_of_time_gives_its_best_point_and_what_it_lacks():
    x, constraints, worth = knapsack()
    items = ConvexSet(constraints, x)
    optimum = float(-worth @ items.minimize(-worth))
    for seconds in (0.05, 0.2, 1.0, 10.0):
        try:
            with deadline(seconds):
                point, slack = ConvexSet(constraints, x).minimize_with_slack(-worth)
        except OutOfTime:  # not even one point: a slow machine
            continue
        value = float(-worth @ point)
        assert items.contains(point)
        assert value - slack <= optimum + 1e-9 <= value + 2e-9
        return
    pytest.fail("no point in ten seconds")


def test_a_time_limit_in_the_first_integer_program_leaves_a_decision_with_a_bound():
    x, constraints, worth = knapsack()
    samples = worth * np.random.default_rng(1).lognormal(0, 0.2, size=(20, worth.size))
    value = wdro.UncertainParameter(worth.size, samples=samples)
    problem = wdro.Problem(cp.Maximize(value @ x), constraints, wdro.WassersteinBall(1.0))
    best = problem.solve()
    for seconds in (0.3, 1.0, 10.0):
        try:
            problem.solve(time_limit=seconds)
        except OutOfTime:
            continue
        solution = problem.solution
        assert set(np.unique(x.value)) <= {0.0, 1.0}
        assert solution.value <= best + 1e-6
        assert solution.upper_bound >= best - 1e-6
        return
    pytest.fail("no decision in ten seconds")


def test_a_quadratic_choice_without_time_for_its_form_is_some_choice(monkeypatch):
    limits = replace(relaxations.LIMITS, hessian_grace=0.0)
    monkeypatch.setattr(relaxations, "LIMITS", limits)
    instance = wdro.datasets.quadratic_tree(12, 30, seed=0)
    x = cp.Variable(30, boolean=True)
    costs = wdro.UncertainParameter((30, 30), samples=instance.training.sample(5, seed=1))
    tree = wdro.sets.SpanningTree(instance.graph)
    problem = wdro.Problem(
        cp.Minimize(wdro.quadratic_form(x, costs)), [wdro.In(x, tree)], wdro.WassersteinBall(1.0)
    )
    problem.solve(time_limit=1e-9)
    assert problem.status == "user_limit"
    assert x.value.sum() == 11
    assert tree.contains(x.value)
    assert problem.solution.lower_bound is None
    assert problem.solution.gap == np.inf
    assert problem.value == pytest.approx(problem.robust_value())
