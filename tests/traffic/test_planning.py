"""What planners read off an assignment, against independent computations."""

import io
from itertools import pairwise

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.traffic.networks import braess
from wdro_model.datasets import sioux_falls
from wdro_model.traffic import (
    Network,
    TrafficFlows,
    UserClass,
    class_equilibrium,
    equilibrium,
    link_results,
    marginal_tolls,
    price_of_anarchy,
    read_flows,
    select_link,
    skim,
    social_optimum,
)


# ------------------------------------------------------------------ link results
def test_link_results_are_those_of_the_formula_link_by_link():
    network = sioux_falls().replace(fixed_cost=np.arange(76.0))
    flow = np.linspace(0.0, 3e4, 76)
    rows = link_results(network, flow).rows()
    assert [row["link"] for row in rows] == list(range(76))
    for a, row in enumerate(rows):
        ratio = flow[a] / network.capacity[a]
        time = network.free_flow_time[a] * (1 + 0.15 * ratio**4)
        assert (row["tail"], row["head"]) == network.arcs[a]
        assert row["volume"] == flow[a]
        assert row["v/c"] == pytest.approx(ratio)
        assert row["time"] == pytest.approx(time)
        assert row["delay"] == pytest.approx(time - network.free_flow_time[a], abs=1e-9)
        assert row["total_delay"] == pytest.approx(row["delay"] * flow[a], abs=1e-6)
        assert row["cost"] == pytest.approx(time + a)


def test_an_assignment_stands_for_its_flow():
    network = braess()
    found = equilibrium(network)
    assert link_results(network, found).rows() == link_results(network, found.flow).rows()
    assert marginal_tolls(network, found).tolist() == marginal_tolls(network, found.flow).tolist()
    assert select_link(network, found, 3).total == pytest.approx(found.flow[3], abs=1e-6)


def test_link_results_print_the_most_loaded_and_sum_up():
    network = sioux_falls()
    flow, _ = equilibrium(network)
    results = link_results(network, flow)
    text = str(results)
    assert "Sioux Falls: the 12 most loaded links" in text
    assert f"{np.sum(flow > network.capacity)} of 76 links are over capacity" in text
    assert f"take {network.total_cost(flow):.6g}" in text
    loads = [float(line.split()[5]) for line in text.splitlines()[3:15]]
    assert loads == sorted(loads, reverse=True)
    assert loads[0] == pytest.approx((flow / network.capacity).max(), abs=1e-3)
    html = results._repr_html_()
    assert html.count("<tr") == 13
    assert "most loaded" in html
    assert "fixed costs are" in str(link_results(network.replace(fixed_cost=1.0), flow))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 1e9), min_size=5, max_size=5))
def test_a_table_of_link_results_is_read_back_to_the_last_bit(volumes):
    network = braess()
    results = link_results(network, volumes)
    assert results.to_frame()["volume"].tolist() == volumes
    assert read_flows(io.StringIO(results.to_csv()), network).tolist() == volumes


# ------------------------------------------------------------------ skims
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_skims_against_networkx(seed, closed):
    rng = np.random.default_rng(seed)
    n, m = 7, 18
    tails = rng.integers(0, n, m)
    heads = (tails + rng.integers(1, n, m)) % n
    through = np.ones(n, dtype=bool)
    through[:2] = not closed
    network = Network(
        tails, heads, 1.0, 1.0, 0.15, 4.0, np.zeros((4, 4)), through=through, nodes=range(n)
    )
    cost = rng.uniform(0.1, 1.0, m)  # no ties: one path of least cost
    toll = rng.normal(size=m)
    skims = skim(network, cost, {"toll": toll})
    assert list(skims) == ["cost", "toll"]
    for o in range(4):
        for d in range(4):
            graph = nx.MultiDiGraph()
            graph.add_nodes_from(range(n))
            for a in range(m):
                if through[tails[a]] or tails[a] == o:
                    graph.add_edge(tails[a], heads[a], key=a, cost=cost[a])
            if o == d:
                assert skims["cost"][o, d] == skims["toll"][o, d] == 0
            elif not nx.has_path(graph, o, d):
                assert skims["cost"][o, d] == skims["toll"][o, d] == np.inf
            else:
                path = nx.shortest_path(graph, o, d, weight="cost")
                arcs = [min(graph[u][v], key=lambda a: cost[a]) for u, v in pairwise(path)]
                assert skims["cost"][o, d] == pytest.approx(cost[arcs].sum())
                assert skims["toll"][o, d] == pytest.approx(toll[arcs].sum())


