"""Tilted laws as weighted points: t ~ N(0, I_r) tilted by exp(H(t)), one law for each function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wdro_model.solvers.objective import Array


@dataclass(frozen=True)
class TiltedLaw:
    """Weighted points of F laws on R^r."""

    log_mass: Array
    """log E exp(H(t)), (F,); +inf where it diverges."""
    owner: Array
    """The law of each point, (M,)."""
    points: Array
    """t, (M, r)."""
    weights: Array
    """Probabilities (M,), of sum one over the points of a law."""
    variance: Array | None = None
    """Variance of the last coordinate around its points (M,), where a point stands for an
    interval on which H is affine; None for zero."""

    def mean(self, values: Array) -> Array:
        """Averages over each law of values (M,) or (M, ...) at its points: (F, ...)."""
        return self.total(values * self.weights.reshape(-1, *[1] * (values.ndim - 1)))

    def total(self, values: Array) -> Array:
        """Sums over the points of each law."""
        size = len(self.log_mass)
        flat = values.reshape(len(values), -1)
        sums = np.empty((size, flat.shape[1]))
        for j in range(flat.shape[1]):
            sums[:, j] = np.bincount(self.owner, weights=flat[:, j], minlength=size)
        return sums.reshape(size, *values.shape[1:])


def united(parts: Sequence[tuple[Array, TiltedLaw]], size: int) -> TiltedLaw:
    """The laws of `size` functions from parts of them, each with the functions its laws are of.

    Where several are of one function, on intervals of their own, their masses add up.
    """
    rows = np.concatenate([np.zeros(0, dtype=int), *(where for where, _ in parts)])
    laws = [law for _, law in parts]
    if len(laws) == 1 and np.array_equal(rows, np.arange(size)):
        return laws[0]
    log_mass = log_sum_exp(
        np.concatenate([np.zeros(0), *(law.log_mass for law in laws)]), rows, size
    )
    owners = [where[law.owner] for where, law in parts]
    with np.errstate(invalid="ignore"):
        weights = [
            law.weights * np.exp(law.log_mass - log_mass[where])[law.owner] for where, law in parts
        ]
    known = any(law.variance is not None for law in laws)
    variances = (np.zeros(len(law.owner)) if law.variance is None else law.variance for law in laws)
    return TiltedLaw(
        log_mass,
        np.concatenate(owners),
        np.concatenate([law.points for law in laws]),
        np.concatenate(weights),
        np.concatenate(list(variances)) if known else None,
    )


def infinite(size: int, rank: int = 1) -> TiltedLaw:
    """Laws that have no mass to normalise by."""
    nothing = np.zeros(0)
    return TiltedLaw(np.full(size, np.inf), nothing.astype(int), np.zeros((0, rank)), nothing)


def log_sum_exp(logs: Array, owner: Array, size: int) -> Array:
    """log sum exp over the entries of each owner, (size,); -inf for an owner without entries."""
    top = np.full(size, -np.inf)
    np.maximum.at(top, owner, logs)
    shift = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore", over="ignore"):
        sums = np.bincount(owner, weights=np.exp(logs - shift[owner]), minlength=size)
        return np.log(sums) + shift
