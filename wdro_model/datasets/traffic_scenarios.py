"""The network of Sioux Falls, and distributions of congestion to train and to test on.

The scenarios of Villuendas, Besançon and Malick around a nominal instance (t0, alpha, beta):
    time_a = m_a t0_a with m_a uniform on time_range, for each arc,
    alpha normal around alpha - mu_alpha with variance sigma^2, given alpha > 0,
    beta uniform on an interval of width B around beta - mu_beta.
Network and capacities are fixed. Training scenarios are optimistic (mu_alpha, mu_beta > 0), shifted
ones pessimistic. Where these have less capacity, k c instead of c with k < 1, alpha is multiplied
by k^-beta, which is the same:  alpha (x / (k c))^beta = (alpha k^-beta) (x / c)^beta.

Sioux Falls: L. J. LeBlanc, E. K. Morlok and W. P. Pierskalla, "An efficient approach to solving the
road network equilibrium traffic assignment problem", Transportation Research 9(5), 1975, 309-318.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import truncnorm

from wdro_model import checks
from wdro_model.display.tables import brief_fields
from wdro_model.traffic.days import check_seed
from wdro_model.traffic.network import Network, check_network
from wdro_model.uncertainty import UncertainParameter
from wdro_model.uncertainty.supports import Box

ROADS = """
    1 2 25900.20064 6   | 1 3 23403.47319 4   | 2 6 4958.180928 5
    3 4 17110.52372 4   | 3 12 23403.47319 4  | 4 5 17782.7941 2
    4 11 4908.82673 6   | 5 6 4947.995469 4   | 5 9 10000 5
    6 8 4898.587646 2   | 7 8 7841.81131 3    | 7 18 23403.47319 2
    8 9 5050.193156 10  | 8 16 5045.822583 5  | 9 10 13915.78842 3
    10 11 10000 5       | 10 15 13512.00155 6 | 10 16 4854.917717 4
    10 17 4993.510694 8 | 11 12 4908.82673 6  | 11 14 4876.508287 4
    12 13 25900.20064 3 | 13 24 5091.256152 4 | 14 15 5127.526119 5
    14 23 4924.790605 4 | 15 19 14564.75315 3 | 15 22 9599.180565 3
    16 17 5229.910063 2 | 16 18 19679.89671 3 | 17 19 4823.950831 2
    18 20 23403.47319 4 | 19 20 5002.607563 4 | 20 21 5059.91234 6
    20 22 5075.697193 5 | 21 22 5229.910063 2 | 21 24 4885.357564 3
    22 23 5000 4        | 23 24 5078.508436 2
"""
"""Both ends of each road, and in each direction its capacity and its free-flow time."""

HUNDREDS_OF_TRIPS = (
    " 0  1  1  5  2  3  5  8  5 13  5  2  5  3  5  5  4  1  3  3  1  4  3  1",
    " 1  0  1  2  1  4  2  4  2  6  2  1  3  1  1  4  2  0  1  1  0  1  0  0",
    " 1  1  0  2  1  3  1  2  1  3  3  2  1  1  1  2  1  0  0  0  0  1  1  0",
    " 5  2  2  0  5  4  4  7  7 12 14  6  6  5  5  8  5  1  2  3  2  4  5  2",
    " 2  1  1  5  0  2  2  5  8 10  5  2  2  1  2  5  2  0  1  1  1  2  1  0",
    " 3  4  3  4  2  0  4  8  4  8  4  2  2  1  2  9  5  1  2  3  1  2  1  1",
    " 5  2  1  4  2  4  0 10  6 19  5  7  4  2  5 14 10  2  4  5  2  5  2  1",
    " 8  4  2  7  5  8 10  0  8 16  8  6  6  4  6 22 14  3  7  9  4  5  3  2",
    " 5  2  1  7  8  4  6  8  0 28 14  6  6  6  9 14  9  2  4  6  3  7  5  2",
    "13  6  3 12 10  8 19 16 28  0 40 20 19 21 40 44 39  7 18 25 12 26 18  8",
    " 5  2  3 15  5  4  5  8 14 39  0 14 10 16 14 14 10  1  4  6  4 11 13  6",
    " 2  1  2  6  2  2  7  6  6 20 14  0 13  7  7  7  6  2  3  4  3  7  7  5",
    " 5  3  1  6  2  2  4  6  6 19 10 13  0  6  7  6  5  1  3  6  6 13  8  8",
    " 3  1  1  5  1  1  2  4  6 21 16  7  6  0 13  7  7  1  3  5  4 12 11  4",
    " 5  1  1  5  2  2  5  6 10 40 14  7  7 13  0 12 15  2  8 11  8 26 10  4",
    " 5  4  2  8  5  9 14 22 14 44 14  7  6  7 12  0 28  5 13 16  6 12  5  3",
    " 4  2  1  5  2  5 10 14  9 39 10  6  5  7 15 28  0  6 17 17  6 17  6  3",
    " 1  0  0  1  0  1  2  3  2  7  2  2  1  1  2  5  6  0  3  4  1  3  1  0",
    " 3  1  0  2  1  2  4  7  4 18  4  3  3  3  8 13 17  3  0 12  4 12  3  1",
    " 3  1  0  3  1  3  5  9  6 25  6  5  6  5 11 16 17  4 12  0 12 24  7  4",
    " 1  0  0  2  1  1  2  4  3 12  4  3  6  4  8  6  6  1  4 12  0 18  7  5",
    " 4  1  1  4  2  2  5  5  7 26 11  7 13 12 26 12 17  3 12 24 18  0 21 11",
    " 3  0  1  5  1  1  2  3  5 18 13  7  8 11 10  5  6  1  3  7  7 21  0  7",
    " 1  0  0  2  0  1  1  2  2  8  6  5  7  4  4  3  3  0  1  4  5 11  7  0",
)
"""The demand from each of the zones 1 to 24 (rows) to each (columns), in hundreds of vehicles."""

POSITIONS = """
    -96.77041974 43.61282792 | -96.71125063 43.60581298 | -96.77430341 43.5729616
    -96.74716843 43.56365362 | -96.73156909 43.56403357 | -96.71164389 43.58758553
    -96.69342281 43.5638436  | -96.71138171 43.56232379 | -96.73124137 43.54859634
    -96.73143801 43.54527088 | -96.74684071 43.54413068 | -96.78013678 43.54394065
    -96.79337655 43.49070718 | -96.75103549 43.52930613 | -96.73150355 43.52940117
    -96.71138171 43.54674361 | -96.71138171 43.54128009 | -96.69407825 43.54674361
    -96.71131617 43.52959125 | -96.71118508 43.5153335  | -96.7309792 43.51048509
    -96.73124137 43.51485818 | -96.75090441 43.51485818 | -96.74920028 43.50316422
