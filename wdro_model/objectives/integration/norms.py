"""The Euclidean norm as a mixture of squared costs, which strategies without draws can integrate.

With a = l/eps and r the Euclidean length of a (weighted) move,

    exp(-a r) = int_0^inf a/(2 sqrt(pi)) u^(-3/2) exp(-a^2/(4u)) exp(-u r^2) du,

so that E exp(f/eps - a r) is a mixture of integrals M(u) = E exp(f/eps - u r^2) with squared costs,
which do not depend on l. Sample by sample they are summed over panels of log u, in which the
mixture is analytic; where some sample has a narrow peak its panels are halved. Under these weights

    E r = E [2 u/a E_u r^2],   E r^2 = E [E_u r^2],

and the gradient in x is the average of the inner ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wdro_model.model import Memory, RobustModel
from wdro_model.objectives.dual import DualPoint
from wdro_model.objectives.integration.inner_integral import (
    ROBUST,
    Integration,
    SampleSlice,
    Scales,
    Slice,
    Stream,
)
from wdro_model.sets.deadlines import check_deadline
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs import BoundSquared
from wdro_model.uncertainty.samples import SampleShares

WIDEST, FINEST = 4.0, 24
"""The width of a panel of log u, and how often it may be halved."""
NODES, WEIGHTS = np.polynomial.legendre.leggauss(10)
LAST = (WEIGHTS[:, None] * np.polynomial.legendre.legvander(NODES, 9)[:, -2:]) * np.array(
    [8.5, 9.5]
)
"""The last coefficients of a function in Legendre polynomials, from its values at the nodes."""
CUT = 40.0
"""Panels so far below the largest value in logarithm are left out."""
CLOSE = 1e-6
"""The share of the mass up to which the last coefficients of a panel may go."""
LIVELY = 1e-9
"""A smaller share of the mass asks for nothing."""
FARTHEST = 300
"""Panels that are tried, either way."""
SMALLEST = 1e-10
"""A dual variable under which the cost of the reference is this share of eps is taken for 0."""


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
        self.unit = float(np.sqrt(np.sum(lengths**2))) or 1.0
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
class Mixed:
    """The mixture at one dual variable."""

    rate: float
    """a."""
    nodes: Array
    """u, (J,)."""
    costs: Array
    """E_u r^2, (J, K)."""
    shares: Array
    """The weights of the nodes in each sample, (J, K), of sum one over J."""
    log_mass: Array
    """(K,)"""


@dataclass(frozen=True)
class Panel:
    """An interval of log u, and the integrals with squared costs at its nodes."""

    left: float
    right: float
    log_mass: Array
    """log M_k(u), (nodes, K)."""
    costs: Array
    """E_u r^2, (nodes, K)."""

    @property
    def nodes(self) -> Array:
        return 0.5 * (self.left + self.right) + 0.5 * (self.right - self.left) * NODES


class EuclideanSlice(Slice):
    """mean_k phi_k at one x: integrals with squared costs are kept from one dual to the next."""

    def __init__(self, rule: EuclideanMixture, inner: SampleSlice, shares: SampleShares) -> None:
        self._rule, self._inner, self._shares = rule, inner, shares
        self._known: dict[tuple[int, int], Panel] = {}
        self._last: tuple[float, Mixed] | None = None

    def at(self, dual: float) -> DualPoint:
        found, eps = self._mixed(dual), self._rule.epsilon
        if not np.isfinite(found.log_mass).all():
            return DualPoint(np.inf, -np.inf, np.nan)
        length = (found.shares * (2.0 * found.nodes[:, None] / found.rate) * found.costs).sum(0)
        square = (found.shares * found.costs).sum(axis=0)
        spread = np.maximum(square - length**2, 0.0)
        log_mass, cost, bend = map(self._average, (found.log_mass, length, spread))
        return DualPoint(eps * log_mass, -cost, bend / eps)

    def _average(self, values: Array) -> float:
        """The mean over the samples; of one value where all of them move alike."""
        return float(values[0] if len(values) == 1 else self._shares.total(values))

    def gradient(self, dual: float) -> Array:
        found = self._mixed(dual)
        if not np.isfinite(found.log_mass).all():
            raise FloatingPointError("the smoothed objective is infinite here: it has no gradient.")
        used = found.shares.max(axis=1) > LIVELY
        shares = found.shares[used]
        if shares.shape[1] > 1:
            shares = self._shares.multiple(shares.T).T
        return self._inner.mixed_gradient(
            self._rule.epsilon * found.nodes[used], shares / shares.sum()
        )

    # -------------------------------------------------------------- the sum over the nodes
    def _mixed(self, dual: float) -> Mixed:
        """The mixture at a dual variable: panels are halved until every sample is resolved."""
        if self._last is not None and self._last[0] == dual:
            return self._last[1]
        rate = max(dual / self._rule.epsilon, SMALLEST / self._rule.unit)
        keys = self._scan(rate)
        while True:
            panels = [self._panel(*key) for key in keys]
            width = np.array([panel.right - panel.left for panel in panels])
            logs = np.stack([self._logs(panel, rate) for panel in panels])
            if np.isposinf(logs).any():
                found = _infinite(rate, logs.shape[2])
                break
            top = logs.max(axis=(0, 1))
            with np.errstate(under="ignore"):
                density = np.exp(logs - top) * (0.5 * width)[:, None, None]
            mass = np.einsum("n,pnk->pk", WEIGHTS, density)
            total = mass.sum(axis=0)
            error = np.abs(np.einsum("nc,pnk->pck", LAST, density)).sum(axis=1)
            rough = _rough((error / total).max(axis=1), (mass / total).max(axis=1), width)
            rough &= np.array([level < FINEST for level, _ in keys])
            if not rough.any():
                shares = (WEIGHTS[:, None] * density / total).reshape(-1, len(total))
                nodes = np.exp(np.concatenate([panel.nodes for panel in panels]))
                costs = np.concatenate([panel.costs for panel in panels])
                found = Mixed(rate, nodes, costs, shares, top + np.log(total))
                break
            # What has no mass and no neighbour with mass is left out from here on.
            keep = (logs.max(axis=1) > top - 2 * CUT).any(axis=1) | rough
            keys = [
                child
                for key, split, kept in zip(keys, rough, keep)
                if kept
                for child in (_children(*key) if split else (key,))
            ]
        self._last = (dual, found)
        return found

    def _scan(self, rate: float) -> list[tuple[int, int]]:
        """Panels of log u from where all samples have little mass to where they have little."""
        ends = (2 * np.log(rate) - np.log(6.0), -2 * np.log(self._rule.unit))
        low, high = (int(np.floor(end / WIDEST)) for end in (min(ends), max(ends)))
        tops = [self._top(i, rate) for i in range(low, high + 1)]
        for _ in range(FARTHEST):
            best = np.max(tops, axis=0)
            left, right = (bool((tops[i] < best - CUT).all()) for i in (0, -1))
            if (left and right) or np.isposinf(best).any():
                break
            if not left:
                low -= 1
                tops.insert(0, self._top(low, rate))
            if not right:
                high += 1
                tops.append(self._top(high, rate))
        return [(0, i) for i in range(low, high + 1)]

    def _top(self, index: int, rate: float) -> Array:
        """The largest logarithm of a panel in each sample."""
        return self._logs(self._panel(0, index), rate).max(axis=0)

    def _panel(self, level: int, index: int) -> Panel:
        """A panel of width WIDEST/2^level, computed once."""
        key = (level, index)
        if key not in self._known:
            check_deadline()
            width, eps = WIDEST / 2**level, self._rule.epsilon
            nodes = width * (index + 0.5 * (1 + NODES))
            values, costs = self._inner.by_sample(eps * np.exp(nodes))
            self._known[key] = Panel(width * index, width * (index + 1), values / eps, costs)
        return self._known[key]

    def _logs(self, panel: Panel, rate: float) -> Array:
        """The logarithm of the integrand in log u at the nodes of a panel, (nodes, K)."""
        v = panel.nodes
        with np.errstate(over="ignore"):
            weight = np.log(rate / (2 * np.sqrt(np.pi))) - 0.5 * v - 0.25 * rate**2 * np.exp(-v)
        return panel.log_mass + weight[:, None]


def _children(level: int, index: int) -> tuple[tuple[int, int], ...]:
    return (level + 1, 2 * index), (level + 1, 2 * index + 1)


def _rough(error: Array, mass: Array, width: Array) -> Array:
    """Which panels are to be halved: unresolved ones, and wide ones beside narrow ones with mass.

    A peak at the end of a panel may lie in the next one, whose nodes are too far off to see it.
    """
    rough = error > CLOSE
    lively = mass > LIVELY
    wide = width[1:] > 2 * width[:-1]
    rough[1:] |= lively[:-1] & wide
    wide = width[:-1] > 2 * width[1:]
    rough[:-1] |= lively[1:] & wide
    return rough


def _infinite(rate: float, size: int) -> Mixed:
    none = np.zeros((0, size))
    return Mixed(rate, np.zeros(0), none, none, np.full(size, np.inf))
