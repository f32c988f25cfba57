"""Compiling and solving the smoothed objective: scales, strategy, stages, certificates."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wdro_model.errors import SamplingWarning
from wdro_model.execution import (
    bounded_oracle,
    certified,
    display,
    first_point,
    report,
    run_empirical,
    warm_active_set,
)
from wdro_model.methods import Plan
from wdro_model.model import Model
from wdro_model.objectives import integration
from wdro_model.objectives.base import Array, Point
from wdro_model.objectives.calibration import (
    calibrate_dual,
    default_epsilon,
    default_sigma,
    gradient_size,
)
from wdro_model.objectives.convexity import smoothed_form_is_convex
from wdro_model.objectives.dual import DualMinimum
from wdro_model.objectives.integration import Choice, Scales, Stream
from wdro_model.objectives.integration.gaussian import Gaussian
from wdro_model.objectives.smoothed import Smoothed
from wdro_model.options import Options
from wdro_model.sets.base import FeasibleSet
from wdro_model.solution import Solution
from wdro_model.solvers import FrankWolfe, MomentumFrankWolfe, Outcome, Stop, Trace
from wdro_model.solvers.dual import Tracking

CALIBRATION_STAGE, REPORT_STAGE = 2**62, 2**62 + 1
"""Streams of random numbers that no iteration uses."""
REPORT_DRAWS = 1000
REPORT_ENTRIES = 2**26
"""The final value takes up to so many draws per sample, and so many numbers in all."""
STAGES = 25
TRUST = 2.0
"""During a stage the dual stays within this factor of the one that its draws were made for."""
STAGE_ENTRIES = 2**28
"""Draws grow from stage to stage up to so many numbers in all."""

FEW = 0.1
"""Fewer effective draws than this share are not to be trusted."""

FirstOrder = FrankWolfe | MomentumFrankWolfe


def choose_integration(model: Model, solver: FirstOrder, options: Options) -> Choice:
    """How the inner integral is computed; the paper's algorithm keeps the paper's estimator."""
    if options.integration is None and isinstance(solver, MomentumFrankWolfe):
        return Choice("gaussian", "the paper's estimator goes with the paper's algorithm")
    return integration.choose(model, options.integration)


def dual_rule(solver: FirstOrder, options: Options) -> str:
    """What becomes of the dual variable: "exact" or "vertex"."""
    return options.dual or ("vertex" if isinstance(solver, MomentumFrankWolfe) else "exact")


@dataclass(frozen=True)
class Recipe:
    """The smoothed objective up to its draws."""

    model: Model
    choice: Choice
    epsilon: float
    sigma: float | Array
    seed: int
    convex: bool

    def objective(self, draws: int, stage: int) -> Smoothed:
        """The objective with so many draws per sample, from the stream of a stage."""
        assert self.model.joint is not None
        return Smoothed(
            self.choice.build(self.model, Scales(self.epsilon, self.sigma, draws)),
            size=self.model.joint.size,
            radius=self.model.radius,
            epsilon=self.epsilon,
            sigma=self.sigma,
            convex=self.convex,
            stream=Stream(self.seed, stage),
        )

    def report_draws(self, least: int) -> int:
        """Draws per sample for the reported value."""
        entries = self.model.rows.shape[0] * max(1, self.model.rows.shape[1])
        return max(least, min(REPORT_DRAWS, REPORT_ENTRIES // entries))


@dataclass(frozen=True)
class Result:
    """A run, and the point that is reported for it."""

    outcome: Outcome
    point: Point
    gap: float
    same_objective: bool
    """Was the reported point taken on the draws that were optimised?"""


def run_smoothed(model: Model, chosen: Plan, solver: FirstOrder, options: Options) -> Solution:
    """Frank-Wolfe on the smoothed objective; sampled values are re-estimated with other draws."""
    began = time.perf_counter()
    oracle = bounded_oracle(model)
    rng = np.random.default_rng(options.seed)
    recipe = prepare(model, solver, options)
    shown = display(options, chosen)
    first = recipe.objective(solver.samples, 0)
    stochastic = isinstance(solver, MomentumFrankWolfe)
    start = first_point(
        model, None if stochastic or not first.integration.exact else first, options, rng
    )
    bound = None
    if dual_rule(solver, options) == "vertex":
        bound = dual_bound(recipe, solver, oracle, start)

    def run(objective: Smoothed, start: Array, solver: FirstOrder = solver, **more: Any) -> Outcome:
        return solver.run(objective, oracle, start, rng=rng, dual_bound=bound, **shown, **more)

    if isinstance(solver, MomentumFrankWolfe):
        tracking = Tracking(first_dual(model, start), model.radius)
        more: dict[str, Any] = {} if bound else {"tracking": tracking}
        result = run_stochastic(recipe, solver, oracle, run(first, start, **more), bound)
    elif first.integration.exact:
        active, earlier = warm_active_set(model, options.start), []
        if (easier := surrogate(first)) is not None:
            rough = run(easier, start, active_set=active)
            start, active, first.minimum = rough.x, rough.active_set, easier.minimum
            earlier.append(rough)
        outcome = run(first, start, active_set=active)
        result = Result(after(earlier, outcome), outcome.point, outcome.gap, True)
    else:
        if options.start is None:
            start = empirical_decision(model, options)
        result = run_stages(recipe, solver, start, run)
    point = result.point
    return report(
        model,
        chosen,
        solver,
        result.outcome,
        point,
        result.gap,
        convex=recipe.convex,
        began=began,
        same_objective=result.same_objective,
        reliable=is_reliable(point, model.radius, solver.gap),
        epsilon=recipe.epsilon,
        sigma=recipe.sigma,
        integration=first.integration.describe(),
        dual_bound=bound,
        diagnostics=point.diagnostics,
        notes=smoothing_notes(model, point, bound),
    )


def surrogate(objective: Smoothed) -> Smoothed | None:
    """A cheaper objective of nearly the same value to begin with, where the strategy has one."""
    make = getattr(objective.integration, "surrogate", None)
    easier = None if make is None else make()
    if easier is None:
        return None
    return Smoothed(
        easier,
        size=len(easier.rows),
        radius=objective.radius,
        epsilon=objective.epsilon,
        sigma=objective.sigma,
        convex=objective.convex,
        stream=objective.stream,
    )


def prepare(model: Model, solver: FirstOrder, options: Options) -> Recipe:
    """Strategy, scales and convexity."""
    choice = choose_integration(model, solver, options)
    sigma = resolve_sigma(model, options.sigma)
    epsilon = options.epsilon or derived_epsilon(model, options)
    convex = model.convex_in_decision or smoothed_form_is_convex(model, epsilon, sigma)
    return Recipe(model, choice, float(epsilon), sigma, int(options.seed), convex)


def run_stochastic(
    recipe: Recipe,
    solver: MomentumFrankWolfe,
    oracle: FeasibleSet,
    outcome: Outcome,
    bound: float | None,
) -> Result:
    """A stochastic run, judged by a full evaluation on draws of its own."""
    final = recipe.objective(recipe.report_draws(solver.samples), REPORT_STAGE)
    dual = outcome.dual
    if bound is None and final.integration.exact:
        dual = None  # the dual of the last batch is not that of all samples
    elif dual:
        dual = final.integration.settle(outcome.x, dual)
    point, gap = certified(final, oracle, outcome.x, dual)
    return Result(outcome, point, gap + dual_share(point, bound), False)


def run_stages(
    recipe: Recipe,
    solver: FrankWolfe,
    start: Array,
    run: Callable[..., Outcome],
) -> Result:
    """Runs on fixed draws, with fresh proposals and more draws from stage to stage.

    A stage ends early when its draws no longer fit the iterates. All of it ends when the gap on the
    draws of the stage and the standard error of the value on other draws are both within the
    tolerance, or when a limit is reached.
    """
    began, draws, active = time.perf_counter(), solver.samples, None
    runs: list[Outcome] = []
    x, dual = start, first_dual(recipe.model, start)
    most = max(draws, STAGE_ENTRIES // max(1, recipe.model.rows.size))
    adaptive = recipe.choice.name != "gaussian"
    for stage in range(STAGES):
        objective = recipe.objective(draws, stage)
        dual = objective.integration.settle(x, dual)
        objective.minimum = DualMinimum(dual, np.nan)
        if adaptive:
            objective.duals = (dual / TRUST, dual * TRUST)
        watched = objective if adaptive else None
        limited = left_over(solver, time.perf_counter() - began, runs, watched)
        outcome = run(objective, x, solver=limited, active_set=active)
        runs.append(outcome)
        x, active = outcome.x, outcome.active_set
        final = recipe.objective(draws, REPORT_STAGE + stage)
        dual = final.integration.settle(x, outcome.dual or dual)
        point = final.evaluate(x, dual if outcome.dual else 0.0)
        assert point.diagnostics is not None
        tolerance = solver.gap * abs(point.value)
        error = point.diagnostics.standard_error
        stale = outcome.stop is Stop.CALLBACK and adaptive and objective.is_stale()
        if outcome.stop not in (Stop.GAP, Stop.STALLED) and not stale:
            break
        enough = error <= tolerance
        fits = watched is None or not objective.dual_at_end()
        settled = outcome.stop is Stop.GAP and fits and stage > 0
        if (enough or draws == most) and settled:
            break
        if not enough:
            growth = float(np.clip((error / max(tolerance, 1e-300)) ** 2, 1.5, 8.0))
            draws = min(int(np.ceil(draws * growth)), most)
    return Result(after(runs[:-1], outcome), point, outcome.gap, False)


def left_over(
    solver: FrankWolfe, spent: float, runs: list[Outcome], watched: Smoothed | None
) -> FrankWolfe:
    """The solver with what is left of its limits, stopping when the draws no longer fit."""
    used = sum(run.iterations for run in runs)
    limits: dict[str, Any] = {"max_iterations": max(0, solver.max_iterations - used)}
    if solver.time_limit is not None:
        limits["time_limit"] = max(1e-9, solver.time_limit - spent)
    if watched is not None:
        limits["callbacks"] = [
            *solver.callbacks,
            lambda state: state.iteration > 0 and watched.is_stale(),
        ]
    return replace(solver, **limits)


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


def first_dual(model: Model, x: Array) -> float:
    """The multiplier that a loss linear in the data would have: G / (2 sqrt(radius))."""
    assert model.joint is not None
    assert model.cost is not None
    size = gradient_size(model.loss, model.joint, model.cost, x)
    if model.cost.kind in ("squared", "mahalanobis"):
        return max(size, 1e-12) / (2 * np.sqrt(model.radius))
    return max(size, 1e-12)


# ------------------------------------------------------------------ scales
def resolve_sigma(model: Model, sigma: Any) -> float | Array:
    """The reference's standard deviation: the user's, else the default of the calibration."""
    assert model.joint is not None
    assert model.cost is not None
    if sigma is None:
        return default_sigma(model.cost, model.radius, model.joint.dimension)
    array = np.asarray(sigma, dtype=float)
    good = np.isfinite(array) & (array > 0)
    if array.shape not in ((), (model.joint.dimension,)) or not np.all(good):
        raise ValueError(
            "sigma must be a positive number or one for each of the "
            f"{model.joint.dimension} coordinates of the data, got {sigma!r}."
        )
    return float(array) if array.ndim == 0 else array


def derived_epsilon(model: Model, options: Options) -> float:
    """kappa sqrt(radius) G / (2 d), G the loss's gradient in the data at the ERM decision."""
    assert model.joint is not None
    assert model.cost is not None
    assert model.ambiguity is not None
    scale = model.remember("scale of the loss in the data", lambda: data_scale(model, options))
    squared = model.ambiguity.cost.order != 1.0
    radius = model.radius if squared else model.radius**2
    free = model.joint.dimension - int(model.cost.frozen.sum())
    return default_epsilon(scale if scale > 0 else 1.0, radius, max(1, free))


