"""What a solve has learnt beside its decision, for one that starts there with another radius."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

FARTHEST = 4.0
"""Solves are extrapolated over at most so many times the distance between the last two."""


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

    def change(self, radius: float, order: float) -> float:
        """How far a radius is from this one, in units of what this one is from that before.

        In distances of the ball, in which risks are nearly linear; 0 where they turn back, or are
        too far away. order: that of the cost, the power of a distance.
        """
        if self.before is None or not self.before.radius > 0:
            return 0.0
        first, last, next_ = (r ** (1 / order) for r in (self.before.radius, self.radius, radius))
        change = (next_ - last) / (last - first) if last != first else 0.0
        return float(change) if 0.0 < change <= FARTHEST else 0.0

    def expected_dual(self, radius: float, order: float) -> float | None:
        """The dual variable at another radius: a power of it, the one that was seen or is usual."""
        if not self.dual or not self.radius > 0:
            return None
        power = 1 / order - 1
        if self.change(radius, order) and self.before is not None and self.before.dual:
            power = np.log(self.dual / self.before.dual) / np.log(self.radius / self.before.radius)
        return float(self.dual * (radius / self.radius) ** np.clip(power, -1.0, 0.0))

    def alone(self) -> Experience:
        """Without those before, of which no more than two are kept."""
        return Experience(self.radius, self.dual, None, self.directions)


NONE = Experience()
"""That of a solve which has learnt nothing, or whose start is no solution."""
