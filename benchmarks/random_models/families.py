"""The table of families: a name, and a function that draws a trial from a random generator."""

from __future__ import annotations

from collections.abc import Callable

import convex
import numpy as np
from trial import Trial

FAMILIES: dict[str, Callable[[np.random.Generator], Trial]] = {
    "exact": convex.draw_exact,
    "risk": convex.draw_risk,
    "constraints": convex.draw_constrained,
    "probabilities": convex.draw_probability,
    "again": convex.draw_again,
    "aggregation": convex.draw_aggregated,
    "worst case": convex.draw_adversary,
}
