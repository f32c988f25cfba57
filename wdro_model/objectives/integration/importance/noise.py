"""Normal numbers for the draws of one sample: pairs of opposite points, evenly spread.

In up to LATTICE dimensions the points follow a randomly shifted Kronecker sequence; in more, the
direction in which the loss bends is stratified. Each point is standard normal by itself, so that
means over them are unbiased.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from wdro_model.solvers.objective import Array

LATTICE = 6
TINY = 1e-15


@dataclass(frozen=True)
class Noise:
    """S points for one sample."""

    normal: Array
    """(S, r)"""
    along: Array | None
    """Numbers for the first direction of a component, (S,); None to leave it as it is."""
    uniform: Array
    """Numbers that choose the component, (S,), the same within a pair."""


def noise(generator: np.random.Generator, count: int, dimension: int) -> Noise:
    """Points of one sample."""
    pairs = (count + 1) // 2
    uniform = (np.arange(pairs) + generator.random()) / pairs
    along = None
    if 0 < dimension <= LATTICE:
        points = (generator.random(dimension) + np.arange(pairs)[:, None] * steps(dimension)) % 1.0
        half = ndtri(np.clip(points, TINY, 1 - TINY))
    else:
        half = generator.standard_normal((pairs, dimension))
        strata = (generator.permutation(pairs) + generator.random(pairs)) / pairs
        sign = np.where(generator.random(pairs) < 0.5, -1.0, 1.0)
        line = sign * ndtri(np.clip(0.5 + 0.5 * strata, TINY, 1 - TINY))
        along = paired(line, -line, count)
    return Noise(paired(half, -half, count), along, paired(uniform, uniform, count))


def steps(dimension: int) -> Array:
    """Irrational steps 1/g, 1/g^2, ... with g the root of g^(r+1) = g + 1: an even spread."""
    g = 1.5
    for _ in range(60):
        g = (1 + g) ** (1 / (dimension + 1))
    return g ** -np.arange(1.0, dimension + 1)


def paired(first: Array, second: Array, count: int) -> Array:
    """Entries of two arrays in turn."""
    out = np.empty((2 * len(first), *first.shape[1:]))
    out[0::2], out[1::2] = first, second
    return out[:count]
