"""An expression as a number times a simpler one."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss import atoms


def factored(expression: Any) -> tuple[float, Any]:
    """(c, e) with expression = c * e, e of the same shape and without constant factors outside.

    Multiples of one expression come back with that very object, so that they can be told apart
    from others by identity: factored(-x) and factored(51 * x) both hold x.
    """
    factor, e = 1.0, expression
    while not isinstance(e, cp.Constant):
        if isinstance(e, atoms.NEGATE):
            factor, e = -factor, e.args[0]
        elif isinstance(e, atoms.RESHAPE) and e.args[0].shape == e.shape and e.ndim <= 1:
            e = e.args[0]
        elif isinstance(e, atoms.MULTIPLY):
            first, second = (_number(a) for a in e.args)
            number, other = (first, e.args[1]) if first is not None else (second, e.args[0])
            if number is None or other.shape != e.shape:
                break
            factor, e = factor * number, other
        elif isinstance(e, atoms.DIVIDE) and e.args[0].shape == e.shape:
            number = _number(e.args[1])
            if not number:
                break
            factor, e = factor / number, e.args[0]
        else:
            break
    return factor, e


def _number(e: Any) -> float | None:
    """The value of a constant whose entries are all the same one."""
    if isinstance(e, atoms.PROMOTE):
        e = e.args[0]
    if not isinstance(e, cp.Constant) or e.size != 1:
        return None
    return float(np.reshape(e.value, ()))
