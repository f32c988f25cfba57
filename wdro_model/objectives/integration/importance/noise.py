"""Normal numbers for the draws of one sample: independent blocks of evenly spread points.

Each block is a Sobol net with a random digital shift of its own, and the mirror image of it. Every
point is uniform by itself, so that means over them are unbiased; the blocks are independent of each
other, so that what their means differ by tells the error of all (`block_variance`).

The first coordinate of the net chooses the component, the second one is for the direction in which
the loss bends, the others are for the coordinates, where there are not too many of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

from wdro_model.solvers.objective import Array

BLOCKS = 8
FEWEST = 4
"""Fewer blocks do not tell an error."""
GAINED = 3.0
"""Even spread is believed to lower a standard error by this factor at most."""
EVEN = 40
"""Coordinates that are spread evenly; if there are more, they are independent."""
BITS = 30


@dataclass(frozen=True)
class Noise:
    """S points for one sample."""

    normal: Array
    """(S, r)"""
    along: Array
    """Numbers for the first direction of a component, (S,)."""
    uniform: Array
    """Numbers that choose the component, (S,), the same for a point and its mirror image."""


def block_size(count: int) -> int:
    """Points of one block, an even number; the last block may have fewer."""
    return 2 * max(1, -(-count // (2 * BLOCKS)))


def whole_blocks(count: float) -> int:
    """The least number of draws from `count` on whose blocks are complete nets."""
    return 2 * BLOCKS * 2 ** max(0, int(np.ceil(np.log2(max(count, 1.0) / (2 * BLOCKS)))))


def noise(generator: np.random.Generator, count: int, dimension: int) -> Noise:
    """Points of one sample."""
    size = block_size(count)
    blocks, even = -(-count // size), dimension <= EVEN
    net = sobol(2 + (dimension if even else 0), size // 2)
    shifts = generator.integers(2**BITS, size=(blocks, 1, net.shape[1]), dtype=np.int64)
    points = ((net ^ shifts) + 0.5) / 2**BITS
    scores = ndtri(points[:, :, 1:])
    half = scores[:, :, 1:]
    if not even:
        half = generator.standard_normal((blocks, size // 2, dimension))

    def both(first: Array, second: Array) -> Array:
        joined = np.stack([first, second], axis=2)
        return joined.reshape(blocks * size, *first.shape[2:])[:count]

    line = scores[:, :, 0]
    return Noise(both(half, -half), both(line, -line), both(points[:, :, 0], points[:, :, 0]))


@lru_cache(maxsize=64)
def sobol(dimension: int, count: int) -> Array:
    """Points of a scrambled Sobol sequence, as whole numbers below 2^BITS."""
    power = max(0, int(np.ceil(np.log2(count))))
    points = qmc.Sobol(dimension, bits=BITS, seed=0).random_base2(power)
    found = np.floor(points[:count] * 2**BITS).astype(np.int64)
    found.setflags(write=False)
    return found


def block_variance(weights: Array) -> Array:
    """The variance (K,) of log mean_s w_s, from blocks of normalised weights (K, S).

    With block sums W_r of n_r draws each, sum_r (W_r - n_r/S)^2 R/(R - 1). So few blocks may agree
    by chance: no more is believed to be gained over independent draws than a factor.
    """
    count = weights.shape[1]
    alone = spread_of(weights, np.arange(count))
    starts = np.arange(0, count, block_size(count))
    if len(starts) < FEWEST:
        return alone
    return np.maximum(spread_of(weights, starts), alone / GAINED**2)


def spread_of(weights: Array, starts: Array) -> Array:
    """sum_r (W_r - n_r/S)^2 R/(R - 1) for the blocks that begin at `starts`, (K,)."""
    sums = np.add.reduceat(weights, starts, axis=1)
    expected = np.diff(np.append(starts, weights.shape[1])) / weights.shape[1]
    blocks = len(starts)
    return ((sums - expected) ** 2).sum(axis=1) * blocks / max(1, blocks - 1)
