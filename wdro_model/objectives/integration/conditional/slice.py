"""The inner integral of conditional integration at one decision, as a function of the dual.

A sample with a mode near by and another one at the edge of its support moves from the one to the
other while the dual changes by less than a percent: the cost falls in steps, between which its
slope says nothing of the next one. The masses of the modes do.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.conditional.block_cells import BlockCellSlice
from wdro_model.objectives.integration.conditional.integral import BlockIntegral
from wdro_model.objectives.integration.conditional.loss import BlockLoss, Marginal
from wdro_model.objectives.integration.conditional.modes import BlockModes, Lookout
from wdro_model.objectives.integration.conditional.nodes import TOLERATED, TRUST, Placement
from wdro_model.objectives.integration.inner_integral import Divergence, Slice
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.samples import SampleShares

if TYPE_CHECKING:
    from wdro_model.objectives.integration.conditional.by_blocks import Conditional


FLATTEST = 1e-12
"""The least ratio of variance and mean of costs."""
LEAST = 0.1
"""Of 1 + d v/c: beyond, the dual is too far away for the law of the costs to tell."""
NOTHING = 1e-300
"""The least mass, and cost."""


@dataclass(frozen=True)
class ModeLaws:
    """Masses of P modes, and the laws of the costs around them."""

    samples: Array
    """Those of the modes, (P,), by position and in order."""
    heights: Array
    """Log densities at the modes, (P,)."""
    log_masses: Array
    """(P,), up to a constant for each sample."""
    means: Array
    """Of the costs, (P,), above zero."""
    variances: Array
    """(P,)"""

    @classmethod
    def at_nodes(
        cls, samples: Array, heights: Array, weights: Array, costs: Array, spread: Array
    ) -> ModeLaws:
        """Those of modes with nodes.

        weights, costs: of the nodes, (P, S); weights sum to one for each sample.
        spread: mean squared distances from the mean cost of the sample at the nodes, (P, S).
        """
        masses = np.maximum(weights.sum(axis=1), NOTHING)
        spent = np.vecdot(weights, costs)
        means = np.maximum(spent / masses, NOTHING)
        apart = means - np.bincount(samples, spent)[samples]
        variances = np.maximum(np.vecdot(weights, spread) / masses - apart**2, 0.0)
        return cls(samples, heights, np.log(masses), means, variances)

    def joined(self, samples: Array, heights: Array, costs: Array) -> ModeLaws:
        """With modes that have no nodes: as far below the heaviest of their sample as they are low.

        Their costs do not vary.
        """
        last = np.append(np.flatnonzero(np.diff(self.samples)), len(self.samples) - 1)
        heaviest = np.lexsort((self.log_masses, self.samples))[last]
        above = (self.log_masses - self.heights)[heaviest]
        parts = (
            (self.samples, samples),
            (self.heights, heights),
            (self.log_masses, above[samples] + heights),
            (self.means, np.maximum(costs, NOTHING)),
            (self.variances, np.zeros(len(samples))),
        )
        order = np.argsort(np.concatenate(parts[0]), kind="stable")
        return ModeLaws(*(np.concatenate(part)[order] for part in parts))


@dataclass(frozen=True)
class ModeCosts:
    """The mean cost over samples, the costs around each of their modes being a gamma law.

    Weighted by exp(-d cost), a gamma law with mean c and variance v has the mass
    (1 + d v/c)^(-c^2/v) and the mean c/(1 + d v/c); d is the change of the dual over epsilon.
    """

    dual: float
    epsilon: float
    shares: SampleShares
    laws: ModeLaws

    @cached_property
    def _first(self) -> Array:
        """The first mode of each sample."""
        return np.flatnonzero(np.diff(self.laws.samples, prepend=-1))

    @cached_property
    def _ratios(self) -> Array:
        """v/c"""
        return np.maximum(self.laws.variances / self.laws.means, FLATTEST)

    def __call__(self, dual: float) -> float:
        d, laws, first = (dual - self.dual) / self.epsilon, self.laws, self._first
        growth = np.maximum(d * self._ratios, LEAST - 1.0)
        logs = laws.log_masses - laws.means / self._ratios * np.log1p(growth)
        masses = np.exp(logs - np.maximum.reduceat(logs, first)[laws.samples])
        costs = np.add.reduceat(masses * laws.means / (1.0 + growth), first)
        return float(self.shares.total(costs / np.add.reduceat(masses, first)))


# ------------------------------
# Slices of conditional integration: closed form over one block at the nodes of the other


ROUGH = 8.0
"""An integral that changes so many times as much with the step as a normal one is not resolved."""
AHEAD, CHORDS = 1e-7, 3
"""The share of the dual over which slopes are compared, and steps of its search close by."""
KEPT_ENTRIES = 2**26
"""Slopes B, or polynomials, that are kept (512 MiB); beyond, they are computed again when asked
for."""


@dataclass(frozen=True)
class Weighted:
    """The integrals at one dual variable."""

    dual: float
    exponent: Array
    """Log weights of the nodes, (P, S)."""
    weights: Array
    """Weights of the nodes, (P, S); they sum to one for each sample."""
    inner: list[BlockIntegral]
    """One for each part of the modes."""
    point: DualPoint
    laws: tuple[Array, Array] | None = None
    """Costs at the nodes, and mean squared distances from the mean cost of the sample, (P, S);
    None where nothing is known."""
    uncovered: Array = field(default_factory=lambda: np.zeros(0, dtype=int))
    """Positions of the samples whose density the nodes resolve badly or cut off."""


class ConditionalSlice(Slice):
    """mean_k phi_k at one x, on nodes of block C that stay where they are if they can."""

    def __init__(
        self,
        rule: Conditional,
        x: Array,
        samples: Array,
        placement: Placement,
        shares: SampleShares,
    ) -> None:
        self._rule, self._x, self._given, self._shares = rule, x, samples, shares
        self._placement = placement
        self.guess = placement.dual
        """Where the minimum over the dual variable may be."""
        self.trust = placement.trust
        """The factor by which a first step from there should change it at most."""
        self._known: Weighted | None = None
        self._evaluated: tuple[float, int, BlockModes] | None = None
        """A dual, the number of modes that have nodes, and all modes with their heights there."""
        self._divide()
        try:
            self._prepare()
        except Divergence:
            self._known = infinite(placement.dual)

    def _divide(self) -> None:
        """Leave the samples to cells that no grid around their modes resolves."""
        rule, x, given = self._rule, self._x, self._given
        hard = rule.unresolved[given]
        self._samples, left = given[~hard], given[hard]
        self._own = self._shares.subset(np.flatnonzero(~hard))
        others = self._shares.subset(np.flatnonzero(hard))
        self._cells = BlockCellSlice(rule, x, left, others) if len(left) else None
        fits = Lookout.fits(rule, len(self._samples), KEPT_ENTRIES)
        useful = rule.smooth and fits and len(self._samples) > 0
        self._lookout = self._placement.lookout(x, self._samples) if useful else None

    # -------------------------------------------------------------- at one decision
    def _prepare(self) -> None:
        """Evaluate the loss on the nodes."""
        self._nodes = self._placement.nodes(self._samples)
        self._look()

    def _look(self) -> None:
        rule, nodes = self._rule, self._nodes
        new = np.diff(nodes.owners, prepend=-1) != 0
        self._first, self._sample = np.flatnonzero(new), np.cumsum(new) - 1
        size, count = nodes.log_weights.shape
        kept = size * count * rule.width(self._x) <= KEPT_ENTRIES
        self._parts = rule.blocks(self._x, size, count)
        assert rule.frame.weights is not None
        self._costs = nodes.moves**2 @ rule.frame.weights
        self._values = np.empty((size, count))
        self._losses: list[BlockLoss] = []
        for part in self._parts:
            loss = rule.looked(self._x, nodes.owners[part], nodes.moves[part], keep=kept)
            self._values[part] = loss.values
            self._losses.append(loss)
        self._known = self._evaluated = None

    # -------------------------------------------------------------- at one dual variable
    def evaluate(self, dual: float) -> DualPoint:
        found = self._adapted(dual)
        point = found.point
        if self._cells is None:
            return replace(point, expected_costs=partial(self._mode_costs, found))
        other, share = self._cells.evaluate(dual), self._own.mass
        if share == 0.0:
            return other
        parts = (
            getattr(p, name) for name in ("value", "slope", "curvature") for p in (point, other)
        )
        return DualPoint(
            *(share * mine + (1 - share) * theirs for mine, theirs in zip(parts, parts))
        )

    def _adapted(self, dual: float) -> Weighted:
        """The integrals at the dual; nodes that do not cover the density are moved."""
        try:
            if self._known is not None and not np.isfinite(self._known.point.value):
                self._placement.place(self._x, dual)
                self._prepare()
            self._adapt(dual)
        except Divergence:
            self._known = infinite(dual)
        return self._weighted(dual)

    def _adapt(self, dual: float) -> None:
        if len(self._samples) == 0:
            return
        placement, x, samples = self._placement, self._x, self._samples
        for curved in (False, True):
            if self._fails(dual) and placement.follow(x, dual, samples, curved):
                self._prepare()
        if placement.shifts(x, dual, samples) and placement.follow(x, dual, samples):
            self._prepare()
        known = placement.modes_at(dual)
        if self._lookout is not None and known is not None:
            owners, starts = self._lookout.unexplained(dual, known)
            if len(owners) and placement.climb_from(x, dual, owners, starts):
                self._prepare()
        if self._fails(dual):
            placement.place(x, dual)
            self._prepare()
            hard = self._weighted(dual).uncovered
            if self._rule.falls_back and len(hard):
                self._rule.unresolved[samples[hard]] = True
                self._divide()
                self._prepare()
            else:
                placement.unreached = self.uncovered(dual)

    def _fails(self, dual: float) -> bool:
        return self.uncovered(dual) > TOLERATED + self._placement.unreached

    def _weighted(self, dual: float) -> Weighted:
        if self._known is None or self._known.dual != dual:
            self._known = self._integrated(dual)
        return self._known

    def _integrated(self, dual: float) -> Weighted:
        epsilon, block = self._rule.epsilon, self._rule.block
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
            return Weighted(dual, exponent, exponent, integrals, DualPoint(0.0, 0.0, 0.0))
        top = np.maximum.reduceat(exponent.max(axis=1), first)
        weights = np.exp(exponent - top[sample, None])
        total = np.add.reduceat(weights.sum(axis=1), first)
        weights /= total[sample, None]
        mean = np.add.reduceat(np.vecdot(weights, cost), first)
        spread += (cost - mean[sample, None]) ** 2
        alone = self._own.normalized()
        counted = alone.subset(sample).multiple(weights)
        point = DualPoint(
            float(epsilon * alone.total(top + np.log(total))),
            float(-alone.total(mean)),
            float(np.vdot(counted, spread)) / (epsilon * len(first)),
        )
        laws = cost, spread
        return Weighted(dual, exponent, weights, integrals, point, laws, self._uncovered(weights))

    def _mode_costs(self, found: Weighted) -> ModeCosts | None:
        """What is expected of the costs at other duals; None where it is not known by modes."""
        if found.laws is None or np.isnan(found.point.curvature):
            return None
        heights, others = self._heights(found.dual)
        place = np.searchsorted(self._samples, others.owners)
        laws = ModeLaws.at_nodes(self._sample, heights, found.weights, *found.laws)
        every = laws.joined(place, others.heights, others.costs)
        return ModeCosts(found.dual, self._rule.epsilon, self._own.normalized(), every)

    def _heights(self, dual: float) -> tuple[Array, BlockModes]:
        """Those of the modes that have nodes, (P,), and the modes that have none with theirs.

        They are evaluated once for the nodes that there are, and fall with the dual by their costs.
        """
        if self._evaluated is None:
            placed, others = self._placement.modes_with_nodes(self._samples)
            every = BlockModes(*map(np.concatenate, zip(placed.arrays(), others.arrays())))
            found = Marginal(self._rule, self._x, dual).values(every.owners, every.moves)
            self._evaluated = dual, len(placed.owners), replace(every, heights=found)
        at, count, every = self._evaluated
        fallen = every.heights - (dual - at) / self._rule.epsilon * every.costs
        return fallen[:count], replace(every, heights=fallen).where(slice(count, None))

    def gradient(self, dual: float) -> Array:
        """That of f at the tilted mean of the block, node by node: f is affine in it."""
        if not np.isfinite(self._adapted(dual).point.value):
            raise FloatingPointError(
                "the smoothed objective is infinite here: the loss outgrows the cost, and has no "
                "gradient; give the data a bounded support."
            )
        self._placement.reached(self._x, dual)
        self._placement.trust = TRUST
        gradient = self._mean_gradient(self._x, self._adapted(dual))
        if self._cells is not None:
            share = 1 - self._own.mass
            gradient += share * self._cells.gradient(dual)
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
        ahead = (1 + AHEAD) * dual
        curvature = (self._integrated(ahead).point.slope - here.slope) / (ahead - dual)

        def gradient(x: Array) -> Array:
            there = copy(self)
            there._x = x
            there._look()
            at = dual
            for _ in range(CHORDS):
                at -= (there._integrated(at).point.slope - here.slope) / curvature
            return there._mean_gradient(x, there._integrated(at))

        return gradient if curvature > 0 else None

    def likely_scenarios(self, dual: float) -> Array | None:
        """For each sample the scenario at its highest mode, (K, d); None where cells do a part."""
        known = self._placement.modes_at(dual)
        if self._cells is not None or known is None:
            return None
        highest = known.highest()
        return Marginal(self._rule, self._x, dual).tilted_rows(highest.owners, highest.moves)

    def _mean_gradient(self, x: Array, found: Weighted) -> Array:
        """The gradient at x under a distribution on the nodes, over the slice's own samples."""
        gradient = np.zeros(self._rule.loss.dimension)
        # Backwards: what the loss computed for the last part may still be known to it.
        for part, loss, inner in reversed([*zip(self._parts, self._losses, found.inner)]):
            weights = self._own.subset(self._sample[part]).times(found.weights[part])
            gradient += loss.gradient(x, inner, weights)
        return gradient

    # -------------------------------------------------------------- can it be trusted?
    def diagnostics(self, dual: float) -> None:
        """Nothing is drawn."""

    def uncovered(self, dual: float) -> float:
        """The share of samples whose density the nodes resolve badly or cut off."""
        return len(self._weighted(dual).uncovered) / max(1, len(self._samples))

    def _uncovered(self, weights: Array) -> Array:
        """By the moments of the weights (P, S) in the scores of the nodes."""
        grid, scores, first = self._rule.grid, self._nodes.scores, self._first
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
        bad = np.zeros(len(self._first), dtype=bool)
        bad[self._sample[(narrow | lost) & (mass > 1e-3)]] = True
        if self._rule.falls_back:
            bad |= self._rough(
                weights, np.add.reduceat(mass * grid.expected_error(variance), first)
            )
        return np.flatnonzero(bad)

    def _rough(self, weights: Array, expected: Array) -> Array:
        """Which samples' integrals change more with the step than those of normal densities, (K,).

        expected: what those change.
        """
        r = self._rule.frame.dimension
        change = np.zeros(len(self._first))
        for half in self._rule.grid.halves(r):
            share = 2.0**r * np.add.reduceat(weights[:, half].sum(axis=1), self._first)
            change = np.maximum(change, np.abs(np.log(np.maximum(share, 1e-300))))
        return change > ROUGH * (expected + 1e-3)


def infinite(dual: float) -> Weighted:
    """Where the loss outgrows the cost."""
    empty = np.empty((0, 0))
    return Weighted(dual, empty, empty, [], DualPoint(np.inf, -np.inf, np.nan))
