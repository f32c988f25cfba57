"""A CVXPY problem in other units of its variables, its rows and its objective.

Solvers stop at absolute tolerances, relative to the largest right-hand side at best: a row in
millions loosens all others, a decision in millions is found as if in ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.constraints import Equality, Inequality, Zero

from wdro_model.loss.homogeneous import times
from wdro_model.loss.magnitudes import declared, is_ordinary, is_scalable, power_of_two

Rows = Equality | Inequality | Zero


@dataclass(frozen=True)
class Version:
    """A program in some units, ready to be solved, and how its answers are read."""

    problem: cp.Problem
    units: Mapping[cp.Variable, float]
    twins: Mapping[cp.Variable, cp.Variable]
    """The variables in their units, for those that were replaced."""

    def save(self) -> None:
        """Write the values into the original variables."""
        for variable, twin in self.twins.items():
            variable.save_value(None if twin.value is None else self.units[variable] * twin.value)


def version(
    program: Any, constraints: Sequence[Any], units: Mapping[cp.Variable, float]
) -> Version:
    """A program together with the user's constraints, all rows of order one.

    program: an expression and its constraints, whose variables stand for multiples of their units.
    constraints: in the variables' own units.
    """
    objective, own = program.expression, list(program.constraints)
    twins = {v: _twin(v, size) for v, size in units.items()}
    if twins:
        plain = {id(v): twin for v, twin in twins.items()}
        objective, own = objective.tree_copy(plain), [c.tree_copy(plain) for c in own]
        multiples = {id(v): units[v] * twin for v, twin in twins.items()}
        constraints = [c if isinstance(c, bool) else c.tree_copy(multiples) for c in constraints]
    rows = [_ordinary_rows(c) for c in (*constraints, *own)]
    return Version(cp.Problem(cp.Minimize(objective), rows), units, twins)


def are_right(variables: Sequence[cp.Variable], units: Mapping[cp.Variable, float]) -> bool:
    """Are the values of the variables of the size of their units?"""
    sizes = sizes_of(variables)
    return all(is_ordinary(size / units.get(v, 1.0)) for v, size in sizes.items())


def sizes_of(variables: Sequence[cp.Variable]) -> dict[cp.Variable, float]:
    """The largest entries of the variables' values, where they are not zero and can be scaled."""
    return {v: size for v in variables if is_scalable(v) and (size := _size(v)) > 0}


def unusual(units: Mapping[cp.Variable, float]) -> dict[cp.Variable, float]:
    """Those units that are far from one, as powers of two."""
    return {v: power_of_two(unit) for v, unit in units.items() if not is_ordinary(unit)}


def _size(variable: cp.Variable) -> float:
    """The largest entry of the variable's value; 0 without one."""
    size = 0.0 if variable.value is None else float(np.abs(variable.value).max(initial=0.0))
    return size if np.isfinite(size) else 0.0


def _twin(variable: cp.Variable, unit: float) -> cp.Variable:
    attributes = declared(variable)
    if "bounds" in attributes:
        attributes["bounds"] = [
            None if bound is None else np.asarray(bound, dtype=float) / unit
            for bound in attributes["bounds"]
        ]
    return cp.Variable(variable.shape, variable.name(), **attributes)


def _ordinary_rows(constraint: Any) -> Any:
    """An equality or inequality with constants of order one; others are left alone."""
    if not isinstance(constraint, Rows):
        return constraint
    sizes = _constants(constraint.expr)
    if sizes is None or all(is_ordinary(size) for size in sizes[sizes > 0]):
        return constraint
    sizes = np.where(sizes > 0, sizes, 1.0)
    if not is_ordinary(float(sizes.max() / sizes.min())):
        expression = cp.multiply(1.0 / sizes, constraint.expr)
    else:
        expression = times(constraint.expr, 1.0 / power_of_two(float(sizes.max())))
    return expression <= 0 if isinstance(constraint, Inequality) else expression == 0


def _constants(expression: Any) -> np.ndarray | None:
    """The size of each row where all variables are zero; None where it is not defined there."""
    variables = expression.variables()
    kept = [v.value for v in variables]
    try:
        for v in variables:
            v.save_value(np.zeros(v.shape))
        with np.errstate(all="ignore"):
            value = expression.value
    finally:
        for v, old in zip(variables, kept):
            v.save_value(old)
    if value is None or not np.all(np.isfinite(value)):
        return None
    return np.abs(np.asarray(value, dtype=float))
