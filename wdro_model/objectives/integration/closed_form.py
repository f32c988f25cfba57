"""The inner integral in closed form, for losses affine in the data and quadratic ground costs.

With f = a(x) + <B(x), z>, z the whitened moves of `Frame` in which the reference is N(0, I) and the
cost sum_i lambda_i z_i^2, the tilted distribution is Gaussian in each of them,

    v_i = 1/(1 + 2 l lambda_i/eps),   m_i = v_i B_i/eps,   z_i ~ N(m_i, v_i),
    phi_k = f(x, xi_k) + eps sum_i [ m_i^2/(2 v_i) + log(v_i)/2 ]              on R^d.

On a box each coordinate adds the log mass that N(m_i, v_i) and the reference give to its interval.
Since f is affine, the gradient in x is that of f at the mean of the tilted scenarios. On R^d the
samples enter through their mean alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdro_model.model import RobustModel
from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.frame import frame_of
from wdro_model.objectives.integration.inner_integral import (
    ROBUST,
    Integration,
    SampleSlice,
    Scales,
    Stream,
)
from wdro_model.objectives.integration.normal import log_mass, normal_interval
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.samples import SampleShares

SURROGATE_ENTRIES = 2**20
"""Truncated integrals per evaluation from which a run starts at the exact decision and on a
surrogate: an evaluation then costs more than the exact counterpart."""
CHUNK_ENTRIES = 2**18
"""Truncated integrals computed at once: their arrays stay in the processor's cache."""


@dataclass(frozen=True)
class AffineTilt:
    """The tilted Gaussian without truncation, at one dual variable; arrays (d,)."""

    variance: Array
    """v"""
    shift: Array
    """m"""

    @property
    def log_mass(self) -> float:
        """sum_i [ m_i^2/(2 v_i) + log(v_i)/2 ]."""
        return 0.5 * float(np.sum(self.shift**2 / self.variance) + np.sum(np.log(self.variance)))