"""
"""Longitude and latitude of the nodes, in degrees."""


def sioux_falls() -> Network:
    """The network of Sioux Falls, South Dakota, with 360600 trips between its 24 nodes, all zones.

    Times are hundredths of an hour, flows and capacities vehicles; trips may pass every node.
    Arcs are sorted by (tail, head). On each arc b = 0.15 and power = 4. At the equilibrium
    Beckmann's objective is 4231335.287 (42.31335287 in hours and thousands of vehicles).

    Examples
    --------
    >>> import wdro_model as wdro
    >>> wdro.datasets.sioux_falls()
    Network('Sioux Falls': 24 nodes, 76 arcs, 24 zones, demand 360600)
    """
    roads = np.array(ROADS.replace("|", " ").split(), dtype=np.float64).reshape(-1, 4)
    arcs = np.concatenate([roads, roads[:, [1, 0, 2, 3]]])
    arcs = arcs[np.lexsort((arcs[:, 1], arcs[:, 0]))]
    return Network(
        tails=arcs[:, 0].astype(int) - 1,
        heads=arcs[:, 1].astype(int) - 1,
        capacity=arcs[:, 2],
        free_flow_time=arcs[:, 3],
        b=np.array(0.15),
        power=np.array(4.0),
        demand=100.0 * np.array([row.split() for row in HUNDREDS_OF_TRIPS], dtype=np.float64),
        positions=np.array(POSITIONS.replace("|", " ").split(), dtype=np.float64).reshape(-1, 2),
        name="Sioux Falls",
    )


# ------------------------------------------------------------------ ranges and draws
Range = tuple[float, float]
UNCONGESTED = 1e6
"""The capacity of an arc that does not congest, in multiples of the total demand."""


def _as_range(given: Any, name: str) -> Range:
    """A pair of nonnegative numbers, the lower one first."""
    try:
        low, high = given
    except (TypeError, ValueError):
        raise checks.refuse(name, "two numbers (low, high)", given) from None
    low, high = (checks.number(name, end, low=0) for end in (low, high))
    if low > high:
        raise checks.refuse(name, "(low, high) with low <= high", given)
    return low, high


def _common_value(network: Network, field: str, parameter: str, way_out: str) -> float:
    """The value that b or the power has on all arcs that congest; refuses several values."""
    values = getattr(network, field)[(network.b > 0) & (network.power > 0)]
    if values.size == 0:
        raise ValueError(
            f"scenarios of {parameter} need arcs that congest (b > 0 and power > 0); {network!r} "
            "has none."
        )
    least, most = float(values.min()), float(values.max())
    if least != most:
        raise ValueError(
            f"scenarios of {parameter} need one {field} for all arcs that congest, got {least:g} "
            f"to {most:g} in {network!r}; {way_out}."
        )
    return least


def _with_common_b(network: Network) -> Network:
    """The network with one b on all arcs; an arc that does not congest gets a huge capacity."""
    b = _common_value(check_network(network), "b", "alpha", "write network.normalized(0.15)")
    congests = (network.b > 0) & (network.power > 0)
    if congests.all():
        return network
    constant = network.free_flow_time * (1.0 + np.where(network.power > 0, 0.0, network.b))
    huge = UNCONGESTED * max(1.0, network.total_demand)
    return network.replace(
        free_flow_time=np.where(congests, network.free_flow_time, constant),
        capacity=np.where(congests, network.capacity, huge),
        b=np.full(network.n_arcs, b),
        power=np.where(congests, network.power, np.max(network.power)),
    )


@dataclass(frozen=True)
class TrafficRanges:
    """The ranges of scenarios: time as a multiple of the free-flow time, alpha and beta.

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
            object.__setattr__(self, name, _as_range(getattr(self, name), name))

    @classmethod
    def around(cls, alpha: float, beta: float) -> TrafficRanges:
        """Ranges for training and shifted scenarios of a nominal instance.

        Times from a half to twice the free-flow time, alpha up to ten times, and beta from a
        quarter to seven quarters of the nominal value.
        """
        return cls((0.5, 2.0), (0.0, 10.0 * alpha), (0.25 * beta, 1.75 * beta))


