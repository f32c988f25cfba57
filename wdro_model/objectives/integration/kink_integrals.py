"""What two neighbouring affine pieces of a linear form lose to each other at their kink.

For a law of v tilted to the middle of their slopes, D apart, and a kink at v = m + t, m the mean,

    E [exp(-D (v - m - t)/2); v > m + t] = 1/(2 pi) int chi(omega) exp(-i omega t)/(D/2 + i omega),
    E [exp(D (v - m - t)/2); v < m + t]  = 1/(2 pi) int chi(omega) exp(-i omega t)/(D/2 - i omega),

chi the characteristic function of v - m, summed at equal steps of tau,
omega = L asinh(c/L sinh tau), c = min(D/2, L): steps begin at the distance of the poles, and grow
to what resolves all of v.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdro_model.objectives.integration.interval_laws import SumOnBoxes
from wdro_model.sets.deadlines import check_deadline
from wdro_model.solvers.objective import Array

STEP = 0.25
BLOCK = 16
"""Steps that are made at once."""
BLOCKS = 60
AT_ONCE = 200_000
"""Characteristic functions of single coordinates that are computed at once."""
MARGIN = 2.0
"""Of the period in v that steps resolve."""


@dataclass(frozen=True)
class Lost:
    """Of the lower piece above the kink and of the upper piece below it, (M,) and (M, d)."""

    above: Array
    below: Array
    moves_above: Array
    """E t, t the normals of the boxes; empty where they are not asked for."""
    moves_below: Array


def lost_at_kinks(
    boxes: SumOnBoxes, offset: Array, gap: float, tolerance: Array, moves: bool = False
) -> Lost:
    """Both integrals for M laws with kinks at offsets from the means, up to a tolerance each."""
    count, d = boxes.low.shape
    size = (count, d) if moves else (0, d)
    found = Lost(np.zeros(count), np.zeros(count), np.zeros(size), np.zeros(size))
    chunk = max(1, AT_ONCE // (d * BLOCK))
    for start in range(0, count, chunk):
        _sum(found, np.arange(start, min(start + chunk, count)), boxes, offset, gap, tolerance)
    return found


def _sum(
    found: Lost, which: Array, boxes: SumOnBoxes, offset: Array, gap: float, tolerance: Array
) -> None:
    """The sums of some laws, block by block until they have faded."""
    longest = 2 * np.pi / (STEP * MARGIN * np.maximum(np.abs(offset) + boxes.reach, 1e-300))
    moves = len(found.moves_above) > 0
    for block in range(BLOCKS):
        check_deadline()
        tau = STEP * (BLOCK * block + np.arange(BLOCK))
        far, apart = longest[which, None], 0.5 * gap
        near = np.minimum(apart, far) / far
        rise = near * np.sinh(tau)
        omega = far * np.arcsinh(rise)
        weight = far * near * np.cosh(tau) / np.hypot(1.0, rise)
        weight = weight * np.where(tau == 0, 0.5, 1.0) * (STEP / np.pi)
        mass, means = boxes.picked(which).characteristic(omega, moves)
        phase = weight * np.exp(-1j * omega * offset[which, None])
        for into, moved, kernel in (
            (found.above, found.moves_above, phase / (apart + 1j * omega)),
            (found.below, found.moves_below, phase / (apart - 1j * omega)),
        ):
            into[which] += (kernel * mass).real.sum(axis=1)
            if means is not None:
                moved[which] += (kernel[:, None] @ means)[:, 0].real
        size = np.abs(mass) * weight * (2 * apart / (apart**2 + omega**2))
        which = which[size[:, BLOCK // 2 :].max(axis=1) > 0.1 * tolerance[which]]
        if not len(which):
            return
