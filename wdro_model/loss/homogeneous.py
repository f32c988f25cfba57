"""A multiple of an expression, with the factor inside: factor * max(a, b) as max(factor a, ...).

The auxiliary variables that CVXPY puts in place of a maximum then have the size of the multiple,
and those in place of a square its root: factor * a^2 is (sqrt(factor) a)^2.
"""

from __future__ import annotations

from typing import Any

import cvxpy as cp
from cvxpy.expressions.leaf import Leaf

from wdro_model.loss import atoms

HOMOGENEOUS: tuple[Any, ...] = (
    atoms.ABS,
    atoms.MAXIMUM,
    atoms.MINIMUM,
    atoms.MAX,
    atoms.MIN,
    atoms.NORM1,
    atoms.NORM_INF,
    atoms.PNORM,
    atoms.SUM_LARGEST,
)
"""Atoms with h(t a) = t h(a) for t > 0, beside the affine ones."""


AFFINE: tuple[Any, ...] = (atoms.AffAtom,)
QUOTIENT: tuple[Any, ...] = (atoms.DIVIDE,)


def times(expression: Any, factor: float) -> Any:
    """factor * expression for a factor > 0, pushed inwards as far as it goes."""
    if isinstance(expression, Leaf):
        return factor * expression
    if isinstance(expression, atoms.BILINEAR + QUOTIENT):
        first, second = expression.args
        if isinstance(expression, QUOTIENT) or second.is_constant():
            return expression.copy([times(first, factor), second])
        return expression.copy([first, times(second, factor)])
    if isinstance(expression, AFFINE + HOMOGENEOUS):
        return expression.copy([times(argument, factor) for argument in expression.args])
    if isinstance(expression, atoms.POWER) and _is_convex_power(expression):
        return expression.copy([times(expression.args[0], factor ** (1.0 / expression.p.value))])
    if isinstance(expression, atoms.QUAD_OVER_LIN):
        over, by = expression.args
        return expression.copy([times(over, factor**0.5), by])
    return factor * expression


def _is_convex_power(power: Any) -> bool:
    """Is the exponent a known number of at least one?"""
    return isinstance(power.p, cp.Constant) and float(power.p.value) >= 1.0
