"""Scenarios of congestion: their law, their supports, and their use in a model."""

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import wdro_model as wdro
from tests.traffic.files import assert_same
from tests.traffic.reference import published
from wdro_model.datasets import (
    TrafficRanges,
    TrafficScenarios,
    shifted_scenarios,
    sioux_falls,
    training_scenarios,
)
from wdro_model.traffic import Network

COUNT = 4000


@pytest.fixture(scope="module")
def network():
    return sioux_falls()


def fits(values, law) -> bool:
    """Does a Kolmogorov-Smirnov test find nothing against the law?"""
    return stats.kstest(values, law.cdf).pvalue > 1e-3


def test_the_training_law_is_that_of_the_paper(network):
    draw = training_scenarios(network).sample(COUNT, seed=0)
    assert draw.time.shape == (COUNT, 76)
    assert draw.alpha.shape == draw.beta.shape == (COUNT,)
    multiples = draw.time / network.free_flow_time
    assert fits(multiples[:, 0], stats.uniform(0.75, 0.25))
    assert fits(multiples[0], stats.uniform(0.75, 0.25))
    mean, deviation = 0.85 * 0.15, np.sqrt(0.3 * 0.15)
    law = stats.truncnorm(-mean / deviation, np.inf, mean, deviation)
    assert np.all(draw.alpha > 0)
    assert fits(draw.alpha, law)
    assert fits(draw.beta, stats.uniform(3 - 0.45, 0.9))
    pairs = [(draw.alpha, draw.beta), (draw.alpha, multiples[:, 3]), (multiples[:, 0], draw.beta)]
    assert all(abs(np.corrcoef(a, b)[0, 1]) < 0.06 for a, b in pairs)


def test_shifted_scenarios_are_worse(network):
    training = training_scenarios(network).sample(COUNT, seed=1)
    shifted = shifted_scenarios(network, capacity_loss=0.0).sample(COUNT, seed=2)
    assert fits(shifted.beta, stats.uniform(5 - 0.45, 0.9))
    assert fits(shifted.time[:, 5] / network.free_flow_time[5], stats.uniform(1.0, 0.25))
    mean, deviation = 1.85 * 0.15, np.sqrt(0.3 * 0.15)
    law = stats.truncnorm(-mean / deviation, np.inf, mean, deviation)
    assert fits(shifted.alpha, law)
    assert shifted.alpha.mean() > training.alpha.mean() + 0.05


def test_severity_scales_the_shift(network):
    none = shifted_scenarios(network, severity=0.0).sample(50, seed=3)
    training = training_scenarios(network).sample(50, seed=3)
    for field in ("time", "alpha", "beta"):
        np.testing.assert_array_equal(getattr(none, field), getattr(training, field))
    half = shifted_scenarios(network, severity=0.5)
    assert half.beta == pytest.approx(4.0)
    assert half.time_range == pytest.approx((0.875, 1.125))
    assert half.capacity_factor == pytest.approx(0.975)


def test_lost_capacity_is_carried_by_alpha(network):
    """alpha (x/(k c))^beta with the original alpha, scenario by scenario."""
    ranges = TrafficRanges(time=(0.5, 2.0), alpha=(0.0, 100.0), beta=(1.0, 7.0))
    full = shifted_scenarios(network, capacity_loss=0.0, ranges=ranges).sample(20, seed=4)
    less = shifted_scenarios(network, capacity_loss=0.1, ranges=ranges).sample(20, seed=4)
    np.testing.assert_array_equal(less.beta, full.beta)
    flow = network.capacity * 1.3
    for k in range(20):
        ours = network.replace(b=less.alpha[k], power=less.beta[k])
        small = network.replace(
            capacity=0.9 * network.capacity, b=full.alpha[k], power=full.beta[k]
        )
        np.testing.assert_allclose(ours.travel_time(flow), small.travel_time(flow), rtol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.floats(0, 1.5), st.floats(0.01, 3.0))
def test_supports_hold_training_and_shifted_scenarios(seed, severity, variance):
    network = sioux_falls()
    training = training_scenarios(network, alpha_variance=variance)
    shifted = shifted_scenarios(network, severity=severity, alpha_variance=variance)
    for scenarios in (training, shifted):
        draw = scenarios.sample(30, seed)
        for box, points in zip(training.supports, (draw.time, draw.alpha, draw.beta)):
            low, high = box.bounds(points.shape[1:])
            assert np.all(np.isfinite(low) & np.isfinite(high) & (low >= 0))
            assert np.all((points >= low) & (points <= high))
        assert np.all(draw.alpha > 0)


def test_the_same_seed_gives_the_same_scenarios_and_leaves_the_global_state(network):
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    scenarios = training_scenarios(network)
    first, second = scenarios.sample(5, seed=7), scenarios.sample(5, seed=7)
    np.testing.assert_array_equal(first.time, second.time)
    np.testing.assert_array_equal(first.alpha, second.alpha)
    assert not np.array_equal(scenarios.sample(5, seed=8).alpha, first.alpha)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_scenarios_in_a_model(network):
    """Losses of the model against Beckmann's objective of one network per scenario."""
    scenarios = training_scenarios(network)
    time, alpha, beta = scenarios.parameters(4, seed=0)
    assert (time.count, alpha.count, beta.count) == (4, 4, 4)
    flows = wdro.sets.TrafficFlows(network)
    x = cp.Variable(flows.dimension)
    loss = wdro.traffic.beckmann(x, scenarios.network.capacity, time, alpha, beta)
    problem = wdro.Problem(cp.Minimize(loss), [wdro.In(x, flows)])
    shifted = shifted_scenarios(network).sample(3, seed=1)
    report = wdro.compare(problem, ("erm",), test=shifted.as_test(time, alpha, beta))
    expected = [
        network.replace(
            free_flow_time=shifted.time[k], b=shifted.alpha[k], power=shifted.beta[k]
        ).beckmann(x.value)
        for k in range(3)
    ]
    np.testing.assert_allclose(report["erm"].losses["test"], expected, rtol=1e-9)
    assert np.mean(expected) > problem.value


