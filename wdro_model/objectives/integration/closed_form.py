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
from functools import cached_property
from typing import Any

import numpy as np

from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.half_lines import half_lines, on_half_lines
from wdro_model.objectives.integration.inner_integral import ROBUST, Given, Stream
from wdro_model.objectives.integration.kernel.normal import interval_log_mass, truncated_normal
from wdro_model.solvers.objective import Array

SURROGATE_ENTRIES = 2**20
"""Truncated integrals per evaluation beyond which a run begins at the exact decision and on a
surrogate."""
NOWHERE = 40.0
"""Standard deviations at which coordinates without an end are given one: no mass lies beyond."""
CHUNK_ENTRIES = 2**18
"""Truncated integrals computed at once: their arrays stay in the processor's cache."""


@dataclass(frozen=True)
class AffineTilt:
    """The tilted Gaussian without truncation, at one dual variable; arrays (d,) or numbers."""

    variance: Array
    shift: Array


class ClosedForm(Given):
    """Exact integration for affine losses."""

    name = "closed_form"
    exact = True

    def __init__(self, *inputs: Any, rows: Array | None = None, **settings: Any) -> None:
        super().__init__(*inputs, **settings)
        joint, cost = self.joint, self.cost
        self.rows = joint.matrix if rows is None else rows
        """The samples, or nodes that stand for them."""
        self.free = ~cost.frozen
        """Coordinates that may move."""
        self.all_free = bool(self.free.all())
        self.rotation: Array | None = None
        spread = np.broadcast_to(np.asarray(self.sigma, dtype=float) ** 2, (joint.dimension,))
        if cost.is_separable:
            weights = cost.coordinate_weights
        else:
            # In units of sigma the reference is N(0, I), and any rotation keeps it so.
            deviation = np.sqrt(spread)
            weights, vectors = np.linalg.eigh(deviation[:, None] * cost.matrix * deviation)
            self.rotation = deviation[:, None] * vectors
            spread = np.ones(joint.dimension)
        self.weights, self.spread = weights[self.free], spread[self.free]
        products = self.weights * self.spread
        self.product = float(products[0]) if np.ptp(products) <= 1e-14 * products[0] else None
        """w_i sigma_i^2 where it is the same for all coordinates: the tilt is then one number."""
        self.bounds = None if joint.everywhere else joint.bounds
        self.box = () if self.bounds is None else tuple(side[self.free] for side in self.bounds)
        if self.bounds is not None and joint.matrix.size >= SURROGATE_ENTRIES:
            self.begins = ROBUST  # an evaluation costs more than the exact counterpart
        self._reference: Array | None = None

    def slice(self, x: Array, samples: Array, stream: Stream) -> FreeSlice | BoxSlice:
        whole = len(samples) == self.joint.size and self.rows is self.joint.matrix
        mean = self.joint.mean if whole else self.rows[samples].mean(axis=0)
        values, pullback = self.loss(x, mean[None])
        slope = pullback.in_data(np.ones(1))[0]
        kind = FreeSlice if self.bounds is None else BoxSlice
        return kind(self, x, samples, mean, float(values[0]), slope)

    def surrogate(self) -> ClosedForm | None:
        """The same integral from the moments of the samples; None where it would save little.

        On half lines up to the sixth, nearly the same function at 1/N of the cost. Elsewhere over
        two nodes with the samples' mean and variance, coordinate by coordinate.
        """
        if self.bounds is None or self.begins != ROBUST or len(self.rows) <= 4:
            return None
        if on_half_lines(self.bounds):
            return Compressed(
                self.loss, self.joint, self.cost, epsilon=self.epsilon, sigma=self.sigma
            )
        mean, square = self.joint.mean, np.zeros(self.joint.dimension)
        for row in self.joint.matrix:  # one by one: no second array of the samples' size
            square += (row - mean) ** 2
        spread = np.sqrt(square / self.joint.size)
        nodes = np.clip(np.stack([mean - spread, mean + spread]), *self.bounds)
        return ClosedForm(
            self.loss,
            self.joint,
            self.cost,
            epsilon=self.epsilon,
            sigma=self.sigma,
            rows=nodes,
        )

    def describe(self) -> str:
        if self.bounds is None:
            return "closed form: the loss is affine in the data, the tilted scenarios are Gaussian"
        return "closed form: affine loss on a box, truncated Gaussians coordinate by coordinate"

    def tilt(self, slope: Array, dual: float) -> AffineTilt:
        """Variance and shift of the tilted Gaussian over the free coordinates."""
        if self.product is not None:
            variance = self.spread / (1.0 + 2.0 * dual * self.product / self.epsilon)
        else:
            variance = self.spread / (1.0 + 2.0 * dual * self.weights * self.spread / self.epsilon)
        return AffineTilt(variance, variance * slope / self.epsilon)

    def free_value(self, tilt: AffineTilt) -> float:
        """eps sum_i [ m_i^2/(2 v_i) + log(v_i/sigma_i^2)/2 ]."""
        tilted = 0.5 * np.sum(tilt.shift**2 / tilt.variance)
        return float(self.epsilon * (tilted + 0.5 * np.sum(np.log(tilt.variance / self.spread))))

    def coordinates(self, vector: Array) -> Array:
        """A slope in the free coordinates, those in which cost and reference are diagonal."""
        turned = vector if self.rotation is None else self.rotation.T @ vector
        return turned if self.all_free else turned[self.free]

    def scenario(self, mean: Array, move: Array) -> Array:
        """mean + move, the move given over the free coordinates."""
        if self.all_free:
            full = move
        else:
            full = np.zeros_like(mean)
            full[self.free] = move
        return mean + (full if self.rotation is None else self.rotation @ full)

    def gradient_at(self, x: Array, scenario: Array) -> Array:
        """The gradient in x of the loss at one scenario."""
        return self.loss(x, scenario[None])[1](np.ones(1))

    def reference_log_mass(self, samples: Array) -> Array:
        """For each sample, the log mass that the reference gives to the box; computed once."""
        if self._reference is None:
            deviation, (lower, upper) = np.sqrt(self.spread), self.box
            rows = (row if self.all_free else row[self.free] for row in self.rows)
            self._reference = np.array(
                [
                    interval_log_mass((lower - row) / deviation, (upper - row) / deviation).sum()
                    for row in rows
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
        self._energy = float(np.einsum("i,i,i->", self._slope, self._slope, rule.spread))

    def at(self, dual: float) -> DualPoint:
        rule = self._rule
        if rule.product is not None:
            margin = isotropic(dual, self._energy, rule.product, len(rule.spread), rule.epsilon)
            return DualPoint(self._value + margin.value, margin.slope, margin.curvature)
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

    def each(self, duals: Array) -> tuple[Array, Array]:
        """phi and the mean cost, of the mean of the samples: all move alike. (J, 1) twice."""
        points = [self.at(float(dual)) for dual in duals]
        values, costs = [point.value for point in points], [-point.slope for point in points]
        return np.array(values)[:, None], np.array(costs)[:, None]

    def mixed_gradient(self, duals: Array, shares: Array) -> Array:
        """The gradient in x at the mean of the scenarios under several duals."""
        rule = self._rule
        weight = shares.sum(axis=1)
        move = sum(w * rule.tilt(self._slope, dual).shift for w, dual in zip(weight, duals))
        return rule.gradient_at(self._x, rule.scenario(self._mean, move))

    def diagnostics(self, dual: float) -> None:
        return None


def isotropic(
    dual: float, energy: float, product: float, dimension: int, epsilon: float
) -> DualPoint:
    """phi_k - f(x, xi_k) where w_i sigma_i^2 = product for all i, energy = sum_i sigma_i^2 B_i^2.

    With q = 1 + 2 l product/eps: energy/(2 eps q) - eps d/2 log q, and its derivatives in l.
    """
    q = 1.0 + 2.0 * dual * product / epsilon
    tilted = energy / (epsilon * q) ** 2
    return DualPoint(
        0.5 * epsilon * (q * tilted - dimension * np.log(q)),
        -product * (dimension / q + tilted),
        2 * product**2 / epsilon * (dimension / q + 2 * tilted) / q,
    )


class BoxSlice:
    """mean_k phi_k at one x, on a box: truncated Gaussians for each sample and coordinate."""

    def __init__(
        self, rule: ClosedForm, x: Array, samples: Array, mean: Array, value: float, slope: Array
    ) -> None:
        self._rule, self._x, self._mean, self._value = rule, x, mean, value
        self._samples = samples
        self._whole_slope = slope
        self._slope = rule.coordinates(slope)
        self._cached: tuple[float, DualPoint, Array] | None = None

    def at(self, dual: float) -> DualPoint:
        return self._integrals(dual)[0]

    def gradient(self, dual: float) -> Array:
        move = self._integrals(dual)[1]
        return self._rule.gradient_at(self._x, self._rule.scenario(self._mean, move))

    def diagnostics(self, dual: float) -> None:
        return None

    def each(self, duals: Array) -> tuple[Array, Array]:
        """phi_k and the mean cost of each sample, (J, K) twice."""
        rule, rows = self._rule, self._rule.rows[self._samples]
        still = self._value + (rows - self._mean) @ self._whole_slope
        still = still - rule.epsilon * rule.reference_log_mass(self._samples)
        values, costs = [], []
        for dual in duals:
            tilt = rule.tilt(self._slope, float(dual))
            log_mass, _, square = box_moves(rows[:, rule.free], tilt, *rule.box)
            values.append(still + rule.free_value(tilt) + rule.epsilon * log_mass.sum(axis=1))
            costs.append(square @ rule.weights)
        return np.stack(values), np.stack(costs)

    def mixed_gradient(self, duals: Array, shares: Array) -> Array:
        """The gradient in x at the mean of the scenarios, of which (dual j, sample k) has a share.

        The loss is affine in the data: so is its gradient, whose mean takes the mean scenario.
        """
        rule, rows = self._rule, self._rule.rows[self._samples]
        mean = shares.sum(axis=0) @ rows
        move = np.zeros(int(rule.free.sum()))
        for dual, share in zip(duals, shares):
            tilt = rule.tilt(self._slope, dual)
            move += share @ box_moves(rows[:, rule.free], tilt, *rule.box)[1]
        return rule.gradient_at(self._x, rule.scenario(mean, move))

    def _integrals(self, dual: float) -> tuple[DualPoint, Array]:
        """Value and slope in the dual, and the mean move of the scenarios."""
        if self._cached is not None and self._cached[0] == dual:
            return self._cached[1], self._cached[2]
        rule, size = self._rule, len(self._samples)
        tilt = rule.tilt(self._slope, dual)
        log_mass, move, square = 0.0, np.zeros(len(tilt.shift)), np.zeros(len(tilt.shift))
        step = max(1, CHUNK_ENTRIES // max(1, len(tilt.shift)))
        for start in range(0, size, step):
            rows = rule.rows[self._samples[start : start + step]]
            rows = rows if rule.all_free else rows[:, rule.free]
            part = truncated_moves(rows, tilt, *rule.box)
            log_mass += part[0]
            move += part[1]
            square += part[2]
        log_mass -= float(rule.reference_log_mass(self._samples).sum())
        value = self._value + rule.free_value(tilt) + rule.epsilon * log_mass / size
        point = DualPoint(value, -float(rule.weights @ square) / size, np.nan)
        self._cached = (dual, point, move / size)
        return point, self._cached[2]


class Compressed(ClosedForm):
    """Affine losses on half lines, the samples standing behind their moments."""

    def __init__(self, *inputs: Any, **settings: Any) -> None:
        super().__init__(*inputs, rows=inputs[1].mean[None], **settings)
        assert self.bounds is not None
        free = np.flatnonzero(self.free)
        ends = np.isfinite(self.box[0]) | np.isfinite(self.box[1])
        self.ended = np.flatnonzero(ends)
        """Where coordinates with an end sit among the free ones."""
        self.lines = half_lines(self.joint, free[self.ended], *self.bounds)

    def slice(self, x: Array, samples: Array, stream: Stream) -> BoxSlice:
        mean = self.joint.mean
        values, pullback = self.loss(x, mean[None])
        slope = pullback.in_data(np.ones(1))[0]
        return CompressedSlice(self, x, samples, mean, float(values[0]), slope)

    def surrogate(self) -> None:
        return None

    @cached_property
    def still(self) -> float:
        """The mean log mass that the reference gives to the half lines."""
        deviation = np.sqrt(self.spread[self.ended])
        return float(self.lines.averages(np.zeros(len(self.ended)), deviation)[0].sum())


class CompressedSlice(BoxSlice):
    """mean_k phi_k at one x from the moments of the samples."""

    _rule: Compressed

    def _integrals(self, dual: float) -> tuple[DualPoint, Array]:
        if self._cached is not None and self._cached[0] == dual:
            return self._cached[1], self._cached[2]
        rule, tilt = self._rule, self._rule.tilt(self._slope, dual)
        variance = np.broadcast_to(tilt.variance, tilt.shift.shape)
        move, square = np.array(tilt.shift), variance + tilt.shift**2
        ended, sign = rule.ended, rule.lines.sign
        shift, v = tilt.shift[ended], variance[ended]
        deviation = np.sqrt(v)
        log_mass, mean, lever = rule.lines.averages(shift, deviation)
        pushed = sign * deviation * mean
        move[ended] += pushed
        square[ended] += 2 * shift * pushed - v * lever
        log_masses = float(log_mass.sum()) - rule.still
        value = self._value + rule.free_value(tilt) + rule.epsilon * log_masses
        point = DualPoint(value, -float(rule.weights @ square), np.nan)
        self._cached = (dual, point, move)
        return point, move


def truncated_moves(
    rows: Array, tilt: AffineTilt, lower: Array, upper: Array
) -> tuple[float, Array, Array]:
    """Sum over the samples of log mass, E move and E move^2 of N(shift, variance) on the box."""
    log_mass, first, second = box_moves(rows, tilt, lower, upper)
    return float(log_mass.sum()), first.sum(axis=0), second.sum(axis=0)


def box_moves(
    rows: Array, tilt: AffineTilt, lower: Array, upper: Array
) -> tuple[Array, Array, Array]:
    """log mass, E move and E move^2 of N(shift, variance) on the box, (K, d) each.

    A move is counted from the end of its interval that carries most of the mass: far in the tail
    it would cancel against the shift.
    """
    deviation = np.sqrt(tilt.variance)
    down, up = lower - rows, upper - rows
    endless = np.flatnonzero(np.isinf(lower) & np.isinf(upper))
    if len(endless):
        down[:, endless] = (tilt.shift - NOWHERE * deviation)[endless]
    t = truncated_normal((down - tilt.shift) / deviation, (up - tilt.shift) / deviation)
    end = np.where(t.from_lower, down, up)
    inward = np.where(t.from_lower, deviation, -deviation)
    first = end + inward * t.depth
    second = end * end + 2 * end * inward * t.depth + tilt.variance * t.depth_square
    return t.log_mass, first, second
