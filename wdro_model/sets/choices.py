"""0/1 choices among named things, some of them forbidden or mandatory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wdro_model.errors import InfeasibleError
from wdro_model.sets.arguments import as_names
from wdro_model.sets.backends import Vector
from wdro_model.sets.feasible_set import FeasibleSet, as_direction, as_flat
from wdro_model.sets.held import HeldOracle, as_held, minimize_by_prices
from wdro_model.sets.vertices import Value, descend, limit_of

Array = np.ndarray


class ChoiceSet(FeasibleSet):
    """Subsets of named things, as 0/1 vectors; coordinate i of x is `names[i]`.

    A subclass sets `names` and `dimension`, writes its hull in CVXPY as `_hull(x)` if it can, and
    ends its constructor with `self.hold(forbidden, mandatory)` after `self.use_backend(backend)`.
    Its oracles see no held coordinates; `held_minimum` does, where prices are not good enough.

    Attributes
    ----------
    names: what each coordinate stands for.
    thing: what one of them is called, in messages.
    """

    names: tuple[Any, ...]
    thing = "choice"
    is_polytope = True
    rounds = True
    is_held = False
    """Are some coordinates forbidden or mandatory?"""
    _held: tuple[Array, Array]
    _asked = (0, 0)

    def minimize(
        self, direction: ArrayLike, lower: ArrayLike | None = None, upper: ArrayLike | None = None
    ) -> Vector:
        if lower is not None or upper is not None:
            return self.minimize_within(direction, lower, upper)
        given = as_direction(direction, self.dimension)
        return self.held_minimum(given, *self._held) if self.is_held else self.free_minimum(given)

    def free_minimum(self, direction: Vector) -> Vector:
        """The answer of the backend, which sees no held coordinates."""
        return self._oracle(direction)

    def minimize_within(
        self, direction: ArrayLike, lower: ArrayLike | None, upper: ArrayLike | None
    ) -> Vector:
        forbidden, mandatory = as_held(lower, upper, self.dimension)
        own_lower, own_upper = self.own_bounds()
        forbidden |= own_upper < 1.0
        mandatory |= own_lower > 0.0
        both = forbidden & mandatory
        if both.any():
            raise InfeasibleError(
                f"the {self.thing} {self.names[int(np.argmax(both))]!r} of {self!r} is both "
                "forbidden and mandatory."
            )
        return self.held_minimum(as_direction(direction, self.dimension), forbidden, mandatory)

    def held_minimum(self, direction: Vector, forbidden: Array, mandatory: Array) -> Vector:
        """The best choice with some coordinates (n,) forbidden and mandatory; by prices."""
        return minimize_by_prices(self, direction, forbidden, mandatory)

    def held_in_words(self) -> str:
        """ " (2 forbidden, 1 mandatory)", for a description; nothing if nothing is."""
        words = ("forbidden", "mandatory")
        said = [f"{count} {word}" for count, word in zip(self._asked, words) if count]
        return f" ({', '.join(said)})" if said else ""

    def own_bounds(self) -> tuple[Vector, Vector]:
        """The bounds that say what is forbidden and mandatory."""
        assert self.bounds is not None
        return self.bounds

    def hold(self, forbidden: Iterable[Any] | None, mandatory: Iterable[Any] | None) -> None:
        """Forbid some of the things and ask for others, by their names."""
        if self.bounds is None:
            self.bounds = (np.zeros(self.dimension), np.ones(self.dimension))
        without, with_ = (self.positions(given) for given in (forbidden, mandatory))
        if not without.size and not with_.size:
            return
        self._asked = (np.unique(without).size, np.unique(with_).size)
        both = np.intersect1d(without, with_)
        if both.size:
            raise ValueError(
                f"the {self.thing} {self.names[both[0]]!r} is both forbidden and mandatory."
            )
        lower, upper = (side.copy() for side in self.bounds)
        useless = with_[upper[with_] == 0.0]
        if useless.size:
            raise InfeasibleError(
                f"the {self.thing} {self.names[useless[0]]!r} is mandatory, and no point of "
                f"{self!r} has it."
            )
        upper[without], lower[with_] = 0.0, 1.0
        self.bounds, self.is_held = (lower, upper), True
        self._held = as_held(lower, upper, self.dimension)
        self.minimize(np.zeros(self.dimension))  # an InfeasibleError where nothing is left

    def positions(self, things: Iterable[Any] | None) -> np.ndarray:
        """The coordinates of some things, given by their names."""
        if things is None:
            return np.zeros(0, dtype=np.int64)
        if isinstance(things, str) or not isinstance(things, Iterable):
            raise ValueError(f"{self.thing}s are given as a list of names, got {things!r}.")
        if isinstance(things, tuple) and things in self.coordinates:
            raise ValueError(f"{self.thing}s are given as a list: write [{things!r}].")
        return np.array([self.position(thing) for thing in things], dtype=np.int64)

    def position(self, thing: Any) -> int:
        """The coordinate of one thing."""
        known = self.coordinates
        if thing not in known:
            shown = ", ".join(map(repr, self.names[:5]))
            more = ", ..." if len(self.names) > 5 else ""
            raise ValueError(f"{thing!r} is no {self.thing} of {self!r}: they are {shown}{more}.")
        return known[thing]

    def constraints(self, x: Any) -> list[Any]:
        """CVXPY constraints for the hull, with what is held."""
        written = self._hull(x)
        if self.is_held:
            lower, upper = self.own_bounds()
            flat = as_flat(x, self.dimension)
            for where, value in ((np.flatnonzero(upper == 0), 0), (np.flatnonzero(lower == 1), 1)):
                if where.size:
                    written.append(flat[where] == value)
        return written

    def selected(self, x: ArrayLike, threshold: float = 0.5) -> list[Any]:
        """The things whose coordinate exceeds the threshold.

        Examples
        --------
        >>> import wdro_model as wdro
        >>> teams = wdro.sets.Subsets(["Ann", "Bob", "Cid"], k=2)
        >>> teams.selected([0.9, 0.2, 0.9])
        ['Ann', 'Cid']
        """
        values = as_direction(x, self.dimension, kind="x")
        return [self.names[i] for i in np.flatnonzero(values > threshold)]

    def _hull(self, x: Any) -> list[Any]:
        """CVXPY constraints for the hull of all choices, nothing held."""
        return super().constraints(x)


# ------------------------------
# A set of choices with some coordinates held for good: a node of a branch and bound


class Within(FeasibleSet):
    """The points of a set within some bounds, by its `minimize(direction, lower, upper)`.

    Where a set takes nonnegative directions only and cannot be made to choose a coordinate, what is
    mandatory is left open: the set is then larger, and its minima are bounds all the same.
    """

    def __init__(self, whole: FeasibleSet, lower: Vector, upper: Vector) -> None:
        self.whole, self.lower, self.upper = whole, lower, upper
        self.dimension, self.is_polytope = whole.dimension, whole.is_polytope
        self.nonnegative_directions = whole.nonnegative_directions
        self.accuracy, self.backend = whole.accuracy, whole.backend
        self.preferred_direction = whole.preferred_direction
        self.bounds = (lower, upper)
        self.is_larger = False
        """Is some coordinate not held that should be?"""
        self._lower: Vector | None = lower
        if whole.nonnegative_directions and bool(np.any(lower > 0)):
            self._try(whole)
        self._is_free = self._lower is None and bool(np.all(upper >= 1))

    def _try(self, whole: FeasibleSet) -> None:
        try:
            whole.minimize_within(np.zeros(whole.dimension), self.lower, self.upper)
        except ValueError as error:
            if "nonnegative directions only" not in str(error):
                raise
            self._lower, self.is_larger = None, True
            self.bounds = (np.zeros(whole.dimension), self.upper)

    def minimize(
        self, direction: ArrayLike, lower: ArrayLike | None = None, upper: ArrayLike | None = None
    ) -> Vector:
        """The answer of the whole set within the bounds."""
        return self.minimize_with_slack(direction)[0]

    def minimize_with_slack(
        self, direction: ArrayLike, lower: ArrayLike | None = None, upper: ArrayLike | None = None
    ) -> tuple[Vector, float]:
        """The same with the slack of the whole set."""
        self.whole.calls += 1
        if self._is_free:
            return self.whole.minimize_with_slack(direction)
        return self.whole.minimize_with_slack(direction, self._lower, self.upper)

    def __repr__(self) -> str:
        return f"Within({self.whole!r})"


# ------------------------------
# Subsets of named items, and the search among their neighbours


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
