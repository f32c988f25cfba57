"""The ways to find a cheapest arborescence: by Chu, Liu and Edmonds, by NetworkX, by cuts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from wdro_model.deferred import networkx as nx
from wdro_model.errors import InfeasibleError
from wdro_model.sets.backends import LinearOracle, Vector
from wdro_model.sets.choices import Array
from wdro_model.sets.edge_program import EdgeProgram, ViolatedRow, at_least
from wdro_model.sets.integer_costs import scaled_to_integers

if TYPE_CHECKING:
    from wdro_model.sets.arborescence import Arborescence


def edmonds(trees: Arborescence) -> LinearOracle:
    """Chu, Liu and Edmonds: each node takes its cheapest arc, cycles become nodes, and so on.

    Any root: another one with an arc to every node, dear enough to be used once.
    """
    arcs, count = np.flatnonzero(trees.useful), len(trees.nodes)
    tails, heads = trees.tails[arcs], trees.heads[arcs]
    root = count
    if trees.root is None:
        tails = np.concatenate([tails, np.full(count, root)])
        heads = np.concatenate([heads, np.arange(count)])
    else:
        root = int(trees.roots()[0])

    def minimize(direction: Vector) -> Vector:
        weights = direction[arcs]
        if trees.root is None:
            spread = float(weights.max() - weights.min())
            dear = weights.max() + count * (spread or 1.0)
            weights = np.concatenate([weights, np.full(count, dear)])
        chosen = cheapest_arborescence(weights, tails, heads, root, max(count, root + 1))
        return trees._indicator(arcs[chosen[chosen < arcs.size]])

    return minimize


class NodeGroups:
    """Sets of nodes that are joined, and parted again in the opposite order (a union-find)."""

    def __init__(self, count: int) -> None:
        self._parent = [-1] * count  # less the size, for the one that stands for its group
        self.joined: list[tuple[int, int]] = []

    def find(self, node: int) -> int:
        """The node that stands for the group of a node."""
        while self._parent[node] >= 0:
            node = self._parent[node]
        return node

    def join(self, one: int, other: int) -> None:
        """Make one group of two different ones."""
        one, other = self.find(one), self.find(other)
        if self._parent[one] > self._parent[other]:
            one, other = other, one
        self.joined.append((other, self._parent[other]))
        self._parent[one] += self._parent[other]
        self._parent[other] = one

    def part(self, when: int) -> None:
        """Undo all but the first `when` joins."""
        while len(self.joined) > when:
            other, size = self.joined.pop()
            self._parent[self._parent[other]] -= size
            self._parent[other] = size


@dataclass
class WaitingArcs:
    """The arcs into a node as a heap of (key, arc); their weights are key + shift."""

    heap: list[tuple[float, int]]
    shift: float = 0.0

    def cheapest(self) -> int:
        """Take the cheapest arc out, and its weight off all the others."""
        key, arc = heappop(self.heap)
        self.shift = -key
        return arc

    def with_(self, other: WaitingArcs) -> WaitingArcs:
        """Both heaps in one, the smaller poured into the larger."""
        small, large = sorted((self, other), key=lambda waiting: len(waiting.heap))
        change = small.shift - large.shift
        for key, arc in small.heap:
            heappush(large.heap, (key + change, arc))
        return large


def cheapest_arborescence(
    weights: Vector, tails: np.ndarray, heads: np.ndarray, root: int, count: int
) -> np.ndarray:
    """The positions of the arcs of a cheapest arborescence; every node can be reached.

    From each node a path grows backwards along cheapest arcs (Gabow, Galil, Spencer and Tarjan).
    Where it meets itself the nodes of the cycle become one, and an arc into it costs what it adds
    to the arc that it replaces. At the end cycles are opened again, the last one first, each at the
    node at which an arc enters it.
    """
    waiting = [WaitingArcs([]) for _ in range(count)]
    order = np.argsort(weights, kind="stable")
    for arc, key, head in zip(order.tolist(), weights[order].tolist(), heads[order].tolist()):
        waiting[head].heap.append((key, arc))  # in ascending order, which is a heap
    tail_of, head_of, groups = tails.tolist(), heads.tolist(), NodeGroups(count)
    reached_from = [-1] * count
    reached_from[root] = root
    into, cycles = [-1] * count, []
    for start in range(count):
        node = groups.find(start)
        path: list[int] = []
        taken: list[int] = []
        while reached_from[node] < 0:
            reached_from[node] = start
            path.append(node)
            taken.append(waiting[node].cheapest())
            node = groups.find(tail_of[taken[-1]])
            if reached_from[node] == start:
                first, when = path.index(node), len(groups.joined)
                arcs = waiting[node]
                for other in path[first + 1 :]:
                    arcs = arcs.with_(waiting[other])
                    groups.join(node, other)
                node = groups.find(node)
                cycles.append((node, when, taken[first:]))
                del path[first:], taken[first:]
                waiting[node], reached_from[node] = arcs, -1
        for arc in taken:
            into[groups.find(head_of[arc])] = arc
    for node, when, taken in reversed(cycles):
        groups.part(when)
        entering = into[node]
        for arc in (*taken, entering):
            into[groups.find(head_of[arc])] = arc
    into[root] = -1
    return np.array([arc for arc in into if arc >= 0], dtype=np.int64)


def branchings(trees: Arborescence) -> LinearOracle:
    """A branching of most weight, where each arc is worth more than the others' costs are apart.

    NetworkX's own minimum_spanning_arborescence gives its arcs less, and then may miss it.
    """
    arcs = np.flatnonzero(trees.useful)
    ends = list(zip(trees.tails[arcs].tolist(), trees.heads[arcs].tolist()))

    def minimize(direction: Vector) -> Vector:
        integers, _ = scaled_to_integers(direction[arcs], 2**50)
        cheapest: dict[tuple[int, int], tuple[int, int]] = {}
        for arc, pair, weight in zip(arcs.tolist(), ends, integers.tolist()):
            if pair not in cheapest or weight < cheapest[pair][0]:
                cheapest[pair] = (weight, arc)
        graph: Any = nx.DiGraph()
        graph.add_nodes_from(range(len(trees.nodes)))
        least, most = int(integers.min()), int(integers.max())
        worth = most + (len(trees.nodes) + 1) * (most - least + 1)
        graph.add_weighted_edges_from((*pair, worth - found[0]) for pair, found in cheapest.items())
        best = nx.maximum_branching(graph)
        return trees._indicator([cheapest[pair][1] for pair in best.edges])

    return minimize


class ByArcCuts:
    """HiGHS on the arcs into each node, and on cuts as they are violated.

    Columns beyond the arcs stand for the roots.
    """

    def __init__(self, trees: Arborescence) -> None:
        self._set = trees
        count, size, roots = len(trees.nodes), trees.dimension, trees.roots()
        # A root is an arc from beyond the graph.
        self._tails = np.concatenate([trees.tails, np.full(roots.size, count)])
        self._heads = np.concatenate([trees.heads, roots])
        columns = np.arange(size + roots.size)
        upper = np.concatenate([trees.useful.astype(np.float64), np.ones(roots.size)])
        matrix = sp.csr_array(
            (
                np.ones(columns.size + roots.size),
                (
                    np.concatenate([self._heads, np.full(roots.size, count)]),
                    np.concatenate([columns, columns[size:]]),
                ),
            ),
            shape=(count + 1, columns.size),
        )
        ones = np.ones(count + 1)
        self._program = EdgeProgram(matrix, ones, ones, np.zeros(columns.size), upper)
        self._upper = upper

    def __call__(self, direction: Vector) -> Vector:
        none = np.zeros(direction.size, dtype=bool)
        return self.within(direction, none, none)

    def within(self, direction: Vector, forbidden: Array, mandatory: Array) -> Vector:
        """The best arborescence with some arcs held."""
        size = direction.size
        cost = np.concatenate([direction, np.zeros(self._upper.size - size)])
        lower, upper = np.zeros(self._upper.size), self._upper.copy()
        upper[:size][forbidden], lower[:size][mandatory] = 0.0, 1.0
        found = None
        if np.all(lower <= upper):
            found = self._program.choose(cost, self._violated, lower, upper)
        if found is None:
            raise InfeasibleError("no arborescence is left.")
        return np.rint(found[:size]) + 0.0

    def reset(self) -> None:
        """Forget the cuts that were found."""
        self._program.reset()

    def _violated(self, x: Vector) -> Iterator[ViolatedRow]:
        """x(into S) >= 1 for sets S of nodes without a root that no arc with x > 0 leads into."""
        count = len(self._set.nodes)
        used = x > 1e-6
        pairs = (np.ones(int(used.sum())), (self._tails[used], self._heads[used]))
        graph = sp.coo_array(pairs, shape=(count + 1, count + 1))
        parts, label = connected_components(graph, directed=True, connection="strong")
        entered = np.zeros(parts, dtype=bool)
        crossing = used & (label[self._tails] != label[self._heads])
        entered[label[self._heads[crossing]]] = True
        for part in np.flatnonzero(~entered).tolist():
            if part != label[count]:
                inside = label == part
                yield at_least(inside[self._heads] & ~inside[self._tails], 1.0)
