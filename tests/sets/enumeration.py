"""All spanning trees and all simple paths of small graphs, by brute force."""

from itertools import combinations

import networkx as nx
import numpy as np


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
