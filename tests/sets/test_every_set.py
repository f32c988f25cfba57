"""Every set of the library, with every backend, against all of its points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import permutations, product
from typing import Any

import networkx as nx
import numpy as np
import pytest

from tests.references.enumeration import (
    all_arborescences,
    all_matchings,
    all_paths,
    all_tours,
    all_trees,
)
from tests.sets.fuzzing import agrees, agrees_when_held, all_choices, is_hull, rounds_well, travels
from wdro_model import sets
from wdro_model.sets import check

VECTORS = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1], [1, 1, 1], [2, 0, 0.0]])
SIGNS = np.array(list(product([-1.0, 1.0], repeat=3)))
CENTER = np.array([1.0, -2.0, 0.5])
LOWER, UPPER = np.array([-1.0, 0.0, 2.0]), np.array([1.0, 0.5, 2.0])
COVERED = {"a": {1, 2}, "b": {2, 3}, "c": {3, 4, 5}, "d": {1, 5}}


@dataclass(frozen=True)
class Case:
    """A set, all of its vertices (one a row), and what can be asked of it.

    exact: answers are the rows themselves; held: coordinates can be fixed; rounded: rounding finds
    the nearest row.
    """

    make: Callable[..., Any]
    points: np.ndarray
    exact: bool = True
    held: bool = True
    rounded: bool = False

    @property
    def backends(self) -> tuple[str | None, ...]:
        """The names of the set's backends; None for a set with one way to be minimised."""
        return self.make().backends() or (None,)

    def build(self, backend: str | None) -> Any:
        return self.make() if backend is None else self.make(backend=backend)


def items(n: int, member: Callable[[np.ndarray], bool]) -> np.ndarray:
    return all_choices(n, member)


def assignments(n: int, m: int) -> np.ndarray:
    rows = []
    for columns in permutations(range(m), n):
        table = np.zeros((n, m))
        table[range(n), columns] = 1.0
        rows.append(table.ravel())
    return np.array(rows)


def packings(weights: list[float], capacity: float) -> np.ndarray:
    return items(len(weights), lambda row: np.array(weights) @ row <= capacity + 1e-9)


def independent(chosen: Any) -> bool:
    return np.linalg.matrix_rank(VECTORS[sorted(chosen)]) == len(chosen) if chosen else True


def greedy_points(f: Callable[[frozenset], float], names: list[Any]) -> np.ndarray:
    """The marginal values along every order: all vertices of a base polytope, by Edmonds."""
    rows = []
    for order in permutations(range(len(names))):
        values = [f(frozenset(names[i] for i in order[:k])) for k in range(len(names) + 1)]
        row = np.empty(len(names))
        row[list(order)] = np.diff(values)
        rows.append(row)
    return np.unique(rows, axis=0)


def coverage(chosen: Any) -> float:
    """How many numbers are covered: submodular."""
    return float(len(set().union(*(COVERED[item] for item in chosen))))


def root(chosen: Any) -> float:
    return len(chosen) ** 0.5


def cut(chosen: Any) -> float:
    """The cut function of a cycle of 5 nodes: submodular, not monotone."""
    return float(sum((i in chosen) != ((i + 1) % 5 in chosen) for i in range(5)))


def matroid_case(bases: bool) -> Case:
    def member(row: np.ndarray) -> bool:
        chosen = np.flatnonzero(row).tolist()
        return independent(chosen) and (len(chosen) == 3 or not bases)

    return Case(partial(sets.Matroid, 6, independent, bases), items(6, member), rounded=True)


def partition_case(bases: bool) -> Case:
    limits, groups = np.array([1, 2, 0]), [["a", "b"], ["c", "d", "e"], ["f"]]

    def member(row: np.ndarray) -> bool:
        sizes = np.array([row[:2].sum(), row[2:5].sum(), row[5]])
        return bool(np.all(sizes == limits if bases else sizes <= limits))

    make = partial(sets.Partition, groups, limits.tolist(), bases)
    return Case(make, items(6, member), rounded=True)


def subsets_case(n: int, k: int, at_most: bool) -> Case:
    points = items(n, lambda row: row.sum() <= k if at_most else row.sum() == k)
    return Case(partial(sets.Subsets, n, k, at_most), points, rounded=True)


def knapsack_case(weights: list[float], capacity: float) -> Case:
    return Case(
        partial(sets.Knapsack, weights, capacity), packings(weights, capacity), rounded=True
    )


def polytope_case(f: Callable[[frozenset], float], names: Any) -> Case:
    points = greedy_points(f, list(range(names)) if isinstance(names, int) else names)
    return Case(partial(sets.BasePolytope, f, names), points, exact=False, held=False)


