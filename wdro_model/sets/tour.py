"""Tours: cycles through every node of a graph once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from wdro_model.compat import networkx as nx
from wdro_model.errors import InfeasibleError
from wdro_model.sets.backends import Vector, register_backend, rounding_slack, scaled_to_integers
from wdro_model.sets.choices import Array
from wdro_model.sets.edge_program import EdgeProgram, ViolatedRow, at_least, components
from wdro_model.sets.graphs import EdgeSet

TourBackend = Literal["highs", "ortools"]
"""Those that are built in; `register_backend` adds others."""


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
    >>> import networkx as nx, wdro_model as wdro
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
        if time_limit is not None and not time_limit > 0:
            raise ValueError(f"time_limit must be a positive number of seconds, got {time_limit}.")
        self.time_limit = time_limit
        self.proper = self.tails != self.heads
        self._check_graph(graph)
        self.bounds = (np.zeros(self.dimension), self.proper.astype(np.float64))
        self.use_backend(backend)
        self._check_nonempty()
        self.hold(forbidden, mandatory)

    def describe(self) -> str:
        """The set in one line."""
        kind = "directed tours" if self.is_directed else "tours"
        return (
            f"{kind} of a graph with {len(self.nodes)} nodes and {len(self.edges)} edges"
            f"{self.held_in_words()}, minimised by {self.backend}"
        )

    def order(self, x: Any) -> list[Any]:
        """The nodes of a tour in the order in which they are met, the first of the graph first.

        Examples
        --------
        >>> import networkx as nx, wdro_model as wdro
        >>> tour = wdro.sets.Tour(nx.complete_graph(["a", "b", "c", "d"]))
        >>> tour.order(tour.minimize([5.0, 1.0, 1.0, 1.0, 1.0, 5.0]))
        ['a', 'c', 'b', 'd']
        """
        vertex = self._discrete(x, "x")
        return [self.nodes[i] for i in self._order(vertex)]

    def neighbours(self, vertex: Vector, x: Vector) -> Iterator[Vector]:
        """Tours with one stretch turned round (2-opt); the nearest ones, on a directed graph."""
        if self.is_directed:
            yield from super().neighbours(vertex, x)
            return
        lower, upper = self.own_bounds()
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

    def _is_discrete(self, vertex: Vector) -> bool:
        """Is it a tour?"""
        return super()._is_discrete(vertex) and self._order(vertex) is not None

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

    def refusal(self, forbidden: Array, mandatory: Array) -> InfeasibleError:
        """The error where held edges leave no tour."""
        return InfeasibleError(
            f"{self!r} has no tour with {int(mandatory.sum())} mandatory and "
            f"{int((forbidden & self.proper).sum())} forbidden edges as asked; allow or leave out "
            "some."
        )


class _Oracle:
    """Asked without or with held edges."""

    def __init__(self, tours: Tour) -> None:
        self._set = tours

    def __call__(self, direction: Vector) -> Vector:
        none = np.zeros(direction.size, dtype=bool)
        return self.within(direction, none, none)

    def within(self, direction: Vector, forbidden: Array, mandatory: Array) -> Vector:
        """The best tour with some edges held."""
        raise NotImplementedError


class _ByCuts(_Oracle):
    """HiGHS on degrees, and on cuts around sets of nodes as they are violated."""

    def __init__(self, tours: Tour) -> None:
        super().__init__(tours)
        if tours.time_limit is not None:
            raise ValueError(
                "time_limit is for backend='ortools', which has a tour at any time; 'highs' has "
                "one at the end."
            )
        count, upper = len(tours.nodes), tours.proper.astype(np.float64)
        edges, ones = np.arange(upper.size), np.ones(upper.size)
        shape = (count, upper.size)
        leaves = sp.csr_array((ones, (tours.tails, edges)), shape=shape)
        enters = sp.csr_array((ones, (tours.heads, edges)), shape=shape)
        if tours.is_directed:
            matrix, degree = sp.vstack([leaves, enters]), np.ones(2 * count)
        else:
            matrix, degree = leaves + enters, np.full(count, 2.0)
        self._program = EdgeProgram(matrix, degree, degree, np.zeros(upper.size), upper)
        self._upper = upper

    def within(self, direction: Vector, forbidden: Array, mandatory: Array) -> Vector:
        upper = np.where(forbidden, 0.0, self._upper)
        lower = mandatory.astype(np.float64)
        found = None
        if np.all(lower <= upper):
            found = self._program.choose(direction, self._violated, lower, upper)
        if found is None:
            raise self._set.refusal(forbidden, mandatory)
        return np.rint(found) + 0.0

    def reset(self) -> None:
        """Forget the cuts that were found."""
        self._program.reset()

    def _violated(self, x: Vector) -> Iterator[ViolatedRow]:
        """x(out of S) >= 1, or x(around S) >= 2, for the components S of the edges with x > 0."""
        tours = self._set
        tails, heads = tours.tails, tours.heads
        for nodes in components(x > 1e-6, tails, heads, len(tours.nodes)):
            if nodes.all():
                continue
            if tours.is_directed:
                yield at_least(nodes[tails] & ~nodes[heads], 1.0)
            else:
                yield at_least(nodes[tails] != nodes[heads], 2.0)


class _ByCircuits(_Oracle):
    """CP-SAT's circuit constraint, one literal for each way along an edge."""

    slack = 0.0
    """By how much at most the last answer costs more than the best tour."""

    def __init__(self, tours: Tour) -> None:
        super().__init__(tours)
        from ortools.sat.python import cp_model

        self._module = cp_model
        self._known: Vector | None = None
        # Sums of costs along a tour stay far inside 64 bits.
        self._limit = min(2**40, 2**58 // len(tours.nodes))

    def reset(self) -> None:
        """Forget the last tour."""
        self._known = None

    def within(self, direction: Vector, forbidden: Array, mandatory: Array) -> Vector:
        tours, named = self._set, self._module
        costs, unit = scaled_to_integers(direction, self._limit)
        model = named.CpModel()
        edges = np.flatnonzero(tours.proper & ~forbidden).tolist()
        arcs, literals = [], {}
        for e in edges:
            tail, head = int(tours.tails[e]), int(tours.heads[e])
            ways = [(tail, head)] if tours.is_directed else [(tail, head), (head, tail)]
            literals[e] = [model.new_bool_var("") for _ in ways]
            arcs += [(*way, literal) for way, literal in zip(ways, literals[e])]
            if mandatory[e]:
                model.add_exactly_one(literals[e])
            elif len(ways) > 1:
                model.add_at_most_one(literals[e])
        if len({node for arc in arcs for node in arc[:2]}) < len(tours.nodes):
            raise tours.refusal(forbidden, mandatory)
        if np.any(mandatory & (forbidden | ~tours.proper)):
            raise tours.refusal(forbidden, mandatory)
        model.add_circuit(arcs)
        model.minimize(sum(int(costs[e]) * literal for e in edges for literal in literals[e]))
        known = self._known
        if known is not None and (known[forbidden].any() or not known[mandatory].all()):
            known = None
        solver = named.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = 0
        if tours.time_limit is not None and known is not None:
            solver.parameters.max_time_in_seconds = tours.time_limit
        status = solver.solve(model)
        # A tour has as many edges as nodes: none costs less than that many of the cheapest.
        bound = float(np.sort(direction[edges])[: len(tours.nodes)].sum())
        if status == named.INFEASIBLE:
            raise tours.refusal(forbidden, mandatory)
        if status in (named.OPTIMAL, named.FEASIBLE):
            chosen = [e for e in edges if any(map(solver.boolean_value, literals[e]))]
            found = tours._indicator(chosen)
            rounding = rounding_slack(direction, costs, unit)
            behind = unit * (solver.objective_value - solver.best_objective_bound)
            self.slack = 0.0 if status == named.OPTIMAL else max(behind, 0.0)
            self.slack += rounding
        elif known is not None:
            found, self.slack = known.copy(), np.inf
        else:
            raise cp.error.SolverError(f"CP-SAT stopped with {solver.status_name(status)}.")
        cost = float(direction @ found)
        if known is not None and float(direction @ known) < cost:
            self.slack -= cost - float(direction @ known)
            found, cost = known.copy(), float(direction @ known)
        self.slack = min(max(self.slack, 0.0), cost - bound)
        self._known = found.copy()
        return found


register_backend(Tour, "highs", _ByCuts)
register_backend(Tour, "ortools", _ByCircuits)
