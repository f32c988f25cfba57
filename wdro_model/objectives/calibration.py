"""Scales of the smoothed objective: sigma, epsilon and a bound on the dual variable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import gamma

from wdro_model.loss.flat_vectors import FlatLoss
from wdro_model.objectives.base import Array
from wdro_model.objectives.integration.base import Stream
from wdro_model.objectives.integration.gaussian import Gaussian
from wdro_model.objectives.robust_affine import Ellipsoid
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.joint import JointSamples

KAPPA = 0.05
"""Smoothing relative to the exact margin: 0.05 keeps about 0.94 of it in every dimension."""
GRADIENT_SAMPLES = 200
"""At most so many samples are used to measure the size of the loss's gradient in the data."""


def cost_order(cost: BoundCost, joint: JointSamples) -> tuple[float, float]:
    """p and w with c ~ w |delta|^p for small moves: known for our costs, probed for a callable."""
    if cost.kind in ("squared", "mahalanobis"):
        return 2.0, 1.0
    if cost.kind == "norm":
        return 1.0, 1.0
    row = joint.matrix[:1]
    step = 1e-3 * max(1e-6, float(np.abs(joint.matrix[: min(50, joint.size)]).mean()))
    move = np.full_like(row, step)
    near, far = float(cost(row, row + move)[0]), float(cost(row, row + 2 * move)[0])
    if not (0 < near < far < np.inf):
        return 2.0, 1.0
    order = float(np.clip(np.log2(far / near), 0.5, 4.0))
    return order, near / (step * np.sqrt(joint.dimension)) ** order


def default_sigma(cost: BoundCost, radius: float, joint: JointSamples) -> float | Array:
    """The reference's standard deviations: E c = radius / 2, shared equally by the coordinates.

    sigma_i^2 = radius / (2 d w_i) for a squared cost with weights w over d free coordinates; for a
    norm, sigma_i = radius / (2 w_i E|z|_p), z standard normal.
    """
    free = max(1, joint.dimension - int(cost.frozen.sum()))
    weights = np.ones(1) if cost.weights is None else cost.weights
    if cost.kind == "squared":
        sigma = np.sqrt(radius / (2 * free * weights))
    elif cost.kind == "mahalanobis":
        assert cost.matrix is not None
        sigma = np.full(1, np.sqrt(radius / (2 * np.trace(cost.matrix))))
    elif cost.kind == "norm":
        sigma = radius / (2 * normal_norm(cost.p or 2.0, free) * weights)
    else:
        order, scale = cost_order(cost, joint)
        sigma = np.full(1, (radius / (2 * scale)) ** (1 / order) / np.sqrt(free))
    return float(sigma[0]) if np.all(sigma == sigma[0]) else sigma


def normal_norm(p: float, dimension: int) -> float:
    """E |z|_p for z standard normal in R^d, to a few percent."""
    if np.isinf(p):
        return float(np.sqrt(2 * np.log(2 * dimension))) if dimension > 1 else np.sqrt(2 / np.pi)
    moment = 2 ** (p / 2) * gamma((p + 1) / 2) / np.sqrt(np.pi)
    return float((dimension * moment) ** (1 / p))


def gradient_size(loss: FlatLoss, joint: JointSamples, cost: BoundCost, x: Array) -> float:
    """Root mean square over the samples of |grad_xi f(x, xi_k)|, in the dual norm of the cost."""
    every = -(-joint.size // GRADIENT_SAMPLES)
    quadratic = cost.kind in ("squared", "mahalanobis")
    geometry = Ellipsoid(cost, joint.dimension) if quadratic else None
    squares = []
    for row in joint.matrix[::every]:
        slope = loss(x, row[None])[1].in_data(np.ones(1))[0]
        if geometry is not None:
            squares.append(float(slope @ geometry.steepest(slope)))
        else:
            weights = 1.0 if cost.weights is None else cost.weights
            squares.append(float(np.linalg.norm(slope / weights, conjugate(cost.p or 2.0))) ** 2)
    return float(np.sqrt(np.mean(squares)))


def conjugate(p: float) -> float:
    """q with 1/p + 1/q = 1."""
    if p == 1:
        return np.inf
    return 1.0 if np.isinf(p) else p / (p - 1)


def default_epsilon(gradient: float, radius: float, cost: BoundCost, joint: JointSamples) -> float:
    """epsilon = kappa r G / (2 d), r the distance of the ball: a fixed fraction of the margin."""
    order, scale = cost_order(cost, joint)
    free = max(1, joint.dimension - int(cost.frozen.sum()))
    return float(KAPPA * (radius / scale) ** (1 / order) * gradient / (2 * free))


def typical_dual(gradient: float, radius: float, cost: BoundCost, joint: JointSamples) -> float:
    """The multiplier that a loss linear in the data would have: G r^(1-p) / (p w)."""
    order, scale = cost_order(cost, joint)
    distance = (radius / scale) ** (1 / order)
    return max(gradient, 1e-12) * distance ** (1 - order) / (order * scale)


@dataclass(frozen=True)
class DualScale:
    """The paper's calibration of the dual's upper bound."""

    bound: float
    """lambda_max = dispersion / (2 mean cost)."""
    dispersion: float
    """Mean over samples of max_s f - min_s f."""
    mean_cost: float


def calibrate_dual(
    integration: Gaussian,
    minimize: Callable[[Array], Array],
    start: Array,
    stream: Stream,
) -> DualScale:
    """The paper's Algorithm 3: lambda_max so that lambda_max c has the scale of the losses.

    For each sample, S draws and a vertex x_k of the feasible set that is optimal for one more
    draw zeta. The paper writes x_k = LMO(zeta); where the data is not a cost vector of the
    decision, the oracle is called with grad_x f(x_0, zeta).
    """
    spreads, costs = [], []
    for k in range(integration.joint.size):
        drawn = integration.drawn(np.array([k]), stream, integration.draws + 1)
        vertex = minimize(integration.loss(start, drawn.rows[-1:])[1](np.ones(1)))
        values = integration.loss.values(vertex, drawn.rows[:-1])
        spreads.append(float(values.max() - values.min()))
        costs.append(float(drawn.costs[:, :-1].mean()))
    dispersion, mean_cost = float(np.mean(spreads)), float(np.mean(costs))
    bound = dispersion / (2 * mean_cost) if mean_cost > 0 else 0.0
    return DualScale(bound, dispersion, mean_cost)
