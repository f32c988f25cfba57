"""Aggregation of samples: those that agree on their largest piece are one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.solvers.frank_wolfe import check_count, check_positive, check_time


@dataclass(frozen=True)
class Aggregation:
    """Many samples and a loss of few affine pieces: most samples are far from a change of piece.

    Newton steps on a smoothed maximum, ever less smooth, lead near the optimum. There a conic
    program holds the samples next to a change of piece, and the mean of all that agree on theirs:
    a lower bound, and the optimum itself as soon as its decision changes the piece of no other.
    Those that it does change stand alone from then on. Absolute and quantile regression, support
    vector machines, CVaR, newsvendors; at thousands of samples it is chosen by itself.

    Examples
    --------
    >>> import cvxpy as cp, numpy as np, wdro_model as wdro
    >>> rng = np.random.default_rng(0)
    >>> features, x = rng.normal(size=(500, 3)), cp.Variable(3)
    >>> xi = wdro.UncertainParameter(3, samples=features)
    >>> y = wdro.UncertainParameter(samples=features.sum(axis=1) + rng.normal(size=500))
    >>> ball = wdro.WassersteinBall(0.01, wdro.costs.Norm(2))
    >>> problem = wdro.Problem(cp.Minimize(cp.abs(y - xi @ x)), [], ambiguity=ball)
    >>> value = problem.solve(solver=wdro.solvers.Aggregation())
    >>> bool(np.isclose(value, problem.solve(solver="CLARABEL"), rtol=1e-6))
    True
    """

    gap: float = 1e-6
    """Stop when value - lower bound is at most this fraction of |value|."""
    max_iterations: int = 50
    """Conic programs that are solved, at most."""
    time_limit: float | None = None
    """Seconds."""

    is_conic: ClassVar[bool] = True
    is_stochastic: ClassVar[bool] = False
    stage: ClassVar[str | None] = "aggregation"

    def __post_init__(self) -> None:
        check_positive("gap", self.gap, zero=True)
        check_count("max_iterations", self.max_iterations)
        check_time(self.time_limit)

    def describe(self, feasible: FeasibleSet | None = None) -> str:
        return f"aggregation of samples that agree on their piece, relative gap {self.gap:g}"
