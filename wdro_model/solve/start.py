"""The decision where a solve begins: given by the user, or a vertex of the feasible set."""

from __future__ import annotations

from typing import Any

import numpy as np

from wdro_model.model import Model
from wdro_model.model.feasible import meets
from wdro_model.sets.feasible_set import checked_vertex
from wdro_model.solve.certify import Solution
from wdro_model.solve.options import Options
from wdro_model.solvers import ActiveSet
from wdro_model.solvers.objective import Array


def first_point(model: Model, objective: Any, options: Options, rng: np.random.Generator) -> Array:
    """The user's start, else a random vertex, improved by an oracle call given an objective."""
    oracle = model.feasible.oracle()
    if options.start is not None:
        start = user_start(model, options.start)
        refuse_outside(model, start)
        return start
    direction = rng.standard_normal(oracle.dimension)
    direction = np.abs(direction) if oracle.nonnegative_directions else direction
    if objective is None:
        return oracle.vertex(direction)
    oracle.calls += 1
    somewhere = checked_vertex(oracle, oracle.minimize_relaxed(direction))
    start = oracle.vertex(objective.evaluate(somewhere).gradient)
    if not model.feasible.is_integer:
        oracle.witness = somewhere  # the answer to another question: a maximiser is found out
    return start


def user_start(model: Model, start: Any, name: str = "start") -> Array:
    """A decision of the user, {variable: value} or a solution, as a flat vector."""
    layout = model.feasible.layout
    values = start.everything if isinstance(start, Solution) else start
    if not hasattr(values, "items"):
        raise ValueError(
            f"{name} must be a dict {{variable: value}} or a solution, got {type(start).__name__}."
        )
    for variable in layout.user_variables:
        if variable not in values:
            raise ValueError(f"{name} has no value for the variable {variable.name()!r}.")
        value = np.asarray(values[variable], dtype=float)
        if value.shape != variable.shape:
            raise ValueError(
                f"{name} for {variable.name()!r} must have shape {variable.shape}, "
                f"got {value.shape}."
            )
        if not np.isfinite(value).all():
            where = tuple(map(int, np.argwhere(~np.isfinite(value))[0]))
            raise ValueError(
                f"{name} for {variable.name()!r} must be finite, got {value[where]} at {where}."
            )
    return layout.join(values)


def refuse_outside(model: Model, x: Array, tolerance: float = 1e-5) -> None:
    """A start outside the feasible set would carry a certificate that is none."""
    lower, upper = model.feasible.bounds()
    outside = bool(np.any(x < lower - tolerance) or np.any(x > upper + tolerance))
    with model.feasible.layout.holding(x):
        outside = outside or not meets(model.feasible.constraints, tolerance)
    outside = outside or model.feasible.exceeds(x, tolerance)
    if outside:
        raise ValueError(
            "start lies outside the feasible set; give a point that meets the constraints, such as "
            "an earlier solution."
        )


def warm_active_set(model: Model, start: Any) -> ActiveSet | None:
    """The active set of a solution that is given as a start, if it has one that fits."""
    active = start.active_set if isinstance(start, Solution) else None
    fits = active is not None and active.dimension == model.feasible.layout.dimension
    return active if fits else None
