"""The inner integral in closed form, for losses affine in the data and quadratic ground costs.

For a coordinate that ends at one side, N(xi_k + m, v) has the mass Phi(tau_k) inside, tau_k the
distance of its mean from the end in units of sqrt(v), and with the hazard h = phi/Phi

    E move = m + s sqrt(v) h(tau_k),   E move^2 = m^2 + 2 m s sqrt(v) h(tau_k) + v (1 - tau_k h),

s = 1 for a lower end and -1 for an upper one. The means over the samples of log Phi, h and tau h
are expanded around the mean sample, with their central moments up to the sixth; the derivatives
follow from h' = -h (tau + h). Where the samples spread too far for that, two nodes stand for them
that have their first three moments: the empirical Gauss rule.

With f = a(x) + <B(x), z>, z the coordinates of `whitening` in which the reference is N(0, I) and
the cost sum_i lambda_i z_i^2, the tilted distribution is Gaussian in each of them,

    v_i = 1/(1 + 2 l lambda_i/eps),   m_i = v_i B_i/eps,   z_i ~ N(m_i, v_i),
    phi_k = f(x, xi_k) + eps sum_i [ m_i^2/(2 v_i) + log(v_i)/2 ]              on R^d.

On a box each coordinate adds the log mass that N(m_i, v_i) and the reference give to its interval.
Since f is affine, the gradient in x is that of f at the mean of the tilted scenarios. On R^d the
samples enter through their mean alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import log_ndtr

from wdro_model.model import RobustModel
from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.importance.frame import Whitening
from wdro_model.objectives.integration.inner_integral import (
    ROBUST,
    Integration,
    SampleSlice,
    Scales,
    Stream,
)
from wdro_model.objectives.integration.normal import hazard, interval_log_mass, normal_interval
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.samples import SampleShares

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


# ------------------------------
# The inner integral in closed form, for losses affine in the data and quadratic ground costs


SURROGATE_ENTRIES = 2**20
"""Truncated integrals per evaluation beyond which a run begins at the exact decision and on a
surrogate."""
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
    """Exact integration for affine losses."""

    name = "closed_form"

    def __init__(self, model: RobustModel, scales: Scales, nodes: Array | None = None) -> None:
        super().__init__(model, scales)
        joint = self.joint
        self._nodes = joint.matrix if nodes is None else nodes
        self.frame = Whitening(self.cost, self.sigma)
        self.bounds = None if joint.everywhere else joint.bounds
        self.box = () if self.bounds is None else tuple(map(self.frame.moving, self.bounds))
        if self.bounds is not None and joint.matrix.size >= SURROGATE_ENTRIES:
            self.start = ROBUST  # an evaluation costs more than the exact counterpart
        self._reference: Array | None = None

    @property
    def rows(self) -> Array:
        return self._nodes

    def slice(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> FreeSlice:
        own = self.rows is self.joint.matrix
        if own and shares is None and len(samples) == self.joint.size:
            shares, mean = self.joint.shares_of(samples), self.joint.mean
        else:
            equal = SampleShares.of(len(samples))
            shares = shares or (self.joint.shares_of(samples) if own else equal)
            mean = shares.total(self.rows[samples])
        return (FreeSlice if self.bounds is None else BoxSlice)(self, x, samples, mean, shares)

    def surrogate(self) -> ClosedForm | None:
        """The same integral from the moments of the samples; None where it would save little.

        On half lines up to the sixth, nearly the same function at 1/N of the cost. Elsewhere over
        two nodes with the samples' mean and variance, coordinate by coordinate.
        """
        if self.bounds is None or self.start != ROBUST or len(self.rows) <= 4:
            return None
        if on_half_lines(self.bounds):
            return Compressed(self.model, self.scales)
        mean, square = self.joint.mean, np.zeros(self.joint.dimension)
        times = self.joint.shares.multiple(np.ones(self.joint.size))
        # One by one: no second array of the samples' size.
        for count, row in zip(times, self.joint.matrix):
            square += count * (row - mean) ** 2
        spread = np.sqrt(square / self.joint.size)
        nodes = np.clip(np.stack([mean - spread, mean + spread]), *self.bounds)
        return ClosedForm(self.model, self.scales, nodes)

    def describe(self) -> str:
        if self.bounds is None:
            return "closed form: the loss is affine in the data, the tilted scenarios are Gaussian"
        return "closed form: affine loss on a box, truncated Gaussians coordinate by coordinate"

    def tilt(self, slope: Array, dual: float) -> AffineTilt:
        """Variance and shift of the tilted Gaussian, in z."""
        variance = self.frame.variances(dual, self.epsilon)
        return AffineTilt(variance, variance * slope / self.epsilon)

    def reference_log_mass(self, samples: Array) -> Array:
        """For each sample, the log mass that the reference gives to the box; computed once."""
        if self._reference is None:
            sides = (
                [(side - self.frame.moving(row)) / self.frame.deviation for side in self.box]
                for row in self.rows
            )
            self._reference = np.array([interval_log_mass(*ends).sum() for ends in sides])
        return self._reference[samples]


class FreeSlice(SampleSlice):
    """mean_k phi_k at one x, on R^d."""

    def __init__(
        self, rule: ClosedForm, x: Array, samples: Array, mean: Array, shares: SampleShares
    ) -> None:
        self._rule, self._x, self._samples, self._mean = rule, x, samples, mean
        self._shares = shares
        values, pullback = rule.loss(x, mean[None])
        self._value = float(values[0])
        self._gradient = pullback.in_data(np.ones(1))[0]
        self._slope = rule.frame.slopes(self._gradient)
        self._energy = float(self._slope @ self._slope)

    def at(self, dual: float) -> DualPoint:
        rule, weights = self._rule, self._rule.frame.weights
        if rule.frame.uniform is not None:
            size = rule.frame.dimension
            margin = isotropic(dual, self._energy, rule.frame.uniform, size, rule.epsilon)
            return DualPoint(self._value + margin.value, margin.slope, margin.curvature)
        tilt = rule.tilt(self._slope, dual)
        v, m2 = tilt.variance, tilt.shift**2
        return DualPoint(
            self._value + rule.epsilon * tilt.log_mass,
            -float(weights @ (v + m2)),
            float((weights**2) @ (v * (v + 2 * m2)) * 2 / rule.epsilon),
        )

    def gradient(self, dual: float) -> Array:
        return self._gradient_at(self._mean, self._rule.tilt(self._slope, dual).shift)

    def by_sample(self, duals: Array) -> tuple[Array, Array]:
        """phi and the mean cost, of the mean of the samples: all move alike. (J, 1) twice."""
        points = [self.at(float(dual)) for dual in duals]
        values, costs = [point.value for point in points], [-point.slope for point in points]
        return np.array(values)[:, None], np.array(costs)[:, None]

    def mixed_gradient(self, duals: Array, shares: Array) -> Array:
        """The gradient in x at the mean of the scenarios under several duals."""
        weight = shares.sum(axis=1)
        move = sum(w * self._rule.tilt(self._slope, dual).shift for w, dual in zip(weight, duals))
        return self._gradient_at(self._mean, np.asarray(move))

    def _gradient_at(self, mean: Array, move: Array) -> Array:
        """The gradient in x of the loss at one scenario, the move in z."""
        scenario = mean + self._rule.frame.moves(move)
        return self._rule.loss(self._x, scenario[None])[1](np.ones(1))


def isotropic(
    dual: float, energy: float, product: float, dimension: int, epsilon: float
) -> DualPoint:
    """phi_k - f(x, xi_k) where lambda_i = product for all i, energy = sum_i B_i^2.

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
    """Of each sample, (K,)."""
    cost: Array
    """The mean cost of each sample, (K,)."""
    move: Array
    """The mean of z over the samples, (d,)."""


