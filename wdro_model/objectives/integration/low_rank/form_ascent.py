"""The exponent g(t) = h(u_k + L t)/eps - |t|^2/2 of tilted laws, and the way to its modes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wdro_model.objectives.integration.low_rank.outer import Outer
from wdro_model.solvers.objective import Array

STEPS = 12
"""Newton steps towards a mode, at most."""
DIFFERENCE = 1e-2
"""Step of the differences of gradients."""


@dataclass(frozen=True)
class FormTarget:
    """g for K samples: u (K, q), L (K, q, r)."""

    outer: Outer
    u: Array
    L: Array

    def __call__(self, owner: Array, t: Array) -> Array:
        """g at points t (M, r) of the samples owner (M,); +inf for NaN."""
        with np.errstate(invalid="ignore"):
            values = self.outer(owner, self.forms(owner, t)) - 0.5 * np.einsum("mr,mr->m", t, t)
        return np.where(np.isnan(values), np.inf, values)

    def gradient(self, owner: Array, t: Array) -> Array:
        """grad g, (M, r)."""
        return self.tilt(owner, t) - t

    def tilt(self, owner: Array, t: Array) -> Array:
        """L' h_u/eps: where the mode would be if h were affine with the slope it has at t."""
        slopes = self.outer.slopes(owner, self.forms(owner, t))
        return np.nan_to_num(np.einsum("mq,mqr->mr", slopes, self.L[owner]))

    def forms(self, owner: Array, t: Array) -> Array:
        return self.u[owner] + np.einsum("mqr,mr->mq", self.L[owner], t)


@dataclass(frozen=True)
class Ascended:
    """Points at or near modes."""

    points: Array
    """(M, r)"""
    heights: Array
    """g there, (M,)."""
    precision: Array
    """-Hess g, made definite, (M, r, r)."""


def ascend(target: FormTarget, owner: Array, start: Array) -> Ascended:
    """Modes of g from starts (M, r) of the samples owner, by safeguarded Newton steps."""
    points = start.copy()
    heights = target(owner, points)
    precision = np.broadcast_to(np.eye(start.shape[1]), (*start.shape, start.shape[1])).copy()
    active = np.arange(len(start))
    for _ in range(STEPS):
        here, who = points[active], owner[active]
        gradient = target.gradient(who, here)
        precision[active] = _precision(target, who, here, gradient)
        step = np.linalg.solve(precision[active], gradient[..., None])[..., 0]
        moving = np.linalg.norm(step, axis=1) > 1e-2
        active, here, step = active[moving], here[moving], step[moving]
        if not len(active):
            break
        waiting = np.arange(len(active))
        for factor in (1.0, 0.3, 0.03):
            trial = here[waiting] + factor * step[waiting]
            values = target(owner[active[waiting]], trial)
            better = values > heights[active[waiting]]
            rows = active[waiting[better]]
            points[rows], heights[rows] = trial[better], values[better]
            waiting = waiting[~better]
            if not len(waiting):
                break
        active = np.delete(active, waiting)
    return Ascended(points, heights, precision)


def _precision(target: FormTarget, owner: Array, t: Array, gradient: Array) -> Array:
    """-Hess g by differences of gradients, its eigenvalues kept positive."""
    rank = t.shape[1]
    hessian = np.empty((len(t), rank, rank))
    for i in range(rank):
        moved = target.gradient(owner, t + DIFFERENCE * np.eye(rank)[i])
        hessian[:, i] = (moved - gradient) / DIFFERENCE
    values, vectors = np.linalg.eigh(-0.5 * (hessian + hessian.swapaxes(1, 2)))
    values = np.clip(values, 0.02, 1e12)
    return (vectors * values[:, None]) @ vectors.swapaxes(1, 2)
