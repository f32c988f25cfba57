"""A decision of one method, and what is recorded of it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.errors import ConvexityWarning, SamplingWarning
from wdro_model.problem import Problem
from wdro_model.solve.certify import Solution
from wdro_model.solvers import MomentumFrankWolfe
from wdro_model.solvers.driver import Stop

OWN_ESTIMATE = 100
"""The paper's algorithm promises the mean of so many of its last estimates."""


@dataclass(frozen=True)
class Decision:
    """What a method decided, promised and took. Fields that do not apply are None."""

    method: str
    x: np.ndarray
    promise: float
    """What the method says the mean loss will be, or at most be."""
    status: str
    seconds: float
    relative_gap: float | None = None
    """Frank-Wolfe gap over |value|, of ERM, exact or smoothed objective by a full gradient."""
    iterations: int | None = None
    dual: float | None = None
    dual_bound: float | None = None
    draws: int | None = None
    effective_draws: float | None = None
    """Median effective sample size of the draws, at the decision and its dual."""
    smoothed_value: float | None = None
    """The smoothed objective at the decision, its dual minimised out."""
    robust_value: float | None = None
    """The exact worst-case risk of the decision."""
    squared_length: float | None = None
    """|x|^2."""

    def record(self, losses: dict[str, np.ndarray]) -> dict[str, Any]:
        """Everything as JSON knows it, with the losses by the name of the scenario set."""
        out = {key: value for key, value in vars(self).items() if key not in ("method", "x")}
        out["decision"] = self.x.tolist()
        out["losses"] = {name: values.tolist() for name, values in losses.items()}
        return out


def solved(name: str, problem: Problem, **arguments: Any) -> Decision:
    """The decision of one solve."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        # Status and effective sample size stand in the table.
        warnings.simplefilter("ignore", ConvexityWarning)
        warnings.simplefilter("ignore", SamplingWarning)
        problem.solve(progress=False, **arguments)
    solution = problem.solution
    assert solution is not None
    if solution.stop == Stop.INTERRUPT.value:
        raise KeyboardInterrupt  # half a run is no result
    return Decision(
        name,
        np.array(problem._model.feasible.layout.join(solution.decision)),
        promise=promise(solution, arguments),
        status=solution.status,
        seconds=time.perf_counter() - began,
        relative_gap=solution.relative_gap,
        iterations=solution.iterations,
        dual=solution.dual,
        dual_bound=solution.dual_bound,
        draws=None if solution.diagnostics is None else solution.diagnostics.draws,
        effective_draws=solution.effective_sample_size,
    )


def promise(solution: Solution, arguments: Mapping[str, Any]) -> float:
    """The value; of the paper's algorithm the mean of its own last estimates."""
    if isinstance(arguments.get("solver"), MomentumFrankWolfe):
        return float(solution.trace["value"][-OWN_ESTIMATE:].mean())
    return solution.value
