"""Solves of the smoothed objective: one run, a run after a cheaper one, or stages of more draws.

Without Monte Carlo error one run is enough, after a run on a cheaper objective where there is one.
A strategy whose draws fit the decision runs in stages of more and more draws. All other draws are
made once, or anew for each step. Sampled values are estimated again on draws that were used for
nothing else; these estimates and their gaps are what is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from cvxpy import settings

from wdro_model.model import RobustModel
from wdro_model.objectives.cvar_thresholds import at_quantiles
from wdro_model.objectives.dual import DualMinimum
from wdro_model.objectives.integration.inner_integral import EMPIRICAL, ROBUST, Integration
from wdro_model.objectives.integration.sampled import whole_blocks
from wdro_model.objectives.smoothed_risk import Smoothed, value_scale
from wdro_model.sets.deadlines import OutOfTime, deadline
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.solve import notes
from wdro_model.solve.certify import Clock, Solution, evaluations, report
from wdro_model.solve.first_order import display, first_point, reset_oracle, with_thresholds
from wdro_model.solve.notes import (
    is_reliable,
    middle,
    overreaches,
    refuse_growth_at,
    smoothing_notes,
)
from wdro_model.solve.options import FirstOrder, Options, dual_rule, warm_active_set
from wdro_model.solve.plan import Plan
from wdro_model.solve.scales import (
    LIMITS,
    SmoothingConfig,
    cheaper_objective,
    dual_bound,
    empirical_decision,
    first_dual,
    prepare,
    robust_decision,
)
from wdro_model.solvers import ActiveSet, Outcome, Stop, Trace
from wdro_model.solvers.driver import State, tolerance
from wdro_model.solvers.features import Feature
from wdro_model.solvers.gradients import Tracking
from wdro_model.solvers.objective import Array, Point, certificate


@dataclass(frozen=True)
class Tolerances:
    """Draws of stages, and how gaps, errors and time are shared between runs and judgements."""

    cheaper_gap: float = 0.8
    """Gap on a cheaper objective, as a share of the tolerance; the rest is for its error."""
    judging_time: float = 0.2
    """Share of the time in which a decision is judged on fresh draws."""
    halvings: int = 6
    """Times that a start is moved half of the way to the middle of the set, at most."""
    stages: int = 6
    """Stages of a solve, at most."""
    first_draws: int = 20
    """Draws per sample of the first stage, at most: draws that fit each point need not be many."""
    max_draws: int = 2**20
    """Draws per sample of a stage, at most."""
    stage_entries: int = 2**26
    """Numbers in all the draws of a stage, at most."""
    reported_draws: int = 128
    """Draws per sample for a value that is reported, at least, where they are few numbers."""
    audits: int = 3
    """Evaluations of a decision at most, each with the modes that audits before have found."""
    stage_gap: float = 0.5
    """Gap of a stage, as a share of the tolerance; the standard error has the rest."""
    least_error: float = 0.1
    """Share of the tolerance that draws aim at where the gap leaves less."""
    missed_share: float = 0.25
    """Draws do not push their error below this share of the error that they cannot reduce."""
    patience: int = 8
    """Iterations after which a stage ends that has gained next to nothing in them."""
    creep: float = 0.01
    """Gain in these iterations that counts as nothing, as a share of the tolerance."""


TOLERANCES = Tolerances()
REPORT_STAGE = 2**62 + 1
"""Streams of random numbers from here on are for values that are reported."""
UNPREPARED = (
    "the time was over before the decision of ERM was found, from which epsilon is derived: the "
    "decision is where the solve would have begun; give a longer time_limit, or epsilon=."
)


@dataclass(frozen=True)
class Result:
    """A run, and the point and gap that are reported for it."""

    outcome: Outcome
    point: Point
    gap: float
    same_objective: bool = False
    """Was the reported point taken on the objective that was optimised?"""

    def stop(self, allowed: float, reliable: bool) -> Stop:
        """Why the run ended; a small gap on its own draws proves neither gap nor error on others.

        allowed: the gap that the tolerance allows.
        """
        stop = self.outcome.stop
        if stop is not Stop.GAP or self.same_objective:
            return stop
        if self.gap > allowed:
            return Stop.DRAWS
        return stop if reliable else Stop.NOISE


def run_smoothed(
    model: RobustModel, chosen: Plan, solver: FirstOrder, options: Options
) -> Solution:
    """Minimise the smoothed objective and report its value at the decision."""
    clock, calls_before = Clock(solver.time_limit), model.feasible.oracle().calls
    oracle, rng = reset_oracle(model, solver), np.random.default_rng(options.seed)
    try:
        config = prepare(model, solver, options)
    except OutOfTime:
        x = first_point(model, None, options, rng)
        return _unprepared_solution(model, chosen, solver, x, clock)
    objective = config.objective(solver.samples, 0)
    try:
        with deadline(clock.seconds_left):
            start = choose_start(config, objective, solver, options, rng)
    except OutOfTime:
        try:  # the decision of ERM may be known
            start = empirical_decision(model, options)
        except OutOfTime:
            start = first_point(model, None, options, rng)
    start, bound = at_quantiles(model, start), None
    if dual_rule(solver, options) == "vertex":
        bound = dual_bound(config, solver, oracle, start)
    run = SmoothedRun(config, solver, oracle, rng, clock, bound, display(options, chosen))
    full = Feature.FULL_GRADIENTS in solver.features
    if full and objective.integration.exact:
        result = run.exactly(objective, start, warm_active_set(model, options.start))
    elif full and objective.integration.adapts and bound is None:
        result = run.in_stages(start)
    else:
        result = run.on_fixed_draws(objective, start)
    outcome, point = result.outcome, result.point
    refuse_growth_at(model, outcome.x)
    scale = value_scale(config.epsilon, model.radius, point.dual)
    allowed = tolerance(solver.gap, point.value, scale)
    reliable = is_reliable(point, result.gap, model.radius, allowed) and not np.isnan(point.value)
    reliable &= not overreaches(model, point, config.sigma, outcome.x)
    return report(
        model,
        chosen,
        solver,
        replace(outcome, stop=result.stop(allowed, reliable)),
        point,
        result.gap,
        clock,
        convex=config.convex,
        calls_before=calls_before,
        same_objective=result.same_objective,
        reliable=reliable,
        likely=objective.likely_scenarios(outcome.x),
        epsilon=config.epsilon,
        sigma=config.sigma,
        integration=objective.integration.describe(),
        dual_bound=bound,
        diagnostics=point.diagnostics,
        notes=smoothing_notes(model, point, bound, config.sigma, outcome.x),
    )


def _unprepared_solution(
    model: RobustModel, chosen: Plan, solver: FirstOrder, x: Array, clock: Clock
) -> Solution:
    """A decision without a value: there was no time to derive epsilon."""
    return Solution(
        method=chosen.method,
        status=settings.USER_LIMIT,
        value=np.nan,
        decision=model.feasible.layout.split(x),
        solver=solver.describe(model.feasible.oracle()),
        seconds=clock.seconds,
        stop=Stop.TIME.value,
        convex=model.convex_in_decision,
        notes=(UNPREPARED,),
        **evaluations(model, x, late=True),
    )


# ------------------------------------------------------------------ where a run starts
def choose_start(
    config: SmoothingConfig,
    objective: Smoothed,
    solver: FirstOrder,
    options: Options,
    rng: np.random.Generator,
) -> Array:
    """The user's start, else the one that the strategy asks for; a good decision if it samples."""
    model, strategy = config.model, objective.integration
    if options.start is not None or Feature.FULL_GRADIENTS not in solver.features:
        return first_point(model, None, options, rng)
    if strategy.exact and strategy.start not in (EMPIRICAL, ROBUST):
        return first_point(model, cheaper_objective(objective) or objective, options, rng)
    if not strategy.exact or strategy.start == ROBUST:
        robust = robust_decision(model, options)
        if robust is not None:
            return robust
    x = empirical_decision(model, options)
    if strategy.exact and strategy.start == ROBUST:
        objective.minimum = DualMinimum(first_dual(model, x), np.nan)
        return withdraw(objective, x, middle(model))
    return x


