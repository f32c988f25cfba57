"""The inner integral of the smoothed objective, behind one interface.

For each sample xi_k and reference measure N(xi_k, sigma^2) restricted to the support,

    phi_k(x, l) = eps * log E_zeta exp((f(x, zeta) - l c(xi_k, zeta)) / eps).

An `Integration` fixes x and returns a `Slice`: the mean of phi_k over some samples as a function of
the dual variable l alone, cheap to evaluate many times, and its gradient in x at a chosen l.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wdro_model.model import RobustModel
from wdro_model.objectives.dual import DualPoint
from wdro_model.solvers.objective import Array, Diagnostics
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


PILOT_STREAM = Stream(seed=0, stage=2**63 - 1)
AUDIT_STREAM = Stream(seed=0, stage=2**63 - 2)
"""Streams apart from those of the slices: for first guesses, and for audits."""

VERTEX, EMPIRICAL, ROBUST = "vertex", "ERM decision", "exact robust decision"
"""Values of `Integration.start`: where a run begins, a vertex or another method's decision."""


@dataclass(frozen=True)
class Scales:
    """Temperature and reference of the smoothing, and the draws of the sampling strategies."""

    epsilon: float
    sigma: float | Array
    """Standard deviation of the reference, of all coordinates or of each, (d,)."""
    draws: int = 100
    """Draws for each sample."""


class Divergence(ArithmeticError):
    """The tilted density has no finite mass: at this dual variable the loss outgrows the cost."""


class Slice(ABC):
    """The function l -> mean_k phi_k(x, l) at one decision x."""

    guess: float | None = None
    """Dual variable to start the minimisation from; None for the last decision's minimiser."""

    @abstractmethod
    def evaluate(self, dual: float) -> DualPoint:
        """Value, slope and curvature in the dual variable."""

    @abstractmethod
    def gradient(self, dual: float) -> Array:
        """The gradient in x, (n,)."""

    def diagnostics(self, dual: float) -> Diagnostics | None:
        """Error estimates of the values; None if the values are exact up to rounding."""
        return None

    def fixed_adversary_gradient(self, dual: float) -> Callable[[Array], Array] | None:
        """Gradients at other decisions with the adversary held at its reply to x, or None."""
        return None

    def replying_adversary_gradient(self, dual: float) -> Callable[[Array], Array] | None:
        """Gradients at decisions near x, with adversary and dual chosen anew; None if unknown."""
        return None

    def likely_scenarios(self, dual: float) -> Array | None:
        """The most likely scenario of the adversary for each sample, (N, d); None if unknown."""
        return None


class SampleSlice(Slice):
    """A slice that also gives phi_k of each sample, at several dual variables at once."""

    @abstractmethod
    def by_sample(self, duals: Array) -> tuple[Array, Array]:
        """phi_k and the mean cost at J duals, (J, K) each; K = 1 if all samples move alike."""

    @abstractmethod
    def mixed_gradient(self, duals: Array, shares: Array) -> Array:
        """sum_jk shares_jk grad_x phi_k(x, l_j), for shares (J, K)."""


class InfiniteSlice(Slice):
    """A slice at a dual variable under which the loss outgrows the cost: F is infinite."""

    def evaluate(self, dual: float) -> DualPoint:
        return INFINITE

    def gradient(self, dual: float) -> Array:
        raise infinite_gradient()


INFINITE = DualPoint(np.inf, -np.inf, np.nan)
"""The point of a slice where the loss outgrows the cost."""


def infinite_gradient() -> FloatingPointError:
    """The error to raise if a gradient is asked for where the objective is infinite."""
    return FloatingPointError(
        "the smoothed objective is infinite here: the loss outgrows the cost, and has no gradient; "
        "give the data a bounded support."
    )


def refuse_undefined(values: Array, samples: Array) -> None:
    """Raise a FloatingPointError with the first sample whose values (K, ...) are not finite."""
    bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
    if bad.any():
        raise FloatingPointError(
            f"the loss is not finite at sample {int(samples[np.argmax(bad)])}; keep the decision "
            "inside its domain (bounds on the variables)."
        )


class Integration(ABC):
    """A way to compute the inner integral of a model at given scales.

    Subclasses give `slice` and `describe`; all other methods have defaults for strategies that
    keep nothing from one decision to the next.
    """

    name: str
    exact: bool = True
    """True if the values are free of Monte Carlo error."""
    adapts: bool = False
    """True if draws fit one decision and dual alone, and `refresh` must follow both."""
    recalls: bool = False
    """True if the search for modes also starts at the modes of other dual variables; set by
    `Moving` when its values contradict convexity."""
    start: str = VERTEX
    """The decision at which a run starts if the user gives none."""

    def __init__(self, model: RobustModel, scales: Scales) -> None:
        self.model, self.scales = model, scales
        self.loss, self.joint, self.cost = model.loss, model.joint, model.cost
        self.epsilon, self.sigma, self.draws = scales.epsilon, scales.sigma, scales.draws

    @property
    def rows(self) -> Array:
        """The samples (N, d), or fewer nodes in their place (see `ClosedForm.surrogate`)."""
        return self.joint.matrix

    @abstractmethod
    def slice(
        self, x: Array, samples: Array, stream: Stream, shares: SampleShares | None = None
    ) -> Slice:
        """The inner integral at x over the samples with these indices, each of them once.

        shares: the weights of the samples in the mean; by default their probabilities.
        """

    @abstractmethod
    def describe(self) -> str:
        """The computation and the reason for it, for people."""

    # -------------------------------------------------------------- from one evaluation to the next
    def refresh(self, x: Array, dual: float) -> None:  # noqa: B027
        """Place quadrature nodes or draws anew, for this decision and dual variable."""

    def settle_dual(self, x: Array, dual: float | None) -> float:
        """Refresh at x and its optimal dual variable; return the dual. `dual` is a first guess."""
        assert dual is not None
        self.refresh(x, dual)
        return dual

    def findings(self) -> object:
        """Modes and similar results, to warm start the same model at another stage or radius."""
        return None

    def use_findings(self, findings: object, dual: float) -> None:  # noqa: B027
        """Warm start from the findings of any strategy; `dual` is the dual to expect."""

    def surrogate(self) -> Integration | None:
        """A cheaper strategy of nearly the same value, for the start of a run, or None."""
        return None

    # -------------------------------------------------------------- errors
    def support_error(self, samples: Array, shares: SampleShares) -> float:
        """Standard error of the value that comes from an estimated mass of the support."""
        return 0.0

    def audit(self, diagnostics: Diagnostics, x: Array, dual: float) -> Diagnostics:
        """The diagnostics with the error of modes that the draws may have missed."""
        return diagnostics
