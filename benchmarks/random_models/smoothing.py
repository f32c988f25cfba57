"""Smoothed objectives by closed forms and quadrature.

    F(l) = l r + eps * sum_k p_k log E exp((f(z) - l c(xi_k, z)) / eps),

z ~ N(xi_k, sigma^2 I) on the support. For squared costs and pieces a_j + <b_j, z> on R^d or a box,
each piece alone is a product of (truncated) Gaussian integrals. A maximum of J pieces lies between
the largest of these integrals and their sum: F is known within eps log J, and exactly on a line and
for two pieces on R^d. Other losses are integrated over at most two numbers by panels of
Gauss-Legendre nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_ndtr, logsumexp

from random_models.trial import NoReferenceError


def log_interval(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """log(Phi(high) - Phi(low)), in both tails; -inf where the interval is empty."""
    low, high = np.broadcast_arrays(np.asarray(low, float), np.asarray(high, float))
    mirrored = low > 0
    left, right = np.where(mirrored, -high, low), np.where(mirrored, -low, high)
    with np.errstate(divide="ignore", invalid="ignore"):
        upper = log_ndtr(right)
        value = upper + np.log(-np.expm1(np.minimum(log_ndtr(left) - upper, 0.0)))
    return np.where(right > left, value, -np.inf)


@dataclass(frozen=True)
class Smoothing:
    """The numbers of a smoothed objective with the cost |xi - z|^2, on a box or on R^d."""

    samples: np.ndarray
    probabilities: np.ndarray
    radius: float
    epsilon: float
    sigma: float
    low: np.ndarray
    high: np.ndarray

    @property
    def is_free(self) -> bool:
        """Is the support all of R^d?"""
        return bool(np.all(np.isinf(self.low)) and np.all(np.isinf(self.high)))

    def log_pieces(self, a: np.ndarray, b: np.ndarray, price: float) -> np.ndarray:
        """log E exp((a_j + <b_j, z> - price c) / eps) for samples k and pieces j, (N, J)."""
        v = 1.0 / (2 * price / self.epsilon + 1 / self.sigma**2)
        m = v * b / self.epsilon
        xi = self.samples[:, None, :]
        value = (a + self.samples @ b.T) / self.epsilon
        value = value + np.sum(m**2 / (2 * v) + 0.5 * np.log(v / self.sigma**2), axis=1)
        if not self.is_free:
            root = np.sqrt(v)
            inside = log_interval((self.low - xi - m) / root, (self.high - xi - m) / root)
            total = log_interval((self.low - xi) / self.sigma, (self.high - xi) / self.sigma)
            value = value + np.sum(inside - total, axis=2)
        return value

    def bracket(self, a: np.ndarray, b: np.ndarray, price: float) -> tuple[float, float]:
        """A lower and an upper bound of F at a price; equal where it is known."""
        logs = self.log_pieces(a, b, price)
        if len(a) > 1 and self.samples.shape[1] == 1:
            exact = self.log_on_a_line(a, b, price)
            low = high = exact
        elif len(a) == 2 and self.is_free:
            low = high = self.log_of_two(a, b, price, logs)
        else:
            low, high = logs.max(axis=1), logsumexp(logs, axis=1)
        fixed = price * self.radius
        p = self.probabilities
        return (
            float(fixed + self.epsilon * p @ low),
            float(fixed + self.epsilon * p @ high),
        )

    def log_of_two(
        self, a: np.ndarray, b: np.ndarray, price: float, logs: np.ndarray
    ) -> np.ndarray:
        """log E exp(max of two pieces) on R^d: each piece on its own half-space."""
        v = 1.0 / (2 * price / self.epsilon + 1 / self.sigma**2)
        parts = []
        for j in (0, 1):
            i = 1 - j
            centre = self.samples + v * b[j] / self.epsilon
            margin = a[j] - a[i] + centre @ (b[j] - b[i])
            spread = np.sqrt(v) * np.linalg.norm(b[j] - b[i])
            if spread == 0:
                share = np.where(margin > 0, 0.0, np.where(margin < 0, -np.inf, np.log(0.5)))
            else:
                share = log_ndtr(margin / spread)
            parts.append(logs[:, j] + share)
        return logsumexp(parts, axis=0)

    def log_on_a_line(self, a: np.ndarray, b: np.ndarray, price: float) -> np.ndarray:
        """log E exp(max of pieces) on a line: each piece where it is the largest."""
        v = 1.0 / (2 * price / self.epsilon + 1 / self.sigma**2)
        root, slopes = np.sqrt(v), b[:, 0]
        xi = self.samples[:, 0]
        order = np.lexsort((a, slopes))
        keep = [
            j
            for k, j in enumerate(order)
            if k + 1 == len(order) or slopes[order[k + 1]] > slopes[j]
        ]
        parts = []
        for j in keep:
            low, high = float(self.low[0]), float(self.high[0])
            for i in keep:
                if slopes[i] < slopes[j]:
                    low = max(low, (a[i] - a[j]) / (slopes[j] - slopes[i]))
                elif slopes[i] > slopes[j]:
                    high = min(high, (a[j] - a[i]) / (slopes[i] - slopes[j]))
            if low >= high:
                continue
            m = v * slopes[j] / self.epsilon
            whole = (a[j] + slopes[j] * xi) / self.epsilon + m**2 / (2 * v)
            whole = whole + 0.5 * np.log(v / self.sigma**2)
            parts.append(whole + log_interval((low - xi - m) / root, (high - xi - m) / root))
        total = log_interval((self.low[0] - xi) / self.sigma, (self.high[0] - xi) / self.sigma)
        return logsumexp(parts, axis=0) - total

    def least_bracket(self, a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
        """Bounds of min over the price of F."""
        first = max(float(np.linalg.norm(b, axis=1).max()), 1e-9) / np.sqrt(self.radius)
        return tuple(
            least_over_price(lambda price, side=side: self.bracket(a, b, price)[side], first)
            for side in (0, 1)
        )


def least_over_price(value: Callable[[float], float], first: float) -> float:
    """The minimum of a convex function of a price >= 0; `first` is its order of magnitude."""
    top = first
    for _ in range(200):
        if value(top) >= value(top / 2):
            break
        top *= 2
    else:
        raise NoReferenceError("the price has no end")
    best = value(0.0)
    low, high = 0.0, top
    for _ in range(2):
        found = minimize_scalar(
            value, bounds=(low, high), method="bounded", options={"xatol": 1e-5 * (high - low)}
        )
        best = min(best, float(found.fun))
        low, high = max(0.0, found.x - 1e-3 * top), found.x + 1e-3 * top
    return best


def least_over_threshold(value: Callable[[float], float], low: float, high: float) -> float:
    """The minimum of a convex function of a threshold between two numbers."""
    found = minimize_scalar(
        value, bounds=(low, high), method="bounded", options={"xatol": 1e-6 * (high - low)}
    )
    return float(found.fun)


NODES, NODE_WEIGHTS = np.polynomial.legendre.leggauss(6)
DROP = 45.0
"""exp(-DROP) is the part of the largest integrand that is left out."""


def panels(low: float, high: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights on equal panels, with finer ones at both ends."""
    ends = np.geomspace(1e-5, 1.0, 8, endpoint=False) / count
    shares = np.sort(np.concatenate([np.linspace(0.0, 1.0, count + 1), ends, 1.0 - ends]))
    edges = low + (high - low) * shares
    half = np.diff(edges) / 2
    nodes = (edges[:-1, None] + half[:, None] * (1 + NODES)).ravel()
    return nodes, (half[:, None] * NODE_WEIGHTS).ravel()


