"""Guesses of the dual variable before anything is known of it."""

from __future__ import annotations

import numpy as np

from wdro_model.loss.batched import FlatLoss
from wdro_model.objectives.integration.importance.frame import Frame
from wdro_model.solvers.objective import Array
from wdro_model.uncertainty.costs import BoundCost


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
    squares = (frame.pulled(raw) ** 2 / weights).sum(axis=1)
    size = float(np.sqrt(frame.joint.shares_of(samples).total(squares)))
    return cost.typical_price(size, radius, frame.joint)