def data_scale(model: Model, options: Options) -> float:
    """The size of the loss's gradient in the data at the ERM decision, or of the loss itself."""
    assert model.joint is not None
    assert model.cost is not None
    x = empirical_decision(model, options)
    size = gradient_size(model.loss, model.joint, model.cost, x)
    return size if size > 0 else float(np.abs(model.loss.values(x, model.rows)).mean())


def empirical_decision(model: Model, options: Options) -> Array:
    """The ERM decision, computed once for a model."""
    return model.remember("ERM decision", lambda: run_empirical(model, options))


def dual_bound(recipe: Recipe, solver: FirstOrder, oracle: FeasibleSet, start: Array) -> float:
    """The user's lambda_max, else the paper's calibration."""
    given = getattr(solver, "dual_bound", None)
    if given is not None:
        return float(given)
    scales = Scales(recipe.epsilon, recipe.sigma, max(2, solver.samples))
    sampler = Choice("gaussian", "").build(recipe.model, scales)
    assert isinstance(sampler, Gaussian)
    stream = Stream(recipe.seed, CALIBRATION_STAGE)
    bound = calibrate_dual(sampler, oracle.minimize, start, stream).bound
    if not bound > 0:
        raise ValueError(
            "the calibration of the dual bound found no dispersion of the loss over "
            f"{scales.draws} draws per sample: the loss does not depend on the data there; give "
            "MomentumFrankWolfe(dual_bound=...) or use dual='exact'."
        )
    return bound


