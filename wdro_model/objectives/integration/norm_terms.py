"""Sums of piecewise affine terms in separate coordinates with a Euclidean or a largest-move cost.

Both costs are mixtures over a parameter s whose components are products over the coordinates,

    exp(-a |y|_2)   = int a/(2 sqrt(pi)) s^(-3/2) exp(-a^2/(4 s)) exp(-s |y|_2^2) ds,
    exp(-a |y|_inf) = int a exp(-a s) 1{|y|_inf <= s} ds,

each factor a sum of normal probabilities between kinks. The components do not depend on a, so that
the cost is known from the weights alone, E c = -E [d log weight / da].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import log_ndtr

from wdro_model.model import RobustModel
from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.inner_integral import ROBUST, Integration, Stream
from wdro_model.objectives.integration.kernel.normal import HALF_LOG_2PI
from wdro_model.objectives.integration.norms import (
    CUT,
    LAST,
    NODES,
    WEIGHTS,
    WIDEST,
    squared_twin,
)
from wdro_model.objectives.integration.separable.by_terms import Separable, separable_refusal
from wdro_model.objectives.integration.separable.term_anatomy import PIECEWISE, separate
from wdro_model.objectives.integration.separable.term_slice import SeparableSlice
from wdro_model.solvers.objective import Array

SMALLEST = 1e-6
"""A dual variable under which the cost of the reference is this share of eps is taken for 0."""
LIVELY = 1e-7
"""Components of a smaller probability say nothing about the gradient."""
CLOSE = 1e-5
"""The share of the mass up to which the last coefficients of a panel may go."""
NARROWEST = 1e-6
"""Panels are not cut beyond this width."""
NO_MORE = 80.0
"""A lower end at which the exponent of the density is so much smaller cuts nothing off."""
QUIET = 1e-11
"""Panels of a smaller share of the mass are not worth their nodes at the next decision."""
REACH = 11.0
"""Moves beyond so many standard deviations have no mass."""


def norm_terms_refusal(model: RobustModel) -> str | None:
    """Why the strategy does not apply; None if it does."""
    if model.cost.exponent not in MIXTURES:
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
        self.mixture = MIXTURES[float(model.cost.exponent)]  # type: ignore[arg-type]
        self.places: tuple[Array, ...] | None = None
        """Panels of all samples that did at the last decision."""

    def slice(self, x: Array, samples: Array, stream: Stream) -> NormTermsSlice:
        return NormTermsSlice(self, x, samples, stream)

    def describe(self) -> str:
        return "norms: separate piecewise affine terms, as a mixture of products over coordinates"


@dataclass(frozen=True)
class TermPanels:
    """Intervals of log s of K samples, in order, with what is known at their nodes; (P, ...)."""

    owner: Array
    left: Array
    right: Array
    logs: Array
    """log mass of the components at the nodes, (P, nodes)."""

    @property
    def points(self) -> Array:
        middle, half = 0.5 * (self.left + self.right), 0.5 * (self.right - self.left)
        return middle[:, None] + half[:, None] * NODES


@dataclass(frozen=True)
class MixedTerms:
    """The mixture at one rate."""

    owner: Array
    """The sample of each node, (M,)."""
    points: Array
    """log s, (M,)."""
    shares: Array
    """Probabilities, of sum one over the nodes of a sample, (M,)."""
    log_mass: Array
    """(K,)"""


class SegmentMixture(ABC):
    """Products over D lines of functions exp(a_q + b_q z), low_q <= z <= high_q, z ~ N(0, 1).

    parts: a, b, low, high, (K, D, Q) each; places: owner and ends of panels to begin with.
    """

    def __init__(
        self, parts: tuple[Array, ...], rho: Array, places: tuple[Array, ...] | None = None
    ) -> None:
        self.a, self.slopes, self.low, self.high = parts
        self.rho, self.size, self._places = rho, len(parts[0]), places
        self._panels: TermPanels | None = None
        self._last: tuple[float, MixedTerms] | None = None

    @abstractmethod
    def seen(self, owner: Array, points: Array) -> tuple[Array, Array, Array]:
        """Variances of z and the ends of the segments in the components, (M, D, Q)."""

    @abstractmethod
    def costs(self, rate: float, found: MixedTerms) -> tuple[Array, Array]:
        """The means of c and c^2, (K,) twice."""

    @abstractmethod
    def weight(self, rate: float, points: Array) -> Array:
        """The logarithm of the weight of log s."""

    @abstractmethod
    def range(self, rate: float) -> tuple[float, float]:
        """The values of log s that may have mass."""

    def kinks(self) -> Array:
        """Values of log s at which the components are not smooth, (K, m)."""
        return np.zeros((self.size, 0))

    def logs(self, owner: Array, points: Array) -> Array:
        """Of each segment at log s: (M, D, Q)."""
        return self._integrated(owner, points)[0]

    def means(self, owner: Array, points: Array) -> tuple[Array, Array]:
        """The logarithms, and the mean of z on each segment, (M, D, Q) twice."""
        logs, variance, low, high, between = self._integrated(owner, points)
        with np.errstate(under="ignore", over="ignore", invalid="ignore"):
            ends = [np.exp(-0.5 * side**2 - HALF_LOG_2PI - between) for side in (low, high)]
            mean = self.slopes[owner] * variance + np.sqrt(variance) * (ends[0] - ends[1])
        return logs, np.clip(mean, self.low[owner], self.high[owner])

    def _integrated(self, owner: Array, points: Array) -> tuple[Array, ...]:
        variance, low, high = self.seen(owner, points)
        root, slopes = np.sqrt(variance), self.slopes[owner]
        low, high = ((side - slopes * variance) / root for side in (low, high))
        between = _log_normal_between(low, high)
        top = self.a[owner] + 0.5 * slopes**2 * variance + 0.5 * np.log(variance)
        return top + between, variance, low, high, between

    def mixed(self, rate: float) -> MixedTerms:
        """The mixture at a rate: panels are kept, and cut where it is not resolved."""
        if self._last is not None and self._last[0] == rate:
            return self._last[1]
        panels = self._covering(rate)
        while True:
            half = 0.5 * (panels.right - panels.left)
            logs = panels.logs + self.weight(rate, panels.points)
            top = np.full(self.size, -np.inf)
            np.maximum.at(top, panels.owner, logs.max(axis=1))
            with np.errstate(under="ignore"):
                density = np.exp(logs - top[panels.owner][:, None]) * half[:, None]
            mass = density @ WEIGHTS
            total = np.bincount(panels.owner, mass, self.size)
            error = np.abs(density @ LAST).sum(axis=1) / total[panels.owner]
            rough = (error > CLOSE) & (half > NARROWEST)
            rough |= beside(panels.owner, 2 * half, mass / total[panels.owner] > CLOSE)
            if not rough.any():
                break
            panels = self._cut(panels, rough)
        self._panels = panels
        self.places = _worth_keeping(panels, mass / total[panels.owner])
        shares = (density * WEIGHTS / total[panels.owner][:, None]).ravel()
        used = shares > LIVELY * 1e-5
        found = MixedTerms(
            np.repeat(panels.owner, len(NODES))[used],
            panels.points.ravel()[used],
            shares[used],
            top + np.log(total),
        )
        self._last = (rate, found)
        return found

    def _covering(self, rate: float) -> TermPanels:
        """Panels over all that may have mass; those that are known are kept."""
        low, high = self.range(rate)
        known = self._panels
        if known is None and self._places is not None:
            known = self._computed(*self._places)
        if known is None:
            ends = np.linspace(low, high, 2 + int((high - low) / WIDEST))
            owner = np.repeat(np.arange(self.size), len(ends) - 1)
            left, right = (np.tile(side, self.size) for side in (ends[:-1], ends[1:]))
            return self._computed(owner, left, right)
        sides = []
        if low < (stop := float(known.left.min())) - 1e-9:
            sides.append((low, stop))
        if high > (start := float(known.right.max())) + 1e-9:
            sides.append((start, high))
        for side in sides:
            every = np.arange(self.size)
            more = self._computed(every, *(np.full(self.size, end) for end in side))
            known = _joined(known, more)
        return known

    def _cut(self, panels: TermPanels, rough: Array) -> TermPanels:
        """The panels with rough ones in two, at a kink where one is inside."""
        owner, left, right = (part[rough] for part in (panels.owner, panels.left, panels.right))
        middle, kinks = 0.5 * (left + right), self.kinks()[owner]
        if kinks.shape[1]:
            off = np.where(
                (kinks > left[:, None]) & (kinks < right[:, None]),
                np.abs(kinks - middle[:, None]),
                np.inf,
            )
            best = off.argmin(axis=1)
            rows = np.arange(len(owner))
            slack = 1e-3 * (right - left)
            at = kinks[rows, best]
            inside = (off[rows, best] < np.inf) & (at - left > slack) & (right - at > slack)
            middle = np.where(inside, at, middle)
        new = self._computed(np.tile(owner, 2), np.r_[left, middle], np.r_[middle, right])
        kept = TermPanels(*(getattr(panels, f)[~rough] for f in panels.__dataclass_fields__))
        return _joined(kept, new)

    def _computed(self, owner: Array, left: Array, right: Array) -> TermPanels:
        empty = TermPanels(owner, left, right, np.zeros(0))
        logs = self.logs(np.repeat(owner, len(NODES)), empty.points.ravel())
        return replace(empty, logs=_log_sum(logs).sum(axis=1).reshape(len(owner), -1))


def _worth_keeping(panels: TermPanels, share: Array) -> tuple[Array, Array, Array]:
    """Owner and ends of the panels, neighbours without mass being one."""
    owner, left, right = panels.owner, panels.left, panels.right
    empty = share < QUIET
    merges = empty[1:] & empty[:-1] & (owner[1:] == owner[:-1])
    first = np.flatnonzero(np.r_[True, ~merges])
    last = np.flatnonzero(np.r_[~merges, True])
    return owner[first], left[first], right[last]


def _joined(one: TermPanels, other: TermPanels) -> TermPanels:
    """The panels of both, in order."""
    names = one.__dataclass_fields__
    parts = [np.concatenate([getattr(one, name), getattr(other, name)]) for name in names]
    order = np.lexsort((parts[1], parts[0]))
    return TermPanels(*(part[order] for part in parts))


class LengthOfTerms(SegmentMixture):
    """The Euclidean length: squared costs of weight s."""

    def seen(self, owner: Array, points: Array) -> tuple[Array, Array, Array]:
        with np.errstate(over="ignore"):
            v = 1.0 / (1.0 + 2.0 * np.exp(points)[:, None] * self.rho**2)
        return v[..., None], self.low[owner], self.high[owner]

    def costs(self, rate: float, found: MixedTerms) -> tuple[Array, Array]:
        inverse = np.exp(-found.points)
        cost = np.bincount(found.owner, found.shares * (0.5 * rate * inverse), self.size)
        square = inverse * (0.25 * rate**2 * inverse - 1.5)
        return cost - 1.0 / rate, np.bincount(found.owner, found.shares * square, self.size)

    def weight(self, rate: float, points: Array) -> Array:
        with np.errstate(over="ignore"):
            fall = 0.25 * rate**2 * np.exp(-points)
        return np.log(rate / (2 * np.sqrt(np.pi))) - 0.5 * points - fall

    def range(self, rate: float) -> tuple[float, float]:
        longest = np.sqrt(np.sum((self.rho * _reach(self)) ** 2, axis=1)).max()
        low = np.log(0.25 * rate**2 / (rate * longest + 2 * CUT))
        high = max(2 * np.log(rate), -2 * np.log(self.rho.min())) + 2 * CUT / (1 + len(self.rho))
        return float(low), float(high)


class LargestOfTerms(SegmentMixture):
    """The largest move: boxes of half-widths s/rho_i."""

    def seen(self, owner: Array, points: Array) -> tuple[Array, Array, Array]:
        end = (np.exp(points)[:, None] / self.rho)[..., None]
        return np.ones(1), np.maximum(self.low[owner], -end), np.minimum(self.high[owner], end)

    def kinks(self) -> Array:
        if self._meetings is None:
            ends = np.abs(np.concatenate([self.low, self.high], axis=2)) * self.rho[:, None]
            with np.errstate(divide="ignore"):
                self._meetings = np.log(ends).reshape(self.size, -1)
        return self._meetings

    _meetings: Array | None = None

    def costs(self, rate: float, found: MixedTerms) -> tuple[Array, Array]:
        s = np.exp(found.points)
        mean, square = (np.bincount(found.owner, found.shares * s**n, self.size) for n in (1, 2))
        return mean - 1.0 / rate, square - 2.0 * mean / rate

    def weight(self, rate: float, points: Array) -> Array:
        return np.log(rate) + points - rate * np.exp(points)

    def range(self, rate: float) -> tuple[float, float]:
        steep = float((np.abs(self.slopes).max(axis=(0, 2)) / self.rho).max())
        typical = max(rate, steep, 1.0 / float(self.rho.min()))
        low = -np.log(typical) - (CUT + 6.0) / (1 + len(self.rho)) - 2.0
        high = np.log(max(float((self.rho * _reach(self)).max()), 2 * CUT / rate))
        return float(low), float(high)


def _reach(mixture: SegmentMixture) -> Array:
    """How far z may go along the lines, (K, D)."""
    free = np.abs(mixture.slopes).max(axis=2) + REACH
    return np.minimum(free, np.maximum(-mixture.low.min(axis=2), mixture.high.max(axis=2)))


MIXTURES: dict[float, type[SegmentMixture]] = {2.0: LengthOfTerms, np.inf: LargestOfTerms}


class NormTermsSlice(SeparableSlice):
    """mean_k phi_k at one x."""

    def __init__(self, rule: NormTerms, x: Array, samples: Array, stream: Stream) -> None:
        super().__init__(rule.terms, x, samples, stream)
        parts, eps = rule.terms.parts, rule.terms.epsilon
        self._lines = self._along(rule.terms.lines[PIECEWISE], 0.0)
        segments = np.broadcast_arrays(*self._segments_along(self._lines))
        whole = len(self._samples) == rule.terms.joint.size
        self._mixture = rule.mixture(tuple(segments), rule.rho, rule.places if whole else None)
        self._norm_rule = rule if whole else None
        constant = parts.affine(self._x, self._rows)[:, 0]
        constant = constant + parts.still(self._x, self._rows).sum(axis=1)
        self._constant = constant / eps - rule.terms.reference(self._samples)
        self._unit = float(np.sqrt(np.sum(rule.rho**2)))

    def _rate(self, dual: float) -> float:
        return max(dual / self._rule.epsilon, SMALLEST / self._unit)

    def at(self, dual: float) -> DualPoint:
        eps, rate = self._rule.epsilon, self._rate(dual)
        found = self._mixture.mixed(rate)
        if self._norm_rule is not None:
            self._norm_rule.places = self._mixture.places
        cost, square = self._mixture.costs(rate, found)
        spread = np.maximum(square - cost**2, 0.0)
        value = eps * float((found.log_mass + self._constant).mean())
        return DualPoint(value, -float(cost.mean()), float(spread.mean()) / eps)

    def gradient(self, dual: float) -> Array:
        """Each segment is asked at its mean, with its probability."""
        rule, parts, along = self._rule, self._rule.parts, self._lines
        size = len(self._samples)
        mass, lever = self._moments(self._rate(dual))
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
            weights / size,
        )
        shares = np.full(size, 1.0 / size)
        gradient += self._affine_gradient(self._rows + moved, shares)
        if parts.still.count:
            parts.still(self._x, self._rows)
            gradient += parts.still.in_decision(shares[:, None])
        return gradient

    def _moments(self, rate: float) -> tuple[Array, Array]:
        """P(z in segment) and E [z; segment] of all lines, (K, D, Q) twice."""
        mixture, found = self._mixture, self._mixture.mixed(rate)
        used = found.shares > LIVELY
        owner, points, shares = found.owner[used], found.points[used], found.shares[used]
        logs, mean = mixture.means(owner, points)
        with np.errstate(under="ignore"):
            weights = np.exp(logs - _log_sum(logs)[..., None]) * shares[:, None, None]
        lever = np.where(weights > 0, weights * mean, 0.0)
        first = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
        return np.add.reduceat(weights, first), np.add.reduceat(lever, first)


def beside(owner: Array, width: Array, lively: Array) -> Array:
    """Panels much wider than a neighbour with mass: a peak may begin in them."""
    same = owner[1:] == owner[:-1]
    found = np.zeros(len(width), dtype=bool)
    found[1:] |= same & lively[:-1] & (width[1:] > 8 * np.maximum(width[:-1], 0.05))
    found[:-1] |= same & lively[1:] & (width[:-1] > 8 * np.maximum(width[1:], 0.05))
    return found


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


def _log_normal_between(low: Array, high: Array) -> Array:
    """log P(low <= t <= high), t ~ N(0, 1); -inf where low >= high."""
    flip = low + high > 0
    low, high = np.where(flip, -high, low), np.where(flip, -low, high)
    found = log_ndtr(high)
    with np.errstate(invalid="ignore", over="ignore"):
        both = np.nonzero(low * low - np.minimum(high, 0.0) ** 2 < NO_MORE)
    # Where low >= high the exponent may be anything: what comes of it is replaced below.
    with np.errstate(all="ignore"):
        found[both] += np.log(-np.expm1(log_ndtr(low[both]) - found[both]))
    found[low >= high] = -np.inf
    return found
