import cvxpy as cp
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.references.enumeration import all_matchings
from wdro_model.errors import InfeasibleError
from wdro_model.sets import Matching

BACKENDS = Matching.backends()


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_backends_agree_on_random_graphs(data):
    count = data.draw(st.integers(4, 9))
    node = st.integers(0, count - 1)
    pairs = data.draw(st.lists(st.tuples(node, node), min_size=1, max_size=16))
    graph = nx.MultiGraph([*pairs, (0, 1)])
    size = graph.number_of_edges()
    weights = np.array(
        data.draw(st.lists(st.integers(-4, 2), min_size=size, max_size=size)), dtype=float
    )
    matchings = Matching(graph)
    costs = [weights @ matchings.with_backend(b).minimize(weights) for b in ("highs", "networkx")]
    assert costs[0] == costs[1]


@pytest.mark.parametrize("perfect", [False, True])
def test_backends_agree_on_a_graph_of_some_size(perfect):
    graph = nx.random_regular_graph(5, 24, seed=3)
    programs = Matching(graph, perfect)
    assert programs.backend == "highs"
    blossoms, rng = programs.with_backend("networkx"), np.random.default_rng(1)
    for _ in range(10):
        weights = rng.standard_normal(programs.dimension)
        assert weights @ programs.minimize(weights) == pytest.approx(
            weights @ blossoms.minimize(weights)
        )


def test_half_a_triangle_is_outside():
    oracle = Matching(nx.cycle_graph(3))
    assert not oracle.contains(np.full(3, 0.5))
    assert oracle.contains(np.full(3, 1 / 3))


def test_larger_graphs_with_odd_cycles_have_no_cvxpy_form():
    large = Matching(nx.cycle_graph(13))
    assert not large.has_constraints
    with pytest.raises(NotImplementedError, match="a row for each odd set of its nodes"):
        large.constraints(cp.Variable(13))
    assert Matching(nx.cycle_graph(14)).has_constraints
    assert Matching(nx.cycle_graph(11)).has_constraints


def test_the_default_suits_the_graph():
    assert Matching(nx.path_graph(30)).backend == "scipy"
    assert Matching(nx.cycle_graph(5)).backend == "networkx"
    assert Matching(nx.cycle_graph(25)).backend == "highs"


@pytest.mark.parametrize("perfect", [False, True])
def test_rounding_ends_where_no_exchange_improves(perfect):
    graph = nx.complete_graph(6)
    rows, rng = all_matchings(graph, perfect), np.random.default_rng(5)
    oracle = Matching(graph, perfect, forbidden=[(0, 1)])
    for _ in range(5):
        matrix = rng.standard_normal((15, 15))
        found = oracle.round(rng.uniform(0, 1, 15), lambda v, a=matrix: float(v @ a @ v))
        assert (rows == found).all(axis=1).any()
        assert found[0] == 0
        near = list(oracle.neighbours(found, found))
        assert near
        assert all((rows == other).all(axis=1).any() for other in near)
        assert all(found @ matrix @ found <= other @ matrix @ other for other in near)


def test_the_nearest_matching_is_found():
    graph = nx.complete_graph(5)
    rows, x = all_matchings(graph), np.random.default_rng(3).uniform(0, 1, 10)
    oracle = Matching(graph)
    nearest = np.linalg.norm(rows - x, axis=1).min()
    assert np.linalg.norm(oracle.round(x) - x) == pytest.approx(nearest)


@pytest.mark.parametrize("backend", ["highs", "networkx", "scipy"])
def test_held_edges_that_leave_no_matching_are_refused(backend):
    square = nx.cycle_graph(4)
    with pytest.raises(InfeasibleError, match="two of them meet at 1; leave one"):
        Matching(square, backend=backend, mandatory=[(0, 1), (1, 2)])
    with pytest.raises(InfeasibleError, match="no perfect matching with 0 mandatory and 2"):
        Matching(square, True, backend, forbidden=[(0, 1), (0, 3)])
    with pytest.raises(ValueError, match="is no edge of"):
        Matching(square, backend=backend, forbidden=[(0, 2)])


def test_describe_says_what_kind_of_matchings():
    assert (
        "perfect matchings of a graph with 4 nodes" in Matching(nx.cycle_graph(4), True).describe()
    )
    assert Matching(nx.cycle_graph(5)).describe().startswith("matchings of")
