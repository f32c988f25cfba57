"""Coordinates in which the reference and a quadratic cost are diagonal, with bounds and walls.

A scenario is zeta = xi_k + R y over the coordinates that can move. R = 1 for most costs; for a
Mahalanobis cost (xi - zeta)' P (xi - zeta) on R^d it is diag(sigma) Q with Q the eigenvectors of
diag(sigma) P diag(sigma), so that reference and cost are both diagonal:

    reference  y_i ~ N(0, spread_i),      cost  c = sum_i weights_i y_i^2    (quadratic costs).

The whitened move z_i = y_i/sqrt(spread_i) has the reference N(0, 1) and the cost lambda_i z_i^2,
lambda_i = weights_i spread_i. The cost alone tilts it to N(0, v_i), v_i = 1/(1 + 2 l lambda_i/eps).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import nnls

from wdro_model.loss.batched import FlatLoss
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.costs.budgets import typical_price
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.parameter import UncertainParameter
from wdro_model.uncertainty.supports import Polyhedron

WALL_CONTACT = 0.05
"""A wall counts as touching a mode up to this distance, in standard deviations."""
PROJECTION_SWEEPS = 8
"""Rounds of Dykstra's projections onto the walls of a polyhedron."""


@dataclass(frozen=True)
class Frame:
    """Coordinates of the moves y in R^r, with the reference, the cost and the bounds in them.

    A wall is a face of a polyhedral support, as opposed to the bound of a single coordinate.
    """

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
    def columns(self) -> Array | slice:
        """`moving` as a slice if it is consecutive: indexing then makes no copy."""
        return as_slice(self.moving)

    @cached_property
    def origins(self) -> Array:
        """The samples in the coordinates that move, (N, r)."""
        return self.joint.matrix[:, self.columns]

    @cached_property
    def bounded(self) -> bool:
        """True if some coordinate has a finite bound."""
        return bool(np.isfinite(self.lower).any() or np.isfinite(self.upper).any())

    # -------------------------------------------------------------- whitened moves
    @cached_property
    def deviation(self) -> Array:
        """The standard deviations of the reference, (r,)."""
        return np.sqrt(self.spread)

    @cached_property
    def whitened_weights(self) -> Array:
        """lambda (r,), the cost of a unit whitened move."""
        assert self.weights is not None
        return self.weights * self.spread

    @cached_property
    def common_weight(self) -> float | None:
        """The value of all lambda_i; None where they differ."""
        weights = self.whitened_weights
        same = len(weights) > 0 and np.ptp(weights) <= 1e-14 * weights.max()
        return float(weights[0]) if same else None

    def whitened_variances(self, dual: float | Array, epsilon: float) -> Array:
        """v (r,), or (J, r) for several duals."""
        return 1.0 / (1.0 + 2.0 * np.multiply.outer(dual, self.whitened_weights) / epsilon)

    def whitened_slopes(self, gradients: Array) -> Array:
        """Derivatives in z (..., r) from derivatives in the scenarios (..., d)."""
        return self.pulled(gradients) * self.deviation

    def displacements(self, z: Array) -> Array:
        """The displacements of the scenarios (..., d) for whitened moves (..., r)."""
        moves = z * self.deviation
        full = np.zeros((*z.shape[:-1], self.joint.dimension))
        full[..., self.columns] = moves if self.rotation is None else moves @ self.rotation.T
        return full

    # -------------------------------------------------------------- bounds and scenarios
    def bounds(self, owners: Array) -> tuple[Array, Array] | None:
        """Bounds (B, r) on the moves of the samples `owners` (B,); None if there are none."""
        if not self.bounded:
            return None
        origins = self.origins[owners]
        return np.minimum(self.lower - origins, 0.0), np.maximum(self.upper - origins, 0.0)

    def bounds_of(self, owners: Array, coordinates: Array) -> tuple[Array, Array]:
        """Bounds (P,) on the moves of sample owners[p] in coordinate coordinates[p]."""
        origins = self.origins[owners, coordinates]
        lower, upper = self.lower[coordinates], self.upper[coordinates]
        return np.minimum(lower - origins, 0.0), np.maximum(upper - origins, 0.0)

    def rows(self, owners: Array, moves: Array) -> Array:
        """Scenarios (B, d) of the moves (B, r) of the samples with these indices (B,)."""
        rows = self.joint.matrix[owners]
        rows[:, self.columns] += moves if self.rotation is None else moves @ self.rotation.T
        if self.bounded:
            rows[:, self.columns] = np.clip(rows[:, self.columns], self.lower, self.upper)
        return rows

    def pulled(self, gradients: Array) -> Array:
        """Gradients in y (..., r) from gradients in the scenarios (..., d)."""
        moving = gradients[..., self.columns]
        return moving if self.rotation is None else moving @ self.rotation

    # -------------------------------------------------------------- walls of polyhedra
    @cached_property
    def walls(self) -> tuple[Array, Array]:
        """C (m, d) and h (m,) of the supports that are polyhedra: C zeta <= h."""
        normals, limits = [np.zeros((0, self.joint.dimension))], [np.zeros(0)]
        for parameter, where in self.coupled:
            if isinstance(parameter.support, Polyhedron):
                rows = np.zeros((len(parameter.support.b), self.joint.dimension))
                matrix = parameter.support.A
                rows[:, where] = matrix.toarray() if sparse.issparse(matrix) else matrix
                normals.append(rows)
                limits.append(parameter.support.b)
        return np.concatenate(normals), np.concatenate(limits)

    def room(self, owners: Array) -> Array:
        """The distance (B,) of each sample from its farthest wall; 0 without walls."""
        normals, limits = self.walls
        if not len(limits):
            return np.zeros(len(owners))
        slack = limits - self.joint.matrix[owners] @ normals.T
        sizes = np.linalg.norm(self.pulled(normals), axis=1)
        return (slack / np.maximum(sizes, 1e-300)).max(axis=1)

    def within_walls(self, owners: Array, moves: Array, deviation: Array) -> Array:
        """Moves (B, r) inside the polyhedra, about the closest ones in units of `deviation`."""
        normals, limits = self.walls
        if not len(limits):
            return moves
        slack = limits - self.joint.matrix[owners] @ normals.T
        slopes = self.pulled(normals)
        out = moves / deviation
        corrections = np.zeros((len(limits), *moves.shape))
        for _ in range(PROJECTION_SWEEPS):  # Dykstra's projections
            for i, slope in enumerate(slopes):
                normal = slope * deviation
                before = out + corrections[i]
                excess = np.einsum("br,br->b", before, normal) - slack[:, i]
                square = np.einsum("br,br->b", normal, normal)
                step = np.maximum(excess, 0.0) / np.maximum(square, 1e-300)
                out = before - step[:, None] * normal
                corrections[i] = before - out
        out = out * deviation
        # Few sweeps may end outside: such a move is shortened towards the sample, which is inside.
        used = out @ slopes.T
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(used > slack, np.maximum(slack, 0.0) / used, 1.0)
        return out * shares.min(axis=1, keepdims=True)

    def wall_contacts(
        self, owners: Array, moves: Array, slopes: Array, deviation: Array
    ) -> tuple[Array, Array]:
        """The decay of densities away from the walls that stop their ascent.

        slopes (B, r): gradients of the log density, in units of `deviation`. A slope is a sum of
        multiples p_i >= 0 of the normals n_i of walls that touch the move: the density
        falls like exp(-sum_i p_i s_i) with the distances s_i. Returned are the matrices
        sum_i p_i^2 n_i n_i' (B, r, r) and steps (B, r) to where all s_i = 1/p_i, in deviations.
        The multiples p_i come from non-negative least squares.
        """
        normals, limits = self.walls
        size, r = moves.shape
        matrices, steps = np.zeros((size, r, r)), np.zeros((size, r))
        if not len(limits):
            return slopes[:, :, None] * slopes[:, None, :], steps
        slack = limits - self.joint.matrix[owners] @ normals.T - moves @ self.pulled(normals).T
        for b in range(size):
            scaled = self.pulled(normals) * deviation[b]
            lengths = np.maximum(np.linalg.norm(scaled, axis=1), 1e-300)
            touching = slack[b] < WALL_CONTACT * lengths
            held = scaled[touching] / lengths[touching, None]
            price = nnls(held.T, slopes[b])[0] if touching.any() else np.zeros(0)
            if (kept := price > 1.0).any():
                walls = price[kept, None] * held[kept]
                matrices[b] = walls.T @ walls
                steps[b] = -np.linalg.pinv(walls) @ np.ones(len(walls))
        return matrices, steps

    def is_inside(self, rows: Array) -> Array:
        """A mask (B,) of scenarios that lie in the supports without coordinate structure."""
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


