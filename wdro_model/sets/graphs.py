"""Sets whose coordinates are the edges of a NetworkX graph."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wdro_model.deferred import networkx as nx
from wdro_model.sets.base import FeasibleSet, Vector, as_direction


class EdgeSet(FeasibleSet):
    """Subsets of the edges of a graph, as 0/1 vectors in the order of `list(graph.edges)`.

    Attributes
    ----------
    nodes: the nodes, in the graph's order; node i is `nodes[i]`.
    edges: the edges (u, v), or (u, v, key) in a multigraph; coordinate e of x is `edges[e]`.
    tails, heads: the two ends of each edge, as positions in `nodes`.
    is_directed: may an edge only be followed from its tail to its head?
    """

    has_constraints = True
    is_polytope = True
    rounds = True

    def __init__(self, graph: Any) -> None:
        if not isinstance(graph, nx.Graph):
            raise ValueError(
                f"{type(self).__name__} takes a networkx graph, got {type(graph).__name__}; "
                "build one with networkx.Graph(list_of_edges)."
            )
        self.nodes: tuple[Any, ...] = tuple(graph.nodes)
        self.edges: tuple[Any, ...] = tuple(graph.edges)
        if not self.edges:
            raise ValueError(
                f"{type(self).__name__} needs a graph with edges, got {len(self.nodes)} nodes and "
                "no edge."
            )
        self.is_directed: bool = graph.is_directed()
        self._position = {node: i for i, node in enumerate(self.nodes)}
        self.tails, self.heads = (
            np.array([self._position[edge[end]] for edge in self.edges], dtype=np.int64)
            for end in (0, 1)
        )
        self.dimension = len(self.edges)

    def selected(self, x: ArrayLike, threshold: float = 0.5) -> list[Any]:
        """The edges whose coordinate exceeds the threshold."""
        values = as_direction(x, self.dimension, kind="x")
        return [self.edges[e] for e in np.flatnonzero(values > threshold)]

    def _indicator(self, edges: list[int] | NDArray[np.int64]) -> Vector:
        """The 0/1 vector of edge positions."""
        vertex = np.zeros(self.dimension)
        vertex[edges] = 1.0
        return vertex

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.nodes)} nodes, {len(self.edges)} edges)"
