"""The inner integral in closed form, for losses affine in the data and quadratic ground costs.

With f = a(x) + <B(x), xi>, c = sum_i w_i (xi_i - zeta_i)^2 and reference N(xi_k, sigma_i^2), the
tilted distribution is Gaussian in each coordinate,

    v_i = 1/(2 l w_i/eps + 1/sigma_i^2),   m_i = v_i B_i/eps,   zeta_i ~ N(xi_i + m_i, v_i),
    phi_k = f(x, xi_k) + eps sum_i [ m_i^2/(2 v_i) + log(v_i/sigma_i^2)/2 ]              on R^d.

On a box each coordinate adds the log mass that N(xi_i + m_i, v_i) and the reference give to its
interval. Since f is affine, the gradient in x is that of f at the mean of the tilted scenarios. On
R^d the samples enter through their mean alone. A Mahalanobis cost is diagonal in its eigenvectors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdro_model.loss.flat import FlatLoss
from wdro_model.objectives.base import Array
from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.base import Stream
from wdro_model.objectives.integration.truncated import TruncatedNormal, truncated_normal
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.joint import JointSamples

CHUNK_ENTRIES = 2**20
"""Truncated integrals computed at once: their arrays stay in the processor's cache."""


@dataclass(frozen=True)
class Tilt:
    """The tilted Gaussian without truncation, at one dual variable; arrays (d,) or numbers."""

    variance: Array
    shift: Array


class ClosedForm:
    """Exact integration for affine losses."""

    name = "closed_form"
    exact = True

    def __init__(
        self,
        loss: FlatLoss,
        joint: JointSamples,
        cost: BoundCost,
        *,
        epsilon: float,
        sigma: float | Array,
    ) -> None:
        self.loss, self.joint, self.epsilon = loss, joint, epsilon
        self.free = ~cost.frozen
        self.rotation: Array | None = None
        weights = np.ones(joint.dimension) if cost.weights is None else cost.weights
        if cost.kind == "mahalanobis":
            assert cost.matrix is not None
            weights, self.rotation = np.linalg.eigh(cost.matrix)
        spread = np.broadcast_to(np.asarray(sigma, dtype=float) ** 2, (joint.dimension,))
        self.weights, self.spread = weights[self.free], spread[self.free]
        self.bounds = None if joint.everywhere else joint.bounds
        self._reference: Array | None = None

    def slice(self, x: Array, samples: Array, stream: Stream) -> FreeSlice | BoxSlice:
        whole = len(samples) == self.joint.size
        mean = self.joint.mean if whole else self.joint.matrix[samples].mean(axis=0)
        values, pullback = self.loss(x, mean[None])
        slope = pullback.in_data(np.ones(1))[0]
        kind = FreeSlice if self.bounds is None else BoxSlice
        return kind(self, x, samples, mean, float(values[0]), slope)

    def refresh(self, x: Array, dual: float) -> None:
        """Nothing to adapt."""

    def describe(self) -> str:
        if self.bounds is None:
            return "closed form: the loss is affine in the data, the tilted scenarios are Gaussian"
        return "closed form: affine loss on a box, truncated Gaussians coordinate by coordinate"

    def tilt(self, slope: Array, dual: float) -> Tilt:
        """Variance and shift of the tilted Gaussian over the free coordinates."""
        variance = self.spread / (1.0 + 2.0 * dual * self.weights * self.spread / self.epsilon)
        return Tilt(variance, variance * slope / self.epsilon)

    def free_value(self, tilt: Tilt) -> float:
        """eps sum_i [ m_i^2/(2 v_i) + log(v_i/sigma_i^2)/2 ]."""
        tilted = 0.5 * np.sum(tilt.shift**2 / tilt.variance)
        return float(self.epsilon * (tilted + 0.5 * np.sum(np.log(tilt.variance / self.spread))))

    def coordinates(self, vector: Array) -> Array:
        """Free coordinates in the eigenvectors of the cost."""
        turned = vector if self.rotation is None else self.rotation.T @ vector
        return turned[self.free]

    def scenario(self, mean: Array, move: Array) -> Array:
        """mean + move, the move given over the free coordinates."""
        full = np.zeros_like(mean)
        full[self.free] = move
        return mean + (full if self.rotation is None else self.rotation @ full)

    def gradient_at(self, x: Array, scenario: Array) -> Array:
        return self.loss(x, scenario[None])[1](np.ones(1))

    def reference_log_mass(self, samples: Array) -> Array:
        """For each sample, the log mass that the reference gives to the box; computed once."""
        if self._reference is None:
            assert self.bounds is not None
            deviation = np.sqrt(self.spread)
            lower, upper = self.bounds[0][self.free], self.bounds[1][self.free]
            self._reference = np.array(
                [
                    truncated_normal(
                        (lower - row) / deviation, (upper - row) / deviation
                    ).log_mass.sum()
                    for row in (full[self.free] for full in self.joint.matrix)
                ]
            )
        return self._reference[samples]


