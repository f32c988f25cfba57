"""Traffic as a room of the house: its public names."""

import pickle

import pytest

import wdro_model as wdro
from tests.traffic.networks import braess


def test_the_set_of_flows_has_both_addresses():
    from wdro_model.sets import TrafficFlows

    assert TrafficFlows is wdro.sets.TrafficFlows is wdro.traffic.TrafficFlows
    assert TrafficFlows.backends() == ("scipy", "numba", "networkx", "ortools", "cvxpy")
    flows = TrafficFlows(braess())
    assert type(pickle.loads(pickle.dumps(flows))) is TrafficFlows


@pytest.mark.parametrize("room", [wdro.sets, wdro.traffic, wdro.datasets])
def test_public_names_are_there(room):
    assert sorted(room.__all__) == room.__all__
    for name in room.__all__:
        assert getattr(room, name).__module__.startswith("wdro_model.")
