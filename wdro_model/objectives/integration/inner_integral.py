"""The inner integral of the smoothed objective, behind one interface.

For each sample xi_k and reference measure N(xi_k, sigma^2) restricted to the support,

    phi_k(x, l) = eps * log E_zeta exp((f(x, zeta) - l c(xi_k, zeta)) / eps).

A strategy fixes x and returns a slice: the mean of phi_k over some samples as a function of the
dual variable l alone, cheap to evaluate many times, and its gradient in x at a chosen l.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from wdro_model.loss.batched import FlatLoss
from wdro_model.model import RobustModel
from wdro_model.objectives.dual import DualPoint
from wdro_model.solvers.objective import Array, Diagnostics
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.samples import SampleShares


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


VERTEX, EMPIRICAL, ROBUST = "vertex", "ERM decision", "exact robust decision"
"""Places to begin: a vertex of the set, or a decision where the objective costs more than that."""
PILOT = Stream(seed=0, stage=2**63 - 1)
"""Random numbers that no slice uses."""


def inputs(model: RobustModel) -> tuple[FlatLoss, JointSamples, BoundCost]:
    """What every strategy reads of a model with uncertain data and a ball."""
    return model.loss, model.joint, model.cost


def refuse_undefined(values: Array, samples: Array) -> None:
    """An error that names the first of the samples at which values (K, ...) are not finite."""
    bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
    if bad.any():
        raise FloatingPointError(
            f"the loss is not finite at sample {int(samples[np.argmax(bad)])}; keep the decision "
            "inside its domain (bounds on the variables)."
        )


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


class Divergence(ArithmeticError):
    """A density rises without end: at this dual variable the loss outgrows the cost."""


class InfiniteSlice:
    """A slice at a dual variable under which the loss outgrows the cost: F is infinite."""

    def at(self, dual: float) -> DualPoint:
        return DualPoint(np.inf, -np.inf, np.nan)

    def gradient(self, dual: float) -> Array:
        raise FloatingPointError("the smoothed objective is infinite here: it has no gradient.")

    def diagnostics(self, dual: float) -> None:
        return None


class Integration(ABC):
    """A way to compute the inner integral."""

    name: str
    exact: bool
    """Free of Monte Carlo error?"""
    adapts = False
    """Are its draws made for one decision and one dual?"""
    refines = False
    """Do more draws make it as good as wanted, whatever the decision?"""
    begins = VERTEX
    """Where a run begins that has no start."""

    @abstractmethod
    def slice(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> Slice:
        """The inner integral at x over the samples with these indices, each of them once.

        shares: what they count in the mean; by default as their probabilities are.
        """

    @abstractmethod
    def describe(self) -> str:
        """What is computed and why, for people."""

    def refresh(self, x: Array, dual: float) -> None:  # noqa: B027
        """Adapt to a decision and a dual variable, at the start of a stage."""

    def forget(self) -> None:  # noqa: B027
        """Begin anew at the next decision, without what was made for earlier ones."""

    def settle(self, x: Array, dual: float) -> float:
        """Adapt to a decision, and return the dual variable that goes with it."""
        return dual

    def surrogate(self) -> Integration | None:
        """A cheaper strategy of nearly the same value to begin with, where there is one."""
        return None

    def inherit(self, other: Integration) -> None:  # noqa: B027
        """Take over what another one has found out about the same model."""

    def findings(self) -> Any:
        """What helps a solve of the same model with another radius to begin; None for nothing."""
        return None

    def begin_with(self, findings: Any, dual: float) -> None:  # noqa: B027
        """Take up the findings of another solve, of any kind, and the dual that is expected."""

    def support_error(self, samples: Array, shares: SampleShares) -> float:
        """Standard error of the value for the mass of the support, where that is estimated."""
        return 0.0

    def audited(self, found: Diagnostics, x: Array, dual: float) -> Diagnostics:
        """The diagnostics with the error of what draws may have missed, as far as it can tell."""
        return found


class Given(Integration):
    """What most strategies are built from: loss, data, cost, and the scales of the smoothing."""

    def __init__(
        self,
        loss: FlatLoss,
        joint: JointSamples,
        cost: BoundCost,
        *,
        epsilon: float,
        sigma: float | Array,
    ) -> None:
        self.loss, self.joint, self.cost = loss, joint, cost
        self.epsilon, self.sigma = epsilon, sigma