def dual_share(point: Point, bound: float | None) -> float:
    """What the dual variable adds to the gap: its best move within [0, bound] (or [0, 2 l])."""
    if point.dual is None or point.dual_gradient is None:
        return 0.0
    ceiling = bound if bound is not None else 2 * point.dual
    return max(point.dual_gradient * point.dual, point.dual_gradient * (point.dual - ceiling), 0.0)


def is_reliable(point: Point, radius: float, tolerance: float) -> bool:
    """Is the sampled value accurate to the tolerance, as far as its draws can tell?"""
    d = point.diagnostics
    if d is None:
        return True
    many = d.effective_size >= FEW * d.draws and d.nearest_cost <= radius
    return many and d.standard_error <= tolerance * abs(point.value)


def smoothing_notes(model: Model, point: Point, bound: float | None) -> tuple[str, ...]:
    """What the result cannot promise; each note is a warning too."""
    notes, d = [], point.diagnostics
    if d is not None and d.effective_size < FEW * d.draws:
        notes.append(
            f"the effective sample size is {d.effective_size:.3g} of {d.draws} draws: the estimate "
            "rests on a few of them; let integration= choose (closed_form, low_rank, tilted), or "
            "raise epsilon."
        )
    if d is not None and d.nearest_cost > model.radius:
        notes.append(
            f"the nearest draws cost {d.nearest_cost:.3g} on average, more than the radius "
            f"{model.radius:.3g}: the sampled dual is unbounded below; lower sigma or draw more."
        )
    if point.dual == 0:
        notes.append("the dual variable is 0: the radius does not bind.")
    if bound is not None and point.dual is not None and point.dual > 0.99 * bound:
        notes.append(
            f"the dual variable {point.dual:.3g} sits at its bound {bound:.3g}, which may exclude "
            "the optimum; give a larger MomentumFrankWolfe(dual_bound=...)."
        )
    for note in notes:
        warnings.warn(note, SamplingWarning, stacklevel=5)
    return tuple(notes)
