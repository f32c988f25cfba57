"""A set known by a function alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wdro_model.errors import blaming
from wdro_model.sets.base import FeasibleSet, LinearOracle, Vector, as_flat


class Oracle(FeasibleSet):
    """The set whose linear minimiser is the function `lmo`: direction (n,) -> vertex (n,).

    Parameters
    ----------
    lmo: returns a point of the set that minimises <direction, x>; it is given its own copy of the
        direction, and what it returns is copied.
    dimension: n.
    constraints: x -> list of CVXPY constraints that describe the same set; without it the set can
        neither be intersected with other constraints nor handed to a conic solver.
    bounds: (lower, upper), scalars or arrays (n,), which every point satisfies.
    nonnegative_directions: the function is only right for directions >= 0.
    name: for messages; the function's own name by default.
    """

    def __init__(
        self,
        lmo: Callable[[Vector], ArrayLike],
        dimension: int,
        constraints: Callable[[Any], list[Any]] | None = None,
        bounds: tuple[ArrayLike, ArrayLike] | None = None,
        nonnegative_directions: bool = False,
        name: str | None = None,
    ) -> None:
        self.name = name or getattr(lmo, "__name__", type(lmo).__name__)
        if not callable(lmo):
            raise ValueError(
                f"Oracle takes a function direction -> vertex first, got {type(lmo).__name__}."
            )
        whole = isinstance(dimension, (int, np.integer)) and not isinstance(dimension, bool)
        if not whole or dimension < 1:
            raise ValueError(
                f"the dimension of oracle {self.name!r} must be a positive integer, "
                f"got {dimension!r}."
            )
        if constraints is not None and not callable(constraints):
            raise ValueError(
                f"constraints of oracle {self.name!r} must be a function x -> list of CVXPY "
                f"constraints, got {type(constraints).__name__}; write lambda x: [x >= 0, ...]."
            )
        self.dimension = int(dimension)
        self.nonnegative_directions = nonnegative_directions
        self.has_constraints = constraints is not None
        self._lmo = lmo
        self._cvxpy_form = constraints
        self.bounds = None if bounds is None else self._as_bounds(bounds)
        self._use(None)

    def constraints(self, x: Any) -> list[Any]:
        """The CVXPY form that was given."""
        if self._cvxpy_form is None:
            return super().constraints(x)
        flat = as_flat(x, self.dimension)
        with blaming(f"the constraints of the oracle {self.name!r}"):
            return list(self._cvxpy_form(flat))

    def describe(self) -> str:
        """The function, by name."""
        return f"the set of dimension {self.dimension} minimised by the function {self.name}"

    def __repr__(self) -> str:
        return f"Oracle({self.name}, dimension={self.dimension})"

    def _own_oracle(self) -> LinearOracle:
        def minimize(direction: Vector) -> Vector:
            given = self._within_domain(direction)
            with blaming(f"the oracle {self.name!r}"):
                answer = self._lmo(given)
            return self._validated(answer)

        return minimize

    def _within_domain(self, direction: Vector) -> Vector:
        """A copy of the direction, without rounding errors below zero if it must be nonnegative."""
        if not self.nonnegative_directions:
            return direction.copy()
        index = int(np.argmin(direction))
        if direction[index] < -1e-12 * np.abs(direction).max():
            raise ValueError(
                f"oracle {self.name!r} is declared for nonnegative directions, got "
                f"{direction[index]:g} at index {index}; the loss must increase in every entry."
            )
        return np.maximum(direction, 0.0)

    def _validated(self, answer: ArrayLike) -> Vector:
        try:
            vertex = np.array(answer, dtype=np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                f"oracle {self.name!r} must return an array of {self.dimension} numbers, "
                f"got {type(answer).__name__}."
            ) from None
        if vertex.shape != (self.dimension,):
            raise ValueError(
                f"oracle {self.name!r} must return an array of shape ({self.dimension},), "
                f"got shape {vertex.shape}."
            )
        if not np.isfinite(vertex).all():
            index = int(np.flatnonzero(~np.isfinite(vertex))[0])
            raise ValueError(
                f"oracle {self.name!r} must return finite numbers, got {vertex[index]} at index "
                f"{index}."
            )
        if self.bounds is not None:
            self._check_bounds(vertex)
        return vertex

    def _check_bounds(self, vertex: Vector) -> None:
        assert self.bounds is not None
        lower, upper = self.bounds
        excess = np.maximum(lower - vertex, vertex - upper)
        index = int(np.argmax(excess))
        if excess[index] > 1e-6 * max(1.0, abs(float(vertex[index]))):
            raise ValueError(
                f"oracle {self.name!r} returned {vertex[index]:g} at index {index}, outside its "
                f"declared bounds [{lower[index]:g}, {upper[index]:g}]."
            )
        np.clip(vertex, lower, upper, out=vertex)

    def _as_bounds(self, bounds: tuple[ArrayLike, ArrayLike]) -> tuple[Vector, Vector]:
        try:
            lower, upper = (
                np.array(np.broadcast_to(np.asarray(side, dtype=np.float64), self.dimension))
                for side in bounds
            )
        except (TypeError, ValueError):
            raise ValueError(
                f"bounds of oracle {self.name!r} must be a pair (lower, upper) of scalars or "
                f"arrays ({self.dimension},), got {bounds!r}."
            ) from None
        if not np.all(lower <= upper):
            index = int(np.flatnonzero(~(lower <= upper))[0])
            raise ValueError(
                f"bounds of oracle {self.name!r} must have lower <= upper, got "
                f"{lower[index]:g} and {upper[index]:g} at index {index}."
            )
        return lower, upper
