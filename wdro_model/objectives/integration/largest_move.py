"""The inner integral for a cost c = max_i w_i |y_i| and a loss affine in the data, without draws.

The law of c under the reference tilted by the loss is known: with y_i ~ N(m_i, sigma_i^2),
m_i = sigma_i^2 B_i/eps, restricted to the support,

    M(s) = P(c <= s) = prod_i P(-s/w_i <= y_i <= s/w_i),   E exp(f/eps - a c) ~ int exp(-a s) dM(s),

a = l/eps, and dM/M = sum_i h_i ds, h_i the density of y_i at the ends of its interval that move
with s. Given c = s, one coordinate sits at such an end, the others are truncated Gaussians. None of
this depends on l. In log s the density is smooth between the values of s at which the box of
half-widths s/w_i meets the support: panels end there, and are halved where they are not resolved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.model import RobustModel
from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.importance.frame import box_of
from wdro_model.objectives.integration.inner_integral import ROBUST, Given, Stream, inputs
from wdro_model.objectives.integration.kernel.normal import HALF_LOG_2PI, normal_interval
from wdro_model.objectives.integration.norms import CLOSE, CUT, LAST, NODES, WEIGHTS, WIDEST
from wdro_model.solvers.objective import Array

SHORT = 1e-3
"""Intervals with width * (1 + |midpoint|) below this are integrated by their Taylor series."""
DEVIATIONS = 11.0
"""Moves beyond so many standard deviations have no mass."""
NARROWEST = 1e-7
"""Panels are not halved beyond this width."""


class LargestMove(Given):
    """Integration over the largest weighted move, for affine losses."""

    name = "norms"
    begins = ROBUST
    exact = True

    def __init__(self, model: RobustModel, *, epsilon: float, sigma: float | Array) -> None:
        super().__init__(*inputs(model), epsilon=epsilon, sigma=sigma)
        lower, upper = box_of(self.joint)
        self.free = np.flatnonzero(~np.asarray(self.cost.frozen) & (lower < upper))
        deviation = np.broadcast_to(np.asarray(sigma, dtype=float), (self.joint.dimension,))
        self.deviation = deviation[self.free]
        self.scales = np.asarray(self.cost.coordinate_scales)[self.free]
        self.lower, self.upper = lower[self.free], upper[self.free]
        self.bounded = bool(np.isfinite(self.lower).any() or np.isfinite(self.upper).any())

    def slice(self, x: Array, samples: Array, stream: Stream) -> LargestMoveSlice:
        return LargestMoveSlice(self, x, np.asarray(samples))

    def describe(self) -> str:
        return "norms: the law of the largest move of an affine loss, by quadrature"


@dataclass(frozen=True)
class Lengths:
    """Panels of log s of several samples, and what is known at their nodes; P panels."""

    owner: Array
    left: Array
    right: Array
    logs: Array
    """The logarithm of the density of log s, (P, nodes)."""
    moves: Array
    """E [y | c = s], (P, nodes, d)."""

    @property
    def lengths(self) -> Array:
        """s at the nodes, (P, nodes)."""
        middle, half = 0.5 * (self.left + self.right), 0.5 * (self.right - self.left)
        return np.exp(middle[:, None] + half[:, None] * NODES)

    def picked(self, which: Array) -> Lengths:
        return Lengths(*(getattr(self, name)[which] for name in self.__dataclass_fields__))

    def with_(self, other: Lengths) -> Lengths:
        names = self.__dataclass_fields__
        return Lengths(*(np.concatenate([getattr(self, n), getattr(other, n)]) for n in names))


@dataclass(frozen=True)
class LawOfLength:
    """The law of the largest move at one dual variable."""

    log_mass: Array
    """log E exp(f/eps - a c) of each sample, (K,)."""
    panels: Lengths
    shares: Array
    """Probabilities of the nodes within their sample, (P, nodes)."""


class LargestMoveSlice:
    """mean_k phi_k at one x; on R^d all samples move alike, and their mean stands for them."""

    def __init__(self, rule: LargestMove, x: Array, samples: Array) -> None:
        self._rule, self._x = rule, x
        rows = rule.joint.matrix[samples]
        self._mean = rows.mean(axis=0)
        values, pullback = rule.loss(x, self._mean[None])
        slope = pullback.in_data(np.ones(1))[0]
        self._tilt = slope[rule.free] / rule.epsilon
        self._shift = rule.deviation**2 * self._tilt
        origins = rows if rule.bounded else self._mean[None]
        self._constant = (values[0] + (origins - self._mean) @ slope) / rule.epsilon
        self._constant += 0.5 * float(np.sum(self._tilt * self._shift))
        self._down, self._up = (
            rule.lower - origins[:, rule.free],
            rule.upper - origins[:, rule.free],
        )
        ends = (side / rule.deviation for side in (self._down, self._up))
        reference = normal_interval(*(end.ravel() for end in ends)).log_mass
        self._constant -= reference.reshape(self._down.shape).sum(axis=1)
        reach = np.abs(self._shift) + DEVIATIONS * rule.deviation
        reach = np.minimum(reach, np.maximum(-self._down, self._up))
        self._high = np.log((rule.scales * reach).max(axis=1))
        self._panels: Lengths | None = None
        self._last: tuple[float, LawOfLength] | None = None

    def at(self, dual: float) -> DualPoint:
        law, eps = self._law(dual), self._rule.epsilon
        size, s = len(law.log_mass), law.panels.lengths
        length = float((law.shares * s).sum()) / size
        of_sample = np.bincount(law.panels.owner, (law.shares * s).sum(axis=1), size)
        spread = float((law.shares * (s - of_sample[law.panels.owner][:, None]) ** 2).sum()) / size
        return DualPoint(float(eps * law.log_mass.mean()), -length, spread / eps)

    def gradient(self, dual: float) -> Array:
        law = self._law(dual)
        move = np.einsum("pn,pnd->d", law.shares, law.panels.moves) / len(law.log_mass)
        scenario = np.array(self._mean)
        scenario[self._rule.free] += move
        return self._rule.loss(self._x, scenario[None])[1](np.ones(1))

    def diagnostics(self, dual: float) -> None:
        return None

    # -------------------------------------------------------------- the law of the length
    def _law(self, dual: float) -> LawOfLength:
        """The law at a dual variable: panels are kept, and halved where it is not resolved."""
        if self._last is not None and self._last[0] == dual:
            return self._last[1]
        rate, size = dual / self._rule.epsilon, len(self._constant)
        panels = self._reaching(rate)
        while True:
            half = 0.5 * (panels.right - panels.left)
            logs = panels.logs - rate * panels.lengths
            top = np.full(size, -np.inf)
            np.maximum.at(top, panels.owner, logs.max(axis=1))
            with np.errstate(under="ignore"):
                density = np.exp(logs - top[panels.owner][:, None]) * half[:, None]
            total = np.bincount(panels.owner, density @ WEIGHTS, size)
            error = np.abs(density @ LAST).sum(axis=1) / total[panels.owner]
            rough = (error > CLOSE) & (half > NARROWEST)
            rough |= _beside(panels, density @ WEIGHTS / total[panels.owner] > CLOSE)
            if not rough.any():
                break
            panels = panels.picked(~rough).with_(self._halved(panels.picked(rough)))
            panels = panels.picked(np.lexsort((panels.left, panels.owner)))
        self._panels = panels
        shares = density * WEIGHTS / total[panels.owner][:, None]
        found = LawOfLength(top + np.log(total) + self._constant, panels, shares)
        self._last = (dual, found)
        return found

    def _reaching(self, rate: float) -> Lengths:
        """Panels from lengths so short that they have no mass to the longest ones.

        For short lengths the density of log s grows like s^d.
        """
        rule = self._rule
        unit = float(np.min(rule.scales * rule.deviation))
        typical = 1.0 / max(rate, float(np.max(np.abs(self._tilt) / rule.scales)), 1.0 / unit)
        low = min(np.log(typical), self._high.min()) - CUT / len(rule.free) - 3.0
        known = self._panels
        if known is not None and known.left.min() <= low:
            return known
        stop = self._high if known is None else np.full(len(self._high), known.left.min())
        owner, left, right = [], [], []
        kinks = np.concatenate([-self._down, self._up], axis=1) * np.tile(rule.scales, 2)
        for k, high in enumerate(stop):
            with np.errstate(divide="ignore"):
                ends = np.log(kinks[k][kinks[k] > 0])
            count = int(np.ceil((high - low) / WIDEST)) + 1
            ends = ends[(ends > low) & (ends < high)]
            ends = np.unique(np.concatenate([np.linspace(low, high, count), ends]))
            owner.append(np.full(len(ends) - 1, k))
            left.append(ends[:-1])
            right.append(ends[1:])
        found = self._computed(*(np.concatenate(part) for part in (owner, left, right)))
        if known is None:
            return found
        both = known.with_(found)
        return both.picked(np.lexsort((both.left, both.owner)))

    def _halved(self, panels: Lengths) -> Lengths:
        middle = 0.5 * (panels.left + panels.right)
        return self._computed(
            np.tile(panels.owner, 2),
            np.concatenate([panels.left, middle]),
            np.concatenate([middle, panels.right]),
        )

    def _computed(self, owner: Array, left: Array, right: Array) -> Lengths:
        """Panels with the density of log s and the mean moves at their nodes."""
        rule = self._rule
        v = 0.5 * (left + right)[:, None] + 0.5 * (right - left)[:, None] * NODES
        ends = np.exp(v)[:, :, None] / rule.scales
        down, up = self._down[owner][:, None], self._up[owner][:, None]
        low, high = np.maximum(-ends, down), np.minimum(ends, up)
        mass, mean = _truncated(low, high, self._shift, rule.deviation)
        at_low = np.where(-ends > down, self._density(low, mass), 0.0)
        at_high = np.where(ends < up, self._density(high, mass), 0.0)
        each = at_low + at_high
        rate = each.sum(axis=2, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            moves = ((rate - each) * mean + ends * (at_high - at_low)) / rate
            logs = mass.sum(axis=2) + np.log(rate[:, :, 0]) + v
        return Lengths(owner, left, right, logs, np.where(rate > 0, moves, 0.0))

    def _density(self, at: Array, log_mass: Array) -> Array:
        """The density of w_i |y_i| at an end of its interval, given that y_i lies in it."""
        z = (at - self._shift) / self._rule.deviation
        with np.errstate(under="ignore"):
            density = np.exp(-0.5 * z * z - HALF_LOG_2PI - log_mass)
        return density / (self._rule.deviation * self._rule.scales)


def _truncated(low: Array, high: Array, center: Array, deviation: Array) -> tuple[Array, Array]:
    """log mass and mean of N(center, deviation^2) on [low, high]; short intervals by a series."""
    width = (high - low) / deviation
    middle = (0.5 * (high + low) - center) / deviation
    short = width * (1 + np.abs(middle)) < SHORT
    with np.errstate(divide="ignore"):
        mass = np.log(width) - 0.5 * middle**2 - HALF_LOG_2PI
    mass = mass + np.log1p(np.where(short, (middle**2 - 1) * width**2 / 24, 0.0))
    mean = 0.5 * (high + low) - deviation * middle * width**2 / 12
    long = np.nonzero(~short)
    wide = np.broadcast_to(deviation, low.shape)[long]
    shift = np.broadcast_to(center, low.shape)[long]
    part = normal_interval(low[long] / wide, high[long] / wide, shift / wide)
    mass[long], mean[long] = part.log_mass, wide * part.mean
    return mass, mean


def _beside(panels: Lengths, lively: Array) -> Array:
    """Panels much wider than a neighbour with mass: a peak may begin in them."""
    width, same = panels.right - panels.left, panels.owner[1:] == panels.owner[:-1]
    found = np.zeros(len(width), dtype=bool)
    found[1:] |= same & lively[:-1] & (width[1:] > 8 * np.maximum(width[:-1], 0.05))
    found[:-1] |= same & lively[1:] & (width[:-1] > 8 * np.maximum(width[1:], 0.05))
    return found


def largest_move_refusal(model: RobustModel) -> str | None:
    """Why the law of the largest move is not known; None if it is."""
    if not model.affine_in_data:
        return "the loss is not affine in the data"
    if not model.joint.everywhere and model.joint.bounds is None:
        return "the support has no coordinate structure"
    lower, upper = box_of(model.joint)
    if not np.any(~np.asarray(model.cost.frozen) & (lower < upper)):
        return "no coordinate moves"
    return None


def build_largest_move(model: RobustModel, scales: Any) -> LargestMove:
    """The strategy for a model that it does not refuse."""
    return LargestMove(model, epsilon=scales.epsilon, sigma=scales.sigma)
