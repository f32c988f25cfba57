"""Networks: what they hold, their travel times and costs, and what they refuse."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

from wdro_model.traffic import Network


def small(**changes):
    """Two zones joined by two parallel arcs and a detour over a third node."""
    fields = {
        "tails": [0, 0, 0, 2],
        "heads": [1, 1, 2, 1],
        "capacity": [10.0, 20.0, 30.0, 40.0],
        "free_flow_time": [1.0, 2.0, 0.0, 4.0],
        "b": [0.15, 0.5, 0.15, 0.0],
        "power": [4.0, 1.5, 4.0, 0.0],
        "demand": [[3.0, 8.0], [0.0, 0.0]],
        "nodes": ("a", "b", "c"),
    }
    return Network(**{**fields, **changes})


def test_fields_defaults_and_names():
    network = small()
    assert (network.n_arcs, network.n_nodes, network.n_zones) == (4, 3, 2)
    assert network.total_demand == 8.0
    assert network.arcs == [("a", "b"), ("a", "b"), ("a", "c"), ("c", "b")]
    assert network.fixed_cost.tolist() == [0.0] * 4
    assert network.zones.tolist() == [0, 1]
    assert network.through.tolist() == [True] * 3
    assert network.positions is None
    assert network.repairs == ()
    assert repr(network) == "Network('network': 3 nodes, 4 arcs, 2 zones, demand 8)"


def test_nodes_are_numbered_from_one_and_counted_by_arcs_and_zones():
    network = Network([0], [1], 1.0, 1.0, 0.15, 4.0, np.zeros((3, 3)), zones=[0, 1, 5])
    assert network.nodes == (1, 2, 3, 4, 5, 6)


def test_a_number_holds_for_every_arc():
    network = small(capacity=7, b=0.15, power=4)
    assert network.capacity.tolist() == [7.0] * 4
    assert network.b.dtype == np.float64


def test_arrays_are_read_only_copies():
    capacity = np.array([10.0, 20.0, 30.0, 40.0])
    network = small(capacity=capacity)
    capacity[0] = 99.0
    assert network.capacity[0] == 10.0
    for field in ("tails", "capacity", "demand", "through", "zones"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(network, field)[0] = 0


def test_copies_and_pickles_keep_everything():
    network = small(positions=[[0, 0], [1, 0], [0, 1]], repairs=["closed an arc"], name="x")
    for other in (pickle.loads(pickle.dumps(network)), copy.deepcopy(network)):
        assert repr(other) == repr(network)
        assert other.repairs == ("closed an arc",)
        assert other.nodes == network.nodes
        np.testing.assert_array_equal(other.positions, network.positions)
        assert not other.capacity.flags.writeable


def test_travel_time_is_the_bpr_formula():
    network = small(fixed_cost=[0.0, 0.5, 0.0, -1.0])
    flow = np.array([5.0, 10.0, 3.0, 3.0])
    expected = [1 + 0.15 * 0.5**4, 2 * (1 + 0.5 * 0.5**1.5) + 0.5, 0.0, 4.0 - 1.0]
    np.testing.assert_allclose(network.travel_time(flow), expected, rtol=1e-15)
    stacked = network.travel_time(np.stack([flow, np.zeros(4)]))
    np.testing.assert_array_equal(stacked[0], network.travel_time(flow))
    np.testing.assert_array_equal(stacked[1], [1.0, 2.5, 0.0, 3.0])


def test_power_zero_is_a_constant_time():
    network = small(b=[0.15, 0.15, 0.15, 0.5], power=[0.0, 0.0, 4.0, 0.0])
    times = [network.travel_time(np.full(4, x)) for x in (0.0, 1.0, 100.0)]
    for time in times:
        np.testing.assert_allclose(time[[0, 1, 3]], [1.15, 2.3, 6.0])


def test_beckmann_is_the_integral_of_the_travel_times():
    network = small(fixed_cost=0.25)
    flow = np.array([5.0, 12.0, 3.0, 3.0])
    expected = sum(
        quad(lambda x, a=a: network.travel_time(np.full(4, x))[a], 0.0, flow[a])[0]
        for a in range(4)
    )
    assert network.beckmann(flow) == pytest.approx(expected, rel=1e-10)
    assert network.total_cost(flow) == pytest.approx(network.travel_time(flow) @ flow)


def test_rounding_below_zero_is_zero():
    network = small()
    flow = np.array([5.0, -1e-12, 3.0, 3.0])
    clipped = np.maximum(flow, 0.0)
    np.testing.assert_array_equal(network.travel_time(flow), network.travel_time(clipped))
    assert network.beckmann(flow) == network.beckmann(clipped)


@pytest.mark.parametrize(
    ("flow", "message"),
    [
        ([1.0, 2.0], r"must have shape \(4,\), one entry per arc, got \(2,\)"),
        ([1.0, -2.0, 0.0, 0.0], r"nonnegative, got -2.0 on arc 1 \('a' -> 'b'\)"),
        ([1.0, np.nan, 0.0, 0.0], "got nan on arc 1"),
    ],
)
def test_a_flow_that_is_none_is_refused(flow, message):
    with pytest.raises(ValueError, match=message):
        small().travel_time(flow)


@settings(max_examples=60, deadline=None)
@given(
    log_b=st.floats(-160, 20),
    power=st.floats(1.0, 17.0),
    log_capacity=st.floats(-2, 9),
    alpha=st.floats(0.01, 2.0),
    ratio=st.floats(0.0, 3.0),
)
def test_normalized_networks_have_the_same_travel_times(log_b, power, log_capacity, alpha, ratio):
    b, capacity = np.exp(log_b), np.exp(log_capacity)
    network = Network([0], [1], capacity, 2.0, b, power, np.zeros((2, 2)))
    normalized = network.normalized(alpha)
    assert normalized.b.tolist() == [alpha]
    # Flows up to three times the capacity that the congestion is about.
    flow = np.array([ratio * np.exp(np.log(capacity) + (np.log(alpha) - log_b) / power)])
    np.testing.assert_allclose(normalized.travel_time(flow), network.travel_time(flow), rtol=1e-12)


def test_normalizing_leaves_what_does_not_congest_and_what_is_normal_already():
    network = small(b=[0.15, 4e-71, 0.0, 0.3], power=[4.0, 16.83, 4.0, 0.0], capacity=1.0)
    normalized = network.normalized()
    assert normalized.capacity[[0, 2, 3]].tolist() == [1.0, 1.0, 1.0]
    assert normalized.b.tolist() == [0.15, 0.15, 0.0, 0.3]
    assert normalized.capacity[1] == pytest.approx((0.15 / 4e-71) ** (1 / 16.83), rel=1e-12)
    flow = np.array([1.0, 9000.0, 1.0, 1.0])
    np.testing.assert_allclose(normalized.travel_time(flow), network.travel_time(flow), rtol=1e-12)


def test_a_capacity_beyond_floating_point_is_refused_by_name():
    network = small(b=1e-300, power=0.01)
    with pytest.raises(ValueError, match=r"arc 0 \('a' -> 'b'\) .* no capacity"):
        network.normalized()
    with pytest.raises(ValueError, match="alpha must be a positive finite number, got 0"):
        network.normalized(0)


def test_replace_and_scale():
    network = small()
    assert network.scaled_demand(0.5).total_demand == 4.0
    assert network.replace(name="other").name == "other"
    np.testing.assert_array_equal(network.replace(b=0.1).b, [0.1] * 4)
    with pytest.raises(ValueError, match=r"unknown field of a network 'capacities'.*'capacity'"):
        network.replace(capacities=1.0)
    with pytest.raises(ValueError, match=r"demand must be finite and >= 0, got -8.0 from zone 'a'"):
        network.replace(demand=-1.0 * network.demand + np.diag([6.0, 0.0]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tails": [0, 0, 0]}, "one entry per arc and at least one arc, got 3 and 4"),
        ({"tails": [], "heads": []}, "at least one arc, got 0 and 0"),
        ({"tails": [0.5, 0, 0, 2]}, "tails must be a vector of node indices.*nodes="),
        ({"tails": [[0, 0, 0, 2]]}, r"tails must be a vector .* shape \(1, 4\)"),
        ({"heads": [1, 1, 2, 3]}, r"heads must be node indices from 0 to 2 .* got 3 at position 3"),
        ({"heads": [1, 1, 2, -1]}, "got -1 at position 3"),
        ({"heads": [1, 0, 2, 1]}, "arc 1 leads from node 'a' to itself"),
        ({"capacity": [1.0, 0.0, 1.0, 1.0]}, r"capacity .* > 0, got 0.0 on arc 1 \('a' -> 'b'\)"),
        ({"capacity": np.inf}, "capacity must be finite and > 0, got inf"),
        ({"capacity": [1.0, 2.0]}, r"one entry for each of the 4 arcs, got shape \(2,\)"),
        ({"capacity": ["x"] * 4}, "capacity must be real numbers"),
        ({"free_flow_time": -1.0}, "free_flow_time must be finite and >= 0, got -1.0"),
        ({"b": [0.1, 0.1, 0.1, np.nan]}, r"b must be .* got nan on arc 3 \('c' -> 'b'\)"),
        ({"power": -4.0}, "power must be finite and >= 0, got -4.0"),
        ({"fixed_cost": np.inf}, "fixed_cost must be finite, got inf"),
        ({"demand": [[1.0, 2.0]]}, r"square matrix \(Z, Z\), .* got shape \(1, 2\)"),
        ({"demand": [[0.0, np.nan], [0.0, 0.0]]}, "got nan from zone 'a' to zone 'b'"),
        ({"zones": [0]}, "zones has 1 entries but demand has 2 rows"),
        ({"zones": [1, 1]}, "different nodes, got node 'b' more than once"),
        ({"zones": [0, 7]}, "zones must be node indices from 0 to 2"),
        ({"through": [True, False]}, r"one boolean for each of the 3 nodes, got shape \(2,\)"),
        ({"through": [1, 0, 1]}, "dtype int64"),
        ({"nodes": ("a", "b", "a")}, "different names, got 'a' twice"),
        ({"positions": [[0, 0]]}, r"shape \(3, 2\), one row per node, got \(1, 2\)"),
        ({"positions": [[0, 0], [np.inf, 0], [0, 0]]}, "got inf at node 'b'"),
        ({"name": 3}, "name of a network must be a string, got 3"),
    ],
)
def test_a_network_that_is_none_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        small(**changes)
