"""The transport cost at other dual variables, by what is known of the modes at one.

A sample with a mode near by and another one at the edge of its support moves from the one to the
other while the dual changes by less than a percent: the cost falls in steps, between which its
slope says nothing of the next one. The masses of the modes do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.sample_shares import SampleShares

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
