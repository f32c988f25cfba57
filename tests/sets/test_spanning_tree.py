import pickle

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sets.enumeration import all_trees
from wdro_model.sets import SpanningTree, check

BACKENDS = SpanningTree.backends()


def graphs():
    """Small graphs with what goes wrong: parallel edges, self-loops, names, a bridge, one edge."""
    parallel = nx.MultiGraph(
        [("a", "b"), ("a", "b"), ("b", "c"), ("c", "a"), ("c", "c"), ("c", "d")]
    )
    loops = nx.Graph([(0, 1), (1, 1), (1, 2), (2, 0)])
    return {
        "edge": nx.Graph([("u", "v")]),
        "two parallel edges": nx.MultiGraph([(0, 1), (0, 1)]),
        "complete": nx.complete_graph(5),
        "parallel edges and a loop": parallel,
        "loops": loops,
        "barbell": nx.barbell_graph(3, 1),
    }


WEIGHTS = {
    "random": lambda rng, n: rng.standard_normal(n),
    "positive": lambda rng, n: rng.uniform(0, 1, n),
    "zero": lambda rng, n: np.zeros(n),
    "equal": lambda rng, n: np.full(n, 3.0),
    "ties and zeros": lambda rng, n: rng.integers(-1, 2, n).astype(float),
    "tiny": lambda rng, n: 1e-11 * rng.standard_normal(n),
    "huge": lambda rng, n: 1e11 * rng.standard_normal(n),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", graphs())
def test_every_backend_finds_the_cheapest_of_all_trees(name, backend):
    graph = graphs()[name]
    trees = all_trees(graph)
    oracle = SpanningTree(graph, backend=backend)
    rng = np.random.default_rng(0)
    for draw in WEIGHTS.values():
        weights = draw(rng, oracle.dimension)
        tree = oracle.minimize(weights)
        assert any(np.array_equal(tree, row) for row in trees)
        assert weights @ tree == pytest.approx((trees @ weights).min(), rel=1e-9, abs=1e-20)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_backends_agree_on_random_graphs(data):
    count = data.draw(st.integers(2, 7))
    spine = [(data.draw(st.integers(0, i - 1)), i) for i in range(1, count)]
    node = st.integers(0, count - 1)
    graph = nx.MultiGraph(spine + data.draw(st.lists(st.tuples(node, node), max_size=6)))
    weights = np.array(
        data.draw(
            st.lists(st.integers(-3, 3), min_size=len(graph.edges), max_size=len(graph.edges))
        ),
        dtype=float,
    )
    trees = SpanningTree(graph)
    costs = [weights @ trees.with_backend(name).minimize(weights) for name in BACKENDS]
    assert np.ptp(costs) == 0


@pytest.mark.parametrize("name", graphs())
def test_the_cvxpy_form_is_the_hull_of_all_trees(name):
    graph = graphs()[name]
    trees, oracle = all_trees(graph), SpanningTree(graph)
    for row in trees:
        assert oracle.contains(row)
    assert oracle.contains(trees.mean(axis=0))
    x = cp.Variable(oracle.dimension)
    slope = cp.Parameter(oracle.dimension)
    problem = cp.Problem(cp.Minimize(slope @ x), oracle.constraints(x))
    rng = np.random.default_rng(1)
    for _ in range(10):
        slope.value = rng.standard_normal(oracle.dimension)
        problem.solve()
        assert problem.value == pytest.approx((trees @ slope.value).min(), abs=1e-6)


def test_points_outside_the_hull_are_not_contained():
    oracle = SpanningTree(nx.complete_graph(4))
    triangle = np.array([1, 1, 0, 1, 0, 0.0])  # edges 01, 02, 12: a cycle, node 3 left out
    assert oracle.edges[3] == (1, 2)
    assert not oracle.contains(triangle)
    assert not oracle.contains(np.full(6, 0.4))
    assert oracle.contains(np.full(6, 0.5))


def test_a_matrix_variable_may_be_constrained():
    graph = nx.complete_graph(4)
    oracle = SpanningTree(graph)
    x = cp.Variable((2, 3))
    weights = np.arange(6.0)
    problem = cp.Problem(
        cp.Minimize(cp.sum(cp.multiply(weights.reshape(2, 3), x))), oracle.constraints(x)
    )
    problem.solve()
    assert problem.value == pytest.approx(weights @ oracle.minimize(weights), abs=1e-6)


def test_coordinates_follow_the_edges_of_the_graph():
    graph = nx.MultiGraph([("a", "b"), ("b", "c"), ("a", "b")])
    oracle = SpanningTree(graph)
    assert list(oracle.edges) == list(graph.edges)
    tree = oracle.minimize([2.0 if edge == ("a", "b", 0) else 1.0 for edge in oracle.edges])
    assert set(oracle.selected(tree)) == {("a", "b", 1), ("b", "c", 0)}


def test_later_changes_of_the_graph_do_not_reach_the_set():
    graph = nx.cycle_graph(4)
    oracle = SpanningTree(graph)
    graph.remove_node(0)
    assert oracle.minimize(np.ones(4)).sum() == 3


def test_round_gives_the_nearest_tree():
    graph = nx.complete_graph(4)
    trees, oracle = all_trees(graph), SpanningTree(graph)
    x = np.random.default_rng(3).uniform(0, 1, 6)
    nearest = np.linalg.norm(trees - x, axis=1).min()
    assert np.linalg.norm(oracle.round(x) - x) == pytest.approx(nearest)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (nx.DiGraph([(0, 1)]), "undirected graph, got a directed one"),
        (nx.Graph([("a", "b"), ("c", "d")]), "no path joins 'a' and 'c'"),
        (nx.empty_graph(3), "3 nodes and no edge"),
        (nx.empty_graph(0), "no edge"),
        (nx.Graph([(0, 0)]), "self-loops only"),
        ([(0, 1)], "networkx graph, got list"),
        (np.eye(3), "networkx graph, got ndarray"),
    ],
)
def test_graphs_without_spanning_trees_are_refused(graph, message):
    with pytest.raises(ValueError, match=message):
        SpanningTree(graph)


def test_a_misspelt_backend_names_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'kruskal'"):
        SpanningTree(nx.complete_graph(3), backend="kruskall")


@pytest.mark.parametrize("backend", BACKENDS)
def test_check_passes(backend):
    graph = nx.MultiGraph(nx.complete_graph(5))
    graph.add_edge(0, 1)
    graph.add_edge(2, 2)
    assert check(SpanningTree(graph, backend=backend), directions=20).passed


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_can_be_sent_to_another_process(backend):
    oracle = SpanningTree(nx.complete_graph(4), backend=backend)
    twin = pickle.loads(pickle.dumps(oracle))
    weights = np.array([3.0, 1, 2, 5, 4, 6])
    np.testing.assert_array_equal(twin.minimize(weights), oracle.minimize(weights))
    assert twin.backend == backend


def test_describe_names_the_size_and_the_backend():
    text = SpanningTree(nx.complete_graph(4), backend="networkx").describe()
    assert "4 nodes and 6 edges" in text
    assert "networkx" in text
