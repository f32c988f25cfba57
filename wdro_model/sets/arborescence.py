"""Spanning arborescences: trees of arcs that lead from a root to every node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Literal

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from scipy.sparse.csgraph import connected_components

from wdro_model.compat import networkx as nx
from wdro_model.errors import InfeasibleError
from wdro_model.sets.arguments import as_flat
from wdro_model.sets.backends import (
    Answer,
    LinearOracle,
    Vector,
    register_backend,
    scaled_to_integers,
)
from wdro_model.sets.choices import EdgeSet, ParallelEdges
from wdro_model.sets.hull import HullOracle, Row, at_most

ArborescenceBackend = Literal["edmonds", "networkx", "highs"]
"""The built-in backends; `register_backend` adds others."""


class Arborescence(EdgeSet):
    """The spanning arborescences of a directed graph: one arc into each node but the root.

    Weights of any sign and parallel arcs are allowed; loops, and arcs into the root, are in no
    arborescence. Some arcs may be `forbidden`, others `mandatory`.

    Backends: "edmonds" (default: O(m log^2 m)), "networkx", "highs" (a linear program with rows
    for sets of nodes as they are violated).

    Parameters
    ----------
    root
        Where they start; None for any node.

    Examples
    --------
    >>> graph = nx.DiGraph([("a", "b"), ("a", "c"), ("b", "c"), ("c", "b")])
    >>> branching = wdro.sets.Arborescence(graph, root="a")
    >>> branching.selected(branching.minimize([5.0, 1.0, 1.0, 1.0]))
    [('a', 'c'), ('c', 'b')]
    """

    default_backend = "edmonds"
    thing = "arc"

    def __init__(
        self,
        graph: Any,
        root: Any = None,
        backend: ArborescenceBackend | str | None = None,
        *,
        forbidden: Iterable[Any] | None = None,
        mandatory: Iterable[Any] | None = None,
    ) -> None:
        way_out = "graph.to_directed() has an arc each way, and SpanningTree takes it as it is"
        super().__init__(graph, True, way_out)
        self.root = root
        self.roots = np.arange(len(self.nodes))
        if root is not None:
            self.roots = np.array([self.node_position(root, "root")])
            self.proper &= self.heads != self.roots[0]
        self._check_reachable(graph)
        if not self.proper.any():
            raise ValueError("the graph has one node and loops only: its arborescence has no arc.")
        self.bounds = (np.zeros(self.dimension), self.proper.astype(np.float64))
        self.use_backend(backend)
        self.hold(forbidden, mandatory)

    def held_answer(self, direction: Vector, lower: Vector, upper: Vector) -> Answer:
        """The best arborescence; arcs that share their head with a mandatory one are left out.

        The mandatory arc is then the only one into its head, which is no root as long as another
        node can be.
        """
        mandatory = lower > 0.0
        heads = self.heads[mandatory]
        if np.unique(heads).size < heads.size:
            raise InfeasibleError(
                f"{self!r} has no arborescence with all of its mandatory arcs "
                f"({self.listed(mandatory)}): two of them lead to the same node; leave one out."
            )
        alone = np.where(np.isin(self.heads, heads) & ~mandatory, 0.0, upper)
        with suppress(InfeasibleError):
            return super().held_answer(direction, lower, alone)
        raise self.refusal(lower, upper)

    def refusal(self, lower: Vector, upper: Vector) -> InfeasibleError:
        """The error where held arcs leave no arborescence."""
        return InfeasibleError(
            f"{self!r} has no arborescence with {self.held_counts(lower, upper)}."
        )

    def describe(self) -> str:
        where = "any root" if self.root is None else f"root {self.root!r}"
        return f"spanning arborescences from {where} in {self.size_in_words('arcs')}"

    def _hull(self, x: Any) -> list[Any]:
        """Units of flow from the root to every node, each within x.

        With z the root (z_r = 1 for a given one, z >= 0 and sum z = 1 for any), y^k a flow from z
        to node k, and N the incidence matrix (1 where an arc leaves):

            x(into v) + z_v = 1,   0 <= y^k <= x,   0 <= s^k <= z,   N y^k = s^k - e_k.

        The flows say that every cut around k that holds no root has x >= 1 (Edmonds's hull).
        """
        count, arcs = len(self.nodes), np.flatnonzero(self.proper)
        used, z, written = self._one_arc_into_each_node(x)
        leaves, enters = (self.ends_matrix(ends[arcs]) for ends in (self.tails, self.heads))
        y = cp.Variable((arcs.size, count), nonneg=True)
        starts = cp.Variable((count, count), nonneg=True)
        every = np.ones((1, count))
        return [
            *written,
            y <= cp.reshape(used, (arcs.size, 1), order="C") @ every,
            starts <= cp.reshape(z, (count, 1), order="C") @ every,
            (leaves - enters) @ y == starts - np.eye(count),
        ]

    def _one_arc_into_each_node(self, x: Any) -> tuple[Any, Any, list[Any]]:
        """The arcs of x that may be used, the root z, and x(into v) + z_v = 1 with bounds of x."""
        count, arcs = len(self.nodes), np.flatnonzero(self.proper)
        flat = as_flat(x, self.dimension)
        z: Any = np.eye(1, count, int(self.roots[0])).ravel()
        written: list[Any] = []
        if self.root is None:
            z = cp.Variable(count, nonneg=True)
            written.append(cp.sum(z) == 1)
        if arcs.size < self.dimension:
            written.append(flat[np.flatnonzero(~self.proper)] == 0)
        used = flat[arcs]
        return used, z, [*written, self.ends_matrix(self.heads[arcs]) @ used + z == 1, used >= 0]

    def violated(self, x: Vector) -> Iterator[Row]:
        """Rows x(inside S) <= |S| - 1 for sets S of nodes without a root that no arc leads into."""
        count, used = len(self.nodes), x > 1e-6
        pairs = (np.ones(int(used.sum())), (self.tails[used], self.heads[used]))
        graph = sp.coo_array(pairs, shape=(count, count))
        parts, label = connected_components(graph, directed=True, connection="strong")
        entered = np.zeros(parts, dtype=bool)
        entered[label[self.heads[used & (label[self.tails] != label[self.heads])]]] = True
        entered[label[np.bincount(self.heads, x, count) < 1.0 - 1e-6]] = True  # roots, in part
        for part in np.flatnonzero(~entered).tolist():
            inside = label == part
            yield at_most(inside[self.tails] & inside[self.heads], float(inside.sum()) - 1.0)

    def is_vertex(self, x: ArrayLike) -> bool:
        if not super().is_vertex(x):
            return False
        count, arcs = len(self.nodes), np.flatnonzero(np.asarray(x) > 0.5)
        if arcs.size != count - 1 or np.unique(self.heads[arcs]).size < arcs.size:
            return False
        pairs = (np.ones(arcs.size), (self.tails[arcs], self.heads[arcs]))
        parts, _ = connected_components(sp.coo_array(pairs, shape=(count, count)), directed=False)
        return bool(parts == 1)

    def _check_reachable(self, graph: Any) -> None:
        if self.root is not None:
            missed = set(self.nodes) - nx.descendants(graph, self.root) - {self.root}
            if missed:
                node = self.first_node(missed)
                raise ValueError(
                    f"no arborescence starts at {self.root!r}: no path leads from it to {node!r} "
                    f"({len(missed)} nodes are out of reach); choose another root or add arcs."
                )
            return
        first = [
            part
            for part in nx.strongly_connected_components(graph)
            if all(tail in part for node in part for tail in graph.predecessors(node))
        ]
        if len(first) > 1:
            here, there = map(self.first_node, first[:2])
            raise ValueError(
                f"the graph has no arborescence: no path leads to {here!r} and to {there!r} from "
                "one node; add arcs."
            )


# ------------------------------------------------------------------ backends
def _edmonds(trees: Arborescence) -> LinearOracle:
    """Chu, Liu and Edmonds: each node takes its cheapest arc, cycles become nodes, and so on.

    For any root, an additional node has an arc to every node, too expensive to be used twice.
    """
    arcs, count = np.flatnonzero(trees.proper), len(trees.nodes)
    tails, heads = trees.tails[arcs], trees.heads[arcs]
    root = count
    if trees.root is None:
        tails = np.concatenate([tails, np.full(count, root)])
        heads = np.concatenate([heads, np.arange(count)])
    else:
        root = int(trees.roots[0])

    def minimize(direction: Vector) -> Vector:
        weights = direction[arcs]
        if trees.root is None:
            spread = float(weights.max() - weights.min())
            expensive = weights.max() + count * (spread or 1.0)
            weights = np.concatenate([weights, np.full(count, expensive)])
        chosen = cheapest_arborescence(weights, tails, heads, root, max(count, root + 1))
        return trees.indicator(arcs[chosen[chosen < arcs.size]])

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

    def merge(self, other: WaitingArcs) -> WaitingArcs:
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
                    arcs = arcs.merge(waiting[other])
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


def _branchings(trees: Arborescence) -> LinearOracle:
    """NetworkX's maximum branching with weights C - cost, C so large that more arcs weigh more.

    NetworkX's own minimum_spanning_arborescence takes a smaller C, and then may miss the best one.
    """
    arcs = np.flatnonzero(trees.proper)
    pairs = ParallelEdges(arcs, trees.tails[arcs], trees.heads[arcs])

    def minimize(direction: Vector) -> Vector:
        cheapest = pairs.cheapest(direction)
        integers, _ = scaled_to_integers(direction[cheapest], 2**50)
        graph: Any = nx.DiGraph()
        graph.add_nodes_from(range(len(trees.nodes)))
        least, most = int(integers.min()), int(integers.max())
        worth = most + (len(trees.nodes) + 1) * (most - least + 1)
        weights = (worth - weight for weight in integers.tolist())
        graph.add_weighted_edges_from((*pair, w) for pair, w in zip(pairs.entry, weights))
        best = nx.maximum_branching(graph)
        return trees.indicator(cheapest[[pairs.entry[pair] for pair in best.edges]])

    return minimize


def _by_rows(trees: Arborescence) -> HullOracle:
    """HiGHS on the arcs into each node, and on sets of nodes as they are violated."""
    return HullOracle(trees, lambda x: trees._one_arc_into_each_node(x)[2], trees.violated)


register_backend(Arborescence, "edmonds", _edmonds)
register_backend(Arborescence, "networkx", _branchings)
register_backend(Arborescence, "highs", _by_rows)
