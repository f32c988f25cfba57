"""The table of families: a name, and a function that draws a trial from a random generator."""

from __future__ import annotations

from collections.abc import Callable

import blurred
import choices
import convex
import numpy as np
from trial import Trial

FAMILIES: dict[str, Callable[[np.random.Generator], Trial]] = {
    "exact": convex.draw_exact,
    "risk": convex.draw_risk,
    "constraints": convex.draw_constrained,
    "probabilities": convex.draw_probability,
    "integers": choices.draw_integers,
    "again": convex.draw_again,
    "aggregation": convex.draw_aggregated,
    "smoothed": blurred.draw_smoothed,
    "far pieces": blurred.draw_far,
    "few samples": blurred.draw_few,
    "worst case": convex.draw_adversary,
}
