"""The ways to find a best matching: an assignment, blossoms, or a program with odd sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from wdro_model.deferred import networkx as nx
from wdro_model.sets.backends import Vector
from wdro_model.sets.choices import Array
from wdro_model.sets.edge_program import EdgeProgram, ViolatedRow, components
from wdro_model.sets.integer_costs import scaled_to_integers

if TYPE_CHECKING:
    from wdro_model.sets.matching import Matching


class _ByCells:
    """An oracle on the cheapest of parallel edges, with those left out that are held at zero."""

    def __init__(self, matchings: Matching) -> None:
        self._set = matchings

    def __call__(self, direction: Vector) -> Vector:
        matchings = self._set
        useful = matchings.proper if matchings.perfect else matchings.proper & (direction < 0)
        return matchings._indicator(self._matched(direction, np.flatnonzero(useful)))

    def within(self, direction: Vector, forbidden: Array, mandatory: Array) -> Vector:
        """The best matching with some edges held."""
        matchings = self._set
        useful = ~matchings.held(forbidden, mandatory)
        if not matchings.perfect:
            useful &= ~mandatory & (direction < 0)
        vertex = matchings._indicator(self._matched(direction, np.flatnonzero(useful)))
        vertex[mandatory] = 1.0
        if matchings.perfect and 2 * int(vertex.sum()) < len(matchings.nodes):
            raise matchings.refusal(forbidden, mandatory)
        return vertex

    def _matched(self, direction: Vector, edges: np.ndarray) -> np.ndarray:
        """The edges of a best matching among some; as large as possible, if perfect."""
        raise NotImplementedError


class Blossoms(_ByCells):
    """Edmonds's algorithm on whole weights, where it is exact."""

    def _matched(self, direction: Vector, edges: np.ndarray) -> np.ndarray:
        integers, _ = scaled_to_integers(direction[edges], 2**50)
        cheapest: dict[tuple[int, int], tuple[int, int]] = {}
        for edge, weight in zip(edges.tolist(), integers.tolist()):
            pair = self._set._ends(edge)
            if pair not in cheapest or weight < cheapest[pair][0]:
                cheapest[pair] = (weight, edge)
        graph: Any = nx.Graph()
        graph.add_weighted_edges_from((u, v, -weight) for (u, v), (weight, _) in cheapest.items())
        found = nx.max_weight_matching(graph, maxcardinality=self._set.perfect)
        used = [cheapest[min(pair), max(pair)][1] for pair in found]
        return np.array(used, dtype=np.int64)


class Assignments(_ByCells):
    """SciPy's assignment of one side of a bipartite graph to the other."""

    def __init__(self, matchings: Matching) -> None:
        super().__init__(matchings)
        if not matchings.is_bipartite:
            raise ValueError(
                f"backend 'scipy' is for bipartite graphs, and {matchings!r} has an odd cycle; use "
                "backend='highs' or 'networkx'."
            )
        graph: Any = nx.Graph()
        graph.add_nodes_from(range(len(matchings.nodes)))
        proper = matchings.proper
        graph.add_edges_from(
            zip(matchings.tails[proper].tolist(), matchings.heads[proper].tolist())
        )
        colour = nx.bipartite.color(graph)
        side = np.array([colour[node] for node in range(len(matchings.nodes))])
        place = np.where(side == 1, np.cumsum(side == 1), np.cumsum(side == 0)) - 1
        left = np.where(side[matchings.tails] == 0, matchings.tails, matchings.heads)
        right = np.where(side[matchings.tails] == 0, matchings.heads, matchings.tails)
        rows = int((side == 0).sum())
        self._shape = (rows, side.size - rows)
        self._cells = place[left] * self._shape[1] + place[right]
        proper_cells = self._cells[proper]
        self._has_parallel = np.unique(proper_cells).size < proper_cells.size
        self._edge_in = np.full(self._shape, -1)
        self._edge_in.flat[proper_cells] = np.flatnonzero(proper)

    def _matched(self, direction: Vector, edges: np.ndarray) -> np.ndarray:
        costs = np.full(self._shape, np.inf if self._set.perfect else 0.0)
        edge_in = self._edge_in
        if self._has_parallel:
            # The last of parallel edges stays in its cell: the cheapest.
            edges = edges[np.argsort(-direction[edges], kind="stable")]
            edge_in = edge_in.copy()
            edge_in.flat[self._cells[edges]] = edges
        costs.flat[self._cells[edges]] = direction[edges]
        try:
            rows, columns = linear_sum_assignment(costs)
        except ValueError:  # infinite costs cannot be avoided
            return edges[:0]
        used = edge_in[rows, columns]
        return used[used >= 0] if self._set.perfect else used[costs[rows, columns] < 0]


class OddSets:
    """HiGHS on degrees, and on odd sets as they are violated."""

    def __init__(self, matchings: Matching) -> None:
        self._set = matchings
        count, upper = len(matchings.nodes), matchings.proper.astype(np.float64)
        least = np.full(count, 1.0 if matchings.perfect else 0.0)
        self._program = EdgeProgram(
            matchings.incidence(), least, np.ones(count), np.zeros(upper.size), upper
        )

    def __call__(self, direction: Vector) -> Vector:
        none = np.zeros(direction.size, dtype=bool)
        return self.within(direction, none, none)

    def within(self, direction: Vector, forbidden: Array, mandatory: Array) -> Vector:
        """The best matching with some edges held."""
        upper = np.where(self._set.held(forbidden, mandatory), 0.0, 1.0)
        lower = mandatory.astype(np.float64)
        found = self._program.choose(direction, self._violated, lower, upper)
        if found is None:
            raise self._set.refusal(forbidden, mandatory)
        return np.rint(found) + 0.0

    def reset(self) -> None:
        """Forget the rows that were found."""
        self._program.reset()

    def _violated(self, x: Vector) -> Iterator[ViolatedRow]:
        matchings = self._set
        ends = matchings.tails, matchings.heads
        for support in (x > 1e-6, (x > 1e-6) & (x < 1.0 - 1e-6)):
            for nodes in components(support, *ends, len(matchings.nodes)):
                if int(nodes.sum()) % 2 and int(nodes.sum()) > 1:
                    yield matchings.odd_row(nodes)