@dataclass(frozen=True, eq=False)
class TrafficDraw:
    """N scenarios: time (N, A), alpha (N,) and beta (N,).

    Examples
    --------
    >>> wdro.datasets.training_scenarios(network).sample(5, seed=0).time.shape
    (5, 76)
    """

    time: np.ndarray
    alpha: np.ndarray
    beta: np.ndarray

    __repr__ = brief_fields

    def as_test(self, time: Any, alpha: Any, beta: Any) -> Mapping[Any, np.ndarray]:
        """The scenarios by parameter, as `compare` and `problem.losses` take them."""
        return {time: self.time, alpha: self.alpha, beta: self.beta}


# ------------------------------------------------------------------ distributions
@dataclass(frozen=True, eq=False)
class TrafficScenarios:
    """A distribution of congestion on a network.

    Parameters
    ----------
    network
        Its b must be the same on all arcs that congest (`network.normalized()`); an arc that does
        not (b = 0 or power = 0) gets a capacity that no flow comes near. Use the attribute
        `network` of the scenarios in a model, not the network given here.
    alpha, alpha_variance
        Mean and variance of the normal distribution that is truncated to the range of alpha.
    beta, beta_width
        The middle and the length of the interval of beta.
    time_range
        The multiples of the free-flow times.
    capacity_factor
        The part of the capacity that is left.
    ranges
        The ranges of scenarios: alpha is truncated to its range, beta and time must fit theirs.

    Examples
    --------
    >>> scenarios = wdro.datasets.training_scenarios(network)
    >>> time, alpha, beta = scenarios.parameters(10, seed=0)
    >>> time.shape, alpha.shape, beta.shape
    ((76,), (), ())
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
        object.__setattr__(self, "network", _with_common_b(self.network))
        for name in ("alpha", "beta", "alpha_variance", "capacity_factor"):
            object.__setattr__(
                self, name, checks.number(name, getattr(self, name), low=0, open=True)
            )
        object.__setattr__(self, "beta_width", checks.number("beta_width", self.beta_width, low=0))
        object.__setattr__(self, "time_range", _as_range(self.time_range, "time_range"))
        if self.ranges is None:
            object.__setattr__(self, "ranges", TrafficRanges.around(self.alpha, self.beta))
        assert self.ranges is not None
        for name, drawn in (("time", self.time_range), ("beta", self.beta_range)):
            allowed = getattr(self.ranges, name)
            if drawn[0] < allowed[0] or drawn[1] > allowed[1]:
                raise ValueError(
                    f"{name} would be drawn from [{drawn[0]:g}, {drawn[1]:g}], which leaves its "
                    f"range [{allowed[0]:g}, {allowed[1]:g}]; shift less, or give wider "
                    "ranges=TrafficRanges(...) to training and shifted scenarios alike."
                )

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
        checks.whole_number("count", count, low=1)
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
        The nominal b, to which the network is normalized first (`network.normalized(alpha)`).
    beta
        The nominal power, for all arcs; the network's own if it has only one.
    mu_alpha, alpha_variance
        In units of alpha, as in the paper: alpha is normal around (1 - mu_alpha) alpha with the
        variance alpha_variance * alpha.
    mu_beta, beta_width
        beta is uniform on beta - mu_beta -+ beta_width/2.

    Examples
    --------
    >>> scenarios = wdro.datasets.training_scenarios(network, mu_beta=1.0)
    >>> tuple(round(end, 2) for end in scenarios.beta_range)          # below the nominal 4
    (2.55, 3.45)
    """
    network = network.normalized(alpha)
    if beta is None:
        power = _common_value(network, "power", "beta", "give one for all of them, such as beta=4")
    else:
        power = checks.number("beta", beta, low=0, open=True)
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
        The increase of the mean of alpha, in units of the nominal alpha.
    beta_shift, time_shift
        The increase of beta and of the multiples of the free-flow times.
    capacity_loss
        The fraction of the capacity that is lost.
    **training
        Other arguments of `training_scenarios`; severity=0 gives the training scenarios.

    Examples
    --------
    >>> scenarios = wdro.datasets.shifted_scenarios(network, severity=1.0)
    >>> tuple(round(end, 2) for end in scenarios.beta_range)          # above the nominal 4
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
