"""A CVXPY problem in other units of its variables and its rows.

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

from wdro_model.loss.expressions import declared, is_ordinary, power_of_two, times
from wdro_model.objectives.empirical import Program

Rows = Equality | Inequality | Zero


@dataclass(frozen=True)
class Row:
    """A constraint of the user, and what it became."""

    original: Any
    solved: Any
    factor: Any
    """What its rows were multiplied by, a number or one for each."""

    def multipliers(self, unit: float) -> list[Any]:
        """Those of the original constraint, for an objective in its own unit."""
        found = [dual.value for dual in self.solved.dual_variables]
        return [None if value is None else unit * self.factor * value for value in found]


@dataclass(frozen=True)
class Multipliers:
    """Those of the user's constraints."""

    rows: tuple[tuple[Any, list[Any]], ...]

    def save(self) -> None:
        """Write them into the constraints."""
        for constraint, values in self.rows:
            for dual, value in zip(constraint.dual_variables, values):
                dual.save_value(None if value is None else np.asarray(value))


@dataclass(frozen=True)
class Rescaled:
    """A program in some units, ready to be solved, and how its answers are read."""

    problem: cp.Problem
    units: Mapping[cp.Variable, float]
    twins: Mapping[cp.Variable, cp.Variable]
    """The variables in their units, for those that were replaced."""
    rows: tuple[Row, ...]

    def multipliers(self, unit: float) -> Multipliers:
        """Set the variables in the user's units; the multipliers for an objective in `unit`."""
        for variable, twin in self.twins.items():
            variable.save_value(None if twin.value is None else self.units[variable] * twin.value)
        return Multipliers(tuple((row.original, row.multipliers(unit)) for row in self.rows))


def rescaled(
    program: Program, constraints: Sequence[Any], units: Mapping[cp.Variable, float]
) -> Rescaled:
    """A program together with the user's constraints, all rows of order one.

    program: an expression and its constraints, whose variables stand for multiples of their units.
    constraints: in the variables' own units.
    """
    objective, own = program.expression, list(program.constraints)
    twins = {v: _twin(v, size) for v, size in units.items()}
    multiples = {id(v): units[v] * twin for v, twin in twins.items()}
    if twins:
        plain = {id(v): twin for v, twin in twins.items()}
        objective, own = objective.tree_copy(plain), [c.tree_copy(plain) for c in own]
    rows = tuple(
        _ordinary_row(c, multiples) for c in constraints if not isinstance(c, bool | np.bool_)
    )
    problem = cp.Problem(cp.Minimize(objective), [*(row.solved for row in rows), *own])
    return Rescaled(problem, units, twins, rows)


def _twin(variable: cp.Variable, unit: float) -> cp.Variable:
    attributes = declared(variable)
    if "bounds" in attributes:
        attributes["bounds"] = [
            None if bound is None else np.asarray(bound, dtype=float) / unit
            for bound in attributes["bounds"]
        ]
    return cp.Variable(variable.shape, variable.name(), **attributes)


def _ordinary_row(constraint: Any, multiples: Mapping[int, Any]) -> Row:
    """The constraint in the units of its variables, with coefficients of order one."""
    solved = constraint.tree_copy(multiples) if multiples else constraint
    if not isinstance(constraint, Rows):
        return Row(constraint, solved, 1.0)
    sizes = _coefficients(solved.expr)
    if sizes is None or all(is_ordinary(size) for size in np.ravel(sizes[sizes > 0])):
        return Row(constraint, solved, 1.0)
    sizes = np.where(sizes > 0, sizes, 1.0)
    if is_ordinary(float(sizes.max() / sizes.min())):
        factor: Any = 1.0 / power_of_two(float(sizes.max()))
        expression = times(solved.expr, factor)
    else:
        factor = 1.0 / sizes
        expression = cp.multiply(factor, solved.expr)
    changed = expression <= 0 if isinstance(constraint, Inequality) else expression == 0
    return Row(constraint, changed, factor)


def _coefficients(expression: Any) -> np.ndarray | None:
    """How much each row changes with variables of order one; None where it is not defined."""
    variables, rng = expression.variables(), np.random.default_rng(0)
    kept = [v.value for v in variables]
    try:
        found = []
        for noise in (0.0, 1.0):
            for v in variables:
                v.save_value(v.project(noise * rng.uniform(0.5, 1.5, size=v.shape)))
            with np.errstate(all="ignore"):
                found.append(expression.value)
    finally:
        for v, old in zip(variables, kept):
            v.save_value(old)
    if any(value is None or not np.all(np.isfinite(value)) for value in found):
        return None
    return np.abs(np.asarray(found[1], dtype=float) - np.asarray(found[0], dtype=float))
