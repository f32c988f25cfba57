"""Scales of the smoothed objective: sigma, epsilon and a bound on the dual variable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from wdro_model.loss.batched import FlatLoss
from wdro_model.objectives.integration.gaussian import Gaussian
from wdro_model.objectives.integration.inner_integral import Stream
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.parameter import one_if_equal

KAPPA = 0.05
"""Smoothing relative to the exact margin: 0.05 keeps about 0.94 of it in every dimension."""
GRADIENT_SAMPLES = 200
"""At most so many samples are used to measure the size of the loss's gradient in the data."""


def default_sigma(cost: BoundCost, radius: float, joint: JointSamples) -> float | Array:
    """The reference's standard deviations: E c = radius / 2, shared equally by the coordinates.

    No wider than the support: beyond that the reference is uniform, and moves cost no more.
    """
    sigma = cost.default_sigma(radius, joint)
    width = joint.width
    if width is None or not np.any((width > 0) & (width < sigma)):
        return sigma
    return one_if_equal(np.minimum(sigma, np.where(width > 0, width, np.inf)))


def gradient_size(loss: FlatLoss, joint: JointSamples, cost: BoundCost, x: Array) -> float:
    """Root mean square over the samples of |grad_xi f(x, xi_k)|, in the dual norm of the cost.

    In the Euclidean norm for costs without one, as their small moves are measured.
    """
    every = -(-joint.size // GRADIENT_SAMPLES)
    size = cost.dual_norms if cost.knows("dual_norms") else np.linalg.norm
    squares = []
    some = slice(None, None, every)
    for row in joint.matrix[some]:
        slope = loss(x, row[None])[1].in_data(np.ones(1))[0]
        squares.append(float(size(slope)) ** 2)
    return float(np.sqrt(joint.shares_of(some).total(np.array(squares))))


def default_epsilon(margin: float, cost: BoundCost) -> float:
    """epsilon = kappa margin / (2 d): F then keeps a fixed fraction of what the adversary gains."""
    free = max(1, cost.dimension - int(cost.frozen.sum()))
    return float(KAPPA * margin / (2 * free))


def typical_dual(gradient: float, radius: float, cost: BoundCost, joint: JointSamples) -> float:
    """The multiplier that a loss linear in the data would have."""
    return cost.typical_price(max(gradient, 1e-12), radius, joint)


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
    mean = integration.joint.shares.total
    dispersion, mean_cost = (float(mean(np.array(part))) for part in (spreads, costs))
    bound = dispersion / (2 * mean_cost) if mean_cost > 0 else 0.0
    return DualScale(bound, dispersion, mean_cost)
