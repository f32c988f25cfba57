"""The inner integral of conditional integration at one decision, on nodes around the modes."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field

import numpy as np

from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.conditional.block import BlockIntegral
from wdro_model.objectives.integration.conditional.loss import LossAtNodes, Marginal
from wdro_model.objectives.integration.conditional.modes import KEPT_SLOPES, Modes
from wdro_model.objectives.integration.conditional.nodes import NodeTracker
from wdro_model.objectives.integration.inner_integral import (
    INFINITE,
    Divergence,
    Slice,
    infinite_gradient,
)
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.samples import SampleShares


@dataclass(frozen=True)
class Tolerances:
    """Limits of the integrals on nodes."""

    least: float = 1e-300
    """Lower bound of the mass of a mode and of its mean cost, to divide by."""
    least_variation: float = 1e-12
    """Lower bound of variance / mean of the costs around a mode."""
    least_growth: float = 0.1
    """Lower bound of 1 + d v/c: below, the dual is too far away for the gamma distribution."""
    roughness: float = 8.0
    """A density is not resolved if its integral changes with the step by this multiple of the
    change for a normal density. If it is larger, fewer samples are left to cells."""
    reply_step: float = 1e-7
    """Relative step of the dual over which the slope of the cost is taken."""
    reply_chords: int = 3
    """Steps of the search for the dual at decisions close by."""


LIMITS = Tolerances()


@dataclass(frozen=True)
class CostForecast:
    """The mean transport cost at other duals, with a gamma distribution of the cost at each mode.

    A sample with a mode nearby and another one at the edge of its support moves from the one to the
    other while the dual changes by less than a percent: the cost falls in steps, and its slope
    between two steps does not predict the next one. The masses of the modes do. Weighted by
    exp(-d cost), a gamma distribution with mean c and variance v has the mass
    (1 + d v/c)^(-c^2/v) and the mean c/(1 + d v/c); d is the change of the dual over epsilon.
    """

    dual: float
    epsilon: float
    shares: SampleShares
    samples: Array
    """Positions of the modes' samples, in order, (P,)."""
    log_masses: Array
    """Of each mode in its sample, up to a constant, (P,)."""
    means: Array
    """Mean costs around the modes, (P,), above zero."""
    variances: Array
    """Variances of the costs, (P,)."""

    def __call__(self, dual: float) -> float:
        d = (dual - self.dual) / self.epsilon
        first = np.flatnonzero(np.diff(self.samples, prepend=-1))
        ratios = np.maximum(self.variances / self.means, LIMITS.least_variation)
        growth = np.maximum(d * ratios, LIMITS.least_growth - 1.0)
        logs = self.log_masses - self.means / ratios * np.log1p(growth)
        masses = np.exp(logs - np.maximum.reduceat(logs, first)[self.samples])
        costs = np.add.reduceat(masses * self.means / (1.0 + growth), first)
        return float(self.shares.total(costs / np.add.reduceat(masses, first)))


@dataclass(frozen=True)
class Weighted:
    """The integrals at one dual variable."""

    dual: float
    weights: Array
    """Weights of the nodes, (P, S); they sum to one for each sample."""
    inner: list[BlockIntegral]
    """One for each part of the modes."""
    point: DualPoint
    uncovered: Array = field(default_factory=lambda: np.zeros(0, dtype=int))
    """Positions of the samples whose density the nodes resolve badly or cut off."""


