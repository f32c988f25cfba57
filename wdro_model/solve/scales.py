"""The smoothed objective: its scales sigma and epsilon, first decisions and first dual variables.

Both scales are derived where they are not given: sigma from the cost and the radius, epsilon from
what the adversary gains at the ERM decision.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from cvxpy import settings
from cvxpy.error import SolverError

from wdro_model.model import Model, RobustModel
from wdro_model.objectives.cvar_thresholds import LeastThresholds, at_quantiles
from wdro_model.objectives.exact.quadratic_form import smoothed_form_is_convex
from wdro_model.objectives.integration import Choice, Integration, Scales, Stream
from wdro_model.objectives.integration.over_workers import OverWorkers
from wdro_model.objectives.integration.tilted import Gaussian
from wdro_model.objectives.scales import (
    adversary_gain,
    calibrate_dual,
    default_epsilon,
    default_sigma,
    gradient_size,
    typical_dual,
)
from wdro_model.objectives.smoothed_risk import Moving, Smoothed
from wdro_model.sets.deadlines import OutOfTime
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.solve.aggregated import run_aggregation
from wdro_model.solve.certify import Clock
from wdro_model.solve.conic import solve_program
from wdro_model.solve.first_order import minimise_objective
from wdro_model.solve.notes import refuse_infinite
from wdro_model.solve.options import FirstOrder, Options, choose_integration
from wdro_model.solve.plan import Plan, plan
from wdro_model.solve.rescale import probed_loss_unit
from wdro_model.solvers import FrankWolfe, Stop
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs.budgets import small_moves
from wdro_model.uncertainty.samples import active_client


@dataclass(frozen=True)
class Limits:
    """Sizes of first guesses and of reported values, and how accurate the guesses are."""

    zero_loss: float = 1e-20
    """Share of the unit of the loss below which a number is a zero up to a solver's tolerance."""
    program_numbers: int = 2**17
    """Entries of the data up to which the exact counterpart is solved for a first decision."""
    rough_gap: float = 1e-4
    """Relative gap to which Frank-Wolfe finds a first decision."""
    rough_steps: int = 200
    """Iterations of Frank-Wolfe for a first decision, at most."""
    first_samples: int = 1000
    """Samples for the ERM decision, at most; more change epsilon and the start little."""
    report_draws: int = 1000
    """Draws per sample of the reported value, at most."""
    report_entries: int = 2**26
    """Numbers in all the draws of the reported value, at most."""
    cheaper_error: float = 1e-6
    """Relative error of a cheaper objective, which changes its nodes as it goes."""


LIMITS = Limits()
EMPIRICAL_DECISION = "ERM decision"
CALIBRATION_STAGE = 2**62
"""A stream of random numbers that no iteration uses."""


