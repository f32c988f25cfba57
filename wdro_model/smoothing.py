"""Compiling and solving the smoothed objective: scales, strategy, dual bound, certificates."""

from __future__ import annotations

import time
import warnings
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
from wdro_model.objectives.integration import Choice, Scales, Stream
from wdro_model.objectives.integration.gaussian import Gaussian
from wdro_model.objectives.smoothed import Smoothed
from wdro_model.options import Options
from wdro_model.sets.base import FeasibleSet
from wdro_model.solution import Solution
from wdro_model.solvers import FrankWolfe, MomentumFrankWolfe, Outcome

CALIBRATION_STAGE, REPORT_STAGE = 2**62, 2**62 + 1
"""Streams of random numbers that no iteration uses."""
REPORT_ENTRIES = 2**26
REPORT_DRAWS = 1000
"""The final value takes up to so many draws per sample, and so many numbers in all."""

FirstOrder = FrankWolfe | MomentumFrankWolfe


def choose_integration(model: Model, solver: FirstOrder, options: Options) -> Choice:
    """How the inner integral is computed; the paper's algorithm keeps the paper's estimator."""
    if options.integration is None and isinstance(solver, MomentumFrankWolfe):
        return Choice("gaussian", "the paper's estimator goes with the paper's algorithm")
    return integration.choose(model, options.integration)


def dual_rule(solver: FirstOrder, options: Options) -> str:
    """What becomes of the dual variable: "exact" or "vertex"."""
    return options.dual or ("vertex" if isinstance(solver, MomentumFrankWolfe) else "exact")


def run_smoothed(model: Model, chosen: Plan, solver: FirstOrder, options: Options) -> Solution:
    """Frank-Wolfe on the smoothed objective; sampled values are re-estimated with other draws."""
    began = time.perf_counter()
    oracle = bounded_oracle(model)
    rng = np.random.default_rng(options.seed)
    strategy = choose_integration(model, solver, options)
    sigma = resolve_sigma(model, options.sigma)
    epsilon = options.epsilon or derived_epsilon(model, options)

    def objective(draws: int, stage: int) -> Smoothed:
        assert model.joint is not None
        return Smoothed(
            strategy.build(model, Scales(epsilon, sigma, draws)),
            size=model.joint.size,
            radius=model.radius,
            epsilon=epsilon,
            sigma=sigma,
            convex=model.convex_in_decision,
            stream=Stream(int(options.seed), stage),
        )

    target = objective(solver.samples, 0)
    stochastic = isinstance(solver, MomentumFrankWolfe)
    start = first_point(model, None if stochastic else target, options, rng)
    bound = None
    if dual_rule(solver, options) == "vertex":
        scales = Scales(epsilon, sigma, solver.samples)
        bound = dual_bound(model, solver, scales, oracle, start, options)
    outcome = solver.run(
        target, oracle, start, rng=rng, dual_bound=bound, **display(options, chosen)
    )
    point, gap = outcome.point, outcome.gap
    if stochastic or not target.integration.exact:
        final = objective(report_draws(model, solver), REPORT_STAGE)
        point, gap = certified(final, oracle, outcome.x, outcome.dual)
        gap += dual_share(point, bound)
    return report(
        model,
        chosen,
        solver,
        outcome,
        point,
        gap,
        convex=target.convex,
        began=began,
        same_objective=target.integration.exact and not stochastic,
        epsilon=epsilon,
        sigma=sigma,
        integration=target.integration.describe(),
        dual_bound=bound,
        diagnostics=point.diagnostics,
        notes=smoothing_notes(model, point, bound),
    )


def report_draws(model: Model, solver: FirstOrder) -> int:
    """Draws per sample for the reported value."""
    entries = model.rows.shape[0] * max(1, model.rows.shape[1])
    return max(solver.samples, min(REPORT_DRAWS, REPORT_ENTRIES // entries))


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
    x = run_empirical(model, options)
    size = gradient_size(model.loss, model.joint, model.cost, x)
    scale = size if size > 0 else float(np.abs(model.loss.values(x, model.rows)).mean())
    squared = model.ambiguity.cost.order != 1.0
    radius = model.radius if squared else model.radius**2
    free = model.joint.dimension - int(model.cost.frozen.sum())
    return default_epsilon(scale if scale > 0 else 1.0, radius, max(1, free))


def dual_bound(
    model: Model,
    solver: FirstOrder,
    scales: Scales,
    oracle: FeasibleSet,
    start: Array,
    options: Options,
) -> float:
    """The user's lambda_max, else the paper's calibration."""
    given = getattr(solver, "dual_bound", None)
    if given is not None:
        return float(given)
    sampler = Choice("gaussian", "").build(model, scales)
    assert isinstance(sampler, Gaussian)
    stream = Stream(int(options.seed), CALIBRATION_STAGE)
    bound = calibrate_dual(sampler, oracle.minimize, start, stream).bound
    if not bound > 0:
        raise ValueError(
            "the calibration of the dual bound found no dispersion of the loss over "
            f"{scales.draws} draw(s) per sample; take samples >= 2 or give "
            "MomentumFrankWolfe(dual_bound=...)."
        )
    return bound


def dual_share(point: Point, bound: float | None) -> float:
    """What the dual variable adds to the gap: its best move within [0, bound] (or [0, 2 l])."""
    if point.dual is None or point.dual_gradient is None:
        return 0.0
    ceiling = bound if bound is not None else 2 * point.dual
    return max(point.dual_gradient * point.dual, point.dual_gradient * (point.dual - ceiling), 0.0)


def smoothing_notes(model: Model, point: Point, bound: float | None) -> tuple[str, ...]:
    """What the result cannot promise; each note is a warning too."""
    notes, d = [], point.diagnostics
    if d is not None and d.effective_size < 0.1 * d.draws:
        notes.append(
            f"the effective sample size is {d.effective_size:.3g} of {d.draws} draws: the estimate "
            "rests on a few of them; raise epsilon, lower sigma, or draw more samples."
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


__all__ = ["Outcome", "choose_integration", "dual_rule", "run_smoothed"]