def test_skims_as_a_frame_and_what_they_refuse():
    network = braess().replace(nodes=("a", "b", "c", "d"))
    frame = skim(network, [1, 2, 1, 1, 2], {"length": np.arange(5.0)}).to_frame()
    assert frame.iloc[0].tolist() == ["a", "b", 2.0, 2.0]
    assert np.isinf(frame.iloc[1]["cost"])
    with pytest.raises(ValueError, match=r"cost must have shape \(5,\), got"):
        skim(network, np.ones(4))
    with pytest.raises(ValueError, match=r"cost must be finite and >= 0, got -1\.0"):
        skim(network, -np.ones(5))
    with pytest.raises(ValueError, match="toll must be finite"):
        skim(network, np.ones(5), {"toll": np.full(5, np.nan)})
    with pytest.raises(ValueError, match="along must be a dict of quantities by name"):
        skim(network, np.ones(5), ["toll"])
    with pytest.raises(ValueError, match="would hide the cost"):
        skim(network, np.ones(5), {"cost": np.ones(5)})


# ------------------------------------------------------------------ select-link
def test_select_link_of_braess_by_hand():
    """At the equilibrium of Braess' network two trips take each of its three paths."""
    network = braess()
    flow, _ = equilibrium(network, gap=1e-9)
    bridge = select_link(network, flow, (3, 4))
    assert bridge.total == pytest.approx(2, abs=1e-3)
    np.testing.assert_allclose(bridge.flow, [2, 0, 0, 2, 2], atol=1e-3)
    assert bridge.rows()[0]["share"] == pytest.approx(1 / 3, abs=1e-3)
    first = select_link(network, flow, 0)
    np.testing.assert_allclose(first.flow, [4, 0, 2, 2, 2], atol=2e-3)
    assert "trips use link 0, 1 -> 3" in str(first)


def test_select_link_adds_up_to_the_volume_and_the_demand():
    network = sioux_falls()
    flows = TrafficFlows(network)
    paths = 0.3 * flows.shortest_paths(network.free_flow_time) + 0.7 * flows.shortest_paths(
        network.travel_time(equilibrium(network).flow)
    )
    for arc in (0, 30, 75):
        selected = select_link(network, paths, arc)
        assert selected.total == pytest.approx(paths.link_flows[arc])
        assert sum(row["trips"] for row in selected.rows()) == pytest.approx(selected.total)
        for row in selected.rows():
            pair = network.demand[row["origin"] - 1, row["destination"] - 1]
            assert row["trips"] == pytest.approx(row["share"] * pair)
        assert selected.flow[arc] == pytest.approx(selected.total)
        assert (selected.flow <= paths.link_flows + 1e-6).all()
        assert selected.to_frame()["trips"].sum() == pytest.approx(selected.total)
    assert "<table" in selected._repr_html_()


@pytest.mark.parametrize(
    ("arc", "message"),
    [
        (5, "links are numbered from 0 to 4, got 5"),
        ((2, 1), "no link leads from 2 to 1"),
        ("1", r"a link is its position, or \(tail, head\), got '1'"),
        (None, "got None"),
        (("1", "3"), r"no link leads from '1' to '3' .*there is \(1, 3\), of another type"),
    ],
)
def test_links_that_do_not_exist_are_refused(arc, message):
    with pytest.raises(ValueError, match=message):
        select_link(braess(), np.zeros(5), arc)
    parallel = braess().replace(heads=[2, 2, 1, 3, 1], tails=[0, 0, 2, 2, 3])
    with pytest.raises(ValueError, match="the links 0, 1 all lead from 1 to 3"):
        select_link(parallel, np.zeros(5), (1, 3))


