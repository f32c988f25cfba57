"""Subsets of named items, and the search among their neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wdro_model.sets.arguments import as_names
from wdro_model.sets.backends import Vector
from wdro_model.sets.choices import ChoiceSet
from wdro_model.sets.feasible_set import as_direction
from wdro_model.sets.held import as_held
from wdro_model.sets.held_oracle import HeldOracle
from wdro_model.sets.vertices import Value, descend, limit_of


class ItemSet(ChoiceSet):
    """Subsets of items as 0/1 vectors; a subclass says which, in `is_member(chosen)`.

    Attributes
    ----------
    items: the items' names; coordinate i of x is `items[i]`.
    """

    items: tuple[Any, ...]
    thing = "item"

    def __init__(self, items: Any) -> None:
        self.items = self.names = as_names(items, self.thing)
        self.dimension = len(self.names)

    def is_member(self, chosen: np.ndarray) -> bool:
        """Is the subset one of the set's? chosen: (n,) booleans, nothing held."""
        raise NotImplementedError

    def held_minimum(
        self, direction: Vector, forbidden: np.ndarray, mandatory: np.ndarray
    ) -> Vector:
        if isinstance(self._oracle, HeldOracle):
            return self._oracle.answer(direction, forbidden, mandatory)[0]
        return super().held_minimum(direction, forbidden, mandatory)

    def minimize_with_slack(
        self, direction: ArrayLike, lower: ArrayLike | None = None, upper: ArrayLike | None = None
    ) -> tuple[Vector, float]:
        """A choice, within bounds, and by how much at most it costs more than the best one."""
        if not isinstance(self._oracle, HeldOracle):
            return self.minimize(direction, lower, upper), 0.0
        given = as_direction(direction, self.dimension)
        if not self.is_held and lower is None and upper is None:
            nothing = np.zeros(self.dimension, dtype=bool)
            return self._oracle.answer(given, nothing, nothing)
        own_lower, own_upper = self.own_bounds()
        low = own_lower if lower is None else np.maximum(lower, own_lower)
        high = own_upper if upper is None else np.minimum(upper, own_upper)
        return self._oracle.answer(given, *as_held(low, high, self.dimension))

    def neighbours(self, vertex: Vector, x: Vector) -> Iterator[Vector]:
        """The choices with one item more, less or exchanged, towards x first."""
        return (other for _, other in self._moves(vertex, x))

    def _moves(self, vertex: Vector, x: Vector) -> Iterator[tuple[float, Vector]]:
        """The neighbours and how far the way to each goes along x - vertex, the farthest first."""
        lower, upper = self.own_bounds()
        chosen, along = vertex > 0.5, x - vertex
        entering = np.flatnonzero(~chosen & (upper > 0))
        leaving = np.flatnonzero(chosen & (lower < 1))
        # One more row and column: nothing enters, nothing leaves.
        gains = np.append(along[entering], 0.0)[:, None] - np.append(along[leaving], 0.0)
        for at in np.argsort(-gains, axis=None, kind="stable"):
            i, j = np.unravel_index(at, gains.shape)
            other = chosen.copy()
            other[entering[i : i + 1]] = True
            other[leaving[j : j + 1]] = False
            if (i < entering.size or j < leaving.size) and self.is_member(other):
                yield float(gains[i, j]), other.astype(np.float64)

    def _improved(self, vertex: Vector, value: Value) -> Vector:
        """A choice that no neighbour improves; only descents are tried where it is convex."""
        slope = getattr(value, "gradient", None)
        if slope is None:
            return descend(vertex, value, lambda v: self.neighbours(v, v), limit_of(value))

        def descents(v: Vector) -> Iterator[Vector]:
            moves = self._moves(v, v - slope(v))
            return (other for _, other in takewhile(lambda move: move[0] > 0, moves))

        return descend(vertex, value, descents, limit_of(value))

    def _is_discrete(self, vertex: Vector) -> bool:
        return super()._is_discrete(vertex) and self.is_member(vertex > 0.5)

    def _indicator(self, chosen: Any) -> Vector:
        """The 0/1 vector of positions."""
        vertex = np.zeros(self.dimension)
        vertex[chosen] = 1.0
        return vertex

    def _held_words(self) -> str:
        """What is held, for `describe`."""
        if not self.is_held:
            return ""
        lower, upper = self.own_bounds()
        return f", {int((upper == 0).sum())} forbidden and {int((lower == 1).sum())} mandatory"
