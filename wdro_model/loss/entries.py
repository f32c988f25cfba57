"""Some of the entries of an expression; entrywise atoms act on these alone."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.loss.atoms.expressions import as_scalar, the_number
from wdro_model.loss.atoms.facts import facts_of


def selected(expression: Any, entries: np.ndarray) -> Any:
    """A vector of some entries, counted row by row."""
    if facts_of(expression).is_entrywise:
        return expression.copy(
            [
                a if a.ndim == 0 else selected(a, _read(expression, a).ravel()[entries])
                for a in expression.args
            ]
        )
    flat = cp.reshape(expression, (expression.size,), order="C")
    everything = len(entries) == expression.size and np.array_equal(
        entries, np.arange(expression.size)
    )
    return flat if everything else flat[np.asarray(entries)]


def entry(expression: Any, where: int) -> Any:
    """One entry, counted row by row, as a scalar."""
    if expression.size == 1:
        return as_scalar(expression)
    index = tuple(int(i) for i in np.unravel_index(where, expression.shape))
    if isinstance(expression, cp.Constant):
        return cp.Constant(expression.value[index])
    if (number := the_number(expression)) is not expression:
        return as_scalar(number)
    if facts_of(expression).is_entrywise:
        return expression.copy(
            [entry(a, int(_read(expression, a)[index])) for a in expression.args]
        )
    return expression[index]


def _read(expression: Any, argument: Any) -> np.ndarray:
    """The entry of an argument that each entry of an entrywise atom reads."""
    labels = np.arange(argument.size).reshape(argument.shape)
    return np.broadcast_to(labels, expression.shape)
