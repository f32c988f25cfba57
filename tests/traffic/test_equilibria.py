"""Equilibria of published networks: objectives to a millionth, flows to a thousandth."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.traffic.networks import braess
from tests.traffic.reference import published, published_file
from wdro_model.datasets import sioux_falls
from wdro_model.sets import TrafficFlows
from wdro_model.solvers import FrankWolfe
from wdro_model.traffic import (
    equilibrium,
    read_flows,
    relative_gap,
    social_optimum,
)

GAP = 1e-6
OBJECTIVES = {
    "Braess": 386.0,
    "SiouxFalls": 4231335.28710744,
    "Anaheim": 1286032.171096,
    "Eastern-Massachusetts": 26160.345922911,
}


BUILT_IN = {"Braess": braess, "SiouxFalls": sioux_falls}


def network_of(name):
    return BUILT_IN[name]() if name in BUILT_IN else published(name)


@cache
def solved(name):
    """The equilibrium to the relative gap 1e-6, once for all tests."""
    network = network_of(name)
    flows = TrafficFlows(network)
    return network, flows, *equilibrium(network, gap=GAP, flows=flows)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_objective_is_the_published_one(name):
    network, flows, flow, solution = solved(name)
    best = OBJECTIVES[name]
    assert solution.status == "optimal"
    assert solution.gap <= GAP * network.total_cost(flow)
    assert solution.value == pytest.approx(best, rel=1e-6)
    assert solution.value >= best * (1 - 1e-9)
    assert solution.lower_bound <= best * (1 + 1e-9)
    assert network.beckmann(flow) == pytest.approx(solution.value, rel=1e-9)
    assert relative_gap(network, flow, flows) <= GAP


@pytest.mark.parametrize("name", OBJECTIVES)
def test_trips_balance_at_every_node(name):
    network, _, flow, _ = solved(name)
    balance = np.bincount(network.tails, flow, network.n_nodes)
    balance -= np.bincount(network.heads, flow, network.n_nodes)
    demand = network.demand - np.diag(np.diag(network.demand))
    expected = np.zeros(network.n_nodes)
    expected[network.zones] = demand.sum(axis=1) - demand.sum(axis=0)
    np.testing.assert_allclose(balance, expected, atol=1e-9 * network.total_demand)


@pytest.mark.parametrize("name", ["SiouxFalls", "Anaheim"])
def test_the_flows_are_the_published_ones(name):
    network, _, flow, _ = solved(name)
    best = read_flows(published_file(name, "flow"), published(name))
    assert np.abs(flow - best).max() <= 1e-3 * network.total_demand


def test_the_flows_of_braess_are_known():
    network, _, flow, _ = solved("Braess")
    np.testing.assert_allclose(flow, [4, 2, 2, 2, 4], atol=1e-3 * network.total_demand)


@pytest.mark.parametrize("name", ["Braess", "SiouxFalls", "Eastern-Massachusetts"])
def test_used_paths_are_shortest_paths(name):
    """Wardrop: what trips spend is the sum of the demands times the shortest costs, by scipy."""
    network, flows, flow, _ = solved(name)
    times = network.travel_time(flow)
    costs = flows.shortest_costs(times)
    loaded = (network.demand > 0) & ~np.eye(network.n_zones, dtype=bool)
    least = float((network.demand[loaded] * costs[loaded]).sum())
    assert times @ flow == pytest.approx(least, rel=2 * GAP)


@pytest.mark.parametrize("find", [equilibrium, social_optimum])
@pytest.mark.parametrize("name", ["SiouxFalls", "Eastern-Massachusetts"])
def test_all_directions_find_the_same_flow_pattern(name, find):
    network = network_of(name)
    flows = TrafficFlows(network)
    found = {}
    for direction in ("plain", "conjugate", "biconjugate", "blended_conjugate"):
        solver = FrankWolfe(gap=1e-3, direction=direction, max_iterations=2000)
        found[direction] = find(network, flows=flows, solver=solver)
        assert found[direction].solution.status == "optimal", direction
    values = np.array([solution.value for _, solution in found.values()])
    bounds = np.array([solution.lower_bound for _, solution in found.values()])
    assert values.max() <= values.min() * (1 + 1e-3)
    assert bounds.max() <= values.min()
    for flow, _ in found.values():
        assert np.abs(flow - found["biconjugate"].flow).max() <= 2e-2 * network.total_demand


@pytest.mark.parametrize("name", ["Braess", "SiouxFalls", "Anaheim"])
def test_the_social_optimum_costs_least(name):
    network, flows, selfish, _ = solved(name)
    best, solution = social_optimum(network, gap=1e-4, flows=flows)
    assert solution.status == "optimal"
    assert network.total_cost(best) == pytest.approx(solution.value, rel=1e-9)
    assert solution.value <= network.total_cost(selfish) * (1 + 1e-9)
    assert solution.lower_bound <= network.total_cost(selfish)
    # Of all mixtures with the equilibrium none is better than the certificate allows.
    for share in np.linspace(0, 1, 11):
        mixed = share * selfish + (1 - share) * best
        assert network.total_cost(mixed) >= solution.lower_bound


def test_the_gap_is_what_travellers_could_save_of_what_they_spend():
    """The tolerance is met, and not by orders of magnitude more than asked."""
    network = network_of("SiouxFalls")
    for gap in (1e-2, 1e-3, 1e-4):
        flow, solution = equilibrium(network, gap=gap, method="frank_wolfe")
        assert 0.1 * gap < relative_gap(network, flow) <= gap
        assert solution.status == "optimal"
        assert "relative gap" in solution.stop


def test_limits_of_the_solver_are_not_called_optimal():
    network = network_of("SiouxFalls")
    limited = equilibrium(network, solver=FrankWolfe(max_iterations=3)).solution
    assert limited.status == "user_limit"
    stopped = equilibrium(network, solver=FrankWolfe(callbacks=[lambda state: True])).solution
    assert stopped.status == "user_limit"
    assert equilibrium(network, gap=1e-9, time_limit=1e-6).solution.status == "user_limit"


@pytest.mark.parametrize("backend", ["networkx", "numba"])
def test_backends_find_the_same_equilibrium(backend):
    if backend == "numba":
        pytest.importorskip("numba")
    network = network_of("SiouxFalls")
    flows = TrafficFlows(network, backend=backend)
    solution = equilibrium(network, gap=1e-3, flows=flows).solution
    assert solution.value == pytest.approx(OBJECTIVES["SiouxFalls"], rel=1e-3)
    assert solution.lower_bound <= OBJECTIVES["SiouxFalls"] <= solution.value
