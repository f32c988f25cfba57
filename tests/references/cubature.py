"""F at a fixed decision by adaptive cubature in log space, minimised over the dual in a bracket.

An independent reference in one or two dimensions: nothing of the library is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp

NODES, WEIGHTS = np.polynomial.legendre.leggauss(10)
DEPTH = 44
ACCURACY = {1: 1e-9, 2: 1e-7}


@dataclass(frozen=True)
class Reference:
    """The smoothed objective at one decision, as a function of the dual alone."""

    loss: Callable[[np.ndarray], np.ndarray]
    cost: Callable[[np.ndarray], np.ndarray]
    """Of moves (B, d)."""
    samples: np.ndarray
    epsilon: float
    sigma: float
    radius: float
    lower: float = -np.inf
    upper: float = np.inf

    def at(self, dual: float) -> tuple[float, float]:
        """F and the mean transport cost."""
        found = np.array([self._one(row, dual) for row in self.samples])
        value, cost = found.mean(axis=0)
        return float(dual * self.radius + value), float(cost)

    def minimum(self) -> tuple[float, float]:
        """min_l F and where it is: the root of the transport cost, in log l."""

        def excess(log_dual: float) -> float:
            return float(np.log(max(self.at(np.exp(log_dual))[1], 1e-300) / self.radius))

        low = high = 0.0
        while excess(high) > 0:
            low, high = high, high + 3.0
        while excess(low) < 0:
            low, high = low - 3.0, low
            if low < -21:  # the radius does not bind
                return self.at(float(np.exp(low)))[0], 0.0
        dual = float(np.exp(brentq(excess, low, high, xtol=1e-7, rtol=1e-12)))
        return self.at(dual)[0], dual

    def _one(self, row: np.ndarray, dual: float) -> tuple[float, float]:
        """phi_k and the mean cost, of one sample."""

        def exponent(moves: np.ndarray) -> np.ndarray:
            tilt = (self.loss(row + moves) - dual * self.cost(moves)) / self.epsilon
            return tilt - 0.5 * (moves**2).sum(axis=1) / self.sigma**2

        def reference(moves: np.ndarray) -> np.ndarray:
            return -0.5 * (moves**2).sum(axis=1) / self.sigma**2

        reach = 10.0 * self.sigma
        while True:
            low, high = np.maximum(self.lower - row, -reach), np.minimum(self.upper - row, reach)
            bounded = (
                np.isclose(low, self.lower - row).all() and np.isclose(high, self.upper - row).all()
            )
            if bounded or _ends_before(exponent, low, high, self.lower - row, self.upper - row):
                break
            reach *= 1.7
        total, cost = integrate(exponent, low, high, self.cost)
        mass = integrate(reference, low, high, self.cost)[0]
        return self.epsilon * (total - mass), cost


def _ends_before(exponent, low, high, floor, ceiling) -> bool:
    """Has the density vanished at those sides of a box that are not sides of the support?"""
    d = len(low)
    axes = [np.linspace(a, b, 401 if d == 1 else 101) for a, b in zip(low, high)]
    points = np.stack([m.ravel() for m in np.meshgrid(*axes, indexing="ij")], axis=1)
    values = exponent(points)
    edge = ((points == low) & (low > floor)) | ((points == high) & (high < ceiling))
    edge = edge.any(axis=1)
    return not edge.any() or values[edge].max() < values.max() - 40


def integrate(exponent, low, high, cost) -> tuple[float, float]:
    """log of the integral of exp(exponent) over a box, and the mean of the cost under it."""
    d = len(low)
    count = 24 if d == 1 else 12
    # An uneven number of cells around the sample, where costs have kinks.
    edges = [
        np.unique(np.concatenate([np.linspace(a, min(0.0, b), count), np.linspace(0.0, b, count)]))
        for a, b in zip(low, high)
    ]
    starts = np.stack([m.ravel() for m in np.meshgrid(*(e[:-1] for e in edges), indexing="ij")], 1)
    sizes = np.stack(
        [m.ravel() for m in np.meshgrid(*(np.diff(e) for e in edges), indexing="ij")], 1
    )
    mesh = np.meshgrid(*([0.5 * (NODES + 1)] * d), indexing="ij")
    unit = np.stack([m.ravel() for m in mesh], axis=1)
    weight = np.ones(1)
    for _ in range(d):
        weight = np.outer(weight, WEIGHTS / 2).ravel()
    children = np.stack(
        [m.ravel() for m in np.meshgrid(*([np.array([0.0, 0.5])] * d), indexing="ij")], axis=1
    )

    def cells(starts, sizes):
        points = starts[:, None] + sizes[:, None] * unit
        flat = points.reshape(-1, d)
        values = exponent(flat).reshape(len(starts), -1)
        logs = values + np.log(weight) + np.log(sizes).sum(axis=1)[:, None]
        whole = logsumexp(logs, axis=1)
        with np.errstate(invalid="ignore"):
            shares = np.exp(logs - np.where(np.isfinite(whole), whole, 0.0)[:, None])
        means = (shares * cost(flat).reshape(shares.shape)).sum(axis=1)
        return whole, means

    logs, means = cells(starts, sizes)
    done_logs, done_means = [np.full(1, -np.inf)], [np.zeros(1)]
    for _ in range(DEPTH):
        if not len(starts):
            break
        new_starts = (starts[:, None] + sizes[:, None] * children).reshape(-1, d)
        new_sizes = np.repeat(sizes / 2, len(children), axis=0)
        finer, finer_means = cells(new_starts, new_sizes)
        sums = logsumexp(finer.reshape(-1, len(children)), axis=1)
        total = logsumexp(np.concatenate([*done_logs, finer]))
        error = np.abs(np.exp(sums - total) - np.exp(np.minimum(logs - total, 50.0)))
        # What is narrower than the distance of the nodes may hide: look at neighbours in height.
        split = error > ACCURACY[d] / 10
        keep = np.repeat(~split, len(children))
        done_logs.append(finer[keep])
        done_means.append(finer_means[keep])
        starts, sizes, logs, means = (a[~keep] for a in (new_starts, new_sizes, finer, finer_means))
    done_logs.append(logs)
    done_means.append(means)
    every, mean = np.concatenate(done_logs), np.concatenate(done_means)
    total = logsumexp(every)
    return float(total), float(np.exp(every - total) @ mean)
