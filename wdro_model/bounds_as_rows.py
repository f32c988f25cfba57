"""How a CVXPY problem reaches a solver: the bounds of its variables are rows like all others.

For solvers that take bounds of variables (HiGHS, SciPy, Gurobi, SCIP...) CVXPY bounds the auxiliary
variables of its atoms by interval arithmetic as well. There 0 * inf is NaN, and the next product
makes it 0: |2 A x| with a zero in A and an unbounded x gets the bounds [0, 0], and the solver calls
A x = 0 optimal. A solver that takes no bounds is given none of these.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from cvxpy.reductions.solvers.defines import SOLVER_MAP_CONIC, SOLVER_MAP_QP
from cvxpy.reductions.solvers.solving_chain import resolve_and_build_chain

INTERFACES = [*SOLVER_MAP_CONIC.items(), *SOLVER_MAP_QP.items()]
WITHOUT_BOUNDS = {name for name, _ in INTERFACES} - {
    name for name, solver in INTERFACES if getattr(solver, "BOUNDED_VARIABLES", True)
}
"""Solvers that get bounds of variables through none of CVXPY's interfaces to them."""


def bounds_as_rows(problem: Any, name: str) -> Any:
    """The solver of that name, for `problem.solve(solver=...)` and `get_problem_data`.

    Raises CVXPY's SolverError where the solver cannot take the problem.
    """
    if name in WITHOUT_BOUNDS:
        return name
    solver = resolve_and_build_chain(problem, solver=name, ignore_dpp=True).solver
    kind: Any = type(solver)
    return _without_bounds(kind) if solver.BOUNDED_VARIABLES else name


@cache
def _without_bounds(kind: Any) -> Any:
    # CVXPY refuses its own names to other solvers, and reads names in any case.
    changes = {"BOUNDED_VARIABLES": False, "name": lambda self: kind.name(self).lower()}
    return type(kind.__name__, (kind,), changes)()
