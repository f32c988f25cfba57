"""A multiple of an expression, with the factor inside: factor * max(a, b) as max(factor a, ...).

The auxiliary variables that CVXPY puts in place of a maximum then have the size of the multiple,
and those in place of a square its root: factor * a^2 is (sqrt(factor) a)^2.
"""

from __future__ import annotations

from typing import Any

import cvxpy as cp
from cvxpy.expressions.leaf import Leaf

from wdro_model.loss import atoms
from wdro_model.loss.magnitudes import power_of_two

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
        if isinstance(expression, QUOTIENT):
            second, size = _of_order_one(second, first)
            return expression.copy([times(first, factor / size), second])
        if second.is_constant():
            second, size = _of_order_one(second, first)
            return expression.copy([times(first, factor * size), second])
        first, size = _of_order_one(first, second)
        return expression.copy([first, times(second, factor * size)])
    if isinstance(expression, AFFINE + HOMOGENEOUS):
        return expression.copy([times(argument, factor) for argument in expression.args])
    if isinstance(expression, atoms.POWER) and _is_convex_power(expression):
        return expression.copy([times(expression.args[0], factor ** (1.0 / expression.p.value))])
    if isinstance(expression, atoms.QUAD_OVER_LIN):
        over, by = expression.args
        return expression.copy([times(over, factor**0.5), by])
    return factor * expression


def _of_order_one(constant: Any, other: Any) -> tuple[Any, float]:
    """A constant as numbers of order one and the size of them, for a product with another factor.

    A large number in front of a maximum is a part of the factor that goes inside: 1e9 max(a, b) in
    units of 1e9 is max(a, b), not 1e9 max(1e-9 a, 1e-9 b). In affine terms it makes no difference.
    """
    if other.is_affine() or not constant.is_constant() or constant.parameters():
        return constant, 1.0
    size = power_of_two(float(abs(constant.value).max()))
    return cp.Constant(constant.value / size), size


def _is_convex_power(power: Any) -> bool:
    """Is the exponent a known number of at least one?"""
    return isinstance(power.p, cp.Constant) and float(power.p.value) >= 1.0
