"""An expression with some of its parameters replaced by numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.elementwise.power import Power
from cvxpy.expressions.leaf import Leaf


def substitute(expression: Any, values: Mapping[cp.Parameter, np.ndarray]) -> Any:
    """The expression with each parameter in `values` replaced by a constant.

    Leaves are kept, so the variables of the copy are the user's own. Structured atoms come back in
    CVXPY's own atoms where their new arguments allow it.
    """
    if isinstance(expression, Leaf):
        if isinstance(expression, cp.Parameter) and expression in values:
            return cp.Constant(np.asarray(values[expression]))
        return expression
    arguments = [substitute(argument, values) for argument in expression.args]
    if isinstance(expression, Power):
        exponent = substitute(expression.p, values)
        if exponent is not expression.p:
            return cp.power(arguments[0], exponent.value)
    if all(new is old for new, old in zip(arguments, expression.args)):
        return expression
    return expression.copy(arguments)
