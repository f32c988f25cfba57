"""Coordinates in which the tilted density is close to a product: moves y of the free coordinates.

A scenario is zeta = xi_k + R y over the coordinates that can move. R = 1 for most costs; for a
Mahalanobis cost (xi - zeta)' P (xi - zeta) on R^d it is diag(sigma) Q with Q the eigenvectors of
diag(sigma) P diag(sigma), so that reference and cost are both diagonal:

    reference  y_i ~ N(0, spread_i),      cost  c = sum_i weights_i y_i^2    (quadratic costs).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from wdro_model.objectives.integration.importance.proposals import Component, component
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.parameter import UncertainParameter


@dataclass(frozen=True)
class Frame:
    """The moves y in R^r of the samples, their reference and their bounds."""

    joint: JointSamples
    moving: Array
    """Indices of the coordinates that move: not frozen, and not pinned by a box of width 0."""
    spread: Array
    """Variances (r,) of the reference in y."""
    weights: Array | None
    """Weights (r,) of a quadratic cost in y; None for the others."""
    rotation: Array | None
    """R of shape (r, r); None for the identity."""
    lower: Array
    """Bounds (r,) on the scenarios; infinite where the support does not bound a coordinate."""
    upper: Array
    coupled: tuple[tuple[UncertainParameter, slice], ...]
    """Parameters whose support has no coordinate structure."""

    @property
    def dimension(self) -> int:
        return len(self.moving)

    @cached_property
    def bounded(self) -> bool:
        """Does a box truncate some coordinate?"""
        return bool(np.isfinite(self.lower).any() or np.isfinite(self.upper).any())

    def bounds(self, owners: Array) -> tuple[Array, Array] | None:
        """Bounds (B, r) on the moves of these samples; None on R^d."""
        if not self.bounded:
            return None
        origins = self.joint.matrix[owners][:, self.moving]
        return np.minimum(self.lower - origins, 0.0), np.maximum(self.upper - origins, 0.0)

    def rows(self, owners: Array, moves: Array) -> Array:
        """Scenarios (B, d) of the moves (B, r)."""
        rows = self.joint.matrix[owners]
        step = moves if self.rotation is None else moves @ self.rotation.T
        if self.dimension == rows.shape[1]:
            rows = rows + step
        else:
            rows = np.array(rows)
            rows[:, self.moving] += step
        if self.bounded:
            rows[:, self.moving] = np.clip(rows[:, self.moving], self.lower, self.upper)
        return rows

    def pulled(self, gradients: Array) -> Array:
        """Gradients in y (B, r) from gradients in the scenarios (B, d)."""
        moving = gradients[:, self.moving]
        return moving if self.rotation is None else moving @ self.rotation

    def inside(self, rows: Array) -> Array:
        """Which scenarios lie in the supports without coordinate structure."""
        accepted = np.ones(len(rows), dtype=bool)
        for parameter, where in self.coupled:
            block = rows[:, where].reshape(len(rows), *parameter.shape)
            accepted &= parameter.support.contains(block)
        return accepted


def frame_of(
    joint: JointSamples, cost: BoundCost, sigma: Any, columns: Array | None = None
) -> Frame:
    """The frame of a cost and a reference; `columns` restricts it to some coordinates."""
    lower, upper = box_of(joint)
    moves = ~np.asarray(cost.frozen) & (lower < upper)
    if columns is not None:
        moves &= np.isin(np.arange(joint.dimension), columns)
    moving = np.flatnonzero(moves)
    deviation = np.broadcast_to(np.asarray(sigma, dtype=float), (joint.dimension,))[moving]
    weights, rotation = None, None
    spread = deviation**2
    free = not (np.isfinite(lower[moving]).any() or np.isfinite(upper[moving]).any())
    if cost.is_quadratic and cost.is_separable:
        weights = cost.coordinate_weights[moving]
    elif cost.is_quadratic and free:
        block = cost.matrix[np.ix_(moving, moving)]
        weights, vectors = np.linalg.eigh(deviation[:, None] * block * deviation)
        rotation = deviation[:, None] * vectors
        spread = np.ones(len(moving))
    return Frame(
        joint,
        moving,
        spread,
        weights,
        rotation,
        lower[moving],
        upper[moving],
        tuple(
            (p, where)
            for p, where in joint.slices.items()
            if p.support.bounds(p.shape) is None and moves[where].any()
        ),
    )


def reference_of(frame: Frame, samples: Array) -> Component:
    """The reference of these samples, truncated to the box, in the moves."""
    bounds = frame.bounds(samples)
    shape = (1 if bounds is None else len(samples), frame.dimension)
    return component(np.zeros(shape), np.broadcast_to(np.sqrt(frame.spread), shape), bounds)


def box_of(joint: JointSamples) -> tuple[Array, Array]:
    """Bounds (d,) of the coordinates; infinite for supports without coordinate structure."""
    lower, upper = np.full(joint.dimension, -np.inf), np.full(joint.dimension, np.inf)
    for parameter, where in joint.slices.items():
        box = parameter.support.bounds(parameter.shape)
        if box is not None:
            lower[where], upper[where] = np.ravel(box[0]), np.ravel(box[1])
    return lower, upper
