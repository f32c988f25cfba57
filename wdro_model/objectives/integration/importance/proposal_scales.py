"""Guesses of the dual variable before anything is known of it."""

from __future__ import annotations

import numpy as np

from wdro_model.loss.batched import FlatLoss
from wdro_model.objectives.integration.importance.frame import Frame
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.joint import JointSamples

LOOKED_AT = 32
"""Samples that a guess is made from."""


def some_samples(joint: JointSamples, most: int = LOOKED_AT) -> Array:
    """Up to so many samples, evenly spread over all."""
    return np.unique(np.linspace(0, joint.size - 1, most).astype(int))


def typical_dual(
    loss: FlatLoss,
    x: Array,
    frame: Frame,
    cost: BoundCost,
    *,
    radius: float | None,
    epsilon: float,
) -> float:
    """Where the dual variable may be at a decision, from the slopes at some samples."""
    budget = radius or typical_radius(frame)
    found = affine_dual(loss, x, some_samples(frame.joint), frame, cost, budget)
    return max(found, 1e-6 * epsilon / budget, 1e-300)


def typical_radius(frame: Frame) -> float:
    """The radius for which the reference of a frame has its default spread."""
    if frame.weights is not None:
        return max(float(2 * frame.weights @ frame.spread), 1e-300)
    return max(float(np.sqrt(2 * frame.spread.sum())), 1e-300)


def affine_dual(
    loss: FlatLoss, x: Array, samples: Array, frame: Frame, cost: BoundCost, radius: float
) -> float:
    """The dual variable of a loss with the slopes G of this one at some samples, were it affine.

    G / (2 sqrt(radius)) for a quadratic cost, G for a norm.
    """
    raw = loss(x, frame.joint.matrix[samples])[1].in_data(np.ones(len(samples)))
    weights = np.ones(frame.dimension) if frame.weights is None else frame.weights
    size = float(np.sqrt((frame.pulled(raw) ** 2 / weights).sum(axis=1).mean()))
    return cost.typical_price(size, radius, frame.joint)
