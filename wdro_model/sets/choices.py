"""Choices among named things as 0/1 vectors, some of them forbidden or mandatory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wdro_model.errors import InfeasibleError
from wdro_model.sets.backends import Vector
from wdro_model.sets.feasible_set import FeasibleSet, as_direction, as_flat
from wdro_model.sets.held import as_held, minimize_by_prices

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
