"""What is kept of a solve for the next one: the ball's radius as a parameter, compiled programs.

CVXPY compiles a program once if what changes in it are parameters that enter affinely. Certain
parameters are that already; the radius becomes one here. A program is written anew where numbers
were worked into it: those of certain parameters that stand beside uncertain ones in one term.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.binary_operators import MulExpression, multiply
from cvxpy.atoms.affine.unary_operators import NegExpression

from wdro_model.uncertainty.parameter import UncertainParameter

MOST_KEPT = 8
"""Programs of one model that are kept: methods and solvers that are used in turn."""


@dataclass(frozen=True, eq=False)
class Budget:
    """The radius of a ball and its root, as parameters of a program."""

    radius: cp.Parameter = field(
        default_factory=lambda: cp.Parameter(nonneg=True, name="radius", value=0.0)
    )
    root: cp.Parameter = field(
        default_factory=lambda: cp.Parameter(nonneg=True, name="root of the radius", value=0.0)
    )

    def set(self, radius: float) -> None:
        """Give them their values, before a program is solved."""
        self.radius.save_value(np.float64(radius))  # a ball has checked it
        self.root.save_value(np.float64(math.sqrt(radius)))


class Shelf:
    """What was used last, by a key."""

    def __init__(self) -> None:
        self.kept: dict[Any, Any] = {}

    def keep(self, key: Any, entry: Any) -> None:
        """Keep what was compiled; the entry that was used longest ago makes room."""
        self.kept.pop(key, None)
        self.kept[key] = entry
        if len(self.kept) > MOST_KEPT:
            del self.kept[next(iter(self.kept))]

    def find(self, key: Any) -> Any | None:
        """What was kept under a key."""
        entry = self.kept.pop(key, None)
        if entry is not None:
            self.kept[key] = entry
        return entry


class Programs(Shelf):
    """Compiled programs of models that differ in the radius and in certain parameters alone."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget()
        self._mixed: list[cp.Parameter] | None = None

    def worked_in(self, expression: Any) -> tuple[bytes, ...]:
        """The values of those certain parameters of the loss that programs may hold as numbers."""
        if self._mixed is None:
            self._mixed = mixed_parameters(expression)
        return values_of(self._mixed)


def values_of(parameters: list[cp.Parameter]) -> tuple[bytes, ...]:
    """The values of some parameters, to be compared."""
    return tuple(_bytes(parameter.value) for parameter in parameters)


def _bytes(value: Any) -> bytes:
    dense = value.toarray() if hasattr(value, "toarray") else value
    return np.asarray(dense, dtype=float).tobytes()


def mixed_parameters(expression: Any) -> list[cp.Parameter]:
    """Certain parameters that stand beside uncertain ones in one term of a sum."""
    found: dict[int, cp.Parameter] = {}
    for term in _terms(expression):
        parameters = term.parameters()
        if any(isinstance(p, UncertainParameter) for p in parameters):
            found |= {p.id: p for p in parameters if not isinstance(p, UncertainParameter)}
    return list(found.values())


def _terms(expression: Any) -> list[Any]:
    """The terms of a sum, through multiples of it by a number."""
    if isinstance(expression, AddExpression):
        return [term for part in expression.args for term in _terms(part)]
    if isinstance(expression, NegExpression):
        return _terms(expression.args[0])
    if isinstance(expression, MulExpression | multiply):
        numbers = [a for a in expression.args if isinstance(a, cp.Constant) and a.size == 1]
        others = [a for a in expression.args if not (isinstance(a, cp.Constant) and a.size == 1)]
        if numbers and len(others) == 1:
            return _terms(others[0])
    return [expression]
