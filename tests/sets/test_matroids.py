import cvxpy as cp
import networkx as nx
import numpy as np
import pytest

import wdro_model as wdro
from tests.references.enumeration import all_trees
from tests.sets.fuzzing import (
    agrees,
)
from wdro_model.errors import InfeasibleError
from wdro_model.sets import BasePolytope, Matroid, Partition, SpanningTree, Subsets, check

VECTORS = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1], [1, 1, 1], [2, 0, 0.0]])


def at_most_two(chosen):
    return len(chosen) <= 2


def test_the_graphic_matroid_has_the_spanning_trees_as_bases():
    graph = nx.complete_graph(4)

    def is_forest(edges):
        return not edges or nx.is_forest(nx.Graph(list(edges)))

    matroid = Matroid(list(graph.edges), is_forest, bases=True)
    trees = SpanningTree(graph)
    rng = np.random.default_rng(0)
    for _ in range(10):
        costs = rng.standard_normal(6)
        np.testing.assert_array_equal(matroid.minimize(costs), trees.minimize(costs))
    agrees(all_trees(graph), matroid)


def test_uniform_matroids_are_subsets():
    rng = np.random.default_rng(0)
    large = Matroid(30, at_most_two, bases=True)
    assert not large.has_constraints
    with pytest.raises(NotImplementedError, match="no CVXPY form"):
        large.constraints(None)
    for _ in range(5):
        costs = rng.standard_normal(30)
        np.testing.assert_array_equal(large.minimize(costs), Subsets(30, 2).minimize(costs))


def test_partitions_are_matroids():
    groups = [[0, 1, 2], [3, 4], [5, 6, 7, 8]]
    limit = [2, 1, 3]

    def independent(chosen):
        return all(len(chosen & set(group)) <= most for group, most in zip(groups, limit))

    rng = np.random.default_rng(0)
    for bases in (False, True):
        first, second = Partition(groups, limit, bases=bases), Matroid(9, independent, bases=bases)
        for _ in range(10):
            costs = rng.standard_normal(9)
            np.testing.assert_array_equal(first.minimize(costs), second.minimize(costs))


def test_groups_may_have_names():
    partition = Partition(
        {"north": ["Oslo", "Rome"], "south": ["Cape"]}, {"south": 1, "north": 1}, bases=True
    )
    assert partition.groups == ("north", "south")
    assert partition.selected(partition.minimize([2.0, 1.0, 5.0])) == ["Rome", "Cape"]
    assert "2 groups" in partition.describe()


def test_errors_of_the_users_function_say_whose_they_are():
    def broken(chosen):
        raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        Matroid(3, broken)
    assert "independent" in caught.value.__notes__[0]


def test_nothing_left_of_a_partition_is_infeasible():
    with pytest.raises(InfeasibleError, match="2 mandatory"):
        Partition([[0, 1], [2]], 1, mandatory=[0, 1])


def root(chosen):
    return len(chosen) ** 0.5


def test_large_functions_have_no_cvxpy_form():
    polytope = BasePolytope(root, 40)
    assert check(polytope, directions=20).passed
    with pytest.raises(NotImplementedError, match="no CVXPY form"):
        polytope.constraints(None)


def test_items_have_names():
    subsets = Subsets(["tea", "milk", "salt"], 2, forbidden=["tea"])
    assert subsets.items == ("tea", "milk", "salt")
    vertex = subsets.minimize([-9.0, 1.0, 2.0])
    assert subsets.selected(vertex) == ["milk", "salt"]
    assert "(1 forbidden)" in subsets.describe()
    assert check(subsets, directions=10).passed
    rounded = subsets.round(np.array([1.0, 0.9, 0.1]), value=lambda v: -v[0])
    assert subsets.selected(rounded) == ["milk", "salt"]


def test_a_robust_choice_of_items():
    rng = np.random.default_rng(0)
    subsets = Subsets(6, 2)
    x = cp.Variable(6)
    price = wdro.UncertainParameter(6, samples=rng.uniform(1, 2, size=(10, 6)))
    problem = wdro.Problem(
        cp.Minimize(price @ x), [wdro.In(x, subsets)], ambiguity=wdro.WassersteinBall(0.01)
    )
    problem.solve()
    assert x.value.sum() == pytest.approx(2, abs=1e-4)
    problem.round()
    assert len(subsets.selected(x.value)) == 2
