"""mean_k phi_k at one decision as a function of the dual, for a loss of separate terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.inner_integral import Stream
from wdro_model.objectives.integration.low_rank.groups import rows_of
from wdro_model.objectives.integration.low_rank.line_panels import Exponent
from wdro_model.objectives.integration.low_rank.tilted_law import TiltedLaw
from wdro_model.objectives.integration.separable.packing import Packing
from wdro_model.objectives.integration.separable.term_anatomy import PIECEWISE, QUADRATIC, SMOOTH
from wdro_model.objectives.integration.separable.term_laws import (
    Halves,
    halves,
    quadratic_law,
    segment_law,
    smooth_law,
)
from wdro_model.solvers.objective import Array

if TYPE_CHECKING:
    from wdro_model.objectives.integration.separable.by_terms import Separable


@dataclass(frozen=True)
class Along:
    """Some lines at one dual variable: zeta_i = xi_ki + s_i t for K samples and D lines."""

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


@dataclass(frozen=True)
class TiltedTerms:
    """The laws of some lines: function k D + i is line i at sample k."""

    along: Along
    law: TiltedLaw
    fourth: bool
    """Do the points carry fourth moments?"""
    side: Array | None = None
    """-1 or 1 for points left or right of the sample, where the cost is a distance."""

    def moves(self) -> Array:
        """E t, (K, D)."""
        return self.law.mean(self.law.points[:, 0]).reshape(self.along.shape)

    def costs(self, weights: Array) -> tuple[Array, Array]:
        """Mean and variance of w_i |zeta_i - xi_i|^p at each function, (K, D).

        A point that stands for an interval is taken for a Gaussian in the variance, which serves
        Newton steps in the dual.
        """
        if self.side is not None:
            return self._distances(weights, self.side)
        law, unit = self.law, weights[self.along.lines] * self.along.scale**2
        square, within = law.points[:, 0] ** 2, 0.0
        if law.variance is not None:
            within = law.variance * (4 * square + 2 * law.variance)
            square = square + law.variance
        mean = law.mean(square)
        spread = np.full(len(mean), np.nan)
        if self.fourth:
            spread = law.mean((square - mean[law.owner]) ** 2 + within)
        shape = self.along.shape
        return unit * mean.reshape(shape), unit**2 * spread.reshape(shape)

    def _distances(self, weights: Array, side: Array) -> tuple[Array, Array]:
        """Mean and variance of w_i |zeta_i - xi_i|: each point stands for one side alone."""
        law, unit = self.law, weights[self.along.lines] * self.along.scale
        distance = side * law.points[:, 0]
        mean = law.mean(distance)
        within = 0.0 if law.variance is None else law.variance
        spread = law.mean((distance - mean[law.owner]) ** 2 + within)
        shape = self.along.shape
        return unit * mean.reshape(shape), unit**2 * spread.reshape(shape)


class SeparableSlice:
    """mean_k phi_k at one x."""

    def __init__(self, rule: Separable, x: Array, samples: Array, stream: Stream) -> None:
        self._rule, self._x = rule, np.asarray(x, dtype=float)
        self._samples = np.asarray(samples)
        self._rows = rows_of(rule.joint.matrix, self._samples)
        parts = rule.parts
        self._data = self._rows[:, parts.coordinates]
        self._packing = Packing(parts, self._rows, self._x)
        self._joint = [part.slice(self._x, samples, stream) for part in rule.joint_groups]
        base = rule.joint.mean[None] if parts.common else self._rows
        self._affine = parts.affine(self._x, base)[:, 0]
        """Of all samples, or of their mean."""
        self._base = base
        slopes = parts.affine.in_data(np.ones((len(base), 1)))
        self._slopes = slopes[:, parts.coordinates]
        if parts.common and len(samples) != rule.joint.size:
            shift = self._rows.mean(axis=0) - rule.joint.mean
            self._affine = self._affine + slopes @ shift
            self._base = self._rows.mean(axis=0)[None]
        self._still = float(parts.still(self._x, self._rows).sum()) / len(samples)
        rule.refuse_undefined(self._affine, self._still)
        self._segments = rule.pieces.at(self._x, self._held_rows(), rule.reach)
        self._parabolas = self._fitted()
        self._last: tuple[float, list[TiltedTerms]] | None = None

    def at(self, dual: float) -> DualPoint:
        rule, size = self._rule, len(self._samples)
        log_mass, cost, spread = 0.0, 0.0, 0.0
        for tilted in self._at(dual):
            if np.isposinf(tilted.law.log_mass).any():
                return DualPoint(np.inf, -np.inf, np.nan)
            mean, variance = tilted.costs(rule.weights)
            log_mass += float(tilted.law.log_mass.sum()) / size
            cost += float(mean.sum()) / size
            spread += float(variance.sum()) / size
        log_mass += 0.5 * float(np.log(rule.variances(dual) / rule.spread).sum())
        log_mass -= float(rule.reference(self._samples).sum()) / size
        affine = float(self._affine.mean())
        value = affine + self._still + rule.epsilon * log_mass
        curvature = spread / rule.epsilon
        for part in self._joint:
            inner = part.at(dual)
            if np.isposinf(inner.value):
                return inner
            value += inner.value - affine
            cost -= inner.slope
            curvature += inner.curvature
        return DualPoint(value, -cost, curvature)

    def each(self, duals: Array) -> tuple[Array, Array]:
        """phi_k and the mean cost of each sample, (J, K) twice."""
        parts = [self._each(float(dual)) for dual in duals]
        return np.stack([part[0] for part in parts]), np.stack([part[1] for part in parts])

    def _each(self, dual: float) -> tuple[Array, Array]:
        rule, parts, eps = self._rule, self._rule.parts, self._rule.epsilon
        log_mass, cost = -rule.reference(self._samples), np.zeros(len(self._samples))
        for tilted in self._at(dual):
            masses = tilted.law.log_mass.reshape(tilted.along.shape)
            log_mass = log_mass + masses.sum(axis=1)
            if np.isposinf(masses).any():
                return np.full(len(cost), np.inf), np.full(len(cost), np.inf)
            cost += tilted.costs(rule.weights)[0].sum(axis=1)
        log_mass += 0.5 * float(np.log(rule.variances(dual) / rule.spread).sum())
        affine = parts.affine(self._x, self._rows)[:, 0]
        value = affine + parts.still(self._x, self._rows).sum(axis=1) + eps * log_mass
        for part in self._joint:
            values, costs = part.each(np.array([dual]))
            value, cost = value + values[0] - affine, cost + costs[0]
        return value, cost

    def mixed_gradient(self, duals: Array, shares: Array) -> Array:
        """sum_jk shares_jk grad_x phi_k(x, l_j), for shares (J, K)."""
        parts = [self._weighted(float(dual), share) for dual, share in zip(duals, shares)]
        return np.sum(parts, axis=0)

    def gradient(self, dual: float) -> Array:
        return self._weighted(dual, np.full(len(self._samples), 1.0 / len(self._samples)))

    def _weighted(self, dual: float, shares: Array) -> Array:
        """sum_k shares_k grad_x phi_k, for shares (K,)."""
        rule, parts = self._rule, self._rule.parts
        moved = np.zeros((len(self._samples), rule.joint.dimension))
        samples, lines, points, weights = [], [], [], []
        for tilted in self._at(dual):
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

    def diagnostics(self, dual: float) -> None:
        return None

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

    def _at(self, dual: float) -> list[TiltedTerms]:
        """The laws of all lines at a dual variable; those of the last one are kept."""
        if self._last is None or self._last[0] != dual:
            found = [self._piecewise(dual), self._quadratic(dual), *self._smooth(dual)]
            self._last = (dual, [one for one in found if one is not None])
        return self._last[1]

    def _along(self, lines: Array, dual: float) -> Along:
        rule = self._rule
        scale = np.sqrt(rule.variances(dual)[lines])
        data = self._data[:, lines]
        return Along(
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

    def _segments_along(self, along: Along) -> tuple[Array, Array, Array, Array]:
        """Piecewise affine lines as a_q + b_q t on [low_q, high_q], (K, D, Q) or broadcast."""
        found, eps = self._segments, self._rule.epsilon
        offset, scale = self._offsets(along.lines)[:, :, None], along.scale[:, None]
        a = (found.intercepts + found.slopes * offset) / eps
        b = found.slopes * scale / eps + along.slope[:, :, None]
        kinks = (found.kinks - offset) / scale
        ends = np.broadcast_to(np.inf, (*along.shape, 1))
        low = np.maximum(np.concatenate([-ends, kinks], axis=2), along.low[:, :, None])
        high = np.minimum(np.concatenate([kinks, ends], axis=2), along.high[:, :, None])
        return a, b, low, high

    def _piecewise(self, dual: float) -> TiltedTerms | None:
        rule = self._rule
        lines = rule.lines[PIECEWISE]
        if not len(lines):
            return None
        along = self._along(lines, dual)
        a, b, low, high = self._segments_along(along)
        if rule.squared:
            law = segment_law(*(along.flat(part) for part in (a, b, low, high)))
            return TiltedTerms(along, law, fourth=True)
        rate = rule.rates(lines, dual)[:, None]
        low, high = np.broadcast_arrays(low, high)
        two_sided = (
            np.concatenate([a, a], axis=2),
            np.concatenate([b + rate, b - rate], axis=2),
            np.concatenate([low, np.maximum(low, 0.0)], axis=2),
            np.concatenate([np.minimum(high, 0.0), high], axis=2),
        )
        law = segment_law(*(along.flat(part) for part in two_sided))
        return TiltedTerms(along, law, fourth=True, side=_side(law))

    def _quadratic(self, dual: float) -> TiltedTerms | None:
        rule, lines = self._rule, self._rule.lines[QUADRATIC]
        if not len(lines):
            return None
        along = self._along(lines, dual)
        value, slope, bend = self._parabolas
        offset = self._offsets(lines)
        c = (value + offset * (slope + 0.5 * offset * bend)) / rule.epsilon
        b = (slope + bend * offset) * along.scale / rule.epsilon + along.slope
        scaled = bend * along.scale**2 / rule.epsilon
        c, b, bent, low, high = (along.flat(part) for part in (c, b, scaled, along.low, along.high))
        if not rule.squared:
            cut = halves(low, high)
            fall = along.flat(rule.rates(lines, dual)[None])[cut.rows] * cut.side
            parts = (c[cut.rows], b[cut.rows] - fall, bent[cut.rows], cut.low, cut.high)
            law, side = cut.joined(quadratic_law(*parts))
            return TiltedTerms(along, law, fourth=True, side=side)
        whole = np.isinf(along.low).all() and np.isinf(along.high).all()
        return TiltedTerms(along, quadratic_law(c, b, bent, low, high), fourth=bool(whole))

    def _smooth(self, dual: float) -> list[TiltedTerms]:
        rule, parts = self._rule, self._rule.parts
        found = []
        for curvature in np.unique(parts.curvatures[rule.lines[SMOOTH]]):
            lines = rule.lines[SMOOTH][parts.curvatures[rule.lines[SMOOTH]] == curvature]
            along = self._along(lines, dual)
            low, high = along.flat(along.low), along.flat(along.high)
            if rule.squared:
                law = smooth_law(self._exponent(along), low, high, str(curvature))
                found.append(TiltedTerms(along, law, fourth=True))
                continue
            cut = halves(low, high)
            exponent = self._falling(along, cut, along.flat(rule.rates(lines, dual)[None]))
            law, side = cut.joined(smooth_law(exponent, cut.low, cut.high, str(curvature)))
            found.append(TiltedTerms(along, law, fourth=True, side=side))
        return found

    def _falling(self, along: Along, cut: Halves, rate: Array) -> Exponent:
        """H(t) - rate |t| on both sides of the samples."""
        whole = self._exponent(along)

        def exponent(owner: Array, t: Array) -> Array:
            rows = cut.rows[owner]
            return whole(rows, t) - rate[rows] * np.abs(t)

        return exponent

    def _exponent(self, along: Along) -> Exponent:
        """H(t) of the functions along some lines, by evaluating their terms."""
        rule, slope = self._rule, along.flat(along.slope)

        def exponent(owner: Array, t: Array) -> Array:
            sample, line = np.divmod(owner, along.shape[1])
            where = along.lines[line]
            z = self._data[sample, where] + along.scale[line] * t
            z = np.clip(z, rule.lower[where], rule.upper[where])
            values = self._packing.values(sample, where, z)
            return values / rule.epsilon + slope[owner] * t

        return exponent


def _side(law: TiltedLaw) -> Array:
    """The side of 0 that each point of a law lies on."""
    return np.where(law.points[:, 0] < 0, -1.0, 1.0)
