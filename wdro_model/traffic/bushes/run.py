"""An equilibrium run on bushes, to a gap that an independent oracle confirms."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import cvxpy as cp
import numpy as np

from wdro_model.display.bars import progress_bar
from wdro_model.solve.certify import Solution
from wdro_model.solve.options import Options
from wdro_model.solvers.driver import Stop
from wdro_model.solvers.trace import Display, Record, Trace
from wdro_model.traffic.bushes.state import Bushes

Array = np.ndarray

REACHED = "the relative gap is under the tolerance"
ROUNDED = "rounding errors leave no smaller gap"
SLOW = "the gap shrinks no further"
FINEST_GAP = 1e-13
"""Below this relative gap, rounding errors are to blame for what does not improve."""
PATIENCE, FINEST_PATIENCE = 120, 8
"""Sweeps without a gap that is 10% smaller, after which a run ends; the second below FINEST_GAP."""
STRICTER = 0.7
"""The gap to aim at, as a part of the last, where the oracle found one above the tolerance."""
MOST_SWEEPS = 10_000


class LinkObjective(Protocol):
    """An objective over link flows, the sum over the arcs of the integrals of their costs."""

    def value(self, flow: Array) -> float: ...
    def costs(self, flow: Array) -> Array: ...


@dataclass(frozen=True)
class JudgedFlow:
    """A flow x, its objective and cost <t, x>, and its gap <t, x> - <t, y>, y all-or-nothing at t.

    Rounding errors can have the gap below 0: it is then 0.
    """

    flow: Array
    value: float
    spent: float
    gap: float

    @property
    def relative_gap(self) -> float:
        return self.gap / self.spent if self.spent else 0.0


@dataclass(frozen=True)
class BushLimits:
    """The gap to reach, relative to <t, x> or, if `of_value`, to the objective; and seconds."""

    gap: float
    of_value: bool = False
    seconds: float | None = None

    def allowed_gap(self, value: float, spent: float) -> float:
        """The gap as a part of what is spent."""
        return self.gap * abs(value) / spent if self.of_value and spent else self.gap


class OutOfTime(Exception):
    """The time of the run is up."""


class BushRun:
    """Sweeps over all bushes until the gap is reached, or a limit is.

    oracle: all-or-nothing flows for costs of the arcs, independent of the bushes;
    began: when the time of the run began to count.
    """

    def __init__(
        self,
        bushes: Bushes,
        objective: LinkObjective,
        oracle: Callable[[Array], Array],
        limits: BushLimits,
        began: float,
    ) -> None:
        self.bushes, self.objective, self.oracle, self.limits = bushes, objective, oracle, limits
        self.began = began
        self.trace, self.bound, self.calls = Trace(), -np.inf, 0
        self._reserve = 0.0

    def solve(self, plant: Callable[[], None], options: Options) -> Solution:
        """The equilibrium as a solution; `plant` gives the bushes their first flows."""
        plant()
        # The oracle has the last word, which takes about as long as the first trees.
        self._reserve = min(self._seconds(), 0.5 * (self.limits.seconds or np.inf))
        judged, status, stop = None, cp.USER_LIMIT, ""
        title = "equilibrium"
        show = options.progress and not options.verbose
        bar = progress_bar(title, None, unit="sweep", show=show, delay=3.0)
        with Display(options.verbose, False, None, title) as display:
            try:
                judged, status, stop = self._sweep(display, bar)
            except OutOfTime:
                stop = Stop.TIME.value
            except KeyboardInterrupt:
                stop = Stop.INTERRUPT.value
            finally:
                bar.close()
            judged = self._judge() if judged is None else judged
            if judged.relative_gap <= self.limits.allowed_gap(judged.value, judged.spent):
                status = cp.OPTIMAL
            display.end(stop)
        return Solution(
            method="erm",
            status=status,
            value=judged.value,
            decision={cp.Variable(judged.flow.size, name="flow"): judged.flow},
            solver=f"bushes (algorithm B), relative gap {self.limits.gap:g}",
            seconds=self._seconds(),
            stop=REACHED if status == cp.OPTIMAL else stop,
            convex=True,
            iterations=max(len(self.trace) - 1, 0),
            oracle_calls=self.calls,
            gap=judged.gap,
            lower_bound=max(self.bound, judged.value - judged.gap),
            empirical_value=judged.value,
            trace=self.trace,
        )

    # -------------------------------------------------------------- parts
    def _judge(self) -> JudgedFlow:
        """The present flows, judged by the oracle."""
        flow = self.bushes.link_flows
        costs = self.objective.costs(flow)
        spent = float(costs @ flow)
        gap = spent - float(costs @ self.oracle(costs))
        self.calls += 1
        return JudgedFlow(flow, self.objective.value(flow), spent, max(gap, 0.0))

    def _sweep(self, display: Display, bar: Any) -> tuple[JudgedFlow, str, str]:
        """Sweep until the run ends; returns the flows judged, the status and the reason."""
        aim, best, since = 1.0, np.inf, 0
        for iteration in range(MOST_SWEEPS + 1):
            gap = self.bushes.improve(self._pause)
            spent, value = self.bushes.spent, self._value(iteration)
            self.bound = max(self.bound, value - gap * spent)
            record = Record(
                iteration, self._seconds(), value, gap * spent, np.nan, np.nan, iteration + 1
            )
            self.trace.records.append(record)
            display.show(record)
            bar.set_postfix_str(f"relative gap {gap:.1e}", refresh=False)
            bar.update(1)
            allowed = self.limits.allowed_gap(value, spent)
            if gap <= aim * allowed:
                judged = self._judge()
                if judged.relative_gap <= allowed:
                    return judged, cp.OPTIMAL, REACHED
                aim *= STRICTER
            since += 1
            if gap < 0.9 * best:
                best, since = gap, 0
            if since >= (FINEST_PATIENCE if best < FINEST_GAP else PATIENCE):
                why = ROUNDED if best < FINEST_GAP else SLOW
                return self._judge(), cp.OPTIMAL_INACCURATE, why
            if iteration < MOST_SWEEPS:
                self.bushes.balance(gap, self._pause)
        return self._judge(), cp.USER_LIMIT, Stop.ITERATIONS.value

    def _value(self, iteration: int) -> float:
        """The objective; refused where it or the costs are not finite."""
        flow = self.bushes.link_flows
        value = self.objective.value(flow)
        if not (np.isfinite(value) and np.isfinite(self.bushes.spent)):
            costs = self.objective.costs(flow)
            arc = int(np.argmax(~np.isfinite(costs * flow)))
            raise FloatingPointError(
                f"the objective is {value} at iteration {iteration}: arc {arc} with flow "
                f"{flow[arc]:.6g} costs {costs[arc]:g}; check its capacity and power."
            )
        return value

    def _seconds(self) -> float:
        return time.perf_counter() - self.began

    def _pause(self) -> None:
        """Raise OutOfTime where only the time for the oracle's last word is left."""
        seconds = self.limits.seconds
        if seconds is not None and self._seconds() + self._reserve >= seconds:
            raise OutOfTime
