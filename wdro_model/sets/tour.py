"""Tours: cycles through every node of a graph once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from wdro_model import checks
from wdro_model.compat import networkx as nx
from wdro_model.errors import InfeasibleError
from wdro_model.sets.backends import Vector, register_backend
from wdro_model.sets.choices import EdgeSet
from wdro_model.sets.cp_sat import CpSatOracle
from wdro_model.sets.hull import HullOracle, Row, at_least, components

TourBackend = Literal["highs", "ortools"]
"""The built-in backends; `register_backend` adds others."""


class Tour(EdgeSet):
    """The Hamiltonian cycles of a graph, directed or not: x_e = 1 for the edges of a tour.

    The best tour is the travelling salesman's: a hard problem, solved exactly for some dozens of
    nodes. Weights of any sign; some edges may be `forbidden`, others `mandatory`. The hull has no
    CVXPY form.

    Backends: "highs" (default: a linear program with the cuts around sets of nodes as they are
    violated, then branch and bound) and "ortools" (CP-SAT's circuits, costs rounded to integers).

    Parameters
    ----------
    time_limit
        Seconds that "ortools" may take for one call, once it knows a tour; its answer is
        then the best so far, and `minimize_with_slack` says how much at most a better one saves.

    Examples
    --------
    >>> tour = wdro.sets.Tour(nx.complete_graph(4))
    >>> tour.order(tour.minimize([1.0, 5.0, 1.0, 1.0, 5.0, 1.0]))
    [0, 1, 2, 3]
    """

    default_backend = "highs"
    has_constraints = False

    def __init__(
        self,
        graph: Any,
        backend: TourBackend | str | None = None,
        *,
        time_limit: float | None = None,
        forbidden: Iterable[Any] | None = None,
        mandatory: Iterable[Any] | None = None,
    ) -> None:
        super().__init__(graph)
        self.time_limit = time_limit
        if time_limit is not None:
            self.time_limit = checks.number("time_limit", time_limit, low=0, open=True)
        self._check_graph(graph)
        self.bounds = (np.zeros(self.dimension), self.proper.astype(np.float64))
        self.use_backend(backend)
        self._check_nonempty()
        self.hold(forbidden, mandatory)

    def describe(self) -> str:
        return f"{'directed tours' if self.is_directed else 'tours'} of {self.size_in_words()}"

    def order(self, x: Any) -> list[Any]:
        """The nodes of a tour in the order in which they are met, the first of the graph first."""
        vertex = self.discrete(x, "x")
        return [self.nodes[i] for i in self._order(vertex)]

    def neighbours(self, vertex: Vector, x: Vector) -> Iterator[Vector]:
        """Tours with one stretch turned round (2-opt); the nearest ones, on a directed graph."""
        if self.is_directed:
            yield from super().neighbours(vertex, x)
            return
        lower, upper = self.interval(None, None)
        between: dict[tuple[int, int], list[int]] = {}
        for e in np.argsort(vertex - x, kind="stable").tolist():
            pair = int(self.tails[e]), int(self.heads[e])
            if upper[e] > 0:
                between.setdefault((min(pair), max(pair)), []).append(e)
        order = self._order(vertex)
        used = [
            next(e for e in between[min(u, v), max(u, v)] if vertex[e] > 0.5)
            for u, v in zip(order, order[1:] + order[:1])
        ]
        count = len(order)
        for i in range(count - 1):
            for j in range(i + 2, count - (i == 0)):
                ends = (order[i], order[j]), (order[i + 1], order[(j + 1) % count])
                new = [between.get((min(pair), max(pair))) for pair in ends]
                if new[0] and new[1] and not lower[[used[i], used[j]]].any():
                    moved = vertex.copy()
                    moved[[used[i], used[j]]] = 0.0
                    moved[[new[0][0], new[1][0]]] = 1.0
                    yield moved

    def is_vertex(self, x: ArrayLike) -> bool:
        return super().is_vertex(x) and self._order(np.asarray(x)) is not None

    def _order(self, vertex: Vector) -> Any:
        """The positions of the nodes along a tour; None if it is none."""
        count, chosen = len(self.nodes), np.flatnonzero(vertex > 0.5).tolist()
        after: dict[int, list[int]] = {}
        for e in chosen:
            tail, head = int(self.tails[e]), int(self.heads[e])
            after.setdefault(tail, []).append(head)
            if not self.is_directed:
                after.setdefault(head, []).append(tail)
        wanted = 1 if self.is_directed else 2
        if len(chosen) != count or any(len(after.get(i, ())) != wanted for i in range(count)):
            return None
        order, last, node = [0], 0, after[0][0]
        while node != 0 and len(order) <= count:
            order.append(node)
            ahead = after[node]
            last, node = node, ahead[0] if self.is_directed or ahead[0] != last else ahead[1]
        return order if len(order) == count else None

    def _check_graph(self, graph: Any) -> None:
        count = len(self.nodes)
        least = 2 if self.is_directed else 3
        if count < least:
            raise ValueError(f"a tour needs at least {least} nodes, got {count}.")
        for node in self.nodes:
            away = (
                (set(graph.predecessors(node)) - {node}, set(graph.successors(node)) - {node})
                if self.is_directed
                else (set(graph.neighbors(node)) - {node},)
            )
            if any(len(others) < (1 if self.is_directed else 2) for others in away):
                raise ValueError(
                    f"the graph has no tour: node {node!r} has too few neighbours to be entered "
                    "and left; add edges or leave it out."
                )
        joined = nx.is_strongly_connected if self.is_directed else nx.is_connected
        if not joined(graph):
            raise ValueError("the graph has no tour: it is not connected; add edges.")

    def _check_nonempty(self) -> None:
        try:
            self.minimize(np.zeros(self.dimension))
        except InfeasibleError:
            raise ValueError(
                f"the graph has no tour: no cycle passes its {len(self.nodes)} nodes once each; "
                "add edges."
            ) from None

    def refusal(self, lower: Vector, upper: Vector) -> InfeasibleError:
        """The error where held edges leave no tour."""
        return InfeasibleError(
            f"{self!r} has no tour with {self.held_counts(lower, upper)}; allow or leave out some."
        )

    def _degrees(self, x: Any) -> list[Any]:
        """CVXPY constraints: an arc out of each node and one into it, or two edges at each node."""
        leaves, enters = self.ends_matrix(self.tails), self.ends_matrix(self.heads)
        degrees = [leaves @ x == 1, enters @ x == 1]
        if not self.is_directed:
            degrees = [(leaves + enters) @ x == 2]
        return [*degrees, x >= 0, x <= self.proper]

    def violated(self, x: Vector) -> Iterator[Row]:
        """Rows x(out of S) >= 1, or x(around S) >= 2, for the components S of edges with x > 0."""
        tails, heads = self.tails, self.heads
        for nodes in components(x > 1e-6, tails, heads, len(self.nodes)):
            if nodes.all():
                continue
            if self.is_directed:
                yield at_least(nodes[tails] & ~nodes[heads], 1.0)
            else:
                yield at_least(nodes[tails] != nodes[heads], 2.0)


# ------------------------------------------------------------------ backends
def _by_cuts(tours: Tour) -> HullOracle:
    """HiGHS on degrees, and on cuts around sets of nodes as they are violated."""
    if tours.time_limit is not None:
        raise ValueError(
            "time_limit is for backend='ortools', which has a tour at any time; 'highs' has one at "
            "the end."
        )
    return HullOracle(tours, tours._degrees, tours.violated)


def _by_circuits(tours: Tour) -> CpSatOracle:
    """CP-SAT's circuit constraint, one literal for each way along an edge."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    edges, arcs = [model.new_bool_var("") for _ in tours.edges], []
    for edge, tail, head, proper in zip(edges, tours.tails, tours.heads, tours.proper):
        if not proper:
            model.add(edge == 0)
        elif tours.is_directed:
            arcs.append((tail, head, edge))
        else:
            forth, back = model.new_bool_var(""), model.new_bool_var("")
            model.add(forth + back == edge)
            arcs += [(tail, head, forth), (head, tail, back)]
    model.add_circuit(arcs)
    return CpSatOracle(tours, model, edges, tours.time_limit)


register_backend(Tour, "highs", _by_cuts)
register_backend(Tour, "ortools", _by_circuits)
