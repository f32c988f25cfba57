"""Fractional points rounded to trees, paths and integers, against all of them on small graphs."""

from __future__ import annotations

import cvxpy as cp
import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.references.enumeration import all_paths, all_trees
from wdro_model.sets import ConvexSet, Oracle, ProductSet, ShortestPath, SpanningTree
from wdro_model.sets.spanning_tree import exchanges

MULTIGRAPH = nx.MultiGraph([(0, 1), (0, 1), (1, 2), (2, 0), (2, 3), (3, 0), (2, 2)])
GRAPHS = (nx.complete_graph(4), nx.cycle_graph(5), nx.wheel_graph(5), MULTIGRAPH, nx.path_graph(3))


def neighbours(tree, trees):
    """The trees that differ from one by one edge in and one edge out."""
    return trees[np.abs(trees - tree).sum(axis=1) == 2]


class Quadratic:
    """x' M x, with its gradient."""

    def __init__(self, matrix):
        self.matrix, self.calls = matrix, 0

    def __call__(self, x):
        self.calls += 1
        return float(x @ self.matrix @ x)

    def gradient(self, x):
        return (self.matrix + self.matrix.T) @ x


def quadratic(size, seed, convex):
    root = np.random.default_rng(seed).normal(size=(size, size))
    return Quadratic(root @ root.T if convex else root)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(GRAPHS), st.integers(0, 10**6))
def test_exchanges_lead_to_all_neighbours_of_a_tree(graph, seed):
    trees, oracle = all_trees(graph), SpanningTree(graph)
    tree = trees[seed % len(trees)]
    found = []
    for entering, leaving in exchanges(tree, oracle.tails, oracle.heads):
        other = tree.copy()
        other[entering], other[leaving] = 1.0, 0.0
        found.append(other)
    expected = neighbours(tree, trees)
    assert len(found) == len(expected)
    assert {tuple(t) for t in found} == {tuple(t) for t in expected}


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(GRAPHS), st.integers(0, 10**6), st.booleans(), st.booleans())
def test_a_rounded_tree_is_one_that_no_exchange_improves(graph, seed, convex, with_gradient):
    trees, oracle = all_trees(graph), SpanningTree(graph)
    x = np.random.default_rng(seed).dirichlet(np.ones(len(trees))) @ trees
    value = quadratic(oracle.dimension, seed, convex)
    judge = value if convex and with_gradient else lambda vertex: value(vertex)
    given_tree = trees[seed % len(trees)]
    found = oracle.round(x, judge, candidates=[given_tree])
    assert found.tolist() in trees.tolist()
    assert value(found) <= value(oracle.minimize(-x))
    assert value(found) <= value(given_tree)
    assert all(value(found) <= value(tree) for tree in neighbours(found, trees))


def test_without_a_value_the_nearest_tree_is_taken():
    graph = nx.wheel_graph(5)
    trees, oracle = all_trees(graph), SpanningTree(graph)
    for seed in range(10):
        x = np.random.default_rng(seed).uniform(-0.5, 1.5, oracle.dimension)
        nearest = np.linalg.norm(trees - x, axis=1).min()
        assert np.linalg.norm(oracle.round(x) - x) == pytest.approx(nearest)


def test_a_gradient_of_a_convex_value_saves_evaluations():
    graph = nx.complete_graph(7)
    oracle = SpanningTree(graph)
    with_gradient, without = quadratic(21, 1, True), quadratic(21, 1, True)
    x = np.full(21, 6 / 21)
    first = oracle.round(x, with_gradient)
    second = oracle.round(x, lambda vertex: without(vertex))
    assert with_gradient.calls < without.calls
    for tree in (first, second):
        for entering, leaving in exchanges(tree, oracle.tails, oracle.heads):
            other = tree.copy()
            other[entering], other[leaving] = 1.0, 0.0
            assert without(tree) <= without(other)


