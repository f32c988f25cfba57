"""The dual norm of a ground cost, and the moves that attain it.

For c = |delta|^2 or c = |delta| in some norm, the dual norm of a slope b is the largest <b, delta>
over |delta| <= 1. Coordinates of infinite weight do not move, and do not count.
"""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
from scipy.linalg import solve_triangular

from wdro_model.uncertainty.costs import BoundCost

Array = np.ndarray


def moving(cost: BoundCost) -> Array:
    """The coordinates that may move, as indices."""
    return np.flatnonzero(~cost.frozen)


def scales(cost: BoundCost) -> Array:
    """s with |delta| = |s * delta| in the plain norm, (d,); infinite for frozen coordinates."""
    if cost.weights is None:
        return np.ones(cost.dimension)
    return cost.weights if cost.kind == "norm" else np.sqrt(cost.weights)


def conjugate_exponent(cost: BoundCost) -> float:
    """q with 1/p + 1/q = 1."""
    p = 2.0 if cost.kind != "norm" or cost.p is None else cost.p
    if p == 1.0:
        return np.inf
    return 1.0 if np.isinf(p) else p / (p - 1.0)


def whitened(cost: BoundCost, slope: Any) -> Any:
    """The moving part of a slope (d,) in coordinates where the norm is the plain one (CVXPY)."""
    if cost.kind == "mahalanobis":
        assert cost.matrix is not None
        factor = np.linalg.cholesky(np.linalg.inv(cost.matrix))
        return factor.T @ slope
    keep = moving(cost)
    if len(keep) < cost.dimension:
        slope = slope[keep] if len(keep) else cp.Constant(np.zeros(1))
    if cost.weights is None or not len(keep):
        return slope
    return cp.multiply(1.0 / scales(cost)[keep], slope)


def dual_norm(cost: BoundCost, slope: Any) -> Any:
    """|slope| in the dual norm of the cost, as a CVXPY expression."""
    return cp.norm(whitened(cost, slope), conjugate_exponent(cost))


def whitened_numbers(cost: BoundCost, slopes: Array) -> Array:
    """The rows of slopes (..., d) in coordinates where the norm is the plain one."""
    if cost.kind == "mahalanobis":
        assert cost.matrix is not None
        factor = np.linalg.cholesky(cost.matrix)
        flat = np.reshape(slopes, (-1, cost.dimension))
        return solve_triangular(factor, flat.T, lower=True).T.reshape(slopes.shape)
    return slopes / scales(cost)


def dual_norms(cost: BoundCost, slopes: Array) -> Array:
    """The dual norm of each row of slopes (..., d)."""
    plain = np.abs(whitened_numbers(cost, slopes))
    return np.linalg.norm(plain, ord=conjugate_exponent(cost), axis=-1)


def steepest_move(cost: BoundCost, slope: Array) -> Array:
    """delta of unit norm with <slope, delta> = |slope|_dual; zero for a slope without effect."""
    size = float(dual_norms(cost, slope))
    if size == 0:
        return np.zeros_like(slope)
    if cost.kind == "mahalanobis":
        assert cost.matrix is not None
        return np.linalg.solve(cost.matrix, slope) / size
    plain, q = slope / scales(cost), conjugate_exponent(cost)
    if np.isinf(q):
        move = np.zeros_like(plain)
        largest = int(np.argmax(np.abs(plain)))
        move[largest] = np.sign(plain[largest])
    else:
        move = np.sign(plain) * (np.abs(plain) / size) ** (q - 1.0)
        move[cost.frozen] = 0.0
    return move / scales(cost)


def largest_gains(cost: BoundCost, slopes: Array, radius: float, width: Array | None) -> Array:
    """What the budget can add along slopes (..., d), within a box of some width (d,)."""
    budget = radius if cost.kind == "norm" else np.sqrt(radius)
    gains = budget * dual_norms(cost, slopes)
    if width is None:
        return gains
    with np.errstate(invalid="ignore"):
        across = np.where(slopes == 0, 0.0, np.abs(slopes) * width).sum(axis=-1)
    return np.minimum(gains, across)