def as_slice(indices: Array) -> Array | slice:
    """The indices as a slice if they are consecutive: indexing then gives a view, not a copy."""
    first, count = (int(indices[0]), len(indices)) if len(indices) else (0, 0)
    if count and indices[-1] - first != count - 1:
        return indices
    return slice(first, first + count) if (np.diff(indices) == 1).all() else indices


def box_of(joint: JointSamples) -> tuple[Array, Array]:
    """Bounds (d,) of the coordinates; infinite for supports without coordinate structure."""
    lower, upper = np.full(joint.dimension, -np.inf), np.full(joint.dimension, np.inf)
    for parameter, where in joint.slices.items():
        box = parameter.support.bounds(parameter.shape)
        if box is not None:
            lower[where], upper[where] = np.ravel(box[0]), np.ravel(box[1])
    return lower, upper


def typical_radius(frame: Frame) -> float:
    """The radius whose default sigma is about the reference of this frame."""
    if frame.weights is not None:
        return max(float(2 * frame.weights @ frame.spread), 1e-300)
    return max(float(np.sqrt(2 * frame.spread.sum())), 1e-300)


def affine_dual(
    loss: FlatLoss, x: Array, samples: Array, frame: Frame, cost: BoundCost, radius: float
) -> float:
    """A first guess of the dual variable: the optimal one of an affine loss with the same slopes.

    With G the root mean square length of the slopes at `samples`, it is about
    G / (2 sqrt(radius)) for a quadratic cost and G for a norm.
    """
    raw = loss(x, frame.joint.matrix[samples])[1].in_data(np.ones(len(samples)))
    weights = np.ones(frame.dimension) if frame.weights is None else frame.weights
    squares = (frame.pulled(raw) ** 2 / weights).sum(axis=1)
    size = float(np.sqrt(frame.joint.shares_of(samples).total(squares)))
    return typical_price(cost, size, radius, frame.joint)
