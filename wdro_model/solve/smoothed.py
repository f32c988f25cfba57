"""Solving the smoothed objective."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from cvxpy import settings

from wdro_model.model import RobustModel
from wdro_model.objectives.dual import DualMinimum
from wdro_model.objectives.empirical import Empirical
from wdro_model.objectives.exact.quadratic_form import smoothed_form_is_convex
from wdro_model.objectives.integration.inner_integral import EMPIRICAL, ROBUST
from wdro_model.objectives.least_thresholds import at_quantiles
from wdro_model.objectives.smoothed_risk import Smoothed
from wdro_model.sets.deadlines import OutOfTime, deadline
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.solve.certify import NONE, Experience, Solution, certified, evaluations, report
from wdro_model.solve.first_order import (
    display,
    reset_oracle,
    with_thresholds,
)
from wdro_model.solve.notes import (
    is_reliable,
    middle,
    overreaches,
    refuse_growth_at,
    refuse_infinite,
    smoothing_notes,
)
from wdro_model.solve.options import (
    FirstOrder,
    Options,
    Recipe,
    choose_integration,
    dual_rule,
    surrogate,
)
from wdro_model.solve.plan import Plan
from wdro_model.solve.scales import (
    EMPIRICAL_DECISION,
    ENOUGH,
    derived_epsilon,
    dual_bound,
    empirical_decision,
    first_dual,
    good_decision,
    resolve_sigma,
    robust_decision,
)
from wdro_model.solve.stages import (
    REPORT_STAGE,
    Result,
    after,
    audited,
    dual_share,
    left,
    run_stages,
    unseen,
    within,
)
from wdro_model.solve.start import first_point, warm_active_set
from wdro_model.solvers import ActiveSet, Outcome, Stop
from wdro_model.solvers.driver import tolerance
from wdro_model.solvers.features import Feature
from wdro_model.solvers.gradients import Tracking
from wdro_model.solvers.objective import Array

UNPREPARED = (
    "the time was over before the decision of ERM was found, from which epsilon is derived: the "
    "decision is where the solve would have begun; give a longer time_limit, or epsilon=."
)
CLOSER = 0.8
"""The gap on a cheaper objective, as a share of the tolerance, so that the other's is within it."""
JUDGING = 0.2
"""The share of the time in which a decision is judged on draws that were not used to find it."""
HALVINGS = 6
"""How often a start is moved half of the way to the middle of the set."""


def run_smoothed(
    model: RobustModel, chosen: Plan, solver: FirstOrder, options: Options
) -> Solution:
    """Frank-Wolfe on the smoothed objective; sampled values are re-estimated with other draws."""
    began, asked = time.perf_counter(), model.feasible.oracle().calls
    oracle = reset_oracle(model, solver)
    rng = np.random.default_rng(options.seed)
    try:
        recipe = prepare(model, solver, options)
    except OutOfTime:
        return unprepared(model, chosen, solver, first_point(model, None, options, rng), began)
    shown = display(options, chosen)
    first = recipe.objective(solver.samples, 0)
    earlier = options.start.experience if isinstance(options.start, Solution) else NONE
    try:
        with deadline(left(solver, began)):
            start = place_to_begin(recipe, first, solver, options, rng)
            start = gone_on(recipe, first, earlier, start)
    except OutOfTime:
        start = hasty_start(model, options, rng)
    start = at_quantiles(model, start)
    bound = None
    if dual_rule(solver, options) == "vertex":
        bound = dual_bound(recipe, solver, oracle, start)

    def run(objective: Smoothed, start: Array, solver: FirstOrder = solver, **more: Any) -> Outcome:
        found = solver.run(objective, oracle, start, rng=rng, dual_bound=bound, **shown, **more)
        return with_thresholds(objective, found)

    def judged_run(run: Callable[[], Outcome]) -> Result:
        outcome = unseen(start, None)
        try:
            outcome = run()
            return judge(recipe, solver.samples, oracle, outcome, bound)
        except (OutOfTime, KeyboardInterrupt) as error:
            late = unseen(outcome.x, outcome.active_set)
            return Result(replace(outcome, stop=why(error)), late.point, np.inf, False)

    if Feature.FULL_GRADIENTS not in solver.features:
        more: dict[str, Any] = {}
        if bound is None:
            more["tracking"] = Tracking(first_dual(model, start), model.radius)
        result = judged_run(partial(run, first, start, hurrying(solver, began), **more))
    elif first.integration.exact:
        result = run_exactly(
            first, solver, start, run, began, warm_active_set(model, options.start)
        )
    elif first.integration.adapts and bound is None:
        result = run_stages(recipe, solver, start, run, began)
    else:
        result = judged_run(partial(run, first, start, hurrying(solver, began)))
    refuse_growth_at(model, result.outcome.x)
    point = result.point
    allowed = tolerance(solver.gap, point.value, recipe.epsilon)
    reliable = is_reliable(point, result.gap, model.radius, allowed) and point.value == point.value
    reliable &= not overreaches(model, point, recipe.sigma, result.outcome.x)
    return report(
        model,
        chosen,
        solver,
        replace(result.outcome, stop=honest_stop(result, allowed, reliable)),
        point,
        result.gap,
        convex=recipe.convex,
        began=began,
        same_objective=result.same_objective,
        asked=asked,
        reliable=reliable,
        likely=first.likely_scenarios(result.outcome.x),
        epsilon=recipe.epsilon,
        sigma=recipe.sigma,
        integration=first.integration.describe(),
        dual_bound=bound,
        diagnostics=point.diagnostics,
        notes=smoothing_notes(model, point, bound, recipe.sigma, result.outcome.x),
        experience=experience(model, first, point.dual, earlier),
    )