DAG = nx.DiGraph([(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (2, 4), (3, 4), (0, 4)])


@pytest.mark.parametrize("graph", [DAG, nx.cycle_graph(6).to_directed(), nx.complete_graph(5)])
@pytest.mark.parametrize("seed", range(5))
def test_a_rounded_path_is_a_path(graph, seed):
    paths, oracle = all_paths(graph, 0, 4), ShortestPath(graph, 0, 4)
    x = np.random.default_rng(seed).dirichlet(np.ones(len(paths))) @ paths
    assert oracle.round(x).tolist() in paths.tolist()
    weights = np.random.default_rng(seed + 100).uniform(size=oracle.dimension)
    best = oracle.round(x, lambda path: float(weights @ path), candidates=paths)
    assert weights @ best == pytest.approx((paths @ weights).min())


def test_on_an_acyclic_graph_the_nearest_path_is_taken():
    paths, oracle = all_paths(DAG, 0, 4), ShortestPath(DAG, 0, 4)
    for seed in range(10):
        x = np.random.default_rng(seed).dirichlet(np.ones(len(paths))) @ paths
        nearest = np.linalg.norm(paths - x, axis=1).min()
        assert np.linalg.norm(oracle.round(x) - x) == pytest.approx(nearest)


def largest_three(direction):
    """The set of choices of three out of seven."""
    vertex = np.zeros(7)
    vertex[np.argsort(direction)[:3]] = 1.0
    return vertex


def test_a_function_of_the_user_with_choices_as_answers_rounds():
    x = np.array([0.9, 0.8, 0.1, 0.2, 0.7, 0.2, 0.1])
    assert Oracle(largest_three, 7).round(x).tolist() == [1, 1, 0, 0, 1, 0, 0]


def test_integer_variables_round_to_the_nearest_point_of_the_set():
    y = cp.Variable(3, integer=True, name="y")
    z = cp.Variable(name="z")
    points = ConvexSet([y >= 0, cp.sum(y) <= 4, z == cp.sum(y) / 2], [y, z])
    grid = np.array(
        [(i, j, k) for i in range(5) for j in range(5) for k in range(5) if i + j + k <= 4]
    )
    x = np.array([1.4, 0.4, 2.2, 2.0])
    all_points = np.column_stack([grid, grid.sum(axis=1) / 2])
    nearest = np.abs(all_points - x).sum(axis=1).min()
    found = points.round(x)
    assert np.abs(found - x).sum() == pytest.approx(nearest)
    assert found[:3].tolist() == np.rint(found[:3]).tolist()


def test_boolean_variables_round_too():
    y = cp.Variable(4, boolean=True, name="y")
    chosen = ConvexSet([cp.sum(y) == 2], y)
    assert chosen.round([0.7, 0.1, 0.6, 0.6 - 1e-9]).tolist() == [1, 0, 1, 0]


def test_blocks_are_rounded_and_continuous_ones_kept():
    graph = nx.complete_graph(4)
    tree, share = SpanningTree(graph), cp.Variable(2, nonneg=True, name="share")
    both = ProductSet([tree, ConvexSet([cp.sum(share) == 1], share)])
    x = np.concatenate([np.full(6, 0.5), [0.3, 0.7]])
    trees = all_trees(graph)
    matrix = np.random.default_rng(0).normal(size=(8, 8))
    value = Quadratic(matrix @ matrix.T)
    found = both.round(x, value)
    assert found[:6].tolist() in trees.tolist()
    assert found[6:].tolist() == [0.3, 0.7]
    for other in neighbours(found[:6], trees):
        assert value(found) <= value(np.concatenate([other, found[6:]]))
    assert both.round(x)[:6].tolist() in trees.tolist()


def test_several_discrete_blocks_take_the_best_of_the_candidates():
    graph = nx.complete_graph(3)
    both = ProductSet([SpanningTree(graph), SpanningTree(graph)])
    trees = all_trees(graph)
    pairs = np.array([np.concatenate([a, b]) for a in trees for b in trees])
    target = pairs[5]
    value = lambda v: float(np.abs(v - target).sum())  # noqa: E731
    assert both.round(np.full(6, 2 / 3), value, candidates=pairs).tolist() == target.tolist()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda v: ConvexSet([cp.sum(v) == 1, v >= 0], v), "its decisions are continuous"),
        (lambda v: Oracle(lambda g: 2.5 * (g < 0.5), 3, name="box"), "rounding is for sets whose"),
        (lambda v: Oracle(lambda g: -g / np.linalg.norm(g), 3, name="ball"), "are continuous"),
        (
            lambda v: ProductSet([ConvexSet([cp.norm(v) <= 1], v)]),
            "its decisions are continuous, not choices such as trees",
        ),
    ],
)
def test_sets_without_discrete_points_refuse(build, message):
    with pytest.raises(ValueError, match=message):
        build(cp.Variable(3, name="v")).round(np.full(3, 0.4))


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ([[0.5] * 6], "candidate 0 is not a discrete point of SpanningTree"),
        ([[1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 0, 0]], "candidate 1 is not a discrete point"),
        ([[1, 0, 0]], r"candidate 0 must have shape \(6,\)"),
    ],
)
def test_candidates_must_be_trees(candidates, message):
    with pytest.raises(ValueError, match=message):
        SpanningTree(nx.complete_graph(4)).round(np.full(6, 0.5), candidates=candidates)


def test_a_path_with_a_detour_is_no_candidate():
    graph = nx.DiGraph([(0, 1), (1, 2), (3, 4), (4, 3), (1, 3), (3, 2)])
    oracle = ShortestPath(graph, 0, 2)
    walk = [1.0 if edge in {(0, 1), (1, 2), (1, 3)} else 0.0 for edge in oracle.edges]
    with pytest.raises(ValueError, match="candidate 0 is not a discrete point of ShortestPath"):
        oracle.round(np.full(oracle.dimension, 0.5), candidates=[walk])


def test_what_is_rounded_must_have_the_dimension_of_the_set():
    with pytest.raises(ValueError, match=r"x must have shape \(6,\), got shape \(5,\)"):
        SpanningTree(nx.complete_graph(4)).round(np.full(5, 0.5))
    with pytest.raises(ValueError, match="x must be finite, got nan at index 0"):
        SpanningTree(nx.complete_graph(4)).round(np.full(6, np.nan))
