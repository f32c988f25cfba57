"""Rounding: from a point of the hull to a vertex, and from a vertex to a better one nearby.

Trees, paths and other choices are 0/1 vectors v. The nearest one to a point x minimises

    |v - x|^2 = <1 - 2 x, v> + |x|^2,

which is one call of the oracle; for trees, all with the same number of edges, -x will do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile

import numpy as np
from numpy.typing import ArrayLike

from wdro_model.sets.arguments import as_direction
from wdro_model.sets.backends import Vector

Value = Callable[[Vector], float]
"""A function that judges a vertex: less is better. If it has an attribute `gradient`, a function of
the vertex, it is convex and that is its gradient; with an attribute `most` that is not None, a
search evaluates it so many times only."""
INTEGER_TOLERANCE = 1e-6
"""Largest distance of an entry of a vertex from the integer that it stands for."""


def distance_to(x: Vector) -> Value:
    """The function v -> |v - x|."""
    return lambda vertex: float(np.linalg.norm(vertex - x))


def is_binary(vertex: Vector) -> bool:
    """Are all entries 0 or 1, up to a solver's tolerance?"""
    return bool(np.all(np.minimum(np.abs(vertex), np.abs(vertex - 1.0)) <= INTEGER_TOLERANCE))


def is_whole(vertex: Vector) -> bool:
    """Are all entries integers, up to a solver's tolerance?"""
    return bool(np.all(np.abs(vertex - np.rint(vertex)) <= INTEGER_TOLERANCE))


def nearest_directions(x: Vector, nonnegative: bool) -> tuple[Vector, Vector]:
    """Directions whose minimiser over 0/1 vectors is near x, or along its large coordinates.

    Where the oracle takes nonnegative directions only, the nearest such ones.
    """
    if nonnegative:
        return np.maximum(1.0 - 2.0 * x, 0.0), np.maximum(1.0 - x, 0.0)
    return 1.0 - 2.0 * x, -x


def best_of(vertices: Iterable[Vector], value: Value) -> Vector:
    """The first vertex of least value."""
    return min(vertices, key=value)


def descend(
    vertex: Vector,
    value: Value,
    neighbours: Callable[[Vector], Iterable[Vector]],
    most: int | None = None,
) -> Vector:
    """A vertex that no neighbour improves, or the best one after `most` evaluations."""
    best, least, seen = vertex, value(vertex), {vertex.tobytes()}
    improved = True
    while improved:
        improved = False
        for other in neighbours(best):
            if other.tobytes() in seen:
                continue
            if most is not None and len(seen) > most:
                return best
            seen.add(other.tobytes())
            if (cost := value(other)) < least:
                best, least, improved = other, cost, True
                break
    return best


class Rounding(ABC):
    """The part of a set that rounds points of its hull to discrete points.

    Every method has a default for sets of 0/1 vectors; a set that knows its discrete points better
    writes `is_vertex`, `discrete_near` or `neighbours`.

    Attributes
    ----------
    rounds
        A point can be rounded to a discrete one; None if the oracle's answers are to tell, by
        being 0/1 vectors.
    neighbours_are_sorted
        `neighbours(vertex, x)` come in the order of their progress <x - vertex, neighbour>.
    """

    dimension: int
    nonnegative_directions: bool
    rounds: bool | None = None
    neighbours_are_sorted: bool = False

    @abstractmethod
    def minimize(self, direction: ArrayLike) -> Vector:
        """A point of the set that minimises `<direction, x>`."""

    def round(
        self, x: ArrayLike, value: Value | None = None, candidates: Iterable[ArrayLike] = ()
    ) -> Vector:
        """A vertex in place of the point x of the hull, as a fresh array.

        The best of the given candidates (vertices of the set, such as those whose combination is
        x) and of the oracle's answers near x, judged by `value(vertex)`, by the distance to x
        without one; with a value, better and better neighbours of that vertex follow.

        Examples
        --------
        >>> tree = wdro.sets.SpanningTree(nx.cycle_graph(3))
        >>> tree.round([0.9, 0.9, 0.2])
        array([1., 1., 0.])
        """
        point = as_direction(x, self.dimension, kind="x")
        self.check_rounds()
        given = [self.discrete(vertex, f"candidate {k}") for k, vertex in enumerate(candidates)]
        near = [*self.discrete_near(point), *given]
        if value is None:
            return best_of(near, distance_to(point))
        gradient = getattr(value, "gradient", None)

        def neighbours(vertex: Vector) -> Iterable[Vector]:
            if gradient is None:
                return self.neighbours(vertex, vertex)
            # The value is convex: only neighbours down the slope can be better.
            slope = gradient(vertex)
            others = self.neighbours(vertex, vertex - slope)
            select = takewhile if self.neighbours_are_sorted else filter
            return select(lambda other: slope @ (other - vertex) < 0, others)

        return descend(best_of(near, value), value, neighbours, getattr(value, "most", None))

    def check_rounds(self) -> None:
        """Raise a ValueError if points of the set are not to be rounded."""
        rounds = self.rounds
        if rounds is None:
            rounds = self.is_vertex(self.minimize(np.ones(self.dimension)))
        if not rounds:
            raise ValueError(
                f"{self!r} cannot be rounded to: its decisions are continuous, not choices such as "
                "trees and paths (vertices with entries 0 and 1); use the decision as it is."
            )

    def is_vertex(self, x: ArrayLike) -> bool:
        """Is x discrete, one of the points that `round` chooses from?

        Examples
        --------
        >>> tree = wdro.sets.SpanningTree(nx.cycle_graph(3))
        >>> tree.is_vertex([1.0, 1.0, 0.0]), tree.is_vertex([0.9, 0.9, 0.2])
        (True, False)
        """
        return is_binary(as_direction(x, self.dimension, kind="x"))

    def discrete_coordinates(self) -> np.ndarray:
        """A mask (n,) of the coordinates that `round` makes discrete; others stay continuous."""
        return np.ones(self.dimension, dtype=bool)

    def discrete_near(self, x: ArrayLike) -> list[Vector]:
        """A few discrete points of the set near x."""
        point = as_direction(x, self.dimension, kind="x")
        directions = nearest_directions(point, self.nonnegative_directions)
        return [self.discrete(self.minimize(g), "the oracle's answer") for g in directions]

    def neighbours(self, vertex: Vector, x: Vector) -> Iterator[Vector]:
        """Discrete points next to one, towards x first; none where a set knows nothing better."""
        return iter(())

    def discrete(self, vertex: ArrayLike, what: str) -> Vector:
        """A discrete point without rounding errors of a solver; other points are refused."""
        point = as_direction(vertex, self.dimension, kind=what)
        if not self.is_vertex(point):
            raise ValueError(
                f"{what} is not a discrete point of {self!r}, it is "
                f"{np.array2string(point, threshold=6, edgeitems=3, precision=4)}; rounding is for "
                "sets whose vertices are choices with entries 0 and 1."
            )
        return self.without_errors(point)

    def without_errors(self, vertex: Vector) -> Vector:
        """The discrete point that a solver's answer stands for, as a fresh array."""
        return np.where(self.discrete_coordinates(), np.rint(vertex), vertex)
