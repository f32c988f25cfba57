"""The strategy `separable`: one line integral for each coordinate.

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

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from wdro_model.model import RobustModel
from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.frame import as_slice, box_of
from wdro_model.objectives.integration.inner_integral import (
    INFINITE,
    ROBUST,
    Integration,
    SampleSlice,
    Scales,
    Stream,
    refuse_undefined,
)
from wdro_model.objectives.integration.lines import integrate_lines
from wdro_model.objectives.integration.low_rank.laws import quadratic_law
from wdro_model.objectives.integration.low_rank.slice import LowRank
from wdro_model.objectives.integration.normal import (
    TiltedLaw,
    integrate_segments,
    join_laws,
    log_mass,
)
from wdro_model.objectives.integration.separable.terms import (
    PIECEWISE,
    QUADRATIC,
    SMOOTH,
    Packing,
    Pieces,
    separable_refusal,
    separate,
)
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.samples import SampleShares

__all__ = ["Separable", "separable_refusal"]


@dataclass(frozen=True)
class LinesAtDual:
    """Some lines at one dual variable: zeta_i = xi_ki + s_i t for K samples and D lines.

    Function k D + i is line i at sample k.
    """

    lines: Array
    """(D,)"""
    scale: Array
    """s, (D,)."""
    slope: Array
    """B_i s_i/eps, the affine part of the loss, (K or 1, D)."""
    low: Array
    """Bounds of t, (K, D)."""
    high: Array

    @property
    def shape(self) -> tuple[int, int]:
        return self.low.shape[0], self.low.shape[1]

    def flat(self, values: Array) -> Array:
        """Values (K or 1, D, ...) for each function: (K D, ...)."""
        whole = np.broadcast_to(values, (*self.shape, *values.shape[2:]))
        return whole.reshape(-1, *values.shape[2:])

    def sides(self, rate: Array | None) -> Sides:
        """The intervals of the functions; cut at 0, where a cost rate_i |t| (D,) has its kink."""
        low, high = self.low.ravel(), self.high.ravel()
        every = np.arange(len(low))
        if rate is None:
            return Sides(every, None, low, high, np.zeros(len(low)))
        rows, side = np.tile(every, 2), np.repeat([-1.0, 1.0], len(low))
        low = np.concatenate([low, np.maximum(low, 0.0)])
        high = np.concatenate([np.minimum(high, 0.0), high])
        used = low < high
        rows, side = rows[used], side[used]
        fall = side * self.flat(rate[None])[rows]
        return Sides(rows, side, low[used], high[used], fall)


@dataclass(frozen=True)
class Sides:
    """The lines cut at the sample, so that a cost of distances is affine on each interval."""

    rows: Array
    """The function that each interval is of, (F,)."""
    side: Array | None
    """-1 for one left of the sample, 1 for one right of it; None where nothing is cut."""
    low: Array
    high: Array
    fall: Array
    """The slope of the cost over eps, (F,)."""


@dataclass(frozen=True)
class TiltedTerms:
    """The laws of the functions along some lines."""

    along: LinesAtDual
    law: TiltedLaw
    side: Array | None
    """-1 or 1 for points left or right of the sample, where the cost is a distance."""

    def moves(self) -> Array:
        """E t, (K, D)."""
        return self.law.mean(self.law.points[:, 0]).reshape(self.along.shape)

    def costs(self, weights: Array) -> Array:
        """The mean of w_i |zeta_i - xi_i|^p at each function, (K, D)."""
        law, t, scale = self.law, self.law.points[:, 0], self.along.scale
        if self.side is not None:
            cost = self.side * t
        else:
            cost, scale = t**2 if law.variance is None else t**2 + law.variance, scale**2
        return weights[self.along.lines] * scale * law.mean(cost).reshape(self.along.shape)


class SeparableSlice(SampleSlice):
    """mean_k phi_k at one x."""

    def __init__(
        self, rule: Separable, x: Array, samples: Array, stream: Stream, shares: SampleShares
    ) -> None:
        self._rule, self._x, self._shares = rule, np.asarray(x, dtype=float), shares
        self._samples = np.asarray(samples)
        self._rows = rule.joint.matrix[as_slice(self._samples)]
        parts = rule.parts
        self._data = self._rows[:, parts.coordinates]
        self._packing = Packing(parts, self._rows, self._x)
        self._joint = [part.slice(self._x, samples, stream, shares) for part in rule.joint_groups]
        self._still = parts.still(self._x, self._rows).sum(axis=1)
        self._affine = parts.affine(self._x, self._rows)[:, 0]
        if parts.common:
            parts.affine(self._x, rule.joint.mean[None])
        ones = np.ones((1 if parts.common else len(self._rows), 1))
        self._slopes = parts.affine.in_data(ones)[:, parts.coordinates]
        refuse_undefined(self._affine + self._still, self._samples)
        self._segments = rule.pieces.segments(self._x, self._held_rows(), rule.reach)
        self._parabolas = self._fitted()
        self._last: tuple[float, list[TiltedTerms]] | None = None

    def evaluate(self, dual: float) -> DualPoint:
        average = self._shares.total
        value, cost = (float(average(part)) for part in self._along_lines(dual))
        for part in self._joint:
            inner = part.evaluate(dual)
            value += inner.value - float(average(self._affine))
            cost -= inner.slope
        return INFINITE if np.isposinf(value) else DualPoint(value, -cost, np.nan)

    def by_sample(self, duals: Array) -> tuple[Array, Array]:
        results = [self._along_lines(float(dual)) for dual in duals]
        value, cost = (np.stack(part) for part in zip(*results))
        for part in self._joint:
            values, costs = part.by_sample(duals)
            value, cost = value + values - self._affine, cost + costs
        return value, cost

    def _along_lines(self, dual: float) -> tuple[Array, Array]:
        """phi_k and the mean cost, (K,) each, without the groups that move together."""
        rule, size = self._rule, len(self._samples)
        log_mass, cost = -rule.reference(self._samples), np.zeros(size)
        for tilted in self._tilted_lines(dual):
            if np.isposinf(tilted.law.log_mass).any():
                return np.full(size, np.inf), np.full(size, np.inf)
            log_mass = log_mass + tilted.law.log_mass.reshape(tilted.along.shape).sum(axis=1)
            cost += tilted.costs(rule.weights).sum(axis=1)
        log_mass = log_mass + 0.5 * float(np.log(rule.variances(dual) / rule.spread).sum())
        return self._affine + self._still + rule.epsilon * log_mass, cost

    def mixed_gradient(self, duals: Array, shares: Array) -> Array:
        parts = [self._weighted(float(dual), share) for dual, share in zip(duals, shares)]
        return np.sum(parts, axis=0)

    def gradient(self, dual: float) -> Array:
        return self._weighted(dual, self._shares.array)

    def _weighted(self, dual: float, shares: Array) -> Array:
        """sum_k shares_k grad_x phi_k, for shares (K,)."""
        rule, parts = self._rule, self._rule.parts
        moved = np.zeros((len(self._samples), rule.joint.dimension))
        samples, lines, points, weights = [], [], [], []
        for tilted in self._tilted_lines(dual):
            along, law = tilted.along, tilted.law
            columns = parts.coordinates[along.lines]
            moved[:, columns] += along.scale * tilted.moves()
            sample, line = np.divmod(law.owner, max(1, along.shape[1]))
            samples.append(sample)
            lines.append(along.lines[line])
            points.append(
                self._data[sample, along.lines[line]] + along.scale[line] * law.points[:, 0]
            )
            weights.append(law.weights * shares[sample])
        gradient = np.zeros(len(self._x))
        if points:
            gradient += self._packing.gradient(
                *(np.concatenate(part) for part in (samples, lines, points, weights))
            )
        gradient += self._affine_gradient(self._rows + moved, shares)
        for part in self._joint:
            gradient += part.mixed_gradient(np.array([dual]), shares[None])
            gradient -= self._affine_gradient(self._rows, shares)
        if parts.still.count:
            parts.still(self._x, self._rows)
            gradient += parts.still.in_decision(shares[:, None])
        return gradient

    # -------------------------------------------------------------- parts of a slice
    def _affine_gradient(self, rows: Array, shares: Array) -> Array:
        """sum_k shares_k of the gradient in x of the affine part at rows (K, d)."""
        affine, total = self._rule.parts.affine, float(shares.sum())
        if self._rule.parts.common and total > 0:
            # Affine in the rows: their mean does for all of them.
            rows, shares = (shares @ rows)[None] / total, np.array([total])
        affine(self._x, rows)
        return affine.in_decision(shares[:, None])

    def _held_rows(self) -> Array:
        """A scenario for each function that the terms are of: all samples share one or have own."""
        return self._rows if self._rule.parts.held else self._rule.joint.mean[None]

    def _fitted(self) -> tuple[Array, Array, Array]:
        """Value, slope and second derivative of quadratic terms at the held rows, (K or 1, D)."""
        rule = self._rule
        lines, rows = rule.lines[QUADRATIC], self._held_rows()
        size = (len(rows), len(lines))
        if not len(lines):
            return np.zeros(size), np.zeros(size), np.zeros(size)
        packing = Packing(rule.parts, rows, self._x)
        sample = np.repeat(np.arange(len(rows)), len(lines))
        line = np.tile(lines, len(rows))
        column = rule.parts.coordinates[line]
        step = rule.reach[column]
        middle, right, left = (
            packing.values(sample, line, rows[sample, column] + shift * step).reshape(size)
            for shift in (0.0, 1.0, -1.0)
        )
        step = step.reshape(size)
        return middle, (right - left) / (2 * step), (right - 2 * middle + left) / step**2

    def _tilted_lines(self, dual: float) -> list[TiltedTerms]:
        """The laws of all lines at a dual variable; those of the last one are kept."""
        if self._last is None or self._last[0] != dual:
            lines, kinds = self._rule.lines, self._rule.parts.curvatures
            ways: list[tuple[Array, Callable[[LinesAtDual, Sides], TiltedLaw]]] = [
                (lines[PIECEWISE], self._segment_law),
                (lines[QUADRATIC], self._parabola_law),
            ]
            for kind in np.unique(kinds[lines[SMOOTH]]):
                some = lines[SMOOTH][kinds[lines[SMOOTH]] == kind]
                ways.append((some, partial(self._smooth_law, str(kind))))
            self._last = (dual, [self._tilted(dual, *way) for way in ways if len(way[0])])
        return self._last[1]

    def _tilted(
        self, dual: float, lines: Array, law_of: Callable[[LinesAtDual, Sides], TiltedLaw]
    ) -> TiltedTerms:
        rule, along = self._rule, self._lines_at(lines, dual)
        sides = along.sides(None if rule.squared else rule.rates(lines, dual))
        law = law_of(along, sides)
        side = None if sides.side is None else sides.side[law.owner]
        return TiltedTerms(along, join_laws([(sides.rows, law)], along.low.size), side)

    def _segment_law(self, along: LinesAtDual, sides: Sides) -> TiltedLaw:
        """Piecewise affine lines, in closed form between their kinks."""
        a, b, low, high = (along.flat(part)[sides.rows] for part in self._segments_along(along))
        return integrate_segments(
            a,
            b - sides.fall[:, None],
            np.maximum(low, sides.low[:, None]),
            np.minimum(high, sides.high[:, None]),
            whole=sides.rows,
        )

    def _parabola_law(self, along: LinesAtDual, sides: Sides) -> TiltedLaw:
        """Quadratic lines, as truncated Gaussians."""
        (value, slope, bend), eps = self._parabolas, self._rule.epsilon
        offset = self._offsets(along.lines)
        c = (value + offset * (slope + 0.5 * offset * bend)) / eps
        b = (slope + bend * offset) * along.scale / eps + along.slope
        bent = bend * along.scale**2 / eps
        c, b, bent = (along.flat(part)[sides.rows] for part in (c, b, bent))
        return quadratic_law(c, b - sides.fall, bent, sides.low, sides.high)

    def _smooth_law(self, curvature: str, along: LinesAtDual, sides: Sides) -> TiltedLaw:
        """Any lines, by quadrature that evaluates their terms."""
        rule, slope = self._rule, along.flat(along.slope)[sides.rows] - sides.fall

        def exponent(owner: Array, t: Array) -> Array:
            sample, line = np.divmod(sides.rows[owner], along.shape[1])
            where = along.lines[line]
            z = self._data[sample, where] + along.scale[line] * t
            z = np.clip(z, rule.lower[where], rule.upper[where])
            return self._packing.values(sample, where, z) / rule.epsilon + slope[owner] * t

        return integrate_lines(exponent, sides.low, sides.high, curvature=curvature)

    def _lines_at(self, lines: Array, dual: float) -> LinesAtDual:
        rule = self._rule
        scale = np.sqrt(rule.variances(dual)[lines])
        data = self._data[:, lines]
        return LinesAtDual(
            lines,
            scale,
            self._slopes[:, lines] * scale / rule.epsilon,
            (rule.lower[lines] - data) / scale,
            (rule.upper[lines] - data) / scale,
        )

    def _offsets(self, lines: Array) -> Array:
        """xi_ki less the point that pieces and parabolas are counted from, (K, D)."""
        rule = self._rule
        if rule.parts.held:
            return np.zeros((len(self._samples), len(lines)))
        return self._data[:, lines] - rule.joint.mean[rule.parts.coordinates[lines]]

    def _segments_along(self, along: LinesAtDual) -> tuple[Array, Array, Array, Array]:
        """Piecewise affine lines as a_q + b_q t on [low_q, high_q], (K, D, Q) or broadcast."""
        segments, eps = self._segments, self._rule.epsilon
        offset, scale = self._offsets(along.lines)[:, :, None], along.scale[:, None]
        a = (segments.intercepts + segments.slopes * offset) / eps
        b = segments.slopes * scale / eps + along.slope[:, :, None]
        kinks = (segments.kinks - offset) / scale
        ends = np.broadcast_to(np.inf, (*along.shape, 1))
        low = np.maximum(np.concatenate([-ends, kinks], axis=2), along.low[:, :, None])
        high = np.minimum(np.concatenate([kinks, ends], axis=2), along.high[:, :, None])
        return a, b, low, high


# ------------------------------
# Losses that are sums of terms in separate coordinates: one integral for each coordinate


WAYS = {
    PIECEWISE: "piece by piece in closed form",
    QUADRATIC: "as truncated Gaussians",
    SMOOTH: "by quadrature",
}


class Separable(Integration):
    """Integration coordinate by coordinate."""

    name = "separable"
    start = ROBUST

    def __init__(self, model: RobustModel, scales: Scales) -> None:
        super().__init__(model, scales)
        sigma = scales.sigma
        self.parts = separate(model)
        where = self.parts.coordinates
        self.lines = {kind: np.flatnonzero(self.parts.kinds == kind) for kind in WAYS}
        self.pieces = Pieces(self.parts, self.lines[PIECEWISE], model.loss.layout)
        deviation = np.broadcast_to(np.asarray(sigma, dtype=float), (model.joint.dimension,))
        self.weights = model.cost.coordinate_weights[where]
        self.squared = model.cost.is_quadratic
        """True for a squared cost, False for a cost of distances."""
        self.spread = deviation[where] ** 2
        self.lower, self.upper = (side[where] for side in box_of(model.joint))
        self.reach = np.zeros(model.joint.dimension)
        """Steps over which slopes are taken: as long as the data varies, 0 for data that does not
        move."""
        self.reach[where] = 1e-3 + np.abs(self.joint.matrix[:, where] - self.joint.mean[where]).max(
            axis=0, initial=0.0
        )
        self.joint_groups = [LowRank(part, scales) for part in self.parts.joint]
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
                self._reference += log_mass(*ends)
        return self._reference[samples]

    def describe(self) -> str:
        counts = {kind: len(lines) for kind, lines in self.lines.items() if len(lines)}
        ways = [f"{count} {WAYS[kind]}" for kind, count in counts.items()]
        if self.joint_groups:
            ways.append(f"{len(self.joint_groups)} groups of coordinates through affine forms")
        return f"separable: one integral for each coordinate, {', '.join(ways)}"