def log_integral(
    log_value: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray
) -> float:
    """log of the integral of exp(log_value) over a box in one or two dimensions."""
    d = len(low)
    scan, fine = (4001, 1000) if d == 1 else (201, 60)
    for _ in range(2):
        axes = [np.linspace(low[i], high[i], scan) for i in range(d)]
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
        logs = log_value(grid.reshape(-1, d)).reshape(grid.shape[:-1])
        above = logs > logs.max() - DROP
        for i in range(d):
            other = tuple(j for j in range(d) if j != i)
            hit = np.flatnonzero(above.any(axis=other))
            step = axes[i][1] - axes[i][0]
            low = low.copy()
            high = high.copy()
            low[i] = max(low[i], axes[i][hit[0]] - step)
            high[i] = min(high[i], axes[i][hit[-1]] + step)
    rules = [panels(low[i], high[i], fine) for i in range(d)]
    grid = np.stack(np.meshgrid(*(r[0] for r in rules), indexing="ij"), axis=-1).reshape(-1, d)
    weights = rules[0][1] if d == 1 else np.outer(rules[0][1], rules[1][1]).ravel()
    return float(logsumexp(log_value(grid), b=weights))


Loss = Callable[[np.ndarray], np.ndarray]
Distance = Callable[[np.ndarray, np.ndarray], np.ndarray]


def value_by_quadrature(
    loss: Loss, cost: Distance, smoothing: Smoothing, steepest: float, price: float
) -> float:
    """F at a price, for any loss and cost of one or two numbers.

    `steepest` bounds the slope of the loss: the integrand is negligible beyond sigma^2 times it
    over epsilon, and ten standard deviations.
    """
    s = smoothing
    reach = s.sigma * (10 + s.sigma * steepest / s.epsilon)
    total = price * s.radius
    for k, xi in enumerate(s.samples):
        low, high = np.maximum(s.low, xi - reach), np.minimum(s.high, xi + reach)

        def log_value(z: np.ndarray, xi: np.ndarray = xi) -> np.ndarray:
            reference = -np.sum((z - xi) ** 2, axis=1) / (2 * s.sigma**2)
            reference -= len(xi) * np.log(s.sigma * np.sqrt(2 * np.pi))
            return reference + (loss(z) - price * cost(xi, z)) / s.epsilon

        inside = log_interval((s.low - xi) / s.sigma, (s.high - xi) / s.sigma).sum()
        one = log_integral(log_value, low, high) - inside
        total += s.probabilities[k] * s.epsilon * one
    return total


def smoothed_by_quadrature(
    loss: Loss, cost: Distance, smoothing: Smoothing, steepest: float, price_scale: float
) -> float:
    """Minimise F over the price, for any loss and cost of one or two numbers."""
    return least_over_price(
        lambda price: value_by_quadrature(loss, cost, smoothing, steepest, price), price_scale
    )
