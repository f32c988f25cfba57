"""Losses that are sums of terms in separate coordinates: one integral for each coordinate.

With f = A(x, xi) + sum_i T_i(x, xi_i), A affine in the data, a cost sum_i w_i |y_i|^p of order 1
or 2 and a box or all of R^d, reference, cost and tilt are products over the coordinates:

    log E exp((f - l c)/eps) = A(x, xi_k)/eps + sum_i log E exp((T_i + B_i y - l w_i |y|^p)/eps).

A squared cost narrows the reference; a sum of distances is one more kink, at the sample itself.
A maximum of affine pieces is integrated between its kinks in closed form, a quadratic term as a
(truncated) Gaussian, anything else by adaptive quadrature along its line. Terms that share
coordinates form a group, which is integrated through its affine forms (`low_rank`).
A sum of d terms with two modes each has 2^d modes: draws would miss most of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wdro_model.model import RobustModel
from wdro_model.objectives.integration.importance.frame import box_of
from wdro_model.objectives.integration.inner_integral import ROBUST, Integration, Stream
from wdro_model.objectives.integration.kernel.normal import interval_log_mass
from wdro_model.objectives.integration.low_rank.through_forms import LowRank
from wdro_model.objectives.integration.separable.term_anatomy import (
    PIECEWISE,
    QUADRATIC,
    SMOOTH,
    separable_refusal,
    separate,
)
from wdro_model.objectives.integration.separable.term_slice import SeparableSlice
from wdro_model.objectives.integration.separable.term_values import Pieces
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.sample_shares import SampleShares

__all__ = ["Separable", "build_separable", "separable_refusal"]

WAYS = {
    PIECEWISE: "piece by piece in closed form",
    QUADRATIC: "as truncated Gaussians",
    SMOOTH: "by quadrature",
}


def build_separable(model: RobustModel, scales: Any) -> Separable:
    """The strategy for a model that it does not refuse."""
    return Separable(model, epsilon=scales.epsilon, sigma=scales.sigma)


class Separable(Integration):
    """Integration coordinate by coordinate."""

    name = "separable"
    begins = ROBUST
    exact = True

    def __init__(self, model: RobustModel, *, epsilon: float, sigma: float | Array) -> None:
        self.joint, self.epsilon = model.joint, epsilon
        self.parts = separate(model)
        where = self.parts.coordinates
        self.lines = {kind: np.flatnonzero(self.parts.kinds == kind) for kind in WAYS}
        self.pieces = Pieces(self.parts, self.lines[PIECEWISE], model.loss.layout)
        deviation = np.broadcast_to(np.asarray(sigma, dtype=float), (model.joint.dimension,))
        self.weights = model.cost.coordinate_weights[where]
        self.squared = model.cost.is_quadratic
        """Is the cost one of squares? Else it is one of distances."""
        self.spread = deviation[where] ** 2
        self.lower, self.upper = (side[where] for side in box_of(model.joint))
        self.reach = np.zeros(model.joint.dimension)
        """Steps over which slopes are taken: as long as the data varies, 0 for data that does not
        move."""
        self.reach[where] = 1e-3 + np.abs(self.joint.matrix[:, where] - self.joint.mean[where]).max(
            axis=0, initial=0.0
        )
        self.joint_groups = [
            LowRank(part, epsilon=epsilon, sigma=sigma) for part in self.parts.joint
        ]
        self._reference: Array | None = None

    def slice(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> SeparableSlice:
        return SeparableSlice(self, x, samples, stream, shares or self.joint.shares_of(samples))

    def variances(self, dual: float) -> Array:
        """v (D,): those of the moves along the lines under the tilt of the cost alone."""
        if not self.squared:
            return self.spread
        return self.spread / (1.0 + 2.0 * dual * self.weights * self.spread / self.epsilon)

    def rates(self, lines: Array, dual: float) -> Array:
        """l w_i s_i/eps, by which the exponent falls on both sides of the sample, (D,)."""
        return dual * self.weights[lines] * np.sqrt(self.spread[lines]) / self.epsilon

    def reference(self, samples: Array) -> Array:
        """For each sample, the log mass that the reference gives to the box."""
        if self._reference is None:
            deviation = np.sqrt(self.spread)
            self._reference = np.zeros(self.joint.size)
            bounded = np.flatnonzero(np.isfinite(self.lower) | np.isfinite(self.upper))
            for i in bounded:
                data = self.joint.matrix[:, self.parts.coordinates[i]]
                ends = ((side - data) / deviation[i] for side in (self.lower[i], self.upper[i]))
                self._reference += interval_log_mass(*ends)
        return self._reference[samples]

    def describe(self) -> str:
        counts = {kind: len(lines) for kind, lines in self.lines.items() if len(lines)}
        ways = [f"{count} {WAYS[kind]}" for kind, count in counts.items()]
        if self.joint_groups:
            ways.append(f"{len(self.joint_groups)} groups of coordinates through affine forms")
        return f"separable: one integral for each coordinate, {', '.join(ways)}"
