"""A multiple of an expression, with the factor inside: factor * max(a, b) as max(factor a, ...).

The auxiliary variables that CVXPY puts in place of a maximum then have the size of the multiple.
"""

from __future__ import annotations

from typing import Any

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
    return factor * expression