class ClosedForm(Integration):
    """Exact integration for affine losses; `nodes` (M, d) may replace the samples (`surrogate`)."""

    name = "closed_form"

    def __init__(self, model: RobustModel, scales: Scales, nodes: Array | None = None) -> None:
        super().__init__(model, scales)
        self._nodes = nodes
        self.frame = frame_of(self.joint, self.cost, self.sigma)
        if self.frame.bounded and self.joint.matrix.size >= SURROGATE_ENTRIES:
            self.start = ROBUST
        self._reference: Array | None = None

    @property
    def rows(self) -> Array:
        return self.joint.matrix if self._nodes is None else self._nodes

    @property
    def origins(self) -> Array:
        """The moving coordinates of the samples or nodes, (N, r)."""
        return self.frame.origins if self._nodes is None else self._nodes[:, self.frame.columns]

    def slice(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> FreeSlice:
        own = self._nodes is None
        if own and shares is None and len(samples) == self.joint.size:
            shares, mean = self.joint.shares_of(samples), self.joint.mean
        else:
            equal = SampleShares.full(len(samples))
            shares = shares or (self.joint.shares_of(samples) if own else equal)
            mean = shares.total(self.rows[samples])
        return (BoxSlice if self.frame.bounded else FreeSlice)(self, x, samples, mean, shares)

    def surrogate(self) -> ClosedForm | None:
        """The integral over two nodes with the mean and variance of the samples in each coordinate.

        None for a problem so small that the surrogate would save little.
        """
        if self.start != ROBUST or len(self.rows) <= 4:
            return None
        mean, square = self.joint.mean, np.zeros(self.joint.dimension)
        times = self.joint.shares.multiple(np.ones(self.joint.size))
        for count, row in zip(times, self.joint.matrix):  # no second array of the samples' size
            square += count * (row - mean) ** 2
        spread = np.sqrt(square / self.joint.size)
        nodes = np.stack([mean - spread, mean + spread])
        assert self.joint.bounds is not None
        return ClosedForm(self.model, self.scales, np.clip(nodes, *self.joint.bounds))

    def describe(self) -> str:
        if not self.frame.bounded:
            return "closed form: the loss is affine in the data, the tilted scenarios are Gaussian"
        return "closed form: affine loss on a box, truncated Gaussians coordinate by coordinate"

    def tilt(self, slope: Array, dual: float) -> AffineTilt:
        """Variance and shift of the tilted Gaussian, in z."""
        variance = self.frame.whitened_variances(dual, self.epsilon)
        return AffineTilt(variance, variance * slope / self.epsilon)

    def reference_log_mass(self, samples: Array) -> Array:
        """The log mass (K,) of the reference around each sample inside the box, computed once."""
        if self._reference is None:
            frame, origins, masses = self.frame, self.origins, [np.zeros(0)]
            step = max(1, CHUNK_ENTRIES // max(1, frame.dimension))
            for start in range(0, len(origins), step):
                rows = origins[start : start + step]
                low, high = ((side - rows) / frame.deviation for side in (frame.lower, frame.upper))
                masses.append(log_mass(low, high).sum(axis=1))
            self._reference = np.concatenate(masses)
        return self._reference[samples]


class FreeSlice(SampleSlice):
    """mean_k phi_k at one x, on R^d: all samples have the same moves, so their mean suffices."""

    def __init__(
        self, rule: ClosedForm, x: Array, samples: Array, mean: Array, shares: SampleShares
    ) -> None:
        self._rule, self._x, self._samples, self._mean = rule, x, samples, mean
        self._shares = shares
        values, pullback = rule.loss(x, mean[None])
        self._value = float(values[0])
        self._gradient = pullback.in_data(np.ones(1))[0]
        self._slope = rule.frame.whitened_slopes(self._gradient)
        self._energy = float(self._slope @ self._slope)

    def evaluate(self, dual: float) -> DualPoint:
        rule, frame = self._rule, self._rule.frame
        if frame.common_weight is not None:
            margin = isotropic(
                dual, self._energy, frame.common_weight, frame.dimension, rule.epsilon
            )
            return DualPoint(self._value + margin.value, margin.slope, margin.curvature)
        tilt, weights = rule.tilt(self._slope, dual), frame.whitened_weights
        v, m2 = tilt.variance, tilt.shift**2
        return DualPoint(
            self._value + rule.epsilon * tilt.log_mass,
            -float(weights @ (v + m2)),
            float((weights**2) @ (v * (v + 2 * m2)) * 2 / rule.epsilon),
        )

    def gradient(self, dual: float) -> Array:
        return self._gradient_at(self._mean, self._rule.tilt(self._slope, dual).shift)

    def by_sample(self, duals: Array) -> tuple[Array, Array]:
        """phi and the mean cost at the mean of the samples, (J, 1) each: all move alike."""
        points = [self.evaluate(float(dual)) for dual in duals]
        values, costs = [point.value for point in points], [-point.slope for point in points]
        return np.array(values)[:, None], np.array(costs)[:, None]

    def mixed_gradient(self, duals: Array, shares: Array) -> Array:
        """The gradient in x at the mean scenario: that gradient is affine in the scenario."""
        shifts = [self._rule.tilt(self._slope, float(dual)).shift for dual in duals]
        return self._gradient_at(self._mean, shares.sum(axis=1) @ np.array(shifts))

    def _gradient_at(self, mean: Array, move: Array) -> Array:
        """The gradient in x of the loss at one scenario: `mean` plus the whitened move z."""
        scenario = mean + self._rule.frame.displacements(move)
        return self._rule.loss(self._x, scenario[None])[1](np.ones(1))


def isotropic(
    dual: float, energy: float, product: float, dimension: int, epsilon: float
) -> DualPoint:
    """phi_k - f(x, xi_k) in closed form, if lambda_i = product for all i; energy = sum_i B_i^2.

    With q = 1 + 2 l product/eps: energy/(2 eps q) - eps d/2 log q, and its derivatives in l.
    """
    q = 1.0 + 2.0 * dual * product / epsilon
    tilted = energy / (epsilon * q) ** 2
    return DualPoint(
        0.5 * epsilon * (q * tilted - dimension * np.log(q)),
        -product * (dimension / q + tilted),
        2 * product**2 / epsilon * (dimension / q + 2 * tilted) / q,
    )


@dataclass(frozen=True)
class BoxIntegral:
    """Truncated Gaussians of K samples at one dual variable."""

    log_mass: Array
    """Log mass of N(m, v) inside the box, for each sample, (K,)."""
    cost: Array
    """The mean cost of each sample, (K,)."""
    move: Array
    """The weighted mean over the samples of the tilted mean of z, (d,)."""


class BoxSlice(FreeSlice):
    """mean_k phi_k at one x, on a box: truncated Gaussians for each sample and coordinate."""

    _last: tuple[float, BoxIntegral] | None = None

    def evaluate(self, dual: float) -> DualPoint:
        integral, tilt = self._integrals(dual), self._rule.tilt(self._slope, dual)
        log_mass = integral.log_mass - self._rule.reference_log_mass(self._samples)
        average = self._shares.total
        value = self._value + self._rule.epsilon * (tilt.log_mass + float(average(log_mass)))
        return DualPoint(value, -float(average(integral.cost)), np.nan)

    def gradient(self, dual: float) -> Array:
        return self._gradient_at(self._mean, self._integrals(dual).move)

    def by_sample(self, duals: Array) -> tuple[Array, Array]:
        """phi_k and the mean cost of each sample, (J, K) twice."""
        rule, rows = self._rule, self._rule.rows[self._samples]
        still = self._value + (rows - self._mean) @ self._gradient
        still = still - rule.epsilon * rule.reference_log_mass(self._samples)
        values, costs = [], []
        for dual in duals:
            integral, tilt = self._integrals(float(dual)), rule.tilt(self._slope, float(dual))
            values.append(still + rule.epsilon * (tilt.log_mass + integral.log_mass))
            costs.append(integral.cost)
        return np.stack(values), np.stack(costs)

    def mixed_gradient(self, duals: Array, shares: Array) -> Array:
        """The gradient in x at the mean scenario, weighted by shares_jk over duals j and samples k.

        The loss is affine in the data, and so is its gradient: the mean scenario gives its mean.
        """
        mean = shares.sum(axis=0) @ self._rule.rows[self._samples]
        moves = [self._integrate(float(dual), share).move for dual, share in zip(duals, shares)]
        return self._gradient_at(mean, np.sum(moves, axis=0))

    def _integrals(self, dual: float) -> BoxIntegral:
        """The integrals at a dual variable; those of the last dual variable are cached."""
        if self._last is None or self._last[0] != dual:
            self._last = (dual, self._integrate(dual, self._shares.array))
        return self._last[1]

    def _integrate(self, dual: float, shares: Array) -> BoxIntegral:
        """The integrals at a dual variable; the mean move weighs the samples by `shares` (K,)."""
        rule, size = self._rule, len(self._samples)
        frame, tilt = rule.frame, rule.tilt(self._slope, dual)
        root = np.sqrt(tilt.variance)
        deviation, center = frame.deviation * root, tilt.shift / root
        weights = frame.whitened_weights * tilt.variance
        log_mass, cost, move = np.empty(size), np.empty(size), np.zeros(len(root))
        step = max(1, CHUNK_ENTRIES // max(1, len(root)))
        for start in range(0, size, step):
            chunk = slice(start, start + step)
            rows = rule.origins[self._samples[chunk]]
            low, high = ((side - rows) / deviation for side in (frame.lower, frame.upper))
            t = normal_interval(low, high, center)
            log_mass[chunk] = t.log_mass.sum(axis=1)
            cost[chunk] = (t.variance + t.mean**2) @ weights
            move += shares[chunk] @ t.mean
        return BoxIntegral(log_mass, cost, root * move)
