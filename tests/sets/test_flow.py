import pickle

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from wdro_model.errors import InfeasibleError
from wdro_model.sets import Flow, ShortestPath, check

BACKENDS = Flow.backends()


def network():
    """Two ways to carry three units from s to t, with a cycle, parallel edges and a loop."""
    graph = nx.MultiDiGraph([("s", "a"), ("s", "b"), ("a", "b"), ("b", "a"), ("a", "t")])
    graph.add_edges_from([("b", "t"), ("b", "t"), ("a", "a"), ("t", "s")])
    return graph


def least_cost(flows, weights, lower=None, upper=None):
    """By a dense linear program, written from the graph; None if there is no flow."""
    matrix = np.zeros((len(flows.nodes), flows.dimension))
    for e, (tail, head, *_) in enumerate(flows.edges):
        matrix[flows.nodes.index(tail), e] += 1
        matrix[flows.nodes.index(head), e] -= 1
    least, most = flows.bounds
    least = least if lower is None else np.maximum(least, lower)
    most = most if upper is None else np.minimum(most, upper)
    if np.any(least > most):
        return None
    scale = np.abs(weights).max() or 1.0
    answer = linprog(
        weights / scale, A_eq=matrix, b_eq=flows.supply, bounds=np.column_stack([least, most])
    )
    return scale * answer.fun if answer.status == 0 else None


