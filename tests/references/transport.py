"""The adversary's transport problem on a grid of scenarios, as a linear program."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog


def grid(rows, *, low=-4.0, high=4.0, count=65, far=None):
    """A grid on the square [low, high]^2 through the samples, and far points around them."""
    sides = [np.union1d(np.linspace(low, high, count), column) for column in rows.T]
    points = [np.stack([a.ravel() for a in np.meshgrid(*sides)], axis=1)]
    if far is not None:
        angles = np.linspace(0, 2 * np.pi, 181)
        circle = far * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        points += [row + circle for row in rows]
    return np.concatenate(points)


def largest_expectation(losses, costs, radius):
    """max sum_kj p_kj losses_kj s.t. sum_j p_kj = 1/N, sum p_kj costs_kj <= radius.

    losses, costs: (N, M), infinite costs for moves that are not allowed. A lower bound on the
    worst-case risk, which it meets as the grid is refined.
    """
    size, count = costs.shape
    allowed = np.isfinite(costs)
    owner = np.repeat(np.arange(size), count)[allowed.ravel()]
    marginals = sp.csr_array(
        (np.ones(len(owner)), (owner, np.arange(len(owner)))), shape=(size, len(owner))
    )
    result = linprog(
        -losses[allowed],
        A_ub=costs[allowed][None],
        b_ub=[radius],
        A_eq=marginals,
        b_eq=np.full(size, 1.0 / size),
    )
    assert result.status == 0, result.message
    return -result.fun
