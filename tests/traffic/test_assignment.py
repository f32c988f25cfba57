"""Equilibria, social optima and measures, against values known by hand or published."""

import networkx as nx
import numpy as np
import pytest

from tests.traffic.networks import braess
from tests.traffic.reference import published, published_file
from wdro_model.datasets import sioux_falls
from wdro_model.sets import TrafficFlows
from wdro_model.traffic import (
    Network,
    all_or_nothing,
    equilibrium,
    price_of_anarchy,
    read_flows,
    relative_gap,
    social_optimum,
)


@pytest.fixture(scope="module", name="braess")
def _braess():
    return braess()


def parallel(times, slopes, demand=1.0, **changes):
    """Parallel arcs with times t + slope x, of which t or the slope may be zero."""
    times = np.maximum(times, 1e-9)
    b = np.asarray(slopes, dtype=float) / times
    count = len(times)
    fields = {"capacity": 1.0, "free_flow_time": times, "b": b, "power": 1.0, **changes}
    return Network([0] * count, [1] * count, demand=[[0, demand], [0, 0]], **fields)


def test_braess_paradox(braess):
    flow, solution = equilibrium(braess, gap=1e-9)
    np.testing.assert_allclose(flow, [4, 2, 2, 2, 4], atol=1e-3)
    assert solution.value == pytest.approx(386.0, rel=1e-8)
    assert solution.status == "optimal"
    assert relative_gap(braess, flow) < 1e-8
    best = social_optimum(braess, gap=1e-9).flow
    np.testing.assert_allclose(best, [3, 3, 3, 0, 3], atol=1e-3)
    assert price_of_anarchy(braess, gap=1e-9) == pytest.approx(552 / 498, rel=1e-6)


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


def test_sioux_falls_in_equilibrium():
    network = sioux_falls()
    flows = TrafficFlows(network)
    flow, solution = equilibrium(network, gap=1e-5, flows=flows)
    assert solution.value == pytest.approx(4231335.28710744, rel=1e-5)
    assert solution.value >= 4231335.28710744
    assert network.beckmann(flow) == pytest.approx(solution.value, rel=1e-12)
    assert relative_gap(network, flow, flows) < 2e-5
    assert price_of_anarchy(network, gap=1e-4, flows=flows) == pytest.approx(1.0396, abs=1e-3)


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


@pytest.mark.parametrize("name", ["SiouxFalls", "Anaheim"])
def test_published_flows_are_in_equilibrium(name):
    network = published(name)
    flow = read_flows(published_file(name, "flow"), network)
    assert abs(relative_gap(network, flow)) < 1e-12


def test_passing_zones_would_shorten_the_trips_of_anaheim():
    network = published("Anaheim")
    flow = read_flows(published_file("Anaheim", "flow"), network)
    open_zones = network.replace(through=np.ones(network.n_nodes, dtype=bool))
    assert relative_gap(open_zones, flow) == pytest.approx(0.077, abs=5e-4)


def test_a_network_without_demand_is_in_equilibrium():
    network = parallel([1.0, 2.0], [1.0, 1.0], demand=0.0)
    assert relative_gap(network, [0.0, 0.0]) == 0.0
