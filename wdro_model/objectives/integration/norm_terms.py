"""Sums of piecewise affine terms in separate coordinates with a Euclidean or a largest-move cost.

The components of a norm (`norm_components`) are products over the coordinates, each factor a sum of
normal probabilities between kinks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wdro_model.model import RobustModel
from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.inner_integral import ROBUST, Integration, Stream
from wdro_model.objectives.integration.interval_laws import normal_between
from wdro_model.objectives.integration.mixtures import PanelMixture
from wdro_model.objectives.integration.norm_components import MIXINGS, Mixing, Reaches
from wdro_model.objectives.integration.norms import squared_twin
from wdro_model.objectives.integration.separable.by_terms import Separable, separable_refusal
from wdro_model.objectives.integration.separable.term_anatomy import PIECEWISE, separate
from wdro_model.objectives.integration.separable.term_slice import SeparableSlice
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.sample_shares import SampleShares

LIVELY = 1e-7
"""Components of a smaller probability say nothing about the gradient."""
REACH = 11.0
"""Moves beyond so many standard deviations have no mass."""


def norm_terms_refusal(model: RobustModel) -> str | None:
    """Why the strategy does not apply; None if it does."""
    if model.cost.exponent not in MIXINGS:
        return "the ground cost is not a norm with p = 2 or inf"
    twin = squared_twin(model)
    if (reason := separable_refusal(twin)) is not None:
        return reason
    parts = separate(twin)
    if parts.joint or not np.all(parts.kinds == PIECEWISE):
        return "some terms are not piecewise affine in one coordinate"
    return None


def build_norm_terms(model: RobustModel, scales: Any) -> NormTerms:
    """The strategy for a model that it does not refuse."""
    return NormTerms(model, epsilon=scales.epsilon, sigma=scales.sigma)


class NormTerms(Integration):
    """Integration over mixtures of products."""

    name = "norms"
    begins = ROBUST
    exact = True

    def __init__(self, model: RobustModel, *, epsilon: float, sigma: float | Array) -> None:
        self.terms = Separable(squared_twin(model), epsilon=epsilon, sigma=sigma)
        where = self.terms.parts.coordinates
        deviation = np.sqrt(self.terms.spread)
        self.rho = np.asarray(model.cost.coordinate_scales)[where] * deviation
        mixing = MIXINGS[float(model.cost.exponent)]  # type: ignore[arg-type]
        self.mixing = mixing(self.rho)
        self.places: tuple[Array, ...] | None = None
        """Panels of all samples that did at the last decision."""

    def slice(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> NormTermsSlice:
        shares = shares or self.terms.joint.shares_of(samples)
        return NormTermsSlice(self, x, samples, stream, shares)

    def describe(self) -> str:
        return "norms: separate piecewise affine terms, as a mixture of products over coordinates"


class SegmentMixture(PanelMixture):
    """Products over D lines of functions exp(a_q + b_q z), low_q <= z <= high_q, z ~ N(0, 1).

    parts: a, b, low, high, (K, D, Q) each.
    """

    def __init__(
        self, parts: tuple[Array, ...], mixing: Mixing, places: tuple[Array, ...] | None = None
    ) -> None:
        self.a, self.slopes, self.low, self.high = parts
        steep = np.abs(self.slopes).max(axis=2)
        room = np.maximum(-self.low.min(axis=2), self.high.max(axis=2))
        reaches = Reaches(np.minimum(steep + REACH, room), steep.max(axis=0))
        kinks = mixing.kinks(self.low, self.high)
        super().__init__(mixing, len(self.a), reaches, kinks, places)

    def bounds(self, owner: Array, points: Array) -> tuple[Array, Array]:
        logs = _log_sum(self._integrated(owner, points)[0]).sum(axis=1)
        return logs, np.ones(len(logs), dtype=bool)

    def means(self, owner: Array, points: Array) -> tuple[Array, Array]:
        """The logarithms, and the mean of z on each segment, (M, D, Q) twice."""
        logs, variance, depth = self._integrated(owner, points)
        mean = self.slopes[owner] * variance + np.sqrt(variance) * depth
        return logs, np.clip(mean, self.low[owner], self.high[owner])

    def _integrated(self, owner: Array, points: Array) -> tuple[Array, Array, Array]:
        """Logarithms, variances, and means of the normals on their segments."""
        variance, low, high = self.mixing.seen(points, self.low[owner], self.high[owner])
        root, slopes = np.sqrt(variance), self.slopes[owner]
        with np.errstate(invalid="ignore"):
            width = (high - low) / root
        low, high = ((side - slopes * variance) / root for side in (low, high))
        between, depth = normal_between(low, high, width)
        top = self.a[owner] + 0.5 * slopes**2 * variance + 0.5 * np.log(variance)
        return top + between, variance, depth


class NormTermsSlice(SeparableSlice):
    """mean_k phi_k at one x."""

    def __init__(
        self, rule: NormTerms, x: Array, samples: Array, stream: Stream, shares: SampleShares
    ) -> None:
        super().__init__(rule.terms, x, samples, stream, shares)
        parts, eps = rule.terms.parts, rule.terms.epsilon
        self._lines = self._along(rule.terms.lines[PIECEWISE], 0.0)
        segments = np.broadcast_arrays(*self._segments_along(self._lines))
        whole = len(self._samples) == rule.terms.joint.size
        places = rule.places if whole else None
        self._mixture = SegmentMixture(tuple(segments), rule.mixing, places)
        self._norm_rule = rule if whole else None
        constant = parts.affine(self._x, self._rows)[:, 0]
        constant = constant + parts.still(self._x, self._rows).sum(axis=1)
        self._constant = constant / eps - rule.terms.reference(self._samples)

    def at(self, dual: float) -> DualPoint:
        eps = self._rule.epsilon
        law = self._mixture.law(dual / eps)
        if self._norm_rule is not None:
            self._norm_rule.places = self._mixture.places
        average = self._shares.total
        value = eps * float(average(law.log_mass + self._constant))
        return DualPoint(value, -float(average(law.cost)), float(average(law.spread)) / eps)

    def gradient(self, dual: float) -> Array:
        """Each segment is asked at its mean, with its probability."""
        rule, parts, along = self._rule, self._rule.parts, self._lines
        size = len(self._samples)
        mass, lever = self._moments(dual / rule.epsilon)
        moved = np.zeros((size, rule.joint.dimension))
        columns = parts.coordinates[along.lines]
        moved[:, columns] = along.scale * lever.sum(axis=2)
        sample, line, segment = np.nonzero(mass > LIVELY)
        weights = mass[sample, line, segment]
        mean = lever[sample, line, segment] / weights
        gradient = self._packing.gradient(
            sample,
            along.lines[line],
            self._data[sample, along.lines[line]] + along.scale[line] * mean,
            self._shares.some(sample).times(weights),
        )
        shares = self._shares.array
        gradient += self._affine_gradient(self._rows + moved, shares)
        if parts.still.count:
            parts.still(self._x, self._rows)
            gradient += parts.still.in_decision(shares[:, None])
        return gradient

    def _moments(self, rate: float) -> tuple[Array, Array]:
        """P(z in segment) and E [z; segment] of all lines, (K, D, Q) twice."""
        mixture, found = self._mixture, self._mixture.nodes(rate)
        found = found.picked(found.shares > LIVELY)
        owner, points, shares = found.owner, found.points, found.shares
        logs, mean = mixture.means(owner, points)
        with np.errstate(under="ignore"):
            weights = np.exp(logs - _log_sum(logs)[..., None]) * shares[:, None, None]
        lever = np.where(weights > 0, weights * mean, 0.0)
        first = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
        return np.add.reduceat(weights, first), np.add.reduceat(lever, first)


def _log_sum(logs: Array) -> Array:
    """log sum exp over the last axis, which is short."""
    parts = [logs[..., q] for q in range(logs.shape[-1])]
    if len(parts) == 1:
        return parts[0]
    top = parts[0]
    for part in parts[1:]:
        top = np.maximum(top, part)
    shift = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(under="ignore", divide="ignore"):
        return shift + np.log(sum(np.exp(part - shift) for part in parts))
