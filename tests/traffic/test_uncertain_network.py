"""Uncertain capacity, times and demand: costs affine in the data, against those of the network."""

from itertools import pairwise

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wdro_model as wdro
from tests.traffic.networks import braess
from wdro_model.datasets import sioux_falls
from wdro_model.traffic import RouteShares, TrafficFlows, UncertainNetwork, equilibrium

A = 5


def conditions(rng, names, count=3, network=None):
    """Scenarios of some of capacity, free_flow_time, b and demand_level."""
    network = braess() if network is None else network
    made = {
        "capacity": network.capacity * rng.uniform(0.5, 1.5, (count, network.n_arcs)),
        "free_flow_time": network.free_flow_time * rng.uniform(0.5, 1.5, (count, network.n_arcs)),
        "b": network.b * rng.uniform(0.5, 1.5, (count, network.n_arcs)),
        "demand_level": rng.uniform(0.5, 1.5, count),
    }
    return {name: made[name] for name in names}


FIELDS = ["capacity", "free_flow_time", "b", "demand_level"]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 1000),
    st.lists(st.sampled_from(FIELDS), min_size=1, unique=True),
    st.sampled_from([1.0, 2.5, 4.0]),
    st.booleans(),
)
def test_losses_are_those_of_the_network_of_each_scenario(seed, names, power, charged):
    rng = np.random.default_rng(seed)
    network = braess().replace(power=power, fixed_cost=rng.uniform(0, 3, A) if charged else 0.0)
    given_, others = (conditions(rng, names) for _ in range(2))
    uncertain = UncertainNetwork(network, **given_)
    flow = rng.uniform(0, 5, A)
    x = cp.Variable(A, nonneg=True)
    levels = others.get("demand_level", np.ones(3))
    cases = list(uncertain.networks(**others))
    for cost, judge in (("beckmann", "beckmann"), ("system_cost", "total_cost")):
        loss = getattr(uncertain, cost)(x)
        assert loss.is_convex()
        problem = wdro.Problem(cp.Minimize(loss), [x <= 5])
        x.value = flow
        losses = problem.losses(uncertain.as_test(**others))
        expected = [getattr(case, judge)(d * flow) for case, d in zip(cases, levels)]
        np.testing.assert_allclose(losses, expected, rtol=1e-9)


def test_uncertain_capacities_are_solved_exactly():
    """mean f + sqrt(radius) |q(x) / sqrt(w)|, as all slopes are >= 0: the support never binds."""
    network = sioux_falls()
    rng = np.random.default_rng(0)
    capacity = network.capacity * rng.uniform(0.6, 1.0, (10, 76))
    uncertain = UncertainNetwork(network, capacity=capacity)
    assert uncertain.time is None
    x = cp.Variable(76)
    cost = wdro.costs.SquaredEuclidean(weights="standardize")
    problem = wdro.Problem(
        cp.Minimize(uncertain.beckmann(x)),
        [wdro.In(x, TrafficFlows(network))],
        ambiguity=wdro.WassersteinBall(2.0, cost),
    )
    problem.solve(solver=wdro.solvers.FrankWolfe(gap=1e-3))
    assert problem.solution.method == "exact"
    flow = x.value
    delays = np.array(
        [network.free_flow_time * 0.15 * (network.capacity / c) ** 4 for c in capacity]
    )
    slope = flow * (flow / network.capacity) ** 4 / 5
    mean = np.mean([network.replace(capacity=c).beckmann(flow) for c in capacity])
    expected = mean + np.sqrt(2.0) * np.linalg.norm(slope * delays.std(axis=0))
    assert problem.value == pytest.approx(expected, rel=1e-6)


def test_links_that_never_congest_are_held():
    network = sioux_falls()
    b = network.b.copy()
    b[:3] = 0.0
    uncertain = UncertainNetwork(network.replace(b=b), capacity=[0.7, 0.9, 1.0])
    x = cp.Variable(76)
    cost = wdro.costs.SquaredEuclidean(weights="standardize")
    problem = wdro.Problem(
        cp.Minimize(uncertain.beckmann(x)),
        [wdro.In(x, TrafficFlows(network))],
        ambiguity=wdro.WassersteinBall(1.0, cost),
    )
    assert "3 coordinates held fixed" in str(problem.explain())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "nothing is uncertain: give scenarios of capacity="),
        ({"capacity": np.ones((3, 4))}, r"capacity must have shape \(N,\), factors, or \(N, 5\)"),
        ({"capacity": [1.0, 0.0]}, "must be finite and > 0, got 0.0 at index .*closed link"),
        ({"capacity": np.ones(5)}, r"may be 5 factors or one scenario .*capacity=\[values\]"),
        ({"capacity": np.full((3, 5), 1e-3)}, "are capacities.*multiply factors by network.cap"),
        ({"capacity": [np.nan]}, "must be finite and > 0, got nan"),
        ({"capacity": [1e-200]}, "too small for the power 4: its delay overflows"),
        ({"demand_level": np.ones((2, 5))}, r"demand_level must have shape \(N,\), factors, got"),
        ({"capacity": [1.0], "b": [1.0, 2.0]}, "as many of each, got 1 of capacity, 2 of b"),
    ],
)
def test_scenarios_that_cannot_be_are_refused(given, message):
    network = braess().replace(power=4.0)
    with pytest.raises(ValueError, match=message):
        UncertainNetwork(network, **given)
    with pytest.raises(TypeError, match="power"):
        UncertainNetwork(network, power=[3.0, 4.0])
    uncertain = UncertainNetwork(network, capacity=[0.9, 1.0])
    with pytest.raises(ValueError, match=r"give scenarios of capacity, .* got demand_level"):
        uncertain.as_test(demand_level=[1.0])
    with pytest.raises(ValueError, match=r"flows must have shape \(5,\)"):
        uncertain.beckmann(cp.Variable(4))
    with pytest.raises(ValueError, match="fixed cost of a link must be >= 0 together, got -3"):
        UncertainNetwork(network.replace(fixed_cost=-3.0), capacity=[1.0])


