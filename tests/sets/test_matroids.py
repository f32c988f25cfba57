import networkx as nx
import numpy as np
import pytest

from tests.references.enumeration import all_trees
from tests.sets.fuzzing import (
    agrees,
    agrees_when_held,
    all_choices,
    is_hull,
    rounds_well,
    travels,
)
from wdro_model.errors import InfeasibleError
from wdro_model.sets import Matroid, Partition, SpanningTree, Subsets, check

VECTORS = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1], [1, 1, 1], [2, 0, 0.0]])


def independent_vectors(chosen):
    return np.linalg.matrix_rank(VECTORS[sorted(chosen)]) == len(chosen) if chosen else True


def at_most_two(chosen):
    return len(chosen) <= 2


@pytest.mark.parametrize("bases", [False, True])
def test_a_linear_matroid(bases):
    points = all_choices(
        6,
        lambda row: (
            independent_vectors(np.flatnonzero(row).tolist()) and (row.sum() == 3 or not bases)
        ),
    )
    matroid = Matroid(6, independent_vectors, bases=bases)
    assert matroid.rank == 3
    agrees(points, matroid)
    agrees_when_held(points, matroid)
    is_hull(points, matroid)
    travels(matroid)
    rounds_well(points, matroid)
    assert check(matroid, directions=20).passed


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


@pytest.mark.parametrize("bases", [False, True])
def test_partitions(bases):
    capacities = np.array([1, 2, 0])
    groups = [["a", "b"], ["c", "d", "e"], ["f"]]
    sizes = lambda row: np.array([row[:2].sum(), row[2:5].sum(), row[5]])  # noqa: E731
    points = all_choices(
        6, lambda row: np.all(sizes(row) == capacities if bases else sizes(row) <= capacities)
    )
    partition = Partition(groups, capacities.tolist(), bases=bases)
    agrees(points, partition)
    agrees_when_held(points, partition)
    is_hull(points, partition)
    travels(partition)
    rounds_well(points, partition)
    assert check(partition, directions=20).passed


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Matroid(3, [1]), "must be a function of a set of items"),
        (lambda: Matroid(3, lambda s: len(s) == 1), "the empty set must be independent"),
        (
            lambda: Matroid(4, lambda s: s <= {0, 1} or s <= {2} or s <= {3}),
            "cannot be extended by an item of the larger independent set",
        ),
        (lambda: Matroid(4, lambda s: len(s) != 2 or 0 not in s), "not a matroid"),
        (lambda: Matroid(3, at_most_two, mandatory=[0, 1, 2]), "no point with 3 mandatory"),
        (lambda: Matroid(3, at_most_two, bases=True, forbidden=[0, 1]), "2 forbidden"),
        (lambda: Partition(3, 1), "lists of items, or a dict of such, got 3"),
        (lambda: Partition([[1], 2], 1), "group 1 must be a list of items, got 2"),
        (lambda: Partition([[1], [1]], 1), "got 1 twice"),
        (lambda: Partition([[1], [2]], [1]), "one for each of 2 groups"),
        (lambda: Partition([[1], [2]], [1, -1]), "capacity of group 1 must be an integer"),
        (lambda: Partition({"a": [1]}, {"b": 1}), "keys of the groups"),
        (lambda: Partition([[1], [2]], 2, bases=True), "group 0 has 1 items and 2 are asked for"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_errors_of_the_users_function_say_whose_they_are():
    def broken(chosen):
        raise KeyError("x")

    with pytest.raises(KeyError) as caught:
        Matroid(3, broken)
    assert "independent" in caught.value.__notes__[0]


def test_nothing_left_of_a_partition_is_infeasible():
    with pytest.raises(InfeasibleError, match="2 mandatory"):
        Partition([[0, 1], [2]], 1, mandatory=[0, 1])
