"""What a solve has learnt beside its decision, for one that starts there with another radius."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

FARTHEST = 4.0
"""Solves are extrapolated over at most so many times the distance between two of them."""
MOST_CHANGE = 1.5
"""The factor by which the slope of the risk in the distance is expected to change at most."""
MOST_KNOWN = 3
"""So many of them are kept."""


@dataclass(frozen=True)
class Experience:
    """What made the end of a solve fast: one with another radius begins with it."""

    radius: float = 0.0
    dual: float | None = None
    integrals: Any = None
    """The findings of the strategy of integration."""
    directions: Any = None
    """Those of the directions over the feasible set."""
    before: Experience | None = None
    """That of the solve from which this one started."""

    def going_on(self, radius: float, order: float) -> list[tuple[Experience, float]]:
        """The last solves and their weights in what is expected at another radius.

        What they know is taken to be a polynomial of the distance of the ball, in which risks are
        nearly linear: of first order through two of them, of second through three. The last alone
        where the radii turn back, or the new one is too far away.
        order: that of the cost, the power of a distance.
        """
        known, last = [self], self.before
        while last is not None and last.radius > 0 and len(known) < MOST_KNOWN:
            known, last = [*known, last], last.before
        places = np.array([radius, *(one.radius for one in known)]) ** (1 / order)
        apart = places[:-1] - places[1:]
        onwards = np.cumprod(apart * apart[0] > 0)[1:]
        far = abs(apart[0]) > FARTHEST * np.abs(apart[1:])
        count = 1 + int(np.cumprod(onwards * ~far).sum())
        others = [np.delete(places[1 : 1 + count], i) for i in range(count)]
        weights = [
            float(np.prod((places[0] - rest) / (place - rest)))
            for place, rest in zip(places[1:], others)
        ]
        return list(zip(known, weights))

    def expected_dual(self, radius: float, order: float) -> float | None:
        """The dual variable at another radius.

        It is the slope of the risk in the radius; that in the distance hardly changes, and is
        taken to change on as it did.
        """
        if not self.dual or not self.radius > 0:
            return None
        known = self.going_on(radius, order)
        if not all(solve.dual for solve, _ in known):
            known = [(self, 1.0)]
        power = 1 - 1 / order
        slopes = [weight * (solve.dual or 0.0) * solve.radius**power for solve, weight in known]
        usual = self.dual * self.radius**power
        expected = np.clip(sum(slopes), usual / MOST_CHANGE, MOST_CHANGE * usual)
        return float(expected / radius**power)

    def shortened(self, count: int = MOST_KNOWN - 1) -> Experience:
        """With no more than so many solves, and no integrals: what is kept for the next one."""
        before = self.before.shortened(count - 1) if self.before and count > 1 else None
        return Experience(self.radius, self.dual, None, self.directions, before)


NONE = Experience()
"""That of a solve which has learnt nothing, or whose start is no solution."""
