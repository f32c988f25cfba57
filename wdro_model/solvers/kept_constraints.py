"""Does the point that a solver calls optimal keep the constraints?

Solvers stop at tolerances of their own, between 1e-4 and 1e-9, in units of their own. What is
further off than all of these, relative to the terms of a constraint, is no solution.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.errors import InaccurateError

BROKEN = 1e-3
"""How far a constraint may be from holding, relative to its terms or to one."""
PROBE = 1e-3
"""The relative change of the variables that shows how large the terms of a constraint are."""


def check_constraints(problem: cp.Problem, solver: str) -> None:
    """Raise InaccurateError if the values of the variables break a constraint or an attribute."""
    for constraint in problem.constraints:
        violation = _violation(constraint)
        if violation > BROKEN and violation > BROKEN * _size_of_terms(constraint):
            raise InaccurateError(
                _message(solver, f"the constraint {_short(constraint)}", violation)
            )
    for variable, violation in _outside(problem.variables()):
        if violation > BROKEN * max(1.0, float(np.abs(variable.value).max(initial=0.0))):
            what = f"an attribute of the variable {variable.name()!r}"
            raise InaccurateError(_message(solver, what, violation))


def _violation(constraint: Any) -> float:
    """The largest violation; 0 where it cannot be computed."""
    with np.errstate(all="ignore"):
        found = np.asarray(constraint.violation(), dtype=float)
    worst = float(np.abs(found).max(initial=0.0))
    return worst if np.isfinite(worst) else 0.0


def _size_of_terms(constraint: Any) -> float:
    """How large the terms are whose sum is compared: what the sum changes by, over the change."""
    variables, rng = constraint.variables(), np.random.default_rng(0)
    kept = [variable.value for variable in variables]
    here = [np.asarray(part.value, dtype=float) for part in constraint.args]
    size = max((float(np.abs(part).max(initial=0.0)) for part in here), default=0.0)
    try:
        for variable, value in zip(variables, kept):
            move = rng.uniform(0.5, 1.0, np.shape(value)) * rng.choice([-1.0, 1.0], np.shape(value))
            variable.save_value(value * (1.0 + PROBE * move))
        with np.errstate(all="ignore"):
            there = [np.asarray(part.value, dtype=float) for part in constraint.args]
    finally:
        for variable, value in zip(variables, kept):
            variable.save_value(value)
    changes = [float(np.abs(b - a).max(initial=0.0)) / PROBE for a, b in zip(here, there)]
    return max([size, *(change for change in changes if np.isfinite(change))])


def _outside(variables: list[cp.Variable]) -> Iterator[tuple[cp.Variable, float]]:
    """The variables with attributes, and how far their values are from them."""
    for variable in variables:
        if any(value is not None and value is not False for value in variable.attributes.values()):
            distance = np.abs(variable.value - variable.project(variable.value))
            yield variable, float(distance.max())


def _message(solver: str, what: str, violation: float) -> str:
    return (
        f"{solver} called a point optimal that violates {what} by {violation:.1e}; measure the "
        "data in units in which losses, decisions and radius are of order 1, or use another solver."
    )


def _short(constraint: Any) -> str:
    text = str(constraint)
    return text if len(text) <= 80 else text[:77] + "..."
