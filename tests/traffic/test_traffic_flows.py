"""All-or-nothing assignments against Bellman and Ford's shortest paths, by every backend."""

from __future__ import annotations

import copy
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import wdro_model as wdro
from tests.traffic.reference import published
from wdro_model.errors import InfeasibleError
from wdro_model.sets import TrafficFlows, check
from wdro_model.traffic import Network
from wdro_model.traffic.flows import paths

needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")
BACKENDS = [
    pytest.param(name, marks=needs_numba if name == "numba" else ())
    for name in TrafficFlows.backends()
]
ACCURACY = {"cvxpy": 1e-6, "ortools": 1e-8}


@dataclass
class Roads:
    """The least that a network must have; unlike a Network it may have self-loops."""

    tails: Any
    heads: Any
    demand: Any
    zones: Any
    through: Any
    nodes: Any


def network(arcs, demand, closed=(), nodes=None):
    """A network of arcs (tail, head) between 0, 1, ... with demand {(origin, destination): q}."""
    tails, heads = np.array(arcs).T
    count = int(max(tails.max(), heads.max(), *(v for pair in demand for v in pair), 0)) + 1
    matrix = np.zeros((count, count))
    for pair, quantity in demand.items():
        matrix[pair] = quantity
    through = np.ones(count, dtype=bool)
    through[list(closed)] = False
    return Network(tails, heads, 1.0, 1.0, 0.15, 4.0, matrix, through=through, nodes=nodes)


def distances(roads, weights, origin):
    """Bellman and Ford from a node: never on from a node that may not be passed."""
    far = [np.inf] * len(roads.nodes)
    far[origin] = 0.0
    for _ in roads.nodes:
        for tail, head, weight in zip(roads.tails, roads.heads, weights):
            if tail == origin or roads.through[tail]:
                far[head] = min(far[head], far[tail] + weight)
    return far


def least_cost(roads, weights):
    """The sum over pairs of zones of demand times distance."""
    total = 0.0
    for o, origin in enumerate(roads.zones):
        ends = [d for d in range(len(roads.zones)) if d != o and roads.demand[o][d] > 0]
        far = distances(roads, weights, origin) if ends else []
        total += sum(roads.demand[o][d] * far[roads.zones[d]] for d in ends)
    return total


def assert_routes_the_demand(roads, x):
    """Flow conservation at every node, and nothing passing a node that may not be passed."""
    size, loose = len(roads.nodes), roads.demand - np.diag(np.diag(roads.demand))
    leaving, arriving = np.zeros(size), np.zeros(size)
    leaving[roads.zones], arriving[roads.zones] = loose.sum(axis=1), loose.sum(axis=0)
    out, into = np.bincount(roads.tails, x, size), np.bincount(roads.heads, x, size)
    assert np.all(x >= 0)
    np.testing.assert_allclose(out - into, leaving - arriving, atol=1e-9 * (1 + loose.sum()))
    closed = ~np.asarray(roads.through)
    np.testing.assert_allclose(into[closed], arriving[closed], atol=1e-9 * (1 + loose.sum()))


