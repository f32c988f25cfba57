"""Frank-Wolfe over traffic flows, towards equilibria: the same minima in a few iterations."""

from __future__ import annotations

import copy
import pickle

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from tests.traffic.test_bushes import random_network
from wdro_model.sets import TrafficFlows
from wdro_model.solvers import FrankWolfe

pytest.importorskip("numba")


@pytest.fixture(scope="module", name="scenarios")
def _scenarios():
    return wdro.datasets.training_scenarios(wdro.datasets.sioux_falls())


def robust(scenarios, flows, count, radius):
    x = cp.Variable(flows.dimension)
    loss = wdro.traffic.beckmann(
        x, scenarios.network.capacity, *scenarios.parameters(count, seed=0)
    )
    cost = wdro.costs.SquaredEuclidean(weights="standardize")
    ball = wdro.WassersteinBall(radius, cost)
    return x, wdro.Problem(cp.Minimize(loss / 1e5), [wdro.In(x, flows)], ambiguity=ball)


def test_the_mean_over_scenarios_is_that_of_conjugate_directions(scenarios):
    flows = TrafficFlows(scenarios.network, "numba")
    _, problem = robust(scenarios, flows, 30, 1.0)
    problem.solve(method="erm", solver=FrankWolfe(gap=1e-8))
    found = problem.solution
    assert found.status == "optimal"
    assert found.iterations < 30
    assert "equilibrium directions" in found.solver
    other = FrankWolfe(gap=1e-4, direction="biconjugate")
    problem.solve(method="erm", solver=other)
    assert problem.solution.lower_bound <= found.value <= problem.solution.value * (1 + 1e-9)


def test_the_mean_of_scenarios_is_an_equilibrium_of_mean_costs(scenarios):
    """Wardrop at the mean times over the scenarios, by NumPy and shortest costs by SciPy."""
    network = scenarios.network
    flows = TrafficFlows(network, "numba")
    drawn = scenarios.sample(20, seed=3)
    x = cp.Variable(flows.dimension)
    parameters = scenarios.parameters(20, seed=3)
    loss = wdro.traffic.beckmann(x, network.capacity, *parameters)
    problem = wdro.Problem(cp.Minimize(loss), [wdro.In(x, flows)])
    problem.solve(method="erm", solver=FrankWolfe(gap=1e-9))
    assert len(drawn.as_test(*parameters)) == 3
    time, alpha, beta = (np.asarray(p.samples) for p in parameters)
    alpha, beta = alpha.reshape(20, -1), beta.reshape(20, -1)
    times = np.mean(time * (1 + alpha * (x.value / network.capacity) ** beta), axis=0)
    costs = TrafficFlows(network, "scipy").shortest_costs(times)
    moving = ~np.eye(network.n_zones, dtype=bool)
    least = float((network.demand * costs)[moving].sum())
    assert times @ x.value == pytest.approx(least, rel=1e-8)


@pytest.mark.parametrize("method", ["exact", "smoothed"])
def test_robust_flows_are_those_of_conjugate_directions(scenarios, method):
    network = scenarios.network
    values = {}
    for direction in ("auto", "biconjugate"):
        flows = TrafficFlows(network, "numba")
        if method == "smoothed":
            x, problem = robust(scenarios, flows, 5, 5.0)
        else:
            x = cp.Variable(flows.dimension)
            spread = np.random.default_rng(0).uniform(0.8, 1.2, (10, network.n_arcs))
            time = wdro.UncertainParameter(
                network.n_arcs, samples=spread * network.free_flow_time, nonneg=True
            )
            loss = wdro.traffic.beckmann(x, network.capacity, time, network.b, network.power)
            ball = wdro.WassersteinBall(1.0)
            problem = wdro.Problem(cp.Minimize(loss / 1e5), [wdro.In(x, flows)], ambiguity=ball)
        problem.solve(method=method, solver=FrankWolfe(gap=1e-3, direction=direction))
        assert problem.solution.status == "optimal"
        values[direction] = problem.solution
    assert values["auto"].lower_bound <= values["biconjugate"].value
    assert values["biconjugate"].lower_bound <= values["auto"].value
    assert values["auto"].iterations < values["biconjugate"].iterations


def test_other_objectives_over_flows_are_minimised():
    """Gradients that are not costs of roads: squares, and squares of sums."""
    for seed in range(10):
        network = random_network(seed)
        flows = TrafficFlows(network, "numba")
        x = cp.Variable(network.n_arcs)
        loss = cp.sum_squares(x) + 0.01 * cp.square(cp.sum(x)) + np.ones(network.n_arcs) @ x
        problem = wdro.Problem(cp.Minimize(loss), [wdro.In(x, flows)])
        problem.solve(method="erm", solver=FrankWolfe(gap=1e-5))
        found = problem.solution
        twin = wdro.Problem(cp.Minimize(loss), [wdro.In(x, TrafficFlows(network, "scipy"))])
        twin.solve(method="erm", solver=FrankWolfe(gap=1e-3, direction="biconjugate"))
        assert found.status == "optimal"
        assert twin.solution.lower_bound <= found.value * (1 + 1e-9) + 1e-12
        assert found.lower_bound <= twin.solution.value * (1 + 1e-9) + 1e-12


