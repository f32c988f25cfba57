"""The law of t ~ N(0, I_r) tilted by exp(h(u_k + L t)/eps), as weighted points for each sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdro_model.solvers.objective import Array

HALF_LOG_2PI = 0.5 * float(np.log(2 * np.pi))


@dataclass(frozen=True)
class TiltedLaw:
    """Weighted points of K laws on R^r, one for each sample."""

    log_mass: Array
    """log E exp(h(u_k + L t)/eps), (K,); +inf where the loss outgrows the cost."""
    owner: Array
    """The sample of each point, (M,)."""
    points: Array
    """t, (M, r)."""
    weights: Array
    """Probabilities (M,), of sum one over the points of a sample."""
    variance: Array | None = None
    """Variance of the last coordinate around its points (M,), where a point stands for an
    interval on which h is affine; None for zero."""
    samples: Array | None = None
    """The samples that log_mass is about, where a law knows only some of them."""

    def mean(self, values: Array) -> Array:
        """Averages over each law of values (M,) or (M, ...) at its points: (K, ...)."""
        return self.total(values * self.weights.reshape(-1, *[1] * (values.ndim - 1)))

    def total(self, values: Array) -> Array:
        """Sums over the points of each law."""
        size = len(self.log_mass)
        flat = values.reshape(len(values), -1)
        sums = np.empty((size, flat.shape[1]))
        for j in range(flat.shape[1]):
            sums[:, j] = np.bincount(self.owner, weights=flat[:, j], minlength=size)
        return sums.reshape(size, *values.shape[1:])


def merged(laws: list[TiltedLaw], size: int) -> TiltedLaw:
    """One law of all samples from laws of some of them."""
    log_mass = np.empty(size)
    for law in laws:
        log_mass[law.samples] = law.log_mass
    variances = [np.zeros(len(law.owner)) if law.variance is None else law.variance for law in laws]
    known = any(law.variance is not None for law in laws)
    return TiltedLaw(
        log_mass,
        np.concatenate([law.owner for law in laws]),
        np.concatenate([law.points for law in laws]),
        np.concatenate([law.weights for law in laws]),
        np.concatenate(variances) if known else None,
    )


def joined(laws: list[TiltedLaw]) -> TiltedLaw:
    """One law of all samples from laws of consecutive ones."""
    if len(laws) == 1:
        return laws[0]
    sizes = [len(law.log_mass) for law in laws]
    starts = np.cumsum([0, *sizes[:-1]])
    return TiltedLaw(
        np.concatenate([law.log_mass for law in laws]),
        np.concatenate([law.owner + start for law, start in zip(laws, starts)]),
        np.concatenate([law.points for law in laws]),
        np.concatenate([law.weights for law in laws]),
    )


def log_sum_exp(logs: Array, owner: Array, size: int) -> Array:
    """log sum exp over the entries of each owner, (size,); -inf for an owner without entries."""
    top = np.full(size, -np.inf)
    np.maximum.at(top, owner, logs)
    shift = np.where(np.isfinite(top), top, 0.0)
    sums = np.bincount(owner, weights=np.exp(logs - shift[owner]), minlength=size)
    with np.errstate(divide="ignore"):
        return np.log(sums) + shift