# ------------------------------------------------------------------ tolls
@pytest.mark.parametrize("make", [braess, sioux_falls])
def test_tolls_bring_the_social_optimum(make):
    network = make().replace(fixed_cost=0.25)
    best, _ = social_optimum(network, gap=1e-6)
    tolls = marginal_tolls(network, best)
    settled, _ = equilibrium(network.replace(fixed_cost=0.25 + tolls), gap=1e-6)
    assert network.total_cost(settled) == pytest.approx(network.total_cost(best), rel=1e-5)
    assert price_of_anarchy(network, gap=1e-6) > 1.01
    np.testing.assert_allclose(settled, best, atol=2e-2 * best.max())


def test_a_toll_is_what_one_more_trip_costs_the_others():
    network = sioux_falls()
    flow = np.linspace(5000.0, 3e4, 76)
    step = 1e-1
    later, sooner = (network.travel_time(flow + s) for s in (step, -step))
    slopes = (later - sooner) / (2 * step)
    np.testing.assert_allclose(marginal_tolls(network, flow), flow * slopes, rtol=1e-5)
    assert (marginal_tolls(network, np.zeros(76)) == 0).all()


# ------------------------------------------------------------------ several classes
def two_roads(**changes):
    """A free road that congests, and a toll road of constant time."""
    given = {
        "tails": [0, 0],
        "heads": [1, 1],
        "capacity": [10.0, 10.0],
        "free_flow_time": [1.0, 2.0],
        "b": [1.0, 0.0],
        "power": [1.0, 0.0],
        "demand": [[0.0, 30.0], [0.0, 0.0]],
    }
    return Network(**(given | changes))


def test_those_who_value_their_time_pay_the_toll():
    """The free road takes 1 + v/10: the poor find 2 + 4/2 = 4 dear, the rich 2 + 4/8 = 2.5."""
    network = two_roads()
    demand = np.array([[0.0, 15.0], [0.0, 0.0]])
    toll = np.array([0.0, 4.0])
    poor = UserClass("poor", demand, value_of_time=2.0, fixed_cost=toll)
    rich = UserClass("rich", demand, value_of_time=8.0, fixed_cost=toll)
    result = class_equilibrium(network, [poor, rich], gap=1e-9)
    np.testing.assert_allclose(result.volume, [15, 15], atol=1e-3)
    np.testing.assert_allclose(result.flows["poor"], [15, 0], atol=1e-3)
    np.testing.assert_allclose(result.flows["rich"], [0, 15], atol=1e-3)
    assert result.gap <= 1e-9
    np.testing.assert_allclose(result.cost("rich"), [2.5, 2.5], atol=1e-3)
    rows = {row["name"]: row for row in result.rows()}
    assert rows["rich"]["paid"] == pytest.approx(4, abs=1e-3)
    assert rows["poor"]["time"] == pytest.approx(2.5, abs=1e-3)
    assert "rich" in str(result)
    with pytest.raises(ValueError, match="no class 'middle'; the classes are 'poor', 'rich'"):
        result.cost("middle")


def by_paths(network, classes):
    """The potential's minimum over path flows, by a conic solver."""
    graph = nx.MultiDiGraph()
    for a, (u, v) in enumerate(zip(network.tails.tolist(), network.heads.tolist())):
        graph.add_edge(u, v, key=a)
    volume, linear, constraints = 0, 0, []
    for user in classes:
        charge = np.broadcast_to(user.fixed_cost, network.n_arcs) / user.value_of_time
        for o, d in np.argwhere(np.asarray(user.demand) > 0).tolist():
            if o == d:
                continue
            paths = list(nx.all_simple_edge_paths(graph, o, d))
            uses = np.zeros((network.n_arcs, len(paths)))
            for k, path in enumerate(paths):
                uses[[key for _, _, key in path], k] = 1.0
            share = cp.Variable(len(paths), nonneg=True)
            constraints.append(cp.sum(share) == user.pce * user.demand[o, d])
            volume = volume + uses @ share
            linear = linear + (charge + network.fixed_cost) @ (uses @ share)
    congested = network.free_flow_time * network.b * network.capacity / (network.power + 1)
    ratio = cp.multiply(1 / network.capacity, volume)
    potential = network.free_flow_time @ volume + linear
    potential += congested @ cp.power(ratio, float(network.power[0]) + 1)
    problem = cp.Problem(cp.Minimize(potential), constraints)
    problem.solve(solver="CLARABEL")
    return problem.value, volume.value


