"""Shortest path trees and their loading, compiled by Numba; imported only where it is asked for.

Everything is unsigned, which spares Numba the test for indices that count from the end. A node
that may not be passed is reached and not gone on from, unless it is the source. Ties and weights of
zero do no harm: a predecessor is replaced only by one that is strictly nearer, and so there is
never a cycle of predecessors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

ONE, TWO, FOUR = np.uint32(1), np.uint32(2), np.uint32(4)
UNSEEN, SETTLED, END = np.uint32(0xFFFFFFFF), np.uint32(0xFFFFFFFE), np.uint32(0xFFFFFFFD)
NO_ARC = np.uint32(0xFFFFFFFF)
MISSES = 3
SIGNATURE = (
    "void(uint32[::1], uint32[::1], uint32[::1], float64[::1], "
    "uint32[::1], uint32[::1], uint32[::1], boolean[::1], float64[::1], uint32, float64[::1])"
)

part = numba.njit(nogil=True, inline="always")


def compiled(function: Callable[..., None], njit: Callable[..., Any] = numba.njit) -> Any:
    """The function as machine code, kept on disk where there is a place for it."""
    try:
        return njit(SIGNATURE, nogil=True, cache=True)(function)
    except RuntimeError:
        # Neither the folder of this file nor the user's cache folder can be written.
        return njit(SIGNATURE, nogil=True)(function)


@part
def rise(key: Any, item: Any, place: Any, hole: Any, value: Any, node: Any) -> None:
    """Put a node with a value into the 4-ary heap, at a hole or above it."""
    while hole > 0:
        parent = (hole - ONE) >> TWO
        if key[parent] <= value:
            break
        key[hole] = key[parent]
        item[hole] = item[parent]
        place[item[hole]] = hole
        hole = parent
    key[hole] = value
    item[hole] = node
    place[node] = hole


@part
def sink(key: Any, item: Any, place: Any, size: Any) -> None:
    """Put the item behind the end of the heap into the hole at its root, or below it."""
    value = key[size]
    node = item[size]
    hole = np.uint32(0)
    while True:
        child = FOUR * hole + ONE
        if child >= size:
            break
        best, lowest = child, key[child]
        for other in range(child + ONE, min(child + FOUR, size)):
            if key[other] < lowest:
                best, lowest = np.uint32(other), key[other]
        if lowest >= value:
            break
        key[hole] = lowest
        item[hole] = item[best]
        place[item[hole]] = hole
        hole = best
    key[hole] = value
    item[hole] = node
    place[node] = hole


@part
def search_by_heap(
    source: Any,
    left: Any,
    indptr: Any,
    heads: Any,
    through: Any,
    weights: Any,
    carried: Any,
    key: Any,
    item: Any,
    place: Any,
    came_by: Any,
    order: Any,
) -> Any:
    """Dijkstra's algorithm; `key` and `item` are the heap, `place` is where a node is in it.

    Returns how many nodes are settled, and has them in their `order`, in which each comes after
    its predecessor. It ends when as many nodes that have `carried` something as are `left` are
    settled; none is if `left` is 0 to begin with.
    """
    place[:] = UNSEEN
    key[0] = 0.0
    item[0] = source
    place[source] = 0
    came_by[source] = NO_ARC
    size, count = ONE, np.uint32(0)
    while size > 0:
        least = key[0]
        u = item[0]
        place[u] = SETTLED
        order[count] = u
        count += ONE
        if carried[u] > 0.0:
            left -= ONE
            if left == 0:
                break
        size -= ONE
        if size > 0:
            sink(key, item, place, size)
        if not through[u] and u != source:
            continue
        for arc in range(indptr[u], indptr[u + ONE]):
            v = heads[arc]
            hole = place[v]
            if hole == SETTLED:
                continue
            reach = least + weights[arc]
            if hole == UNSEEN:
                hole = size
                size += ONE
            elif reach >= key[hole]:
                continue
            came_by[v] = arc
            rise(key, item, place, hole, reach, v)
    return count


@part
def search_by_deque(
    source: Any,
    scans: Any,
    indptr: Any,
    heads: Any,
    through: Any,
    weights: Any,
    distance: Any,
    after: Any,
    came_by: Any,
) -> Any:
    """Pape's algorithm: a node enters the queue at its end at first, at its front later on.

    A scan takes half as long as a node does in a heap, but their number is exponential at worst:
    returns False if it is not done after so many `scans` of nodes. `after` is the next node of the
    queue, or where one is not.
    """
    distance[:] = np.inf
    after[:] = UNSEEN
    came_by[:] = NO_ARC
    distance[source] = 0.0
    after[source] = END
    first, last = source, source
    while first != END:
        if scans == 0:
            return False
        scans -= ONE
        u = first
        first = after[u]
        after[u] = SETTLED
        if not through[u] and u != source:
            continue
        near = distance[u]
        for arc in range(indptr[u], indptr[u + ONE]):
            v = heads[arc]
            reach = near + weights[arc]
            if reach >= distance[v]:
                continue
            distance[v] = reach
            came_by[v] = arc
            if after[v] == UNSEEN:
                after[v] = END
                if first == END:
                    first = v
                else:
                    after[last] = v
                last = v
            elif after[v] == SETTLED:
                if first == END:
                    last = v
                after[v] = first
                first = v
    return True


@part
def load_tree(tails: Any, came_by: Any, children: Any, carried: Any, flows: Any) -> None:
    """Add what the nodes of a tree have `carried` to the flows, from its leaves to its root.

    A node passes on what it has when its last child has done so: nothing depends on distances.
    """
    children[:] = 0
    for v in range(came_by.size):
        if came_by[v] != NO_ARC:
            children[tails[came_by[v]]] += ONE
    for v in range(came_by.size):
        node = np.uint32(v)
        while came_by[node] != NO_ARC and children[node] == 0:
            arc = came_by[node]
            came_by[node] = NO_ARC
            flows[arc] += carried[node]
            tail = tails[arc]
            carried[tail] += carried[node]
            carried[node] = 0.0
            children[tail] -= ONE
            node = tail


@part
def load_settled(
    count: Any, order: Any, tails: Any, came_by: Any, carried: Any, flows: Any
) -> None:
    """Add what nodes have `carried` to the flows, from the last node settled to the first."""
    for k in range(count - ONE, 0, -1):
        node = order[k]
        if carried[node] > 0.0:
            arc = came_by[node]
            flows[arc] += carried[node]
            carried[tails[arc]] += carried[node]
            carried[node] = 0.0


@compiled
def load_shortest_trees(
    origins: Any,
    starts: Any,
    ends: Any,
    quantities: Any,
    indptr: Any,
    heads: Any,
    tails: Any,
    through: Any,
    weights: Any,
    scans: Any,
    flows: Any,
) -> None:
    """Add the demand of the origins to `flows` (A,), on a shortest path tree from each.

    The pairs of origin i are starts[i] to starts[i + 1], with nodes `ends` and `quantities`. Arcs
    are sorted by tail: those of node u are indptr[u] to indptr[u + 1]. The first origin is searched
    by Dijkstra's algorithm, others by Pape's unless it scans nodes more than `scans` times as often
    as the other settles them, for `MISSES` origins; Dijkstra's goes on alone from there.
    """
    n = through.size
    distance, carried = np.empty(n), np.zeros(n)
    item, place = np.empty(n, np.uint32), np.empty(n, np.uint32)
    came_by, order = np.empty(n, np.uint32), np.empty(n, np.uint32)
    allowed, misses = np.uint32(0), 0
    for i in range(origins.size):
        source = origins[i]
        for pair in range(starts[i], starts[i + ONE]):
            carried[ends[pair]] = quantities[pair]
        if (
            allowed > 0
            and misses < MISSES
            and search_by_deque(
                source, allowed, indptr, heads, through, weights, distance, place, came_by
            )
        ):
            load_tree(tails, came_by, item, carried, flows)
        else:
            misses += 1 if allowed > 0 else 0
            count = search_by_heap(
                source,
                starts[i + ONE] - starts[i],
                indptr,
                heads,
                through,
                weights,
                carried,
                distance,
                item,
                place,
                came_by,
                order,
            )
            allowed = scans * count
            load_settled(count, order, tails, came_by, carried, flows)
        carried[source] = 0.0
