"""Sums over the parameter s of a norm (`norm_components`), in each sample.

They are made on panels of log s, which are kept from one rate of the cost to the next, and cut
where a mixture is not resolved.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace

import numpy as np

from wdro_model.objectives.integration.norm_components import MixedNodes, Mixing, Reaches
from wdro_model.objectives.integration.norms import LAST, NODES, WEIGHTS, WIDEST
from wdro_model.sets.deadlines import check_deadline
from wdro_model.solvers.objective import Array

CLOSE = 1e-3
"""The share of the mass up to which the last coefficients of a panel may go."""
NARROWEST = 1e-6
"""Panels are not cut beyond this width."""
TINY = 1e-12
"""Nodes of a smaller share of the mass are left out."""
QUIET = 1e-11
"""Panels of a smaller share of the mass are not worth their nodes at the next decision."""
SMALLEST = 1e-3
"""Rates at which the cost of the reference is less are joined to the rate 0."""
HIDDEN = 17.0
"""Peaks so far below the top in logarithm may be missed."""
MATTERS = 1e-8
"""Nodes of a larger share of the mass are settled."""


@dataclass(frozen=True)
class MixtureLaw:
    """Integrals of K samples at one rate, and the law of the cost under them; (K,) each."""

    log_mass: Array
    cost: Array
    spread: Array
    """Variances of the cost."""


@dataclass(frozen=True)
class LogPanels:
    """Intervals of log s of K samples, in order, with what is known at their nodes; (P, ...)."""

    owner: Array
    left: Array
    right: Array
    logs: Array
    """log mass of the components at the nodes, (P, nodes)."""
    settled: Array
    """Is that all of it, or a bound from above? (P, nodes)"""

    @property
    def points(self) -> Array:
        middle, half = 0.5 * (self.left + self.right), 0.5 * (self.right - self.left)
        return middle[:, None] + half[:, None] * NODES

    def picked(self, which: Array) -> LogPanels:
        return LogPanels(*(getattr(self, f.name)[which] for f in fields(self)))

    def joined(self, other: LogPanels) -> LogPanels:
        """The panels of both, in order."""
        names = [f.name for f in fields(self)]
        both = LogPanels(*(np.concatenate([getattr(p, n) for p in (self, other)]) for n in names))
        return both.picked(np.lexsort((both.left, both.owner)))


class PanelMixture(ABC):
    """A mixture over log s in each of K samples.

    kinks: (K, m); places: owner and ends of panels to begin with.
    """

    def __init__(
        self,
        mixing: Mixing,
        size: int,
        reaches: Reaches,
        kinks: Array,
        places: tuple[Array, ...] | None = None,
    ) -> None:
        self.mixing, self.size, self._reaches, self._kinks = mixing, size, reaches, kinks
        self.places = places
        self._floor = SMALLEST / float(np.sqrt(np.sum(mixing.rho**2)))
        self._panels: LogPanels | None = None
        self._last: tuple[float, MixedNodes] | None = None

    @abstractmethod
    def bounds(self, owner: Array, points: Array) -> tuple[Array, Array]:
        """log mass of the components at log s or bounds of it from above, and where it is it."""

    def settle(self, owner: Array, points: Array, logs: Array) -> Array:
        """log mass of the components that have such bounds, (M,)."""
        return logs

    def law(self, rate: float) -> MixtureLaw:
        """The integrals at a rate; at a small one by their series at 0, where nothing is mixed."""
        least = max(rate, self._floor)
        found = self.mixed(least)
        cost, square = self.mixing.costs(least, found)
        spread = np.maximum(square - cost**2, 0.0)
        if rate == least:
            return MixtureLaw(found.log_mass, cost, spread)
        cost = cost + least * spread
        log_mass = self.nodes(0.0).log_mass - rate * (cost - 0.5 * rate * spread)
        return MixtureLaw(log_mass, cost - rate * spread, spread)

    def nodes(self, rate: float) -> MixedNodes:
        """The components at a rate."""
        if rate >= self._floor:
            return self.mixed(rate)
        owner, points = np.arange(self.size), np.full(self.size, self.mixing.free)
        logs, settled = self.bounds(owner, points)
        due = ~settled
        logs[due] = self.settle(owner[due], points[due], logs[due])
        return MixedNodes(owner, points, logs, np.ones(self.size), logs)

    def mixed(self, rate: float) -> MixedNodes:
        """The mixture at a rate: panels are kept, and cut where it is not resolved."""
        if self._last is not None and self._last[0] == rate:
            return self._last[1]
        panels = self._covering(rate)
        while True:
            check_deadline()
            half = 0.5 * (panels.right - panels.left)
            logs = panels.logs + self.mixing.weight(rate, panels.points)
            top = np.full(self.size, -np.inf)
            np.maximum.at(top, panels.owner, logs.max(axis=1))
            with np.errstate(under="ignore"):
                density = np.exp(logs - top[panels.owner][:, None]) * half[:, None]
            mass = density @ WEIGHTS
            total = np.bincount(panels.owner, mass, self.size)
            error = np.abs(density @ LAST).sum(axis=1) / total[panels.owner]
            rough = (error > CLOSE) & (half > NARROWEST)
            rough |= _beside(panels.owner, 2 * half, mass / total[panels.owner] > CLOSE)
            rough |= _hides_a_peak(panels, logs, top) & (half > NARROWEST)
            shares = density * WEIGHTS / total[panels.owner][:, None]
            if rough.any():
                panels = self._cut(panels, rough)
            elif (due := ~panels.settled & (shares > MATTERS)).any():
                panels = self._settled(panels, due)
            else:
                break
        self._panels = panels
        self.places = _worth_keeping(panels, mass / total[panels.owner])
        used = shares.ravel() > TINY
        owner = np.repeat(panels.owner, len(NODES))
        points, logs, shares = (p.ravel()[used] for p in (panels.points, panels.logs, shares))
        found = MixedNodes(owner[used], points, logs, shares, top + np.log(total))
        self._last = (rate, found)
        return found

    def _covering(self, rate: float) -> LogPanels:
        """Panels over all that may have mass; those that are known are kept."""
        low, high = self.mixing.range(rate, self._reaches)
        known = self._panels
        if known is None and self.places is not None:
            known = self._computed(*self.places)
        low, high = WIDEST * np.floor(low / WIDEST), WIDEST * np.ceil(high / WIDEST)
        if known is None:
            ends = np.arange(low, high + 0.5 * WIDEST, WIDEST)
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
            known = known.joined(self._computed(every, *(np.full(self.size, end) for end in side)))
        return known

    def _cut(self, panels: LogPanels, rough: Array) -> LogPanels:
        """The panels with rough ones in two, at a kink where one is inside.

        Else at a round number, so that samples share nodes, and what is known there.
        """
        owner, left, right = (part[rough] for part in (panels.owner, panels.left, panels.right))
        grid = 2.0 ** np.floor(np.log2(0.25 * (right - left)))
        middle, kinks = grid * np.round(0.5 * (left + right) / grid), self._kinks[owner]
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
        return panels.picked(~rough).joined(new)

    def _computed(self, owner: Array, left: Array, right: Array) -> LogPanels:
        none = np.zeros(0)
        empty = LogPanels(owner, left, right, none, none)
        logs, settled = self.bounds(np.repeat(owner, len(NODES)), empty.points.ravel())
        logs = logs.reshape(len(owner), -1)
        return replace(empty, logs=logs, settled=settled.reshape(logs.shape))

    def _settled(self, panels: LogPanels, due: Array) -> LogPanels:
        logs, owner = panels.logs.copy(), np.broadcast_to(panels.owner[:, None], due.shape)
        logs[due] = self.settle(owner[due], panels.points[due], logs[due])
        return replace(panels, logs=logs, settled=panels.settled | due)


def _worth_keeping(panels: LogPanels, share: Array) -> tuple[Array, Array, Array]:
    """Owner and ends of the panels, neighbours without mass being one."""
    owner, left, right = panels.owner, panels.left, panels.right
    empty = share < QUIET
    merges = empty[1:] & empty[:-1] & (owner[1:] == owner[:-1])
    first = np.flatnonzero(np.r_[True, ~merges])
    last = np.flatnonzero(np.r_[~merges, True])
    return owner[first], left[first], right[last]


def _beside(owner: Array, width: Array, lively: Array) -> Array:
    """Panels much wider than a neighbour with mass: a peak may begin in them."""
    same = owner[1:] == owner[:-1]
    found = np.zeros(len(width), dtype=bool)
    found[1:] |= same & lively[:-1] & (width[1:] > 8 * np.maximum(width[:-1], 0.05))
    found[:-1] |= same & lively[1:] & (width[:-1] > 8 * np.maximum(width[1:], 0.05))
    return found


def _hides_a_peak(panels: LogPanels, logs: Array, top: Array) -> Array:
    """Panels in which a peak between nodes may have mass, though no node is near enough to see it.

    Logarithms are concave around a peak, so that lines through the nodes on either side of a gap
    are bounds; one of the nodes beside the gap is higher than its neighbours.
    """
    v, y = panels.points.ravel(), logs.ravel()
    owner = np.repeat(panels.owner, logs.shape[1])
    with np.errstate(invalid="ignore"):
        rise = np.diff(y) / np.diff(v)
    rise[owner[1:] != owner[:-1]] = np.nan  # no peak at the ends of the range
    peaks = np.flatnonzero((rise[:-1] >= 0) & (rise[1:] <= 0)) + 1
    found = np.zeros(len(panels.owner), dtype=bool)
    least = np.maximum(top[owner[peaks]] - HIDDEN, y[peaks] + 1.0)
    for side in (1, -1):
        # The gap between a peak and its neighbour, and the slopes before and after it.
        gap = np.abs(v[peaks + side] - v[peaks])
        before, after = (rise[peaks - 1], peaks + 1) if side > 0 else (rise[peaks], peaks - 2)
        beyond = np.where(
            (after >= 0) & (after < len(rise)), rise[np.clip(after, 0, len(rise) - 1)], np.nan
        )
        most = np.fmin(y[peaks] + np.abs(before) * gap, y[peaks + side] + np.abs(beyond) * gap)
        high = most > least
        found[peaks[high] // logs.shape[1]] = True
        found[(peaks[high] + side) // logs.shape[1]] = True
    return found
