"""Spanning trees by a linear program whose rows are found as they are violated.

The hull of the trees is x >= 0, x(E) = n - 1 and x(E(S)) <= |S| - 1 for every set S of nodes
(Edmonds). Few of these rows matter for a cost: those that an answer violates are added, and stay
for the calls that follow. A vertex of some of the rows that violates none is a tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import breadth_first_order, connected_components, maximum_flow

from wdro_model.sets.backends import Vector

if TYPE_CHECKING:
    from wdro_model.sets.spanning_tree import SpanningTree

VIOLATED = 1e-6
"""Rows that are off by more are added."""
LEVELS = 8
"""Levels t whose components are tried, from above."""
KEPT = 2
"""Rows for each node that are kept from call to call."""


def ranked(weights: Vector) -> Vector:
    """The ranks of the weights in (0, 1], all different: the same trees are cheapest."""
    ranks = np.empty(weights.size)
    ranks[np.argsort(weights, kind="stable")] = np.arange(1, weights.size + 1) / weights.size
    return ranks


class TreeRows:
    """GLOP on the rows so far, which stay for the calls that follow.

    A row is written on the edges inside S, or as x(E - E(S)) >= n - |S|, whichever are fewer. With
    more than `KEPT` rows a node, the program is written again with those that bind.
    """

    def __init__(self, trees: SpanningTree) -> None:
        self._trees, self._edges = trees, trees.proper
        self._tails, self._heads = trees.tails[self._edges], trees.heads[self._edges]
        self._count = len(trees.nodes)
        self._rows: list[np.ndarray] = []
        self._write([])

    def __call__(self, direction: Vector) -> Vector:
        for variable, cost in zip(self._x, ranked(direction[self._edges]).tolist()):
            self._objective.SetCoefficient(variable, cost)
        point = np.zeros(self._trees.dimension)
        while True:
            status = self._solver.Solve()
            if status != self._solver.OPTIMAL:
                raise cp.error.SolverError(f"GLOP stopped with status {status} on spanning trees.")
            x = np.array([variable.solution_value() for variable in self._x])
            violated = list(violated_sets(x, self._tails, self._heads, self._count))
            if not violated:
                break
            for nodes in violated:
                self._add(nodes)
        if len(self._rows) > KEPT * self._count:
            self._write([nodes for nodes in self._rows if self._binds(nodes, x)])
        point[self._edges] = x
        return self._trees._tree(point)

    def reset(self) -> None:
        """Forget the rows that were found."""
        self._write([])

    def _write(self, rows: list[np.ndarray]) -> None:
        """The program with x(E) = n - 1, an edge at every node, and some rows."""
        from ortools.linear_solver import pywraplp

        self._solver: Any = pywraplp.Solver.CreateSolver("GLOP")
        self._x = [self._solver.NumVar(0.0, 1.0, "") for _ in self._edges]
        self._row(np.ones(self._edges.size), self._count - 1.0, self._count - 1.0)
        for node in range(self._count):
            at = (self._tails == node) | (self._heads == node)
            self._row(at, 1.0, self._solver.infinity())
        self._rows = []
        for nodes in rows:
            self._add(nodes)
        self._objective = self._solver.Objective()
        self._objective.SetMinimization()

    def _add(self, nodes: np.ndarray) -> None:
        inside = nodes[self._tails] & nodes[self._heads]
        size, infinity = float(nodes.sum()), self._solver.infinity()
        if 2 * int(inside.sum()) <= inside.size:
            self._row(inside, -infinity, size - 1.0)
        else:
            self._row(~inside, self._count - size, infinity)
        self._rows.append(nodes)

    def _row(self, inside: np.ndarray, least: float, most: float) -> None:
        row = self._solver.Constraint(least, most)
        for edge in np.flatnonzero(inside).tolist():
            row.SetCoefficient(self._x[edge], 1.0)

    def _binds(self, nodes: np.ndarray, x: Vector) -> bool:
        return bool(x[nodes[self._tails] & nodes[self._heads]].sum() > nodes.sum() - 1.0 - VIOLATED)


def violated_sets(
    x: Vector, tails: np.ndarray, heads: np.ndarray, count: int
) -> Iterator[np.ndarray]:
    """Sets of nodes S (n,) with x(E(S)) > |S| - 1, at least one if there is any.

    First the components of {e : x_e >= t} for some t and their complements, then by maximum flows.
    """
    found: set[bytes] = set()
    for level in np.unique(x[x > VIOLATED])[::-1][:LEVELS]:
        joined = x >= level
        pairs = (np.ones(int(joined.sum())), (tails[joined], heads[joined]))
        parts, label = connected_components(
            sp.coo_array(pairs, shape=(count, count)), directed=False
        )
        sizes = np.bincount(label, minlength=parts)
        inner = label[tails] == label[heads]
        inside = np.bincount(label[tails][inner], weights=x[inner], minlength=parts)
        touching = inside + sum(
            np.bincount(label[end][~inner], weights=x[~inner], minlength=parts)
            for end in (tails, heads)
        )
        outside = x.sum() - touching
        for component in range(parts):
            for nodes, within, size in (
                (label == component, inside[component], sizes[component]),
                (label != component, outside[component], count - sizes[component]),
            ):
                if size > 1 and within > size - 1.0 + VIOLATED and nodes.tobytes() not in found:
                    found.add(nodes.tobytes())
                    yield nodes
    if not found and np.abs(x - np.rint(x)).max() > VIOLATED:
        yield from _by_flows(x, tails, heads, count)


def _by_flows(x: Vector, tails: np.ndarray, heads: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """For each node r, the set S with r in it that maximises x(E(S)) - |S - r|: a closure.

    An edge brings x_e and asks for both of its ends, which cost 1 each, r nothing.
    """
    size = x.size
    source, sink = size + count, size + count + 1
    e = np.arange(size)
    unit = min(10**8, 2**30 // count)  # what a flow of 1 is: sums stay inside 32 bits
    whole = np.rint(unit * x).astype(np.int32)
    rows = np.concatenate([np.full(size, source), e, e, size + np.arange(count)])
    columns = np.concatenate([e, size + tails, size + heads, np.full(count, sink)])
    price = np.full(count, unit, dtype=np.int32)
    for root in range(count):
        price[root] = 0
        values = np.concatenate([whole, whole, whole, price]).astype(np.int32)
        graph = sp.csr_array((values, (rows, columns)), shape=(sink + 1, sink + 1))
        flow = maximum_flow(graph, source, sink)
        if whole.sum(dtype=np.int64) > flow.flow_value:
            left = graph - flow.flow
            left.data[left.data < 0] = 0
            left.eliminate_zeros()
            reached, _ = breadth_first_order(left, source)
            nodes = np.zeros(count, dtype=bool)
            nodes[reached[(reached >= size) & (reached < source)] - size] = True
            nodes[root] = True
            if x[nodes[tails] & nodes[heads]].sum() > nodes.sum() - 1.0 + VIOLATED:
                yield nodes
        price[root] = unit
