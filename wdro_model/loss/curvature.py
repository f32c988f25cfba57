"""Is the loss convex or concave in the data? By CVXPY's rules, with the roles swapped."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import cvxpy as cp
from cvxpy.expressions.leaf import Leaf

from wdro_model.loss.polynomial import Degrees


def convexity_in_data(expression: Any, parameters: Iterable[Any]) -> str:
    """ "affine", "convex", "concave" or "unknown", in the parameters and for every decision.

    Subexpressions that are affine in the data become variables, those without data become
    parameters of the same sign; CVXPY's composition rules then speak about the data.
    """
    degrees = Degrees(parameters)
    if degrees(expression) <= 1:
        return "affine"
    try:
        swapped = _swap(expression, degrees, {})
    except (ValueError, cp.error.DCPError):
        # Some atoms refuse a variable where the data stands.
        return "unknown"
    ids = degrees.ids
    if any(p.id in ids for p in swapped.parameters()):
        return "unknown"
    if swapped.is_convex():
        return "convex"
    return "concave" if swapped.is_concave() else "unknown"


def _swap(expression: Any, degrees: Degrees, done: dict[int, Any]) -> Any:
    if id(expression) not in done:
        done[id(expression)] = _swapped(expression, degrees, done)
    return done[id(expression)]


def _swapped(expression: Any, degrees: Degrees, done: dict[int, Any]) -> Any:
    found = degrees(expression)
    if found == 0:
        if not expression.variables():
            return expression
        return cp.Parameter(expression.shape, **_sign(expression), **_definiteness(expression))
    if found == 1:
        return cp.Variable(expression.shape, **_sign(expression))
    if isinstance(expression, Leaf):
        return expression
    return expression.copy([_swap(a, degrees, done) for a in expression.args])


def _sign(expression: Any) -> dict[str, bool]:
    if expression.is_nonneg():
        return {"nonneg": True}
    return {"nonpos": True} if expression.is_nonpos() else {}


def _definiteness(expression: Any) -> dict[str, bool]:
    """PSD and NSD exclude a sign in CVXPY's attributes."""
    if expression.ndim != 2 or _sign(expression):
        return {}
    if expression.is_psd():
        return {"PSD": True}
    return {"NSD": True} if expression.is_nsd() else {}
