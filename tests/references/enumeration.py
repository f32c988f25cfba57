"""All trees, paths, matchings, arborescences and tours of small graphs, by brute force."""

from itertools import combinations, pairwise, permutations, product

import networkx as nx
import numpy as np

from wdro_model.errors import InfeasibleError


def all_trees(graph):
    """The 0/1 vectors of all spanning trees, one a row."""
    edges = list(graph.edges)
    rows = []
    for chosen in combinations(range(len(edges)), graph.number_of_nodes() - 1):
        candidate = nx.MultiGraph()
        candidate.add_nodes_from(graph)
        candidate.add_edges_from(edges[e][:2] for e in chosen)
        if nx.is_connected(candidate):
            row = np.zeros(len(edges))
            row[list(chosen)] = 1.0
            rows.append(row)
    return np.array(rows)


def all_paths(graph, source, target):
    """The 0/1 vectors of all simple paths, one a row."""
    edges = list(graph.edges)
    rows = []

    def extend(node, visited, chosen):
        if node == target:
            row = np.zeros(len(edges))
            row[chosen] = 1.0
            rows.append(row)
            return
        for e, (tail, head, *_) in enumerate(edges):
            ends = [(tail, head)] if graph.is_directed() else [(tail, head), (head, tail)]
            for here, there in ends:
                if here == node and there not in visited:
                    extend(there, visited | {there}, [*chosen, e])

    extend(source, {source}, [])
    return np.unique(rows, axis=0)


def all_matchings(graph, perfect=False):
    """The 0/1 vectors of all matchings, one a row."""
    edges = list(graph.edges)
    rows = []

    def extend(first, met, chosen):
        if not perfect or len(met) == graph.number_of_nodes():
            row = np.zeros(len(edges))
            row[chosen] = 1.0
            rows.append(row)
        for e in range(first, len(edges)):
            tail, head = edges[e][:2]
            if tail != head and tail not in met and head not in met:
                extend(e + 1, met | {tail, head}, [*chosen, e])

    extend(0, frozenset(), [])
    return np.array(rows)


def all_arborescences(graph, root=None):
    """The 0/1 vectors of all spanning arborescences, one a row."""
    edges = list(graph.edges)
    rows = []
    for chosen in combinations(range(len(edges)), graph.number_of_nodes() - 1):
        candidate = nx.MultiDiGraph()
        candidate.add_nodes_from(graph)
        candidate.add_edges_from(edges[e][:2] for e in chosen)
        if nx.is_arborescence(candidate) and (root is None or candidate.in_degree(root) == 0):
            row = np.zeros(len(edges))
            row[list(chosen)] = 1.0
            rows.append(row)
    return np.array(rows)


def all_tours(graph):
    """The 0/1 vectors of all Hamiltonian cycles, one a row."""
    edges = list(graph.edges)
    between = {}
    for e, (tail, head, *_) in enumerate(edges):
        between.setdefault((tail, head), []).append(e)
        if not graph.is_directed():
            between.setdefault((head, tail), []).append(e)
    first, *others = graph.nodes
    rows = []
    for order in permutations(others):
        cycle = [first, *order, first]
        for chosen in product(*(between.get(pair, []) for pair in pairwise(cycle))):
            row = np.zeros(len(edges))
            row[list(chosen)] = 1.0
            if row.sum() == len(graph):
                rows.append(row)
    return np.unique(rows, axis=0)


WEIGHTS = {
    "random": lambda rng, n: rng.standard_normal(n),
    "positive": lambda rng, n: rng.uniform(0, 1, n),
    "zero": lambda rng, n: np.zeros(n),
    "equal": lambda rng, n: np.full(n, 3.0),
    "equal and negative": lambda rng, n: np.full(n, -2.0),
    "ties and zeros": lambda rng, n: rng.integers(-1, 2, n).astype(float),
    "tiny": lambda rng, n: 1e-12 * rng.standard_normal(n),
    "huge": lambda rng, n: 1e12 * rng.standard_normal(n),
}
"""Weights of edges that go wrong in one way or another."""


def holds(rng, rows):
    """Bounds that forbid up to three coordinates and ask for up to two, and the rows left."""
    size = rows.shape[1]
    picked = rng.permutation(size)
    low, high = np.zeros(size), np.ones(size)
    high[picked[: rng.integers(0, 4)]] = 0.0
    low[picked[4 : 4 + rng.integers(0, 3)]] = 1.0
    kept = rows[((rows >= low) & (rows <= high)).all(axis=1)]
    return low, high, kept


def agrees_with_enumeration(choices, rows, rng, tries=4):
    """Is every answer, free and with coordinates held, the best of all the rows?"""
    for draw in WEIGHTS.values():
        weights = draw(rng, choices.dimension)
        tolerance = 1e-7 * np.abs(weights).max() + 1e-300
        vertex = choices.minimize(weights)
        assert (rows == vertex).all(axis=1).any()
        assert weights @ vertex <= (rows @ weights).min() + tolerance
        for _ in range(tries):
            low, high, kept = holds(rng, rows)
            try:
                vertex = choices.minimize(weights, low, high)
            except InfeasibleError:
                assert not kept.size
                continue
            assert (kept == vertex).all(axis=1).any()
            assert weights @ vertex <= (kept @ weights).min() + tolerance
    return True
