"""Scales of a smoothed problem: sigma, epsilon, first guesses and bounds of the dual variable."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from cvxpy import settings
from cvxpy.error import SolverError

from wdro_model.model import RobustModel
from wdro_model.objectives.integration import Choice, Scales, Stream
from wdro_model.objectives.integration.tilted import Gaussian
from wdro_model.objectives.least_thresholds import at_quantiles
from wdro_model.objectives.scales import (
    adversary_gain,
    calibrate_dual,
    default_epsilon,
    default_sigma,
    gradient_size,
    typical_dual,
)
from wdro_model.sets.deadlines import OutOfTime
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.solve.aggregated import run_aggregation
from wdro_model.solve.conic import solve_program
from wdro_model.solve.first_order import first_order_outcome
from wdro_model.solve.options import FirstOrder, Options, Recipe
from wdro_model.solve.plan import Plan, plan
from wdro_model.solve.rescale import probed_loss_unit
from wdro_model.solvers import Aggregation, Conic, FrankWolfe, QuasiNewton, Simplicial, Stop
from wdro_model.solvers.objective import Array

NOTHING = 1e-20
"""Of the losses at ordinary decisions: what a solver leaves of zero, as at x = 0 of a quadratic."""
LARGEST_PROGRAM = 2**17
"""Numbers in the data up to which the exact counterpart is solved for a place to begin."""
ROUGH, ROUGH_STEPS = 1e-4, 200
"""Gap and iterations to which Frank-Wolfe solves the exact counterpart for a place to begin."""
ENOUGH = 1000
"""Samples that a first decision is made of, at most."""
EMPIRICAL_DECISION = "ERM decision"
CALIBRATION_STAGE = 2**62
"""A stream of random numbers that no iteration uses."""


def resolve_sigma(model: RobustModel, sigma: Any) -> float | Array:
    """The reference's standard deviation: the user's, else the default of the calibration."""
    if sigma is None:
        return default_sigma(model.cost, model.radius, model.joint)
    array = np.asarray(sigma, dtype=float)
    if array.shape not in ((), (model.joint.dimension,)):
        raise ValueError(
            "sigma must be a positive number or one for each of the "
            f"{model.joint.dimension} coordinates of the data, got an array of shape {array.shape}."
        )
    return float(array) if array.ndim == 0 else array


def derived_epsilon(model: RobustModel, options: Options) -> float:
    """kappa / (2 d) times what the adversary gains at the ERM decision."""
    try:
        gain = model.remember(
            f"gain of the adversary {model.radius!r}", lambda: typical_gain(model, options)
        )
    except NotImplementedError as error:
        raise ValueError(
            "the default epsilon is derived from the loss's gradient in the data, which the loss "
            "does not give; pass epsilon=... (the temperature of the smoothing, in the units of "
            "the loss), or let its pullback return {parameter: (B, *shape)} too."
        ) from error
    return default_epsilon(gain, model.cost)


def typical_gain(model: RobustModel, options: Options) -> float:
    """What the adversary gains at the ERM decision; in units of the loss where that is nothing."""
    x = empirical_decision(model, options)
    gain, unit = adversary_gain(model, x), probed_loss_unit(model)
    if gain > NOTHING * unit:
        return gain
    order, scale = model.cost.small_moves(model.joint)
    loss = float(model.shares.total(np.abs(model.loss.values(x, model.rows))))
    return (model.radius / scale) ** (1 / order) * (loss if loss > NOTHING * unit else unit)


def empirical_decision(model: RobustModel, options: Options) -> Array:
    """The ERM decision, of some of the samples where they are many; computed once for a model.

    It sets a scale and a place to begin, for which a program over all samples is too much.
    """
    return model.remember(EMPIRICAL_DECISION, lambda: run_empirical(model, options))


def run_empirical(model: RobustModel, options: Options) -> Array:
    """The ERM decision, as a flat vector; over the convex hull of integer points."""
    still = model.without_ball()
    if model.size > ENOUGH and not model.affine_in_data:  # else their mean is all that matters
        still = still.on_some(ENOUGH)
    frank_wolfe = FrankWolfe(gap=ROUGH, max_iterations=ROUGH_STEPS)
    hull = frank_wolfe if model.feasible.is_integer else None
    chosen = plan(still, "erm", hull)
    if isinstance(chosen.solver, Simplicial):
        chosen = replace(chosen, solver=frank_wolfe)
    try:
        return at_quantiles(model, _decision(still, chosen, options))
    except SolverError:
        if not isinstance(chosen.solver, Conic):
            raise
        # Numbers that a conic solver gives up on, as exponentials have.
        return at_quantiles(model, _decision(still, plan(still, "erm", frank_wolfe), options))


def _decision(model: RobustModel, chosen: Plan, options: Options) -> Array:
    """The decision of a plan, without a judgement; variables and multipliers keep their values."""
    quiet = replace(options, verbose=False, start=None, seed=0)
    with model.feasible.holding():
        if isinstance(chosen.solver, Conic):
            return solve_program(model, chosen, chosen.solver).decision
        assert isinstance(chosen.solver, FrankWolfe | QuasiNewton)
        outcome = first_order_outcome(model, chosen, chosen.solver, quiet)[1]
    if outcome.stop is Stop.INTERRUPT:
        raise KeyboardInterrupt  # half a run is no decision
    if outcome.stop is Stop.TIME:
        raise OutOfTime
    return outcome.x


def good_decision(model: RobustModel, options: Options) -> Array:
    """Where to begin: the exact robust decision where it can be had, else that of ERM."""
    found = robust_decision(model, options)
    return empirical_decision(model, options) if found is None else found


def robust_decision(model: RobustModel, options: Options) -> Array | None:
    """The decision of the exact counterpart, computed once for a radius; None if out of reach."""
    return model.remember(f"robust decision {model.radius!r}", lambda: run_exact(model, options))


def run_exact(model: RobustModel, options: Options) -> Array | None:
    """The decision of the exact counterpart, by the solver that its plan chooses."""
    if model.feasible.is_integer:
        return None
    try:
        chosen = plan(model, "exact", None)
        if isinstance(chosen.solver, Aggregation):
            return _aggregated_decision(model, chosen, chosen.solver, options)
        if chosen.objective is None and not isinstance(chosen.solver, Conic):
            return None
        if not isinstance(chosen.solver, Conic):
            rough = FrankWolfe(gap=ROUGH, max_iterations=ROUGH_STEPS)
            return _decision(model, replace(chosen, solver=rough), options)
        if model.rows.size > LARGEST_PROGRAM:
            return None
        with model.feasible.holding():
            best = solve_program(model, chosen, chosen.solver)
    except (ValueError, SolverError):  # no counterpart, or none that a solver takes
        return None
    return best.decision if best.answer.status == settings.OPTIMAL else None


def _aggregated_decision(
    model: RobustModel, chosen: Plan, solver: Aggregation, options: Options
) -> Array | None:
    with model.feasible.holding():
        found = run_aggregation(model, chosen, solver, replace(options, verbose=False, start=None))
    solved = found.status == settings.OPTIMAL
    return model.feasible.layout.join(found.decision) if solved else None


def first_dual(model: RobustModel, x: Array) -> float:
    """The multiplier that a loss linear in the data would have."""
    size = gradient_size(model.loss, model.joint, model.cost, x)
    return typical_dual(size, model.radius, model.cost, model.joint)


def dual_bound(recipe: Recipe, solver: FirstOrder, oracle: FeasibleSet, start: Array) -> float:
    """The user's lambda_max, else the paper's calibration."""
    given = getattr(solver, "dual_bound", None)
    if given is not None:
        return float(given)
    scales = Scales(recipe.epsilon, recipe.sigma, max(2, solver.samples))
    sampler = Choice("gaussian", "").build(recipe.model, scales)
    assert isinstance(sampler, Gaussian)
    stream = Stream(recipe.seed, CALIBRATION_STAGE)
    bound = calibrate_dual(sampler, oracle.vertex, start, stream).bound
    if not bound > 0:
        raise ValueError(
            "the calibration of the dual bound found no dispersion of the loss over "
            f"{scales.draws} draws per sample: the loss does not depend on the data there; give "
            "MomentumFrankWolfe(dual_bound=...) or use dual='exact'."
        )
    return bound
