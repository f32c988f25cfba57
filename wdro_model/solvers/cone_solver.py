"""A conic or quadratic program, handed to a solver through CVXPY."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import cvxpy as cp
from cvxpy import settings
from cvxpy.error import SolverError

from wdro_model.bounds_as_rows import bounds_as_rows, official_name
from wdro_model.errors import InfeasibleError, UnboundedError
from wdro_model.solvers.kept_constraints import check_constraints

MIXED_INTEGER = ("HIGHS", "SCIP", "GUROBI", "MOSEK", "COPT", "XPRESS", "CPLEX")
"""Solvers for integer variables: the one for linear programs first, those for cones after it."""

UNDECIDED = {
    settings.INFEASIBLE_INACCURATE: "any point meets all the constraints",
    settings.UNBOUNDED_INACCURATE: "the objective is bounded",
    settings.INFEASIBLE_OR_UNBOUNDED: "the feasible set is empty or the objective unbounded",
}
"""Statuses that leave something open, and what."""


@dataclass(frozen=True)
class ConicAnswer:
    """What a conic solver says: the value, CVXPY's status, its name and its iterations."""

    value: float
    status: str
    solver: str
    iterations: int | None

    @classmethod
    def of(cls, problem: cp.Problem, unit: float = 1.0) -> ConicAnswer:
        """unit: what the objective of the problem is measured in."""
        stats = problem.solver_stats
        name = official_name(stats.solver_name)
        return cls(unit * float(problem.value), problem.status, name, stats.num_iters)


@dataclass(frozen=True)
class Conic:
    """A solver behind CVXPY: `Conic("SCS", {...})` names one.

    `Conic()` is Clarabel for continuous programs; with integer variables HiGHS, or the first
    installed solver that takes cones as well.
    """

    solver: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Passed to `cvxpy.Problem.solve`."""

    is_conic: ClassVar[bool] = True
    is_stochastic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.options, Mapping):
            raise ValueError(
                f"options of Conic must be a dict, got {self.options!r}; write Conic('SCS', "
                "{'eps': 1e-6})."
            )
        if self.solver is None:
            return
        if not isinstance(self.solver, str):
            raise ValueError(
                f"Conic takes the name of a solver, got {self.solver!r}; installed: "
                f"{', '.join(cp.installed_solvers())}."
            )
        if self.solver.upper() in cp.installed_solvers():
            object.__setattr__(self, "solver", self.solver.upper())
        elif self.solver not in cp.installed_solvers():
            raise ValueError(
                f"the solver {self.solver!r} is not installed; installed: "
                f"{', '.join(cp.installed_solvers())}."
            )

    def run(self, problem: cp.Problem, *, verbose: bool = False) -> None:
        """Solve in place; an infeasible or unbounded program is an error that says so."""
        self._solve(problem, verbose)
        if problem.status == settings.INFEASIBLE:
            raise InfeasibleError(
                "the feasible set is empty: no point meets all the constraints; "
                "relax or remove one of them."
            )
        if problem.status == settings.UNBOUNDED:
            raise UnboundedError(
                "the objective is unbounded below over the feasible set; bound the variables, "
                "for example by x <= 10, or check the sign of the loss."
            )

        if problem.status in UNDECIDED:
            raise SolverError(
                f"the solver could not tell whether {UNDECIDED[problem.status]}; rescale the data, "
                "so that losses and radius are of order 1, or use another solver."
            )

    def _solve(self, problem: cp.Problem, verbose: bool) -> None:
        """By the solver that was named, or the first of the preferred ones that can."""
        names = [self.solver] if self.solver is not None else preferred(problem)
        failure = SolverError("no installed solver takes a mixed-integer program with cones.")
        for name in names:
            try:
                solver = bounds_as_rows(problem, name)
                problem.solve(solver=solver, verbose=verbose, **self.options)
                if problem.status == settings.OPTIMAL:
                    check_constraints(problem, name)
                return
            except SolverError as error:
                failure = error
            except ImportError as error:
                failure = SolverError(
                    f"the solver {name} is installed but cannot be loaded ({error}); use another "
                    f"one: {', '.join(n for n in cp.installed_solvers() if n != name)}."
                )
        raise failure

    def describe(self) -> str:
        return f"conic solver {self.solver or 'CLARABEL (mixed-integer: HIGHS, or one for cones)'}"


def preferred(problem: cp.Problem) -> list[str]:
    """Interior points for continuous programs, accurate where first-order solvers are not."""
    if not problem.is_mixed_integer():
        return [cp.CLARABEL]
    return [name for name in MIXED_INTEGER if name in cp.installed_solvers()]
