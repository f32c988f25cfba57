"""Pictures of decisions on graphs, and bounds on sets of one's own."""

import copy
import sys

import networkx as nx
import numpy as np
import pytest

from tests.references.enumeration import (
    agrees_with_enumeration,
    all_arborescences,
    all_matchings,
    all_tours,
    all_trees,
)
from wdro_model import sets
from wdro_model.errors import InfeasibleError


def every_set():
    grid = nx.grid_2d_graph(3, 3)
    arcs = nx.DiGraph([("s", "a"), ("a", "t"), ("s", "t")])
    return [
        sets.SpanningTree(grid),
        sets.ShortestPath(grid, (0, 0), (2, 2)),
        sets.Matching(nx.MultiGraph([(0, 1), (0, 1), (1, 2), (2, 2)])),
        sets.Flow(arcs, {"s": 1, "t": -1}),
        sets.Arborescence(arcs),
        sets.Tour(nx.complete_graph(50)),
    ]


@pytest.mark.parametrize("chosen", every_set(), ids=lambda s: type(s).__name__)
def test_a_decision_is_drawn(chosen, tmp_path):
    pytest.importorskip("matplotlib").use("Agg")
    vertex = chosen.minimize(np.arange(chosen.dimension, dtype=float))
    target = tmp_path / "decision.png"
    figure = chosen.plot(0.5 * vertex, target)
    assert target.stat().st_size > 0
    assert len(figure.axes) == 1
    with pytest.raises(ValueError, match="x must have shape"):
        chosen.plot(np.ones(chosen.dimension + 1))


def test_edges_are_as_wide_as_their_coordinates():
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("Agg")
    figure, axes = plt.subplots()
    tree = sets.SpanningTree(nx.cycle_graph(4))
    assert tree.plot([1.0, 0.5, 0.0, 1.0], ax=axes) is axes
    lines = [c for c in axes.collections if hasattr(c, "get_segments")]
    widths = np.concatenate(
        [np.broadcast_to(c.get_linewidths(), len(c.get_segments())) for c in lines]
    )
    assert sorted(widths) == pytest.approx([0.6, 2.4, 4.0, 4.0])
    plt.close(figure)


def test_nodes_stand_where_the_graph_says():
    assert sets.SpanningTree(nx.grid_2d_graph(2, 2)).places[(1, 0)] == (1.0, 0.0)
    placed = nx.path_graph(3)
    nx.set_node_attributes(placed, {i: (i, 2 * i) for i in range(3)}, "pos")
    assert sets.SpanningTree(placed).places[2] == (2.0, 4.0)
    assert sets.SpanningTree(nx.path_graph(3)).places is None


def test_without_matplotlib_the_way_out_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'wdro_model\[plot\]'"):
        sets.SpanningTree(nx.path_graph(3)).plot([1, 1])


def cheapest_two(direction):
    vertex = np.zeros(5)
    vertex[np.argsort(direction)[:2]] = 1.0
    return vertex


def test_an_oracle_of_ones_own_keeps_to_bounds():
    pairs = sets.Oracle(cheapest_two, 5, integral=True)
    direction = np.array([1.0, 2, 3, 4, 5])
    lower, upper = np.array([0, 0, 0, 0, 1.0]), np.array([0, 1, 1, 1, 1.0])
    np.testing.assert_array_equal(pairs.minimize(direction, lower, upper), [0, 1, 0, 0, 1])
    with pytest.raises(InfeasibleError, match="3 mandatory"):
        pairs.minimize(direction, [1, 1, 1, 0, 0])


def test_the_slack_of_an_oracle_is_the_same_within_bounds():
    def near(direction):
        vertex = cheapest_two(direction)
        return vertex, float(direction @ vertex) - 0.25

    pairs = sets.Oracle(near, 5, integral=True)
    vertex, slack = pairs.minimize_with_slack(np.arange(5.0), None, [0, 1, 1, 1, 1])
    np.testing.assert_array_equal(vertex, [0, 1, 1, 0, 0])
    assert slack == pytest.approx(0.25)


def test_bounds_of_a_product_reach_its_blocks():
    tree, pairs = sets.SpanningTree(nx.cycle_graph(3)), sets.Oracle(cheapest_two, 5)
    both = sets.ProductSet([tree, pairs])
    upper = np.array([0, 1, 1, 0, 1, 1, 1, 1.0])
    point = both.minimize(np.array([0, 1, 2, 0, 1, 2, 3, 4.0]), None, upper)
    np.testing.assert_array_equal(point, [0, 1, 1, 0, 1, 1, 0, 0])


def test_traffic_refuses_bounds_on_its_flows():
    from wdro_model.datasets import sioux_falls

    flows = sets.TrafficFlows(sioux_falls())
    with pytest.raises(ValueError, match=r"cannot be minimised within bounds .* use sets\.Flow"):
        flows.minimize(np.ones(flows.dimension), upper=np.ones(flows.dimension))


