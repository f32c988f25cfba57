"""Gradients of counterparts and losses that people add, held against differences of values."""

from __future__ import annotations

from typing import Any

import numpy as np

from wdro_model.errors import UnboundedError
from wdro_model.loss import CallableLoss
from wdro_model.loss.gradient_check import refuse_wrong_gradient
from wdro_model.model import Model
from wdro_model.objectives.exact import Counterpart
from wdro_model.sets.feasible_set import FeasibleSet, checked_vertex
from wdro_model.solvers.objective import Array, Point

CORNERS, WAYS = 4, 3
"""Vertices, a combination of which is tried, and directions from there."""
STEP = 1e-3
"""Of the way to a combination of vertices."""
SLOPE = 1e-3
"""How far a slope may be from that of differences, relative to both."""


def refuse_false_objective(found: Counterpart, objective: Any, oracle: FeasibleSet) -> None:
    """An error where a gradient is not that of differences, at a point inside the feasible set.

    Where differences of two sizes disagree there is a kink, or noise, and nothing is said.
    """
    rng = np.random.default_rng(0)
    corners = np.array([_corner(oracle, rng) for _ in range(CORNERS)])
    parts = rng.uniform(0.2, 1.0, size=CORNERS)  # not the centre, where symmetry hides mistakes
    middle = parts @ corners / parts.sum()
    point = _evaluated(found, objective, middle)
    for _ in range(WAYS):
        shares = rng.uniform(-1.0, 1.0, size=CORNERS)
        way = (shares - shares.mean()) @ corners  # a small step along it stays in the hull
        wide, narrow = (_slope(found, objective, middle, way, step) for step in (STEP, STEP / 2))
        told = float(point.gradient @ way)
        off = abs(told - narrow)
        size = max(abs(told), abs(narrow), 1e-6 * abs(point.value))
        if off > SLOPE * size and off > 10 * abs(wide - narrow):
            raise ValueError(
                f"the objective of the counterpart {type(found).__name__} has a wrong gradient: "
                f"along a line inside the feasible set it gives the slope {told:.6g}, differences "
                f"of its values {narrow:.6g}; correct the gradient in evaluate(x, dual)."
            )


def refuse_wrong_loss(model: Model) -> None:
    """An error where the gradient of a callable loss is wrong inside the feasible set."""
    loss = model.loss.loss
    if not isinstance(loss, CallableLoss):
        return
    rng, layout = np.random.default_rng(0), model.feasible.layout
    try:
        oracle = model.feasible.oracle()
        corners = np.array([_corner(oracle, rng) for _ in range(CORNERS)])
    except (UnboundedError, NotImplementedError):
        corners = rng.standard_normal((CORNERS, layout.dimension))
    for _ in range(WAYS):
        parts, shares = rng.uniform(0.2, 1.0, size=CORNERS), rng.uniform(-1.0, 1.0, size=CORNERS)
        way = (shares - shares.mean()) @ corners
        refuse_wrong_gradient(model.loss, parts @ corners / parts.sum(), way, rng, str(loss.name))


def _corner(oracle: FeasibleSet, rng: np.random.Generator) -> Array:
    direction = rng.standard_normal(oracle.dimension)
    direction = np.abs(direction) if oracle.nonnegative_directions else direction
    return checked_vertex(oracle, oracle.minimize_relaxed(direction))


def _slope(found: Counterpart, objective: Any, x: Array, way: Array, step: float) -> float:
    ahead, back = (_evaluated(found, objective, x + s * way).value for s in (step, -step))
    return float(ahead - back) / (2 * step)


def _evaluated(found: Counterpart, objective: Any, x: Array) -> Point:
    """The objective at a point, if it is a `Point` with a number and a gradient of its shape."""
    point = objective.evaluate(x, None)
    name = f"evaluate of the objective of the counterpart {type(found).__name__}"
    if not isinstance(point, Point):
        raise TypeError(f"{name} must return Point(value, gradient), got {type(point).__name__}.")
    if np.ndim(point.value) != 0 or np.shape(point.gradient) != x.shape:
        raise ValueError(
            f"{name} must return a Point with one number and a gradient of shape {x.shape}, got "
            f"the shapes {np.shape(point.value)} and {np.shape(point.gradient)}."
        )
    return point
