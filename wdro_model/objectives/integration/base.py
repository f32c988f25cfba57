"""The inner integral of the smoothed objective, behind one interface.

For each sample xi_k and reference measure N(xi_k, sigma^2) restricted to the support,

    phi_k(x, l) = eps * log E_zeta exp((f(x, zeta) - l c(xi_k, zeta)) / eps).

A strategy fixes x and returns a slice: the mean of phi_k over some samples as a function of the
dual variable l alone, cheap to evaluate many times, and its gradient in x at a chosen l.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from wdro_model.objectives.base import Array, Diagnostics
from wdro_model.objectives.dual import DualPoint


@dataclass(frozen=True)
class Stream:
    """Random numbers keyed by seed, stage and sample: the same whatever the batch or the order."""

    seed: int
    stage: int = 0

    def generator(self, sample: int) -> np.random.Generator:
        """The generator of one sample, counter-based: no state is shared between samples."""
        key = np.array([self.seed, self.stage], dtype=np.uint64)
        counter = np.array([0, 0, 0, sample], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))


class Slice(Protocol):
    """l -> mean_k phi_k(x, l) at one x."""

    def at(self, dual: float) -> DualPoint:
        """Value, slope and curvature in the dual variable."""
        ...

    def gradient(self, dual: float) -> Array:
        """The gradient in x, (n,)."""
        ...

    def diagnostics(self, dual: float) -> Diagnostics | None:
        """How far the values can be trusted; None where nothing was sampled."""
        ...


class Integration(Protocol):
    """A way to compute the inner integral."""

    name: str
    exact: bool
    """Free of Monte Carlo error?"""

    def slice(self, x: Array, samples: Array, stream: Stream) -> Slice:
        """The inner integral at x over the samples with these indices."""
        ...

    def refresh(self, x: Array, dual: float) -> None:
        """Adapt to a decision and a dual variable, at the start of a stage."""
        ...

    def settle(self, x: Array, dual: float) -> float:
        """Adapt to a decision, and return the dual variable that goes with it."""
        ...

    def describe(self) -> str:
        """What is computed and why, for people."""
        ...