def place_to_begin(
    recipe: Recipe,
    first: Smoothed,
    solver: FirstOrder,
    options: Options,
    rng: np.random.Generator,
) -> Array:
    """The user's start, else where the strategy begins: sampled ones at a good decision."""
    model, rule = recipe.model, first.integration
    if options.start is not None or Feature.FULL_GRADIENTS not in solver.features:
        return first_point(model, None, options, rng)
    if rule.start == EMPIRICAL and rule.exact:
        return empirical_decision(model, options)
    if not rule.exact:
        return good_decision(model, options)
    if rule.start == ROBUST:
        if (robust := robust_decision(model, options)) is not None:
            return robust
        good = empirical_decision(model, options)
        first.minimum = DualMinimum(first_dual(model, good), np.nan)
        return withdrawn(first, good, middle(model))
    return first_point(model, surrogate(first) or first, options, rng)


def gone_on(recipe: Recipe, first: Smoothed, earlier: Experience, start: Array) -> Array:
    """Where to begin, with what an earlier solve knows of integrals, dual and directions."""
    model = recipe.model
    order, distance = distance_of(model)
    steepness = earlier.expected_steepness(distance)
    if steepness is None:
        return start
    first.integration.use_findings(earlier.integrals, steepness / distance ** (order - 1))
    directions: Any = model.feasible.oracle().own_direction
    if not hasattr(directions, "begin_with"):
        return start
    found = directions.begin_with(earlier.going_on(distance, "directions"))
    return start if found is None else found


def distance_of(model: RobustModel) -> tuple[float, float]:
    """The order of the cost and the distance of the ball: that to this power is the radius."""
    order = float(model.cost.order or 1.0)
    return order, model.radius ** (1 / order)


def experience(
    model: RobustModel, first: Smoothed, dual: float | None, earlier: Experience
) -> Experience:
    """What a solve has learnt, for the next one; before a first one comes that of ERM."""
    order, distance = distance_of(model)
    steepness = None if dual is None else dual * distance ** (order - 1)
    directions: Any = model.feasible.oracle().own_direction
    found, before = None, earlier.shortened()
    if hasattr(directions, "findings"):
        found, x = directions.findings(), model.recall(EMPIRICAL_DECISION)
        if earlier is NONE and x is not None:
            costs = directions.costs_at(x, Empirical(model).fixed_adversary_gradient(x))
            before = Experience(0.0, None, None, costs)
    return Experience(distance, steepness, first.integration.findings(), found, before)


