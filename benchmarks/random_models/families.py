"""The table of families: a name, and a function that draws a trial from a random generator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from random_models import blurred, choices, convex, domains, frames, learners, sharing
from random_models.trial import Trial

FAMILIES: dict[str, Callable[[np.random.Generator], Trial]] = {
    "exact": convex.draw_exact,
    "risk": convex.draw_risk,
    "constraints": convex.draw_constrained,
    "probabilities": convex.draw_probability,
    "integers": choices.draw_integers,
    "again": convex.draw_again,
    "aggregation": convex.draw_aggregated,
    "learners": learners.draw_learner,
    "smoothed": blurred.draw_smoothed,
    "far pieces": blurred.draw_far,
    "few samples": blurred.draw_few,
    "threads": sharing.draw_threads,
    "frames": frames.draw_frames,
    "domains": domains.draw_domain,
    "worst case": convex.draw_adversary,
}