def withdraw(objective: Smoothed, x: Array, centre: Array) -> Array:
    """The decision, moved towards the middle of the set while that helps, judged by some samples.

    A decision that fits the samples too well, such as a logistic regression that separates them, is
    far from a robust one, and Frank-Wolfe needs many steps to come back.
    """
    batch = np.arange(objective.size)[:: -(-objective.size // LIMITS.first_samples)]
    value = objective.value_over(x, batch, seed=0)
    for _ in range(TOLERANCES.halvings):
        nearer = 0.5 * (x + centre)
        nearer_value = objective.value_over(nearer, batch, seed=0)
        if not nearer_value < value:
            break
        x, value = nearer, nearer_value
    return x


# ------------------------------------------------------------------ runs
@dataclass(frozen=True)
class SmoothedRun:
    """The parts that all runs of one solve share."""

    config: SmoothingConfig
    solver: FirstOrder
    oracle: FeasibleSet
    rng: np.random.Generator
    clock: Clock
    dual_bound: float | None
    """The upper end of the dual's interval; None where the dual is minimised exactly."""
    shown: dict[str, Any]
    """Arguments of a run that say what it prints."""

    def minimise(
        self, objective: Smoothed, start: Array, solver: FirstOrder, **more: Any
    ) -> Outcome:
        """A run of the solver on an objective."""
        arguments = {"rng": self.rng, "dual_bound": self.dual_bound, **self.shown, **more}
        return with_thresholds(objective, solver.run(objective, self.oracle, start, **arguments))

    # -------------------------------------------------------------- without Monte Carlo error
    def exactly(self, objective: Smoothed, start: Array, active: ActiveSet | None) -> Result:
        """A run without Monte Carlo error, after one on a cheaper objective where there is one."""
        runs: list[Outcome] = []
        if (cheaper := cheaper_objective(objective)) is not None:
            limited = self.clock.limited(self.solver)
            limited = replace(limited, gap=TOLERANCES.cheaper_gap * self.solver.gap)
            runs.append(self._unless_stopped(cheaper, start, limited, active))
            start, active = runs[0].x, runs[0].active_set
            objective.minimum = cheaper.minimum
        interrupted = any(run.stop is Stop.INTERRUPT for run in runs)
        used = self.solver.max_iterations if interrupted else sum(r.iterations for r in runs)
        limited = self.clock.limited(self.solver, used=used)
        last = self._unless_stopped(objective, start, limited, active)
        if interrupted:  # the last run has only judged the point that was reached
            last = replace(last, stop=Stop.INTERRUPT)
        return Result(_join(runs, last), last.point, last.gap, same_objective=True)

    def _unless_stopped(
        self, objective: Smoothed, start: Array, solver: FirstOrder, active: ActiveSet | None
    ) -> Outcome:
        """A run, or its start where it was stopped before its first evaluation was done."""
        with self.clock.until_stopped():
            return self.minimise(objective, start, solver, active_set=active)
        return unevaluated_outcome(start, active, self.clock.stop)

    # -------------------------------------------------------------- draws that are made once
    def on_fixed_draws(self, objective: Smoothed, start: Array) -> Result:
        """A run on one set of draws, or on fresh draws for each step, judged on others."""
        more: dict[str, Any] = {}
        if Feature.FULL_GRADIENTS not in self.solver.features and self.dual_bound is None:
            model = self.config.model
            more["tracking"] = Tracking(first_dual(model, start), model.radius)
        outcome = unevaluated_outcome(start, None)
        with self.clock.until_stopped():
            limited = self.clock.limited(self.solver, share=1.0 - TOLERANCES.judging_time)
            outcome = self.minimise(objective, start, limited, **more)
            return self.judge(outcome)
        stop, nothing = self.clock.stop, unevaluated_outcome(outcome.x, None).point
        return Result(replace(outcome, stop=stop), nothing, np.inf)

    def judge(self, outcome: Outcome) -> Result:
        """The decision of a run, evaluated in full on draws that were not used to find it."""
        draws = self.config.report_draws(self.solver.samples)
        objective = self.config.objective(draws, REPORT_STAGE)
        x, dual, bound = outcome.x, outcome.dual, self.dual_bound
        if bound is None and (objective.integration.exact or objective.integration.adapts):
            # The dual of the last batch is not that of all samples.
            objective.minimum = None if dual is None else DualMinimum(dual, np.nan)
            dual = None
        elif dual:
            objective.integration.refresh(x, dual)
        point = objective.evaluate(x, dual)
        gap = certificate(self.oracle, x, point.gradient).gap
        if bound is None and dual is not None:
            point = replace(point, dual_residual=objective.residual(x, point))
        share = point.dual_residual if bound is None else dual_gap(point, bound)
        return Result(outcome, audited_point(objective, x, point), gap + share)

    # -------------------------------------------------------------- draws in stages
    def in_stages(self, start: Array) -> Result:
        """Runs on random numbers that are fixed for a stage, each judged on others.

        A stage ends when the gap on its draws is small; the value is then estimated again on draws
        that were used for nothing else. The solve ends when the gap and the standard error are
        together within the tolerance, or at a limit; otherwise the next stage goes on from there
        with more draws.
        """
        stages = _Stages(self, start)
        with self.clock.until_stopped(), deadline(self.clock.seconds_left):
            stages.run()
        best, stop = stages.best, self.clock.stop or stages.stop
        if best is None:
            best = stages.unjudged(stop)
        outcome = replace(
            _join(stages.runs[:-1], stages.runs[-1] if stages.runs else best.outcome),
            x=best.outcome.x,
            point=best.point,
            gap=best.gap,
            lower_bound=-np.inf,
            stop=stop,
            seconds=self.clock.seconds,
            dual=best.point.dual,
            active_set=best.outcome.active_set,
        )
        return Result(outcome, best.point, best.gap)


class _Stages:
    """The state of a solve in stages."""

    def __init__(self, run: SmoothedRun, start: Array) -> None:
        self.parts, self.config, self.solver = run, run.config, run.solver
        numbers = max(1, self.config.model.rows.size)
        self.draws = min(self.solver.samples, TOLERANCES.first_draws)
        self.max_draws = min(TOLERANCES.max_draws, TOLERANCES.stage_entries // numbers)
        self.max_draws = max(self.draws, self.max_draws)
        self.x = start
        self.active: ActiveSet | None = None
        self.dual = first_dual(self.config.model, start)
        self.strategy: Integration = self.config.objective(1, 0).integration
        """The strategy with the modes that were found last."""
        self.runs: list[Outcome] = []
        self.best: Result | None = None
        """The last decision that was judged."""
        self.stop = Stop.STALLED

    def run(self) -> None:
        """Run stages until the result is good enough or a limit is reached."""
        clock = self.parts.clock
        for stage in range(TOLERANCES.stages):
            began = clock.seconds
            outcome = self.minimise(stage)
            self.best = self.judge(outcome, REPORT_STAGE + stage)
            self.stop = outcome.stop
            diagnostics = self.best.point.diagnostics
            assert diagnostics is not None
            error = np.sqrt(max(diagnostics.standard_error**2 - diagnostics.missed**2, 0.0))
            heavy = diagnostics.heavy > notes.TOLERANCES.heavy_samples
            point = self.best.point
            scale = value_scale(self.config.epsilon, self.config.model.radius, point.dual)
            wanted = tolerance(self.solver.gap, point.value, scale)
            allowed = max(
                wanted - max(self.best.gap, 0.0),
                TOLERANCES.missed_share * diagnostics.missed,
                TOLERANCES.least_error * wanted,
            )
            done = outcome.stop is Stop.GAP and error <= allowed and not heavy
            goes_on = outcome.stop in (Stop.GAP, Stop.STALLED) and self.draws < self.max_draws
            if done or not goes_on:
                return
            # The error falls as 1/sqrt(draws): (error / allowed)^2 times as many draws, and a few
            # more. A stalled line search means Monte Carlo error between values and gradients.
            least = 4.0 if outcome.stop is Stop.STALLED or heavy else 1.5
            growth = np.clip(1.2 * (error / max(allowed, 1e-300)) ** 2, least, 16.0)
            if (left := clock.seconds_left) is not None:  # as many times as long as this stage
                growth = min(growth, left / max(clock.seconds - began, 1e-3))
            if growth < 1.0:
                self.stop = Stop.TIME
                return
            self.draws = min(whole_blocks(self.draws * float(growth)), self.max_draws)

    def minimise(self, stage: int) -> Outcome:
        """The run of a stage, from the decision of the last."""
        objective = self.config.objective(self.draws, stage)
        objective.integration.use_findings(self.strategy.findings(), self.dual)
        dual = objective.integration.settle_dual(self.x, self.dual)
        objective.minimum = DualMinimum(dual, np.nan)
        standstill = Standstill(self.solver.gap)
        limited = self.parts.clock.limited(self.solver, used=sum(r.iterations for r in self.runs))
        limited = replace(
            limited,
            gap=TOLERANCES.stage_gap * self.solver.gap,
            callbacks=(*self.solver.callbacks, standstill),
        )
        outcome = self.parts.minimise(objective, self.x, limited, active_set=self.active)
        if outcome.stop is Stop.CALLBACK and standstill.reached:
            outcome = replace(outcome, stop=Stop.STALLED)
        self.runs.append(outcome)
        self.x, self.active = outcome.x, outcome.active_set
        self.dual = self.dual if outcome.dual is None else outcome.dual
        return outcome

    def judge(self, outcome: Outcome, stage: int) -> Result:
        """The decision of a run, evaluated on draws that are used for nothing else.

        Draws are made for each decision: the gap in x is that of the run, whose draws fit the
        decision as well as these. The dual is minimised again, and its residual is part of the gap.
        Where an audit finds modes that the draws miss, they are evaluated again with these modes.
        """
        numbers = 16 * max(1, self.config.model.rows.size)
        fitting = min(TOLERANCES.reported_draws, TOLERANCES.stage_entries // numbers)
        objective = self.config.objective(max(self.draws, fitting), stage)
        objective.integration.use_findings(self.strategy.findings(), self.dual)
        dual = self.dual
        for _ in range(TOLERANCES.audits):
            objective.minimum = DualMinimum(dual, np.nan)
            point = audited_point(objective, outcome.x, objective.evaluate(outcome.x))
            assert point.dual is not None
            assert point.diagnostics is not None
            dual, diagnostics = point.dual, point.diagnostics
            if diagnostics.missed <= TOLERANCES.missed_share * diagnostics.standard_error:
                break
        self.strategy = objective.integration
        return Result(outcome, point, outcome.gap + point.dual_residual)

    def unjudged(self, stop: Stop) -> Result:
        """The last decision with a single evaluation at the known dual, if there is time for it."""
        outcome = unevaluated_outcome(self.x, self.active, stop)
        point = outcome.point
        if stop is Stop.TIME:
            try:
                objective = self.config.objective(TOLERANCES.first_draws, REPORT_STAGE)
                point = objective.evaluate(self.x, self.dual)
            except OutOfTime:
                pass
        return Result(outcome, point, np.inf)


class Standstill:
    """A callback that stops a stage whose value hardly falls: its draws tell no more."""

    def __init__(self, gap: float) -> None:
        self._least = TOLERANCES.creep * gap
        self._values: list[float] = []
        self.reached = False

    def __call__(self, state: State) -> bool:
        self._values.append(state.value)
        steps = TOLERANCES.patience
        if len(self._values) > steps:
            before, now = self._values[-1 - steps], min(self._values[-steps:])
            self.reached = before - now < self._least * abs(now)
        return self.reached


# ------------------------------------------------------------------ parts of a judgement
def unevaluated_outcome(x: Array, active: ActiveSet | None, stop: Stop | None = None) -> Outcome:
    """A decision that there was no time to evaluate: there is neither a value nor a gap."""
    nothing, stop = Point(np.nan, np.full(len(x), np.nan)), stop or Stop.TIME
    return Outcome(x, nothing, np.inf, -np.inf, stop, 0, 0.0, 0, Trace(), None, active)


def audited_point(objective: Smoothed, x: Array, point: Point) -> Point:
    """The point with the error of what its draws may have missed, where the strategy can tell."""
    if point.diagnostics is None or point.dual is None:
        return point
    audit: Callable[..., Any] = objective.integration.audit
    return replace(point, diagnostics=audit(point.diagnostics, x, point.dual))


def dual_gap(point: Point, bound: float) -> float:
    """The share of the gap that a dual variable on [0, bound] adds: its best move."""
    if point.dual is None or point.dual_gradient is None:
        return 0.0
    return max(point.dual_gradient * point.dual, point.dual_gradient * (point.dual - bound), 0.0)


def _join(earlier: list[Outcome], last: Outcome) -> Outcome:
    """The last run with the iterations, oracle calls and records of all."""
    runs, trace = [*earlier, last], Trace()
    for run in runs:
        trace.records.extend(run.trace.records)
    return replace(
        last,
        iterations=sum(run.iterations for run in runs),
        oracle_calls=sum(run.oracle_calls for run in runs),
        seconds=sum(run.seconds for run in runs),
        trace=trace,
    )