def fuzzed(seed):
    """A small network and weights: zero weights and cycles, ties, parallel arcs, closed nodes."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 9))
    arcs = int(rng.integers(1, 4 * size))
    loops = bool(rng.random() < 0.3)
    tails = rng.integers(0, size, arcs)
    heads = (tails + rng.integers(0 if loops else 1, size, arcs)) % size
    again = rng.integers(0, arcs, int(rng.integers(0, 5)))
    tails, heads = np.append(tails, tails[again]), np.append(heads, heads[again])
    zones = rng.permutation(size)[: int(rng.integers(1, size + 1))]
    through = rng.random(size) < rng.choice([0.4, 0.8, 1.0])
    demand = np.round(rng.gamma(1.0, 5.0, (zones.size, zones.size)), int(rng.integers(0, 4)))
    demand *= rng.random(demand.shape) < rng.choice([0.2, 0.9])
    roads = Roads(tails, heads, demand, zones, through, tuple("abcdefghi"[:size]))
    for o, origin in enumerate(zones):
        far = np.array(distances(roads, np.ones(tails.size), origin))[zones]
        demand[o, np.isinf(far)] = 0.0
    weights = [
        rng.uniform(0, 1, tails.size),
        rng.integers(0, 3, tails.size).astype(float),
        rng.uniform(0, 1, tails.size) * (rng.random(tails.size) < 0.3),
        np.zeros(tails.size),
        10.0 ** rng.uniform(-3, 3, tails.size),
    ][int(rng.integers(0, 5))]
    if np.any(tails == heads):
        return roads, weights
    given = {"demand": demand, "zones": zones, "through": through, "nodes": roads.nodes}
    return Network(tails, heads, 1.0, 1.0, 0.15, 4.0, **given), weights


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_trip_takes_a_shortest_path_on_300_networks(backend):
    for seed in range(300):
        roads, weights = fuzzed(seed)
        x = TrafficFlows(roads, backend=backend).minimize(weights)
        expected, accuracy = least_cost(roads, weights), ACCURACY.get(backend, 1e-12)
        assert weights @ x == pytest.approx(expected, rel=accuracy, abs=1e-12), seed
        assert_routes_the_demand(roads, x)
        assert not np.any(x[roads.tails == roads.heads])
        lower, upper = TrafficFlows(roads).bounds
        assert np.all((lower <= x) & (x <= upper * (1 + 1e-12)))


@pytest.mark.parametrize(
    "name", ["Braess-Example", "SiouxFalls", "Eastern-Massachusetts", "Anaheim"]
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_published_networks_cost_the_same_with_every_backend(name, backend):
    roads = published(name)
    assert roads.through.all() == (name != "Anaheim")
    flows = TrafficFlows(roads, backend=backend)
    free = roads.travel_time(np.zeros(roads.n_arcs))
    congested = roads.travel_time(TrafficFlows(roads).minimize(free))
    for weights in (free, congested):
        x = flows.minimize(weights)
        distance = flows.shortest_costs(weights)
        cost = sum(roads.demand[pair] * distance[pair] for pair in zip(*np.nonzero(roads.demand)))
        assert weights @ x == pytest.approx(cost, rel=ACCURACY.get(backend, 1e-12))
        assert_routes_the_demand(roads, x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_zone_is_an_end_of_trips_and_not_a_short_cut(backend):
    arcs = [(0, 1), (1, 2), (0, 3), (3, 2), (2, 1), (1, 0)]
    demand = {(0, 2): 5.0, (0, 1): 2.0, (1, 2): 1.0}
    weights = np.array([1.0, 1.0, 10.0, 10.0, 1.0, 1.0])
    x = TrafficFlows(network(arcs, demand), backend=backend).minimize(weights)
    assert x.tolist() == [7.0, 6.0, 0.0, 0.0, 0.0, 0.0]
    x = TrafficFlows(network(arcs, demand, closed=[1]), backend=backend).minimize(weights)
    assert x.tolist() == [2.0, 1.0, 5.0, 5.0, 0.0, 0.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_cheapest_of_parallel_arcs_is_used_at_every_call(backend):
    flows = TrafficFlows(network([(0, 1), (0, 1), (0, 1)], {(0, 1): 3.0}), backend=backend)
    for cheapest in (2, 0, 1, 2):
        weights = np.full(3, 2.0)
        weights[cheapest] = 1.0
        assert flows.minimize(weights).tolist() == [3.0 * (a == cheapest) for a in range(3)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_demands_of_very_different_size_are_routed_exactly(backend):
    roads = network([(0, 1), (1, 2), (0, 2)], {(0, 1): 1e6, (0, 2): 1e-7, (1, 2): 1 / 3})
    x = TrafficFlows(roads, backend=backend).minimize([1.0, 1.0, 5.0])
    np.testing.assert_allclose(x, [1e6 + 1e-7, 1e-7 + 1 / 3, 0.0], rtol=1e-15)


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_of_any_size_are_accepted(backend):
    roads = network([(0, 1), (1, 2), (0, 2)], {(0, 2): 1.0})
    flows = TrafficFlows(roads, backend=backend)
    for size in (1e-300, 1e-12, 1e12, 1e308):
        assert flows.minimize(np.array([1.0, 1.0, 1.7]) * size).tolist() == [0.0, 0.0, 1.0]
        assert flows.minimize(np.array([0.7, 0.9, 1.7]) * size).tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_check_passes(backend):
    for seed in (3, 5, 8):
        assert check(TrafficFlows(fuzzed(seed)[0], backend=backend), directions=12).passed
    assert check(TrafficFlows(wdro.datasets.sioux_falls(), backend=backend), directions=8).passed


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_network_without_demand_has_no_flow(backend):
    roads = network([(0, 1), (1, 2)], {(2, 2): 4.0}, nodes=("a", "b", "c"))
    flows = TrafficFlows(roads, backend=backend)
    assert flows.minimize([1.0, -2.0]).tolist() == [0.0, 0.0]
    assert flows.shortest_costs([1.0, 2.0]).tolist()[0] == [0.0, 1.0, 3.0]
    assert check(flows, directions=4).passed
    assert flows.contains([0.0, 0.0])
    assert not flows.contains([1.0, 0.0])
    assert len(flows.shortest_paths([1.0, 1.0])) == len(flows.path_flows([0.0, 0.0])) == 0
    with pytest.raises(ValueError, match="does not route the demand"):
        flows.path_flows([1.0, 0.0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_copies_and_pickles_give_the_same_flows(backend):
    flows = TrafficFlows(wdro.datasets.sioux_falls(), backend=backend)
    weights = np.random.default_rng(0).uniform(1, 2, flows.dimension)
    x = flows.minimize(weights)
    for twin in (copy.copy(flows), copy.deepcopy(flows), pickle.loads(pickle.dumps(flows))):
        assert twin.backend == backend
        assert np.array_equal(twin.minimize(weights), x)
    other = flows.with_backend("networkx")
    assert other.backend == "networkx"
    assert flows.backend == backend
    assert weights @ other.minimize(weights) == pytest.approx(weights @ x, rel=1e-6)


@pytest.mark.parametrize("backend", ["scipy", pytest.param("numba", marks=needs_numba)])
def test_a_set_can_be_shared_by_threads(backend):
    flows = TrafficFlows(wdro.datasets.sioux_falls(), backend=backend)
    rng = np.random.default_rng(0)
    directions = [rng.uniform(1, 2, flows.dimension) for _ in range(40)]
    alone = [flows.minimize(weights) for weights in directions]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(flows.minimize, directions))
    np.testing.assert_array_equal(together, alone)


@needs_numba
def test_threads_share_the_origins_without_changing_the_flows():
    roads = wdro.datasets.sioux_falls()
    alone, shared = (TrafficFlows(roads, "numba", threads=threads) for threads in (None, 3))
    weights = np.random.default_rng(0).uniform(1, 2, roads.n_arcs)
    np.testing.assert_allclose(shared.minimize(weights), alone.minimize(weights), rtol=1e-14)
    assert np.array_equal(shared.minimize(weights), shared.minimize(weights))
    assert pickle.loads(pickle.dumps(shared)).threads == 3
    assert shared.with_backend("scipy").threads is None
    assert shared.with_backend("numba", threads=2).threads == 2
    assert shared.describe().endswith("minimised by numba on 3 threads")


def test_threads_are_for_the_compiled_backend():
    roads = network([(0, 1)], {(0, 1): 1.0})
    with pytest.raises(ValueError, match=r"threads=2 was given, but backend 'scipy' runs on one"):
        TrafficFlows(roads, "scipy", threads=2)
    with pytest.raises(ValueError, match=r"threads=2 was given, but backend 'ortools'"):
        TrafficFlows(roads).with_backend("ortools", threads=2)
    for wrong in (0, -1, 1.5, True, "2"):
        with pytest.raises(ValueError, match=r"threads must be an integer of at least 1, got"):
            TrafficFlows(roads, "numba", threads=wrong)


def test_the_compiled_backend_is_the_default_where_it_is_installed(monkeypatch):
    roads = network([(0, 1)], {(0, 1): 1.0})
    found = TrafficFlows(roads)
    assert found.backend == ("scipy" if find_spec("numba") is None else "numba")
    x = cp.Variable(1)
    problem = wdro.Problem(cp.Minimize(cp.sum(x)), [wdro.In(x, found)])
    assert f"minimised by {found.backend}" in problem.explain()
    monkeypatch.setitem(sys.modules, "numba", None)
    assert TrafficFlows(roads).backend == "scipy"


def test_unreachable_pairs_are_found_beside_a_core_that_reaches_all(monkeypatch):
    """Pairs that need no search are told apart from those that do: against Bellman and Ford."""
    graph = import_module("wdro_model.traffic.flows.road_graph")
    monkeypatch.setattr(graph, "LABELS_AT_ONCE", 1)
    seen = set()
    for seed in range(200):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(2, 9))
        arcs = [tuple(map(int, rng.choice(n, 2, replace=False))) for _ in range(2 * n)]
        pair = tuple(map(int, rng.choice(n, 2, replace=False)))
        closed = np.flatnonzero(rng.random(max(map(max, [*arcs, pair])) + 1) < 0.3).tolist()
        roads = network(arcs, {pair: 1.0}, closed=closed)
        reachable = np.isfinite(distances(roads, np.ones(roads.n_arcs), pair[0])[pair[1]])
        seen.add(bool(reachable))
        if reachable:
            TrafficFlows(roads, "scipy")
        else:
            with pytest.raises(InfeasibleError, match="no route leads from zone"):
                TrafficFlows(roads, "scipy")
    assert seen == {True, False}


def test_numba_is_asked_for_by_name_and_missed_with_a_hint(monkeypatch):
    assert "numba" not in vars(import_module("wdro_model.traffic.flows.backends"))
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(ImportError, match=r"pip install 'wdro_model\[fast\]'"):
        TrafficFlows(network([(0, 1)], {(0, 1): 1.0}), backend="numba")


@needs_numba
def test_the_kernel_is_compiled_where_nothing_can_be_written():
    kernel = import_module("wdro_model.traffic.flows.shortest_trees")
    calls = []

    def njit(**options):
        calls.append(options)
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    assert kernel.compiled(len, njit) is len
    assert calls == [{"nogil": True, "cache": True}, {"nogil": True}]


def slow_for_pape(levels):
    """Each level is improved twice for every improvement of the one above it: 2^levels scans.

    From top(i + 1) to top(i) directly, or for 2^i less by side(i), which is searched later. A
    detour to the highest top improves it once all nodes have been searched.
    """
    top, side = np.arange(levels + 1), levels + np.arange(levels + 1)
    source, detour = 2 * levels + 1, 2 * levels + 2 + np.arange(3 * levels)
    arcs, weights = [(source, top[levels])], [2.0 ** (levels + 1)]
    for level in range(levels - 1, -1, -1):
        above = top[level + 1]
        arcs += [(above, side[level + 1]), (side[level + 1], top[level]), (above, top[level])]
        weights += [0.0, 0.0, 2.0**level]
    around = [source, *detour, top[levels]]
    arcs += list(pairwise(around))
    weights += [0.0] * (len(around) - 1)
    return network(arcs, {(source, 0): 1.0}), np.array(weights)


@needs_numba
def test_the_compiled_search_ends_where_label_correction_would_not():
    roads, weights = slow_for_pape(60)
    flows = TrafficFlows(roads, backend="numba")
    assert weights @ flows.minimize(weights) == least_cost(roads, weights) == 0.0
    assert (1.0 + weights) @ flows.minimize(1.0 + weights) == least_cost(roads, 1.0 + weights)


@needs_numba
def test_both_compiled_searches_find_shortest_paths(monkeypatch):
    module = import_module("wdro_model.traffic.flows.backends")
    monkeypatch.setattr(module, "SCANS_PER_NODE", 0)
    for seed in range(300):
        roads, weights = fuzzed(seed)
        x = TrafficFlows(roads, backend="numba").minimize(weights)
        assert weights @ x == pytest.approx(least_cost(roads, weights), rel=1e-12, abs=1e-12)
        assert_routes_the_demand(roads, x)


def test_large_networks_are_searched_in_parts(monkeypatch):
    graph = import_module("wdro_model.traffic.flows.road_graph")
    monkeypatch.setattr(graph, "LABELS_AT_ONCE", 20)
    for seed in range(60):
        roads, weights = fuzzed(seed)
        x = TrafficFlows(roads, "scipy").minimize(weights)
        assert weights @ x == pytest.approx(least_cost(roads, weights), rel=1e-12, abs=1e-12)
        assert_routes_the_demand(roads, x)


def test_large_networks_are_refused_by_the_linear_program(monkeypatch):
    roads = wdro.datasets.sioux_falls()
    flows = TrafficFlows(roads)
    monkeypatch.setattr(paths, "TOLERANCES", paths.Tolerances(most_flows=1000))
    with pytest.raises(
        ValueError, match=r"backend 'cvxpy' is .* 17\d\d of them .at most 1000.; use"
    ):
        TrafficFlows(roads, backend="cvxpy")
    with pytest.raises(ValueError, match=r"taking a link flow apart is .* add up their shortest_p"):
        flows.path_flows(flows.minimize(np.ones(76)))
    with pytest.raises(
        ValueError, match=r"telling whether flows route the demand.* 17\d\d of them"
    ):
        flows.contains(flows.minimize(np.ones(76)))
    assert not flows.contains(np.ones(76))  # out of balance, which needs no program


@needs_numba
def test_large_equilibria_are_taken_apart_without_a_program(monkeypatch):
    monkeypatch.setattr(paths, "TOLERANCES", paths.Tolerances(most_flows=1000))
    roads = wdro.datasets.sioux_falls()
    flows = TrafficFlows(roads)
    x, _ = wdro.traffic.equilibrium(roads, gap=1e-12)
    ways = flows.path_flows(x, roads.travel_time(x))
    assert np.abs(ways.remainder).sum() <= 1e-6 * roads.total_demand
    np.testing.assert_allclose(ways.link_flows + ways.remainder, x, atol=1e-6)
    _assert_paths_serve(roads, ways)
    with pytest.raises(ValueError, match=r"x is not the equilibrium of the weights.* differs from"):
        flows.path_flows(x, roads.free_flow_time)


def test_the_flows_of_origins_are_counted_before_they_are_written():
    for seed in range(40):
        roads, _ = fuzzed(seed)
        flows = TrafficFlows(roads, "scipy")
        assert paths.count_flows(flows.trips, flows.bounds[1]) == flows.origin_flows().count


def test_integers_that_would_hide_the_cost_are_refused():
    roads = network([(0, 1), (0, 1), (1, 2)], {(0, 2): 1.0})
    flows = TrafficFlows(roads, backend="ortools")
    assert flows.minimize([1.0, 2.0, 1.0]).tolist() == [1.0, 0.0, 1.0]
    assert flows.minimize([1e-9, 2e-9, 1e3]).tolist() == [1.0, 0.0, 1.0]
    roads = network([(0, 1), (0, 2), (2, 1)], {(0, 1): 1.0})
    flows = TrafficFlows(roads, backend="ortools")
    with pytest.raises(ValueError, match=r"those from 1e-09 to 1e\+09 are too far apart"):
        flows.minimize([1e-9, 1e9, 1e9])


def test_unreachable_demand_is_refused_by_name():
    demand = {(0, 1): 1.0, (2, 0): 7.5}
    with pytest.raises(
        InfeasibleError, match=r"from zone 'c' to zone 'a', whose demand is 7\.5; a"
    ):
        TrafficFlows(network([(0, 1), (1, 2)], demand, nodes=("a", "b", "c")))
    through = network([(0, 1), (1, 2)], {(0, 2): 2.0}, closed=[1], nodes=("a", "b", "c"))
    with pytest.raises(InfeasibleError, match=r"from zone 'a' to zone 'c'.*through=False"):
        TrafficFlows(through)
    several = network([(0, 1), (2, 3)], {(0, 2): 1.0, (0, 3): 1.0, (1, 0): 1.0})
    with pytest.raises(InfeasibleError, match=r"3 pairs of zones have none"):
        TrafficFlows(several)


@pytest.mark.parametrize("backend", BACKENDS)
def test_negative_weights_are_refused_by_name(backend):
    roads = network([(0, 1), (1, 0), (1, 2)], {(0, 1): 1.0}, nodes=("a", "b", "c"))
    flows = TrafficFlows(roads, backend=backend)
    with pytest.raises(ValueError, match=r"arc 0 \('a' -> 'b'\) has the negative weight -0\.5"):
        flows.minimize([-0.5, 1.0, 1.0])
    with pytest.raises(ValueError, match="direction must be finite, got nan at index 2"):
        flows.minimize([1.0, 1.0, np.nan])
    with pytest.raises(ValueError, match=r"shape \(3,\), got shape \(2,\)"):
        flows.minimize([1.0, 1.0])
    # Rounding errors, and arcs that lead nowhere.
    assert flows.minimize([1.0, -1e-13, -8.0]).tolist() == [1.0, 0.0, 0.0]
    with pytest.raises(ValueError, match=r"arc 2 \('b' -> 'c'\) has the negative weight -8"):
        flows.shortest_costs([1.0, 1.0, -8.0])


def test_bounds_tell_what_an_arc_can_carry():
    arcs = [(0, 1), (1, 2), (2, 3), (3, 1), (4, 1), (2, 5), (1, 0)]
    roads = network(arcs, {(0, 2): 3.0, (1, 3): 2.0, (0, 1): 1.0}, closed=[0, 3])
    lower, upper = TrafficFlows(roads).bounds
    assert not lower.any()
    #                      leaves 0      ends at 3  leaves 3 (nothing does), no origin, dead end
    assert upper.tolist() == [4.0, 6.0, 2.0, 0.0, 0.0, 0.0, 0.0]


def test_shortest_costs_are_the_distances_between_zones():
    for seed in range(40):
        roads, weights = fuzzed(seed)
        far = np.array([distances(roads, weights, origin) for origin in roads.zones])
        expected = far[:, roads.zones]
        np.testing.assert_allclose(TrafficFlows(roads).shortest_costs(weights), expected)


def test_the_cvxpy_form_has_the_same_minima():
    for seed in range(12):
        roads, weights = fuzzed(seed)
        flows = TrafficFlows(roads)
        x = cp.Variable(flows.dimension)
        problem = cp.Problem(cp.Minimize(weights @ x), flows.constraints(x))
        problem.solve(solver=cp.CLARABEL)
        expected = least_cost(roads, weights)
        assert problem.value == pytest.approx(expected, rel=1e-5, abs=1e-5), seed
        assert flows.contains(flows.minimize(weights))
        assert flows.contains(
            0.5 * flows.minimize(weights) + 0.5 * flows.minimize(1.0 - weights / 1e4)
        )
        if expected:
            assert not flows.contains(1.1 * flows.minimize(weights) + 0.1)


def test_the_set_stands_in_a_problem_beside_constraints():
    roads = network([(0, 1), (0, 2), (2, 1)], {(0, 1): 2.0})
    x = cp.Variable(3)
    inside = wdro.In(x, TrafficFlows(roads, "scipy"))
    problem = wdro.Problem(cp.Minimize(cp.sum_squares(x)), [inside])
    assert problem.solve(method="erm") == pytest.approx(8 / 3, rel=1e-4)
    assert "3 arcs, minimised by scipy" in problem.explain()
    problem = wdro.Problem(cp.Minimize(cp.sum_squares(x)), [inside, x[0] <= 1])
    assert problem.solve(method="erm") == pytest.approx(3.0, rel=1e-4)


def test_shortest_paths_add_up_to_the_assignment():
    for seed in range(60):
        roads, weights = fuzzed(seed)
        flows = TrafficFlows(roads, "scipy")
        paths = flows.shortest_paths(weights)
        np.testing.assert_allclose(paths.link_flows, flows.minimize(weights), atol=1e-12)
        _assert_paths_serve(roads, paths)


def _assert_paths_serve(roads, paths):
    """Simple paths from zone to zone, with the demand of each pair."""
    carried = {}
    for path in paths:
        tails, heads = ([roads.nodes[v] for v in ends[list(path.arcs)]] for ends in _ends(roads))
        assert list(path.nodes) == [*tails, path.destination] == [path.origin, *heads]
        assert len(set(path.nodes)) == len(path.nodes)
        inner = [roads.nodes.index(name) for name in path.nodes[1:-1]]
        assert all(roads.through[v] for v in inner)
        pair = (path.origin, path.destination)
        carried[pair] = carried.get(pair, 0.0) + path.flow
    for o, d in np.argwhere(roads.demand > 0):
        if o != d:
            pair = (roads.nodes[roads.zones[o]], roads.nodes[roads.zones[d]])
            assert carried.pop(pair) == pytest.approx(roads.demand[o, d], rel=1e-9)
    assert not carried


def _ends(roads):
    return np.asarray(roads.tails), np.asarray(roads.heads)


def test_mixtures_of_assignments_keep_their_paths():
    roads = wdro.datasets.sioux_falls()
    flows = TrafficFlows(roads)
    first, second = (np.random.default_rng(s).uniform(1, 2, 76) for s in (0, 1))
    mixed = 0.25 * flows.shortest_paths(first) + flows.shortest_paths(second) * 0.75
    x = 0.25 * flows.minimize(first) + 0.75 * flows.minimize(second)
    np.testing.assert_allclose(mixed.link_flows, x, rtol=1e-12)
    assert 528 < len(mixed) < 2 * 528
    assert not mixed.remainder.any()
    _assert_paths_serve(roads, mixed)
    assert "paths" in repr(mixed)
    same = sum(
        np.float64(share) * flows.shortest_paths(w) for w, share in [(first, 0.25), (second, 0.75)]
    )
    assert [path.flow for path in same] == [path.flow for path in mixed]
    with pytest.raises(TypeError):
        mixed + 1
    with pytest.raises(ValueError, match=r"share of path flows must be a nonnegative .*, got -1"):
        -1 * mixed
    other = TrafficFlows(network([(0, 1)], {(0, 1): 1.0}))
    with pytest.raises(ValueError, match="on 76 and on 1 arcs cannot be added"):
        mixed + other.shortest_paths([1.0])


def test_path_flows_of_an_equilibrium_add_up_to_it():
    roads = wdro.datasets.sioux_falls()
    flows = TrafficFlows(roads)
    x = wdro.traffic.equilibrium(roads, gap=1e-4, flows=flows).flow
    paths = flows.path_flows(x, weights=roads.travel_time(x))
    np.testing.assert_allclose(paths.link_flows, x, atol=1e-6 * roads.total_demand)
    np.testing.assert_allclose(paths.link_flows + paths.remainder, x, rtol=1e-12)
    _assert_paths_serve(roads, paths)
    pairs = {(path.origin, path.destination) for path in paths}
    several = [pair for pair in pairs if len(paths.between(*pair)) > 1]
    assert len(pairs) == 528
    assert several
    sizes = [path.flow for path in paths.between(*several[0])]
    assert sizes == sorted(sizes, reverse=True)


def test_path_flows_leave_at_most_circulations():
    for seed in range(40):
        roads, weights = fuzzed(seed)
        flows = TrafficFlows(roads)
        x = 0.3 * flows.minimize(weights) + 0.7 * flows.minimize(np.arange(weights.size) % 3.0)
        paths = flows.path_flows(x)
        _assert_paths_serve(roads, paths)
        left, size = paths.remainder, len(roads.nodes)
        np.testing.assert_allclose(paths.link_flows + left, x, atol=1e-9)
        assert np.all(left >= -1e-6 * (1 + x.sum()))
        balance = np.bincount(roads.tails, left, size) - np.bincount(roads.heads, left, size)
        np.testing.assert_allclose(balance, 0.0, atol=1e-9 * (1 + x.sum()))


def test_path_flows_of_flows_with_a_cycle_leave_the_cycle():
    roads = network([(0, 1), (1, 2), (2, 1), (2, 3), (0, 3)], {(0, 3): 2.0})
    paths = TrafficFlows(roads).path_flows([1.0, 2.0, 1.0, 1.0, 1.0])
    assert {path.nodes for path in paths} == {(1, 2, 3, 4), (1, 4)}
    assert [path.flow for path in paths] == pytest.approx([1.0, 1.0])
    np.testing.assert_allclose(paths.remainder, [0, 1, 1, 0, 0], atol=1e-9)


def test_link_flows_that_do_not_route_the_demand_are_refused():
    roads = network([(0, 1), (0, 2), (2, 1)], {(0, 1): 2.0})
    flows = TrafficFlows(roads)
    assert len(flows.path_flows([0.5, 1.5, 1.5])) == 2
    with pytest.raises(ValueError, match=r"x does not route the demand .* by 0\.5 or more"):
        flows.path_flows([0.5, 1.5, 1.0])
    with pytest.raises(ValueError, match="x must be finite"):
        flows.path_flows([0.5, np.inf, 1.5])
    assert len(flows.path_flows([0.5, 1.5, 1.4], tolerance=0.1)) == 2


def test_flows_are_not_rounded():
    with pytest.raises(ValueError, match="cannot be rounded"):
        TrafficFlows(network([(0, 1)], {(0, 1): 1.0})).round([1.0])


def test_describe_and_repr_name_the_size():
    flows = TrafficFlows(wdro.datasets.sioux_falls(), "scipy")
    assert repr(flows) == "TrafficFlows(24 nodes, 76 arcs, 24 origins)"
    assert flows.describe() == (
        "link flows of 360600 trips between 528 pairs of zones, on 24 nodes and 76 arcs, "
        "minimised by scipy"
    )
    assert flows.nonnegative_directions
    assert flows.is_polytope
    assert flows.preferred_direction == "oracle_newton"


def test_a_thing_that_is_no_network_is_refused():
    with pytest.raises(ValueError, match=r"road network such as .*got dict without tails, heads"):
        TrafficFlows({})
    good = {"tails": [0], "heads": [1], "demand": [[0, 1], [0, 0]], "zones": [0, 1]}
    good |= {"through": [True, True], "nodes": ("a", "b")}
    assert TrafficFlows(Roads(**good)).minimize([1.0]).tolist() == [1.0]
    for changes, message in (
        ({"tails": [2]}, "tails must be node indices from 0 to 1 .* got 2 at position 0"),
        ({"heads": [0.5]}, "heads must be a vector of node indices"),
        ({"tails": [], "heads": []}, "at least one arc, got 0 and 0"),
        ({"tails": [0, 1]}, "got 2 and 1 entries"),
        ({"demand": [[0, 1]]}, r"demand must have shape \(2, 2\), got \(1, 2\)"),
        ({"demand": [[0, -1], [0, 0]]}, ">= 0, got -1.0 from zone 'a' to zone 'b'"),
        ({"demand": [[0, np.nan], [0, 0]]}, r"finite and >= 0, got nan"),
        ({"through": [True]}, r"one boolean for each of the 2 nodes, got shape \(1,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            TrafficFlows(Roads(**(good | changes)))
    with pytest.raises(ValueError, match="Did you mean 'scipy'"):
        TrafficFlows(Roads(**good), backend="scpy")


def test_zones_at_one_node_exchange_nothing():
    roads = Roads([0, 1], [1, 0], np.ones((3, 3)), [0, 1, 1], [True, False], ("a", "b"))
    flows = TrafficFlows(roads)
    assert flows.minimize([1.0, 1.0]).tolist() == [2.0, 2.0]
    assert flows.shortest_costs([1.0, 3.0]).tolist() == [[0, 1, 1], [3, 0, 0], [3, 0, 0]]
