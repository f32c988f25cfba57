"""Scales of the smoothed objective: sigma, epsilon and a bound on the dual variable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wdro_model.loss.flat import FlatLoss
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


def default_sigma(cost: BoundCost, radius: float, dimension: int) -> float | Array:
    """The reference's standard deviations: E c = radius / 2, shared equally by the coordinates.

    sigma_i^2 = radius / (2 d w_i) for a squared cost with weights w over d free coordinates;
    for other costs of order p the same rule on the radius of the p-ball, radius^(1/p).
    """
    free = dimension - int(cost.frozen.sum())
    if cost.kind == "squared":
        weights = np.ones(1) if cost.weights is None else cost.weights
        sigma = np.sqrt(radius / (2 * max(1, free) * weights))
    elif cost.kind == "mahalanobis":
        assert cost.matrix is not None
        sigma = np.full(1, np.sqrt(radius / (2 * np.trace(cost.matrix))))
    else:
        weights = np.ones(1) if cost.weights is None else cost.weights
        sigma = radius / (np.sqrt(2 * max(1, free)) * weights)
    return float(sigma[0]) if np.all(sigma == sigma[0]) else sigma


def gradient_size(loss: FlatLoss, joint: JointSamples, cost: BoundCost, x: Array) -> float:
    """Root mean square over the samples of |grad_xi f(x, xi_k)|, in the dual norm of the cost."""
    every = max(1, joint.size // GRADIENT_SAMPLES)
    squares = []
    for row in joint.matrix[::every]:
        slope = loss(x, row[None])[1].in_data(np.ones(1))[0]
        if cost.kind in ("squared", "mahalanobis"):
            squares.append(float(slope @ Ellipsoid(cost, joint.dimension).steepest(slope)))
        else:
            weights = np.ones(joint.dimension) if cost.weights is None else cost.weights
            squares.append(float(((slope / weights) ** 2).sum()))
    return float(np.sqrt(np.mean(squares)))


def default_epsilon(gradient: float, radius: float, dimension: int) -> float:
    """epsilon = kappa sqrt(radius) G / (2 d): a fixed fraction of the robust margin."""
    return KAPPA * np.sqrt(radius) * gradient / (2 * dimension)


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
