"""Shortest path trees and their loading, compiled by Numba; imported only where it is asked for.

Nodes and links are unsigned, which spares Numba the test for indices that count from the end. A
node that may not be passed is reached and not gone on from, unless it is the source. Ties and
weights of zero do no harm: a predecessor is replaced only by one that is strictly nearer, and so
there is never a cycle of predecessors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np

ONE, TWO, FOUR = np.uint32(1), np.uint32(2), np.uint32(4)
UNSEEN, SETTLED, END = np.uint32(0xFFFFFFFF), np.uint32(0xFFFFFFFE), np.uint32(0xFFFFFFFD)
NO_LINK = np.uint32(0xFFFFFFFF)
MOST_MISSES = 3
"""Origins for which Pape's algorithm may exceed its scans before Dijkstra's goes on alone."""

part = numba.njit(nogil=True, inline="always")


def compiled(function: Callable[..., Any], njit: Callable[..., Any] = numba.njit) -> Any:
    """The function as machine code, kept on disk where there is a place for it."""
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:
        # Neither the folder of this file nor the user's cache folder can be written.
        return njit(nogil=True)(function)


class Heap(NamedTuple):
    """A 4-ary heap of nodes with keys; place: where a node is in it, or UNSEEN, or SETTLED."""

    key: Any
    item: Any
    place: Any


@part
def new_heap(n: Any) -> Heap:
    """Room for n nodes."""
    return Heap(np.empty(n), np.empty(n, np.uint32), np.empty(n, np.uint32))


@part
def rise(heap: Any, hole: Any, value: Any, node: Any) -> None:
    """Put a node with a value into the heap, at a hole or above it."""
    key, item, place = heap
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
def sink(heap: Any, size: Any) -> None:
    """Put the item behind the end of the heap into the hole at its root, or below it."""
    key, item, place = heap
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
    roads: Any,
    weights: Any,
    carried: Any,
    heap: Any,
    came_by: Any,
    order: Any,
) -> Any:
    """Dijkstra's algorithm: the links by which nodes are reached, and their order.

    Returns how many nodes are settled; in their `order` each comes after its predecessor. The
    search ends when as many nodes that have `carried` something as are `left` are settled; it
    settles all nodes if `left` is 0 to begin with.
    """
    key, item, place = heap
    place[:] = UNSEEN
    key[0] = 0.0
    item[0] = source
    place[source] = 0
    came_by[source] = NO_LINK
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
            sink(heap, size)
        if not roads.through[u] and u != source:
            continue
        for link in range(roads.indptr[u], roads.indptr[u + ONE]):
            v = roads.heads[link]
            hole = place[v]
            if hole == SETTLED:
                continue
            reach = least + weights[link]
            if hole == UNSEEN:
                hole = size
                size += ONE
            elif reach >= key[hole]:
                continue
            came_by[v] = link
            rise(heap, hole, reach, v)
    return count


@part
def search_by_deque(
    source: Any,
    scans: Any,
    roads: Any,
    weights: Any,
    distance: Any,
    after: Any,
    came_by: Any,
) -> Any:
    """Pape's algorithm: a node enters the queue at its end at first, at its front later on.

    A scan takes a quarter to a half of the time that a node does in a heap, but their number is
    exponential at worst: returns False if it is not done after so many `scans` of nodes. `after` is
    the next node of the queue, or says that a node is not in it.
    """
    distance[:] = np.inf
    after[:] = UNSEEN
    came_by[:] = NO_LINK
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
        if not roads.through[u] and u != source:
            continue
        near = distance[u]
        for link in range(roads.indptr[u], roads.indptr[u + ONE]):
            v = roads.heads[link]
            reach = near + weights[link]
            if reach >= distance[v]:
                continue
            distance[v] = reach
            came_by[v] = link
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
        if came_by[v] != NO_LINK:
            children[tails[came_by[v]]] += ONE
    for v in range(came_by.size):
        node = np.uint32(v)
        while came_by[node] != NO_LINK and children[node] == 0:
            link = came_by[node]
            came_by[node] = NO_LINK
            flows[link] += carried[node]
            tail = tails[link]
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
            link = came_by[node]
            flows[link] += carried[node]
            carried[tails[link]] += carried[node]
            carried[node] = 0.0


@compiled
def load_shortest_trees(roads: Any, demand: Any, weights: Any, scans: Any, flows: Any) -> None:
    """Add the demand of the origins to `flows` (A,), on a shortest path tree from each.

    roads, demand: as in `road_graph`; weights (A,). The first origin is searched by Dijkstra's
    algorithm, others by Pape's unless it scans nodes more than `scans` times as often as the other
    settles them, for `MOST_MISSES` origins; Dijkstra's goes on alone from there.
    """
    n = roads.through.size
    heap, carried = new_heap(n), np.zeros(n)
    came_by, order = np.empty(n, np.uint32), np.empty(n, np.uint32)
    allowed, misses = np.uint32(0), 0
    for i in range(demand.origins.size):
        source, first, last = demand.origins[i], demand.starts[i], demand.starts[i + 1]
        for pair in range(first, last):
            carried[demand.destinations[pair]] = demand.quantities[pair]
        by_deque = allowed > 0 and misses < MOST_MISSES
        if by_deque:
            by_deque = search_by_deque(
                source, allowed, roads, weights, heap.key, heap.place, came_by
            )
            misses += not by_deque
        if by_deque:
            load_tree(roads.tails, came_by, heap.item, carried, flows)
        else:
            count = search_by_heap(
                source, np.uint32(last - first), roads, weights, carried, heap, came_by, order
            )
            allowed = np.uint32(scans * count)
            load_settled(count, order, roads.tails, came_by, carried, flows)
        carried[source] = 0.0
