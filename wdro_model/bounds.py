"""The constants of the paper's theorems as functions.

Villuendas, Besançon and Malick, "First-Order Methods for Wasserstein Distributionally Robust
Constrained Optimization". Notation: |f| = sup |f(x, xi)| over decisions and scenarios, rho the
radius, a ground cost with mu_c |xi - zeta|^2 <= c(xi, zeta) <= L_c |xi - zeta|^2, a reference
N(xi_k, sigma^2 I) on R^d, N samples, batches of b samples and S draws for each.

Exponentials of |f|/epsilon overflow for the values that are used in practice; functions named
`log_...` return natural logarithms and do not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from wdro_model import checks

__all__ = [
    "Estimator",
    "convergence_bound",
    "convergence_constant",
    "decision_variance",
    "dual_bound",
    "dual_variance",
    "erm_bound",
    "erm_shift_bound",
    "full_variance",
    "gaussian_dual_bound",
    "log_convergence_constant",
    "log_decision_variance",
    "log_dual_variance",
    "log_full_variance",
]
__dir__ = __all__.copy  # what the tab key offers


def dual_bound(loss_bound: float, radius: float, mean_cost: float) -> float:
    """lambda_max = 2 |f| / (rho - m_c): optimal dual variables lie in [0, lambda_max].

    Parameters
    ----------
    mean_cost
        m_c = max_k E c(xi_k, zeta) over the reference zeta ~ N(xi_k, sigma^2 I).

    Examples
    --------
    >>> wdro.bounds.dual_bound(loss_bound=10.0, radius=2.0, mean_cost=1.0)
    20.0
    """
    _nonnegative(loss_bound=loss_bound, radius=radius, mean_cost=mean_cost)
    if not radius > mean_cost:
        raise ValueError(
            f"the dual bound needs a radius above the mean transport cost of the reference, "
            f"got radius={radius:g} and mean_cost={mean_cost:g}; lower sigma or raise the radius."
        )
    return 2.0 * loss_bound / (radius - mean_cost)


def gaussian_dual_bound(
    loss_bound: float, radius: float, sigma: float, dimension: int, cost_upper: float = 1.0
) -> float:
    """lambda_max = 2 |f| / (rho - L_c sigma^2 d), since m_c <= L_c sigma^2 d.

    Parameters
    ----------
    cost_upper
        L_c; 1 for the squared Euclidean cost.

    Examples
    --------
    >>> wdro.bounds.gaussian_dual_bound(loss_bound=10.0, radius=2.0, sigma=0.5, dimension=4)
    20.0
    """
    _nonnegative(loss_bound=loss_bound, radius=radius)
    _positive(sigma=sigma, cost_upper=cost_upper)
    _count(dimension=dimension)
    mean_cost = cost_upper * sigma**2 * dimension
    if not radius > mean_cost:
        largest = math.sqrt(radius / (cost_upper * dimension))
        raise ValueError(
            f"the dual bound needs radius > L_c sigma^2 d, got radius={radius:g} and L_c sigma^2 d "
            f"= {mean_cost:g}; take sigma < {largest:.3g}, or raise the radius."
        )
    return dual_bound(loss_bound, radius, mean_cost)


@dataclass(frozen=True)
class Estimator:
    """The gradient estimator of the smoothed objective from b samples with S draws each.

    Examples
    --------
    >>> estimator = wdro.bounds.Estimator(1.0, 0.5, 0.1, 4, size=100, batch_size=10, draws=10)
    >>> round(estimator.log_variance(dual=2.0, log_square=0.0), 2)
    4.79
    """

    loss_bound: float
    """|f|."""
    epsilon: float
    sigma: float
    dimension: int
    """d, of the data."""
    size: int
    """N."""
    batch_size: int
    """b."""
    draws: int
    """S."""
    cost_lower: float = 1.0
    """mu_c."""
    cost_upper: float = 1.0
    """L_c."""

    def __post_init__(self) -> None:
        _nonnegative(loss_bound=self.loss_bound)
        _positive(epsilon=self.epsilon, sigma=self.sigma)
        _positive(cost_lower=self.cost_lower, cost_upper=self.cost_upper)
        _count(dimension=self.dimension, size=self.size)
        _count(batch_size=self.batch_size, draws=self.draws)
        if self.cost_lower > self.cost_upper:
            raise ValueError(
                f"cost_lower must be at most cost_upper, got {self.cost_lower:g} and "
                f"{self.cost_upper:g}."
            )
        if self.batch_size > self.size:
            raise ValueError(
                f"batch_size={self.batch_size} is larger than the {self.size} samples; batches "
                f"are drawn without replacement: take at most {self.size}."
            )

    def log_variance(self, dual: float, log_square: float) -> float:
        """The logarithm of the variance bound; with log_square = log C^2 the bound is

        4 C^2/(b S) exp(4|f|/eps) (1 + 4 l mu_c sigma^2/eps)^(-d/2) (1 + 2 l L_c sigma^2/eps)^d
        + (N - b)/(b (N - 1)) C^2:    the noise of the draws and that of the batch.
        """
        _nonnegative(dual=dual)
        rate = dual * self.sigma**2 / self.epsilon
        weights = (
            4.0 * self.loss_bound / self.epsilon
            - 0.5 * self.dimension * math.log1p(4.0 * rate * self.cost_lower)
            + self.dimension * math.log1p(2.0 * rate * self.cost_upper)
        )
        sampling = math.log(4.0 / (self.batch_size * self.draws)) + weights
        left_out = self.size - self.batch_size
        batch = -math.inf
        if left_out:
            batch = math.log(left_out / (self.batch_size * (self.size - 1)))
        return log_square + float(np.logaddexp(sampling, batch))


def decision_variance(estimator: Estimator, dual: float, gradient_bound: float) -> float:
    """The variance bound of the estimate of the gradient in x (see `Estimator.log_variance`).

    It holds up to a constant that depends on no parameter; infinite where it overflows.

    Parameters
    ----------
    gradient_bound
        C >= |grad_x f|.

    Examples
    --------
    >>> estimator = wdro.bounds.Estimator(1.0, 0.5, 0.1, 4, size=100, batch_size=10, draws=10)
    >>> round(wdro.bounds.decision_variance(estimator, dual=2.0, gradient_bound=1.0), 1)
    120.6
    """
    return _exp(log_decision_variance(estimator, dual, gradient_bound))


def log_decision_variance(estimator: Estimator, dual: float, gradient_bound: float) -> float:
    """The logarithm of `decision_variance`.

    Examples
    --------
    >>> paper = wdro.bounds.Estimator(1.0, 1e-4, 0.01, 100, size=100, batch_size=10, draws=10)
    >>> round(wdro.bounds.log_decision_variance(paper, dual=2.0, gradient_bound=1.0))
    40048
    """
    return _log_variance(estimator, dual, gradient_bound=gradient_bound)


def dual_variance(estimator: Estimator, dual: float, cost_bound: float) -> float:
    """The variance bound of the estimate of the derivative in the dual: C replaced by C_c.

    Parameters
    ----------
    cost_bound
        C_c = sup c(xi, zeta) over the support.

    Examples
    --------
    >>> estimator = wdro.bounds.Estimator(1.0, 0.5, 0.1, 4, size=100, batch_size=10, draws=10)
    >>> round(wdro.bounds.dual_variance(estimator, dual=2.0, cost_bound=3.0), 1)
    1085.8
    """
    return _exp(log_dual_variance(estimator, dual, cost_bound))


def log_dual_variance(estimator: Estimator, dual: float, cost_bound: float) -> float:
    """The logarithm of `dual_variance`.

    Examples
    --------
    >>> estimator = wdro.bounds.Estimator(1.0, 0.5, 0.1, 4, size=100, batch_size=10, draws=10)
    >>> round(wdro.bounds.log_dual_variance(estimator, dual=2.0, cost_bound=3.0), 2)
    6.99
    """
    return _log_variance(estimator, dual, cost_bound=cost_bound)


def full_variance(
    estimator: Estimator, dual: float, gradient_bound: float, cost_bound: float
) -> float:
    """The variance bound of the whole estimate, V_max at dual = lambda_max: C^2 + C_c^2 for C^2.

    Examples
    --------
    >>> estimator = wdro.bounds.Estimator(1.0, 0.5, 0.1, 4, size=100, batch_size=10, draws=10)
    >>> round(wdro.bounds.full_variance(estimator, dual=2.0, gradient_bound=1.0, cost_bound=3.0))
    1206
    """
    return _exp(log_full_variance(estimator, dual, gradient_bound, cost_bound))


def log_full_variance(
    estimator: Estimator, dual: float, gradient_bound: float, cost_bound: float
) -> float:
    """The logarithm of `full_variance`.

    Examples
    --------
    >>> estimator = wdro.bounds.Estimator(1.0, 0.5, 0.1, 4, size=100, batch_size=10, draws=10)
    >>> round(wdro.bounds.log_full_variance(estimator, 2.0, gradient_bound=1.0, cost_bound=3.0), 2)
    7.1
    """
    return _log_variance(estimator, dual, gradient_bound=gradient_bound, cost_bound=cost_bound)


def convergence_constant(
    initial_gap: float,
    initial_gradient: float,
    smoothness: float,
    diameter: float,
    log_variance: float,
) -> float:
    """Q_corr of the momentum method; infinite where it overflows.

    Q = max(9^(1/3) (F_0 - F*), L_F D/2 + 2 D max(3 |grad F_0|, sqrt(16 V_max + 2 L_F^2 D^2)))

    Parameters
    ----------
    initial_gap, initial_gradient
        F_0 - F* and |grad F(x_0, l_0)|.
    smoothness
        L_F, the Lipschitz constant of the gradient.
    diameter
        D, the diameter of X x [0, lambda_max].
    log_variance
        The logarithm of V_max, from `log_full_variance` at lambda_max.

    Examples
    --------
    >>> round(wdro.bounds.convergence_constant(1.0, 2.0, 1.0, diameter=2.0, log_variance=3.0), 1)
    73.6
    """
    given = (initial_gap, initial_gradient, smoothness, diameter, log_variance)
    return _exp(log_convergence_constant(*given))


def log_convergence_constant(
    initial_gap: float,
    initial_gradient: float,
    smoothness: float,
    diameter: float,
    log_variance: float,
) -> float:
    """The logarithm of `convergence_constant`.

    Examples
    --------
    >>> round(wdro.bounds.log_convergence_constant(1.0, 2.0, 1.0, 2.0, log_variance=40_000.0))
    20003
    """
    _nonnegative(initial_gap=initial_gap, initial_gradient=initial_gradient)
    _nonnegative(smoothness=smoothness, diameter=diameter)
    if math.isnan(log_variance):
        raise ValueError("log_variance must be a number, got nan.")
    curvature = _log(smoothness) + _log(diameter)
    noise = 0.5 * float(np.logaddexp(math.log(16) + log_variance, math.log(2) + 2 * curvature))
    drift = max(math.log(3) + _log(initial_gradient), noise)
    steady = float(np.logaddexp(curvature - math.log(2), math.log(2) + _log(diameter) + drift))
    return max(math.log(9) / 3 + _log(initial_gap), steady)


def convergence_bound(constant: float, iteration: int) -> float:
    """E F(x_t, l_t) - F* <= Q / (t + 9)^(1/3), with Q from `convergence_constant`.

    Examples
    --------
    >>> round(wdro.bounds.convergence_bound(73.0, iteration=10**6), 2)
    0.73
    """
    if not constant >= 0:
        raise ValueError(f"constant must be a nonnegative number, got {constant!r}.")
    _count(least=0, iteration=iteration)
    return constant / (iteration + 9) ** (1 / 3)


def erm_bound(
    loss_bound: float, size: int, decisions: int, confidence: float, tolerance: float = 0.0
) -> float:
    """F(x_ERM) - F* <= 2 |f| sqrt(2 log(2 |X| / alpha) / N) + delta, with probability 1 - alpha.

    For a finite set of decisions and i.i.d. samples.

    Parameters
    ----------
    decisions
        |X|, an integer of any size.
    confidence
        1 - alpha.
    tolerance
        delta, how far x_ERM is from the least empirical risk.

    Examples
    --------
    >>> round(wdro.bounds.erm_bound(loss_bound=1.0, size=1000, decisions=2**20, confidence=0.95), 2)
    0.37
    """
    _nonnegative(loss_bound=loss_bound, tolerance=tolerance)
    _count(size=size, decisions=decisions)
    checks.number("confidence", confidence, low=0, high=1, open=True, hint="such as 0.95")
    log_ratio = math.log(2) + math.log(decisions) - math.log1p(-float(confidence))
    return 2.0 * loss_bound * math.sqrt(2.0 * log_ratio / size) + tolerance


def erm_shift_bound(
    loss_bound: float,
    size: int,
    decisions: int,
    confidence: float,
    radius: float,
    lipschitz: float,
    cost_lower: float = 1.0,
) -> float:
    """The excess risk of x_ERM under any Q with W_c(P, Q) <= rho, with probability 1 - alpha:

    F_Q(x_ERM) - min F_Q <= 2 |f| sqrt(2 log(2 |X| / alpha) / N) + 2 L_f sqrt(rho / mu_c).

    Parameters
    ----------
    lipschitz
        L_f, the Lipschitz constant of f in the data (Euclidean norm).
    cost_lower
        mu_c.

    Examples
    --------
    >>> round(wdro.bounds.erm_shift_bound(1.0, 1000, 2**20, 0.95, radius=0.01, lipschitz=1.0), 2)
    0.57
    """
    _nonnegative(radius=radius, lipschitz=lipschitz)
    _positive(cost_lower=cost_lower)
    sampling = erm_bound(loss_bound, size, decisions, confidence)
    return sampling + 2.0 * lipschitz * math.sqrt(radius / cost_lower)


# ------------------------------------------------------------------ parts
def _log_variance(estimator: Estimator, dual: float, **bounds: float) -> float:
    """The logarithm of the variance bound with C^2 the sum of the squared bounds."""
    _nonnegative(**bounds)
    log_squares = [2 * _log(bound) for bound in bounds.values()]
    return estimator.log_variance(dual, float(np.logaddexp.reduce(log_squares)))


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _exp(value: float) -> float:
    """exp, infinite where it overflows."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _nonnegative(**values: float) -> None:
    for name, value in values.items():
        checks.number(name, value, low=0)


def _positive(**values: float) -> None:
    for name, value in values.items():
        checks.number(name, value, low=0, open=True)


def _count(least: int = 1, **values: int) -> None:
    for name, value in values.items():
        checks.whole_number(name, value, low=least)
