"""Matchings of an undirected graph, assignments of rows to columns, and ways to find a best one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from itertools import combinations, product
from typing import Any, Literal

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment

from wdro_model.compat import networkx as nx
from wdro_model.errors import InfeasibleError
from wdro_model.sets.arguments import as_direction, as_flat, as_names
from wdro_model.sets.backends import (
    LARGEST,
    Answer,
    BoundedOracle,
    Vector,
    register_backend,
    scaled_to_integers,
)
from wdro_model.sets.choices import EdgeSet, ItemSet, Mask, ParallelEdges
from wdro_model.sets.hull import HullOracle, Row, at_most, components

LARGEST_TABLE = 4_000_000
"""Pairs of nodes of the two sides up to which matchings are assignments on a full matrix."""
LARGEST_ENUMERATED = 12
"""Nodes up to which the rows of all odd sets are written out."""
LARGEST_FOR_BLOSSOMS = 20
"""Nodes up to which NetworkX's blossoms are faster than a linear program."""

MatchingBackend = Literal["scipy", "highs", "networkx"]
"""The built-in backends; `register_backend` adds others."""


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
        super().__init__(graph, False, "graph.to_undirected() forgets the directions")
        self.perfect = bool(perfect)
        if not self.proper.any():
            raise ValueError("the graph has self-loops only, which are in no matching.")
        self.bounds = (np.zeros(self.dimension), self.proper.astype(np.float64))
        self.is_bipartite: bool = nx.is_bipartite(self._simple_graph())
        self.has_constraints = self.is_bipartite or len(self.nodes) <= LARGEST_ENUMERATED
        self.use_backend(backend)
        if self.perfect:
            self._check_perfect()
        self.hold(forbidden, mandatory)

    def use_backend(self, backend: str | None = None) -> None:
        """Build the oracle of a backend; of the one that suits the graph for None."""
        if backend is None:
            count = len(self.nodes)
            backend = "networkx" if count <= LARGEST_FOR_BLOSSOMS else "highs"
            if self.is_bipartite and count * count <= 4 * LARGEST_TABLE:
                backend = "scipy"
        super().use_backend(backend)

    @cached_property
    def incidence(self) -> Any:
        """The matrix (nodes, edges) with 1 where an edge, not a loop, ends at a node."""
        ends = self.ends_matrix(self.tails) + self.ends_matrix(self.heads)
        matrix = sp.csr_array(ends @ sp.diags_array(self.proper.astype(np.float64)))
        matrix.eliminate_zeros()
        return matrix

    def describe(self) -> str:
        kind = "perfect matchings" if self.perfect else "matchings"
        return f"{kind} of {self.size_in_words()}"

    def neighbours(self, vertex: Vector, x: Vector) -> Iterator[Vector]:
        """Matchings that one exchange leads to, within what is held."""
        lower, upper = self.interval(None, None)
        for other in self._exchanged(vertex, x):
            if (lower <= other).all() and (other <= upper).all():
                yield other

    def _exchanged(self, vertex: Vector, x: Vector) -> Iterator[Vector]:
        """Matchings with one edge more, less or exchanged, or two edges exchanged for two.

        Edges that x has most of, and the vertex has not, come first.
        """
        chosen = np.flatnonzero(vertex > 0.5)
        edge_at = {int(end[e]): int(e) for e in chosen for end in (self.tails, self.heads)}
        between: dict[tuple[int, int], int] = {}
        for e in np.flatnonzero(self.proper).tolist():
            between[self._ends(e)] = e
        order = np.argsort(vertex - x, kind="stable")
        for e in order.tolist():
            if vertex[e] > 0.5 or not self.proper[e]:
                continue
            tail, head = self._ends(e)
            leaving = {edge_at[node] for node in (tail, head) if node in edge_at}
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
                f"which are written for at most {LARGEST_ENUMERATED} nodes, or for bipartite "
                "graphs."
            )
        written, count = self._degrees(x), len(self.nodes)
        if self.is_bipartite:
            return written
        odd = [s for size in range(3, count + 1, 2) for s in combinations(range(count), size)]
        rows = [self._odd_row(np.isin(np.arange(count), nodes)) for nodes in odd]
        rows = [row for row in rows if row.columns.size > row.most]
        matrix = np.array([self.indicator(row.columns) for row in rows])
        limits = np.array([row.most for row in rows])
        return [*written, sp.csr_array(matrix) @ as_flat(x, self.dimension) <= limits]

    def _degrees(self, x: Any) -> list[Any]:
        """At most one edge at each node, or one, and none that is a loop."""
        flat = as_flat(x, self.dimension)
        degrees = self.incidence @ flat
        return [degrees == 1 if self.perfect else degrees <= 1, flat >= 0, flat <= self.proper]

    def _odd_row(self, nodes: Mask) -> Row:
        """The row x(E(S)) <= (|S| - 1)/2 for an odd set of nodes (n,)."""
        inside = nodes[self.tails] & nodes[self.heads] & self.proper
        return at_most(inside, (int(nodes.sum()) - 1) // 2)

    def violated(self, x: Vector) -> Iterator[Row]:
        """Rows of odd components of the edges with x > 0, or with 0 < x < 1."""
        for support in (x > 1e-6, (x > 1e-6) & (x < 1.0 - 1e-6)):
            for nodes in components(support, self.tails, self.heads, len(self.nodes)):
                if int(nodes.sum()) % 2 and int(nodes.sum()) > 1:
                    yield self._odd_row(nodes)

    def is_vertex(self, x: ArrayLike) -> bool:
        if not super().is_vertex(x):
            return False
        degrees = np.rint(self.incidence @ np.asarray(x, dtype=np.float64))
        return bool((degrees == 1).all() if self.perfect else (degrees <= 1).all())

    def _ends(self, edge: int) -> tuple[int, int]:
        """The two ends of an edge, the lower position first."""
        tail, head = int(self.tails[edge]), int(self.heads[edge])
        return (tail, head) if tail < head else (head, tail)

    def _simple_graph(self) -> Any:
        """The graph on positions of nodes, without loops and parallel edges."""
        simple: Any = nx.Graph()
        simple.add_nodes_from(range(len(self.nodes)))
        ends = zip(self.tails[self.proper].tolist(), self.heads[self.proper].tolist())
        simple.add_edges_from(ends)
        return simple

    def _check_perfect(self) -> None:
        """Raise a ValueError where there is no perfect matching."""
        count = len(self.nodes)
        if count % 2:
            raise ValueError(
                f"the graph has {count} nodes, an odd number, and no perfect matching; leave one "
                "out, or use perfect=False."
            )
        with suppress(InfeasibleError):
            if 2 * self.free_answer(np.zeros(self.dimension))[0].sum() == count:
                return
        matched = 2 * len(nx.max_weight_matching(self._simple_graph(), maxcardinality=True))
        raise ValueError(
            f"the graph has no perfect matching: at most {matched} of its {count} nodes can be "
            "matched; add edges, or use perfect=False."
        )

    def held_answer(self, direction: Vector, lower: Vector, upper: Vector) -> Answer:
        """The best matching; edges that meet a mandatory one are left out."""
        mandatory = lower > 0.0
        uses = self.incidence @ lower
        if np.any(uses > 1.0):
            node = self.nodes[int(np.argmax(uses))]
            raise InfeasibleError(
                f"{self!r} has no matching with all of its mandatory edges "
                f"({self.listed(mandatory)}): two of them meet at {node!r}; leave one of them out."
            )
        met = (uses > 0.0)[self.tails] | (uses > 0.0)[self.heads]
        return super().held_answer(direction, lower, np.where(met & ~mandatory, 0.0, upper))

    def refusal(self, lower: Vector, upper: Vector) -> InfeasibleError:
        """The error where held edges leave no perfect matching."""
        return InfeasibleError(
            f"{self!r} has no perfect matching with {self.held_counts(lower, upper)}; allow or "
            "leave out some."
        )


class CheapestEdges(BoundedOracle):
    """An oracle on the cheapest of parallel edges, without those that are held or not worth it."""

    def __init__(self, matchings: Matching) -> None:
        self._set = matchings

    def answer(self, direction: Vector, lower: Vector, upper: Vector) -> Answer:
        matchings = self._set
        useful = (upper > 0.0) if matchings.perfect else (upper > lower) & (direction < 0)
        vertex = lower.copy()
        vertex[self._matched(direction, np.flatnonzero(useful))] = 1.0
        if matchings.perfect and 2 * int(vertex.sum()) < len(matchings.nodes):
            raise matchings.refusal(lower, upper)
        return vertex, 0.0

    @abstractmethod
    def _matched(self, direction: Vector, edges: np.ndarray) -> np.ndarray:
        """The edges of a best matching among some; as large as possible, if perfect."""


class Blossoms(CheapestEdges):
    """Edmonds's algorithm on whole weights, where it is exact."""

    def _matched(self, direction: Vector, edges: np.ndarray) -> np.ndarray:
        if not edges.size:
            return edges
        ends = np.sort([self._set.tails[edges], self._set.heads[edges]], axis=0)
        parallel = ParallelEdges(edges, *ends)
        cheapest = parallel.cheapest(direction)
        integers, _ = scaled_to_integers(direction[cheapest], 2**50)
        graph: Any = nx.Graph()
        weights = (-integers).tolist()
        graph.add_weighted_edges_from((*pair, w) for pair, w in zip(parallel.entry, weights))
        pairs = nx.max_weight_matching(graph, maxcardinality=self._set.perfect)
        return cheapest[[parallel.entry[min(pair), max(pair)] for pair in pairs]]


class TwoSides(CheapestEdges):
    """SciPy's assignment of one side of a bipartite graph to the other."""

    def __init__(self, matchings: Matching) -> None:
        super().__init__(matchings)
        if not matchings.is_bipartite:
            raise ValueError(
                f"backend 'scipy' is for bipartite graphs, and {matchings!r} has an odd cycle; use "
                "backend='highs' or 'networkx'."
            )
        proper = matchings.proper
        colour = nx.bipartite.color(matchings._simple_graph())
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


register_backend(Matching, "scipy", TwoSides)
register_backend(Matching, "highs", lambda m: HullOracle(m, m._degrees, m.violated))
register_backend(Matching, "networkx", Blossoms)


# ------------------------------
# Assignments of rows to columns, each to one of its own


AssignmentBackend = Literal["scipy", "ortools", "highs"]
"""The built-in backends; `register_backend` adds others."""


class AssignmentSet(ItemSet):
    """The assignments of n rows to n of m >= n columns, `sets.Assignment`.

    x_ij = 1 if row i goes to column j, flattened in row-major order; for n = m the hull is
    Birkhoff's polytope. Backends: "scipy" (default), "ortools" (costs scaled to whole numbers, with
    the error in the slack), "highs" (a linear program).

    Parameters
    ----------
    rows, columns
        Names, or their numbers n and m; as many columns as rows by default.
    forbidden, mandatory
        Pairs (row, column).

    Attributes
    ----------
    pairs
        The pair (row, column) of each coordinate.

    Examples
    --------
    >>> jobs = wdro.sets.Assignment(["Ann", "Bob"], ["bake", "cook", "serve"])
    >>> jobs.selected(jobs.minimize([3.0, 1.0, 2.0, 2.0, 1.0, 9.0]))
    [('Ann', 'cook'), ('Bob', 'bake')]
    """

    default_backend = "scipy"
    has_constraints = True
    thing = "pair"

    def __init__(
        self,
        rows: Any,
        columns: Any = None,
        backend: AssignmentBackend | str | None = None,
        *,
        forbidden: Iterable[Any] | None = None,
        mandatory: Iterable[Any] | None = None,
    ) -> None:
        self.rows = as_names(rows, "row")
        self.columns = self.rows if columns is None else as_names(columns, "column")
        self.shape = (len(self.rows), len(self.columns))
        if self.shape[0] > self.shape[1]:
            raise ValueError(
                f"an Assignment gives every row a column of its own, got {self.shape[0]} rows and "
                f"{self.shape[1]} columns; exchange rows and columns."
            )
        self.pairs = self.items = self.names = tuple(product(self.rows, self.columns))
        self.dimension = len(self.pairs)
        self.use_backend(backend)
        self.hold(forbidden, mandatory)

    def table(self, x: ArrayLike) -> np.ndarray:
        """A point as an array (n, m).

        Examples
        --------
        >>> jobs = wdro.sets.Assignment(2, 3)
        >>> jobs.table(jobs.minimize([3.0, 1.0, 2.0, 2.0, 1.0, 9.0]))
        array([[0., 1., 0.],
               [1., 0., 0.]])
        """
        return as_direction(x, self.dimension, kind="x").reshape(self.shape)

    def plot(self, x: ArrayLike, path: Any = None, *, ax: Any = None) -> Any:
        """Draw x as a table of rows and columns; the figure, or `ax` where it is given."""
        from wdro_model.sets.set_pictures import draw_table

        return draw_table(self.table(np.ravel(x)), self.rows, self.columns, path, ax)

    def is_member(self, chosen: np.ndarray) -> bool:
        table = chosen.reshape(self.shape)
        return bool(np.all(table.sum(axis=1) == 1) and np.all(table.sum(axis=0) <= 1))

    def describe(self) -> str:
        n, m = self.shape
        return (
            f"assignments of {n} rows to {m} columns{self._held_in_words}, minimised by "
            f"{self.backend}"
        )

    def _hull(self, x: Any) -> list[Any]:
        table = cp.reshape(as_flat(x, self.dimension), self.shape, order="C")
        full = self.shape[0] == self.shape[1]
        columns = cp.sum(table, axis=0)
        return [table >= 0, cp.sum(table, axis=1) == 1, columns == 1 if full else columns <= 1]

    def neighbours(self, vertex: Vector, x: Vector) -> Iterator[Vector]:
        """Assignments in which two rows exchange columns, or one takes a column that is free."""
        lower, upper = (side.reshape(self.shape) for side in self.interval(None, None))
        along, table = (x - vertex).reshape(self.shape), vertex.reshape(self.shape)
        column_of = table.argmax(axis=1)
        rows = np.arange(self.shape[0])
        unused = np.flatnonzero(table.sum(axis=0) == 0)
        targets = np.append(column_of, unused)  # of the row itself, of another, of none
        gains = along[:, targets] - along[rows, column_of][:, None]
        gains[:, : rows.size] = np.triu(gains[:, : rows.size] + gains[:, : rows.size].T, 1)
        for place in np.argsort(-gains, axis=None, kind="stable"):
            i, t = map(int, np.unravel_index(place, gains.shape))
            if t <= i:
                continue
            other = table.copy()
            other[i, column_of[i]], other[i, targets[t]] = 0.0, 1.0
            if t < rows.size:
                other[t, targets[t]], other[t, column_of[i]] = 0.0, 1.0
            if np.all(other >= lower) and np.all(other <= upper):
                yield other.ravel()

    def __repr__(self) -> str:
        return f"Assignment({self.shape[0]} rows, {self.shape[1]} columns)"


class RestOfTable(BoundedOracle):
    """Mandatory pairs are taken out with their row and column; the rest is solved for."""

    def __init__(self, assignments: AssignmentSet) -> None:
        self._set = assignments

    def answer(self, direction: Vector, lower: Vector, upper: Vector) -> Answer:
        shape = self._set.shape
        costs, vertex = direction.reshape(shape), lower.reshape(shape).copy()
        without = None if upper.all() else upper.reshape(shape) < 1.0
        in_rows, in_columns = vertex.sum(axis=1), vertex.sum(axis=0)
        rows, columns = np.flatnonzero(in_rows == 0), np.flatnonzero(in_columns == 0)
        answer = None
        if max(in_rows.max(), in_columns.max()) <= 1.0:
            if rows.size < shape[0]:
                rest = np.ix_(rows, columns)
                costs, without = costs[rest], None if without is None else without[rest]
            answer = self._columns(costs, without)
        if answer is None:
            raise self._set.refusal(lower, upper)
        vertex[rows, columns[answer[0]]] = 1.0
        return vertex.ravel(), answer[1]

    @abstractmethod
    def _columns(self, costs: np.ndarray, without: Mask | None) -> tuple[np.ndarray, float] | None:
        """The column of each row and the slack; None if there is no assignment."""


class ScipyTable(RestOfTable):
    def _columns(self, costs: np.ndarray, without: Mask | None) -> tuple[np.ndarray, float] | None:
        if without is not None:
            costs = np.where(without, np.inf, costs)
        try:
            return linear_sum_assignment(costs)[1], 0.0
        except ValueError:  # what scipy calls an infeasible cost matrix
            return None


class OrToolsTable(RestOfTable):
    def _columns(self, costs: np.ndarray, without: Mask | None) -> tuple[np.ndarray, float] | None:
        from ortools.graph.python import linear_sum_assignment as graph

        n, m = costs.shape
        if n == 0:
            return np.zeros(0, dtype=np.int64), 0.0
        allowed = np.ones((m, m), dtype=bool)  # rows beyond n take the columns that are left over
        if without is not None:
            allowed[:n] = ~without
        if not (allowed.any(axis=1).all() and allowed.any(axis=0).all()):
            return None  # OR-Tools would not count a node without arcs
        # Costs are multiplied by the number of nodes inside, and prices add up over all of them.
        integers, unit = scaled_to_integers(costs, LARGEST // (32 * (m + 1) ** 2))
        padded = np.zeros((m, m), dtype=np.int64)
        padded[:n] = integers
        rows, columns = np.nonzero(allowed)
        solver = graph.SimpleLinearSumAssignment()
        solver.add_arcs_with_cost(rows, columns, padded[allowed])
        status = solver.solve()
        if status == solver.INFEASIBLE:
            return None
        if status != solver.OPTIMAL:
            raise cp.error.SolverError(f"OR-Tools stopped with {status} on {self._set!r}.")
        error = np.abs(costs - unit * integers.astype(np.float64)).max()
        return np.array([solver.right_mate(i) for i in range(n)]), 2 * n * float(error)


register_backend(AssignmentSet, "scipy", ScipyTable)
register_backend(AssignmentSet, "ortools", OrToolsTable)
register_backend(AssignmentSet, "highs", lambda table: HullOracle(table, table._hull))
