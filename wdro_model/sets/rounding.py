"""From a point of the hull to a vertex: which vertices to try, which to take, how to improve one.

Trees, paths and other choices are 0/1 vectors v. The nearest one to a point x minimises

    |v - x|^2 = <1 - 2 x, v> + |x|^2,

which is one call of the oracle; for trees, all with the same number of edges, -x will do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from wdro_model.sets.backends import Vector

Value = Callable[[Vector], float]
"""What a vertex is judged by: less is better. If it has an attribute `gradient`, a function of the
vertex, it is convex and that is its gradient; with an attribute `most` that is not None, a search
evaluates it so many times only."""
WHOLE = 1e-6
"""Entries of a vertex this close to an integer are that integer."""


def distance_to(x: Vector) -> Value:
    """v -> |v - x|."""
    return lambda vertex: float(np.linalg.norm(vertex - x))


def is_binary(vertex: Vector) -> bool:
    """Are all entries 0 or 1, up to a solver's tolerance?"""
    return bool(np.all(np.minimum(np.abs(vertex), np.abs(vertex - 1.0)) <= WHOLE))


def is_whole(vertex: Vector) -> bool:
    """Are all entries integers, up to a solver's tolerance?"""
    return bool(np.all(np.abs(vertex - np.rint(vertex)) <= WHOLE))


def nearest_directions(x: Vector, nonnegative: bool) -> tuple[Vector, Vector]:
    """Directions whose minimiser over 0/1 vectors is near x, or along its large coordinates.

    Where the oracle takes nonnegative directions only, the nearest such ones.
    """
    if nonnegative:
        return np.maximum(1.0 - 2.0 * x, 0.0), np.maximum(1.0 - x, 0.0)
    return 1.0 - 2.0 * x, -x


def best_of(vertices: Iterable[Vector], value: Value) -> Vector:
    """The first vertex of least value."""
    return min(vertices, key=value)


def limit_of(value: Value) -> int | None:
    """How often a search may evaluate the value; None without a limit."""
    return getattr(value, "most", None)


def descend(
    vertex: Vector,
    value: Value,
    neighbours: Callable[[Vector], Iterable[Vector]],
    most: int | None = None,
) -> Vector:
    """A vertex that no neighbour improves, or the best one after so many evaluations."""
    best, least, seen = vertex, value(vertex), {vertex.tobytes()}
    improved = True
    while improved:
        improved = False
        for other in neighbours(best):
            if other.tobytes() in seen:
                continue
            if most is not None and len(seen) > most:
                return best
            seen.add(other.tobytes())
            if (found := value(other)) < least:
                best, least, improved = other, found, True
                break
    return best


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
            order = np.argsort(gain, kind="stable")[: int(np.count_nonzero(gain < 0))]
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


def exchanges(tree: Vector, tails: NDArray[np.int64], heads: NDArray[np.int64]) -> NDArray:
    """All pairs (edge that enters, edge that leaves) of a tree, (K, 2)."""
    parent, above, depth = rooted(np.flatnonzero(tree > 0.5), tails, heads)
    pairs = [
        (edge, leaving)
        for edge in np.flatnonzero(tree < 0.5).tolist()
        for leaving in cycle(int(tails[edge]), int(heads[edge]), parent, above, depth)
    ]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


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


def cycle(
    tail: int, head: int, parent: dict[int, int], above: dict[int, int], depth: dict[int, int]
) -> Iterator[int]:
    """The tree's edges between two nodes: with an edge that joins these, a cycle."""
    while tail != head:
        if depth[tail] < depth[head]:
            tail, head = head, tail
        yield above[tail]
        tail = parent[tail]