def test_capacity_folded_into_b_is_taken_out_first():
    """Capacity 1 and b as small as 1e-71: perturbing alpha and beta there would explode."""
    power = 16.83
    network = Network([0, 0], [1, 1], 1.0, [1.0, 2.0], [4e-71, 1e-60], power, [[0, 9000.0], [0, 0]])
    scenarios = training_scenarios(network)
    assert np.all(scenarios.network.b == 0.15)
    assert scenarios.beta == pytest.approx(power - 1)
    flow = np.array([5000.0, 4000.0])
    np.testing.assert_allclose(
        scenarios.network.travel_time(flow), network.travel_time(flow), rtol=1e-12
    )
    with pytest.raises(ValueError, match=r"one b for all arcs .* 4e-71 to 1e-60.*normalized\(0.15"):
        TrafficScenarios(network, 0.15, 4.0, 0.045, 0.9)


def test_arcs_without_congestion_stay_without():
    network = Network(
        [0, 0, 0], [1, 1, 1], 1.0, 2.0, [0.15, 0.0, 0.5], [4.0, 0.0, 0.0], [[0, 10.0], [0, 0]]
    )
    scenarios = training_scenarios(network)
    draw = scenarios.sample(5, seed=0)
    flow = np.array([1.0, 10.0, 10.0])
    constant = scenarios.network.free_flow_time
    np.testing.assert_allclose(constant, [2.0, 2.0, 3.0])
    for k in range(5):
        moved = scenarios.network.replace(b=draw.alpha[k], power=draw.beta[k])
        np.testing.assert_allclose(moved.travel_time(flow)[1:], [2.0, 3.0], rtol=1e-10)
        assert moved.travel_time(flow)[0] == pytest.approx(2.0 * (1 + draw.alpha[k]))


def test_several_powers_need_a_common_one(network):
    powers = network.power.copy()
    powers[3] = 5.0
    mixed = network.replace(power=powers)
    with pytest.raises(ValueError, match=r"one power for all arcs .* got 4 to 5 .* such as beta=4"):
        training_scenarios(mixed)
    assert training_scenarios(mixed, beta=4).beta == 3.0
    with pytest.raises(ValueError, match=r"need arcs that congest .* has none"):
        training_scenarios(network.replace(b=0.0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda n: training_scenarios(n, alpha_variance=0.0), "alpha_variance must be a positive"),
        (lambda n: training_scenarios(n, mu_alpha=1.0), "alpha must be a positive finite number"),
        (lambda n: training_scenarios(n, mu_beta=3.5), r"beta would be drawn from \[0.05, 0.95\]"),
        (lambda n: training_scenarios(n, time_range=(1.0, 0.5)), "low <= high"),
        (lambda n: training_scenarios(n, time_range=3), "must be two numbers"),
        (lambda n: training_scenarios(n, time_range=(1.0, 2.5)), r"leaves its range \[0.5, 2\]"),
        (lambda n: training_scenarios(n, beta=-4), "beta must be a positive finite number, got -4"),
        (lambda n: shifted_scenarios(n, severity=2.0), r"\[6.55, 7.45\].*wider ranges="),
        (lambda n: shifted_scenarios(n, severity=-1), "severity must be a nonnegative"),
        (lambda n: shifted_scenarios(n, capacity_loss=1.0), "capacity_factor must be a positive"),
        (lambda n: training_scenarios(n).sample(0), "count must be an integer of at least 1"),
        (lambda n: training_scenarios(n).sample(2, seed=-1), "seed must be an integer"),
        (lambda n: TrafficScenarios("n", 0.15, 4, 0.1, 1), "expected a .*Network, got str"),
    ],
)
def test_bad_scenarios_are_refused(network, make, message):
    with pytest.raises(ValueError, match=message):
        make(network)


def test_wider_ranges_make_room(network):
    ranges = TrafficRanges(time=(0.5, 3.0), alpha=(0.0, 4.0), beta=(0.5, 10.0))
    shifted = shifted_scenarios(network, severity=2.0, ranges=ranges)
    assert shifted.beta == pytest.approx(7.0)
    assert shifted.sample(100, seed=0).beta.max() <= 10.0


def test_links_without_a_travel_time_are_held_by_standardized_weights():
    """Most cities have connectors of time 0: their support is one point."""
    times = sioux_falls().free_flow_time.copy()
    times[[3, 10]] = 0.0
    scenarios = training_scenarios(sioux_falls().replace(free_flow_time=times))
    time, alpha, beta = scenarios.parameters(4, seed=0)
    x = cp.Variable(76)
    loss = wdro.traffic.beckmann(x, scenarios.network.capacity, time, alpha, beta)
    cost = wdro.costs.SquaredEuclidean(weights="standardize")
    flows = wdro.sets.TrafficFlows(scenarios.network)
    problem = wdro.Problem(
        cp.Minimize(loss), [wdro.In(x, flows)], ambiguity=wdro.WassersteinBall(1.0, cost)
    )
    assert "2 coordinates held fixed" in str(problem.explain())
    problem.solve("smoothed", solver=wdro.solvers.FrankWolfe(gap=0.05))
    assert problem.status == "optimal"


# ------------------------------------------------------------------ Sioux Falls
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
