"""Sets whose coordinates are the edges of a NetworkX graph, and the exchanges of trees in it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wdro_model.deferred import networkx as nx
from wdro_model.sets.backends import Vector
from wdro_model.sets.choices import ChoiceSet
from wdro_model.sets.vertices import Value, limit_of


class EdgeSet(ChoiceSet):
    """Subsets of the edges of a graph, as 0/1 vectors in the order of `list(graph.edges)`.

    Attributes
    ----------
    nodes: the nodes, in the graph's order; node i is `nodes[i]`.
    edges: the edges (u, v), or (u, v, key) in a multigraph; coordinate e of x is `edges[e]`.
    tails, heads: the two ends of each edge, as positions in `nodes`.
    is_directed: may an edge only be followed from its tail to its head?
    """

    has_constraints = True
    thing = "edge"

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
        self.names = self.edges

    def _indicator(self, edges: list[int] | NDArray[np.int64]) -> Vector:
        """The 0/1 vector of edge positions."""
        vertex = np.zeros(self.dimension)
        vertex[edges] = 1.0
        return vertex

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.nodes)} nodes, {len(self.edges)} edges)"


# ------------------------------------------------------------------ trees
def exchange(tree: Vector, value: Value, tails: NDArray[np.int64], heads: NDArray) -> Vector:
    """A tree that no exchange of one edge improves, reached from the given one.

    The exchanges of a tree put in one edge and take out one of the cycle that it closes. The first
    that improves is made, until none does. With a convex value, v + e_in - e_out has at least the
    value f(v) + g_in - g_out with g the gradient at v: only exchanges with g_in < g_out are tried,
    the steepest first. After `value.most` evaluations, where there is such a limit, it ends.
    """
    left = limit_of(value)
    best, least = tree.copy(), value(tree)
    gradient = getattr(value, "gradient", None)
    last = 0
    while True:
        swaps = exchanges(best, tails, heads)
        if not swaps.size:
            return best
        if gradient is None:
            order = np.argsort((swaps[:, 0] - last) % tails.size, kind="stable")
        else:
            slope = gradient(best)
            gain = slope[swaps[:, 0]] - slope[swaps[:, 1]]
            order = steepest(gain, left)
        for entering, leaving in swaps[order[:left]]:
            trial = best.copy()
            trial[entering], trial[leaving] = 1.0, 0.0
            found = value(trial)
            left = None if left is None else left - 1
            if found < least:
                best, least, last = trial, found, int(entering)
                break
        else:
            return best


def steepest(gain: Vector, most: int | None) -> NDArray[np.int64]:
    """The positions of what falls, the steepest first; at most so many."""
    falling = np.flatnonzero(gain < 0)
    if most is not None and most < falling.size:
        falling = falling[np.argpartition(gain[falling], most)[:most]]
    return falling[np.argsort(gain[falling], kind="stable")]


def exchanges(tree: Vector, tails: NDArray[np.int64], heads: NDArray[np.int64]) -> NDArray:
    """All pairs (edge that enters, edge that leaves) of a tree, (K, 2).

    The ends of all edges that may enter climb towards the root together, the deeper one of each,
    until they meet: what they climb over is the cycle.
    """
    found = rooted(np.flatnonzero(tree > 0.5), tails, heads)
    count = max(found[0]) + 1
    parent, above, depth = (np.zeros(count, dtype=np.int64) for _ in range(3))
    for array, known in zip((parent, above, depth), found):
        array[list(known)] = list(known.values())
    edges = np.flatnonzero(tree < 0.5)
    low, high = tails[edges], heads[edges]
    entering, leaving = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    while edges.size:
        apart = low != high
        edges, low, high = edges[apart], low[apart], high[apart]
        deeper = depth[low] >= depth[high]
        low, high = np.where(deeper, low, high), np.where(deeper, high, low)
        entering.append(edges)
        leaving.append(above[low])
        low = parent[low]
    return np.column_stack([np.concatenate(entering), np.concatenate(leaving)])


def rooted(
    edges: NDArray[np.int64], tails: NDArray[np.int64], heads: NDArray[np.int64]
) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
    """A tree hung up at a node: parent, edge to the parent, and depth of each node."""
    near: dict[int, list[tuple[int, int]]] = {}
    for edge in edges.tolist():
        tail, head = int(tails[edge]), int(heads[edge])
        near.setdefault(tail, []).append((head, edge))
        near.setdefault(head, []).append((tail, edge))
    root = int(tails[edges[0]])
    parent, above, depth = {root: root}, {root: -1}, {root: 0}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        for other, edge in near[node]:
            if other not in parent:
                parent[other], above[other], depth[other] = node, edge, depth[node] + 1
                waiting.append(other)
    return parent, above, depth
