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


@dataclass(frozen=True)
class ModeCosts:
    """The mean cost over samples whose modes have masses, and costs of gamma laws.

    Weighted by exp(-d cost), a gamma law with mean c and variance v has the mass
    (1 + d v/c)^(-c^2/v) and the mean c/(1 + d v/c); d is the change of the dual over epsilon.
    """

    dual: float
    epsilon: float
    shares: SampleShares
    samples: Array
    """Those of the modes, (P,), by position and in order."""
    log_masses: Array
    """Of the modes, (P,), up to a constant for each sample."""
    means: Array
    """Of the costs around the modes, (P,), above zero."""
    variances: Array
    """(P,)"""

    @cached_property
    def _first(self) -> Array:
        """The first mode of each sample."""
        return np.flatnonzero(np.diff(self.samples, prepend=-1))

    @cached_property
    def _ratios(self) -> Array:
        """v/c"""
        return np.maximum(self.variances / self.means, FLATTEST)

    def __call__(self, dual: float) -> float:
        d, first = (dual - self.dual) / self.epsilon, self._first
        growth = np.maximum(d * self._ratios, LEAST - 1.0)
        logs = self.log_masses - self.means / self._ratios * np.log1p(growth)
        masses = np.exp(logs - np.maximum.reduceat(logs, first)[self.samples])
        costs = np.add.reduceat(masses * self.means / (1.0 + growth), first)
        return float(self.shares.total(costs / np.add.reduceat(masses, first)))
