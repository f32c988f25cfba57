import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wdro_model.errors import InfeasibleError
from wdro_model.sets import Arborescence

BACKENDS = Arborescence.backends()


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


@pytest.mark.parametrize("backend", BACKENDS)
def test_held_arcs_that_leave_nothing_are_refused(backend):
    graph = nx.DiGraph([(0, 1), (0, 2), (1, 2), (2, 1)])
    with pytest.raises(InfeasibleError, match="two of them lead to the same node"):
        Arborescence(graph, 0, backend, mandatory=[(0, 1), (2, 1)])
    with pytest.raises(InfeasibleError, match="no arborescence with 2 mandatory and 0 forbidden"):
        Arborescence(graph, 0, backend, mandatory=[(1, 2), (2, 1)])
    with pytest.raises(ValueError, match="is no arc of"):
        Arborescence(graph, 0, backend, forbidden=[(1, 0)])