# ------------------------------------------------------------------ shares of routes
@pytest.fixture(scope="module")
def network():
    return sioux_falls()


@pytest.fixture(scope="module")
def routes(network):
    return RouteShares(network)


def test_every_choice_of_shares_routes_every_demand(network, routes):
    rng = np.random.default_rng(0)
    shares = rng.random(routes.dimension)
    shares /= np.bincount(routes.group_of, shares)[routes.group_of]
    demand = routes.demand * rng.uniform(0.5, 2, len(routes.pairs))
    flow = routes.link_flow(shares, demand)
    ends = np.array(routes.pairs) - 1
    wanted = np.bincount(ends[:, 0], demand, 24) - np.bincount(ends[:, 1], demand, 24)
    balance = np.bincount(network.tails, flow, 24) - np.bincount(network.heads, flow, 24)
    np.testing.assert_allclose(balance, wanted, atol=1e-6)
    assert (np.bincount(routes.group_of) >= 1).all()
    for route, pair in zip(routes.routes, routes.group_of):
        names = [network.arcs[a] for a in route]
        assert (names[0][0], names[-1][1]) == routes.pairs[pair]
        assert all(first[1] == second[0] for first, second in pairwise(names))


def test_the_oracle_over_routes_is_all_or_nothing_on_them(network, routes):
    weights = routes.uses.T @ network.free_flow_time * routes.demand[routes.group_of]
    shares = routes.minimize(weights)
    all_or_nothing = TrafficFlows(network).minimize(network.free_flow_time)
    flow = routes.link_flow(shares)
    assert network.free_flow_time @ flow == pytest.approx(network.free_flow_time @ all_or_nothing)
    wdro.sets.check(RouteShares(braess()))


def test_an_equilibrium_over_routes_is_near_the_one_over_links(network, routes):
    x = cp.Variable(routes.dimension)
    loss = wdro.traffic.beckmann(
        routes.link_flow(x), network.capacity, network.free_flow_time, network.b, network.power
    )
    problem = wdro.Problem(cp.Minimize(loss), [wdro.In(x, routes)])
    problem.solve(solver=wdro.solvers.FrankWolfe(gap=1e-3))
    flow, _ = equilibrium(network, gap=1e-4)
    assert network.beckmann(flow) * (1 - 1e-4) <= problem.value
    assert problem.value <= network.beckmann(flow) * (1 + 5e-3)


def test_routes_can_be_given(network):
    flows = TrafficFlows(network)
    paths = flows.shortest_paths(network.free_flow_time)
    given = RouteShares(network, paths)
    assert given.dimension == len(given.pairs) == 528
    by_times = RouteShares(network, [network.free_flow_time, np.ones(76)])
    assert 528 < by_times.dimension <= 2 * 528
    np.testing.assert_array_equal(
        given.demands(np.stack([network.demand, 2 * network.demand])),
        [given.demand, 2 * given.demand],
    )
    with pytest.raises(ValueError, match=r"times of shape \(K, 76\), got shape \(1, 5\)"):
        RouteShares(network, np.ones(5))
    with pytest.raises(ValueError, match="527 pairs of zones with demand have no route"):
        RouteShares(network, wdro.traffic.flows.paths.PathFlows(paths[:1], np.zeros(76)))
    with pytest.raises(ValueError, match="no demand between different zones"):
        RouteShares(network.scaled_demand(0.0))
    with pytest.raises(ValueError, match=r"shares must have shape \(528,\), one .* got \(3,\)"):
        given.link_flow(np.ones(3))
    with pytest.raises(ValueError, match=r"demand must have shape \(528,\).*routes.demands"):
        given.link_flow(np.ones(528), network.demand)
    with pytest.raises(ValueError, match=r"must have shape \(..., 24, 24\), got \(3, 3\)"):
        given.demands(np.ones((3, 3)))


def test_an_uncertain_demand_is_solved_without_a_word_about_epsilon():
    """Shares of routes on a small network, the demand of each pair uncertain."""
    network = braess().replace(
        demand=[[0.0, 6.0, 0.0], [0.0] * 3, [0.0, 3.0, 0.0]], zones=[0, 1, 2]
    )
    routes = RouteShares(network)
    rng = np.random.default_rng(0)
    samples = routes.demand * rng.uniform(0.7, 1.3, (8, len(routes.pairs)))
    support = wdro.supports.Box(0.2 * routes.demand, 3 * routes.demand)
    demand = wdro.UncertainParameter(len(routes.pairs), "demand", samples=samples, support=support)
    x = cp.Variable(routes.dimension, nonneg=True)
    loss = wdro.traffic.beckmann(
        routes.link_flow(x, demand), network.capacity, network.free_flow_time, network.b, 1.0
    )
    ball = wdro.WassersteinBall(0.2, wdro.costs.SquaredEuclidean(weights="standardize"))
    problem = wdro.Problem(cp.Minimize(loss), [wdro.In(x, routes)], ambiguity=ball)
    problem.solve("smoothed", solver=wdro.solvers.FrankWolfe(gap=1e-2))
    assert problem.status == "optimal"
    robust = problem.value
    problem.solve("erm")
    assert robust >= problem.value * (1 - 1e-2)
