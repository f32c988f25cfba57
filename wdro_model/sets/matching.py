"""Matchings of an undirected graph, perfect ones or all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import combinations
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from wdro_model.deferred import networkx as nx
from wdro_model.errors import InfeasibleError
from wdro_model.sets.backends import Vector, register_backend
from wdro_model.sets.choices import Array
from wdro_model.sets.edge_program import ViolatedRow, at_most
from wdro_model.sets.feasible_set import as_flat
from wdro_model.sets.graphs import EdgeSet
from wdro_model.sets.matching_backends import Assignments, Blossoms, OddSets

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
