"""Uncertain congestion on a road network: free-flow times, alpha and beta of the BPR formula.

The scenarios of Villuendas, Besançon and Malick around a nominal instance (t0, alpha, beta):
    time_a = m_a t0_a with m_a uniform on time_range, for each arc,
    alpha normal around alpha - mu_alpha with variance sigma^2, given alpha > 0,
    beta uniform on an interval of width B around beta - mu_beta.
Network and capacities are fixed. Training scenarios are optimistic (mu_alpha, mu_beta > 0), shifted
ones pessimistic. Where these have less capacity, k c instead of c with k < 1, alpha is multiplied
by k^-beta, which is the same:  alpha (x / (k c))^beta = (alpha k^-beta) (x / c)^beta.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import truncnorm

from wdro_model.traffic.network import Network
from wdro_model.traffic.uncertain.common_law import common_power, with_common_b
from wdro_model.traffic.uncertain.scenario_checks import (
    Range,
    as_amount,
    as_range,
    as_seed,
    check_count,
    check_within,
)
from wdro_model.traffic.uncertain.traffic_ranges import TrafficDraw, TrafficRanges
from wdro_model.uncertainty import UncertainParameter
from wdro_model.uncertainty.supports import Box


@dataclass(frozen=True, eq=False)
class TrafficScenarios:
    """A distribution of congestion on a network.

    Parameters
    ----------
    network
        Its b must be the same on all arcs that congest (`network.normalized()`); an arc that
        does not (b = 0 or power = 0) is given a capacity that no flow comes near. Use the network
        of the scenarios, not the one given here, in a model.
    alpha, alpha_variance
        Of the normal law of alpha before it is restricted to its range.
    beta, beta_width
        The middle and the length of the interval of beta.
    time_range
        The multiples of the free-flow times.
    capacity_factor
        How much of the capacity is left.
    ranges
        Where scenarios may lie; alpha is drawn within, beta and time must fit.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> scenarios = wdro.datasets.training_scenarios(wdro.datasets.sioux_falls())
    >>> draw = scenarios.sample(10, seed=0)
    >>> draw.time.shape, draw.alpha.shape, draw.beta.shape
    ((10, 76), (10,), (10,))
    """

    network: Network
    alpha: float
    beta: float
    alpha_variance: float
    beta_width: float
    time_range: Range = (0.75, 1.0)
    capacity_factor: float = 1.0
    ranges: TrafficRanges | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "network", with_common_b(self.network))
        for name in ("alpha", "beta", "alpha_variance", "capacity_factor"):
            object.__setattr__(self, name, as_amount(getattr(self, name), name, positive=True))
        object.__setattr__(self, "beta_width", as_amount(self.beta_width, "beta_width"))
        object.__setattr__(self, "time_range", as_range(self.time_range, "time_range"))
        if self.ranges is None:
            object.__setattr__(self, "ranges", TrafficRanges.around(self.alpha, self.beta))
        assert self.ranges is not None
        check_within("time", self.time_range, self.ranges.time)
        check_within("beta", self.beta_range, self.ranges.beta)

    @property
    def beta_range(self) -> Range:
        return self.beta - self.beta_width / 2, self.beta + self.beta_width / 2

    @property
    def supports(self) -> tuple[Box, Box, Box]:
        """Compact supports of time (A,), alpha and beta."""
        assert self.ranges is not None
        least, most = self.ranges.time
        times = self.network.free_flow_time
        return Box(least * times, most * times), Box(*self.ranges.alpha), Box(*self.ranges.beta)

    def sample(self, count: int, seed: int | None = None) -> TrafficDraw:
        """Draw `count` independent scenarios.

        Examples
        --------
        >>> import wdro_model as wdro
        >>> scenarios = wdro.datasets.training_scenarios(wdro.datasets.sioux_falls())
        >>> beta = scenarios.sample(100, seed=0).beta
        >>> low, high = scenarios.beta_range
        >>> bool(((low <= beta) & (beta <= high)).all())
        True
        """
        check_count(count)
        rng = np.random.default_rng(as_seed(seed))
        multiples = rng.uniform(*self.time_range, size=(count, self.network.n_arcs))
        beta = rng.uniform(*self.beta_range, size=count)
        alpha = self._alpha(1.0 - rng.random(count), beta)
        return TrafficDraw(multiples * self.network.free_flow_time, alpha, beta)

    def parameters(
        self, count: int, seed: int | None = None
    ) -> tuple[UncertainParameter, UncertainParameter, UncertainParameter]:
        """The uncertain parameters time, alpha and beta with `count` samples and their supports.

        Examples
        --------
        >>> import cvxpy as cp, wdro_model as wdro
        >>> scenarios = wdro.datasets.training_scenarios(wdro.datasets.sioux_falls())
        >>> network = scenarios.network
        >>> x = cp.Variable(network.n_arcs, nonneg=True)
        >>> time, alpha, beta = scenarios.parameters(10, seed=0)
        >>> loss = wdro.traffic.beckmann(x, network.capacity, time, alpha, beta)
        >>> time.count, time.shape, loss.is_convex()
        (10, (76,), True)
        """
        draw = self.sample(count, seed)
        time, alpha, beta = self.supports
        return (
            UncertainParameter(self.network.n_arcs, "time", samples=draw.time, support=time),
            UncertainParameter((), "alpha", samples=draw.alpha, support=alpha),
            UncertainParameter((), "beta", samples=draw.beta, support=beta),
        )

    def _alpha(self, levels: np.ndarray, beta: np.ndarray) -> np.ndarray:
        """Quantiles of alpha at levels in (0, 1], for the capacity that is left."""
        assert self.ranges is not None
        deviation, stretch = np.sqrt(self.alpha_variance), self.capacity_factor**-beta
        low, high = (
            (end / stretch - self.alpha) / deviation for end in np.array(self.ranges.alpha)
        )
        drawn = truncnorm.ppf(levels, low, high, loc=self.alpha, scale=deviation) * stretch
        least, most = self.ranges.alpha
        return np.clip(drawn, max(least, np.finfo(float).tiny), most)


def training_scenarios(
    network: Network,
    *,
    alpha: float = 0.15,
    beta: float | None = None,
    mu_alpha: float = 0.15,
    mu_beta: float = 1.0,
    alpha_variance: float = 0.3,
    beta_width: float = 0.9,
    time_range: Range = (0.75, 1.0),
    capacity_factor: float = 1.0,
    ranges: TrafficRanges | None = None,
) -> TrafficScenarios:
    """The training distribution of the paper: more optimistic than the nominal instance.

    Parameters
    ----------
    alpha
        The nominal b; the network is first rewritten so (`network.normalized(alpha)`).
    beta
        The nominal power, for all arcs; the network's own if it has only one.
    mu_alpha, alpha_variance
        In units of alpha, as in the paper: alpha is normal around
        (1 - mu_alpha) alpha with the variance alpha_variance * alpha.
    mu_beta, beta_width
        beta is uniform on beta - mu_beta -+ beta_width/2.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> scenarios = wdro.datasets.training_scenarios(wdro.datasets.sioux_falls(), mu_beta=1.0)
    >>> tuple(round(end, 2) for end in scenarios.beta_range)          # below the nominal 4
    (2.55, 3.45)
    """
    network = network.normalized(alpha)
    power = common_power(network) if beta is None else as_amount(beta, "beta", positive=True)
    return TrafficScenarios(
        network.replace(power=np.where(network.power > 0, power, 0.0)),
        alpha=(1.0 - mu_alpha) * alpha,
        beta=power - mu_beta,
        alpha_variance=alpha_variance * alpha,
        beta_width=beta_width,
        time_range=time_range,
        capacity_factor=capacity_factor,
        ranges=TrafficRanges.around(alpha, power) if ranges is None else ranges,
    )


def shifted_scenarios(
    network: Network,
    *,
    severity: float = 1.0,
    alpha_shift: float = 1.0,
    beta_shift: float = 2.0,
    time_shift: float = 0.25,
    capacity_loss: float = 0.05,
    mu_alpha: float = 0.15,
    mu_beta: float = 1.0,
    time_range: Range = (0.75, 1.0),
    capacity_factor: float = 1.0,
    **training: Any,
) -> TrafficScenarios:
    """A distribution to test on: the training one, moved by `severity` times the shifts.

    Parameters
    ----------
    alpha_shift
        Up, in units of the nominal alpha.
    beta_shift
        Up, so that 2 is two units above the training scenarios.
    time_shift
        Of the multiples of the free-flow times.
    capacity_loss
        The fraction of the capacity that is lost.
    **training
        And all else as for the training scenarios; severity=0 gives these.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> scenarios = wdro.datasets.shifted_scenarios(wdro.datasets.sioux_falls(), severity=1.0)
    >>> tuple(round(end, 2) for end in scenarios.beta_range)          # above it
    (4.55, 5.45)
    """
    amount = as_amount(severity, "severity")
    low, high = time_range
    return training_scenarios(
        network,
        mu_alpha=mu_alpha - amount * alpha_shift,
        mu_beta=mu_beta - amount * beta_shift,
        time_range=(low + amount * time_shift, high + amount * time_shift),
        capacity_factor=capacity_factor * (1.0 - amount * capacity_loss),
        **training,
    )
