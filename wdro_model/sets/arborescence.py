"""Spanning arborescences: trees of arcs that lead from a root to every node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from wdro_model.deferred import networkx as nx
from wdro_model.errors import InfeasibleError
from wdro_model.sets.arborescence_backends import ByArcCuts, branchings, edmonds
from wdro_model.sets.backends import Vector, register_backend
from wdro_model.sets.choices import Array
from wdro_model.sets.feasible_set import as_flat
from wdro_model.sets.graphs import EdgeSet

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
