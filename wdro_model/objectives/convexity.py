"""Convexity of quadratic objectives, where CVXPY's rules do not see it."""

from __future__ import annotations

import numpy as np

from wdro_model.loss.flat import FlatLoss
from wdro_model.objectives.base import Array

LARGEST = 1500
"""Eigenvalues are computed up to this many variables."""


def smallest_eigenvalue(matrix: Array) -> float:
    """Of the symmetric part of a square matrix."""
    return float(np.linalg.eigvalsh((matrix + matrix.T) / 2)[0])


def hessian_of_quadratic(loss: FlatLoss, scenario: Array) -> Array:
    """The Hessian of x -> f(x, scenario), f quadratic in x: differences of gradients are exact."""
    size, one = loss.dimension, np.ones(1)
    origin = loss(np.zeros(size), scenario[None])[1](one)
    rows = [loss(unit, scenario[None])[1](one) - origin for unit in np.eye(size)]
    return np.array(rows)


def is_positive_semidefinite(matrix: Array, tolerance: float = 1e-9) -> bool:
    """Up to a tolerance relative to the largest entry."""
    scale = max(1e-300, float(np.abs(matrix).max(initial=0.0)))
    return smallest_eigenvalue(matrix) >= -tolerance * scale * len(matrix)
