"""Arguments that make no sense are refused by every set, with what was given and the way out."""

import networkx as nx
import numpy as np
import pytest

from wdro_model.sets import (
    Arborescence,
    Assignment,
    Ball,
    BasePolytope,
    Box,
    Hull,
    Knapsack,
    Matching,
    Matroid,
    NuclearBall,
    Partition,
    Simplex,
    Spectraplex,
    Subsets,
)


def at_most_two(chosen):
    return len(chosen) <= 2


def root(chosen):
    return len(chosen) ** 0.5


REFUSED = [
    (lambda: Assignment(3, 2), "3 rows and 2 columns; exchange rows and columns"),
    (lambda: Assignment(2, backend="scypi"), "Did you mean 'scipy'"),
    (lambda: Assignment(2, forbidden=[(0, 5)]), r"\(0, 5\) is no pair of Assignment"),
    (lambda: Assignment(2, forbidden=3), "list of names, got 3"),
    (lambda: Assignment(2.5), "a number or a list of names, got 2.5"),
    (lambda: Assignment(2).minimize([1.0, 2.0]), r"shape \(4,\), got shape \(2,\)"),
    (lambda: Assignment(2).minimize([1.0, 2.0, np.nan, 0]), "finite, got nan at index 2"),
    (lambda: BasePolytope(3, 3), "must be a function of a set of items, got 3"),
    (lambda: BasePolytope(lambda s: 1.0, 3), "of the empty set must be 0, got 1; subtract it"),
    (lambda: BasePolytope(lambda s: len(s) ** 2, 5), "f is not submodular: .* adds"),
    (lambda: BasePolytope(lambda s: np.inf if s else 0.0, 3), "f must be finite, got inf"),
    (lambda: BasePolytope(root, 0), "number of items must be"),
    (lambda: BasePolytope(root, 3).minimize(np.ones(3), np.zeros(3)), "within bounds; write"),
    (lambda: BasePolytope(root, 3).round(np.ones(3)), "cannot be rounded"),
    (lambda: Knapsack([1, -2], 3), "must be >= 0, got -2.0 at index 1"),
    (lambda: Knapsack([1, np.inf], 3), "got inf at index 1"),
    (lambda: Knapsack([[1, 2]], 3), r"list of numbers, got \[\[1, 2\]\]"),
    (lambda: Knapsack(["a"], 3), "array of numbers, got \\['a'\\]"),
    (
        lambda: Knapsack([1, 2], -1),
        "capacity of a Knapsack must be a nonnegative finite number",
    ),
    (lambda: Knapsack([1, 2], "much"), "must be a nonnegative finite number, got 'much'"),
    (lambda: Knapsack([1, 2], 3, items=["a"]), "got 2 weights and 1 items"),
    (lambda: Knapsack([0.1, 0.2], 1, backend="ortools"), "whole weights.*frontier"),
    (lambda: Knapsack([1], 1, backend="front"), "Did you mean 'frontier'"),
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
    (lambda: Simplex(0), "dimension of a Simplex must be an integer of at least 1, got 0"),
    (lambda: Simplex(3, -1), "total of a Simplex must be a positive finite number, got -1"),
    (lambda: Simplex(3).minimize(np.ones(2)), r"shape \(3,\), got shape \(2,\)"),
    (lambda: Simplex(3).minimize(np.ones(3), np.ones(2)), r"lower must have shape \(3,\)"),
    (
        lambda: Simplex(3).minimize(np.ones(3), upper=[1, np.nan, 1]),
        "upper must be numbers, got nan",
    ),
    (lambda: Simplex(3).minimize(np.ones(3), np.ones(3)), "sums are 3 and 3"),
    (lambda: Box(0, 1), r"must be an array, to tell its dimension, got 0 and 1"),
    (lambda: Box([0, 0], [1, np.inf]), r"upper bound of a Box must be finite, got inf"),
    (lambda: Box([0, 2], [1, 1]), "lower <= upper, got 2 and 1 at index 1"),
    (lambda: Box([0, 0], [1, 1, 1]), "numbers or arrays of one shape"),
    (lambda: Ball(3, 3, 1), "p = 1, 2 or inf, got p = 3"),
    (lambda: Ball(3, 2, 0), "radius of a Ball must be a positive finite number, got 0"),
    (lambda: Ball((2, 0), 2, 1), "shape of a Ball must be a positive integer"),
    (lambda: Ball(3, 2, 1, [1, 2]), r"an array of shape \(3,\)"),
    (lambda: Ball(3, 2, 1, [1, 2, np.nan]), "center of a Ball must be finite"),
    (lambda: Ball(3, 2, 1).minimize(np.ones(3), np.zeros(3)), "within bounds; write"),
    (lambda: Ball(3, 1, 1).minimize(np.ones(3), upper=np.zeros(3)), "within bounds; write"),
    (lambda: Hull([1, 2]), r"rows of an array \(K, n\), got shape \(2,\)"),
    (lambda: Hull([[1, np.nan]]), r"must be finite, got nan at index \(0, 1\)"),
    (lambda: Hull([["a"]]), r"array \(K, n\) of numbers"),
    (lambda: Hull([[0, 2], [1, 0]]).minimize([1, 1], [0, 0]), "within bounds; write"),
    (lambda: NuclearBall(5, 1.0), r"of a shape \(n, m\), got 5"),
    (lambda: NuclearBall((5, 0), 1.0), "shape of a NuclearBall must be"),
    (lambda: NuclearBall((2, 2), 0.0), "radius of a NuclearBall must be a positive"),
    (lambda: NuclearBall((2, 2), 1.0, backend="arpak"), "Did you mean 'arpack'"),
    (lambda: Spectraplex(0), "size n of a Spectraplex must be"),
    (lambda: Spectraplex(2, trace=-1), "trace of a Spectraplex must be a positive"),
    (lambda: Spectraplex(2).minimize(np.ones(4), np.zeros(4)), "within bounds; write"),
    (lambda: Spectraplex(2).round(np.ones(4)), "cannot be rounded"),
    (lambda: Subsets(3, 4), "k = 4 items need as many, got 3 items"),
    (lambda: Subsets(3, 1.5), "size k of Subsets must be an integer of at least 1"),
    (lambda: Subsets(0, 0), "number of items must be an integer of at least 1, got 0"),
    (lambda: Subsets([], 0), "at least one item, got none"),
    (lambda: Subsets(["a", "a"], 1), "name of its own, got 'a' twice"),
    (lambda: Subsets([["a"], ["b"]], 1), r"names that can be looked up, got \['a'\]"),
    (lambda: Subsets("abc", 1), "a number or a list of names, got 'abc'"),
    (lambda: Subsets(3, 1, mandatory=[7]), "7 is no item of Subsets"),
    (lambda: Subsets(3, 1, mandatory=[0, 1]), "no point with 2 mandatory"),
    (lambda: Subsets(3, 1, mandatory=[0], forbidden=[0]), "both forbidden and mandatory"),
    (lambda: Arborescence(nx.Graph([(0, 1)])), "directed graph, got an undirected one"),
    (lambda: Arborescence(nx.DiGraph([(0, 1)]), 5), "root 5 is not a node"),
    (lambda: Arborescence(nx.DiGraph([(0, 1), (2, 1)]), 0), "no path leads from it to 2"),
    (
        lambda: Arborescence(nx.DiGraph([("a", "b"), ("c", "b")])),
        "no path leads to 'a' and to 'c' from one",
    ),
    (lambda: Arborescence(nx.DiGraph([(0, 0)])), "loops only"),
    (lambda: Arborescence(nx.DiGraph()), "no edge"),
    (lambda: Matching(nx.DiGraph([(0, 1)])), "undirected graph, got a directed one"),
    (lambda: Matching(nx.empty_graph(3)), "no edge"),
    (lambda: Matching(nx.Graph([(0, 0)])), "self-loops only"),
    (lambda: Matching(nx.cycle_graph(5), True), "5 nodes, an odd number"),
    (lambda: Matching(nx.star_graph(3), True), "at most 2 of its 4 nodes can be matched"),
    (lambda: Matching("abc"), "networkx graph, got str"),
    (lambda: Matching(nx.cycle_graph(5), backend="scipy"), "bipartite graphs, and .* an odd cycle"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