def test_a_solve_does_not_depend_on_those_before(scenarios):
    flows = TrafficFlows(scenarios.network, "numba")
    values = []
    for _ in range(2):
        x, problem = robust(scenarios, flows, 5, 2.0)
        problem.solve(method="smoothed", solver=FrankWolfe(gap=1e-3))
        values.append(x.value)
    assert np.array_equal(*values)


def test_sets_with_directions_of_their_own_are_copied_and_sent(scenarios):
    flows = TrafficFlows(scenarios.network, "numba")
    _, problem = robust(scenarios, flows, 5, 2.0)
    problem.solve(method="erm", solver=FrankWolfe(gap=1e-3))
    for twin in (copy.deepcopy(flows), pickle.loads(pickle.dumps(flows))):
        assert str(twin.own_direction) == "equilibrium"
    assert flows.with_backend("scipy").own_direction is None


def test_explain_names_the_directions(scenarios):
    flows = TrafficFlows(scenarios.network, "numba")
    _, problem = robust(scenarios, flows, 5, 2.0)
    assert "equilibrium directions" in problem.explain(method="erm")
    flows = TrafficFlows(scenarios.network, "scipy")
    _, problem = robust(scenarios, flows, 5, 2.0)
    assert "oracle newton directions" in problem.explain(method="erm")


def test_a_time_limit_ends_the_search_for_an_equilibrium(scenarios):
    flows = TrafficFlows(scenarios.network, "numba")
    _, problem = robust(scenarios, flows, 5, 2.0)
    problem.solve(method="erm", solver=FrankWolfe(gap=1e-12), time_limit=1e-3)
    assert problem.solution.status in ("user_limit", "optimal")


def test_a_path_of_radii_starts_from_the_radius_before(scenarios):
    """Each radius is solved as on its own, from a start that is nearer, in no more iterations."""
    flows = TrafficFlows(scenarios.network, "numba")
    _, problem = robust(scenarios, flows, 20, 1.0)
    solver = FrankWolfe(gap=1e-5)
    radii = np.geomspace(0.5, 2.0, 4)
    path = problem.path(radii, "smoothed", solver=solver, progress=False)
    alone = []
    for radius, found in zip(radii, path.solutions):
        single = problem.with_radius(radius)
        single.solve("smoothed", solver=solver)
        alone.append(single.solution)
        assert found.status == "optimal"
        assert found.value == pytest.approx(single.value, rel=2e-5)
        assert found.lower_bound <= single.value + 1e-9
    late = slice(1, None)
    assert sum(s.iterations for s in path.solutions[late]) <= sum(s.iterations for s in alone[late])
    starts = [s.trace["gap"][0] for s in path.solutions]
    assert max(starts[late]) < 0.5 * min(s.trace["gap"][0] for s in alone[late])


def test_a_solve_from_a_solution_is_the_same_every_time(scenarios):
    """Neither the solution nor the set remembers the solve before."""
    flows = TrafficFlows(scenarios.network, "numba")
    x, problem = robust(scenarios, flows, 10, 1.0)
    solver = FrankWolfe(gap=1e-4)
    start = problem.path([0.5, 1.0], "smoothed", solver=solver, progress=False).solutions[-1]
    decisions = []
    for _ in range(2):
        again = problem.with_radius(2.0)
        again.solve("smoothed", solver=solver, start=start)
        decisions.append(x.value)
    np.testing.assert_array_equal(*decisions)


@pytest.mark.parametrize("radius", [0.5, 2.0, 5.0, 12.0, 20.0])
def test_few_steps_lead_to_robust_flows(scenarios, radius):
    """Newton's method: the adversary's reply to a step is known, also where it is torn."""
    flows = TrafficFlows(scenarios.network, "numba")
    _, problem = robust(scenarios, flows, 20, radius)
    problem.solve("smoothed", solver=FrankWolfe(gap=1e-6))
    assert problem.status == "optimal"
    assert problem.solution.iterations <= 8


@pytest.mark.parametrize("method", ["erm", "smoothed"])
def test_a_loss_that_couples_the_arcs_is_left_to_what_steps_tell(scenarios, method):
    """Slopes of a sum over the arcs would mislead; the answer is that of conjugate directions."""
    flows = TrafficFlows(scenarios.network, "numba")
    mixed = np.random.default_rng(0).random((10, flows.dimension)) / flows.dimension
    found = []
    for direction in (None, "biconjugate"):
        x = cp.Variable(flows.dimension)
        time = scenarios.parameters(5, seed=0)
        loss = wdro.traffic.beckmann(x, scenarios.network.capacity, *time) / 1e5
        loss = loss + 3 * cp.sum_squares(mixed @ x / 1e3)
        ball = wdro.WassersteinBall(1.0, wdro.costs.SquaredEuclidean("standardize"))
        problem = wdro.Problem(cp.Minimize(loss), [wdro.In(x, flows)], ball)
        given = {} if direction is None else {"direction": direction}
        problem.solve(method, solver=FrankWolfe(gap=1e-4, **given))
        assert problem.status == "optimal"
        found.append(problem.solution)
    assert found[0].value == pytest.approx(found[1].value, rel=2e-4)
    assert found[0].iterations <= 25
