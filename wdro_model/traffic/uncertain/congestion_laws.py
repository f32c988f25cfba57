"""Uncertain congestion: distributions of free-flow times, alpha and beta of the BPR formula.

The scenarios of Villuendas, Besançon and Malick around a nominal instance (t0, alpha, beta):
    time_a = m_a t0_a with m_a uniform on time_range, for each arc,
    alpha normal around alpha - mu_alpha with variance sigma^2, given alpha > 0,
    beta uniform on an interval of width B around beta - mu_beta.
Network and capacities are fixed. Training scenarios are optimistic (mu_alpha, mu_beta > 0), shifted
ones pessimistic. Where these have less capacity, k c instead of c with k < 1, alpha is multiplied
by k^-beta, which is the same:  alpha (x / (k c))^beta = (alpha k^-beta) (x / c)^beta.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import truncnorm

from wdro_model import checks
from wdro_model.display.tables import brief_fields
from wdro_model.traffic.network import Network, check_network
from wdro_model.traffic.uncertain.days import check_count, check_seed
from wdro_model.uncertainty import UncertainParameter
from wdro_model.uncertainty.supports import Box

Range = tuple[float, float]
FREE = 1e6
"""An arc that does not congest is given this many times the total demand as capacity."""


def as_range(given: Any, name: str) -> Range:
    """A pair of nonnegative numbers, the lower one first."""
    try:
        low, high = given
    except (TypeError, ValueError):
        raise checks.refuse(name, "two numbers (low, high)", given) from None
    low, high = (checks.number(name, end, low=0) for end in (low, high))
    if low > high:
        raise checks.refuse(name, "(low, high) with low <= high", given)
    return low, high


def check_within(name: str, inner: Range, outer: Range) -> None:
    """Refuse a range of scenarios that leaves its support."""
    if inner[0] < outer[0] or inner[1] > outer[1]:
        raise ValueError(
            f"{name} would be drawn from [{inner[0]:g}, {inner[1]:g}], which leaves its range "
            f"[{outer[0]:g}, {outer[1]:g}]; shift less, or give wider ranges=TrafficRanges(...) to "
            "training and shifted scenarios alike."
        )


def with_common_b(network: Any) -> Network:
    """The network with one b on all arcs; those that do not congest get a capacity beyond reach.

    Refuses networks whose arcs have different b > 0.
    """
    check_network(network)
    congests = congests_at(network)
    b = common_value(network, network.b[congests], "alpha", "b", "write network.normalized(0.15)")
    if congests.all():
        return network
    constant = network.free_flow_time * (1.0 + np.where(network.power > 0, 0.0, network.b))
    beyond = FREE * max(1.0, network.total_demand)
    return network.replace(
        free_flow_time=np.where(congests, network.free_flow_time, constant),
        capacity=np.where(congests, network.capacity, beyond),
        b=np.full(network.n_arcs, b),
        power=np.where(congests, network.power, np.max(network.power)),
    )


def common_power(network: Network) -> float:
    """The power of all arcs that congest; refuses networks where they have different ones."""
    powers = network.power[congests_at(network)]
    return common_value(
        network, powers, "beta", "power", "give one for all of them, such as beta=4"
    )


def congests_at(network: Network) -> np.ndarray:
    return (network.b > 0) & (network.power > 0)


def common_value(
    network: Network, values: np.ndarray, what: str, field: str, way_out: str
) -> float:
    if values.size == 0:
        raise ValueError(
            f"scenarios of {what} need arcs that congest (b > 0 and power > 0); {network!r} has "
            "none."
        )
    least, most = float(values.min()), float(values.max())
    if least != most:
        raise ValueError(
            f"scenarios of {what} need one {field} for all arcs that congest, got {least:g} to "
            f"{most:g} in {network!r}; {way_out}."
        )
    return least


# ------------------------------
# Where scenarios of congestion may lie, and scenarios that were drawn


@dataclass(frozen=True)
class TrafficRanges:
    """Where scenarios may lie: time as a multiple of the free-flow time, alpha and beta.

    Examples
    --------
    >>> room = wdro.datasets.TrafficRanges(time=(0.5, 1.5), alpha=(0.0, 0.5), beta=(2.0, 6.0))
    >>> wdro.datasets.training_scenarios(network, ranges=room).ranges == room
    True
    """

    time: Range
    alpha: Range
    beta: Range

    def __post_init__(self) -> None:
        for name in ("time", "alpha", "beta"):
            object.__setattr__(self, name, as_range(getattr(self, name), name))

    @classmethod
    def around(cls, alpha: float, beta: float) -> TrafficRanges:
        """Room for training and shifted scenarios of a nominal instance.

        Times from a half to twice the free-flow time, alpha up to ten times, and beta from a
        quarter to seven quarters of the nominal value.
        """
        return cls((0.5, 2.0), (0.0, 10.0 * alpha), (0.25 * beta, 1.75 * beta))


@dataclass(frozen=True, eq=False)
class TrafficDraw:
    """N scenarios: time (N, A), alpha (N,) and beta (N,).

    Examples
    --------
    >>> draw = wdro.datasets.training_scenarios(wdro.datasets.sioux_falls()).sample(5, seed=0)
    >>> draw.time.shape
    (5, 76)
    """

    time: np.ndarray
    alpha: np.ndarray
    beta: np.ndarray

    __repr__ = brief_fields

    def as_test(self, time: Any, alpha: Any, beta: Any) -> Mapping[Any, np.ndarray]:
        """The scenarios by parameter, as `compare` and `problem.losses` take them."""
        return {time: self.time, alpha: self.alpha, beta: self.beta}


# ------------------------------
# Uncertain congestion on a road network: free-flow times, alpha and beta of the BPR formula


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
            object.__setattr__(
                self, name, checks.number(name, getattr(self, name), low=0, open=True)
            )
        object.__setattr__(self, "beta_width", checks.number("beta_width", self.beta_width, low=0))
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
        """Draw `count` independent scenarios."""
        check_count(count)
        rng = np.random.default_rng(check_seed(seed))
        multiples = rng.uniform(*self.time_range, size=(count, self.network.n_arcs))
        beta = rng.uniform(*self.beta_range, size=count)
        alpha = self._alpha(1.0 - rng.random(count), beta)
        return TrafficDraw(multiples * self.network.free_flow_time, alpha, beta)

    def parameters(
        self, count: int, seed: int | None = None
    ) -> tuple[UncertainParameter, UncertainParameter, UncertainParameter]:
        """The uncertain parameters time, alpha and beta with `count` samples and their supports."""
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
    >>> scenarios = wdro.datasets.training_scenarios(wdro.datasets.sioux_falls(), mu_beta=1.0)
    >>> tuple(round(end, 2) for end in scenarios.beta_range)          # below the nominal 4
    (2.55, 3.45)
    """
    network = network.normalized(alpha)
    power = common_power(network) if beta is None else checks.number("beta", beta, low=0, open=True)
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
    >>> scenarios = wdro.datasets.shifted_scenarios(wdro.datasets.sioux_falls(), severity=1.0)
    >>> tuple(round(end, 2) for end in scenarios.beta_range)          # above it
    (4.55, 5.45)
    """
    amount = checks.number("severity", severity, low=0)
    low, high = time_range
    return training_scenarios(
        network,
        mu_alpha=mu_alpha - amount * alpha_shift,
        mu_beta=mu_beta - amount * beta_shift,
        time_range=(low + amount * time_shift, high + amount * time_shift),
        capacity_factor=capacity_factor * (1.0 - amount * capacity_loss),
        **training,
    )
