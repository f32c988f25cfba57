"""Values that this library gave to variables, told from those that were set since.

Problems share their variables: after a solve of one, `x.value` is its decision, whichever problem
is asked next. A value that the library wrote is therefore no word of the user; one that was set
since, by hand or by a CVXPY problem, is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import cvxpy as cp
import numpy as np

MARK = "_assigned_by_wdro"
"""The attribute of a variable that holds the array written last, and a copy of it."""


def assign(decision: Mapping[cp.Variable, Any]) -> None:
    """Give the variables the values of a decision, and remember that it was not the user."""
    for variable, value in decision.items():
        variable.save_value(np.array(value))
        setattr(variable, MARK, (variable._value, np.array(variable._value)))


def set_by_hand(variable: cp.Variable) -> bool:
    """Does the variable have a value that this library did not give it?"""
    if variable._value is None:
        return False
    if not hasattr(variable, MARK):
        return True
    array, copy = getattr(variable, MARK)
    # Values of sparse variables are gathered anew whenever they are written.
    same = variable._value is array or variable.sparse_idx is not None
    return not (same and np.array_equal(variable._value, copy))


def forget_multipliers(constraints: Sequence[Any]) -> None:
    """Clear the dual values of constraints after a solve that has none."""
    for dual, _ in _multipliers(constraints):
        dual.save_value(None)


@contextmanager
def multipliers_kept(constraints: Sequence[Any]) -> Iterator[None]:
    """Constraints get back the dual values they had."""
    before = _multipliers(constraints)
    try:
        yield
    finally:
        for dual, value in before:
            dual.save_value(value)


def _multipliers(constraints: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The dual variables of CVXPY constraints with their values; True and False have none."""
    return [(dual, dual.value) for c in constraints for dual in getattr(c, "dual_variables", ())]
