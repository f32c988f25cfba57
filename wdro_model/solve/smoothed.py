"""Solving the smoothed objective."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from wdro_model.model import RobustModel
from wdro_model.objectives.convexity import smoothed_form_is_convex
from wdro_model.objectives.dual import DualMinimum
from wdro_model.objectives.smoothed_risk import Moving, Smoothed
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.solve.certify import certified, report
from wdro_model.solve.first_order import bounded_oracle, display, first_point, warm_active_set
from wdro_model.solve.growth import refuse_growth_at, refuse_infinite
from wdro_model.solve.notes import is_reliable, overreaches, smoothing_notes
from wdro_model.solve.options import Options
from wdro_model.solve.plan import Plan
from wdro_model.solve.recipe import (
    FirstOrder,
    Recipe,
    choose_integration,
    dual_rule,
    surrogate,
)
from wdro_model.solve.solution import Solution
from wdro_model.solve.stages import (
    REPORT_STAGE,
    Result,
    after,
    audited,
    dual_share,
    run_stages,
)
from wdro_model.solve.temperature import (
    derived_epsilon,
    dual_bound,
    empirical_decision,
    first_dual,
    good_decision,
    resolve_sigma,
)
from wdro_model.solvers import MomentumFrankWolfe, Outcome, Stop
from wdro_model.solvers.dual_rules import Tracking
from wdro_model.solvers.objective import Array
from wdro_model.solvers.outcome import ABSOLUTE_GAP

QUADRATURES = ("separable", "low_rank")
"""Strategies whose objective costs more than a good place to begin."""


def run_smoothed(
    model: RobustModel, chosen: Plan, solver: FirstOrder, options: Options
) -> Solution:
    """Frank-Wolfe on the smoothed objective; sampled values are re-estimated with other draws."""
    began, asked = time.perf_counter(), model.feasible.oracle().calls
    oracle = bounded_oracle(model)
    rng = np.random.default_rng(options.seed)
    recipe = prepare(model, solver, options)
    shown = display(options, chosen)
    first = recipe.objective(solver.samples, 0)
    stochastic = solver.is_stochastic
    improved = None if stochastic or not first.integration.exact else surrogate(first) or first
    if options.start is None and improved is not None and improved.starts_at_erm:
        start = empirical_decision(model, options)
    elif options.start is None and not stochastic and first.integration.name in QUADRATURES:
        start = good_decision(model, options)
    else:
        start = first_point(model, improved, options, rng)
    bound = None
    if dual_rule(solver, options) == "vertex":
        bound = dual_bound(recipe, solver, oracle, start)

    def run(objective: Smoothed, start: Array, solver: FirstOrder = solver, **more: Any) -> Outcome:
        return solver.run(objective, oracle, start, rng=rng, dual_bound=bound, **shown, **more)

    if isinstance(solver, MomentumFrankWolfe):
        tracking = Tracking(first_dual(model, start), model.radius)
        more: dict[str, Any] = {} if bound else {"tracking": tracking}
        result = judge(
            recipe, solver.samples, oracle, run(first, start, within(solver, began), **more), bound
        )
    elif first.integration.exact:
        active = warm_active_set(model, options.start)
        earlier: list[Outcome] = []
        if (easier := surrogate(first)) is not None:
            rough = run(easier, start, solver=within(solver, began), active_set=active)
            start, active, first.minimum = rough.x, rough.active_set, easier.minimum
            earlier.append(rough)
        interrupted = any(run.stop is Stop.INTERRUPT for run in earlier)
        used = sum(run.iterations for run in earlier) if not interrupted else solver.max_iterations
        outcome = run(first, start, solver=within(solver, began, used), active_set=active)
        if interrupted:  # the last run has but judged the point that was reached
            outcome = replace(outcome, stop=Stop.INTERRUPT)
        result = Result(after(earlier, outcome), outcome.point, outcome.gap, True)
    else:
        if options.start is None:
            start = good_decision(model, options)
        if isinstance(first, Moving) and bound is None:
            result = run_stages(recipe, solver, start, run, began)
        else:
            result = judge(
                recipe, solver.samples, oracle, run(first, start, within(solver, began)), bound
            )
    refuse_growth_at(model, result.outcome.x)
    point = result.point
    reliable = is_reliable(point, result.gap, model.radius, solver.gap)
    reliable &= not overreaches(model, point, recipe.sigma, result.outcome.x)
    return report(
        model,
        chosen,
        solver,
        replace(result.outcome, stop=honest_stop(result, solver.gap, reliable)),
        point,
        result.gap,
        convex=recipe.convex,
        began=began,
        same_objective=result.same_objective,
        asked=asked,
        reliable=reliable,
        epsilon=recipe.epsilon,
        sigma=recipe.sigma,
        integration=first.integration.describe(),
        dual_bound=bound,
        diagnostics=point.diagnostics,
        notes=smoothing_notes(model, point, bound, recipe.sigma, result.outcome.x),
    )


def within(solver: FirstOrder, began: float, used: int = 0) -> FirstOrder:
    """The solver with what is left of its time and iterations."""
    limits: dict[str, Any] = {"max_iterations": max(0, solver.max_iterations - used)}
    if solver.time_limit is not None:
        limits["time_limit"] = max(1e-9, solver.time_limit - (time.perf_counter() - began))
    return replace(solver, **limits)


def honest_stop(result: Result, tolerance: float, reliable: bool) -> Stop:
    """Why the run ended; a small gap on its own draws is not one on others, nor a small error."""
    stop, point = result.outcome.stop, result.point
    if stop is not Stop.GAP or result.same_objective:
        return stop
    if result.gap > max(tolerance * abs(point.value), ABSOLUTE_GAP):
        return Stop.DRAWS
    return stop if reliable else Stop.NOISE


def prepare(model: RobustModel, solver: FirstOrder, options: Options) -> Recipe:
    """Strategy, scales and convexity."""
    choice = choose_integration(model, solver, options)
    refuse_infinite(model)
    sigma = resolve_sigma(model, options.sigma)
    epsilon = options.epsilon or derived_epsilon(model, options)
    convex = model.convex_in_decision or smoothed_form_is_convex(model, epsilon, sigma)
    return Recipe(model, choice, float(epsilon), sigma, int(options.seed), convex)


def judge(
    recipe: Recipe, draws: int, oracle: FeasibleSet, outcome: Outcome, bound: float | None
) -> Result:
    """A run on its own draws, judged by a full evaluation on others."""
    final = recipe.objective(recipe.report_draws(draws), REPORT_STAGE)
    x, dual = outcome.x, outcome.dual
    if bound is None and (final.integration.exact or isinstance(final, Moving)):
        # The dual of the last batch is not that of all samples.
        final.minimum = None if dual is None else DualMinimum(dual, np.nan)
        dual = None
    elif dual:
        final.integration.refresh(x, dual)
    point, gap = certified(final, oracle, x, dual)
    if bound is None and dual is not None:
        point = replace(point, dual_residual=final.residual(x, point))
    share = dual_share(point, bound) if bound is not None else point.dual_residual
    return Result(outcome, audited(final, x, point), gap + share, False)
