"""What a solve has learnt beside its decision, for one that starts there with another radius."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

FARTHEST = 4.0
"""Solves are extrapolated over at most so many times the distance between two of them."""
MOST_CHANGE = 1.5
"""The factor by which the steepness of the risk is expected to change at most."""
MOST_KNOWN = 3
"""So many of them are kept."""


@dataclass(frozen=True)
class Experience:
    """What made the end of a solve fast: one with another radius begins with it."""

    distance: float = 0.0
    """That of the ball, a root of its radius: risks are nearly linear in it."""
    steepness: float | None = None
    """How fast the risk grows with the distance; None where it is not known."""
    integrals: Any = None
    """The findings of the strategy of integration."""
    directions: Any = None
    """Those of the directions over the feasible set."""
    before: Experience | None = None
    """That of the solve from which this one started."""

    def going_on(self, distance: float, name: str) -> list[tuple[Any, float]]:
        """What the last solves know by that name, and weights in what is expected now.

        It is taken to be a polynomial of the distance: of first order through two of them, of
        second through three. The last alone where the distances turn back, or the new one is too
        far away.
        """
        known, last = [self], self.before
        while last is not None and getattr(last, name) is not None and len(known) < MOST_KNOWN:
            known, last = [*known, last], last.before
        places = np.array([distance, *(one.distance for one in known)])
        apart = places[:-1] - places[1:]
        onwards = np.cumprod(apart * apart[0] > 0)[1:]
        far = abs(apart[0]) > FARTHEST * np.abs(apart[1:])
        count = 1 + int(np.cumprod(onwards * ~far).sum())
        others = [np.delete(places[1 : 1 + count], i) for i in range(count)]
        weights = [
            float(np.prod((distance - rest) / (place - rest)))
            for place, rest in zip(places[1:], others)
        ]
        return [(getattr(one, name), weight) for one, weight in zip(known, weights)]

    def expected_steepness(self, distance: float) -> float | None:
        """How fast the risk grows at another distance."""
        if not self.steepness:
            return None
        expected = sum(weight * one for one, weight in self.going_on(distance, "steepness"))
        most = MOST_CHANGE * self.steepness
        return float(np.clip(expected, self.steepness / MOST_CHANGE, most))

    def shortened(self, count: int = MOST_KNOWN - 1) -> Experience:
        """With no more than so many solves, and no integrals: what is kept for the next one."""
        before = self.before.shortened(count - 1) if self.before and count > 1 else None
        return Experience(self.distance, self.steepness, None, self.directions, before)


NONE = Experience()
"""That of a solve which has learnt nothing, or whose start is no solution."""
