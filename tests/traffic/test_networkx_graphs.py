"""Networks from and to networkx."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings

from tests.traffic.files import assert_same
from tests.traffic.networks import networks
from wdro_model.traffic import Network


@settings(max_examples=40, deadline=None)
@given(networks())
def test_there_and_back_is_the_same_network(network):
    graph = network.to_networkx()
    assert isinstance(graph, nx.MultiDiGraph)
    assert graph.number_of_edges() == network.n_arcs
    back = Network.from_networkx(graph)
    assert_same(back, network)
    assert back.name == network.name


def test_a_graph_of_ones_own():
    graph = nx.DiGraph()
    graph.add_node("home", pos=(0.0, 1.0))
    graph.add_node("toll plaza", through=False)
    graph.add_edge("home", "work", cap=10.0, minutes=5.0)
    graph.add_edge("home", "toll plaza", cap=20.0, minutes=3.0, b=0.3, price=2.0)
    network = Network.from_networkx(
        graph,
        {("home", "work"): 4.0},
        capacity="cap",
        free_flow_time="minutes",
        power=2,
        fixed_cost="price",
        name="commute",
    )
    assert network.nodes == ("home", "toll plaza", "work")
    assert network.arcs == [("home", "work"), ("home", "toll plaza")]
    assert network.b.tolist() == [0.15, 0.3]
    assert network.power.tolist() == [2.0, 2.0]
    assert network.fixed_cost.tolist() == [0.0, 2.0]
    assert network.through.tolist() == [True, False, True]
    assert network.zones.tolist() == [0, 2]
    assert network.demand.tolist() == [[0.0, 4.0], [0.0, 0.0]]
    assert np.isnan(network.positions[1]).all()
    assert network.name == "commute"


def test_zones_may_be_given():
    graph = nx.DiGraph([(1, 2), (2, 3)])
    network = Network.from_networkx(
        graph, {(1, 3): 2.0}, capacity=1.0, free_flow_time=1.0, zones=[3, 2, 1]
    )
    assert network.zones.tolist() == [2, 1, 0]
    assert network.demand[2, 0] == 2.0


def test_zones_of_another_kind_are_not_taken_for_ours():
    graph = nx.DiGraph()
    graph.add_edge("a", "b", capacity=1.0, free_flow_time=1.0)
    graph.nodes["a"]["zone"] = "residential"
    network = Network.from_networkx(graph, {("a", "b"): 1.0})
    assert network.zones.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("graph", "arguments", "message"),
    [
        (nx.Graph([(1, 2)]), {}, "directed networkx graph, got Graph;.*to_directed"),
        (nx.DiGraph([(1, 2)]), {}, "edge 1 -> 2 has no attribute 'capacity' for capacity"),
        (nx.DiGraph([(1, 2)]), {"demand": {(1, 9): 1.0}}, "demand names 9, which is not a node"),
        (nx.DiGraph([(1, 2)]), {"zones": [1, 9]}, "zones names 9, which is not a node"),
        (
            nx.DiGraph([(1, 2)]),
            {"demand": {(1, 2): 1.0}, "zones": [1], "capacity": 1, "free_flow_time": 1},
            "demand names node 2, which is not among the zones",
        ),
    ],
)
def test_a_graph_that_does_not_fit_is_refused(graph, arguments, message):
    with pytest.raises(ValueError, match=message):
        Network.from_networkx(graph, **arguments)


def test_names_that_are_no_nodes_get_a_message_that_helps():
    graph = nx.DiGraph()
    graph.add_edge(0, 1, capacity=1.0, free_flow_time=1.0)
    graph.add_edge(1, 2, capacity=1.0, free_flow_time=1.0)
    with pytest.raises(ValueError, match=r"demand names 3, .*nodes are 0 to 2\. Count from 0"):
        Network.from_networkx(graph, {(1, 3): 1.0})
    with pytest.raises(ValueError, match=r"there it is 1 \(int, not str\)"):
        Network.from_networkx(graph, {("1", 2): 1.0})
    with pytest.raises(ValueError, match=r"zones names 7, .*whose nodes are 0, 1, 2: demand and"):
        Network.from_networkx(graph, {(0, 2): 1.0}, zones=[0, 7])
    with pytest.raises(ValueError, match=r"first node has index 0 .*subtract 1"):
        Network([1, 2], [2, 3], 1.0, 1.0, 0.15, 4.0, np.zeros((1, 1)), nodes=(1, 2, 3))
