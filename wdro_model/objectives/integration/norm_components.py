"""Norms that couple the coordinates, as mixtures over a parameter s of products over coordinates.

    exp(-a |y|_2)   = int a/(2 sqrt(pi)) s^(-3/2) exp(-a^2/(4 s)) exp(-s |y|_2^2) ds,
    exp(-a |y|_inf) = int a exp(-a s) 1{|y|_inf <= s} ds.

The components do not depend on a, so that the cost is known from the weights alone,
E c = -E [d log weight / da].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from wdro_model.objectives.integration.norms import CUT
from wdro_model.solvers.objective import Array


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
