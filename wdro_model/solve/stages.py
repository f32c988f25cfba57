"""Sampled objectives: stages on fixed draws, certified on draws that were not used to optimise."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wdro_model.objectives.dual import DualMinimum
from wdro_model.objectives.integration.inner_integral import Integration
from wdro_model.objectives.integration.sampled import whole_blocks
from wdro_model.objectives.smoothed_risk import Smoothed
from wdro_model.sets.deadlines import OutOfTime, deadline
from wdro_model.solve.notes import HEAVY
from wdro_model.solve.options import FirstOrder, Recipe
from wdro_model.solve.scales import first_dual
from wdro_model.solvers import Outcome, Stop, Trace
from wdro_model.solvers.directions import ActiveSet
from wdro_model.solvers.driver import State, tolerance
from wdro_model.solvers.objective import Array, Point

REPORTED = 128
"""Draws of a sample for a value that is reported, at least, where they are few numbers in all."""
AUDITS = 3
"""Evaluations of a decision, each with the modes that the audits before have found."""
REPORT_STAGE = 2**62 + 1
"""Streams of random numbers from here on are for values that are reported."""
STAGES = 6
FIRST_DRAWS = 20
"""Draws that fit each point need not be many to begin with."""
SHARE = 0.5
"""Of the tolerance, for the gap of a stage; the standard error has the rest."""
LEAST = 0.1
"""Of the tolerance, that draws aim at where the gap leaves less."""
HIDDEN = 0.25
"""Draws do not push their error below this share of one that they cannot reduce."""
PATIENCE, CREEP = 8, 0.01
"""A stage ends when so many iterations gain less than this share of the tolerance."""
STAGE_ENTRIES, MOST_DRAWS = 2**26, 2**20
"""Draws grow from stage to stage up to so many numbers in all, and draws of a sample."""


@dataclass(frozen=True)
class Result:
    """A run, and the point that is reported for it."""

    outcome: Outcome
    point: Point
    gap: float
    same_objective: bool
    """Was the reported point taken on the objective that was optimised?"""


@dataclass(frozen=True)
class StageResult:
    """A decision with its certificate on draws of its own."""

    x: Array
    point: Point
    gap: float
    dual: float
    active: ActiveSet | None

    def error(self) -> float:
        """Standard error of the value, without the part that more draws do not reduce."""
        d = self.point.diagnostics
        assert d is not None
        return float(np.sqrt(max(d.standard_error**2 - d.missed**2, 0.0)))

    def heavy(self) -> bool:
        """Do the largest weights say that errors cannot be told from these draws?"""
        return self.point.diagnostics is not None and self.point.diagnostics.heavy > HEAVY

    def missed(self) -> float:
        """The error that more draws do not reduce."""
        d = self.point.diagnostics
        assert d is not None
        return d.missed


def run_stages(
    recipe: Recipe,
    solver: FirstOrder,
    start: Array,
    run: Callable[..., Outcome],
    began: float,
) -> Result:
    """Runs on random numbers that are fixed for a stage, each judged on others.

    A stage ends when the gap on its draws is small; the value is then estimated again on draws that
    were used for nothing else. It is all over when the gap and the standard error are together
    within the tolerance, or at a limit; otherwise the next stage goes on from there with more
    draws.
    """
    draws, active = min(solver.samples, FIRST_DRAWS), None
    most = max(draws, min(MOST_DRAWS, STAGE_ENTRIES // max(1, recipe.model.rows.size)))
    x, dual = start, first_dual(recipe.model, start)
    known = recipe.objective(1, 0).integration
    room = None if solver.time_limit is None else began + solver.time_limit - time.perf_counter()
    best: StageResult | None = None
    runs: list[Outcome] = []
    stop = Stop.STALLED
    try:
        with deadline(room):
            for stage in range(STAGES):
                stage_began = time.perf_counter()
                objective = recipe.objective(draws, stage)
                objective.integration.use_findings(known.findings(), dual)
                objective.minimum = DualMinimum(objective.integration.settle_dual(x, dual), np.nan)
                standstill = Standstill(solver.gap)
                limited = within(solver, began, sum(run.iterations for run in runs))
                limited = replace(
                    limited, gap=SHARE * solver.gap, callbacks=(*solver.callbacks, standstill)
                )
                outcome = run(objective, x, solver=limited, active_set=active)
                if outcome.stop is Stop.CALLBACK and standstill.reached:
                    outcome = replace(outcome, stop=Stop.STALLED)
                runs.append(outcome)
                x, active = outcome.x, outcome.active_set
                dual = dual if outcome.dual is None else outcome.dual
                best, known = judged(recipe, draws, outcome, dual, REPORT_STAGE + stage, known)
                stop = outcome.stop
                wanted = tolerance(solver.gap, best.point.value, recipe.epsilon)
                left = wanted - max(best.gap, 0.0)
                allowed = max(left, HIDDEN * best.missed(), LEAST * wanted)
                done = outcome.stop is Stop.GAP and best.error() <= allowed and not best.heavy()
                if done or draws == most or outcome.stop not in (Stop.GAP, Stop.STALLED):
                    break
                # A stalled line search is Monte Carlo error between values and gradients.
                least = 4.0 if outcome.stop is Stop.STALLED or best.heavy() else 1.5
                growth = float(
                    np.clip(1.2 * (best.error() / max(allowed, 1e-300)) ** 2, least, 16.0)
                )
                growth = min(growth, room_for(solver.time_limit, began, stage_began))
                if growth < 1.0:
                    stop = Stop.TIME
                    break
                draws = min(whole_blocks(draws * growth), most)
    except OutOfTime:
        stop = Stop.TIME
        best = best or hurried(recipe, x, dual, active)
    except KeyboardInterrupt:
        stop = Stop.INTERRUPT
        best = best or StageResult(x, unseen(x, active).point, np.inf, dual, active)
    assert best is not None
    return Result(summary(best, runs, stop, began), best.point, best.gap, False)


def room_for(limit: float | None, began: float, stage_began: float) -> float:
    """How many times as long as the last stage the next may take."""
    if limit is None:
        return np.inf
    now = time.perf_counter()
    return (limit - (now - began)) / max(now - stage_began, 1e-3)


class Standstill:
    """Asks a stage to stop that creeps: its draws have told all they know."""

    def __init__(self, gap: float) -> None:
        self._least = CREEP * gap
        self._values: list[float] = []
        self.reached = False

    def __call__(self, state: State) -> bool:
        self._values.append(state.value)
        if len(self._values) > PATIENCE:
            before, now = self._values[-1 - PATIENCE], min(self._values[-PATIENCE:])
            self.reached = before - now < self._least * abs(now)
        return self.reached


def judged(
    recipe: Recipe,
    draws: int,
    outcome: Outcome,
    dual: float,
    stage: int,
    known: Integration,
) -> tuple[StageResult, Integration]:
    """The decision of a run, evaluated on draws that are used for nothing else.

    Draws are made for each decision: the gap in x is that of the run, whose draws fit the decision
    as well as these. The dual is minimised again, and its residual is part of the gap. Where an
    audit finds modes that the draws miss, they are evaluated again with the modes known.
    """
    fitting = STAGE_ENTRIES // (16 * max(1, recipe.model.rows.size))
    more = max(draws, min(REPORTED, fitting))
    objective = recipe.objective(more, stage)
    objective.integration.use_findings(known.findings(), dual)
    for _ in range(AUDITS):
        objective.minimum = DualMinimum(dual, np.nan)
        plain = objective.evaluate(outcome.x)
        point = audited(objective, outcome.x, plain)
        assert point.dual is not None
        assert point.diagnostics is not None
        if point.diagnostics.missed <= HIDDEN * point.diagnostics.standard_error:
            break
        dual = point.dual
    assert point.dual is not None
    gap = outcome.gap + point.dual_residual
    found = StageResult(outcome.x, point, gap, point.dual, outcome.active_set)
    return found, objective.integration


def hurried(recipe: Recipe, x: Array, dual: float, active: ActiveSet | None) -> StageResult:
    """A decision whose evaluation took too long: one look at most, at the known dual; no gap."""
    try:
        point = recipe.objective(FIRST_DRAWS, REPORT_STAGE).evaluate(x, dual)
    except OutOfTime:
        point = unseen(x, active).point
    return StageResult(x, point, np.inf, dual, active)


def unseen(x: Array, active: ActiveSet | None, stop: Stop = Stop.TIME) -> Outcome:
    """A decision whose evaluation took too long: there is neither a value nor a gap."""
    nothing = Point(np.nan, np.full(len(x), np.nan))
    return Outcome(x, nothing, np.inf, -np.inf, stop, 0, 0.0, 0, Trace(), None, active)


def audited(objective: Smoothed, x: Array, point: Point) -> Point:
    """The point with the error of what its draws may have missed, where the strategy can tell."""
    if point.diagnostics is None or point.dual is None:
        return point
    found = objective.integration.audit(point.diagnostics, x, point.dual)
    return replace(point, diagnostics=found)


def left(solver: Any, began: float) -> float | None:
    """What is left of the time of a solver; None without a limit."""
    if solver.time_limit is None:
        return None
    return max(1e-9, solver.time_limit - (time.perf_counter() - began))


def within(solver: Any, began: float, used: int = 0) -> Any:
    """The solver with what is left of its time and iterations."""
    limits: dict[str, Any] = {"max_iterations": max(0, solver.max_iterations - used)}
    if solver.time_limit is not None:
        limits["time_limit"] = left(solver, began)
    return replace(solver, **limits)


def dual_share(point: Point, bound: float) -> float:
    """What a dual variable on [0, bound] adds to the gap: its best move."""
    if point.dual is None or point.dual_gradient is None:
        return 0.0
    return max(point.dual_gradient * point.dual, point.dual_gradient * (point.dual - bound), 0.0)


def summary(best: StageResult, runs: list[Outcome], stop: Stop, began: float) -> Outcome:
    """All stages as one run that ends at the best decision."""
    trace = Trace()
    for run in runs:
        trace.records.extend(run.trace.records)
    return Outcome(
        best.x,
        best.point,
        best.gap,
        -np.inf,
        stop,
        sum(run.iterations for run in runs),
        time.perf_counter() - began,
        sum(run.oracle_calls for run in runs),
        trace,
        best.dual,
        best.active,
    )


def after(earlier: list[Outcome], last: Outcome) -> Outcome:
    """The last run with the iterations, oracle calls and records of all."""
    if not earlier:
        return last
    runs = [*earlier, last]
    trace = Trace()
    for run in runs:
        trace.records.extend(run.trace.records)
    return replace(
        last,
        iterations=sum(run.iterations for run in runs),
        oracle_calls=sum(run.oracle_calls for run in runs),
        seconds=sum(run.seconds for run in runs),
        trace=trace,
    )