@pytest.mark.parametrize("directed", [False, True])
def test_neighbours_of_a_path_avoid_one_of_its_edges(directed):
    graph = nx.grid_2d_graph(3, 3)
    if directed:
        graph = nx.DiGraph((u, v) for u, v in graph.edges)
    paths = sets.ShortestPath(graph, (0, 0), (2, 2), mandatory=[((0, 0), (0, 1))])
    path = paths.minimize(np.ones(paths.dimension))
    mandatory = paths.position(((0, 0), (0, 1)))
    near = list(paths.neighbours(path, path))
    left = [edge for edge in np.flatnonzero(path) if edge != mandatory]
    assert len(near) == len(left) == 3
    for edge, other in zip(left, near):
        assert paths.is_vertex(other)
        assert other[edge] == 0
        assert other[mandatory] == 1


def test_neighbours_of_a_tree_differ_in_one_edge():
    trees = sets.SpanningTree(nx.complete_graph(5), forbidden=[(0, 1)], mandatory=[(3, 4)])
    tree = trees.minimize(np.arange(10.0))
    x = np.random.default_rng(0).uniform(0, 1, 10)
    near = list(trees.neighbours(tree, x))
    assert near
    assert all(trees.is_vertex(other) and np.abs(other - tree).sum() == 2 for other in near)
    apart = [np.sum((other - x) ** 2) for other in near]
    assert apart == sorted(apart)


@pytest.mark.parametrize("backend", ["ortools", "highs"])
def test_a_run_can_be_repeated_after_a_reset(backend):
    graph = nx.complete_graph(8)
    chosen = (sets.SpanningTree if backend == "ortools" else sets.Matching)(graph, backend=backend)
    rng = np.random.default_rng(0)
    directions = rng.integers(-2, 3, (12, chosen.dimension)).astype(float)
    runs = []
    for _ in range(2):
        chosen.reset()
        runs.append([chosen.minimize(direction) for direction in directions])
    np.testing.assert_array_equal(*runs)


def test_bounds_of_the_wrong_shape_are_refused():
    tree = sets.SpanningTree(nx.cycle_graph(3))
    with pytest.raises(ValueError, match=r"upper must have shape \(3,\), got shape \(2,\)"):
        tree.minimize(np.ones(3), upper=np.ones(2))
    with pytest.raises(InfeasibleError, match=r"edge \(0, 1\) must be at least 1 and at most 0"):
        tree.minimize(np.ones(3), lower=[1, 0, 0], upper=[0, 1, 1])
    held = sets.SpanningTree(nx.cycle_graph(3), forbidden=[(0, 1)])
    with pytest.raises(InfeasibleError, match=r"edge \(0, 1\) must be at least 1 and at most 0"):
        held.minimize(np.ones(3), lower=[1, 0, 0])


def test_an_edge_without_direction_is_named_from_either_end():
    tree = sets.SpanningTree(nx.cycle_graph(4), mandatory=[(2, 1)], forbidden=[(3, 0)])
    assert tree.minimize(np.zeros(4))[tree.position((1, 2))] == 1
    assert "4 edges (1 forbidden, 1 mandatory), minimised by kruskal" in tree.describe()
    assert tree.position((2, 1)) == tree.position((1, 2))
    parallel = sets.SpanningTree(nx.MultiGraph([(0, 1), (0, 1)]))
    assert parallel.position((1, 0, 1)) == 1
    with pytest.raises(ValueError, match=r"\(1, 0\) is no arc of .* they are \(0, 1\)"):
        sets.Arborescence(nx.DiGraph([(0, 1)]), forbidden=[(1, 0)])
    with pytest.raises(ValueError, match="given as a list of names, got 5"):
        sets.SpanningTree(nx.cycle_graph(4), forbidden=5)


def best_of_all(rows):
    """A backend that knows nothing of held edges."""
    return lambda direction: rows[np.argmin(rows @ direction)].copy()


@pytest.mark.parametrize(
    ("chosen", "rows"),
    [
        (sets.SpanningTree(nx.complete_graph(5)), all_trees(nx.complete_graph(5))),
        (sets.Matching(nx.complete_graph(5)), all_matchings(nx.complete_graph(5))),
        (sets.Matching(nx.complete_graph(6), True), all_matchings(nx.complete_graph(6), True)),
        (
            sets.Arborescence(nx.complete_graph(4, nx.DiGraph)),
            all_arborescences(nx.complete_graph(4, nx.DiGraph)),
        ),
        (sets.Tour(nx.complete_graph(5)), all_tours(nx.complete_graph(5))),
    ],
    ids=lambda value: getattr(value, "backend", None),
)
def test_a_backend_that_only_minimises_can_be_held(chosen, rows):
    chosen = copy.copy(chosen)
    chosen._oracle = best_of_all(rows)
    assert agrees_with_enumeration(chosen, rows, np.random.default_rng(6), tries=3)


def test_a_backend_of_flows_that_only_minimises_can_be_bounded():
    flows = sets.Flow(nx.DiGraph([("s", "a"), ("a", "t"), ("s", "t")]), {"s": 2, "t": -2})
    weights = np.array([{("s", "t"): 5.0}.get(edge, 1.0) for edge in flows.edges])
    plain = copy.copy(flows)
    plain._oracle = lambda direction: flows.minimize(direction)
    assert plain.selected(plain.minimize(weights)) == {("s", "a"): 2.0, ("a", "t"): 2.0}
    upper = [1.5 if edge == ("s", "a") else 2.0 for edge in flows.edges]
    assert plain.selected(plain.minimize(weights, upper=upper)) == pytest.approx(
        {("s", "a"): 1.5, ("a", "t"): 1.5, ("s", "t"): 0.5}
    )
