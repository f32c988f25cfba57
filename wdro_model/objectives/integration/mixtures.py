"""Norms that couple the coordinates, as mixtures over a parameter s of products over coordinates.

    exp(-a |y|_2)   = int a/(2 sqrt(pi)) s^(-3/2) exp(-a^2/(4 s)) exp(-s |y|_2^2) ds,
    exp(-a |y|_inf) = int a exp(-a s) 1{|y|_inf <= s} ds.

The components do not depend on a, so that the cost is known from the weights alone,
E c = -E [d log weight / da]. Sums over log s are made on panels of each sample, which are kept from
one rate a to the next, and cut where a mixture is not resolved.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace

import numpy as np

from wdro_model.objectives.integration.norms import CUT, LAST, NODES, WEIGHTS, WIDEST
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
class MixedNodes:
    """The mixture at one rate."""

    owner: Array
    """The sample of each node, (M,)."""
    points: Array
    """log s, (M,)."""
    logs: Array
    """log mass of the components, (M,)."""
    shares: Array
    """Probabilities, of sum one over the nodes of a sample, (M,)."""
    log_mass: Array
    """(K,)"""

    def picked(self, which: Array) -> MixedNodes:
        """Some of the nodes."""
        owner, points, logs = self.owner[which], self.points[which], self.logs[which]
        return MixedNodes(owner, points, logs, self.shares[which], self.log_mass)

    def mean(self, values: Array) -> Array:
        """Of values at the nodes in each sample, (K,)."""
        return np.bincount(self.owner, self.shares * values, len(self.log_mass))


@dataclass(frozen=True)
class MixtureLaw:
    """Integrals of K samples at one rate, and the law of the cost under them; (K,) each."""

    log_mass: Array
    cost: Array
    spread: Array
    """Variances of the cost."""


# ------------------------------------------------------------------ the norms
@dataclass(frozen=True)
class Reaches:
    """How far K samples go: along each coordinate, and the steepest tilts; (K, D) and (D,)."""

    moves: Array
    tilts: Array


class Mixing(ABC):
    """A norm c of (rho_i z_i) as a mixture over s > 0. rho: (D,)."""

    free: float
    """log s of the component that the cost does not hold."""
    cuts: bool
    """Do the components cut the moves off?"""

    def __init__(self, rho: Array) -> None:
        self.rho = rho

    @abstractmethod
    def weight(self, rate: float, points: Array) -> Array:
        """The logarithm of the weight of log s."""

    @abstractmethod
    def costs(self, rate: float, found: MixedNodes) -> tuple[Array, Array]:
        """The means of c and c^2, (K,) twice."""

    @abstractmethod
    def seen(self, points: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
        """Variances of z, and the ends (M, D, Q) as the components at log s (M,) see them."""

    @abstractmethod
    def range(self, rate: float, reaches: Reaches) -> tuple[float, float]:
        """The values of log s that may have mass."""

    def kinks(self, low: Array, high: Array) -> Array:
        """Values of log s at which the components are not smooth, (K, m), for ends (K, D, Q)."""
        return np.zeros((len(low), 0))


class OfSquares(Mixing):
    """The Euclidean length: squared costs of weight s."""

    free, cuts = -np.inf, False

    def weight(self, rate: float, points: Array) -> Array:
        with np.errstate(over="ignore"):
            fall = 0.25 * rate**2 * np.exp(-points)
        return np.log(rate / (2 * np.sqrt(np.pi))) - 0.5 * points - fall

    def costs(self, rate: float, found: MixedNodes) -> tuple[Array, Array]:
        inverse = np.exp(-found.points)
        square = found.mean(inverse * (0.25 * rate**2 * inverse - 1.5))
        return found.mean(0.5 * rate * inverse) - 1.0 / rate, square

    def seen(self, points: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
        with np.errstate(over="ignore"):
            v = 1.0 / (1.0 + 2.0 * np.exp(points)[:, None] * self.rho**2)
        return v[..., None], low, high

    def range(self, rate: float, reaches: Reaches) -> tuple[float, float]:
        longest = np.sqrt(np.sum((self.rho * reaches.moves) ** 2, axis=1)).max()
        low = np.log(0.25 * rate**2 / (rate * longest + 2 * CUT))
        high = max(2 * np.log(rate), -2 * np.log(self.rho.min())) + 2 * CUT / (1 + len(self.rho))
        return float(low), float(high)


class OfBoxes(Mixing):
    """The largest move: boxes of half-widths s/rho_i."""

    free, cuts = np.inf, True

    def weight(self, rate: float, points: Array) -> Array:
        return np.log(rate) + points - rate * np.exp(points)

    def costs(self, rate: float, found: MixedNodes) -> tuple[Array, Array]:
        s = np.exp(found.points)
        mean, square = found.mean(s), found.mean(s**2)
        return mean - 1.0 / rate, square - 2.0 * mean / rate

    def seen(self, points: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
        end = (np.exp(points)[:, None] / self.rho)[..., None]
        return np.ones(1), np.maximum(low, -end), np.minimum(high, end)

    def range(self, rate: float, reaches: Reaches) -> tuple[float, float]:
        typical = max(rate, float((reaches.tilts / self.rho).max()), 1.0 / float(self.rho.min()))
        low = -np.log(typical) - (CUT + 6.0) / (1 + len(self.rho)) - 2.0
        high = np.log(max(float((self.rho * reaches.moves).max()), 2 * CUT / rate))
        return float(low), float(high)

    def kinks(self, low: Array, high: Array) -> Array:
        ends = np.abs(np.concatenate([low, high], axis=2)) * self.rho[:, None]
        with np.errstate(divide="ignore"):
            return np.log(ends).reshape(len(low), -1)


MIXINGS: dict[float, type[Mixing]] = {2.0: OfSquares, np.inf: OfBoxes}


# ------------------------------------------------------------------ sums over log s
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
