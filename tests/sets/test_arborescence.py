import pickle

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.references.enumeration import agrees_with_enumeration, all_arborescences
from wdro_model.errors import InfeasibleError
from wdro_model.sets import Arborescence, check

BACKENDS = Arborescence.backends()


def graphs():
    """(graph, root): cycles in cycles, parallel arcs, loops, any root."""
    rings = nx.MultiDiGraph([(0, 1), (1, 2), (2, 1), (2, 3), (3, 2), (3, 1), (0, 3), (1, 3)])
    rings.add_edges_from([(0, 1), (2, 2), (3, 0)])
    return {
        "arc": (nx.DiGraph([("u", "v")]), "u"),
        "complete": (nx.complete_graph(4, nx.DiGraph), 2),
        "complete, any root": (nx.complete_graph(4, nx.DiGraph), None),
        "rings": (rings, 0),
        "rings, any root": (rings, None),
        "acyclic": (nx.DiGraph((i, j) for i in range(5) for j in range(i + 1, 5)), None),
    }


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", graphs())
def test_every_backend_finds_the_best_of_all_arborescences(name, backend):
    graph, root = graphs()[name]
    oracle, rows = Arborescence(graph, root, backend), all_arborescences(graph, root)
    assert agrees_with_enumeration(oracle, rows, np.random.default_rng(0))
    assert check(oracle, directions=12).passed


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_backends_agree_on_random_graphs(data):
    count = data.draw(st.integers(2, 9))
    spine = [(data.draw(st.integers(0, i - 1)), i) for i in range(1, count)]
    node = st.integers(0, count - 1)
    arcs = spine + data.draw(st.lists(st.tuples(node, node), max_size=20))
    graph, root = nx.MultiDiGraph(arcs), data.draw(st.sampled_from([0, None]))
    size = graph.number_of_edges()
    weights = np.array(
        data.draw(st.lists(st.integers(-4, 4), min_size=size, max_size=size)), dtype=float
    )
    trees = Arborescence(graph, root)
    costs = {weights @ trees.with_backend(name).minimize(weights) for name in BACKENDS}
    assert len(costs) == 1


def test_larger_ones_agree_with_networkx():
    graph = nx.gnm_random_graph(40, 300, seed=1, directed=True)
    trees, rng = Arborescence(graph, 0), np.random.default_rng(2)
    reference = trees.with_backend("networkx")
    for _ in range(5):
        weights = rng.standard_normal(trees.dimension)
        assert weights @ trees.minimize(weights) == pytest.approx(
            weights @ reference.minimize(weights)
        )


@pytest.mark.parametrize("name", ["complete", "complete, any root", "rings", "rings, any root"])
def test_the_cvxpy_form_is_the_hull(name):
    graph, root = graphs()[name]
    rows, oracle = all_arborescences(graph, root), Arborescence(graph, root)
    x, slope = cp.Variable(oracle.dimension), cp.Parameter(oracle.dimension)
    problem = cp.Problem(cp.Minimize(slope @ x), oracle.constraints(x))
    rng = np.random.default_rng(1)
    for _ in range(8):
        slope.value = rng.standard_normal(oracle.dimension)
        problem.solve(solver=cp.CLARABEL)
        assert problem.value == pytest.approx((rows @ slope.value).min(), abs=1e-6)
    assert oracle.contains(rows.mean(axis=0))


@pytest.mark.parametrize(
    ("graph", "root", "message"),
    [
        (nx.Graph([(0, 1)]), None, "directed graph, got an undirected one"),
        (nx.DiGraph([(0, 1)]), 5, "root 5 is not a node"),
        (nx.DiGraph([(0, 1), (2, 1)]), 0, "no path leads from it to 2"),
        (nx.DiGraph([("a", "b"), ("c", "b")]), None, "no path leads to 'a' and to 'c' from one"),
        (nx.DiGraph([(0, 0)]), None, "loops only"),
        (nx.DiGraph(), None, "no edge"),
    ],
)
def test_unsuitable_graphs_are_refused(graph, root, message):
    with pytest.raises(ValueError, match=message):
        Arborescence(graph, root)


@pytest.mark.parametrize("backend", BACKENDS)
def test_held_arcs_that_leave_nothing_are_refused(backend):
    graph = nx.DiGraph([(0, 1), (0, 2), (1, 2), (2, 1)])
    with pytest.raises(InfeasibleError, match="two of them lead to the same node"):
        Arborescence(graph, 0, backend, mandatory=[(0, 1), (2, 1)])
    with pytest.raises(InfeasibleError, match="no arborescence with 2 mandatory and 0 forbidden"):
        Arborescence(graph, 0, backend, mandatory=[(1, 2), (2, 1)])
    with pytest.raises(ValueError, match="is no arc of"):
        Arborescence(graph, 0, backend, forbidden=[(1, 0)])


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_can_be_sent_to_another_process(backend):
    oracle = Arborescence(nx.complete_graph(4, nx.DiGraph), 0, backend, forbidden=[(0, 1)])
    twin = pickle.loads(pickle.dumps(oracle))
    weights = np.random.default_rng(0).standard_normal(12)
    np.testing.assert_array_equal(twin.minimize(weights), oracle.minimize(weights))
    assert twin.backend == backend


def test_rounding_gives_an_arborescence():
    graph = nx.complete_graph(4, nx.DiGraph)
    rows, oracle = all_arborescences(graph), Arborescence(graph)
    found = oracle.round(rows.mean(axis=0))
    assert (rows == found).all(axis=1).any()
    assert oracle.is_vertex(found)
    assert not oracle.is_vertex(np.ones(12))
    assert "any root" in oracle.describe()
