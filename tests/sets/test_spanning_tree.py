import pickle
from importlib.util import find_spec

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.references.enumeration import all_trees
from wdro_model.errors import InfeasibleError
from wdro_model.sets import SpanningTree, check
from wdro_model.sets.spanning_tree import violated_sets

BACKENDS = [
    name for name in SpanningTree.backends() if name != "numba" or find_spec("numba") is not None
]


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


def test_describe_names_the_size_and_the_backend():
    text = SpanningTree(nx.complete_graph(4), backend="networkx").describe()
    assert "4 nodes and 6 edges" in text
    assert "networkx" in text


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_that_differ_in_their_last_digits_are_told_apart(backend):
    weights = np.array([1.0, 1.0 + 1e-15, 1.0 - 1e-15])
    tree = SpanningTree(nx.cycle_graph(3), backend=backend).minimize(weights)
    np.testing.assert_array_equal(tree, [1.0, 0.0, 1.0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_forbidden_and_mandatory_edges_are_part_of_the_set(backend):
    graph = nx.complete_graph(5)
    trees = all_trees(graph)
    oracle = SpanningTree(graph, backend=backend, forbidden=[(0, 1), (2, 3)], mandatory=[(0, 4)])
    out, in_ = oracle.positions([(0, 1), (2, 3)]), oracle.positions([(0, 4)])
    kept = trees[(trees[:, out] == 0).all(axis=1) & (trees[:, in_] == 1).all(axis=1)]
    rng = np.random.default_rng(2)
    for _ in range(5):
        weights = rng.standard_normal(oracle.dimension)
        assert weights @ oracle.minimize(weights) == pytest.approx((kept @ weights).min())
    assert check(oracle, directions=10).passed
    twin = pickle.loads(pickle.dumps(oracle))
    np.testing.assert_array_equal(twin.minimize(weights), oracle.minimize(weights))


def test_exchanges_leave_held_edges_alone():
    oracle = SpanningTree(nx.complete_graph(5), forbidden=[(0, 1)], mandatory=[(3, 4)])
    target = np.zeros(oracle.dimension)
    target[oracle.position((0, 1))] = 9.0
    target[oracle.position((3, 4))] = -9.0
    found = oracle.round(np.full(oracle.dimension, 0.4), lambda v: float(np.sum((v - target) ** 2)))
    assert found[oracle.position((0, 1))] == 0
    assert found[oracle.position((3, 4))] == 1
    assert oracle.is_vertex(found)


def test_held_edges_that_leave_no_tree_are_refused():
    graph = nx.Graph([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")])
    with pytest.raises(
        InfeasibleError, match=r"without its forbidden edges .* \('c', 'd'\); allow"
    ):
        SpanningTree(graph, forbidden=[("c", "d")])
    with pytest.raises(InfeasibleError, match="some of them close a cycle; leave one"):
        SpanningTree(graph, mandatory=[("a", "b"), ("b", "c"), ("a", "c")])
    with pytest.raises(ValueError, match=r"\('a', 'x'\) is no edge of"):
        SpanningTree(graph, forbidden=[("a", "x")])
    with pytest.raises(ValueError, match="both forbidden and mandatory"):
        SpanningTree(graph, forbidden=[("a", "b")], mandatory=[("a", "b")])


def test_rows_that_were_found_stay_right_over_many_calls():
    graph = nx.gnm_random_graph(12, 40, seed=2)
    oracle = SpanningTree(graph, backend="ortools")
    reference, rng = oracle.with_backend("kruskal"), np.random.default_rng(0)
    for _ in range(60):
        weights = rng.standard_normal(oracle.dimension)
        assert weights @ oracle.minimize(weights) == pytest.approx(
            weights @ reference.minimize(weights)
        )


def test_fractional_points_outside_the_hull_violate_a_row():
    graph = nx.complete_graph(6)
    edges = list(graph.edges)
    tails, heads = (np.array(side) for side in zip(*edges))
    rng, found = np.random.default_rng(1), 0
    oracle = SpanningTree(graph)
    for _ in range(40):
        x = rng.dirichlet(np.full(len(edges), 0.3)) * 5
        x = np.minimum(x, 1.0)
        x *= 5 / x.sum()
        sets = list(violated_sets(x, tails, heads, 6))
        for nodes in sets:
            assert x[nodes[tails] & nodes[heads]].sum() > nodes.sum() - 1
        inside = x.max() <= 1.0 and oracle.contains(x)
        assert bool(sets) != inside or x.max() > 1.0
        found += bool(sets)
    assert found


def test_one_edge_that_is_given_without_a_list_is_named():
    with pytest.raises(ValueError, match=r"edges are given as a list: write \[\(0, 1\)\]"):
        SpanningTree(nx.complete_graph(4), forbidden=(0, 1))
