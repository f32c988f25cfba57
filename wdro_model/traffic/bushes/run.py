"""One equilibrium run on bushes, to a gap confirmed by an independent oracle."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import cvxpy as cp
import numpy as np

from wdro_model.display.bars import progress_bar
from wdro_model.solvers.driver import Stop
from wdro_model.solvers.trace import Display, Record, Trace
from wdro_model.traffic.bushes.state import Bushes

Array = np.ndarray

REACHED = "the relative gap is under the tolerance"
ROUNDED = "rounding errors leave no smaller gap"
SLOW = "the gap shrinks no further"
FINEST = 1e-13
"""Below this relative gap, rounding errors are to blame for what does not improve."""
PATIENCE, FINEST_PATIENCE = 120, 8
"""Sweeps without a gap that is 10% smaller, after which a run ends."""
STRICTER = 0.7
"""The gap to aim at, as a part of the last, where the oracle found one above the tolerance."""


class ArcObjective(Protocol):
    """An objective over link flows, the sum over the arcs of the integrals of their costs."""

    def value(self, flow: Array) -> float: ...
    def costs(self, flow: Array) -> Array: ...


@dataclass(frozen=True)
class JudgedFlow:
    """A flow, its objective, and what an all-or-nothing assignment at its costs says of it."""

    flow: Array
    value: float
    spent: float
    gap: float
    """<t, x> - <t, y>, not below 0: rounding errors can have it there."""

    @property
    def relative(self) -> float:
        return self.gap / self.spent if self.spent else 0.0


@dataclass(frozen=True)
class BushOutcome:
    """How a run ended."""

    judged: JudgedFlow
    status: str
    stop: str
    lower_bound: float
    iterations: int
    oracle_calls: int
    seconds: float
    trace: Trace


@dataclass(frozen=True)
class BushLimits:
    """When to stop: gap is relative to what is spent, or to the objective if `of_value`."""

    gap: float
    of_value: bool = False
    seconds: float | None = None
    iterations: int = 10_000

    def allowed(self, value: float, spent: float) -> float:
        """The gap as a part of what is spent."""
        return self.gap * abs(value) / spent if self.of_value and spent else self.gap


class Late(Exception):
    """The time is up."""


class BushRun:
    """Sweeps over all bushes until the gap is reached, or a limit is.

    oracle: all-or-nothing flows for costs of the arcs, independent of the bushes.
    """

    def __init__(
        self,
        bushes: Bushes,
        objective: ArcObjective,
        oracle: Callable[[Array], Array],
        limits: BushLimits,
        began: float | None = None,
    ) -> None:
        self.bushes, self.objective, self.oracle, self.limits = bushes, objective, oracle, limits
        self.began = time.perf_counter() if began is None else began
        self.trace, self.bound, self.calls = Trace(), -np.inf, 0
        self._reserve = 0.0

    def __call__(
        self, begin: Callable[[], None], verbose: bool = False, progress: bool = True
    ) -> BushOutcome:
        """The outcome; `begin` gives the bushes their first flows."""
        begin()
        # The last word has the oracle, which takes about as long as the first trees.
        self._reserve = min(self.seconds(), 0.5 * (self.limits.seconds or np.inf))
        judged, status, stop = None, cp.USER_LIMIT, ""
        title = "equilibrium"
        bar = progress_bar(title, None, unit="sweep", show=progress and not verbose, delay=3.0)
        with Display(verbose, False, None, title) as display:
            try:
                judged, status, stop = self._sweep(display, bar)
            except Late:
                stop = Stop.TIME.value
            except KeyboardInterrupt:
                stop = Stop.INTERRUPT.value
            finally:
                bar.close()
            if judged is None:
                judged = self.judge()
            status = self._status(judged, status)
            display.end(stop)
        return BushOutcome(
            judged,
            status,
            REACHED if status == cp.OPTIMAL else stop,
            max(self.bound, judged.value - judged.gap),
            len(self.trace) - 1 if len(self.trace) else 0,
            self.calls,
            self.seconds(),
            self.trace,
        )

    def judge(self) -> JudgedFlow:
        """What the oracle says of the present flows."""
        flow = self.bushes.link_flows
        costs = self.objective.costs(flow)
        spent = float(costs @ flow)
        gap = spent - float(costs @ self.oracle(costs))
        self.calls += 1
        return JudgedFlow(flow, self.objective.value(flow), spent, max(gap, 0.0))

    def seconds(self) -> float:
        return time.perf_counter() - self.began

    # -------------------------------------------------------------- parts
    def _sweep(self, display: Display, bar: Any) -> tuple[JudgedFlow, str, str]:
        """Sweeps until one is the last: the flows judged, the status and why."""
        aim, best, since = 1.0, np.inf, 0
        for iteration in range(self.limits.iterations + 1):
            gap = self.bushes.improve(self._pause)
            spent, value = self._finite(iteration)
            self.bound = max(self.bound, value - gap * spent)
            record = Record(
                iteration, self.seconds(), value, gap * spent, np.nan, np.nan, iteration + 1
            )
            self.trace.records.append(record)
            display.show(record)
            bar.set_postfix_str(f"relative gap {gap:.1e}", refresh=False)
            bar.update(1)
            allowed = self.limits.allowed(value, spent)
            if gap <= aim * allowed:
                judged = self.judge()
                if judged.relative <= allowed:
                    return judged, cp.OPTIMAL, REACHED
                aim *= STRICTER
            since += 1
            if gap < 0.9 * best:
                best, since = gap, 0
            if since >= (FINEST_PATIENCE if best < FINEST else PATIENCE):
                why = ROUNDED if best < FINEST else SLOW
                return self.judge(), cp.OPTIMAL_INACCURATE, why
            if iteration < self.limits.iterations:
                self.bushes.balance(gap, self._pause)
        return self.judge(), cp.USER_LIMIT, Stop.ITERATIONS.value

    def _finite(self, iteration: int) -> tuple[float, float]:
        """What is spent and the objective; refused where they are not finite."""
        flow = self.bushes.link_flows
        value, spent = self.objective.value(flow), self.bushes.spent
        if not (np.isfinite(value) and np.isfinite(spent)):
            costs = self.objective.costs(flow)
            arc = int(np.argmax(~np.isfinite(costs * flow)))
            raise FloatingPointError(
                f"the objective is {value} at iteration {iteration}: arc {arc} with flow "
                f"{flow[arc]:.6g} costs {costs[arc]:g}; check its capacity and power."
            )
        return spent, value

    def _pause(self) -> None:
        seconds = self.limits.seconds
        if seconds is not None and self.seconds() + self._reserve >= seconds:
            raise Late

    def _status(self, judged: JudgedFlow, status: str) -> str:
        allowed = self.limits.allowed(judged.value, judged.spent)
        return cp.OPTIMAL if judged.relative <= allowed else status