class FreeSlice:
    """mean_k phi_k at one x, on R^d."""

    def __init__(
        self, rule: ClosedForm, x: Array, samples: Array, mean: Array, value: float, slope: Array
    ) -> None:
        self._rule, self._x, self._mean, self._value = rule, x, mean, value
        self._slope = rule.coordinates(slope)

    def at(self, dual: float) -> DualPoint:
        rule = self._rule
        tilt = rule.tilt(self._slope, dual)
        v, m2 = tilt.variance, tilt.shift**2
        return DualPoint(
            self._value + rule.free_value(tilt),
            -float(rule.weights @ (v + m2)),
            float((rule.weights**2) @ (v * (v + 2 * m2)) * 2 / rule.epsilon),
        )

    def gradient(self, dual: float) -> Array:
        rule = self._rule
        move = rule.tilt(self._slope, dual).shift
        return rule.gradient_at(self._x, rule.scenario(self._mean, move))

    def diagnostics(self, dual: float) -> None:
        return None


class BoxSlice:
    """mean_k phi_k at one x, on a box: truncated Gaussians for each sample and coordinate."""

    def __init__(
        self, rule: ClosedForm, x: Array, samples: Array, mean: Array, value: float, slope: Array
    ) -> None:
        self._rule, self._x, self._mean, self._value = rule, x, mean, value
        self._samples = samples
        self._slope = rule.coordinates(slope)
        self._cached: tuple[float, DualPoint, Array] | None = None

    def at(self, dual: float) -> DualPoint:
        return self._integrals(dual)[0]

    def gradient(self, dual: float) -> Array:
        move = self._integrals(dual)[1]
        return self._rule.gradient_at(self._x, self._rule.scenario(self._mean, move))

    def diagnostics(self, dual: float) -> None:
        return None

    def _integrals(self, dual: float) -> tuple[DualPoint, Array]:
        """Value and slope in the dual, and the mean move of the scenarios."""
        if self._cached is not None and self._cached[0] == dual:
            return self._cached[1], self._cached[2]
        rule = self._rule
        tilt = rule.tilt(self._slope, dual)
        deviation = np.sqrt(tilt.variance)
        assert rule.bounds is not None
        lower = rule.bounds[0][rule.free] - tilt.shift
        upper = rule.bounds[1][rule.free] - tilt.shift
        log_mass, cost = 0.0, 0.0
        move = np.zeros(len(tilt.shift))
        step = max(1, CHUNK_ENTRIES // max(1, len(tilt.shift)))
        for start in range(0, len(self._samples), step):
            rows = rule.joint.matrix[self._samples[start : start + step]][:, rule.free]
            t: TruncatedNormal = truncated_normal(
                (lower - rows) / deviation, (upper - rows) / deviation
            )
            log_mass += float(t.log_mass.sum())
            first = t.mean.sum(axis=0)
            second = t.square.sum(axis=0)
            count = len(rows)
            move += count * tilt.shift + deviation * first
            cost += float(
                rule.weights
                @ (
                    count * tilt.shift**2
                    + 2 * tilt.shift * deviation * first
                    + tilt.variance * second
                )
            )
        size = len(self._samples)
        log_mass -= float(rule.reference_log_mass(self._samples).sum())
        value = self._value + rule.free_value(tilt) + rule.epsilon * log_mass / size
        point = DualPoint(value, -cost / size, np.nan)
        self._cached = (dual, point, move / size)
        return point, self._cached[2]