WEIGHTS = {
    "random": lambda rng, n: rng.standard_normal(n),
    "zero": lambda rng, n: np.zeros(n),
    "equal": lambda rng, n: np.full(n, 3.0),
    "ties": lambda rng, n: rng.integers(-1, 2, n).astype(float),
    "tiny": lambda rng, n: 1e-12 * rng.standard_normal(n),
    "huge": lambda rng, n: 1e12 * rng.standard_normal(n),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_every_backend_finds_the_least_cost(kind, backend):
    flows = Flow(network(), {"s": 3, "t": -3}, capacity=2, backend=backend)
    rng = np.random.default_rng(0)
    for _ in range(5):
        weights = WEIGHTS[kind](rng, flows.dimension)
        x, slack = flows.minimize_with_slack(weights)
        assert 0 <= slack <= 1e-9 * np.abs(weights).max()
        assert np.array_equal(x, np.rint(x))
        assert flows.contains(x)
        tolerance = 1e-8 * np.abs(weights).max()
        assert weights @ x == pytest.approx(least_cost(flows, weights), abs=tolerance, rel=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bounds_take_the_place_of_capacities(backend):
    flows = Flow(network(), {"s": 3, "t": -3}, capacity=2, backend=backend)
    rng, met = np.random.default_rng(1), 0
    for trial in range(30):
        weights = rng.standard_normal(flows.dimension)
        lower = np.maximum(rng.integers(-3, 2, flows.dimension), 0).astype(float)
        upper = lower + rng.integers(0, 3, flows.dimension)
        if trial % 5 == 4:
            lower, upper = lower * 0.5, upper + 0.25
        expected = least_cost(flows, weights, lower, upper)
        if expected is None:
            with pytest.raises(InfeasibleError):
                flows.minimize(weights, lower, upper)
            continue
        x = flows.minimize(weights, lower, upper)
        assert np.all(x >= lower - 1e-9)
        assert np.all(x <= upper + 1e-9)
        assert flows.contains(x)
        assert weights @ x == pytest.approx(expected, abs=1e-7)
        met += 1
    assert met
    free = flows.minimize(weights)
    assert weights @ free == pytest.approx(least_cost(flows, weights))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_backends_agree_on_random_networks(data):
    count = data.draw(st.integers(2, 6))
    node = st.integers(0, count - 1)
    pairs = data.draw(st.lists(st.tuples(node, node), max_size=10))
    graph = nx.MultiDiGraph([(i, i + 1) for i in range(count - 1)] + pairs)
    size = graph.number_of_edges()
    capacity = np.array(data.draw(st.lists(st.integers(2, 4), min_size=size, max_size=size)))
    weights = np.array(data.draw(st.lists(st.integers(-3, 3), min_size=size, max_size=size)))
    flows = Flow(graph, {0: 2, count - 1: -2}, capacity.astype(float))
    costs = [weights @ flows.with_backend(name).minimize(weights) for name in BACKENDS]
    assert np.ptp(costs) == 0
    assert costs[0] == pytest.approx(least_cost(flows, weights.astype(float)), abs=1e-7)


@pytest.mark.parametrize("backend", BACKENDS)
def test_check_passes(backend):
    flows = Flow(network(), {"s": 3, "t": -3}, capacity=2, backend=backend)
    assert check(flows, directions=20).passed


def test_data_that_are_not_whole():
    flows = Flow(network(), {"s": 1.5, "t": -1.5}, capacity=0.9, lower=0.05)
    assert flows.backend == "highs"
    assert not flows.integral
    assert check(flows, directions=20).passed
    for backend in ("ortools", "networkx"):
        with pytest.raises(ValueError, match=f"backend '{backend}' takes whole supplies"):
            flows.with_backend(backend)
    with pytest.raises(ValueError, match="cannot be rounded to"):
        flows.round(flows.minimize(np.ones(flows.dimension)))


def test_forms_of_supply_and_capacity():
    graph = nx.DiGraph([("a", "b"), ("b", "c"), ("a", "c")])
    nx.set_node_attributes(graph, {"a": 2, "c": -2}, "supply")
    nx.set_edge_attributes(graph, {("a", "b"): 1, ("b", "c"): 1, ("a", "c"): 5}, "room")
    by_name = Flow(graph, "supply", "room", forbidden=[("b", "c")])
    by_mapping = Flow(graph, {"a": 2, "c": -2}, {("a", "b"): 1, ("b", "c"): 0})
    assert by_name.selected(by_name.minimize([0, 0, 1])) == {("a", "c"): 2.0}
    assert by_mapping.selected(by_mapping.minimize([0, 0, 1])) == {("a", "c"): 2.0}
    through = Flow(graph, "supply", "room", mandatory=[("a", "b")])
    assert through.selected(through.minimize([1, 1, 0]))[("a", "b")] == 1.0
    # Acyclic: no edge carries more than all there is.
    np.testing.assert_array_equal(by_mapping.bounds[1], [1, 2, 0])


def test_a_unit_flow_in_an_acyclic_graph_is_a_path():
    graph = nx.DiGraph((i, j) for i in range(5) for j in range(i + 1, 5))
    flows, paths = Flow(graph, {0: 1, 4: -1}), ShortestPath(graph, 0, 4)
    for weights in np.random.default_rng(0).standard_normal((10, 10)):
        np.testing.assert_array_equal(flows.minimize(weights), paths.minimize(weights))


@pytest.mark.parametrize("backend", BACKENDS)
def test_rounding_gives_the_nearest_whole_flow(backend):
    flows = Flow(network(), {"s": 3, "t": -3}, capacity=2, backend=backend)
    rng = np.random.default_rng(2)
    vertices = np.array([flows.minimize(g) for g in rng.standard_normal((6, flows.dimension))])
    x = rng.dirichlet(np.ones(6)) @ vertices
    whole = flows.round(x)
    assert flows.is_vertex(whole)
    assert np.all(np.abs(whole - x) < 1)
    v = cp.Variable(flows.dimension, integer=True)
    nearest = cp.Problem(cp.Minimize(cp.norm1(v - x)), flows.constraints(v))
    nearest.solve(solver=cp.HIGHS)
    assert np.sum((whole - x) ** 2) <= np.sum((np.rint(v.value) - x) ** 2) + 1e-9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"graph": nx.Graph([(0, 1)])}, "directed graph, got an undirected one"),
        ({"graph": nx.DiGraph()}, "no edge"),
        ({"supply": {0: 1}}, "supplies must sum to 0, got 1"),
        ({"supply": {0: 1, 7: -1}}, "supply node 7 is not a node"),
        ({"supply": {0: np.nan, 2: 1}}, "supply of 0 must be finite"),
        ({"supply": {0: "much", 2: 1}}, "supply of 0 must be a number, got 'much'"),
        ({"supply": [1, 0, -1]}, "supply is {node: amount}"),
        ({"capacity": -1}, r"capacity of edge \(0, 1\) must be at least 0, got -1"),
        ({"capacity": [1, 2]}, "an array of 4 numbers"),
        ({"capacity": {(0, 7): 1}}, r"\(0, 7\) is no edge of"),
        ({"capacity": None}, r"edge \(0, 1\) has no capacity"),
        ({"lower": 3}, r"edge \(0, 1\) must carry at least 3 and at most 2"),
        ({"supply": {0: 8, 2: -8}}, r"no flow meets the supply .*only 50% of it"),
        ({"forbidden": [(0, 1), (0, 2)]}, "no flow meets the supply"),
        ({"forbidden": [(0, 1)], "mandatory": [(0, 1)]}, "at least 1 and at most 0"),
        ({"forbidden": [(1, 0)]}, "is no edge of"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_bad_input_is_refused(arguments, message, backend):
    given = {
        "graph": nx.DiGraph([(0, 1), (1, 2), (0, 2), (2, 1)]),
        "supply": {0: 1, 2: -1},
        "capacity": 2,
        "backend": backend,
    }
    with pytest.raises(ValueError, match=message):
        Flow(**(given | arguments))


def test_bad_bounds_are_refused():
    flows = Flow(network(), {"s": 3, "t": -3}, capacity=2)
    with pytest.raises(ValueError, match=r"upper must have shape \(9,\)"):
        flows.minimize(np.ones(9), None, [1.0])
    with pytest.raises(ValueError, match="lower must be numbers, got nan at index 0"):
        flows.minimize(np.ones(9), np.full(9, np.nan))
    with pytest.raises(InfeasibleError, match=r"edge .* must be at least 2\.5 and at most 2"):
        flows.minimize(np.ones(9), np.full(9, 2.5))


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_can_be_sent_to_another_process(backend):
    flows = Flow(network(), {"s": 3, "t": -3}, capacity=2, backend=backend)
    twin = pickle.loads(pickle.dumps(flows))
    weights = np.random.default_rng(0).standard_normal(9)
    np.testing.assert_array_equal(twin.minimize(weights), flows.minimize(weights))
    assert (
        f"flows of 3 in all through a graph with 4 nodes and 9 edges, minimised by {backend}"
        in (twin.describe())
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"supply": "suply"}, "no node of the graph has an attribute 'suply'; there are: 'supply'"),
        ({"capacity": "cap"}, "no edge of the graph has an attribute 'cap'; there are: 'room'"),
        ({"lower": "least"}, "no edge of the graph has an attribute 'least'; there are: 'room'"),
    ],
)
def test_an_attribute_that_nothing_has_is_a_name_mistyped(given, said):
    graph = nx.DiGraph()
    graph.add_edge("s", "a", room=1)
    graph.add_edges_from([("a", "t"), ("s", "t")])
    graph.nodes["s"]["supply"], graph.nodes["t"]["supply"] = 2, -2
    asked = {"supply": "supply", "capacity": "room"}
    assert Flow(graph, **asked).minimize([0, 1, 0]).tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match=said):
        Flow(graph, **asked | given)
