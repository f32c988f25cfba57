"""Sioux Falls: the published figures."""

import networkx as nx
import numpy as np

from tests.traffic.files import assert_same
from tests.traffic.reference import published
from wdro_model.datasets import sioux_falls


def test_the_figures_of_the_network():
    network = sioux_falls()
    assert repr(network) == "Network('Sioux Falls': 24 nodes, 76 arcs, 24 zones, demand 360600)"
    assert network.nodes == tuple(range(1, 25))
    assert network.through.all()
    assert np.count_nonzero(network.demand) == 528
    assert np.trace(network.demand) == 0
    assert set(network.b) == {0.15}
    assert set(network.power) == {4.0}
    assert network.arcs == sorted(network.arcs)
    assert network.arcs[0] == (1, 2)
    assert network.capacity[0] == 25900.20064
    assert network.demand[9, 15] == 4400.0
    assert network.repairs == ()


def test_every_road_has_two_ways_and_leads_everywhere():
    graph = sioux_falls().to_networkx()
    roads = {(u, v): data for u, v, data in graph.edges(data=True)}
    assert all(roads[v, u] == data for (u, v), data in roads.items())
    assert nx.is_strongly_connected(graph)


def test_the_positions_are_those_of_the_town():
    """Each road leads from west to east or back at most 0.1 degrees far; no two nodes meet."""
    network = sioux_falls()
    length = np.linalg.norm(
        network.positions[network.tails] - network.positions[network.heads], axis=1
    )
    assert np.all((length > 0) & (length < 0.1))


def test_the_published_files_hold_the_same_network():
    assert_same(published("SiouxFalls", nodes=True), sioux_falls())


def test_every_call_gives_a_network_of_its_own():
    assert sioux_falls() is not sioux_falls()
