"""Days on a network: weather, incidents, observed travel times, and drivers who re-route.

A share of the drivers knows the scenario and settles anew, around those who keep to the plan:

    min { sum_a int_0^{x_a + f_a} t_a : x routes the share's demand },  f = (1 - share) * the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from wdro_model import checks
from wdro_model.display.tables import Column, Tabular, brief_fields
from wdro_model.problem import Problem
from wdro_model.sets import In
from wdro_model.traffic.assignment import biconjugate_solver
from wdro_model.traffic.beckmann import beckmann
from wdro_model.traffic.fields import as_numbers, check_rule, per_arc
from wdro_model.traffic.flows import TrafficFlows
from wdro_model.traffic.network import Network, as_flow, check_network
from wdro_model.uncertainty import UncertainParameter
from wdro_model.uncertainty.supports import Nonnegative

Array = np.ndarray
REROUTING_GAP, MOST_ITERATIONS = 1e-3, 2000
"""The default relative gap of a re-routing, and its most Frank-Wolfe iterations."""
TAIL_SHARE = 0.05
"""The share of the scenarios in the column cvar95."""


def check_seed(seed: Any) -> int | None:
    """A seed of a random generator, or None."""
    return None if seed is None else checks.whole_number("seed", seed, low=0)


# ------------------------------------------------------------------ days
@dataclass(frozen=True, eq=False)
class DayDraw:
    """N days; made by `TrafficDays.sample`.

    Examples
    --------
    >>> days = wdro.traffic.TrafficDays(network).sample(10, seed=0)
    >>> wdro.traffic.UncertainNetwork(network, **days.conditions()).count
    10
    """

    capacity: Array
    """(N, A)."""
    free_flow_time: Array
    """(N, A)."""
    demand_level: Array
    """(N,) factors of the demand."""
    bad_weather: Array
    """(N,) booleans."""
    incidents: Array
    """(N, A) booleans: links with an incident."""

    __repr__ = brief_fields

    def conditions(self) -> dict[str, Array]:
        """The arguments of `UncertainNetwork` and of its `as_test` and `networks`."""
        return {
            "capacity": self.capacity,
            "free_flow_time": self.free_flow_time,
            "demand_level": self.demand_level,
        }


@dataclass(frozen=True, eq=False)
class TrafficDays:
    """A distribution of days, each with its weather, incidents on links, and level of demand.

    Parameters
    ----------
    bad_weather
        The probability of a day with bad weather.
    weather_capacity, weather_time
        Factors of capacities and free-flow times in bad weather; by default 0.85 and 1.1, the order
        of the effect of heavy rain.
    incident
        The probability of an incident on a link on a day, one number or (A,).
    incident_capacity
        The factor of the capacity of such a link.
    demand_deviation
        The standard deviation of the logarithm of the demand's level, whose median is 1.

    Examples
    --------
    >>> days = wdro.traffic.TrafficDays(network, incident=0.05, incident_capacity=0.4)
    >>> days.sample(100, seed=0).capacity.shape
    (100, 76)
    """

    network: Network
    bad_weather: float = 0.2
    weather_capacity: float = 0.85
    weather_time: float = 1.1
    incident: Any = 0.02
    incident_capacity: float = 0.5
    demand_deviation: float = 0.1

    def __post_init__(self) -> None:
        check_network(self.network)
        incident = per_arc(self.incident, "incident", self.network.n_arcs)
        object.__setattr__(self, "incident", incident)
        rule = ("a probability from 0 to 1", lambda v: (v >= 0) & (v <= 1))
        for name in ("bad_weather", "incident"):
            check_rule(name, as_numbers(getattr(self, name), name), rule)
        for name in ("weather_capacity", "weather_time", "incident_capacity"):
            checks.number(name, getattr(self, name), low=0, open=True)
        checks.number("demand_deviation", self.demand_deviation, low=0)

    def sample(self, count: int, seed: int | None = None) -> DayDraw:
        """Draw `count` independent days."""
        checks.whole_number("count", count, low=1)
        rng = np.random.default_rng(check_seed(seed))
        network = self.network
        weather = rng.random(count) < self.bad_weather
        incidents = rng.random((count, network.n_arcs)) < self.incident
        level = np.exp(self.demand_deviation * rng.standard_normal(count))
        left = np.where(weather, self.weather_capacity, 1.0)[:, None]
        left = left * np.where(incidents, self.incident_capacity, 1.0)
        slower = np.where(weather, self.weather_time, 1.0)[:, None]
        return DayDraw(
            left * network.capacity, slower * network.free_flow_time, level, weather, incidents
        )


# ------------------------------------------------------------------ observed times
class ObservedTimes:
    """A series of travel times (T, A): one row for each interval, one column for each link.

    Links are slow together, and stay slow for a while. A draw therefore takes whole rows, which
    keeps the dependence between links, and `block` consecutive rows, which keeps the dependence in
    time (a moving block bootstrap). Rows with a missing entry (NaN) are left out, and counted by
    `missing`; no block reaches over one.

    Parameters
    ----------
    times
        (T, A), or a pandas DataFrame with a column for each link, in the order of the arcs.
    period, within
        Keep only the intervals t with t % period in `within`: period=24 and within=[7, 8] are the
        mornings of hourly data that begin at midnight.
    block
        The length of the blocks that are drawn.

    Examples
    --------
    >>> hours = np.arange(48.0)[:, None]
    >>> mornings = wdro.traffic.ObservedTimes(hours, period=24, within=[7, 8], block=2)
    >>> mornings.times.ravel(), mornings.sample(10, seed=0).shape
    (array([ 7.,  8., 31., 32.]), (10, 1))
    """

    def __init__(
        self, times: Any, *, period: int | None = None, within: Any = None, block: int = 1
    ) -> None:
        series = as_numbers(times, "times")
        if series.ndim != 2 or 0 in series.shape:
            raise ValueError(
                f"times must have shape (T, A), a row for each interval, got {series.shape}."
            )
        rule = ("finite and >= 0", lambda v: ~(np.isinf(v) | (v < 0)))
        check_rule("times", series, rule)
        selected = _selected_intervals(len(series), period, within)
        complete = ~np.isnan(series).any(axis=1)
        self.missing = int(np.sum(selected & ~complete))
        """Rows that were left out because an entry is missing."""
        intervals = np.flatnonzero(selected & complete)
        self.times: Array = series[intervals]
        """(T, A) the complete rows of the selected intervals."""
        self.block = checks.whole_number("block", block, low=1)
        # A block starts where the next `block` rows are consecutive intervals.
        ends = intervals[self.block - 1 :]
        self._starts = np.flatnonzero(ends - intervals[: len(ends)] == self.block - 1)
        if not self._starts.size:
            raise ValueError(
                f"no {self.block} intervals in a row are left of {len(series)} ({self.missing} "
                "have missing entries); choose a shorter block, or other intervals."
            )

    def sample(self, count: int, seed: int | None = None) -> Array:
        """`count` rows (count, A), drawn in blocks."""
        checks.whole_number("count", count, low=1)
        rng = np.random.default_rng(check_seed(seed))
        starts = rng.choice(self._starts, size=-(-count // self.block))
        rows = (starts[:, None] + np.arange(self.block)).ravel()[:count]
        return self.times[rows]

    def parameter(self, name: str = "time") -> UncertainParameter:
        """The uncertain times (A,), with all rows as samples and nonnegative."""
        return UncertainParameter(
            self.times.shape[1], name, samples=self.times, support=Nonnegative()
        )

    def __repr__(self) -> str:
        rows, links = self.times.shape
        return f"ObservedTimes({rows} intervals, {links} links, blocks of {self.block})"


def _selected_intervals(count: int, period: Any, within: Any) -> Array:
    """The intervals t with t % period in `within`, as booleans (T,)."""
    if period is None and within is None:
        return np.ones(count, dtype=bool)
    if period is None or within is None:
        raise ValueError("period and within belong together: period=24, within=[7, 8].")
    checks.whole_number("period", period, low=1)
    hours = np.atleast_1d(np.asarray(within))
    if hours.dtype.kind not in "iu" or ((hours < 0) | (hours >= period)).any():
        raise ValueError(f"within must be whole numbers from 0 to {period - 1}, got {within!r}.")
    return np.isin(np.arange(count) % period, hours)


# ------------------------------------------------------------------ re-routing
COLUMNS = (
    Column("flow", "the plan", word=True),
    Column("share", "of the drivers that re-route", heading="re-routing", form=".0%"),
    Column("mean", "the total cost of all drivers, on average over the scenarios"),
    Column("cvar95", "the mean of the worst 5% of the scenarios"),
    Column("worst", "in the worst scenario"),
)


def reroute(
    network: Network, flow: ArrayLike, share: float = 1.0, *, gap: float = REROUTING_GAP
) -> Array:
    """The flow (A,) after a share of the drivers has chosen new routes on a network.

    The others keep their routes. The flow must route the demand of the network; if the demand has
    another level, multiply the flow first.

    Parameters
    ----------
    share
        From 0, nobody, to 1: then the result is the equilibrium, whatever the flow was.
    gap
        The relative gap, in Beckmann's objective, that is certified.

    Examples
    --------
    >>> flow, _ = wdro.traffic.equilibrium(network, gap=1e-3)
    >>> flooded = network.replace(capacity=0.7 * network.capacity)
    >>> after = wdro.traffic.reroute(flooded, flow, share=0.5)
    >>> flooded.beckmann(after) < flooded.beckmann(flow)
    True
    """
    planned = as_flow(flow, network, one=True)
    share = checks.number("share", share, low=0, high=1)
    if share == 0:
        return planned
    staying = (1.0 - share) * planned
    feasible = TrafficFlows(network.replace(demand=network.demand * share))
    x = cp.Variable(network.n_arcs, name="rerouted")
    loss = beckmann(x + staying, network.capacity, network.free_flow_time, network.b, network.power)
    problem = Problem(cp.Minimize(loss + network.fixed_cost @ x), [In(x, feasible)])
    problem.solve(method="erm", solver=biconjugate_solver(gap, MOST_ITERATIONS), progress=False)
    return np.maximum(x.value, 0.0) + staying


@dataclass(frozen=True, eq=False, repr=False)
class ReroutingTest(Tabular):
    """The costs of plans in scenarios where some drivers re-route; made by `rerouting_test`.

    Examples
    --------
    >>> flow = wdro.traffic.all_or_nothing(network, network.free_flow_time)
    >>> test = wdro.traffic.rerouting_test([network], {"plan": flow}, shares=[0, 1], gap=1e-2)
    >>> test.costs["plan", 0.0] > test.costs["plan", 1.0]
    array([ True])
    """

    costs: dict[tuple[str, float], Array]
    """(N,) the total cost of all drivers in each scenario, by plan and share."""

    @property
    def columns(self) -> Sequence[Column]:
        return COLUMNS

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "flow": name,
                "share": share,
                "mean": float(costs.mean()),
                "cvar95": _tail_mean(costs),
                "worst": float(costs.max()),
            }
            for (name, share), costs in self.costs.items()
        ]

    def _footnotes(self) -> list[str]:
        count = len(next(iter(self.costs.values())))
        return [
            f"{count} scenarios; with all drivers re-routing every plan ends in the equilibrium"
        ]

    def __repr__(self) -> str:
        return f"ReroutingTest({len(self.costs)} plans and shares)"


def rerouting_test(
    networks: Iterable[Network] | Network,
    flows: Mapping[str, ArrayLike],
    shares: Iterable[float] = (0.0, 0.5, 1.0),
    *,
    gap: float = REROUTING_GAP,
) -> ReroutingTest:
    """The costs of planned flows in scenarios where none, some or all of the drivers re-route.

    Parameters
    ----------
    networks
        The network of each scenario, such as `UncertainNetwork.networks(...)`. Flows are scaled to
        its demand.
    flows
        {name: (A,)}, planned for a network with the same pairs of zones.
    shares
        Shares of the drivers that know the scenario and choose new routes.

    Examples
    --------
    >>> uncertain = wdro.traffic.UncertainNetwork(network, capacity=[0.7, 0.9])
    >>> plans = {"empty roads": wdro.traffic.all_or_nothing(network, network.free_flow_time)}
    >>> test = wdro.traffic.rerouting_test(uncertain.networks(), plans, [0.0, 1.0], gap=1e-2)
    >>> test.rows()[0]["mean"] > test.rows()[1]["mean"]
    True
    """
    if not isinstance(flows, Mapping) or not flows:
        raise ValueError(f"flows must be a dict of flows by their names, got {flows!r}.")
    cases = [networks] if isinstance(networks, Network) else list(networks)
    parts = [float(share) for share in shares]
    if not cases:
        raise ValueError("there must be at least one scenario, got none.")
    costs: dict[tuple[str, float], Array] = {}
    equilibria: Array | None = None
    for name, flow in flows.items():
        planned = [_scaled_to_demand(case, flow) for case in cases]
        for share in parts:
            # With all drivers re-routing every plan ends in the equilibrium.
            spent = equilibria if share == 1.0 else None
            if spent is None:
                after = [reroute(case, x, share, gap=gap) for case, x in zip(cases, planned)]
                spent = np.array([case.total_cost(x) for case, x in zip(cases, after)])
            if share == 1.0:
                equilibria = spent
            costs[str(name), share] = spent
    return ReroutingTest(costs)


def _scaled_to_demand(network: Network, flow: ArrayLike) -> Array:
    """The flow scaled to the demand of a network, by what leaves its zones."""
    x = as_flow(flow, network, one=True)
    trips = TrafficFlows(network).trips
    n = network.n_nodes
    leaving = np.bincount(network.tails, x, n) - np.bincount(network.heads, x, n)
    wanted = np.zeros(n)
    np.add.at(wanted, trips.origins, trips.leaving)
    np.subtract.at(wanted, trips.destinations, trips.quantities)
    if not leaving.any():
        return x
    level = float(wanted @ leaving) / float(leaving @ leaving)
    if np.abs(level * leaving - wanted).max() > 1e-3 * max(1.0, float(np.abs(wanted).max())):
        raise ValueError(
            f"a flow does not route the demand of {network!r}, at any level; plan it for the same "
            "pairs of zones."
        )
    return level * x


def _tail_mean(costs: Array) -> float:
    """The mean of the worst 5%, with the scenario at the border counted in part."""
    ordered = np.sort(costs)[::-1]
    weights = np.clip(TAIL_SHARE * len(ordered) - np.arange(len(ordered)), 0.0, 1.0)
    return float(weights / weights.sum() @ ordered)