@pytest.mark.parametrize("seed", range(6))
def test_several_classes_against_a_conic_solver_over_paths(seed):
    rng = np.random.default_rng(seed)
    n, m = 5, 12
    ring = np.arange(n)
    tails = np.concatenate([ring, rng.integers(0, n, m - n)])
    heads = np.concatenate([(ring + 1) % n, (tails[n:] + rng.integers(1, n, m - n)) % n])
    network = Network(
        tails,
        heads,
        capacity=rng.uniform(3, 10, m),
        free_flow_time=rng.uniform(1, 3, m),
        b=rng.uniform(0.1, 1, m),
        power=2.0,
        demand=np.zeros((n, n)),
        fixed_cost=rng.uniform(0, 0.5, m),
    )
    classes = [
        UserClass(
            name,
            np.where(rng.random((n, n)) < 0.4, rng.uniform(1, 5, (n, n)), 0.0) * (1 - np.eye(n))
            + np.diag(np.full(n - 1, 1.0), 1),
            value_of_time=vot,
            fixed_cost=rng.uniform(0, 4, m),
            pce=pce,
        )
        for name, vot, pce in (("cars", 1.0, 1.0), ("business", 8.0, 1.0), ("trucks", 3.0, 2.5))
    ]
    result = class_equilibrium(network, classes, gap=1e-6)
    value, volume = by_paths(network, classes)
    assert result.solution.value == pytest.approx(value, rel=1e-5)
    np.testing.assert_allclose(result.volume, volume, atol=2e-2 * volume.max())
    assert result.gap <= 1e-6
    for user in classes:  # each class is routed: what leaves a zone is its demand
        flow = result.flows[user.name]
        balance = np.bincount(tails, flow, n) - np.bincount(heads, flow, n)
        moved = user.demand - np.diag(np.diag(user.demand))
        np.testing.assert_allclose(balance, moved.sum(1) - moved.sum(0), atol=1e-6)


def test_one_class_is_the_equilibrium():
    network = sioux_falls()
    result = class_equilibrium(network, [UserClass("all", network.demand)], gap=1e-5)
    flow, solution = equilibrium(network, gap=1e-5)
    assert result.solution.value == pytest.approx(solution.value, rel=1e-5)
    halves = [UserClass(name, 0.25 * network.demand, pce=2.0) for name in "ab"]
    split = class_equilibrium(network, halves, gap=1e-5)
    np.testing.assert_allclose(split.volume, flow, atol=0.01 * flow.max())


def test_classes_that_cannot_be_are_refused():
    network, demand = two_roads(), np.zeros((2, 2))
    for classes, message in (
        ([], "at least one wdro_model.traffic.UserClass"),
        ([demand], r"got \['ndarray'\]"),
        ([UserClass("a", demand)] * 2, "different names, got 'a' twice"),
        ([UserClass("a", np.zeros((3, 3)))], r"demand of class 'a' must have shape \(2, 2\)"),
        ([UserClass("a", demand, fixed_cost=np.ones(3))], "one entry for each of the 2 arcs"),
    ):
        with pytest.raises(ValueError, match=message):
            class_equilibrium(network, classes)
    for bad in ({"value_of_time": 0}, {"pce": -1}, {"value_of_time": "high"}):
        with pytest.raises(ValueError, match="of class 'a' must be a positive finite number"):
            UserClass("a", demand, **bad)
