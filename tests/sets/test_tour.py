import networkx as nx
import numpy as np
import pytest

from tests.references.enumeration import all_tours
from wdro_model.errors import InfeasibleError
from wdro_model.sets import Tour

BACKENDS = Tour.backends()


def held_karp(weights, count):
    """The least cost of a directed tour, by dynamic programming over subsets."""
    best = {(1 << k, k): weights[0, k] for k in range(1, count)}
    for size in range(2, count):
        for subset in range(1, 1 << count):
            if subset & 1 or subset.bit_count() != size:
                continue
            for last in range(1, count):
                if subset >> last & 1:
                    before = subset & ~(1 << last)
                    best[subset, last] = min(
                        best[before, k] + weights[k, last]
                        for k in range(1, count)
                        if before >> k & 1
                    )
    everything = (1 << count) - 2
    return min(best[everything, k] + weights[k, 0] for k in range(1, count))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("directed", [False, True])
def test_against_dynamic_programming(directed, backend):
    count, rng = 9, np.random.default_rng(1)
    matrix = rng.uniform(0, 1, (count, count))
    matrix = matrix if directed else matrix + matrix.T
    graph = nx.complete_graph(count, nx.DiGraph if directed else nx.Graph)
    oracle = Tour(graph, backend)
    weights = np.array([matrix[edge] for edge in oracle.edges])
    assert weights @ oracle.minimize(weights) == pytest.approx(held_karp(matrix, count))


BURMA14 = """16.47 96.10, 16.47 94.44, 20.09 92.54, 22.39 93.37, 25.23 97.24, 22.00 96.05,
20.47 97.02, 17.20 96.29, 16.30 97.38, 14.05 98.12, 16.53 97.38, 21.52 95.59, 19.41 97.13,
20.09 94.55"""


def kilometres(here, there):
    """TSPLIB's distances on the globe (GEO), from degrees and minutes."""
    (lat, long), (lat2, long2) = (
        [np.pi * (int(v) + 5 * (v - int(v)) / 3) / 180 for v in point] for point in (here, there)
    )
    q1, q2, q3 = np.cos(long - long2), np.cos(lat - lat2), np.cos(lat + lat2)
    return int(6378.388 * np.arccos(0.5 * ((1 + q1) * q2 - (1 - q1) * q3)) + 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_published_optimum_of_burma14(backend):
    places = [tuple(map(float, pair.split())) for pair in BURMA14.split(",")]
    oracle = Tour(nx.complete_graph(14), backend)
    weights = np.array([kilometres(places[u], places[v]) for u, v in oracle.edges], dtype=float)
    assert weights @ oracle.minimize(weights) == 3323


def test_points_on_a_circle_are_met_in_turn():
    angles = np.random.default_rng(2).permutation(12) * 2 * np.pi / 12
    points = np.column_stack([np.cos(angles), np.sin(angles)])
    oracle = Tour(nx.complete_graph(12))
    tour = oracle.minimize([np.linalg.norm(points[u] - points[v]) for u, v in oracle.edges])
    met = angles[oracle.order(tour)]
    steps = np.diff(np.append(met, met[0])) % (2 * np.pi)
    assert np.ptp(steps) < 1e-9
    assert oracle.order(tour)[0] == 0


def test_a_time_limit_gives_a_tour_and_a_slack_that_holds():
    rng = np.random.default_rng(0)
    graph = nx.complete_graph(30)
    hurried = Tour(graph, "ortools", time_limit=0.2)
    weights = rng.uniform(0, 1, hurried.dimension)
    tour, slack = hurried.minimize_with_slack(weights)
    assert hurried.is_vertex(tour)
    exact = Tour(graph).minimize(weights)
    assert weights @ exact <= weights @ tour + 1e-9
    assert weights @ tour - slack <= weights @ exact + 1e-9


def test_whole_costs_have_no_slack():
    oracle = Tour(nx.complete_graph(6), "ortools")
    _, slack = oracle.minimize_with_slack(np.arange(15.0))
    assert slack == 0.0
    _, slack = oracle.minimize_with_slack(np.random.default_rng(0).uniform(0, 1, 15))
    assert 0 < slack < 1e-10


def test_rounding_ends_where_no_turn_improves():
    graph, rng = nx.complete_graph(6), np.random.default_rng(4)
    rows, oracle = all_tours(graph), Tour(graph, forbidden=[(0, 1)], mandatory=[(2, 3)])
    for _ in range(3):
        matrix = rng.standard_normal((15, 15))
        found = oracle.round(rng.uniform(0, 1, 15), lambda v, a=matrix: float(v @ a @ v))
        near = list(oracle.neighbours(found, found))
        for tour in (found, *near):
            assert (rows == tour).all(axis=1).any()
            assert tour[oracle.position((0, 1))] == 0
            assert tour[oracle.position((2, 3))] == 1
        assert all(found @ matrix @ found <= other @ matrix @ other for other in near)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (nx.path_graph(2), "at least 3 nodes, got 2"),
        (nx.path_graph(4), "node 0 has too few neighbours"),
        (nx.DiGraph([(0, 1), (1, 2)]), "node 0 has too few neighbours"),
        (nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(3)), "it is not connected"),
        (nx.complete_bipartite_graph(2, 3), "no cycle passes its 5 nodes once each"),
        (nx.petersen_graph(), "no cycle passes its 10 nodes once each"),
        (nx.empty_graph(4), "no edge"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_graphs_without_a_tour_are_refused(graph, message, backend):
    with pytest.raises(ValueError, match=message):
        Tour(graph, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_held_edges_that_leave_no_tour_are_refused(backend):
    with pytest.raises(InfeasibleError, match="no tour with 3 mandatory and 0 forbidden edges"):
        Tour(nx.complete_graph(5), backend, mandatory=[(0, 1), (1, 2), (0, 2)])
    with pytest.raises(InfeasibleError, match="no tour with 0 mandatory and 1 forbidden edges"):
        Tour(nx.cycle_graph(5), backend, forbidden=[(0, 1)])


def test_bad_time_limits_are_refused():
    with pytest.raises(ValueError, match="time_limit must be a positive finite number, got 0"):
        Tour(nx.cycle_graph(4), "ortools", time_limit=0)
    with pytest.raises(ValueError, match="time_limit is for backend='ortools'"):
        Tour(nx.cycle_graph(4), time_limit=1.0)


def test_there_is_no_cvxpy_form():
    oracle = Tour(nx.complete_graph(4))
    assert not oracle.has_constraints
    with pytest.raises(NotImplementedError, match="has no CVXPY form"):
        oracle.constraints(None)
