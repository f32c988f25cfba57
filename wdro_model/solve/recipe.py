"""What a smoothed objective is made of, up to its draws."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from wdro_model.model import Model, RobustModel
from wdro_model.objectives import integration
from wdro_model.objectives.integration import Choice, Scales, Stream
from wdro_model.objectives.integration.over_workers import OverWorkers
from wdro_model.objectives.least_thresholds import LeastThresholds
from wdro_model.objectives.smoothed_risk import Moving, Smoothed
from wdro_model.solve.options import Options
from wdro_model.solvers import FrankWolfe, MomentumFrankWolfe, QuasiNewton
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.stored_samples import active_client

REPORT_DRAWS = 1000
REPORT_ENTRIES = 2**26
"""The final value takes up to so many draws per sample, and so many numbers in all."""

COARSE = 1e-6
"""Relative error of the values of a cheaper objective, which changes its nodes as it goes."""

FirstOrder = FrankWolfe | QuasiNewton | MomentumFrankWolfe


def choose_integration(model: RobustModel, solver: FirstOrder, options: Options) -> Choice:
    """How the inner integral is computed; the paper's algorithm keeps the paper's estimator."""
    if options.integration is None and solver.is_stochastic:
        return Choice("gaussian", "the paper's estimator goes with the paper's algorithm")
    asked = options.integration
    return model.remember(f"integration {asked}", lambda: integration.choose(model, asked))


def dual_rule(solver: FirstOrder, options: Options) -> str:
    """What becomes of the dual variable: "exact" or "vertex"."""
    return options.dual or ("vertex" if solver.is_stochastic else "exact")


@dataclass(frozen=True)
class Recipe:
    """The smoothed objective up to its draws."""

    model: RobustModel
    choice: Choice
    epsilon: float
    sigma: float | Array
    seed: int
    convex: bool

    def objective(self, draws: int, stage: int) -> Smoothed:
        """The objective with so many draws per sample, from the stream of a stage."""
        rule = self._rule(Scales(self.epsilon, self.sigma, draws))
        kind = Moving if rule.adapts else Smoothed
        found = kind(
            rule,
            size=self.model.joint.size,
            radius=self.model.radius,
            epsilon=self.epsilon,
            sigma=self.sigma,
            convex=self.convex,
            stream=Stream(self.seed, stage),
            probabilities=self.model.joint.probabilities,
        )
        return over_thresholds(found, self.model)

    def _rule(self, scales: Scales) -> Any:
        """The strategy: on the workers of a cluster where they hold the data, else here."""
        client = active_client() if self.model.joint.is_stored else None
        if client is None:
            return self.choice.build(self.model, scales)
        few = self.choice.build(self.model.on_samples(np.arange(1)), scales)
        if not few.exact:
            return self.choice.build(self.model, scales)
        return OverWorkers(self.model, partial(built, self.choice, scales), client)

    def report_draws(self, least: int) -> int:
        """Draws per sample for the reported value."""
        entries = self.model.rows.shape[0] * max(1, self.model.rows.shape[1])
        return max(least, min(REPORT_DRAWS, REPORT_ENTRIES // entries))


def built(choice: Choice, scales: Scales, model: RobustModel) -> Any:
    """The strategy for a part of the data."""
    return choice.build(model, scales)


def surrogate(objective: Smoothed) -> Smoothed | None:
    """A cheaper objective of nearly the same value to begin with, where the strategy has one."""
    easier: Any = objective.integration.surrogate()
    if easier is None:
        return None
    drawn = easier.joint.probabilities
    if drawn is not None and len(drawn) != len(easier.rows):
        drawn = None  # nodes that stand for the samples
    found = Smoothed(
        easier,
        size=len(easier.rows),
        radius=objective.radius,
        epsilon=objective.epsilon,
        sigma=objective.sigma,
        convex=objective.convex,
        stream=objective.stream,
        probabilities=drawn,
    )
    found.noise = COARSE if objective.convex else 0.0
    if isinstance(objective, LeastThresholds):
        return over_thresholds(found, objective.model)
    return found


def over_thresholds(objective: Smoothed, model: Model) -> Any:
    """The objective, minimised over the thresholds of the model where it has some."""
    return objective if model.tails is None else LeastThresholds(objective, model)
