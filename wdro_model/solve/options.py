"""The options of a solve, and the settings of a smoothed objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from wdro_model.checks import number
from wdro_model.errors import did_you_mean, unknown_name
from wdro_model.model import Model, RobustModel
from wdro_model.objectives import integration
from wdro_model.objectives.integration import STRATEGIES, Choice, Integration, Scales, Stream
from wdro_model.objectives.integration.over_workers import OverWorkers
from wdro_model.objectives.least_thresholds import LeastThresholds
from wdro_model.objectives.smoothed_risk import Moving, Smoothed
from wdro_model.solvers import Conic, FrankWolfe, MomentumFrankWolfe, QuasiNewton, Solver
from wdro_model.solvers.features import Feature
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.samples import active_client

if TYPE_CHECKING:
    from wdro_model.solve.certify import Solution


DUALS = ("exact", "vertex")
Method = Literal["auto", "erm", "exact", "smoothed"]
IntegrationName = Literal[
    "closed_form",
    "separable",
    "low_rank",
    "norms",
    "cells",
    "conditional",
    "tilted",
    "gaussian",
]
DualName = Literal["exact", "vertex"]


class SolveOptions(TypedDict, total=False):
    """The keywords of `Problem.solve` beside solver and time limit, for type checkers."""

    epsilon: float | None
    sigma: ArrayLike | None
    integration: IntegrationName | None
    dual: DualName | None
    seed: int
    start: Mapping[Any, Any] | Solution | None
    relax: bool
    verbose: bool
    progress: bool


@dataclass(frozen=True)
class Options:
    """Checked options of one solve."""

    epsilon: float | None = None
    sigma: Any = None
    integration: str | None = None
    dual: str | None = None
    seed: int = 0
    start: Any = None
    relax: bool = False
    verbose: bool = False
    progress: bool = True

    @classmethod
    def of(cls, given: Mapping[str, Any], *more: str) -> Options:
        """Those that were given by name; a name that is not known is refused.

        more: what else the caller takes.
        """
        for name in given:
            if name not in cls.__dataclass_fields__:
                others = [*cls.__dataclass_fields__, "method", "solver", "time_limit", *more]
                raise TypeError(unknown_name("option", name, others))
        return cls(**given)

    def method(self, asked: Method, radius: float) -> Method:
        """The method: an option of the smoothing asks for it, where it is left open."""
        smoothing = (self.epsilon, self.sigma, self.integration, self.dual)
        if asked == "auto" and radius > 0 and any(option is not None for option in smoothing):
            return "smoothed"
        return asked

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            number("epsilon", self.epsilon, low=0, open=True)
        if self.sigma is not None:
            check_sigma(self.sigma)
        for name in ("relax", "verbose", "progress"):
            if not isinstance(getattr(self, name), (bool, np.bool_)):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}.")
        if self.integration is not None and self.integration not in STRATEGIES:
            raise ValueError(unknown_name("integration", self.integration, STRATEGIES))
        if self.dual is not None and self.dual not in DUALS:
            raise ValueError(unknown_name("dual", self.dual, DUALS))
        if isinstance(self.seed, bool) or not isinstance(self.seed, (int, np.integer)):
            raise ValueError(f"seed must be an integer, got {self.seed!r}.")
        if not 0 <= int(self.seed) < 2**63:
            raise ValueError(f"seed must be between 0 and 2**63 - 1, got {self.seed}.")


def check_sigma(value: Any) -> None:
    """Refuse what is not a positive number or an array of them."""
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        array = np.array(np.nan)
    if not np.all(np.isfinite(array) & (array > 0)):
        raise ValueError(
            "sigma must be a positive number, or an array of one for each coordinate of the data, "
            f"got {value!r}."
        )


def check_solver(solver: Any) -> Solver | None:
    """None or one of the library's solvers."""
    if solver is None or isinstance(solver, Solver):
        return solver
    installed = cp.installed_solvers()
    if isinstance(solver, str) and solver.upper() in installed:
        return Conic(solver)
    near = did_you_mean(solver.upper(), installed) if isinstance(solver, str) else ""
    raise ValueError(
        "solver must be FrankWolfe(...), QuasiNewton(...), MomentumFrankWolfe(...), "
        "Simplicial(...), BranchAndBound(...), Aggregation(...), Conic(...) or the name of a CVXPY "
        "solver "
        f"(installed: {', '.join(installed)}), got {solver!r}.{near}"
    )


def check_time_limit(seconds: Any) -> float | None:
    """None or a positive number of seconds."""
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | np.number):
        raise ValueError(f"time_limit must be a positive number of seconds, got {seconds!r}.")
    if not seconds > 0:
        raise ValueError(
            f"time_limit must be a positive number of seconds, got {seconds!r}; "
            "leave it out for none."
        )
    return float(seconds)


def with_time_limit(solver: Solver, seconds: float | None) -> Solver:
    """A solver of the library's own with a time limit, its own one if that is shorter."""
    if seconds is None or isinstance(solver, Conic):
        return solver
    own = np.inf if solver.time_limit is None else solver.time_limit
    return replace(solver, time_limit=min(own, max(seconds, 1e-9)))


# ------------------------------
# What a smoothed objective is made of, up to its draws


REPORT_DRAWS = 1000
REPORT_ENTRIES = 2**26
"""The final value takes up to so many draws per sample, and so many numbers in all."""

COARSE = 1e-6
"""Relative error of the values of a cheaper objective, which changes its nodes as it goes."""

FirstOrder = FrankWolfe | QuasiNewton | MomentumFrankWolfe


def choose_integration(model: RobustModel, solver: FirstOrder, options: Options) -> Choice:
    """How the inner integral is computed; the paper's algorithm keeps the paper's estimator."""
    if options.integration is None and Feature.FULL_GRADIENTS not in solver.features:
        return Choice("gaussian", "the paper's estimator goes with the paper's algorithm")
    asked = options.integration
    return model.remember(f"integration {asked}", lambda: integration.choose(model, asked))


def dual_rule(solver: FirstOrder, options: Options) -> str:
    """What becomes of the dual variable: "exact" or "vertex"."""
    sees_all_samples = Feature.FULL_GRADIENTS in solver.features
    return options.dual or ("exact" if sees_all_samples else "vertex")


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

    def _rule(self, scales: Scales) -> Integration:
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


def built(choice: Choice, scales: Scales, model: RobustModel) -> Integration:
    """The strategy for a part of the data."""
    return choice.build(model, scales)


def surrogate(objective: Smoothed) -> Smoothed | None:
    """A cheaper objective of nearly the same value to begin with, where the strategy has one."""
    easier = objective.integration.surrogate()
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
