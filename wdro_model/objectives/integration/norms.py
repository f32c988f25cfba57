"""The Euclidean norm as a mixture of squared costs, which strategies without draws can integrate.

With a = l/eps and r the Euclidean length of a (weighted) move,

    exp(-a r) = int_0^inf a/(2 sqrt(pi)) u^(-3/2) exp(-a^2/(4u)) exp(-u r^2) du,

so that E exp(f/eps - a r) is a mixture of integrals M(u) = E exp(f/eps - u r^2) with squared costs,
which do not depend on l. The integral over log u, in which the integrand is analytic, is a Gauss
rule on panels, for each sample; panels are halved where a sample has a narrow peak. Under the
weights of the mixture

    E r = E [2 u/a E_u r^2],   E r^2 = E [E_u r^2],

and the gradient in x is the average of the gradients at fixed u.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wdro_model.model import Memory, RobustModel
from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.inner_integral import (
    INFINITE,
    ROBUST,
    Integration,
    SampleSlice,
    Scales,
    Slice,
    Stream,
    infinite_gradient,
)
from wdro_model.sets.deadlines import check_deadline
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs import BoundSquared
from wdro_model.uncertainty.samples import SampleShares


@dataclass(frozen=True)
class Tolerances:
    """Limits of the sum over panels of log u; logarithms count from the largest value."""

    widest: float = 4.0
    """Width of the first panels, in log u."""
    most_halvings: int = 24
    """The number of times that a panel may be halved."""
    most_panels: int = 300
    """Panels that are added at most at either end of the first ones."""
    log_cut: float = 40.0
    """Panels so far below the largest value are left out."""
    coefficient: float = 1e-6
    """Largest sum of the last Legendre coefficients of a resolved panel, as a share of the mass."""
    least_share: float = 1e-9
    """Shares of the mass below this are neglected."""
    least_cost: float = 1e-10
    """Cost of a typical move of the reference, over eps, below which the dual counts as 0."""


LIMITS = Tolerances()
NODES, WEIGHTS = np.polynomial.legendre.leggauss(10)
LAST_COEFFICIENTS = (
    WEIGHTS[:, None] * np.polynomial.legendre.legvander(NODES, 9)[:, -2:] * np.array([8.5, 9.5])
)
"""Matrix from values at the nodes to the last two Legendre coefficients."""


def squared_twin(model: RobustModel) -> RobustModel:
    """The model with the square of its Euclidean cost."""
    weights = np.asarray(model.cost.coordinate_scales, dtype=float) ** 2
    cost = BoundSquared(model.joint.dimension, weights)
    return replace(model, cost=cost, memory=Memory())


class EuclideanMixture(Integration):
    """Integration for a Euclidean cost, by a strategy for squared costs."""

    name = "norms"
    start = ROBUST

    def __init__(self, model: RobustModel, scales: Scales, inner: Integration) -> None:
        super().__init__(model, scales)
        self.inner = inner
        moves = ~np.asarray(model.cost.frozen)
        lengths = (np.asarray(model.cost.coordinate_scales) * scales.sigma)[moves]
        self.unit = float(np.linalg.norm(lengths)) or 1.0
        """The length of a typical move of the reference."""

    def slice(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> EuclideanSlice:
        shares = shares or self.joint.shares_of(samples)
        inner = self.inner.slice(x, samples, stream, shares)
        assert isinstance(inner, SampleSlice)
        return EuclideanSlice(self, inner, shares)

    def describe(self) -> str:
        return f"norms: a Euclidean cost as a mixture of squared ones; {self.inner.describe()}"


@dataclass(frozen=True)
class NodeWeights:
    """The mixture over u at one dual variable: J nodes, weighted for each of K samples."""

    rate: float
    """a."""
    nodes: Array
    """u, (J,)."""
    costs: Array
    """E_u r^2, (J, K)."""
    shares: Array
    """The weights of the nodes in each sample, (J, K), of sum one over J."""
    log_mass: Array
    """log E exp(f/eps - a r), (K,)."""


@dataclass(frozen=True)
class Panel:
    """The interval [index, index + 1] * widest/2^level of log u, and M(u) at its nodes."""

    level: int
    index: int
    nodes: Array
    """log u"""
    log_mass: Array
    """log M_k(u), (nodes, K)."""
    costs: Array
    """E_u r^2, (nodes, K)."""

    @property
    def width(self) -> float:
        return LIMITS.widest / 2**self.level

    @property
    def halves(self) -> list[tuple[int, int]]:
        """(level, index) of the two halves of the panel."""
        return [(self.level + 1, 2 * self.index), (self.level + 1, 2 * self.index + 1)]

    def exponents(self, rate: float) -> Array:
        """The logarithm of the integrand in log u, (nodes, K)."""
        v = self.nodes
        with np.errstate(over="ignore"):
            weight = np.log(rate / (2 * np.sqrt(np.pi))) - 0.5 * v - 0.25 * rate**2 * np.exp(-v)
        return self.log_mass + weight[:, None]


class EuclideanSlice(Slice):
    """mean_k phi_k at one x; integrals with squared costs serve all dual variables."""

    def __init__(self, rule: EuclideanMixture, inner: SampleSlice, shares: SampleShares) -> None:
        self._rule, self._inner, self._shares = rule, inner, shares
        self._panels: dict[tuple[int, int], Panel] = {}
        self._last: tuple[float, NodeWeights | None] | None = None

    def evaluate(self, dual: float) -> DualPoint:
        mix, eps = self._weights_at(dual), self._rule.epsilon
        if mix is None:
            return INFINITE
        length = (mix.shares * (2.0 * mix.nodes[:, None] / mix.rate) * mix.costs).sum(0)
        square = (mix.shares * mix.costs).sum(axis=0)
        spread = np.maximum(square - length**2, 0.0)
        log_mass, cost, bend = map(self._average, (mix.log_mass, length, spread))
        return DualPoint(eps * log_mass, -cost, bend / eps)

    def _average(self, values: Array) -> float:
        """The mean over the samples; of one value where all of them move alike."""
        return float(values[0] if len(values) == 1 else self._shares.total(values))

    def gradient(self, dual: float) -> Array:
        mix = self._weights_at(dual)
        if mix is None:
            raise infinite_gradient()
        used = mix.shares.max(axis=1) > LIMITS.least_share
        shares = mix.shares[used]
        if shares.shape[1] > 1:
            shares = self._shares.multiple(shares.T).T
        duals = self._rule.epsilon * mix.nodes[used]
        return self._inner.mixed_gradient(duals, shares / shares.sum())

    # -------------------------------------------------------------- the sum over the nodes
    def _weights_at(self, dual: float) -> NodeWeights | None:
        """The mixture at a dual variable; None where the loss outgrows the cost."""
        if self._last is None or self._last[0] != dual:
            rate = max(dual / self._rule.epsilon, LIMITS.least_cost / self._rule.unit)
            self._last = (dual, self._sum_panels(rate))
        return self._last[1]

    def _sum_panels(self, rate: float) -> NodeWeights | None:
        """The sum over panels that are halved until every sample is resolved."""
        panels = self._scan(rate)
        while True:
            width = np.array([panel.width for panel in panels])
            logs = np.stack([panel.exponents(rate) for panel in panels])
            if np.isposinf(logs).any():
                return None
            top = logs.max(axis=(0, 1))
            with np.errstate(under="ignore"):
                density = np.exp(logs - top) * (0.5 * width)[:, None, None]
            mass = np.einsum("n,pnk->pk", WEIGHTS, density)
            total = mass.sum(axis=0)
            error = np.abs(np.einsum("nc,pnk->pck", LAST_COEFFICIENTS, density)).sum(axis=1)
            rough = rough_panels((error / total).max(axis=1), (mass / total).max(axis=1), width)
            rough &= np.array([panel.level < LIMITS.most_halvings for panel in panels])
            if not rough.any():
                shares = (WEIGHTS[:, None] * density / total).reshape(-1, len(total))
                nodes = np.exp(np.concatenate([panel.nodes for panel in panels]))
                costs = np.concatenate([panel.costs for panel in panels])
                return NodeWeights(rate, nodes, costs, shares, top + np.log(total))
            # A panel that has no mass and no neighbour with mass is left out from here on.
            keep = (logs.max(axis=1) > top - 2 * LIMITS.log_cut).any(axis=1) | rough
            split = [
                [self._integrate_panel(*half) for half in panel.halves] if halved else [panel]
                for panel, halved, kept in zip(panels, rough, keep)
                if kept
            ]
            panels = [panel for parts in split for panel in parts]

    def _scan(self, rate: float) -> list[Panel]:
        """First panels of log u, extended at both ends until no sample has mass there."""
        ends = (2 * np.log(rate) - np.log(6.0), -2 * np.log(self._rule.unit))
        low, high = (int(np.floor(end / LIMITS.widest)) for end in (min(ends), max(ends)))
        panels = [self._integrate_panel(0, i) for i in range(low, high + 1)]
        for _ in range(LIMITS.most_panels):
            tops = [panel.exponents(rate).max(axis=0) for panel in panels]
            best = np.max(tops, axis=0)
            left, right = (bool((tops[i] >= best - LIMITS.log_cut).any()) for i in (0, -1))
            if not (left or right) or np.isposinf(best).any():
                break
            if left:
                panels.insert(0, self._integrate_panel(0, panels[0].index - 1))
            if right:
                panels.append(self._integrate_panel(0, panels[-1].index + 1))
        return panels

    def _integrate_panel(self, level: int, index: int) -> Panel:
        """A panel of width widest/2^level, computed once."""
        key = (level, index)
        if key not in self._panels:
            check_deadline()
            nodes = LIMITS.widest / 2**level * (index + 0.5 * (1 + NODES))
            eps = self._rule.epsilon
            values, costs = self._inner.by_sample(eps * np.exp(nodes))
            self._panels[key] = Panel(level, index, nodes, values / eps, costs)
        return self._panels[key]


def rough_panels(error: Array, mass: Array, width: Array) -> Array:
    """A mask of panels to be halved: unresolved ones, and wide ones beside narrow ones with mass.

    A peak at the end of a panel may lie in the next one, whose nodes are too far apart for it.
    """
    rough = error > LIMITS.coefficient
    heavy = mass > LIMITS.least_share
    rough[1:] |= heavy[:-1] & (width[1:] > 2 * width[:-1])
    rough[:-1] |= heavy[1:] & (width[:-1] > 2 * width[1:])
    return rough