class BoxSlice(FreeSlice):
    """mean_k phi_k at one x, on a box: truncated Gaussians for each sample and coordinate."""

    _last: tuple[float, BoxIntegral] | None = None

    def at(self, dual: float) -> DualPoint:
        found, tilt = self._at(dual), self._rule.tilt(self._slope, dual)
        log_mass = found.log_mass - self._rule.reference_log_mass(self._samples)
        average = self._shares.total
        value = self._value + self._rule.epsilon * (tilt.log_mass + float(average(log_mass)))
        return DualPoint(value, -float(average(found.cost)), np.nan)

    def gradient(self, dual: float) -> Array:
        return self._gradient_at(self._mean, self._at(dual).move)

    def by_sample(self, duals: Array) -> tuple[Array, Array]:
        """phi_k and the mean cost of each sample, (J, K) twice."""
        rule, rows = self._rule, self._rule.rows[self._samples]
        still = self._value + (rows - self._mean) @ self._gradient
        still = still - rule.epsilon * rule.reference_log_mass(self._samples)
        values, costs = [], []
        for dual in duals:
            found, tilt = self._at(float(dual)), rule.tilt(self._slope, float(dual))
            values.append(still + rule.epsilon * (tilt.log_mass + found.log_mass))
            costs.append(found.cost)
        return np.stack(values), np.stack(costs)

    def mixed_gradient(self, duals: Array, shares: Array) -> Array:
        """The gradient in x at the mean of the scenarios, of which (dual j, sample k) has a share.

        The loss is affine in the data: so is its gradient, whose mean takes the mean scenario.
        """
        mean = shares.sum(axis=0) @ self._rule.rows[self._samples]
        moves = [self._integrated(float(dual), share).move for dual, share in zip(duals, shares)]
        return self._gradient_at(mean, np.sum(moves, axis=0))

    def _at(self, dual: float) -> BoxIntegral:
        """At a dual variable, each sample with its share; the last one is kept."""
        if self._last is None or self._last[0] != dual:
            self._last = (dual, self._integrated(dual, self._shares.array))
        return self._last[1]

    def _integrated(self, dual: float, shares: Array) -> BoxIntegral:
        """The integrals, and the mean move of samples with these shares."""
        rule, size = self._rule, len(self._samples)
        frame, tilt = rule.frame, rule.tilt(self._slope, dual)
        lower, upper = rule.box
        root = np.sqrt(tilt.variance)
        deviation, center = frame.deviation * root, tilt.shift / root
        weights = frame.weights * tilt.variance
        log_mass, cost, move = np.empty(size), np.empty(size), np.zeros(len(root))
        step = max(1, CHUNK_ENTRIES // max(1, len(root)))
        for start in range(0, size, step):
            some = slice(start, start + step)
            rows = frame.moving(rule.rows[self._samples[some]])
            t = normal_interval((lower - rows) / deviation, (upper - rows) / deviation, center)
            log_mass[some] = t.log_mass.sum(axis=1)
            cost[some] = (t.variance + t.mean**2) @ weights
            move += shares[some] @ t.mean
        return BoxIntegral(log_mass, cost, root * move)


class Compressed(ClosedForm):
    """Affine losses on half lines, the samples standing behind their moments."""

    def __init__(self, model: RobustModel, scales: Scales) -> None:
        super().__init__(model, scales, model.joint.mean[None])
        assert self.bounds is not None
        ends = np.isfinite(self.box[0]) | np.isfinite(self.box[1])
        self.ended = np.flatnonzero(ends)
        """Where coordinates with an end sit among the free ones."""
        free = np.flatnonzero(self.frame.free)
        self.lines = half_lines(self.joint, free[self.ended], *self.bounds)

    def slice(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> BoxSlice:
        return CompressedSlice(self, x, samples, self.joint.mean, SampleShares.of(1))

    def surrogate(self) -> None:
        return None

    @cached_property
    def still(self) -> float:
        """The mean log mass that the reference gives to the half lines."""
        deviation = self.frame.deviation[self.ended]
        return float(self.lines.averages(np.zeros(len(self.ended)), deviation)[0].sum())

    def reference_log_mass(self, samples: Array) -> Array:
        return np.array([self.still])


class CompressedSlice(BoxSlice):
    """mean_k phi_k at one x from the moments of the samples."""

    _rule: Compressed

    def _integrated(self, dual: float, shares: Array) -> BoxIntegral:
        rule, tilt = self._rule, self._rule.tilt(self._slope, dual)
        move, square = tilt.shift.copy(), tilt.variance + tilt.shift**2
        ended, v = rule.ended, tilt.variance[rule.ended]
        shift, root, unit = tilt.shift[ended], np.sqrt(v), rule.frame.deviation[ended]
        log_mass, mean, lever = rule.lines.averages(unit * shift, unit * root)
        pushed = rule.lines.sign * root * mean
        move[ended] += pushed
        square[ended] += 2 * shift * pushed - v * lever
        cost = np.array([float(rule.frame.weights @ square)])
        return BoxIntegral(np.array([log_mass.sum()]), cost, move)
