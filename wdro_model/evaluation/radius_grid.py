"""Radii to try: checked where they are given, from the scale of the data where they are not."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from wdro_model.evaluation.attempts import check_radii as ordered_radii
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.scenarios import CHUNK_ENTRIES

COUNT = 10
"""Positive radii of the default grid."""
SMALLEST = 1e-2
"""The first one, as a share of the sampling error of the mean."""


def default_radii(joint: JointSamples, cost: BoundCost, order: float | None) -> np.ndarray:
    """0 (ERM) and ten radii, evenly spaced in their logarithm, from 0.01 S N^(-p/2) to S.

    S = mean_k c(xi_k, mean of the samples) is the cost of carrying the samples to their mean, the
    total variance for the squared cost; p is the order of the cost, 2 where it is not known. The
    mean of N samples is off by about S N^(-p/2), total variance / N for the squared cost: a ball
    much smaller than that is ERM, and one of radius S has room for all the data in one point.
    """
    scale = spread(joint, cost)
    first = SMALLEST * scale * joint.size ** (-(2.0 if order is None else order) / 2)
    return np.concatenate([[0.0], np.geomspace(first, scale, COUNT)])


def spread(joint: JointSamples, cost: BoundCost) -> float:
    """mean_k c(xi_k, mean of the samples), over the coordinates that may move."""
    if cost.frozen.all():
        raise ValueError(
            "every coordinate of the data has an infinite weight and is held fixed, so that the "
            "radius changes nothing; give a finite weight to what is uncertain."
        )
    total, varies, first = 0.0, False, None
    for rows in joint.blocks(max(1, CHUNK_ENTRIES // joint.dimension)):
        first = rows[0] if first is None else first
        # Rounding of the mean gives constant data a tiny spread.
        varies = varies or bool(np.any((rows != first) & ~cost.frozen))
        total += float(cost(rows, np.where(cost.frozen, rows, joint.mean)).sum())
    scale = total / joint.size
    if not varies or not 0 < scale < math.inf:
        reason = (
            f"carrying the samples to their mean costs {scale}"
            if varies
            else "all samples are the same"
        )
        raise ValueError(f"the data has no scale for radii ({reason}); give radii=[...].")
    return scale


def check_radii(given: Any) -> np.ndarray:
    """Radii of the user: finite, at least 0, increasing."""
    listed = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else given
    ordered = ordered_radii(listed)
    values = tuple(float(radius) for radius in listed)
    if len(ordered) < len(values):
        twice = next(radius for radius in ordered if values.count(radius) > 1)
        raise ValueError(f"the radius {twice:g} is listed twice; list each radius once.")
    if ordered != values:
        before, after = next((a, b) for a, b in pairwise(values) if a > b)
        raise ValueError(
            f"radii must increase, got {after:g} after {before:g}: scores keep their order, and "
            "each solve starts from the one before; write sorted(radii)."
        )
    return np.array(ordered)
