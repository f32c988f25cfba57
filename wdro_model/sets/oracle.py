"""A set known by a function alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from wdro_model.errors import InexactOracleError, blaming
from wdro_model.sets.arguments import as_bounds, as_direction, as_flat, as_interval, as_shape
from wdro_model.sets.backends import Answer, Side, Vector
from wdro_model.sets.feasible_set import BoundedSet, check_held, with_prices
from wdro_model.sets.rounding import is_whole


class Oracle(BoundedSet):
    """The set whose linear minimiser is the function `lmo`: direction -> vertex.

    Parameters
    ----------
    lmo
        Returns a point of the set that minimises `<direction, x>`; it is given its own copy of the
        direction, and what it returns is copied. If its points are only near the minimum it
        returns (vertex, bound), where no point of the set costs less than the bound: gaps are then
        measured from the bound. A vertex by itself is taken as exact.
    shape
        n for vectors, (n, m) for matrices, of directions and vertices alike. The set itself
        speaks of vectors of all `dimension` entries, matrices flattened row by row.
    constraints
        x -> list of CVXPY constraints that describe the same set, x of that shape;
        without it the set can neither be intersected with other constraints nor handed to a conic
        solver.
    bounds
        (lower, upper), scalars or arrays of the shape, which every point satisfies.
    nonnegative_directions
        The function is only right for directions >= 0.
    name
        For messages; the function's own name by default.
    integral
        The vertices have whole entries, and points can be rounded to them (True), or points
        are not to be rounded (False); by default, vertices of zeros and ones are rounded to.
    dimension
        In place of the shape, the number of entries of a vector.

    Examples
    --------
    >>> import numpy as np, wdro_model as wdro
    >>> def cheapest(direction):
    ...     return np.eye(5)[np.argmin(direction)]
    >>> print(wdro.sets.check(wdro.sets.Oracle(cheapest, 5)))
    Oracle(cheapest, dimension=5): passed (50 directions, 0 against its CVXPY form)
    """

    def __init__(
        self,
        lmo: Callable[[Vector], Any],
        shape: int | tuple[int, ...] | None = None,
        constraints: Callable[[Any], list[Any]] | None = None,
        bounds: tuple[ArrayLike, ArrayLike] | None = None,
        nonnegative_directions: bool = False,
        name: str | None = None,
        integral: bool | None = None,
        dimension: int | None = None,
    ) -> None:
        self.name = name or getattr(lmo, "__name__", type(lmo).__name__)
        if not callable(lmo):
            raise ValueError(
                f"Oracle takes a function direction -> vertex first, got {type(lmo).__name__}."
            )
        if (shape is None) == (dimension is None):
            given = "neither" if shape is None else "both"
            raise ValueError(f"oracle {self.name!r} takes a shape or a dimension, got {given}.")
        if constraints is not None and not callable(constraints):
            raise ValueError(
                f"constraints of oracle {self.name!r} must be a function x -> list of CVXPY "
                f"constraints, got {type(constraints).__name__}; write lambda x: [x >= 0, ...]."
            )
        self.shape = as_shape(dimension if shape is None else shape, f"oracle {self.name!r}")
        self.dimension = int(np.prod(self.shape))
        self.nonnegative_directions = nonnegative_directions
        self.has_constraints = constraints is not None
        self.rounds = integral
        self._lmo = lmo
        self._is_monotone = False
        """Have the answers to two directions shown that the function minimises?"""
        self._cvxpy_form = constraints
        if bounds is not None:
            self.bounds = as_bounds(bounds, self.shape, f"oracle {self.name!r}")

    def answer(self, direction: Vector, lower: Side, upper: Side) -> Answer:
        """The function's vertex, checked, and how far its cost is above the function's bound.

        Within bounds by prices, for vertices of 0 and 1. Prices move the costs of all points
        within the bounds by the same: the slack stays.
        """
        if lower is None and upper is None:
            return self._call(direction)
        unit = (np.zeros(self.dimension), np.ones(self.dimension))
        held = as_interval(lower, upper, unit, whole=True)
        vertex, slack = self._call(with_prices(self, direction, *held))
        check_held(self, vertex, *held)
        return vertex, slack

    def _call(self, direction: Vector) -> tuple[Vector, float]:
        """The function's vertex for a direction, and its slack."""
        given = self._within_domain(direction)
        vertex, slack = self._checked_call(given)
        if not self._is_monotone:
            self._check_monotone(given, vertex, slack)
        return vertex, slack

    def _check_monotone(self, given: Vector, vertex: Vector, slack: float) -> None:
        """Refuse a function that maximises, by its answer to another direction of the same signs.

        Of minimisers v and w for c and d, <c - d, v - w> <= 0. Where the largest entries are
        exchanged for the smallest ones a maximiser moves as well, the other way.
        """
        sizes = np.abs(given)
        some = sizes[sizes > 0]
        other = np.sign(given) * (some.max() + some.min() - sizes) if some.size else given
        apart = given - other
        if not apart.any():
            return  # nothing can be told from this direction
        self._is_monotone = True
        self.calls += 1
        try:
            there, more = self._checked_call(other)
        except Exception:
            return  # no solve has asked for this direction: perhaps none ever will
        wrong = float(apart @ (vertex - there))
        rounding = 1e-6 * float(np.abs(apart) @ (np.abs(vertex) + np.abs(there)))
        if wrong > slack + more + rounding:
            self._is_monotone = False
            backend = "" if self.backend is None else f" with backend {self.backend!r}"
            raise InexactOracleError(
                f"the oracle of {self!r}{backend} is not exact: of two points that it returned, "
                f"each costs less for the direction of the other, by {wrong:.3g} together. Does it "
                "maximise? It must return a minimiser of <direction, x>; wdro_model.sets.check(set)"
                " tests it."
            )

    def _checked_call(self, given: Vector) -> tuple[Vector, float]:
        """The function's vertex, if it is a point between the bounds, and its slack."""
        with blaming(f"the oracle {self.name!r}"):
            answer, bound = self._lmo(given.reshape(self.shape).copy()), None
        if has_bound(answer):
            answer, bound = answer
        vertex = self._validated(answer)
        return vertex, 0.0 if bound is None else self._slack(float(bound), given, vertex)

    def constraints(self, x: Any) -> list[Any]:
        """The CVXPY form that was given."""
        if self._cvxpy_form is None:
            return super().constraints(x)
        flat = as_flat(x, self.dimension)
        shaped = flat if len(self.shape) == 1 else cp.reshape(flat, self.shape, order="C")
        with blaming(f"the constraints of the oracle {self.name!r}"):
            return list(self._cvxpy_form(shaped))

    def describe(self) -> str:
        """The function, by name."""
        return f"the set of dimension {self.dimension} minimised by the function {self.name}"

    def __repr__(self) -> str:
        size = f"dimension={self.dimension}" if len(self.shape) == 1 else f"shape={self.shape}"
        return f"Oracle({self.name}, {size})"

    def is_vertex(self, x: ArrayLike) -> bool:
        """Are the entries whole where that was declared, zeros and ones otherwise?"""
        if self.rounds:
            return is_whole(as_direction(x, self.dimension, kind="x"))
        return super().is_vertex(x)

    def _within_domain(self, direction: Vector) -> Vector:
        """The direction, without rounding errors below zero if it must be nonnegative."""
        if not self.nonnegative_directions:
            return direction
        index = int(np.argmin(direction))
        if direction[index] < -1e-12 * np.abs(direction).max():
            raise ValueError(
                f"oracle {self.name!r} is declared for nonnegative directions, got "
                f"{direction[index]:g} at index {index}; the loss must increase in every entry."
            )
        return np.maximum(direction, 0.0)

    def _slack(self, bound: float, direction: Vector, vertex: Vector) -> float:
        """The cost of a vertex less the bound, which must not be above it."""
        cost = float(direction @ vertex)
        rounding = 1e-6 * float(np.linalg.norm(direction) * np.linalg.norm(vertex))
        if not bound <= cost + rounding:
            raise ValueError(
                f"oracle {self.name!r} returned the bound {bound:g} with a vertex of cost "
                f"{cost:g}; the bound must be a number that no point of the set undercuts."
            )
        return max(cost - bound, 0.0)

    def _validated(self, answer: Any) -> Vector:
        """The answer as a vector (n,), moved into the bounds where it is off by rounding."""
        must = f"oracle {self.name!r} must return"
        try:
            vertex = np.array(answer, dtype=np.float64)
        except (TypeError, ValueError):
            raise ValueError(
                f"{must} an array of {self.dimension} numbers, got {type(answer).__name__}."
            ) from None
        if vertex.shape != self.shape:
            raise ValueError(f"{must} an array of shape {self.shape}, got shape {vertex.shape}.")
        vertex = vertex.ravel()
        if not np.isfinite(vertex).all():
            index = int(np.argmin(np.isfinite(vertex)))
            raise ValueError(f"{must} finite numbers, got {vertex[index]} at index {index}.")
        if self.bounds is None:
            return vertex
        lower, upper = self.bounds
        excess = np.maximum(lower - vertex, vertex - upper)
        index = int(np.argmax(excess))
        if excess[index] > 1e-6 * max(1.0, abs(float(vertex[index]))):
            raise ValueError(
                f"oracle {self.name!r} returned {vertex[index]:g} at index {index}, outside its "
                f"declared bounds [{lower[index]:g}, {upper[index]:g}]."
            )
        return np.clip(vertex, lower, upper)


def has_bound(answer: Any) -> bool:
    """Is an answer (vertex, bound) rather than a vertex, such as the tuple (1, 0)?"""
    pair = isinstance(answer, tuple) and len(answer) == 2
    return pair and np.ndim(answer[0]) > 0 and np.ndim(answer[1]) == 0
