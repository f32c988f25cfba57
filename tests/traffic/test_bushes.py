"""Equilibria on bushes, against other methods, other libraries and Wardrop's conditions."""

from __future__ import annotations

import pickle
import sys
from importlib import import_module

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from tests.traffic.networks import braess, networks
from tests.traffic.reference import published
from wdro_model.datasets import sioux_falls
from wdro_model.errors import InfeasibleError
from wdro_model.sets import TrafficFlows
from wdro_model.solvers import FrankWolfe
from wdro_model.traffic import Network, equilibrium, relative_gap, social_optimum

pytest.importorskip("numba")


def random_network(seed, *, demand=6.0, powers=(0.0, 0.5, 1.0, 2.5, 4.0)):
    """A ring with chords, parallel arcs, arcs without cost, closed zones, fixed costs."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 12))
    ring = [(i, (i + 1) % n) for i in range(n)]
    chords = [tuple(map(int, rng.choice(n, 2, replace=False))) for _ in range(2 * n)]
    arcs = ring + chords + chords[: n // 2]
    count = len(arcs)
    zones = int(rng.integers(2, n))
    through = np.ones(n, dtype=bool)
    if rng.random() < 0.5:
        # Closed zones hang on the ring; each has a way in and out that passes no other.
        through = np.concatenate([np.zeros(zones, dtype=bool), through])
        ends = rng.integers(0, n, zones)
        arcs = [(u + zones, v + zones) for u, v in arcs]
        arcs += [(z, int(end) + zones) for z, end in enumerate(ends)]
        arcs += [(int(end) + zones, z) for z, end in enumerate(ends)]
        count = len(arcs)
    trips = rng.uniform(0, demand, (zones, zones)) * (rng.random((zones, zones)) < 0.6)
    return Network(
        tails=[u for u, _ in arcs],
        heads=[v for _, v in arcs],
        capacity=rng.uniform(1, 10, count),
        free_flow_time=rng.uniform(0, 3, count) * (rng.random(count) < 0.8),
        b=rng.uniform(0, 2, count) * (rng.random(count) < 0.8),
        power=rng.choice(powers, count),
        fixed_cost=rng.uniform(0, 1, count) * (rng.random(count) < 0.3),
        demand=trips,
        through=through,
        nodes=tuple(range(len(through))),
    )


def gap_by_networkx(network, flow):
    """(<t, x> - sum of demand times shortest lengths) / <t, x>, all by NetworkX and Python."""
    times = network.free_flow_time * (1 + network.b * (flow / network.capacity) ** network.power)
    times = times + network.fixed_cost
    graph = nx.MultiDiGraph()
    graph.add_nodes_from(range(network.n_nodes))
    for u, v, t in zip(network.tails.tolist(), network.heads.tolist(), times.tolist()):
        graph.add_edge(u, v, weight=t)
    least = 0.0
    for o, row in enumerate(network.demand):
        origin = int(network.zones[o])
        closed = {v for v in range(network.n_nodes) if not network.through[v]} - {origin}
        roads = graph.copy()
        roads.remove_edges_from([(u, v, k) for u, v, k in graph.edges if u in closed])
        lengths = nx.single_source_dijkstra_path_length(roads, origin)
        least += sum(
            trips * lengths[int(network.zones[d])]
            for d, trips in enumerate(row)
            if trips > 0 and d != o
        )
    spent = float(times @ flow)
    return (spent - least) / spent if spent else 0.0


def assert_conserved(network, flow):
    """What leaves a node less what enters it is what its zone sends less what it receives."""
    balance = np.bincount(network.tails, flow, network.n_nodes)
    balance -= np.bincount(network.heads, flow, network.n_nodes)
    demand = network.demand - np.diag(np.diag(network.demand))
    expected = np.zeros(network.n_nodes)
    expected[network.zones] = demand.sum(axis=1) - demand.sum(axis=0)
    np.testing.assert_allclose(balance, expected, atol=1e-10 * max(1.0, network.total_demand))


# ------------------------------------------------------------------ right answers
@pytest.mark.parametrize("seed", range(60))
def test_random_networks_reach_the_gap_by_an_independent_measure(seed):
    network = random_network(seed)
    flow, solution = equilibrium(network, gap=1e-9, method="bushes")
    assert solution.status == "optimal"
    assert flow.min() >= 0
    assert -1e-12 <= gap_by_networkx(network, flow) <= 1e-9
    assert_conserved(network, flow)
    assert solution.value == pytest.approx(network.beckmann(flow), rel=1e-12)
    assert solution.lower_bound <= solution.value + 1e-12 * abs(solution.value)


@pytest.mark.parametrize("seed", range(20))
def test_links_and_bushes_find_the_same_objective(seed):
    network = random_network(seed, powers=(1.0, 2.0, 4.0))
    on_bushes = equilibrium(network, gap=1e-10, method="bushes").solution
    on_links = equilibrium(network, gap=1e-5, method="frank_wolfe").solution
    assert on_bushes.value <= on_links.value * (1 + 1e-9) + 1e-12
    assert on_bushes.value >= on_links.lower_bound * (1 - 1e-9) - 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_a_conic_solver_finds_the_same_objective(seed):
    network = random_network(seed, demand=3.0, powers=(1.0, 2.0, 3.0))
    flows = TrafficFlows(network, backend="scipy")
    x = cp.Variable(network.n_arcs)
    load = cp.multiply(x, 1 / network.capacity)
    weight = network.free_flow_time * network.b / (network.power + 1) * network.capacity
    congestion = [w * cp.power(r, p + 1) for w, r, p in zip(weight, load, network.power) if w > 0]
    loss = (network.free_flow_time + network.fixed_cost) @ x + cp.sum(cp.hstack(congestion))
    program = cp.Problem(cp.Minimize(loss), [*flows.constraints(x), x >= 0])
    best = program.solve(solver=cp.CLARABEL)
    assert program.status == "optimal"
    assert equilibrium(network, gap=1e-10, method="bushes").solution.value == pytest.approx(
        best, rel=1e-5, abs=1e-6
    )


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(networks())
def test_any_network_is_solved_refused_or_said_to_be_unfinished(network):
    demand = network.demand - np.diag(np.diag(network.demand))
    assume(np.abs(demand).sum() < 1e6)
    try:
        found = equilibrium(network, gap=1e-6, method="bushes", time_limit=20.0)
    except (InfeasibleError, FloatingPointError, ValueError):
        return
    flow, solution = found
    gap = relative_gap(network, flow, TrafficFlows(network, backend="networkx"))
    assert flow.min() >= 0
    assert_conserved(network, flow)
    assert gap >= -1e-9
    assert (gap <= 1e-6 * (1 + 1e-6) + 1e-12) == (solution.status == "optimal")


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_used_paths_have_the_cost_of_a_shortest_path(seed):
    """Wardrop: path by path, against the shortest costs by scipy."""
    network = random_network(seed)
    found = equilibrium(network, gap=1e-12, method="bushes")
    assume(found.solution.status == "optimal")
    times = network.travel_time(found.flow)
    shortest = TrafficFlows(network, backend="scipy").shortest_costs(times)
    zone = {network.nodes[v]: z for z, v in enumerate(network.zones)}
    excess = 0.0
    for path in found.path_flows():
        cost = times[list(path.arcs)].sum()
        least = shortest[zone[path.origin], zone[path.destination]]
        assert cost >= least - 1e-9 * max(1.0, least)
        excess += path.flow * (cost - least)
    assert excess <= 2e-12 * float(times @ found.flow) + 1e-12


@pytest.mark.parametrize("p", [0.3, 0.5, 1.0, 1.7, 4.0, 11.3])
def test_two_roads_share_the_trips_as_a_line_search_says(p):
    """Any power, also below 1, where the slope of the time is infinite without flow."""
    network = Network(
        [0, 0], [1, 1], [2.0, 3.0], [1.0, 1.5], [0.7, 1.1], [p, p], [[0, 9.0], [0, 0]]
    )
    best = minimize_scalar(
        lambda s: network.beckmann([s, 9.0 - s]), bounds=(0, 9), options={"xatol": 1e-10}
    )
    flow = equilibrium(network, gap=1e-12, method="bushes").flow
    np.testing.assert_allclose(flow, [best.x, 9 - best.x], atol=1e-5)


def test_published_objectives_to_ten_digits():
    for name, best in (("SiouxFalls", 4231335.28710744), ("Anaheim", 1286032.171096)):
        network = published(name)
        flow, solution = equilibrium(network, gap=1e-12, method="bushes")
        assert solution.status == "optimal"
        assert solution.value == pytest.approx(best, rel=1e-12)
        flows = TrafficFlows(network, backend="scipy")
        assert abs(relative_gap(network, flow, flows)) <= 1.1e-12


def test_a_capacity_folded_into_b_changes_nothing():
    """As some public networks have it: capacity 1, and b of 1e-60."""
    network = sioux_falls().replace(power=13.7)
    folded = network.replace(capacity=1.0, b=network.b / network.capacity**network.power)
    assert folded.b.max() < 1e-45
    values = [
        equilibrium(one, gap=1e-11, method="bushes").solution.value for one in (network, folded)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-11)


def test_the_social_optimum_on_bushes_is_that_on_links():
    network = sioux_falls()
    best = social_optimum(network, gap=1e-9, method="bushes").solution
    other = social_optimum(network, gap=1e-4, method="frank_wolfe").solution
    assert other.lower_bound <= best.value <= other.value
    assert best.gap <= 1e-9 * best.value


def test_a_cycle_of_arcs_that_cost_nothing_carries_no_more_than_the_trips():
    network = Network(
        [0, 1, 2, 0, 2], [1, 2, 0, 2, 1], 1.0, 0.0, 0.15, 4.0, [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    )
    flow, solution = equilibrium(network, method="bushes")
    assert solution.status == "optimal"
    assert solution.value == 0.0
    assert_conserved(network, flow)
    assert flow.max() <= network.total_demand


def test_a_network_without_demand_has_no_flow():
    network = braess().replace(demand=np.zeros((2, 2)))
    found = equilibrium(network, method="bushes")
    assert not found.flow.any()
    assert found.solution.status == "optimal"
    assert len(found.path_flows()) == 0


# ------------------------------------------------------------------ starts
def test_an_earlier_assignment_is_a_start_for_other_demand_and_other_times():
    network = sioux_falls()
    first = equilibrium(network, gap=1e-8, method="bushes")
    busier = network.replace(
        demand=network.demand * np.linspace(0.9, 1.1, 24)[:, None], capacity=network.capacity * 0.98
    )
    warm = equilibrium(busier, gap=1e-8, start=first)
    cold = equilibrium(busier, gap=1e-8)
    assert warm.solution.value == pytest.approx(cold.solution.value, rel=1e-9)
    assert warm.solution.iterations < cold.solution.iterations
    assert_conserved(busier, warm.flow)


def test_a_start_may_lack_origins_and_have_others():
    network = sioux_falls()
    even, odd = network.demand.copy(), network.demand.copy()
    even[1::2], odd[::2] = 0.0, 0.0
    first = equilibrium(network.replace(demand=even), method="bushes")
    for demand in (odd, network.demand):
        later = network.replace(demand=demand)
        found = equilibrium(later, gap=1e-9, start=first)
        assert found.solution.status == "optimal"
        assert_conserved(later, found.flow)


@pytest.mark.parametrize("method", ["bushes", "frank_wolfe"])
def test_flows_are_a_start(method):
    network = sioux_falls()
    first = equilibrium(network, gap=1e-3)
    for start in (first.flow, first.solution, first, first.flow.tolist()):
        found = equilibrium(network, gap=1e-4, start=start, method=method)
        assert found.solution.status == "optimal"
    already = equilibrium(network, gap=1e-2, start=first, method=method)
    assert already.solution.iterations == 0


def test_a_start_on_other_arcs_is_refused():
    first = equilibrium(braess(), method="bushes")
    with pytest.raises(ValueError, match=r"start is an assignment on other arcs"):
        equilibrium(sioux_falls(), start=first)
    with pytest.raises(ValueError, match=r"must have shape \(76,\)"):
        equilibrium(sioux_falls(), start=np.ones(3))
    with pytest.raises(ValueError, match=r"start must be an earlier assignment.* got 'flows'"):
        equilibrium(sioux_falls(), start="flows")
    with pytest.raises(ValueError, match=r"start has values of 2 variables"):
        equilibrium(sioux_falls(), start={"a": 1.0, "b": 2.0})
    with pytest.raises(ValueError, match=r"start does not route the demand of Network"):
        equilibrium(sioux_falls(), start=np.ones(76), method="frank_wolfe")


def test_an_assignment_travels_with_its_bushes():
    network = sioux_falls()
    first = equilibrium(network, gap=1e-6, method="bushes")
    twin = pickle.loads(pickle.dumps(first))
    assert np.array_equal(twin.flow, first.flow)
    assert equilibrium(network, gap=1e-6, start=twin).solution.iterations == 0
    harder = equilibrium(network, gap=1e-12, start=twin).solution
    assert harder.status == "optimal"


# ------------------------------------------------------------------ paths
def test_paths_add_up_to_the_flow_and_to_the_demand():
    network = published("Anaheim")
    found = equilibrium(network, gap=1e-8, method="bushes")
    paths = found.path_flows()
    np.testing.assert_allclose(paths.link_flows, found.flow, atol=1e-7)
    sent = {}
    for path in paths:
        assert path.nodes[0] == path.origin
        assert path.nodes[-1] == path.destination
        assert len(set(path.nodes)) == len(path.nodes)
        sent[path.origin, path.destination] = (
            sent.get((path.origin, path.destination), 0.0) + path.flow
        )
    nodes, demand = network.nodes, network.demand
    wanted = {
        (nodes[network.zones[o]], nodes[network.zones[d]]): demand[o, d]
        for o, d in np.argwhere(demand > 0)
        if o != d
    }
    assert sent.keys() == wanted.keys()
    np.testing.assert_allclose([sent[key] for key in wanted], list(wanted.values()), rtol=1e-9)


def test_an_assignment_on_links_knows_no_paths():
    found = equilibrium(sioux_falls(), gap=1e-2, method="frank_wolfe")
    with pytest.raises(ValueError, match=r"knows no paths; use method='bushes'"):
        found.path_flows()


# ------------------------------------------------------------------ methods, limits, messages
def test_a_misspelt_method_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"unknown method 'bush'. Did you mean 'bushes'\?"):
        equilibrium(braess(), method="bush")


def test_a_solver_goes_with_links():
    solver = FrankWolfe(gap=1e-3)
    with pytest.raises(ValueError, match=r"with method='bushes', which is its own solver"):
        equilibrium(braess(), method="bushes", solver=solver)
    assert "Frank-Wolfe" in equilibrium(braess(), solver=solver).solution.solver


def test_without_numba_links_are_taken_and_bushes_missed_with_a_hint(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    found = equilibrium(braess(), flows=TrafficFlows(braess(), backend="scipy"))
    assert "Frank-Wolfe" in found.solution.solver
    with pytest.raises(ImportError, match=r"method 'bushes' needs Numba.*wdro_model\[fast\]"):
        equilibrium(braess(), method="bushes")


def test_costs_below_zero_are_left_to_links():
    network = braess().replace(fixed_cost=[0.0, -60.0, 0.0, 0.0, 0.0])
    with pytest.raises(ValueError, match=r"arc 1 costs -10 without flow, and bushes need"):
        equilibrium(network, method="bushes")


def test_limits_of_a_run_on_bushes_are_said():
    network = sioux_falls()
    late = equilibrium(network, gap=1e-12, time_limit=1e-6, method="bushes")
    assert late.solution.status == "user_limit"
    assert late.solution.stop == "time limit"
    assert_conserved(network, late.flow)
    assert late.solution.gap == pytest.approx(
        relative_gap(network, late.flow) * network.total_cost(late.flow), rel=1e-9
    )


def test_a_gap_that_rounding_does_not_allow_is_not_called_optimal():
    found = equilibrium(published("Anaheim"), gap=1e-19, method="bushes").solution
    if found.gap > 1e-19 * found.value:
        assert found.status == "optimal_inaccurate"
        assert found.stop == "rounding errors leave no smaller gap"
    assert found.relative_gap < 1e-12


def test_an_interrupt_returns_the_flows_so_far(monkeypatch):
    kernels = import_module("wdro_model.traffic.bushes.kernels")
    balance, calls = kernels.balance, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return balance(*arguments)

    monkeypatch.setattr(kernels, "balance", interrupted)
    network = sioux_falls()
    flow, solution = equilibrium(network, gap=1e-12, method="bushes")
    assert solution.status == "user_limit"
    assert solution.stop == "interrupted from the keyboard"
    assert_conserved(network, flow)
    assert solution.gap == pytest.approx(
        relative_gap(network, flow) * network.total_cost(flow), rel=1e-9
    )


def test_verbose_prints_a_table_and_the_reason(capsys):
    equilibrium(sioux_falls(), gap=1e-4, verbose=True, method="bushes")
    printed = capsys.readouterr().out
    assert "gap" in printed.splitlines()[0]
    assert "stopped: the relative gap is under the tolerance" in printed


def test_work_in_small_parts_changes_nothing(monkeypatch):
    state = import_module("wdro_model.traffic.bushes.state")
    expected = equilibrium(sioux_falls(), gap=1e-10, method="bushes").solution.value
    monkeypatch.setattr(state, "LINKS_PER_CALL", 1)
    found = equilibrium(sioux_falls(), gap=1e-10, method="bushes")
    assert found.solution.value == pytest.approx(expected, rel=1e-12)
    assert_conserved(sioux_falls(), found.flow)


def rivals(preference):
    """Two origins share two steep roads; the first pays 1e-3 less on one, the second on the other.

    Nodes 0 and 1 are the origins, 2 -> 4 and 3 -> 4 the roads, 4 is where all go.
    """
    extra = 1e-3 * (1.0 + np.array([-preference, preference, preference, -preference, 0.0, 0.0]))
    demand = np.zeros((5, 5))
    demand[:2, 4] = 1000.0
    return Network(
        tails=[0, 0, 1, 1, 2, 3],
        heads=[2, 3, 2, 3, 4, 4],
        capacity=500.0,
        free_flow_time=[0.0, 0.0, 0.0, 0.0, 10.0, 10.0],
        b=[0.0, 0.0, 0.0, 0.0, 0.15, 0.15],
        power=4.0,
        demand=demand,
        fixed_cost=extra,
    )


def test_origins_that_want_each_others_road_exchange_roads():
    before = equilibrium(rivals(-1.0), gap=1e-12, method="bushes")
    assert before.flow[[1, 2]] == pytest.approx(1000.0)
    after = equilibrium(rivals(1.0), gap=1e-12, method="bushes", start=before)
    assert after.solution.status == "optimal"
    assert after.flow == pytest.approx([1000.0, 0.0, 0.0, 1000.0, 1000.0, 1000.0], abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_crowded_grids_with_steep_and_flat_roads_reach_small_gaps(seed):
    rng = np.random.default_rng(seed)
    side, count = 9, 81
    pairs = [(i * side + j, i * side + j + 1) for i in range(side) for j in range(side - 1)]
    pairs += [(i * side + j, (i + 1) * side + j) for i in range(side - 1) for j in range(side)]
    arcs = np.array(pairs + [(v, u) for u, v in pairs])
    zones = rng.choice(count, 15, replace=False)
    steep = rng.choice([0.0, 1.0, 4.0, 9.0], size=len(arcs))
    network = Network(
        arcs[:, 0],
        arcs[:, 1],
        capacity=rng.choice([300.0, 600.0, 1200.0], size=len(arcs)),
        free_flow_time=rng.uniform(0.5, 3.0, size=len(arcs)) * (rng.random(len(arcs)) > 0.05),
        b=np.where(steep > 0, 0.15, 0.0),
        power=steep,
        demand=rng.lognormal(3.5, 1.0, size=(15, 15)),
        zones=zones,
    )
    flow, solution = equilibrium(network, gap=1e-10, method="bushes")
    assert solution.status == "optimal"
    assert relative_gap(network, flow, TrafficFlows(network, "scipy")) <= 1e-10
    assert_conserved(network, flow)
