"""Published networks, flows and objectives, where the files are at hand."""

import numpy as np
import pytest

from tests.traffic.reference import published, published_file
from wdro_model.traffic import read_flows

SIZES = {
    "SiouxFalls": (24, 76, 24, 1, 528, 360600.0),
    "Anaheim": (416, 914, 38, 39, 1406, 104694.40),
    "Braess-Example": (4, 5, 2, 1, 1, 6.0),
    "Eastern-Massachusetts": (74, 258, 74, 1, 1113, 65576.375431),
}
OBJECTIVES = {"SiouxFalls": 4231335.28710744, "Anaheim": 1286032.171096}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_and_demands(name):
    network = published(name)
    nodes, arcs, zones, first, pairs, demand = SIZES[name]
    assert (network.n_nodes, network.n_arcs, network.n_zones) == (nodes, arcs, zones)
    assert int(np.argmax(network.through)) + 1 == first
    assert np.count_nonzero(network.demand - np.diag(np.diag(network.demand))) == pairs
    assert network.total_demand == pytest.approx(demand, rel=1e-9)
    assert network.repairs == ()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_published_flows_have_the_published_objective(name):
    network = published(name)
    flow = read_flows(published_file(name, "flow"), network)
    assert network.beckmann(flow) == pytest.approx(OBJECTIVES[name], rel=1e-9)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_published_costs_are_the_travel_times(name):
    """The fourth column; the rows of these two files are in the order of the arcs."""
    network = published(name)
    path = published_file(name, "flow")
    table = np.loadtxt(path, skiprows=1)
    flow = read_flows(path, network)
    np.testing.assert_array_equal(flow, table[:, 2])
    np.testing.assert_allclose(network.travel_time(flow), table[:, 3], atol=1e-14, rtol=2e-15)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_published_flows_route_the_demand(name):
    network = published(name)
    flow = read_flows(published_file(name, "flow"), network)
    balance = np.bincount(network.tails, flow, network.n_nodes)
    balance -= np.bincount(network.heads, flow, network.n_nodes)
    demand = network.demand - np.diag(np.diag(network.demand))
    expected = np.zeros(network.n_nodes)
    expected[network.zones] = demand.sum(axis=1) - demand.sum(axis=0)
    np.testing.assert_allclose(balance, expected, atol=1e-8)


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
