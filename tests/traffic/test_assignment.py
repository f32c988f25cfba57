"""Equilibria, social optima and measures, against values known by hand or published."""

from functools import cache

import networkx as nx
import numpy as np
import pytest

from tests.traffic.networks import braess
from tests.traffic.reference import published, published_file
from wdro_model.datasets import sioux_falls
from wdro_model.sets import TrafficFlows
from wdro_model.solvers import FrankWolfe
from wdro_model.traffic import (
    Network,
    all_or_nothing,
    equilibrium,
    price_of_anarchy,
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
SIZES = {
    "SiouxFalls": (24, 76, 24, 1, 528, 360600.0),
    "Anaheim": (416, 914, 38, 39, 1406, 104694.40),
    "Braess-Example": (4, 5, 2, 1, 1, 6.0),
    "Eastern-Massachusetts": (74, 258, 74, 1, 1113, 65576.375431),
}


def parallel(times, slopes, demand=1.0, **changes):
    """Parallel arcs with times t + slope x, of which t or the slope may be zero."""
    times = np.maximum(times, 1e-9)
    b = np.asarray(slopes, dtype=float) / times
    count = len(times)
    fields = {"capacity": 1.0, "free_flow_time": times, "b": b, "power": 1.0, **changes}
    return Network([0] * count, [1] * count, demand=[[0, demand], [0, 0]], **fields)


def test_braess_paradox():
    network = braess()
    flow, solution = equilibrium(network, gap=1e-9)
    np.testing.assert_allclose(flow, [4, 2, 2, 2, 4], atol=1e-3)
    assert solution.value == pytest.approx(386.0, rel=1e-8)
    assert solution.status == "optimal"
    assert relative_gap(network, flow) < 1e-8
    best = social_optimum(network, gap=1e-9).flow
    np.testing.assert_allclose(best, [3, 3, 3, 0, 3], atol=1e-3)
    assert price_of_anarchy(network, gap=1e-9) == pytest.approx(552 / 498, rel=1e-6)


def test_pigou_costs_four_thirds():
    network = parallel([1.0, 0.0], [0.0, 1.0])
    assert price_of_anarchy(network, gap=1e-9) == pytest.approx(4 / 3, rel=1e-6)
    np.testing.assert_allclose(social_optimum(network, gap=1e-9).flow, [0.5, 0.5], atol=1e-4)


def test_tolls_are_part_of_the_equilibrium():
    """t1 = 1 + x1 + 0.5, t2 = 1 + x2, three trips: x1 = 1.25."""
    network = parallel([1.0, 1.0], [1.0, 1.0], demand=3.0, fixed_cost=[0.5, 0.0])
    flow = equilibrium(network, gap=1e-10).flow
    np.testing.assert_allclose(flow, [1.25, 1.75], atol=1e-4)
    np.testing.assert_allclose(network.travel_time(flow), 2.75, atol=1e-4)


def test_the_social_optimum_is_the_equilibrium_of_marginal_costs():
    network = sioux_falls()
    marginal = network.replace(b=network.b * (network.power + 1))
    best = social_optimum(network, gap=1e-5)
    same = equilibrium(marginal, gap=1e-5)
    assert best.solution.value == pytest.approx(network.total_cost(same.flow), rel=1e-5)
    assert network.total_cost(best.flow) == pytest.approx(best.solution.value, rel=1e-12)


def test_the_relative_gap_is_what_shortest_paths_would_save():
    """Against shortest path lengths by networkx, at a flow far from equilibrium."""
    network = sioux_falls()
    flow = all_or_nothing(network, network.free_flow_time)
    graph = nx.DiGraph()
    graph.add_weighted_edges_from(
        (u, v, t) for (u, v), t in zip(network.arcs, network.travel_time(flow))
    )
    lengths = dict(nx.all_pairs_dijkstra_path_length(graph))
    least = sum(
        network.demand[o, d] * lengths[network.nodes[o]][network.nodes[d]]
        for o, d in np.argwhere(network.demand > 0)
    )
    spent = network.total_cost(flow)
    assert relative_gap(network, flow) == pytest.approx((spent - least) / spent, rel=1e-12)
    assert relative_gap(network, flow, TrafficFlows(network, backend="networkx")) == pytest.approx(
        relative_gap(network, flow), rel=1e-12
    )


def test_passing_zones_would_shorten_the_trips_of_anaheim():
    network = published("Anaheim")
    flow = read_flows(published_file("Anaheim", "flow"), network)
    open_zones = network.replace(through=np.ones(network.n_nodes, dtype=bool))
    assert relative_gap(open_zones, flow) == pytest.approx(0.077, abs=5e-4)


def test_a_network_without_demand_is_in_equilibrium():
    network = parallel([1.0, 2.0], [1.0, 1.0], demand=0.0)
    assert relative_gap(network, [0.0, 0.0]) == 0.0


# ------------------------------------------------------------------ published networks
@cache
def solved(name):
    """The equilibrium to the relative gap 1e-6, once for all tests."""
    network = braess() if name == "Braess" else published(name)
    flows = TrafficFlows(network)
    return network, flows, *equilibrium(network, gap=GAP, flows=flows)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_objective_is_the_published_one_and_trips_balance(name):
    network, flows, flow, solution = solved(name)
    best = OBJECTIVES[name]
    assert solution.status == "optimal"
    assert solution.gap <= GAP * network.total_cost(flow)
    assert best * (1 - 1e-9) <= solution.value == pytest.approx(best, rel=1e-6)
    assert solution.lower_bound <= best * (1 + 1e-9)
    assert network.beckmann(flow) == pytest.approx(solution.value, rel=1e-9)
    assert relative_gap(network, flow, flows) <= GAP
    balance = np.bincount(network.tails, flow, network.n_nodes)
    balance -= np.bincount(network.heads, flow, network.n_nodes)
    expected = np.zeros(network.n_nodes)
    expected[network.zones] = network.demand.sum(axis=1) - network.demand.sum(axis=0)
    np.testing.assert_allclose(balance, expected, atol=1e-9 * network.total_demand)


@pytest.mark.parametrize("name", ["SiouxFalls", "Anaheim"])
def test_published_flows_and_costs_are_those_of_the_equilibrium(name):
    """The rows of these two files are in the order of the arcs; the fourth column is the time."""
    network, _, flow, _ = solved(name)
    path = published_file(name, "flow")
    best, table = read_flows(path, network), np.loadtxt(path, skiprows=1)
    np.testing.assert_array_equal(best, table[:, 2])
    np.testing.assert_allclose(network.travel_time(best), table[:, 3], atol=1e-14, rtol=2e-15)
    assert network.beckmann(best) == pytest.approx(OBJECTIVES[name], rel=1e-9)
    assert abs(relative_gap(network, best)) < 1e-12
    assert np.abs(flow - best).max() <= 1e-3 * network.total_demand


@pytest.mark.parametrize("find", [equilibrium, social_optimum])
@pytest.mark.parametrize("name", ["Eastern-Massachusetts"])
def test_all_directions_find_the_same_flow_pattern(name, find):
    network = published(name)
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
    network = sioux_falls()
    for gap in (1e-2, 1e-3, 1e-4):
        flow, solution = equilibrium(network, gap=gap, method="frank_wolfe")
        assert 0.1 * gap < relative_gap(network, flow) <= gap
        assert solution.status == "optimal"
        assert "relative gap" in solution.stop


def test_limits_of_the_solver_are_not_called_optimal():
    network = sioux_falls()
    limited = equilibrium(network, solver=FrankWolfe(max_iterations=3)).solution
    assert limited.status == "user_limit"
    stopped = equilibrium(network, solver=FrankWolfe(callbacks=[lambda state: True])).solution
    assert stopped.status == "user_limit"
    assert equilibrium(network, gap=1e-9, time_limit=1e-6).solution.status == "user_limit"


@pytest.mark.parametrize("backend", ["networkx", "numba"])
def test_backends_find_the_same_equilibrium(backend):
    if backend == "numba":
        pytest.importorskip("numba")
    network = sioux_falls()
    flows = TrafficFlows(network, backend=backend)
    solution = equilibrium(network, gap=1e-3, flows=flows).solution
    assert solution.value == pytest.approx(OBJECTIVES["SiouxFalls"], rel=1e-3)
    assert solution.lower_bound <= OBJECTIVES["SiouxFalls"] <= solution.value


@pytest.mark.parametrize("name", SIZES)
def test_sizes_and_demands(name):
    network = published(name)
    nodes, arcs, zones, first, pairs, demand = SIZES[name]
    assert (network.n_nodes, network.n_arcs, network.n_zones) == (nodes, arcs, zones)
    assert int(np.argmax(network.through)) + 1 == first
    assert np.count_nonzero(network.demand - np.diag(np.diag(network.demand))) == pairs
    assert network.total_demand == pytest.approx(demand, rel=1e-9)
    assert network.repairs == ()


@pytest.mark.parametrize("name", ["Braess-Example", "Anaheim"])
def test_normalized_published_networks_have_the_same_times(name):
    network = published(name)
    normalized = network.normalized()
    assert np.all(normalized.b[network.b > 0] == 0.15)
    rng = np.random.default_rng(0)
    for _ in range(3):
        flow = rng.uniform(0, 2, network.n_arcs) * normalized.capacity
        np.testing.assert_allclose(
            normalized.travel_time(flow), network.travel_time(flow), rtol=1e-12
        )
