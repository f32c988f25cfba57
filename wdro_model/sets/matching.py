"""Matchings of an undirected graph, and the ways to find a best one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import combinations
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linear_sum_assignment

from wdro_model.compat import networkx as nx
from wdro_model.errors import InfeasibleError
from wdro_model.sets.backends import Vector, register_backend, scaled_to_integers
from wdro_model.sets.choices import Array
from wdro_model.sets.edge_program import EdgeProgram, ViolatedRow, at_most, components
from wdro_model.sets.feasible_set import as_flat
from wdro_model.sets.graphs import EdgeSet


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


# ------------------------------
# Matchings of an undirected graph, perfect ones or all


DENSE = 4_000_000
"""Up to so many pairs of nodes of the two sides an assignment is solved on a full matrix."""
ENUMERATED = 12
"""Up to so many nodes the rows of all odd sets are written out."""
SMALL = 20
"""Up to so many nodes NetworkX's blossoms are faster than a linear program."""

MatchingBackend = Literal["scipy", "highs", "networkx"]
"""Those that are built in; `register_backend` adds others."""


class Matching(EdgeSet):
    """The matchings of a graph: x_e = 1 for edges of which no two meet.

    With `perfect=True` those that leave no node alone. Weights of any sign, parallel edges and
    self-loops (never in a matching) are allowed; some edges may be `forbidden`, others `mandatory`.

    Backends: "scipy" (an assignment, for bipartite graphs), "highs" (a linear program with the rows
    of odd sets as they are violated, then branch and bound), "networkx" (Edmonds's blossoms, with
    weights rounded to 50 bits). By default "scipy" where the graph is bipartite and its sides are
    not too large for a full matrix, else "networkx" up to 20 nodes and "highs" beyond.

    The hull has a CVXPY form on bipartite graphs (at most one edge, or one, at each node) and on
    graphs of at most 12 nodes. Beyond, it has a row for each odd set of nodes, too many to write.

    Examples
    --------
    >>> import networkx as nx, wdro_model as wdro
    >>> pairs = wdro.sets.Matching(nx.path_graph(4), perfect=True)
    >>> pairs.selected(pairs.minimize([1.0, -5.0, 1.0]))            # nobody is left alone
    [(0, 1), (2, 3)]
    """

    default_backend = "highs"

    def __init__(
        self,
        graph: Any,
        perfect: bool = False,
        backend: MatchingBackend | str | None = None,
        *,
        forbidden: Iterable[Any] | None = None,
        mandatory: Iterable[Any] | None = None,
    ) -> None:
        super().__init__(graph)
        self.refuse_directed()
        self.perfect = bool(perfect)
        self.proper = self.tails != self.heads
        if not self.proper.any():
            raise ValueError("the graph has self-loops only, which are in no matching.")
        self.bounds = (np.zeros(self.dimension), self.proper.astype(np.float64))
        self.is_bipartite: bool = nx.is_bipartite(_without_loops(graph))
        self.has_constraints = self.is_bipartite or len(self.nodes) <= ENUMERATED
        self.use_backend(backend)
        if self.perfect:
            self._check_perfect(graph)
        self.hold(forbidden, mandatory)

    def use_backend(self, backend: str | None = None) -> None:
        """Build the oracle of a backend; of the one that suits the graph for None."""
        if backend is None:
            count = len(self.nodes)
            assigned = self.is_bipartite and count * count <= 4 * DENSE
            backend = "scipy" if assigned else "networkx" if count <= SMALL else "highs"
        super().use_backend(backend)

    def incidence(self) -> Any:
        """The matrix (nodes, edges) with 1 where an edge, not a loop, ends at a node."""
        edges = np.flatnonzero(self.proper)
        ends = np.concatenate([self.tails[edges], self.heads[edges]])
        entries = (np.ones(ends.size), (ends, np.concatenate([edges, edges])))
        return sp.csr_array(entries, shape=(len(self.nodes), self.dimension))

    def describe(self) -> str:
        """The set in one line."""
        kind = "perfect matchings" if self.perfect else "matchings"
        return (
            f"{kind} of a graph with {len(self.nodes)} nodes and {len(self.edges)} edges"
            f"{self.held_in_words()}, minimised by {self.backend}"
        )

    def neighbours(self, vertex: Vector, x: Vector) -> Iterator[Vector]:
        """Those matchings within what is held that one exchange leads to."""
        lower, upper = self.own_bounds()
        for other in self._exchanged(vertex, x):
            if (lower <= other).all() and (other <= upper).all():
                yield other

    def _exchanged(self, vertex: Vector, x: Vector) -> Iterator[Vector]:
        """Matchings with one edge more, less or exchanged, or two edges exchanged for two.

        Edges that x has most of, and the vertex has not, come first.
        """
        chosen = np.flatnonzero(vertex > 0.5)
        at = {int(end[e]): int(e) for e in chosen for end in (self.tails, self.heads)}
        between: dict[tuple[int, int], int] = {}
        for e in np.flatnonzero(self.proper).tolist():
            between[self._ends(e)] = e
        order = np.argsort(vertex - x, kind="stable")
        for e in order.tolist():
            if vertex[e] > 0.5 or not self.proper[e]:
                continue
            tail, head = self._ends(e)
            leaving = {at[node] for node in (tail, head) if node in at}
            alone = [n for out in leaving for n in self._ends(out) if n not in (tail, head)]
            moved = vertex.copy()
            moved[list(leaving)], moved[e] = 0.0, 1.0
            if len(alone) == 2 and (other := between.get((min(alone), max(alone)))) is not None:
                closed = moved.copy()
                closed[other] = 1.0
                yield closed
            if not self.perfect or not alone:
                yield moved
        if not self.perfect:
            for e in chosen.tolist():
                fewer = vertex.copy()
                fewer[e] = 0.0
                yield fewer

    def _hull(self, x: Any) -> list[Any]:
        """At most one edge at each node (one, if perfect), and in general

            x(E(S)) <= (|S| - 1) / 2   for every odd set S of at least 3 nodes (Edmonds).

        On bipartite graphs the degrees suffice.
        """
        if not self.has_constraints:
            raise NotImplementedError(
                f"{self!r} has no CVXPY form: its hull has a row for each odd set of its nodes, "
                f"which are written for at most {ENUMERATED} nodes, or for bipartite graphs."
            )
        flat, degrees = as_flat(x, self.dimension), self.incidence()
        at_nodes = degrees @ flat == 1 if self.perfect else degrees @ flat <= 1
        written = [at_nodes, flat >= 0]
        if not self.proper.all():
            written.append(flat[np.flatnonzero(~self.proper)] == 0)
        if not self.is_bipartite:
            rows = [row for row in self._odd_rows() if row.columns.size > row.most]
            matrix = sp.lil_array((len(rows), self.dimension))
            for i, row in enumerate(rows):
                matrix[i, row.columns] = 1.0
            written.append(sp.csr_array(matrix) @ flat <= np.array([row.most for row in rows]))
        return written

    def _odd_rows(self) -> Iterator[ViolatedRow]:
        count = len(self.nodes)
        for size in range(3, count + 1, 2):
            for chosen in combinations(range(count), size):
                nodes = np.zeros(count, dtype=bool)
                nodes[list(chosen)] = True
                yield self.odd_row(nodes)

    def odd_row(self, nodes: Array) -> ViolatedRow:
        """x(E(S)) <= (|S| - 1)/2 for an odd set of nodes (n,)."""
        inside = nodes[self.tails] & nodes[self.heads] & self.proper
        return at_most(inside, (int(nodes.sum()) - 1) // 2)

    def _is_discrete(self, vertex: Vector) -> bool:
        """Is it a matching?"""
        if not super()._is_discrete(vertex):
            return False
        degrees = self.incidence() @ np.rint(vertex)
        fits = (degrees == 1).all() if self.perfect else (degrees <= 1).all()
        return bool(fits) and not np.any(vertex[~self.proper] > 0.5)

    def _ends(self, edge: int) -> tuple[int, int]:
        """The two ends of an edge, the lower position first."""
        tail, head = int(self.tails[edge]), int(self.heads[edge])
        return (tail, head) if tail < head else (head, tail)

    def _check_perfect(self, graph: Any) -> None:
        """A ValueError where there is no perfect matching."""
        count = len(self.nodes)
        if count % 2:
            raise ValueError(
                f"the graph has {count} nodes, an odd number, and no perfect matching; leave one "
                "out, or use perfect=False."
            )
        with suppress(InfeasibleError):
            if 2 * self.free_minimum(np.zeros(self.dimension)).sum() == count:
                return
        matched = 2 * len(nx.max_weight_matching(_without_loops(graph), maxcardinality=True))
        raise ValueError(
            f"the graph has no perfect matching: at most {matched} of its {count} nodes can be "
            "matched; add edges, or use perfect=False."
        )

    def held(self, forbidden: Array, mandatory: Array) -> Array:
        """The edges (m,) that cannot be used: forbidden, loops, and those that meet mandatory ones.

        Two mandatory edges that meet are an InfeasibleError.
        """
        count = len(self.nodes)
        ends = np.concatenate([self.tails[mandatory], self.heads[mandatory]])
        uses = np.bincount(ends, minlength=count)
        if np.any(uses > 1):
            node = self.nodes[int(np.argmax(uses))]
            raise InfeasibleError(
                f"{self!r} has no matching with all of its mandatory edges "
                f"({self.named(mandatory)}): two of them meet at {node!r}; leave one of them out."
            )
        met = (uses > 0)[self.tails] | (uses > 0)[self.heads]
        return (forbidden | ~self.proper | met) & ~mandatory

    def refusal(self, forbidden: Array, mandatory: Array) -> InfeasibleError:
        """The error where held edges leave no perfect matching."""
        return InfeasibleError(
            f"{self!r} has no perfect matching with {int(mandatory.sum())} mandatory and "
            f"{int((forbidden & self.proper).sum())} forbidden edges as asked; allow or leave out "
            "some."
        )


def _without_loops(graph: Any) -> Any:
    simple: Any = nx.Graph()
    simple.add_nodes_from(graph)
    simple.add_edges_from((edge[0], edge[1]) for edge in graph.edges if edge[0] != edge[1])
    return simple


register_backend(Matching, "scipy", Assignments)
register_backend(Matching, "highs", OddSets)
register_backend(Matching, "networkx", Blossoms)