@dataclass(frozen=True)
class SmoothingConfig:
    """The settings of the smoothed objective, but for the number of draws."""

    model: RobustModel
    choice: Choice
    """The strategy for the inner integral."""
    epsilon: float
    sigma: float | Array
    seed: int
    convex: bool

    def objective(self, draws: int, stage: int) -> Smoothed:
        """The objective with these draws per sample, from the random numbers of a stage."""
        strategy = self._strategy(Scales(self.epsilon, self.sigma, draws))
        kind = Moving if strategy.adapts else Smoothed
        smoothed = kind(
            strategy,
            size=self.model.joint.size,
            radius=self.model.radius,
            epsilon=self.epsilon,
            sigma=self.sigma,
            convex=self.convex,
            stream=Stream(self.seed, stage),
            probabilities=self.model.joint.probabilities,
        )
        return over_thresholds(smoothed, self.model)

    def _strategy(self, scales: Scales) -> Integration:
        """The strategy: on the workers of a cluster where they hold the data, else here."""
        client = active_client() if self.model.joint.is_stored else None
        one_sample = None if client is None else self.model.on_samples(np.arange(1))
        if one_sample is not None and self.choice.build(one_sample, scales).exact:
            return OverWorkers(self.model, partial(build_strategy, self.choice, scales), client)
        return self.choice.build(self.model, scales)

    def report_draws(self, least: int) -> int:
        """Draws per sample for the reported value."""
        numbers = self.model.rows.shape[0] * max(1, self.model.rows.shape[1])
        return max(least, min(LIMITS.report_draws, LIMITS.report_entries // numbers))


def build_strategy(choice: Choice, scales: Scales, model: RobustModel) -> Integration:
    """The strategy for a part of the data, on a worker."""
    return choice.build(model, scales)


def over_thresholds(objective: Smoothed, model: Model) -> Any:
    """The objective, minimised over the thresholds of the model where it has some."""
    return objective if model.tails is None else LeastThresholds(objective, model)


def cheaper_objective(objective: Smoothed) -> Smoothed | None:
    """A cheaper objective of nearly the same value; None where the strategy has none."""
    strategy = objective.integration.surrogate()
    if strategy is None:
        return None
    probabilities = strategy.joint.probabilities
    if probabilities is not None and len(probabilities) != len(strategy.rows):
        probabilities = None  # nodes that stand for the samples
    cheaper = Smoothed(
        strategy,
        size=len(strategy.rows),
        radius=objective.radius,
        epsilon=objective.epsilon,
        sigma=objective.sigma,
        convex=objective.convex,
        stream=objective.stream,
        probabilities=probabilities,
    )
    cheaper.noise = LIMITS.cheaper_error if objective.convex else 0.0
    if isinstance(objective, LeastThresholds):
        return over_thresholds(cheaper, objective.model)
    return cheaper


def prepare(model: RobustModel, solver: FirstOrder, options: Options) -> SmoothingConfig:
    """The strategy, the scales and the convexity of the smoothed objective."""
    choice = choose_integration(model, solver, options)
    refuse_infinite(model)
    sigma = resolve_sigma(model, options.sigma)
    epsilon = float(options.epsilon or derived_epsilon(model, options))
    convex = model.convex_in_decision or smoothed_form_is_convex(model, epsilon, sigma)
    return SmoothingConfig(model, choice, epsilon, sigma, int(options.seed), convex)


# ------------------------------------------------------------------ sigma and epsilon
def resolve_sigma(model: RobustModel, sigma: Any) -> float | Array:
    """The standard deviation of the reference: the user's, else the default."""
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
    """The adversary's gain at the ERM decision; in units of the loss where it gains nothing."""
    x = empirical_decision(model, options)
    gain, unit = adversary_gain(model, x), probed_loss_unit(model)
    if gain > LIMITS.zero_loss * unit:
        return gain
    # Without a gain: the size of the loss, times the relative move that the radius pays for.
    order, scale = small_moves(model.cost, model.joint)
    loss = float(model.shares.total(np.abs(model.loss.values(x, model.rows))))
    size = loss if loss > LIMITS.zero_loss * unit else unit
    return (model.radius / scale) ** (1 / order) * size


# ------------------------------------------------------------------ first decisions
def empirical_decision(model: RobustModel, options: Options) -> Array:
    """The ERM decision over the convex hull, computed once; on a subsample of large data.

    The decision only gives epsilon and a start, for which a subsample is accurate enough.
    """
    return model.remember(EMPIRICAL_DECISION, lambda: _solve_empirical(model, options))


def _solve_empirical(model: RobustModel, options: Options) -> Array:
    mean_model = model.without_ball()
    if model.size > LIMITS.first_samples and not model.affine_in_data:  # else their mean is used
        mean_model = mean_model.on_some(LIMITS.first_samples)
    frank_wolfe = FrankWolfe(gap=LIMITS.rough_gap, max_iterations=LIMITS.rough_steps)
    chosen = plan(mean_model, "erm", frank_wolfe if model.feasible.is_integer else None)
    if chosen.stage == "simplicial":
        chosen = replace(chosen, solver=frank_wolfe)
    try:
        x = _decide(mean_model, chosen, options)
    except SolverError:  # conic solvers may give up, for example on exponentials
        if chosen.stage != "conic":
            raise
        x = _decide(mean_model, plan(mean_model, "erm", frank_wolfe), options)
    return at_quantiles(model, x)


def _decide(model: RobustModel, chosen: Plan, options: Options) -> Array:
    """Run a plan for its decision only; variables and multipliers keep their values."""
    with model.feasible.holding():
        solver: Any = chosen.solver
        if chosen.stage == "conic":
            return solve_program(model, chosen, solver).decision
        quiet, clock = replace(options, verbose=False, start=None, seed=0), Clock(solver.time_limit)
        outcome = minimise_objective(model, chosen, solver, quiet, clock)[1]
    if outcome.stop is Stop.INTERRUPT:
        raise KeyboardInterrupt  # half a run is no decision
    if outcome.stop is Stop.TIME:
        raise OutOfTime
    return outcome.x


def robust_decision(model: RobustModel, options: Options) -> Array | None:
    """The decision of the exact counterpart, computed once for a radius; None if out of reach."""
    return model.remember(f"robust decision {model.radius!r}", lambda: _solve_exact(model, options))


def _solve_exact(model: RobustModel, options: Options) -> Array | None:
    if model.feasible.is_integer:
        return None
    try:
        chosen = plan(model, "exact", None)
        solver: Any = chosen.solver
        if chosen.stage == "aggregation":
            quiet = replace(options, verbose=False, start=None)
            with model.feasible.holding():
                solution = run_aggregation(model, chosen, solver, quiet)
            x, status = model.feasible.layout.join(solution.decision), solution.status
        elif chosen.stage == "conic" and model.rows.size <= LIMITS.program_numbers:
            with model.feasible.holding():
                attempt = solve_program(model, chosen, solver)
            x, status = attempt.decision, attempt.answer.status
        elif chosen.stage == "conic" or chosen.objective is None:
            return None
        else:
            rough = FrankWolfe(gap=LIMITS.rough_gap, max_iterations=LIMITS.rough_steps)
            return _decide(model, replace(chosen, solver=rough), options)
    except (ValueError, SolverError):  # no counterpart, or none that a solver takes
        return None
    return x if status == settings.OPTIMAL else None


# ------------------------------------------------------------------ the dual variable
def first_dual(model: RobustModel, x: Array) -> float:
    """The multiplier that a loss linear in the data would have."""
    size = gradient_size(model.loss, model.joint, model.cost, x)
    return typical_dual(size, model.radius, model.cost, model.joint)


def dual_bound(
    config: SmoothingConfig, solver: FirstOrder, oracle: FeasibleSet, start: Array
) -> float:
    """The user's lambda_max, else the paper's calibration."""
    given = getattr(solver, "dual_bound", None)
    if given is not None:
        return float(given)
    scales = Scales(config.epsilon, config.sigma, max(2, solver.samples))
    sampler = Choice("gaussian", "").build(config.model, scales)
    assert isinstance(sampler, Gaussian)
    stream = Stream(config.seed, CALIBRATION_STAGE)
    bound = calibrate_dual(sampler, oracle.vertex, start, stream).bound
    if not bound > 0:
        raise ValueError(
            "the calibration of the dual bound found no dispersion of the loss over "
            f"{scales.draws} draws per sample: the loss does not depend on the data there; give "
            "MomentumFrankWolfe(dual_bound=...) or use dual='exact'."
        )
    return bound
