"""The market of Mohajerin Esfahani and Kuhn (2018), section 7, and true risks in it.

Ten assets, returns xi_i = psi + zeta_i with a factor psi ~ N(0, 2%) that all of them share and
zeta_i ~ N(3% i, 2.5% i) of their own, the second number being a standard deviation. Portfolios are
judged by

    J(x) = E[-xi'x] + 10 CVaR(-xi'x),     CVaR the mean of the worst 20%,

which for normal returns is -11 m + 10 (phi(z) / 20%) s, m and s the mean and the deviation of the
portfolio's return, z the normal quantile of 80%.
"""

from __future__ import annotations

import cvxpy as cp
import numpy as np
from scipy.stats import norm

ASSETS, TAIL, AVERSION = 10, 0.2, 10.0
NUMBERS = np.arange(1, ASSETS + 1)
MEAN = 0.03 * NUMBERS
COVARIANCE = 0.02**2 + np.diag((0.025 * NUMBERS) ** 2)
TAIL_FACTOR = float(norm.pdf(norm.ppf(1 - TAIL)) / TAIL)
"""CVaR of a standard normal loss."""


def returns(rng: np.random.Generator, count: int) -> np.ndarray:
    """Independent years, (count, 10)."""
    shared = rng.normal(0.0, 0.02, size=(count, 1))
    return shared + rng.normal(MEAN, 0.025 * NUMBERS, size=(count, ASSETS))


def risk(x: np.ndarray) -> np.ndarray:
    """J of portfolios (..., 10)."""
    deviation = np.sqrt(np.einsum("...i,ij,...j->...", x, COVARIANCE, x))
    return -(1 + AVERSION) * (x @ MEAN) + AVERSION * TAIL_FACTOR * deviation


def best() -> tuple[float, np.ndarray]:
    """The least J and its portfolio."""
    x = cp.Variable(ASSETS, nonneg=True)
    deviation = cp.norm(np.linalg.cholesky(COVARIANCE).T @ x)
    loss = -(1 + AVERSION) * (MEAN @ x) + AVERSION * TAIL_FACTOR * deviation
    cp.Problem(cp.Minimize(loss), [cp.sum(x) == 1]).solve(solver=cp.CLARABEL)
    return float(loss.value), np.array(x.value)
