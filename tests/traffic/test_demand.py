"""Demand between zones: sparse where it is given so, and left out where no route carries it."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.traffic.files import NET, assert_same, read
from tests.traffic.networks import braess, networks
from wdro_model.errors import InfeasibleError
from wdro_model.traffic import (
    Network,
    TNTPError,
    TrafficFlows,
    all_or_nothing,
    drop_unreachable,
    equilibrium,
    read_tntp,
    renumbered,
    write_tntp,
)


def dense(network):
    """The network with its demand as an array."""
    demand = network.demand
    return network.replace(demand=demand.toarray() if sp.issparse(demand) else demand)


@given(networks(), st.sampled_from([sp.csr_array, sp.coo_matrix, sp.lil_array, sp.csc_matrix]))
@settings(max_examples=60, deadline=None)
def test_a_sparse_demand_stays_sparse_and_means_the_same(network, kind):
    twin = network.replace(demand=kind(network.demand))
    assert isinstance(twin.demand, sp.csr_array)
    assert twin.demand.nnz == np.count_nonzero(network.demand)
    assert twin.total_demand == pytest.approx(network.total_demand, rel=1e-12)
    assert_same(dense(twin), network)
    assert_same(dense(pickle.loads(pickle.dumps(twin))), network)
    assert_same(dense(Network.from_networkx(twin.to_networkx())), network)
    assert_same(dense(twin.scaled_demand(0.5)), network.scaled_demand(0.5))
    assert_same(dense(renumbered(twin)), renumbered(network))


@given(networks(numbered=True))
@settings(max_examples=30, deadline=None)
def test_sparse_demand_is_written_and_read(tmp_path_factory, network):
    folder = tmp_path_factory.mktemp("sparse")
    files = folder / "net.tntp", folder / "trips.tntp"
    write_tntp(network.replace(demand=sp.csr_array(network.demand)), *files)
    back = read_tntp(*files, toll_weight=1)
    assert_same(back.replace(positions=network.positions), network)


def test_a_sparse_demand_is_read_only_and_checked():
    network = braess().replace(demand=sp.csr_array(np.array([[0.0, 6.0], [0.0, 0.0]])))
    with pytest.raises(ValueError, match="read-only"):
        network.demand.data[0] = 1.0
    with pytest.raises(ValueError, match=r"got -6.0 from zone 1 to zone 2"):
        network.replace(demand=-network.demand)
    with pytest.raises(ValueError, match=r"square matrix .*\(1, 2\)"):
        network.replace(demand=sp.csr_array(np.ones((1, 2))))
    with pytest.raises(ValueError, match="real numbers: it has dtype complex128"):
        network.replace(demand=sp.csr_array(1j * np.ones((2, 2))))


def test_flows_of_a_sparse_demand_are_those_of_the_dense_one():
    network = braess()
    twin = network.replace(demand=sp.csr_array(network.demand))
    times = network.free_flow_time
    np.testing.assert_array_equal(all_or_nothing(twin, times), all_or_nothing(network, times))
    np.testing.assert_allclose(
        equilibrium(twin).flow, equilibrium(network).flow, rtol=1e-6, atol=1e-6
    )


def test_thousands_of_zones_take_no_square_of_memory():
    zones = 20_000  # dense: 3.2 GB
    ring = np.arange(zones)
    demand = sp.coo_array((np.ones(zones), (ring, (ring + 1) % zones)), shape=(zones, zones))
    network = Network(ring, (ring + 1) % zones, 10.0, 1.0, 0.15, 4.0, demand)
    assert network.demand.nnz == zones
    assert network.total_demand == zones
    graph = network.to_networkx()
    assert sp.issparse(Network.from_networkx(graph).demand)


# ------------------------------------------------------------------ demand without a route
def islands(**changes):
    """Two roads a -> b and c -> d; what leaves one of them for the other has no route."""
    given = {
        "tails": [0, 2],
        "heads": [1, 3],
        "capacity": 10.0,
        "free_flow_time": 1.0,
        "b": 0.15,
        "power": 4.0,
        "demand": np.arange(16.0).reshape(4, 4),
        "nodes": ("a", "b", "c", "d"),
    }
    return Network(**(given | changes))


@pytest.mark.parametrize("kind", [np.array, sp.csr_array])
def test_demand_without_a_route_is_left_out_and_told(kind):
    network = islands(demand=kind(np.arange(16.0).reshape(4, 4)), repairs=("before",))
    with pytest.raises(InfeasibleError, match=r"drop_unreachable\(network\)"):
        TrafficFlows(network)
    kept = drop_unreachable(network)
    assert sp.issparse(kept.demand) == sp.issparse(network.demand)
    expected = np.diag(np.diag(np.arange(16.0).reshape(4, 4)))  # trips within a zone stay
    expected[0, 1], expected[2, 3] = 1.0, 11.0
    np.testing.assert_array_equal(dense(kept).demand, expected)
    assert kept.repairs[0] == "before"
    assert kept.repairs[1] == (
        "left out the demand of 10 pairs of zones without a route, 78 of 90 trips: 'a' -> 'c' (2), "
        "'a' -> 'd' (3), 'b' -> 'a' (4), ..."
    )
    assert all_or_nothing(kept, np.ones(2)).tolist() == [1.0, 11.0]


def test_a_network_where_all_trips_have_a_route_is_left_alone():
    network = braess()
    assert drop_unreachable(network) is network


def test_nodes_that_may_not_be_passed_close_routes():
    chain = islands(tails=[0, 1, 2], heads=[1, 2, 3], demand=np.triu(np.ones((4, 4)), 1))
    assert drop_unreachable(chain) is chain
    closed = chain.replace(through=np.array([True, False, True, True]))
    kept = drop_unreachable(closed)
    np.testing.assert_array_equal(np.argwhere(kept.demand), [[0, 1], [1, 2], [1, 3], [2, 3]])


# ------------------------------------------------------------------ hostile headers


def test_a_million_zones_are_refused_or_read_as_what_they_are(tmp_path):
    million = NET.replace("ZONES> 2", "ZONES> 1000000").replace("NODES> 4", "NODES> 1000000")
    with pytest.raises(TNTPError, match="declares 1000000 nodes"):
        read(tmp_path, net=million)
    network = read(tmp_path, net=NET.replace("ZONES> 2", "ZONES> 1000000"))
    assert network.n_zones == 2
    assert any("zones are not numbered 1 to 1000000" in repair for repair in network.repairs)


def test_isolated_nodes_are_believed(tmp_path):
    assert read(tmp_path, net=NET.replace("NODES> 4", "NODES> 900")).n_nodes == 900