class ConditionalSlice(Slice):
    """mean_k phi_k at one x, on nodes of block C that stay where they are if they can.

    Parameters
    ----------
    tracker: the modes and nodes, which it moves along.
    shares: the weights of the samples (K,) in the mean.
    by_cells: makes the integrals of samples that no grid around their modes resolves.
    """

    def __init__(
        self,
        tracker: NodeTracker,
        x: Array,
        samples: Array,
        shares: SampleShares,
        by_cells: Callable[[Array, SampleShares], Slice],
    ) -> None:
        self._tracker, self._x, self._given, self._shares = tracker, x, samples, shares
        self._split, self._by_cells = tracker.split, by_cells
        self.guess = tracker.dual
        self._known: Weighted | None = None
        self._heights: tuple[float, Modes, Modes, Array] | None = None
        """A dual variable, the modes with nodes and without, and their heights there."""
        self._divide()
        try:
            self._prepare()
        except Divergence:
            self._known = infinite(tracker.dual)

    def _divide(self) -> None:
        """Leave the samples that no grid around their modes resolves to cells."""
        hard = self._tracker.unresolved[self._given]
        self._samples, left = self._given[~hard], self._given[hard]
        self._own = self._shares.subset(np.flatnonzero(~hard))
        others = self._shares.subset(np.flatnonzero(hard))
        self._cells = self._by_cells(left, others) if len(left) else None

    def _prepare(self) -> None:
        self._nodes = self._tracker.nodes(self._samples)
        self._evaluate()

    def _evaluate(self) -> None:
        split, nodes = self._split, self._nodes
        new = np.diff(nodes.owners, prepend=-1) != 0
        self._first, self._sample = np.flatnonzero(new), np.cumsum(new) - 1
        size, count = nodes.log_weights.shape
        keep = size * count * split.block.frame.dimension <= KEPT_SLOPES
        assert split.frame.weights is not None
        self._costs = nodes.moves**2 @ split.frame.weights
        self._parts = split.chunks(size, count)
        self._losses = [
            LossAtNodes(split, self._x, nodes.owners[p], nodes.moves[p], keep=keep)
            for p in self._parts
        ]
        self._values = np.concatenate([np.empty((0, count)), *(it.values for it in self._losses)])
        self._known = self._heights = None

    # -------------------------------------------------------------- at one dual variable
    def evaluate(self, dual: float) -> DualPoint:
        point = self._adapted(dual).point
        if self._cells is None:
            return point
        other, share = self._cells.evaluate(dual), self._own.mass
        if share == 0.0:
            return other
        return DualPoint(
            share * point.value + (1 - share) * other.value,
            share * point.slope + (1 - share) * other.slope,
            share * point.curvature + (1 - share) * other.curvature,
        )

    def _adapted(self, dual: float) -> Weighted:
        """The integrals at the dual; nodes that do not cover the density are moved."""
        try:
            if self._known is not None and not np.isfinite(self._known.point.value):
                self._tracker.place(self._x, dual)
                self._prepare()
            self._adapt(dual)
        except Divergence:
            self._known = infinite(dual)
        return self._weighted(dual)

    def _adapt(self, dual: float) -> None:
        if len(self._samples) == 0:
            return
        tracker, x, samples = self._tracker, self._x, self._samples
        for curved in (False, True):
            if self._fails(dual) and tracker.follow(x, dual, samples, curved):
                self._prepare()
        if tracker.lacks_nodes(dual, samples) and tracker.follow(x, dual, samples):
            self._prepare()
        if tracker.add_modes(x, dual, samples):
            self._prepare()
        if self._fails(dual):
            tracker.place(x, dual)
            self._prepare()
            hard = self._weighted(dual).uncovered
            if len(hard) and not tracker.grid.is_coarse:
                tracker.unresolved[samples[hard]] = True
                self._divide()
                self._prepare()
            else:
                tracker.failing = self.uncovered(dual)

    def _fails(self, dual: float) -> bool:
        return self.uncovered(dual) > self._tracker.grid.most_failing + self._tracker.failing

    def uncovered(self, dual: float) -> float:
        """The share of samples whose density the nodes resolve badly or cut off."""
        return len(self._weighted(dual).uncovered) / max(1, len(self._samples))

    def _weighted(self, dual: float) -> Weighted:
        if self._known is None or self._known.dual != dual:
            self._known = self._integrated(dual)
        return self._known

    def _integrated(self, dual: float) -> Weighted:
        """The integrals on the present nodes, which are not moved."""
        epsilon, block = self._split.epsilon, self._split.block
        exponent = (self._values - dual * self._costs) / epsilon + self._nodes.log_weights
        cost, spread = self._costs.copy(), np.zeros(exponent.shape)
        integrals = []
        for part, loss in zip(self._parts, self._losses):
            inner = block.integrate(loss.slopes, dual)
            exponent[part] += inner.log_value
            cost[part] += inner.cost
            spread[part] = np.nan if inner.cost_variance is None else inner.cost_variance
            integrals.append(inner)
        first, sample = self._first, self._sample
        if len(first) == 0:
            return Weighted(dual, exponent, integrals, DualPoint(0.0, 0.0, 0.0))
        top = np.maximum.reduceat(exponent.max(axis=1), first)
        weights = np.exp(exponent - top[sample, None])
        total = np.add.reduceat(weights.sum(axis=1), first)
        weights /= total[sample, None]
        mean = np.add.reduceat(np.vecdot(weights, cost), first)
        spread += (cost - mean[sample, None]) ** 2
        shares = self._own.normalized()
        counted = shares.subset(sample).multiple(weights)
        curvature = float(np.vdot(counted, spread)) / (epsilon * len(first))

        def forecast() -> CostForecast | None:
            if np.isnan(curvature):
                return None
            masses = np.maximum(weights.sum(axis=1), LIMITS.least)
            means = np.maximum(np.vecdot(weights, cost) / masses, LIMITS.least)
            apart = means - mean[sample]
            variances = np.maximum(np.vecdot(weights, spread) / masses - apart**2, 0.0)
            return self._forecast(dual, np.log(masses), means, variances)

        value = float(epsilon * shares.total(top + np.log(total)))
        point = DualPoint(value, float(-shares.total(mean)), curvature, forecast)
        return Weighted(dual, weights, integrals, point, self._uncovered(weights))

    def _forecast(
        self, dual: float, log_masses: Array, means: Array, variances: Array
    ) -> CostForecast:
        """The costs at other duals, from the moments around the modes that have nodes, (P,) each.

        A mode without nodes is as far below the heaviest mode of its sample as it is low.
        """
        if self._heights is None:
            placed, others = self._tracker.modes_with_nodes(self._samples)
            target = Marginal(self._split, self._x, dual)
            owners = np.concatenate([placed.owners, others.owners])
            heights = target.values(owners, np.concatenate([placed.moves, others.moves]))
            self._heights = dual, placed, others, heights
        seen, placed, others, heights = self._heights
        costs = np.concatenate([placed.costs, others.costs])
        heights = heights - (dual - seen) / self._split.epsilon * costs
        last = np.append(self._first[1:], len(self._sample)) - 1
        heaviest = np.lexsort((log_masses, self._sample))[last]
        above = (log_masses - heights[: len(log_masses)])[heaviest]
        low = np.searchsorted(self._samples, others.owners)
        samples = np.concatenate([self._sample, low])
        order = np.argsort(samples, kind="stable")
        laws = (
            (log_masses, above[low] + heights[len(log_masses) :]),
            (means, np.maximum(others.costs, LIMITS.least)),
            (variances, np.zeros(len(low))),
        )
        parts = (np.concatenate(pair)[order] for pair in laws)
        shares = self._own.normalized()
        return CostForecast(dual, self._split.epsilon, shares, samples[order], *parts)

    # -------------------------------------------------------------- gradients
    def gradient(self, dual: float) -> Array:
        """The gradient of f at the tilted mean of the block, node by node: f is affine in it."""
        weighted = self._adapted(dual)
        if not np.isfinite(weighted.point.value):
            raise infinite_gradient()
        self._tracker.settle(self._x, dual)
        gradient = self._mean_gradient(self._x, weighted)
        if self._cells is not None:
            gradient += (1 - self._own.mass) * self._cells.gradient(dual)
        return gradient

    def _mean_gradient(self, x: Array, weighted: Weighted) -> Array:
        """The gradient at x under a distribution on the nodes, over the slice's own samples."""
        gradient = np.zeros(self._split.loss.dimension)
        # In reverse order: the loss may still have the evaluation of the last part in its cache.
        for part, loss, inner in reversed([*zip(self._parts, self._losses, weighted.inner)]):
            weights = self._own.subset(self._sample[part]).times(weighted.weights[part])
            gradient += loss.gradient(x, inner, weights)
        return gradient

    def fixed_adversary_gradient(self, dual: float) -> Callable[[Array], Array] | None:
        """Gradients at other decisions, nodes and weights staying; None where cells do a part."""
        if self._cells is not None:
            return None
        return lambda x: self._mean_gradient(x, self._adapted(dual))

    def replying_adversary_gradient(self, dual: float) -> Callable[[Array], Array] | None:
        """Gradients at decisions close by: nodes stay, their weights and the dual change.

        None where cells do a part.
        """
        if self._cells is not None or not dual > 0:
            return None
        here = self._adapted(dual).point
        ahead = (1 + LIMITS.reply_step) * dual
        curvature = (self._integrated(ahead).point.slope - here.slope) / (ahead - dual)

        def gradient(x: Array) -> Array:
            there, near = copy(self), dual
            there._x = x
            there._evaluate()
            for _ in range(LIMITS.reply_chords):
                near -= (there._integrated(near).point.slope - here.slope) / curvature
            return there._mean_gradient(x, there._integrated(near))

        return gradient if curvature > 0 else None

    def likely_scenarios(self, dual: float) -> Array | None:
        """For each sample the scenario at its highest mode, (K, d); None where cells do a part."""
        known = self._tracker.modes_at(dual)
        if self._cells is not None or known is None:
            return None
        highest = known.highest()
        return Marginal(self._split, self._x, dual).tilted_rows(highest.owners, highest.moves)

    # -------------------------------------------------------------- are densities resolved?
    def _uncovered(self, weights: Array) -> Array:
        """Samples whose density the nodes do not cover, by moments of the weights (P, S)."""
        grid, scores, first = self._tracker.grid, self._nodes.scores, self._first
        r = scores.shape[1]
        if r == 0:
            return np.zeros(0, dtype=int)
        outer = np.linalg.norm(scores, axis=1, keepdims=True) > grid.extent - grid.step
        features = np.concatenate([scores, scores**2, outer, np.ones(outer.shape)], axis=1)
        moments = weights @ features
        mass = moments[:, -1]
        moments = moments / np.maximum(mass, 1e-300)[:, None]
        variance = moments[:, r : 2 * r] - moments[:, :r] ** 2
        narrow = variance.min(axis=1) < grid.narrowest
        lost = moments[:, 2 * r] > grid.most_outside
        bad = np.zeros(len(first), dtype=bool)
        bad[self._sample[(narrow | lost) & (mass > 1e-3)]] = True
        if not grid.is_coarse:
            # How much an integral changes with the step, and how much that of a normal would.
            expected = np.add.reduceat(mass * grid.expected_error(variance), first)
            for half in grid.halves(r):
                share = 2.0**r * np.add.reduceat(weights[:, half].sum(axis=1), first)
                change = np.abs(np.log(np.maximum(share, 1e-300)))
                bad |= change > LIMITS.roughness * (expected + 1e-3)
        return np.flatnonzero(bad)


def infinite(dual: float) -> Weighted:
    """The integrals where the loss outgrows the cost."""
    return Weighted(dual, np.empty((0, 0)), [], INFINITE)
