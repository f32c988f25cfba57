"""Shortest path trees and their loading, compiled by Numba; imported only where it is asked for.

Nodes and links are unsigned, which spares Numba the test for indices that count from the end. The
search reaches a node that may not be passed, but leaves it only if it is the source. Ties and
weights of zero do no harm: a predecessor is replaced only by one that is strictly nearer, so that
predecessors never form a cycle.
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
"""Origins for which Pape's algorithm may exceed its scans before only Dijkstra's is used; a larger
number wastes more time on networks that do not suit it."""

part = numba.njit(nogil=True, inline="always")


def compiled(function: Callable[..., Any], njit: Callable[..., Any] = numba.njit) -> Any:
    """The function as machine code, kept on disk where there is a place for it."""
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:
        # Neither the folder of this file nor the user's cache folder can be written.
        return njit(nogil=True)(function)


class Search(NamedTuple):
    """The arrays (n,) of a search for shortest paths.

    key, item: a 4-ary heap of nodes; place: the position of a node in it, or UNSEEN, or SETTLED.
    came_by: the link that leads to a node; order: the settled nodes.
    """

    key: Any
    item: Any
    place: Any
    came_by: Any
    order: Any


@part
def new_search(n: Any) -> Search:
    """Room for n nodes."""
    return Search(
        np.empty(n),
        np.empty(n, np.uint32),
        np.empty(n, np.uint32),
        np.empty(n, np.uint32),
        np.empty(n, np.uint32),
    )


@part
def rise(search: Any, hole: Any, value: Any, node: Any) -> None:
    """Put a node with a value into the heap, at a hole or above it."""
    key, item, place = search.key, search.item, search.place
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
def sink(search: Any, size: Any) -> None:
    """Put the item behind the end of the heap into the hole at its root, or below it."""
    key, item, place = search.key, search.item, search.place
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
    source: Any, left: Any, roads: Any, weights: Any, carried: Any, search: Any
) -> Any:
    """Dijkstra's algorithm: the links by which nodes are reached, and their order.

    Returns the number of settled nodes; in `order` each comes after its predecessor. The search
    ends when `left` nodes that have `carried` something are settled; if `left` is 0 to begin with,
    it settles all nodes.
    """
    key, item, place = search.key, search.item, search.place
    place[:] = UNSEEN
    key[0] = 0.0
    item[0] = source
    place[source] = 0
    search.came_by[source] = NO_LINK
    size, count = ONE, np.uint32(0)
    while size > 0:
        least = key[0]
        u = item[0]
        place[u] = SETTLED
        search.order[count] = u
        count += ONE
        if carried[u] > 0.0:
            left -= ONE
            if left == 0:
                break
        size -= ONE
        if size > 0:
            sink(search, size)
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
            search.came_by[v] = link
            rise(search, hole, reach, v)
    return count


@part
def search_by_deque(source: Any, scans: Any, roads: Any, weights: Any, search: Any) -> Any:
    """Pape's algorithm: a node enters the queue at its end at first, at its front later on.

    A scan takes a quarter to a half of the time that a node does in a heap, but their number is
    exponential at worst: returns False if it is not done after `scans` scans of nodes. In place of
    the heap, key has the distances, and place the next node of the queue, or whether a node is not
    in it.
    """
    distance, after, came_by = search.key, search.place, search.came_by
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
def load_tree(tails: Any, carried: Any, flows: Any, search: Any) -> None:
    """Add the amounts that nodes have `carried` to the flows, from leaves to root (Pape's tree).

    A node passes on its amount when its last child has done so: nothing depends on distances.
    """
    came_by, children = search.came_by, search.item
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
def load_settled(count: Any, tails: Any, carried: Any, flows: Any, search: Any) -> None:
    """Add the amounts that nodes have `carried` to the flows, against the order of the search."""
    for k in range(count - ONE, 0, -1):
        node = search.order[k]
        if carried[node] > 0.0:
            link = search.came_by[node]
            flows[link] += carried[node]
            carried[tails[link]] += carried[node]
            carried[node] = 0.0


@compiled
def load_shortest_trees(roads: Any, demand: Any, weights: Any, scans: Any, flows: Any) -> None:
    """Add the demand of the origins to `flows` (A,), on a shortest path tree from each.

    roads, demand: as in `road_graph`; weights (A,). The first origin is searched by Dijkstra's
    algorithm, others by Pape's, unless it scans nodes more than `scans` times as often as
    Dijkstra's settles them: after `MOST_MISSES` such origins only Dijkstra's is used.
    """
    n = roads.through.size
    search, carried = new_search(n), np.zeros(n)
    allowed, misses = np.uint32(0), 0
    for i in range(demand.origins.size):
        source, first, last = demand.origins[i], demand.starts[i], demand.starts[i + 1]
        for pair in range(first, last):
            carried[demand.destinations[pair]] = demand.quantities[pair]
        by_deque = allowed > 0 and misses < MOST_MISSES
        if by_deque:
            by_deque = search_by_deque(source, allowed, roads, weights, search)
            misses += not by_deque
        if by_deque:
            load_tree(roads.tails, carried, flows, search)
        else:
            left = np.uint32(last - first)
            count = search_by_heap(source, left, roads, weights, carried, search)
            allowed = np.uint32(scans * count)
            load_settled(count, roads.tails, carried, flows, search)
        carried[source] = 0.0
