"""Random models that are affine in some parameters given three numbers or more; F by quadrature.

`python -m tests.references.blocks_of_three` goes through many of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_ndtr, logsumexp

import wdro_model as wdro

NODES = 36


@dataclass
class BlockModel:
    """Prices times functions of states: `slopes(x, states)` is what each price is multiplied by."""

    problem: Any
    x: Any
    slopes: Any
    prices: np.ndarray
    states: np.ndarray
    high: float
    radius: float
    epsilon: float
    sigma: float

    def value(self, x: np.ndarray) -> float:
        """F at a decision: prices in closed form, states by Gauss-Legendre, the dual by search."""
        points, weights = np.polynomial.legendre.leggauss(NODES)
        axis, weights = 0.5 * (points + 1), np.log(0.5 * weights)
        r = self.states.shape[1]
        mesh = np.stack([m.ravel() for m in np.meshgrid(*[axis] * r, indexing="ij")], axis=1)
        volume = sum(m.ravel() for m in np.meshgrid(*[weights] * r, indexing="ij"))
        slopes = self.slopes(x, mesh)
        found = minimize_scalar(
            lambda log: self._at(np.exp(log), mesh, volume, slopes),
            bounds=(-12.0, 12.0),
            method="bounded",
            options={"xatol": 1e-5},
        )
        return float(found.fun)

    def _at(self, dual: float, mesh: Any, volume: Any, slopes: Any) -> float:
        variance, total = 1 / (2 * dual / self.epsilon + self.sigma**-2), 0.0
        scale = np.sqrt(variance)
        for price, state in zip(self.prices, self.states):
            distance = ((mesh - state) ** 2).sum(axis=1)
            reference = volume - 0.5 * distance / self.sigma**2
            tilt = slopes / self.epsilon
            mean = price + variance * tilt
            inner = tilt * price + 0.5 * variance * tilt**2 + np.log(scale / self.sigma)
            inner = inner + log_mass((0.0 - mean) / scale, (self.high - mean) / scale)
            ends = (0.0 - price) / self.sigma, (self.high - price) / self.sigma
            inner = inner - log_mass(*map(np.asarray, ends))
            exponent = inner.sum(axis=1) - dual * distance / self.epsilon
            total += logsumexp(exponent + reference) - logsumexp(reference)
        return dual * self.radius + self.epsilon * total / len(self.prices)


def log_mass(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The log of the normal probability of [low, high], from the nearer tail."""
    turned = low + high > 0
    a, b = np.where(turned, -high, low), np.where(turned, -low, high)
    return log_ndtr(b) + np.log1p(-np.exp(np.minimum(log_ndtr(a) - log_ndtr(b), -1e-300)))


def random_block_model(seed: int) -> BlockModel:
    """The model of a seed."""
    rng = np.random.default_rng([5, seed])
    size, m, high = int(rng.choice([1, 2, 3, 5])), int(rng.choice([1, 2, 4])), 2.0
    prices, states = rng.uniform(0.2, 1.8, (size, m)), rng.uniform(0.1, 0.9, (size, 3))
    price = wdro.UncertainParameter(m, samples=prices, support=wdro.supports.Box(0.0, high))
    state = wdro.UncertainParameter(3, samples=states, support=wdro.supports.Box(0.0, 1.0))
    x, weight = cp.Variable(m), rng.uniform(-0.5, 2.0, (m, 3))
    kind = str(rng.choice(["exponential", "product", "maximum"]))
    if kind == "exponential":
        loss = price @ cp.multiply(x, cp.exp(weight @ state))
        slopes = lambda x, s: x * np.exp(s @ weight.T)  # noqa: E731
    elif kind == "product":
        loss = cp.sum(cp.multiply(price, x)) * (1 + cp.sum_squares(state))
        slopes = lambda x, s: x * (1 + (s**2).sum(axis=1))[:, None]  # noqa: E731
    else:
        loss = price @ cp.multiply(x, cp.maximum(weight @ state, 0.5))
        slopes = lambda x, s: x * np.maximum(s @ weight.T, 0.5)  # noqa: E731
    chosen = rng.dirichlet(np.ones(m)) * m
    constraints = [x == chosen] if rng.random() < 0.5 else [x >= 0.1, cp.sum(x) == m]
    radius = float(10 ** rng.uniform(-1, 0))
    problem = wdro.Problem(cp.Minimize(loss), constraints, wdro.WassersteinBall(radius))
    epsilon, sigma = float(rng.choice([0.2, 0.5])), float(np.sqrt(radius / (2 * (m + 3))))
    return BlockModel(problem, x, slopes, prices, states, high, radius, epsilon, sigma)


def main() -> None:
    import time

    for seed in range(120):
        model = random_block_model(seed)
        began = time.process_time()
        try:
            model.problem.solve("smoothed", epsilon=model.epsilon, sigma=model.sigma, time_limit=10)
        except Exception as error:
            print(seed, type(error).__name__, str(error)[:100], flush=True)
            continue
        began = time.process_time() - began
        found = model.problem.solution
        truth = model.value(model.x.value)
        off = (found.value - truth) / abs(truth)
        error = found.standard_error or 0.0
        wrong = abs(found.value - truth) > 3e-4 * abs(truth) + 4 * error
        print(
            f"{seed}: {found.integration.split(' ')[0]} {found.value:.6g} truth {truth:.6g} "
            f"off {off:.1e} error {error:.1e} gap {found.gap:.1e} {found.status} {began:.1f} s"
            f"{' WRONG' if wrong else ''}",
            flush=True,
        )


if __name__ == "__main__":
    main()
