"""Truncated Gaussians on half lines from the moments of the samples: one integral for all of them.

For a coordinate that ends at one side, N(xi_k + m, v) has the mass Phi(tau_k) inside, tau_k the
distance of its mean from the end in units of sqrt(v), and with the hazard h = phi/Phi

    E move = m + s sqrt(v) h(tau_k),   E move^2 = m^2 + 2 m s sqrt(v) h(tau_k) + v (1 - tau_k h),

s = 1 for a lower end and -1 for an upper one. The means over the samples of log Phi, h and tau h
are expanded around the mean sample, with their central moments up to the sixth; the derivatives
follow from h' = -h (tau + h). Where the samples spread too far for that, two nodes stand for them
that have their first three moments: the empirical Gauss rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from wdro_model.objectives.integration.kernel.normal import hazard
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.joint import JointSamples

NARROW = 0.3
"""The spread of samples, in standard deviations of their tilted law, up to which they are
expanded."""
ORDERS = np.arange(2, 7)
BLOCK = 2**12
"""Coordinates whose derivatives exist at once: they stay in the processor's cache."""


def on_half_lines(bounds: tuple[Array, Array] | None) -> bool:
    """Does every coordinate end at one side at most?"""
    return bounds is not None and not bool(np.any(np.isfinite(bounds[0]) & np.isfinite(bounds[1])))


@dataclass(frozen=True)
class HalfLines:
    """The samples' distances from the ends of their half lines, coordinate by coordinate."""

    sign: Array
    """1 where there is a lower end, -1 for an upper one; (e,), coordinates without an end apart."""
    distance: Array
    """Of the mean sample from the end."""
    moments: Array
    """Central moments of the distances, of orders 2 to 6: (5, e)."""

    def averages(self, shift: Array, deviation: Array) -> tuple[Array, Array, Array]:
        """Means over the samples of log Phi(tau), h(tau) and tau h(tau)."""
        deviation = np.broadcast_to(deviation, self.sign.shape)
        found = np.empty((3, len(self.sign)))
        for start in range(0, len(self.sign), BLOCK):
            some = slice(start, start + BLOCK)
            unit = deviation[some]
            tau = (self.distance[some] + self.sign[some] * shift[some]) / unit
            scaled = self.moments[:, some] / unit ** ORDERS[:, None]
            means = np.array(expanded(tau, scaled))
            wide = np.flatnonzero(scaled[0] > NARROW**2)
            if len(wide):
                means[:, wide] = two_nodes(tau[wide], scaled[:2, wide])
            found[:, some] = means
        return found[0], found[1], found[2]


def expanded(tau: Array, moments: Array) -> tuple[Array, Array, Array]:
    """Means of log Phi, h and tau h by Taylor's formula; moments of tau of orders 2 to 6."""
    h = hazard(tau)
    u = tau + h
    h1 = -h * u
    g = 1 + h1
    h2 = -h1 * u - h * g
    h3 = -h2 * u - 2 * h1 * g - h * h2
    h4 = -h3 * u - 3 * h2 * g - 3 * h1 * h2 - h * h3
    h5 = -h4 * u - 4 * h3 * g - 6 * h2 * h2 - 4 * h1 * h3 - h * h4
    a2, a3, a4, a5, a6 = (m / f for m, f in zip(moments, (2, 6, 24, 120, 720)))
    log_mass = log_ndtr(tau) + a2 * h1 + a3 * h2 + a4 * h3 + a5 * h4 + a6 * h5
    mean = h + a2 * h2 + a3 * h3 + a4 * h4 + a5 * h5
    lever = tau * mean + 2 * a2 * h1 + 3 * a3 * h2 + 4 * a4 * h3 + 5 * a5 * h4
    return log_mass, mean, lever


def two_nodes(tau: Array, moments: Array) -> tuple[Array, Array, Array]:
    """The same means by the two nodes with the moments of orders 1 to 3 of the samples."""
    spread = np.sqrt(moments[0])
    skew = moments[1] / spread**3
    root = np.sqrt(1 + 0.25 * skew**2)
    log_mass, mean, lever = np.zeros((3, len(tau)))
    for side in (-1.0, 1.0):
        place = 0.5 * skew + side * root
        # The weight of a node is the share of the distance that lies on its other side.
        weight = (root - side * 0.5 * skew) / (2 * root)
        at = tau + spread * place
        h = hazard(at)
        log_mass += weight * log_ndtr(at)
        mean += weight * h
        lever += weight * at * h
    return log_mass, mean, lever


def half_lines(joint: JointSamples, ended: Array, lower: Array, upper: Array) -> HalfLines:
    """The half lines of the coordinates `ended`, samples read one by one."""
    sign = np.where(np.isfinite(lower[ended]), 1.0, -1.0)
    end = np.where(sign > 0, lower[ended], upper[ended])
    mean = joint.mean[ended]
    moments = np.zeros((len(ORDERS), len(ended)))
    times = joint.shares.multiple(np.ones(joint.size))
    for count, row in zip(times, joint.matrix):
        away = sign * (row[ended] - mean)
        power = count * away
        for total in moments:
            power *= away
            total += power
    return HalfLines(sign, sign * (mean - end), moments / joint.size)
