"""Networks written as TNTP files and read back."""

import io

import numpy as np
import pytest
from hypothesis import given, settings

from tests.traffic.files import NET, NODES, TRIPS, assert_same, read
from tests.traffic.networks import networks
from wdro_model.traffic import Network, read_tntp, renumbered, write_tntp


def there_and_back(network):
    files = [io.StringIO() for _ in range(2 if network.positions is None else 3)]
    write_tntp(network, *files)
    for file in files:
        file.seek(0)
    return read_tntp(*files, toll_weight=1.0)


@settings(max_examples=80, deadline=None)
@given(networks(numbered=True))
def test_a_numbered_network_comes_back_to_the_last_bit(network):
    if network.n_zones == 0:
        return
    back = there_and_back(network)
    assert_same(back, network)
    assert back.repairs == ()


@settings(max_examples=80, deadline=None)
@given(networks())
def test_any_network_comes_back_or_is_refused_with_a_way_out(network):
    if network.n_zones == 0:
        return
    is_zone = np.isin(np.arange(network.n_nodes), network.zones)
    if np.any(network.through & is_zone) and np.any(~network.through & ~is_zone):
        with pytest.raises(ValueError, match="which is no zone, may not be passed"):
            there_and_back(network)
        return
    fit = renumbered(network)
    ordered = np.array_equal(fit.zones, network.zones)
    if ordered and np.array_equal(fit.through, network.through):
        assert_same(there_and_back(network), network)
    else:
        with pytest.raises(ValueError, match=r"use wdro_model.traffic.renumbered\(network\)"):
            there_and_back(network)
    assert_same(there_and_back(fit), fit)


@settings(max_examples=30, deadline=None)
@given(networks())
def test_renumbering_keeps_arcs_demands_and_positions(network):
    """Compared by the old names: node i of the new network is known by its old name."""
    fit = renumbered(network)
    is_zone = np.isin(np.arange(network.n_nodes), network.zones)
    old = sorted(range(network.n_nodes), key=lambda i: (not is_zone[i], network.through[i], i))
    assert [(old[u], old[v]) for u, v in zip(fit.tails, fit.heads)] == list(
        zip(network.tails.tolist(), network.heads.tolist())
    )
    demand = {
        (old[fit.zones[o]], old[fit.zones[d]]): fit.demand[o, d]
        for o, d in np.ndindex(fit.demand.shape)
    }
    for o, d in np.ndindex(network.demand.shape):
        assert demand[int(network.zones[o]), int(network.zones[d])] == network.demand[o, d]
    np.testing.assert_array_equal(fit.through, network.through[old])
    if network.positions is not None:
        np.testing.assert_array_equal(fit.positions, network.positions[old])


def test_named_numbers_come_back(tmp_path):
    network = read(tmp_path, net=NET, trips=TRIPS, nodes=NODES)
    named = network.replace(nodes=(70, 80, 1000, 2000), through=np.array([False, True, True, True]))
    back = there_and_back(named)
    assert_same(back, named)
    with pytest.raises(ValueError, match="forgets nodes without arcs"):
        there_and_back(Network([0], [1], 1.0, 1.0, 0.15, 4.0, np.zeros((1, 1)), nodes=(10, 20, 30)))


def test_paths_and_packed_files(tmp_path):
    network = read(tmp_path, nodes=NODES, toll_weight=1.0)
    files = [tmp_path / name for name in ("town_net.tntp", "town_trips.tntp.gz", "town_node.tntp")]
    write_tntp(network, *files)
    back = read_tntp(*files, toll_weight=1.0)
    assert_same(back, network)
    assert back.name == "town"
    assert read_tntp(*files).fixed_cost.tolist() == [0.0] * 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": ("a", "b", "c", "d")}, "numbers the nodes from 1, got a node named 'a'"),
        ({"nodes": (0, 1, 2, 3)}, "got a node named 0"),
        ({"nodes": (2, 1, 3, 4)}, "ascending order"),
        ({"zones": [1, 0]}, "ascending order"),
        ({"zones": [0, 2], "through": None}, "would take the nodes 1 to 2 for the zones"),
        ({"through": np.array([True, False, True, True])}, "may not be passed to come first"),
    ],
)
def test_what_the_format_cannot_express_is_refused(tmp_path, changes, message):
    network = read(tmp_path).replace(**changes)
    with pytest.raises(ValueError, match=message + ".*renumbered"):
        there_and_back(network)


def test_positions_are_needed_for_a_node_file(tmp_path):
    with pytest.raises(ValueError, match="has no positions; leave out nodes="):
        write_tntp(read(tmp_path), *(io.StringIO() for _ in range(3)))