def hasty_start(model: RobustModel, options: Options, rng: np.random.Generator) -> Array:
    """The ERM decision if it is known, or can be had in no time; else some vertex."""
    try:
        return empirical_decision(model, options)
    except OutOfTime:
        return first_point(model, None, options, rng)


def withdrawn(objective: Smoothed, x: Array, centre: Array) -> Array:
    """The decision, moved towards the middle of the set while that helps.

    A decision that fits the samples too well, such as a logistic regression that separates them, is
    far from a robust one, and the way back along vertices is long. Some of the samples can tell.
    """
    batch = np.arange(objective.size)[:: -(-objective.size // ENOUGH)]

    def value_at(x: Array) -> float:
        return objective.value_over(x, batch, seed=0)

    value = value_at(x)
    for _ in range(HALVINGS):
        nearer = 0.5 * (x + centre)
        found = value_at(nearer)
        if not found < value:
            break
        x, value = nearer, found
    return x


def run_exactly(
    first: Smoothed,
    solver: FirstOrder,
    start: Array,
    run: Callable[..., Outcome],
    began: float,
    active: ActiveSet | None,
) -> Result:
    """A run without Monte Carlo error, after one on a cheaper objective where there is one."""
    earlier: list[Outcome] = []
    if (easier := surrogate(first)) is not None:
        closer = replace(within(solver, began), gap=CLOSER * solver.gap)
        try:
            rough = run(easier, start, solver=closer, active_set=active)
        except (OutOfTime, KeyboardInterrupt) as error:
            rough = unseen(start, active, why(error))
        start, active, first.minimum = rough.x, rough.active_set, easier.minimum
        earlier.append(rough)
    interrupted = any(run.stop is Stop.INTERRUPT for run in earlier)
    used = sum(run.iterations for run in earlier) if not interrupted else solver.max_iterations
    try:
        outcome = run(first, start, solver=within(solver, began, used), active_set=active)
    except (OutOfTime, KeyboardInterrupt) as error:
        outcome = unseen(start, active, why(error))
    if interrupted:  # the last run has but judged the point that was reached
        outcome = replace(outcome, stop=Stop.INTERRUPT)
    return Result(after(earlier, outcome), outcome.point, outcome.gap, True)


def why(error: OutOfTime | KeyboardInterrupt) -> Stop:
    """Why a run has ended that was stopped before its first evaluation was done."""
    return Stop.TIME if isinstance(error, OutOfTime) else Stop.INTERRUPT


def unprepared(
    model: RobustModel, chosen: Plan, solver: FirstOrder, x: Array, began: float
) -> Solution:
    """A decision whose smoothed objective is not known: there was no time for its temperature."""
    return Solution(
        method=chosen.method,
        status=settings.USER_LIMIT,
        value=np.nan,
        decision=model.feasible.layout.split(x),
        solver=solver.describe(model.feasible.oracle()),
        seconds=time.perf_counter() - began,
        stop=Stop.TIME.value,
        convex=model.convex_in_decision,
        notes=(UNPREPARED,),
        **evaluations(model, x, late=True),
    )


def honest_stop(result: Result, allowed: float, reliable: bool) -> Stop:
    """Why the run ended; a small gap on its own draws is not one on others, nor a small error."""
    stop = result.outcome.stop
    if stop is not Stop.GAP or result.same_objective:
        return stop
    if result.gap > allowed:
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


def hurrying(solver: FirstOrder, began: float) -> FirstOrder:
    """The solver with what is left of its time, but for a share in which its answer is judged."""
    limited = within(solver, began)
    if limited.time_limit is None:
        return limited
    return replace(limited, time_limit=(1.0 - JUDGING) * limited.time_limit)


def judge(
    recipe: Recipe, draws: int, oracle: FeasibleSet, outcome: Outcome, bound: float | None
) -> Result:
    """A run on its own draws, judged by a full evaluation on others."""
    final = recipe.objective(recipe.report_draws(draws), REPORT_STAGE)
    x, dual = outcome.x, outcome.dual
    rule = final.integration
    if bound is None and (rule.exact or rule.adapts):
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
