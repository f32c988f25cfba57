"""What a user may ask of a solve, beside the method and the solver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from wdro_model.errors import did_you_mean, unknown_name
from wdro_model.objectives.integration import STRATEGIES
from wdro_model.solvers import Conic, Solver
from wdro_model.solvers.frank_wolfe import check_positive

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
            check_positive("epsilon", self.epsilon)
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
