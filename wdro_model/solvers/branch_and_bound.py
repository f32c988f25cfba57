"""Branch and bound: integer decisions with a proven gap, over any relaxation that gives bounds.

Best first: the node with the least bound is split at its most fractional coordinate, into the
decisions below and those above. A node whose bound is no better than the best integer decision so
far is closed. A `NodeRelaxations` object defines the relaxation and proposes integer decisions.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from cvxpy.error import SolverError

from wdro_model.sets.deadlines import OutOfTime, deadline
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.solvers.driver import Stop, relative_gap, tolerance
from wdro_model.solvers.features import Feature, check_settings
from wdro_model.solvers.objective import Array
from wdro_model.solvers.trace import Display, Record, Trace

WHOLE = 1e-6
"""Entries this close to an integer are that integer."""
HEADER = f"{'nodes':>9} {'open':>7} {'incumbent':>14} {'bound':>14} {'gap':>9} {'seconds':>8}"


@dataclass(frozen=True)
class BranchAndBound:
    """Integer decisions by branch and bound: the best one so far, and how much better any can be.

    Losses that are affine in the data and in the decision need none of it: at 0/1 points their
    worst-case risk is minimised by a search along one parameter.

    Examples
    --------
    >>> import cvxpy as cp, networkx as nx, wdro_model as wdro
    >>> tree = wdro.sets.SpanningTree(nx.cycle_graph(4))
    >>> x = cp.Variable(4, boolean=True)
    >>> cost = wdro.UncertainParameter(4, samples=[[1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 1.0, 4.0]])
    >>> loss, ball = cp.square(cost @ x), wdro.WassersteinBall(0.5)
    >>> problem = wdro.Problem(cp.Minimize(loss), [wdro.In(x, tree)], ambiguity=ball)
    >>> value = problem.solve(solver=wdro.solvers.BranchAndBound(gap=1e-3, time_limit=30))
    >>> tree.selected(x.value)
    [(0, 1), (0, 3), (1, 2)]
    """

    gap: float = 1e-3
    """Stop when value - lower bound is at most this fraction of |value|."""
    time_limit: float | None = None
    """Seconds."""
    node_limit: int = 10_000
    """Nodes that are looked at, at most."""

    features: ClassVar[frozenset[Feature]] = frozenset({Feature.INTEGERS})
    stage: ClassVar[str | None] = "integer"

    def __post_init__(self) -> None:
        check_settings(self)

    def describe(self, feasible: FeasibleSet | None = None) -> str:
        return f"branch and bound, relative gap {self.gap:g}, at most {self.node_limit} nodes"


@dataclass(frozen=True)
class Relaxed:
    """The relaxation of a node."""

    bound: float
    """No decision of the node has a smaller value."""
    x: Array
    """A decision whose value is near the bound, usually fractional."""
    memory: Any = None
    """Data from which the relaxations of the children start, such as vertices."""


class NodeRelaxations:
    """The relaxations of nodes, given by bounds on the flat decision."""

    discrete: Array
    """The mask (n,) of coordinates that are integers."""

    def relax(
        self, lower: Array, upper: Array, memory: Any, cutoff: float, seconds: float | None
    ) -> Relaxed | None:
        """Bound the node; None where it is empty. A bound above the cutoff need not be sharp."""
        raise NotImplementedError

    def candidates(self, node: Relaxed, count: int, improved: bool) -> Iterable[Array]:
        """Integer decisions to try after a node; count: the nodes so far."""
        raise NotImplementedError

    def complete(self, x: Array) -> tuple[float, Array]:
        """The value of the integers of x, and the best decision with them."""
        raise NotImplementedError

    def known_choices(self) -> Iterable[Array]:
        """Integer decisions known so far, for use after an interrupt."""
        return ()

    def has_failed(self, x: Array) -> bool:
        """Whether a solver gave up on the integers of x, so that their value is not known."""
        return False

    def contains(self, x: Array) -> bool:
        """Whether there is a decision with the integers of x."""
        raise NotImplementedError


@dataclass(frozen=True)
class IntegerOutcome:
    """The best integer decision of a search."""

    x: Array
    value: float
    lower_bound: float
    stop: Stop
    nodes: int
    trace: Trace

    @property
    def gap(self) -> float:
        return max(0.0, self.value - self.lower_bound)


@dataclass(frozen=True)
class _Node:
    lower: Array
    upper: Array
    relaxed: Relaxed


class TreeSearch:
    """A run of branch and bound."""

    def __init__(
        self, nodes: NodeRelaxations, solver: BranchAndBound, began: float | None = None
    ) -> None:
        self.nodes, self.solver = nodes, solver
        self.began = time.perf_counter() if began is None else began
        self.best, self.value = np.zeros(0), np.inf
        self.count, self._order = 0, itertools.count()
        self.open: list[tuple[float, int, _Node]] = []
        self.closed, self.failed = np.inf, False
        """The least bound of closed nodes; did a solver give up on some integer decision?"""
        self.trace = Trace()
        self.gains = BranchingGains(nodes.discrete.size)

    @property
    def bound(self) -> float:
        """No integer decision has a smaller value."""
        return min(self.open[0][0] if self.open else np.inf, self.closed, self.value)

    @property
    def cutoff(self) -> float:
        """Nodes with at least this bound are closed."""
        return self.value - tolerance(self.solver.gap, self.value) if self.best.size else np.inf

    def run(
        self,
        lower: Array,
        upper: Array,
        *,
        starts: Iterable[Array] = (),
        verbose: bool = False,
        progress: bool = True,
    ) -> IntegerOutcome | None:
        """Search between bounds; None where no integer decision was found.

        starts: decisions whose integers are tried first.
        """
        stop, bound = Stop.GAP, -np.inf
        display = Display(verbose, progress, None, "branch and bound", HEADER, "node")
        with display, deadline(self._seconds_left()):
            try:
                self._try_all(start for start in starts if self.nodes.contains(start))
                self._bound_node(lower, upper, None, -np.inf)
                while self.open and self.open[0][0] < self.cutoff:
                    bound = self.bound
                    self._show(display, bound)
                    stop = self._reached_limit() or Stop.GAP
                    if stop is not Stop.GAP:
                        break
                    self._split(heapq.heappop(self.open)[2])
                bound = self.bound
            except (KeyboardInterrupt, OutOfTime) as error:
                self._try_all(self.nodes.known_choices())
                if not self.best.size:
                    raise
                stop = Stop.TIME if isinstance(error, OutOfTime) else Stop.INTERRUPT
            self._show(display, bound, last=True)
            display.end(stop.value)
        if not self.best.size:
            if self.failed:
                raise SolverError(
                    "the conic solver gave up on every integer decision that was tried: numbers of "
                    "too many sizes; measure data, loss and radius in units in which they are of "
                    "order one, or use another solver."
                )
            return None
        return IntegerOutcome(
            self.best, self.value, min(bound, self.value), stop, self.count, self.trace
        )

    def _reached_limit(self) -> Stop | None:
        if self.count >= self.solver.node_limit:
            return Stop.ITERATIONS
        left = self._seconds_left()
        return Stop.TIME if left is not None and left <= 0 else None

    def _seconds_left(self) -> float | None:
        limit = self.solver.time_limit
        return None if limit is None else limit - (time.perf_counter() - self.began)

    def _bound_node(self, lower: Array, upper: Array, memory: Any, known: float) -> float:
        """Bound a node and try its candidates; keep it open below the cutoff.

        known: the bound of its parent.
        """
        relaxed = self.nodes.relax(lower, upper, memory, self.cutoff, self._seconds_left())
        self.count += 1
        if relaxed is None:
            return np.inf
        relaxed = replace(relaxed, bound=max(relaxed.bound, known))
        if self.count == 1:  # an interrupt here would return the best of these
            self._try_all(self.nodes.known_choices())
        before = self.value
        self._try_all(self.nodes.candidates(relaxed, self.count, improved=False))
        if self.value < before:
            self._try_all(self.nodes.candidates(relaxed, self.count, improved=True))
        if relaxed.bound >= self.cutoff:
            self.closed = min(self.closed, relaxed.bound)
        else:
            node = _Node(lower, upper, relaxed)
            heapq.heappush(self.open, (relaxed.bound, next(self._order), node))
        return relaxed.bound

    def _try_all(self, choices: Iterable[Array]) -> None:
        """Keep the best of the incumbent and of these integer decisions."""
        for x in choices:
            value, decision = self.nodes.complete(x)
            if value < self.value:
                self.value, self.best = value, decision

    def _split(self, node: _Node) -> None:
        bound, memory = node.relaxed.bound, node.relaxed.memory
        i = self.gains.coordinate(node.relaxed.x, node.lower, node.upper, self.nodes.discrete)
        if i is None:  # one decision is left, if the set has it
            fixed = np.where(self.nodes.discrete, node.lower, node.relaxed.x)
            if self.nodes.contains(fixed):
                self._try_all([fixed])
                if self.nodes.has_failed(fixed):  # only a lower bound on its value is known
                    self.closed, self.failed = min(self.closed, bound), True
            return
        x = float(np.clip(node.relaxed.x[i], node.lower[i], node.upper[i]))
        below = min(np.floor(x + WHOLE), node.upper[i] - 1.0)
        down, up = node.upper.copy(), node.lower.copy()
        down[i], up[i] = below, below + 1.0
        share = min(max(x - below, WHOLE), 1.0 - WHOLE)
        below_bound = self._bound_node(node.lower, down, memory, bound)
        above_bound = self._bound_node(up, node.upper, memory, bound)
        self.gains.note(i, 0, below_bound - bound, share)
        self.gains.note(i, 1, above_bound - bound, 1.0 - share)

    def _show(self, display: Display, bound: float, last: bool = False) -> None:
        seconds = time.perf_counter() - self.began
        shown = self.trace.records[-1].iteration if self.trace.records else 0
        gap = self.value - bound
        record = Record(self.count, seconds, self.value, gap, np.nan, np.nan, self.count)
        self.trace.records.append(record)
        share = relative_gap(gap, self.value) if np.isfinite(self.value) else np.inf
        line = (
            f"{self.count:9d} {len(self.open):7d} {self.value:14.7g} {bound:14.7g} "
            f"{share:9.1e} {seconds:8.2f}"
        )
        display.show_line(self.count, line, share, self.count - shown, last)


class BranchingGains:
    """Gains of the bound by splitting at each coordinate, and the coordinate to split next.

    The bound of a child rises by about its coordinate's mean gain for a unit of its move, so that
    the coordinate with the largest product of both children's gains is taken: pseudo-costs.
    Coordinates that were not tried count as the average of those that were.
    """

    def __init__(self, size: int) -> None:
        self.total, self.count = np.zeros((2, size)), np.zeros((2, size))

    def note(self, i: int, side: int, gain: float, move: float) -> None:
        """Note the gain of a child below (0) or above (1) for a move of coordinate i."""
        if np.isfinite(gain):
            self.total[side, i] += gain / move
            self.count[side, i] += 1

    def coordinate(self, x: Array, lower: Array, upper: Array, discrete: Array) -> int | None:
        """The integer coordinate to split at; None if all are fixed."""
        free = np.flatnonzero(discrete & (lower < upper))
        if not free.size:
            return None
        part = x[free] - np.floor(x[free] + WHOLE)
        if np.minimum(part, 1.0 - part).max() <= WHOLE:  # x is whole, its bound not sharp
            return int(free[int(np.argmax(x[free] > lower[free] + 0.5))])
        known = self.count[:, free] > 0
        seen = self.count.sum(axis=1)
        average = self.total.sum(axis=1) / np.maximum(seen, 1.0)
        average = np.where(seen > 0, average, 1.0)
        rate = np.where(
            known, self.total[:, free] / np.maximum(self.count[:, free], 1.0), average[:, None]
        )
        least = 1e-6 * max(float(average.max()), 1e-300)
        score = np.maximum(rate[0] * part, least) * np.maximum(rate[1] * (1.0 - part), least)
        score[np.minimum(part, 1.0 - part) <= WHOLE] = -1.0
        return int(free[int(np.argmax(score))])
