"""The worst-case risk of a decision by brute force: the best moves by search, price by price.

Nothing here knows formulas of the library: losses and costs are the NumPy ones of `exact_cases`,
the best scenario of every sample is searched for from many starts, and the price of transport is
found by a search on the line. Small data of two coordinates only.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize_scalar

from tests.references.exact_cases import BOX, TRIANGLE, Case, cost_of

BLOCKS, KEPT, FAR = 6, 8, 1e9
STENCIL = np.stack([a.ravel() for a in np.meshgrid(*[np.linspace(-1, 1, 5)] * 2)], axis=1)


def inequalities(support: str) -> tuple[np.ndarray, np.ndarray]:
    """C and h with the support {C z <= h}."""
    if support == "triangle":
        return np.array(TRIANGLE.A), np.array(TRIANGLE.b)
    if support == "box":
        lower, upper = BOX.bounds((2,))
        return np.vstack([np.eye(2), -np.eye(2)]), np.concatenate([upper, -lower])
    return np.zeros((0, 2)), np.zeros(0)


def pulled(origins: np.ndarray, points: np.ndarray, support: str) -> np.ndarray:
    """Points outside of the support, moved back towards a sample until they are inside."""
    matrix, limits = inequalities(support)
    if not len(limits):
        return points
    delta = points - origins
    used, slack = delta @ matrix.T, limits - origins @ matrix.T
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(used > slack, slack / used, 1.0)
    return origins + share.min(axis=-1, keepdims=True) * delta


def best_moves(some: Case, support: str, price: float, reach: float) -> np.ndarray:
    """sup_zeta f(zeta) - price c(xi_k, zeta) for each sample, (N,)."""
    size = len(some.rows)

    def gains(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        origins = some.rows.reshape(size, *(1,) * (points.ndim - 2), 2)
        points = pulled(np.broadcast_to(origins, points.shape), points, support)
        return some.losses(points) - price * cost_of(some.cost, points - origins), points

    side = np.linspace(-reach, reach, 10 * BLOCKS)
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(BLOCKS, 10, BLOCKS, 10, 2)
    grid = grid.transpose(0, 2, 1, 3, 4).reshape(1, BLOCKS**2, 100, 2)
    points = some.rows[:, None, None] + grid
    found, points = gains(points)
    best = found.argmax(axis=2)[..., None]
    centers = np.take_along_axis(points, best[..., None], axis=2)[:, :, 0]
    centers = np.concatenate([centers, some.rows[:, None]], axis=1)
    width = side[1] - side[0]
    for step in range(100):
        found, points = gains(centers[:, :, None] + width * STENCIL)
        best = found.argmax(axis=2)[..., None]
        centers = np.take_along_axis(points, best[..., None], axis=2)[:, :, 0]
        tops = np.take_along_axis(found, best, axis=2)[..., 0]
        if step == 15:
            kept = np.argsort(-tops, axis=1)[:, :KEPT]
            centers = np.take_along_axis(centers, kept[..., None], axis=1)
        width *= 0.8
    return tops.max(axis=1)


def worst_risk(some: Case, support: str, bracket: tuple[float, float]) -> float:
    """min over prices of price * radius + mean_k of the adversary's best moves."""
    reach = 12.0 if support == "plane" else 5.0

    def dual(log_price: float) -> float:
        price = float(np.exp(log_price))
        return price * some.model.radius + best_moves(some, support, price, reach).mean()

    found = minimize_scalar(dual, bounds=np.log(bracket), method="bounded", options={"xatol": 1e-8})
    return float(min(found.fun, dual(np.log(bracket[0]))))


def steepest_rate(some: Case) -> float:
    """The largest slope of the loss far away for a unit of cost, over all directions."""
    angles, width = np.linspace(0, 2 * np.pi, 3601), 2 * np.pi / 3600
    for _ in range(8):
        directions = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
        rise = some.losses(FAR * directions) - some.losses(-0.0 * directions)
        rates = rise / cost_of(some.cost, FAR * directions)
        angles = angles[np.argmax(rates)] + width * np.linspace(-1, 1, 41)
        width /= 10
    return float(rates.max())
