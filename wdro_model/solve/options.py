"""The options of a solve, checked: method, solver, limits, smoothing, and where it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from wdro_model.checks import choice, flag, number, refuse, whole_number
from wdro_model.errors import did_you_mean, unknown_name
from wdro_model.model import Model, RobustModel
from wdro_model.model.feasible import meets
from wdro_model.objectives import integration
from wdro_model.objectives.integration import STRATEGIES, Choice
from wdro_model.solve.certify import Solution
from wdro_model.solvers import (
    ActiveSet,
    Conic,
    FrankWolfe,
    MomentumFrankWolfe,
    QuasiNewton,
    Solver,
)
from wdro_model.solvers.features import Feature
from wdro_model.solvers.objective import Array

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
    def from_keywords(cls, given: Mapping[str, Any], *more: str) -> Options:
        """The options with these names; an unknown name is a TypeError.

        more: names of other arguments of the caller, for the message.
        """
        for name in given:
            if name not in cls.__dataclass_fields__:
                others = [*cls.__dataclass_fields__, "method", "solver", "time_limit", *more]
                raise TypeError(unknown_name("option", name, others))
        return cls(**given)

    def method(self, asked: Method, radius: float) -> Method:
        """The method to be planned: "auto" with an option of the smoothing means "smoothed"."""
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
            flag(name, getattr(self, name))
        if self.integration is not None:
            choice("integration", self.integration, STRATEGIES)
        if self.dual is not None:
            choice("dual", self.dual, DUALS)
        whole_number("seed", self.seed, low=0, high=2**63 - 1)


def check_sigma(value: Any) -> None:
    """Raise a ValueError unless sigma is a positive number or an array of them."""
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        array = np.array(np.nan)
    if not np.all(np.isfinite(array) & (array > 0)):
        kind = "a positive number, or an array of one for each coordinate of the data"
        raise refuse("sigma", kind, value)


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
    is_number = isinstance(seconds, int | float | np.number) and not isinstance(seconds, bool)
    if not is_number or not seconds > 0:
        raise refuse("time_limit", "a positive number of seconds", seconds, "leave it out for none")
    return float(seconds)


def with_time_limit(solver: Solver, seconds: float | None) -> Solver:
    """The solver with a time limit, or its own if that is shorter; `Conic` has none."""
    if seconds is None or isinstance(solver, Conic):
        return solver
    limits = [max(seconds, 1e-9), *([] if solver.time_limit is None else [solver.time_limit])]
    return replace(solver, time_limit=min(limits))


FirstOrder = FrankWolfe | QuasiNewton | MomentumFrankWolfe


def choose_integration(model: RobustModel, solver: FirstOrder, options: Options) -> Choice:
    """The strategy for the inner integral; the paper's algorithm keeps the paper's estimator."""
    asked = options.integration
    if asked is None and Feature.FULL_GRADIENTS not in solver.features:
        return Choice("gaussian", "the paper's estimator goes with the paper's algorithm")
    return model.remember(f"integration {asked}", lambda: integration.choose(model, asked))


def dual_rule(solver: FirstOrder, options: Options) -> str:
    """The name of the rule for the dual variable: "exact" or "vertex"."""
    sees_all_samples = Feature.FULL_GRADIENTS in solver.features
    return options.dual or ("exact" if sees_all_samples else "vertex")


# ------------------------------------------------------------------ a start that is given
def user_start(model: Model, start: Any, name: str = "start") -> Array:
    """A decision of the user, {variable: value} or a solution, as a flat vector."""
    layout = model.feasible.layout
    values = start.everything if isinstance(start, Solution) else start
    if not hasattr(values, "items"):
        raise ValueError(
            f"{name} must be a dict {{variable: value}} or a solution, got {type(start).__name__}."
        )
    for variable in layout.user_variables:
        if variable not in values:
            raise ValueError(f"{name} has no value for the variable {variable.name()!r}.")
        value = np.asarray(values[variable], dtype=float)
        if value.shape != variable.shape:
            raise ValueError(
                f"{name} for {variable.name()!r} must have shape {variable.shape}, "
                f"got {value.shape}."
            )
        if not np.isfinite(value).all():
            where = tuple(map(int, np.argwhere(~np.isfinite(value))[0]))
            raise ValueError(
                f"{name} for {variable.name()!r} must be finite, got {value[where]} at {where}."
            )
    return layout.join(values)


def refuse_outside(model: Model, x: Array, tolerance: float = 1e-5) -> None:
    """Raise a ValueError if a start is not feasible: no gap would hold for it."""
    lower, upper = model.feasible.bounds()
    outside = bool(np.any(x < lower - tolerance) or np.any(x > upper + tolerance))
    with model.feasible.layout.holding(x):
        outside = outside or not meets(model.feasible.constraints, tolerance)
    outside = outside or model.feasible.exceeds(x, tolerance)
    if outside:
        raise ValueError(
            "start lies outside the feasible set; give a point that meets the constraints, such as "
            "an earlier solution."
        )


def warm_active_set(model: Model, start: Any) -> ActiveSet | None:
    """The active set of a start, if it is a solution of this model that has one."""
    active = start.active_set if isinstance(start, Solution) else None
    fits = active is not None and active.dimension == model.feasible.layout.dimension
    return active if fits else None
