"""Spanning arborescences: trees of arcs that lead from a root to every node, and their backends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Literal

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from wdro_model.compat import networkx as nx
from wdro_model.errors import InfeasibleError
from wdro_model.sets.backends import LinearOracle, Vector, register_backend, scaled_to_integers
from wdro_model.sets.choices import Array
from wdro_model.sets.edge_program import EdgeProgram, ViolatedRow, at_least
from wdro_model.sets.feasible_set import as_flat
from wdro_model.sets.graphs import EdgeSet


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


# ------------------------------
# Spanning arborescences: trees of arcs that lead from a root to every node


ArborescenceBackend = Literal["edmonds", "networkx", "highs"]
"""Those that are built in; `register_backend` adds others."""


class Arborescence(EdgeSet):
    """The spanning arborescences of a directed graph: one arc into each node but the root.

    Weights of any sign and parallel arcs are allowed; loops, and arcs into the root, are in no
    arborescence. Some arcs may be `forbidden`, others `mandatory`.

    Backends: "edmonds" (default: O(m log^2 m)), "networkx", "highs" (a linear program with the cuts
    x(into S) >= 1 as they are violated).

    Parameters
    ----------
    root
        Where they start; None for any node.

    Examples
    --------
    >>> import networkx as nx, wdro_model as wdro
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
        super().__init__(graph)
        if not self.is_directed:
            raise ValueError(
                "Arborescence takes a directed graph, got an undirected one; graph.to_directed() "
                "has an arc each way, and SpanningTree takes it as it is."
            )
        if root is not None and root not in self._position:
            raise ValueError(
                f"root {root!r} is not a node of the graph ({len(self.nodes)} nodes, such as "
                f"{self.nodes[0]!r})."
            )
        self.root = root
        self._check_reachable(graph)
        useful = self.tails != self.heads
        if root is not None:
            useful &= self.heads != self._position[root]
        if not useful.any():
            raise ValueError("the graph has one node and loops only: its arborescence has no arc.")
        self.useful = useful
        self.bounds = (np.zeros(self.dimension), useful.astype(np.float64))
        self.use_backend(backend)
        self.hold(forbidden, mandatory)

    def roots(self) -> np.ndarray:
        """The nodes that may be the root, as positions."""
        if self.root is not None:
            return np.array([self._position[self.root]])
        return np.arange(len(self.nodes))

    def held_minimum(self, direction: Vector, forbidden: Array, mandatory: Array) -> Vector:
        """By prices; arcs into the heads of mandatory ones are left out first.

        The mandatory arc is then the only one into its head, which is no root as long as another
        node can be.
        """
        heads = self.heads[mandatory]
        if np.unique(heads).size < heads.size:
            raise InfeasibleError(
                f"{self!r} has no arborescence with all of its mandatory arcs "
                f"({self.named(mandatory)}): two of them lead to the same node; leave one out."
            )
        beside = np.isin(self.heads, heads) & ~mandatory
        try:
            return super().held_minimum(direction, forbidden | beside, mandatory)
        except InfeasibleError:
            raise InfeasibleError(
                f"{self!r} has no arborescence with {int(mandatory.sum())} mandatory and "
                f"{int((forbidden & self.useful).sum())} forbidden arcs as asked."
            ) from None

    def describe(self) -> str:
        """The set in one line."""
        where = "any root" if self.root is None else f"root {self.root!r}"
        return (
            f"spanning arborescences from {where} in a graph with {len(self.nodes)} nodes and "
            f"{len(self.edges)} arcs{self.held_in_words()}, minimised by {self.backend}"
        )

    def _hull(self, x: Any) -> list[Any]:
        """One unit of flow from the root to every node, each within x.

        With z the root (z_r = 1 for a given one, z >= 0 and sum z = 1 for any), y^k a flow from z
        to node k, and N the incidence matrix (1 where an arc leaves):

            x(into v) + z_v = 1,   0 <= y^k <= x,   0 <= s^k <= z,   N y^k = s^k - e_k.

        The flows say that every cut around k that holds no root has x >= 1 (Edmonds's hull).
        """
        count, arcs = len(self.nodes), np.flatnonzero(self.useful)
        flat = as_flat(x, self.dimension)
        used = flat[arcs]
        ones, places = np.ones(arcs.size), np.arange(arcs.size)
        shape = (count, arcs.size)
        leaves = sp.csr_array((ones, (self.tails[arcs], places)), shape=shape)
        enters = sp.csr_array((ones, (self.heads[arcs], places)), shape=shape)
        z: Any = np.eye(1, count, int(self.roots()[0])).ravel()
        written: list[Any] = []
        if self.root is None:
            z = cp.Variable(count, nonneg=True)
            written.append(cp.sum(z) == 1)
        y = cp.Variable((arcs.size, count), nonneg=True)
        starts = cp.Variable((count, count), nonneg=True)
        every = np.ones((1, count))
        written += [
            enters @ used + z == 1,
            used >= 0,
            y <= cp.reshape(used, (arcs.size, 1), order="C") @ every,
            starts <= cp.reshape(z, (count, 1), order="C") @ every,
            (leaves - enters) @ y == starts - np.eye(count),
        ]
        if arcs.size < self.dimension:
            written.append(flat[np.flatnonzero(~self.useful)] == 0)
        return written

    def _is_discrete(self, vertex: Vector) -> bool:
        """Is it an arborescence?"""
        return super()._is_discrete(vertex) and self._spans(np.flatnonzero(vertex > 0.5))

    def _spans(self, arcs: np.ndarray) -> bool:
        count = len(self.nodes)
        if arcs.size != count - 1 or np.unique(self.heads[arcs]).size < arcs.size:
            return False
        pairs = (np.ones(arcs.size), (self.tails[arcs], self.heads[arcs]))
        parts, _ = connected_components(sp.coo_array(pairs, shape=(count, count)), directed=False)
        return bool(parts == 1)

    def _check_reachable(self, graph: Any) -> None:
        if self.root is not None:
            missed = set(self.nodes) - nx.descendants(graph, self.root) - {self.root}
            if missed:
                node = min(missed, key=self._position.__getitem__)
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
            here, there = (min(part, key=self._position.__getitem__) for part in first[:2])
            raise ValueError(
                f"the graph has no arborescence: no path leads to {here!r} and to {there!r} from "
                "one node; add arcs."
            )


register_backend(Arborescence, "edmonds", edmonds)
register_backend(Arborescence, "networkx", branchings)
register_backend(Arborescence, "highs", ByArcCuts)
