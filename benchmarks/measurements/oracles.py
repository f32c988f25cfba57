"""Oracles: a call of a set's backend against the bare library call that does the work.

    python benchmarks oracles [--rounds 15] [--only Matching Flow]

A bare call is what one would write oneself for the same linear minimum, with everything that does
not depend on the weights built beforehand; it ends with the library's own answer, not with a 0/1
vector. Backends written here (kruskal, numba, edmonds) and programs without a bare call of their
own are held against the fastest library call for the same set, named in the last column. Calls take
turns over fresh random directions after a warm-up; the table has medians of processor time.

A family adds its cases to `CASES`: a function that yields `Case`s. Those of choices and matrices
are in `choice_oracles.py`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
import scipy.sparse as sp
from choice_oracles import FAMILIES
from scipy.optimize import Bounds, LinearConstraint, linear_sum_assignment, linprog, milp
from scipy.sparse.csgraph import dijkstra, minimum_spanning_tree

from wdro_model import sets

Vector = np.ndarray
Call = Callable[[Vector], Any]


@dataclass(frozen=True)
class Case:
    """One row of the table.

    title: the set and its size; backend: its name; oracle: ours; bare: the library's call; what:
    which one; positive: are directions nonnegative?
    """

    title: str
    backend: str
    oracle: Call
    dimension: int
    bare: Call | None
    what: str
    positive: bool = False


def trees() -> Iterator[Case]:
    """Spanning trees: sparse graphs of two sizes."""
    for nodes, edges in ((50, 331), (1000, 10_000)):
        graph = nx.gnm_random_graph(nodes, edges, seed=1)
        spanning = sets.SpanningTree(graph)
        matrix = sp.csr_array(
            (np.ones(edges), (spanning.tails, spanning.heads)), shape=(nodes, nodes)
        )
        place = sp.csr_array(
            (np.arange(edges), (spanning.tails, spanning.heads)), shape=(nodes, nodes)
        ).data
        weighted = nx.Graph(graph)
        attributes = [weighted.edges[edge] for edge in graph.edges]

        def by_scipy(weights: Vector, matrix: Any = matrix, place: Any = place) -> Any:
            matrix.data[:] = weights[place]
            return minimum_spanning_tree(matrix)

        def by_networkx(weights: Vector, graph: Any = weighted, data: Any = attributes) -> Any:
            for attribute, weight in zip(data, weights.tolist()):
                attribute["weight"] = weight
            return list(nx.minimum_spanning_edges(graph, data=False))

        title = f"SpanningTree, {nodes} nodes, {edges} edges"
        for name in sets.SpanningTree.backends():
            if name == "cvxpy" or (name == "ortools" and nodes > 50):
                continue
            library = (by_networkx, "networkx") if name == "networkx" else (by_scipy, "scipy")
            oracle = spanning.with_backend(name).minimize
            yield Case(title, name, oracle, edges, *library, positive=True)
        picked = np.random.default_rng(0).permutation(edges)
        upper = np.ones(edges)
        upper[picked[:20]] = 0.0
        held = sets.SpanningTree(
            graph,
            forbidden=[spanning.edges[e] for e in picked[:20]],
            mandatory=spanning.selected(spanning.minimize(1.0 - upper))[:5],
        )
        what = "ours, nothing held"
        yield Case(f"{title}, held", "kruskal", held.minimize, edges, spanning.minimize, what)


def paths() -> Iterator[Case]:
    """Shortest paths on a grid with arcs right and down."""
    side = 40
    graph = nx.DiGraph(
        ((i, j), there)
        for i in range(side)
        for j in range(side)
        for there in ((i + 1, j), (i, j + 1))
        if max(there) < side
    )
    ends = ((0, 0), (side - 1, side - 1))
    shortest = sets.ShortestPath(graph, *ends)
    count, size = len(shortest.nodes), shortest.dimension
    order = np.lexsort((shortest.heads, shortest.tails))
    matrix = sp.csr_array((np.ones(size), (shortest.tails, shortest.heads)), shape=(count, count))
    weighted = nx.DiGraph(graph)
    attributes = [weighted.edges[edge] for edge in shortest.edges]

    def by_scipy(weights: Vector) -> Any:
        matrix.data[:] = weights[order]
        return dijkstra(matrix, indices=0, return_predecessors=True)

    def by_networkx(weights: Vector) -> Any:
        for attribute, weight in zip(attributes, weights.tolist()):
            attribute["weight"] = weight
        return nx.dijkstra_path(weighted, *ends)

    title = f"ShortestPath, {count} nodes, {size} arcs"
    for name, bare in (("scipy", by_scipy), ("networkx", by_networkx), ("ortools", by_scipy)):
        what = "scipy" if bare is by_scipy else "networkx"
        oracle = shortest.with_backend(name).minimize
        yield Case(title, name, oracle, size, bare, what, positive=True)


def matchings() -> Iterator[Case]:
    """Perfect matchings of sparse graphs, and of a complete bipartite one."""
    for nodes in (30, 60, 100):
        graph = nx.random_regular_graph(8, nodes, seed=1)
        perfect = sets.Matching(graph, perfect=True)
        size = perfect.dimension
        degrees = LinearConstraint(perfect.incidence, 1, 1)

        def by_networkx(weights: Vector, graph: Any = graph) -> Any:
            for edge, weight in zip(graph.edges, weights.tolist()):
                graph.edges[edge]["weight"] = -weight
            return nx.max_weight_matching(graph, maxcardinality=True)

        def by_milp(weights: Vector, degrees: Any = degrees, size: int = size) -> Any:
            return milp(
                weights, integrality=np.ones(size), bounds=Bounds(0, 1), constraints=degrees
            )

        title = f"Matching, perfect, {nodes} nodes, {size} edges"
        for name, bare, what in (
            ("networkx", by_networkx, "networkx"),
            ("highs", by_milp, "scipy milp"),
        ):
            yield Case(title, name, perfect.with_backend(name).minimize, size, bare, what)
    side = 100
    bipartite = sets.Matching(nx.complete_bipartite_graph(side, side), perfect=True)

    def by_assignment(weights: Vector) -> Any:
        return linear_sum_assignment(weights.reshape(side, side))

    title = f"Matching, perfect, {side} + {side} nodes, all edges"
    yield Case(title, "scipy", bipartite.minimize, side * side, by_assignment, "scipy")


def flows() -> Iterator[Case]:
    """Minimum cost flows of 50 units."""
    from ortools.graph.python import min_cost_flow

    nodes, arcs = 1000, 10_000
    graph = nx.gnm_random_graph(nodes, arcs, seed=3, directed=True)
    supply = {node: 5 if node < 10 else -5 for node in range(20)}
    flow = sets.Flow(graph, supply, capacity=10)
    tails, heads = flow.tails.astype(np.int32), flow.heads.astype(np.int32)
    capacity, at_nodes = np.full(arcs, 10), np.arange(nodes, dtype=np.int32)
    amounts = flow.supply.astype(np.int64)
    incidence = sp.csc_array(flow.incidence)

    def by_ortools(weights: Vector) -> Any:
        solver = min_cost_flow.SimpleMinCostFlow()
        costs = np.rint(2.0**30 * weights).astype(np.int64)
        solver.add_arcs_with_capacity_and_unit_cost(tails, heads, capacity, costs)
        solver.set_nodes_supplies(at_nodes, amounts)
        solver.solve()
        return solver

    def by_linprog(weights: Vector) -> Any:
        return linprog(weights, A_eq=incidence, b_eq=flow.supply, bounds=(0, 10))

    title = f"Flow, {nodes} nodes, {arcs} arcs"
    for name, bare, what in (
        ("ortools", by_ortools, "ortools"),
        ("highs", by_linprog, "scipy linprog"),
    ):
        oracle = flow.with_backend(name).minimize
        yield Case(title, name, oracle, arcs, bare, what, positive=True)


def arborescences() -> Iterator[Case]:
    """Arborescences of a random directed graph."""
    nodes, arcs = 100, 1000
    graph = nx.gnm_random_graph(nodes, arcs, seed=4, directed=True)
    trees = sets.Arborescence(graph, root=0)
    weighted = nx.DiGraph(graph)
    weighted.remove_edges_from(list(graph.in_edges(0)))

    def by_networkx(weights: Vector) -> Any:
        for edge, weight in zip(trees.edges, weights.tolist()):
            if weighted.has_edge(*edge):
                weighted.edges[edge]["weight"] = weight
        return nx.minimum_spanning_arborescence(weighted)

    for name in sets.Arborescence.backends():
        title = f"Arborescence, {nodes} nodes, {arcs} arcs"
        yield Case(title, name, trees.with_backend(name).minimize, arcs, by_networkx, "networkx")


def tours() -> Iterator[Case]:
    """Tours of complete graphs."""
    from ortools.sat.python import cp_model

    for nodes in (10, 14, 20):
        tour = sets.Tour(nx.complete_graph(nodes))
        ends = list(zip(tour.tails.tolist(), tour.heads.tolist()))

        def by_cp_sat(weights: Vector, ends: Any = ends) -> Any:
            model = cp_model.CpModel()
            costs, arcs, terms = np.rint(2.0**30 * weights).astype(int).tolist(), [], []
            for (tail, head), cost in zip(ends, costs):
                ways = model.new_bool_var(""), model.new_bool_var("")
                arcs += [(tail, head, ways[0]), (head, tail, ways[1])]
                terms += [cost * ways[0], cost * ways[1]]
            model.add_circuit(arcs)
            model.minimize(sum(terms))
            solver = cp_model.CpSolver()
            solver.parameters.num_workers = 1
            solver.solve(model)
            return solver

        title = f"Tour, {nodes} nodes, all edges"
        for name in sets.Tour.backends():
            oracle = tour.with_backend(name).minimize
            yield Case(title, name, oracle, tour.dimension, by_cp_sat, "CP-SAT", positive=True)


def choices() -> Iterator[Case]:
    """Assignments, knapsacks, CP-SAT models, matrices, and sets with a formula."""
    for family in FAMILIES:
        for title, oracle, bare in family():
            backend = oracle.backend or "-"
            yield Case(title, backend, oracle.minimize, oracle.dimension, bare, "its library")


CASES: list[Callable[[], Iterator[Case]]] = [
    trees,
    paths,
    matchings,
    flows,
    arborescences,
    tours,
    choices,
]


def median_times(case: Case, rounds: int) -> tuple[float, float]:
    """Median processor times of our call and of the bare one, in milliseconds."""
    rng = np.random.default_rng(0)
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 2):
        weights = rng.standard_normal(case.dimension)
        weights = np.abs(weights) if case.positive else weights
        for call, times in zip((case.oracle, case.bare), taken):
            if call is None:
                continue
            start = time.process_time()
            call(weights)
            if turn >= 2:
                times.append(time.process_time() - start)
    ours, bare = (1e3 * float(np.median(times)) if times else np.nan for times in taken)
    return ours, bare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="*", help="families, by the beginning of their names")
    options = parser.parse_args()
    print("| set | backend | ms | bare ms | ratio | bare call |")
    print("|---|---|---|---|---|---|")
    for family in CASES:
        for case in family():
            if options.only and not case.title.startswith(tuple(options.only)):
                continue
            ours, bare = median_times(case, options.rounds)
            ratio = ours / bare
            print(
                f"| {case.title} | {case.backend} | {ours:.3g} | {bare:.3g} | {ratio:.2g} | "
                f"{case.what} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