def simple_case(make: Callable[[], Any], points: np.ndarray, **asked: Any) -> Case:
    return Case(make, points, held=False, **asked)


def graphs() -> dict[str, Case]:
    """Cycles in cycles, odd cycles, parallel edges, loops, nodes alone, any root, few tours."""
    rings = nx.MultiDiGraph([(0, 1), (1, 2), (2, 1), (2, 3), (3, 2), (3, 1), (0, 3), (1, 3)])
    rings.add_edges_from([(0, 1), (2, 2), (3, 0)])
    parallel = nx.MultiGraph([("a", "b"), ("a", "b"), ("b", "c"), ("c", "a"), ("c", "c")])
    parallel.add_edges_from([("c", "d"), ("d", "a"), ("d", "e"), ("e", "f"), ("f", "d")])
    crossed = nx.MultiGraph(nx.complete_bipartite_graph(3, 3))
    crossed.add_edges_from([(0, 3), (0, 0), (2, 5)])
    alone = nx.Graph([(0, 1), (1, 2), (2, 0)])
    alone.add_node(3)
    thick = nx.MultiGraph(nx.complete_graph(5))
    thick.add_edges_from([(0, 1), (0, 1), (2, 2)])
    triangles = nx.Graph([(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (0, 3)])
    acyclic = nx.DiGraph((i, j) for i in range(5) for j in range(i + 1, 5))
    tangled = nx.MultiDiGraph([(0, 1), (0, 1), (1, 2), (0, 2), (2, 1), (2, 3), (1, 3), (3, 3)])
    tangled.add_edges_from([(3, 4), (5, 0)])
    cases = {}
    for name, graph in (
        ("one edge", nx.Graph([("u", "v")])),
        ("parallel", parallel),
        ("wheel", nx.wheel_graph(5)),
        ("complete", nx.complete_graph(5)),
    ):
        cases[f"trees, {name}"] = Case(partial(sets.SpanningTree, graph), all_trees(graph))
    for name, graph, source, target in (
        ("acyclic", acyclic, 0, 4),
        ("grid", nx.grid_2d_graph(3, 3), (0, 0), (2, 2)),
        ("tangled", tangled, 0, 3),
        ("parallel", parallel, "a", "e"),
    ):
        make = partial(sets.ShortestPath, graph, source, target)
        cases[f"paths, {name}"] = Case(make, all_paths(graph, source, target))
    for name, graph, perfect in (
        ("complete", nx.complete_graph(6), False),
        ("complete", nx.complete_graph(6), True),
        ("two triangles", triangles, True),
        ("parallel", parallel, False),
        ("bipartite", crossed, False),
        ("bipartite", crossed, True),
        ("a node alone", alone, False),
    ):
        kind = "perfect matchings" if perfect else "matchings"
        make = partial(sets.Matching, graph, perfect)
        cases[f"{kind}, {name}"] = Case(make, all_matchings(graph, perfect))
    for name, graph, start in (
        ("one arc", nx.DiGraph([("u", "v")]), "u"),
        ("complete", nx.complete_graph(4, nx.DiGraph), 2),
        ("complete, any root", nx.complete_graph(4, nx.DiGraph), None),
        ("rings", rings, 0),
        ("rings, any root", rings, None),
        ("acyclic", acyclic, None),
    ):
        make = partial(sets.Arborescence, graph, start)
        cases[f"arborescences, {name}"] = Case(make, all_arborescences(graph, start))
    for name, graph in (
        ("triangle", nx.cycle_graph(3)),
        ("complete", nx.complete_graph(6)),
        ("parallel", thick),
        ("prism", nx.circular_ladder_graph(4)),
        ("there and back", nx.DiGraph([("a", "b"), ("b", "a")])),
        ("directed", nx.complete_graph(5, nx.DiGraph)),
    ):
        cases[f"tours, {name}"] = Case(partial(sets.Tour, graph), all_tours(graph))
    return cases


CASES = {
    "simplex": simple_case(partial(sets.Simplex, 4), np.eye(4)),
    "simplex of 3": simple_case(partial(sets.Simplex, 4, 3.0), 3 * np.eye(4)),
    "simplex, at most": simple_case(
        partial(sets.Simplex, 3, 2.0, True), np.vstack([2 * np.eye(3), np.zeros(3)])
    ),
    "one number": simple_case(partial(sets.Simplex, 1), np.ones((1, 1))),
    "box": simple_case(
        partial(sets.Box, LOWER, UPPER), np.array(list(product(*zip(LOWER, UPPER))))
    ),
    "cross": simple_case(
        partial(sets.Ball, 3, 1, 2.0, CENTER), np.vstack([2 * np.eye(3), -2 * np.eye(3)]) + CENTER
    ),
    "cube": simple_case(partial(sets.Ball, 3, np.inf, 0.5, CENTER), CENTER + 0.5 * SIGNS),
    "hull": simple_case(partial(sets.Hull, SIGNS[:5] + CENTER), SIGNS[:5] + CENTER),
    "binary hull": simple_case(
        partial(sets.Hull, (SIGNS[:5] + 1) / 2), (SIGNS[:5] + 1) / 2, rounded=True
    ),
    "whole hull": simple_case(
        partial(sets.Hull, [[0, 2], [3, 1], [4, 4.0]], integral=True),
        np.array([[0, 2], [3, 1], [4, 4.0]]),
        rounded=True,
    ),
    "coverage": polytope_case(coverage, list(COVERED)),
    "root": polytope_case(root, 4),
    "cut": polytope_case(cut, 5),
    "subsets of 2": subsets_case(5, 2, False),
    "subsets, at most 2": subsets_case(5, 2, True),
    "all of 4": subsets_case(4, 4, False),
    "one of one, at most": subsets_case(1, 1, True),
    "matroid": matroid_case(bases=False),
    "bases of a matroid": matroid_case(bases=True),
    "partition": partition_case(bases=False),
    "bases of a partition": partition_case(bases=True),
    "knapsack": knapsack_case([3, 4, 5, 6, 7, 2], 12),
    "knapsack with a weight of zero": knapsack_case([0, 4, 5, 0, 3], 8),
    "knapsack of halves": knapsack_case([0.5, 1.5, 2.0, 2.5, 1.0], 4.0),
    "knapsack for all": knapsack_case([1, 2, 3], 10),
    "knapsack, some never fit": knapsack_case([1, 20, 3, 30], 4),
    "knapsack, equal weights": knapsack_case([2] * 6, 7),
    "knapsack, large numbers": knapsack_case(
        [2**20 + 1, 2**21 + 3, 2**22 + 5, 2**20 + 7, 2**21 + 9], 2**22 + 2**20
    ),
    "knapsack of one item": knapsack_case([3], 3),
    **{
        f"assignments {n} to {m}": Case(
            partial(sets.Assignment, n, m), assignments(n, m), rounded=(n, m) in ((3, 3), (2, 4))
        )
        for n, m in ((1, 1), (1, 4), (3, 3), (2, 4), (3, 4))
    },
    **graphs(),
}
BACKENDS = [
    (name, backend)
    for name, case in CASES.items()
    for backend in case.backends
    if backend != "scipy" or "matchings" not in name or "bipartite" in name
]


@pytest.mark.parametrize(("name", "backend"), BACKENDS)
def test_the_best_of_all_points_is_found(name, backend):
    case = CASES[name]
    feasible = case.build(backend)
    agrees(case.points, feasible, exact=case.exact)
    if case.held:
        agrees_when_held(case.points, feasible)
    travels(feasible)
    assert check(feasible, directions=12).passed


@pytest.mark.parametrize("name", CASES)
def test_the_cvxpy_form_is_the_hull(name):
    case = CASES[name]
    feasible = case.make()
    if feasible.has_constraints and not feasible.nonnegative_directions:
        is_hull(case.points, feasible)


@pytest.mark.parametrize("name", CASES)
def test_bounds_are_those_of_the_points(name):
    case = CASES[name]
    lower, upper = case.make().bounds
    assert np.all(case.points >= lower - 1e-12)
    assert np.all(case.points <= upper + 1e-12)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.rounded])
def test_points_are_rounded_to_the_nearest_one_and_to_better_neighbours(name):
    case = CASES[name]
    rounds_well(case.points, case.make())


@pytest.mark.parametrize("name", graphs())
def test_roundings_on_graphs_are_vertices_that_no_neighbour_beats(name):
    case, rng = CASES[name], np.random.default_rng(4)
    feasible = case.make()
    matrix = rng.standard_normal((feasible.dimension, feasible.dimension))
    value = lambda v: float(v @ matrix @ v)  # noqa: E731
    best = feasible.round(rng.dirichlet(np.ones(len(case.points))) @ case.points, value)
    for vertex in (best, *feasible.neighbours(best, best)):
        assert (case.points == vertex).all(axis=1).any()
        assert feasible.is_vertex(vertex)
        assert value(best) <= value(vertex)
    assert not feasible.is_vertex(np.full(feasible.dimension, 0.5))
