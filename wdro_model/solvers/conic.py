"""A conic or quadratic program, handed to a solver through CVXPY."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy import settings

from wdro_model.errors import InfeasibleError, UnboundedError

FAR = 1e3
"""Decisions within this factor of one are left in their units."""
SCALABLE = ("nonneg", "nonpos", "pos", "neg", "bounds")
"""Attributes of a variable that mean the same in another unit."""


@dataclass(frozen=True)
class Answer:
    """What a conic solver says: the value, CVXPY's status, its name and its iterations."""

    value: float
    status: str
    solver: str
    iterations: int | None

    @classmethod
    def of(cls, problem: cp.Problem) -> Answer:
        stats = problem.solver_stats
        return cls(float(problem.value), problem.status, stats.solver_name, stats.num_iters)


@dataclass(frozen=True)
class Conic:
    """CVXPY's own solve: `Conic()` lets CVXPY choose, `Conic("CLARABEL", {...})` does not."""

    solver: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Passed to `cvxpy.Problem.solve`."""

    def __post_init__(self) -> None:
        if self.solver is not None and self.solver not in cp.installed_solvers():
            raise ValueError(
                f"the solver {self.solver!r} is not installed; installed: "
                f"{', '.join(cp.installed_solvers())}."
            )

    def run(self, problem: cp.Problem, *, verbose: bool = False) -> None:
        """Solve in place; an infeasible or unbounded program is an error that says so."""
        chosen = self.solver or preferred(problem)
        # CVXPY multiplies infinite bounds of variables by zeros of the data, and drops the result.
        with np.errstate(invalid="ignore"):
            problem.solve(solver=chosen, verbose=verbose, **self.options)
        if problem.status in (settings.INFEASIBLE, settings.INFEASIBLE_INACCURATE):
            raise InfeasibleError(
                "the feasible set is empty: no point meets all the constraints; "
                "relax or remove one of them."
            )
        if problem.status == settings.UNBOUNDED:
            raise UnboundedError(
                "the objective is unbounded below over the feasible set; bound the variables, "
                "for example by x <= 10, or check the sign of the loss."
            )

        if problem.status == settings.UNBOUNDED_INACCURATE:
            raise cp.error.SolverError(
                "the solver could not tell whether the objective is bounded; rescale the data, so "
                "that losses and radius are of order 1, or use another solver."
            )

    def run_in_units(
        self, problem: cp.Problem, variables: Sequence[cp.Variable], *, verbose: bool = False
    ) -> Answer:
        """Solve, and again in units of the answer where it is far from order one.

        Solvers stop at absolute tolerances; a decision in millions is found as if in ones.
        """
        self.run(problem, verbose=verbose)
        units = {v: _unit(v) for v in variables}
        if all(unit == 1.0 for unit in units.values()):
            return Answer.of(problem)
        twins = {v: _in_units(v, unit) for v, unit in units.items() if unit != 1.0}
        scaled = {id(v): units[v] * twin for v, twin in twins.items()}
        again = cp.Problem(
            cp.Minimize(problem.objective.expr.tree_copy(scaled)),
            [constraint.tree_copy(scaled) for constraint in problem.constraints],
        )
        try:
            self.run(again, verbose=verbose)
        except (cp.error.SolverError, InfeasibleError, UnboundedError):
            return Answer.of(problem)
        for variable, twin in twins.items():
            variable.save_value(units[variable] * twin.value)
        return Answer.of(again)

    def describe(self) -> str:
        return f"conic solver {self.solver or 'CLARABEL (mixed-integer: chosen by CVXPY)'}"


def preferred(problem: cp.Problem) -> str | None:
    """An interior-point solver for continuous programs, accurate where first-order ones are not."""
    return None if problem.is_mixed_integer() else cp.CLARABEL


def _unit(variable: cp.Variable) -> float:
    """The size of the variable's value, as a power of two; 1 where it is ordinary or fixed."""
    size = 0.0 if variable.value is None else float(np.abs(variable.value).max())
    plain = set(_declared(variable)) <= set(SCALABLE)
    if not plain or not np.isfinite(size) or size == 0.0 or 1.0 / FAR <= size <= FAR:
        return 1.0
    return float(2.0 ** np.round(np.log2(size)))


def _in_units(variable: cp.Variable, unit: float) -> cp.Variable:
    declared = _declared(variable)
    if "bounds" in declared:
        declared["bounds"] = [
            None if bound is None else np.asarray(bound, dtype=float) / unit
            for bound in declared["bounds"]
        ]
    return cp.Variable(variable.shape, variable.name(), **declared)


def _declared(variable: cp.Variable) -> dict[str, Any]:
    return {k: v for k, v in variable.attributes.items() if v is not None and v is not False}
