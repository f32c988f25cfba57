"""Simplicial decomposition: a convex program over sets that are known by their oracles alone.

Minimise over the hull of the vertices so far by a conic program, ask each oracle at the slope that
its multipliers give, add the vertex, until the gap between the program's value and its lower bound
is small. The objective need not be smooth: CVaR, newsvendors, norms.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from wdro_model.sets.deadlines import OutOfTime, deadline, seconds_left
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.solvers.certificate import certificate
from wdro_model.solvers.column_master import ColumnMaster, MasterAnswer, VertexColumns
from wdro_model.solvers.frank_wolfe import check_count, check_positive, check_time
from wdro_model.solvers.objective import Array
from wdro_model.solvers.outcome import Stop, tolerance
from wdro_model.solvers.trace import Display, Record, Trace

SAME = 1e-9
"""Vertices whose coordinates differ by less are one."""
ROUNDING = 1e-6
"""Slopes below zero by this share of the largest are what a solver leaves of zero."""


@dataclass(frozen=True)
class SimplicialOutcome:
    """The last point of a run."""

    x: Array
    value: float
    lower_bound: float
    stop: Stop
    iterations: int
    oracle_calls: int
    trace: Trace
    columns: tuple[VertexColumns, ...]
    """All vertices that are known, for each set."""
    slopes: tuple[Array, ...]

    @property
    def gap(self) -> float:
        return max(0.0, self.value - self.lower_bound)


@dataclass(frozen=True)
class Simplicial:
    """A conic program over the vertices so far, and one more vertex for each of its answers.

    Examples
    --------
    >>> import cvxpy as cp, networkx as nx, wdro_model as wdro
    >>> tree = wdro.sets.SpanningTree(nx.cycle_graph(4))
    >>> x = cp.Variable(4)
    >>> cost = wdro.UncertainParameter(4, samples=[[1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 1.0, 4.0]])
    >>> ball = wdro.WassersteinBall(0.5, wdro.costs.Norm(1))
    >>> loss = cp.maximum(cost @ x, 6.5)
    >>> problem = wdro.Problem(cp.Minimize(loss), [wdro.In(x, tree)], ambiguity=ball)
    >>> round(problem.solve(method="exact", solver=wdro.solvers.Simplicial()), 3)
    6.958
    """

    gap: float = 1e-4
    """Stop when value - lower bound is at most this fraction of |value|."""
    max_iterations: int = 1000
    time_limit: float | None = None
    """Seconds."""

    is_conic: ClassVar[bool] = False
    is_stochastic: ClassVar[bool] = False
    stage: ClassVar[str | None] = "simplicial"

    def __post_init__(self) -> None:
        check_positive("gap", self.gap, zero=True)
        check_count("max_iterations", self.max_iterations)
        check_time(self.time_limit)

    def describe(self, feasible: FeasibleSet | None = None) -> str:
        return f"simplicial decomposition, conic programs over vertices, relative gap {self.gap:g}"

    def run(
        self,
        master: ColumnMaster,
        sets: Sequence[FeasibleSet],
        columns: Sequence[VertexColumns],
        *,
        lower: Array | None = None,
        upper: Array | None = None,
        enough: float = np.inf,
        share: float = 0.0,
        verbose: bool = False,
        progress: bool = True,
        title: str = "simplicial",
    ) -> SimplicialOutcome:
        """Minimise from some columns of each set, within bounds on the other coordinates.

        Parameters
        ----------
        enough
            The run may end once its lower bound is at least this, or its own gap a share of
            what the bound leaves open below it.
        """
        began, trace, bound, calls = time.perf_counter(), Trace(), -np.inf, 0
        known, outcome = list(columns), None
        limit = self.time_limit
        with Display(verbose, progress, self.max_iterations, title) as display, deadline(limit):
            try:
                for t in range(self.max_iterations + 1):
                    left = seconds_left()
                    here = master.solve(known, lower, upper)
                    found = [self._ask(*ask) for ask in self._asked(master, sets, here)]
                    calls += len(sets)
                    bound = max(bound, _lower_bound(here, found))
                    fresh = [_is_new(v, c.points) for (v, _), c in zip(found, known)]
                    open_gap = enough - bound
                    settled = np.isfinite(enough) and here.value - bound <= share * open_gap
                    done = open_gap <= 0 or settled
                    stop = Stop.GAP if done else self._verdict(here.value, bound, left, t, fresh)
                    seconds = time.perf_counter() - began
                    gap = max(0.0, here.value - bound)
                    record = Record(t, seconds, here.value, gap, np.nan, np.nan, calls)
                    trace.records.append(record)
                    display.show(record, last=stop is not None)
                    outcome = SimplicialOutcome(
                        here.x,
                        here.value,
                        min(bound, here.value),
                        stop or Stop.INTERRUPT,
                        t,
                        calls,
                        trace,
                        tuple(known),
                        here.slopes,
                    )
                    if stop is not None:
                        break
                    for k, ((vertex, _), new) in enumerate(zip(found, fresh)):
                        if new:
                            known[k] = known[k].and_also(master.columns(k, vertex[None]))
            except KeyboardInterrupt:
                if outcome is None:
                    raise
            except OutOfTime:
                if outcome is None:
                    raise
                outcome = replace(outcome, stop=Stop.TIME)
            assert outcome is not None
            display.end(outcome.stop.value)
        return outcome

    def _verdict(
        self,
        value: float,
        bound: float,
        left: float | None,
        t: int,
        fresh: list[bool],
    ) -> Stop | None:
        if value - bound <= tolerance(self.gap, value):
            return Stop.GAP
        if not any(fresh):
            return Stop.STALLED
        if left is not None and left <= 0:
            return Stop.TIME
        return Stop.ITERATIONS if t == self.max_iterations else None

    def _asked(
        self, master: ColumnMaster, sets: Sequence[FeasibleSet], here: MasterAnswer
    ) -> list[Any]:
        return [
            (feasible, here.x[where], slope)
            for feasible, where, slope in zip(sets, master.blocks, here.slopes)
        ]

    def _ask(self, feasible: FeasibleSet, x: Array, slope: Array) -> tuple[Array, float]:
        """The vertex for a slope, and a lower bound on <slope, .>."""
        asked = slope
        if feasible.nonnegative_directions:
            rounding = slope > -ROUNDING * np.abs(slope).max(initial=0.0)
            asked = np.where(rounding, np.maximum(slope, 0.0), slope)
        found = certificate(feasible, x, asked)
        # Rounded slopes are larger: vertices within [0, 1] cost at most this much more.
        rounded = float((asked - slope).sum())
        return found.vertex, float(asked @ found.vertex) - found.slack - rounded


def _lower_bound(here: MasterAnswer, found: list[tuple[Array, float]]) -> float:
    return here.dual_value + sum(bound for _, bound in found)


def _is_new(vertex: Array, points: Array) -> bool:
    return bool(np.abs(points - vertex).max(axis=1).min() > SAME)


def first_columns(
    master: ColumnMaster, sets: Sequence[FeasibleSet], directions: Sequence[Array]
) -> list[VertexColumns]:
    """One vertex of each set."""
    found = []
    for k, (feasible, direction) in enumerate(zip(sets, directions)):
        if feasible.nonnegative_directions:
            direction = np.abs(direction)
        found.append(master.columns(k, feasible.vertex(direction)[None]))
    return found
