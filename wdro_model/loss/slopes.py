"""f = a(x) + sum_p <B_p(x), xi_p>: the parts of a loss that is affine in the data, symbolically.

B is the derivative in the data, by a reverse pass whose adjoints are CVXPY expressions; since the
degree is one they contain no data. Both keep the curvature that CVXPY knows, so that a dual norm
of B can be written down where B is affine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.expressions.leaf import Leaf

from wdro_model.loss.atoms.expressions import as_scalar, total
from wdro_model.loss.atoms.facts import brief, facts_of
from wdro_model.loss.polynomial import Degrees
from wdro_model.loss.walk import Walk


@dataclass(frozen=True)
class AffineParts:
    """A scalar expression as constant + sum_p sum(multiply(slopes[p], p))."""

    constant: Any
    """a(x), a CVXPY expression of shape ()."""
    slopes: dict[Any, Any]
    """B_p(x) for each parameter, a CVXPY expression of the parameter's shape; zero if absent."""


def affine_parts(expression: Any, parameters: Iterable[Any]) -> AffineParts:
    """a(x) and B(x) of a scalar expression of degree at most one in the parameters."""
    degrees = Degrees(parameters)
    if expression.size != 1:
        raise ValueError(f"affine_parts needs one entry, got shape {expression.shape}.")
    found = degrees(expression)
    if found > 1:
        names = ", ".join(repr(p.name()) for p in degrees.parameters)
        raise ValueError(
            f"'{brief(expression)}' is not affine in {names}: its degree is {found:g}; "
            "see wdro_model.loss.pieces for a maximum of affine pieces."
        )
    return AffineParts(
        constant=as_scalar(constant_part(expression, degrees)),
        slopes=_slopes(expression, degrees),
    )


def constant_part(expression: Any, degrees: Degrees) -> Any:
    """The value of an expression of degree at most one where the parameters are zero."""
    return _or_zeros(_Constant(degrees)(expression), expression.shape)


class _Constant(Walk):
    """The part of an expression that does not see the data; None where it is zero."""

    def __init__(self, degrees: Degrees) -> None:
        super().__init__()
        self.degrees = degrees

    def visit(self, expression: Any) -> Any | None:
        return expression if self.degrees(expression) == 0 else super().visit(expression)

    def leaf(self, leaf: Any) -> None:
        return None

    def atom(self, atom: Any, arguments: list[Any]) -> Any | None:
        return facts_of(atom).constant_part(atom, arguments)


def _slopes(expression: Any, degrees: Degrees) -> dict[Any, Any]:
    """B_p for each parameter, by a reverse pass over the nodes that see the data."""
    order = _Order(degrees)
    order(expression)
    adjoints: dict[int, list[Any]] = {id(expression): [cp.Constant(np.ones(expression.shape))]}
    for node in reversed(order.atoms):
        adjoint = total(adjoints[id(node)])
        for argument, pull in zip(node.args, facts_of(node).adjoints(node)):
            if degrees(argument) > 0:
                adjoints.setdefault(id(argument), []).append(pull(adjoint))
    return {p: _or_zeros(total(adjoints.get(id(p), [])), p.shape) for p in degrees.parameters}


class _Order(Walk):
    """The atoms that see the data, arguments first, each one once."""

    def __init__(self, degrees: Degrees) -> None:
        super().__init__()
        self.degrees, self.atoms = degrees, list[Any]()

    def visit(self, expression: Any) -> bool:
        if isinstance(expression, Leaf) or self.degrees(expression) == 0:
            return False
        for argument in expression.args:
            self(argument)
        self.atoms.append(expression)
        return True


def _or_zeros(found: Any | None, shape: tuple[int, ...]) -> Any:
    return cp.Constant(np.zeros(shape)) if found is None else found
