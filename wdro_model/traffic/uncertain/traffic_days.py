"""Days on a network: weather that slows all links, incidents on some, the level of demand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wdro_model.display.factual import brief_fields
from wdro_model.traffic.demand_matrix import as_numbers
from wdro_model.traffic.network import Network
from wdro_model.traffic.uncertain.scenario_checks import as_amount, as_seed, check_count

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class DayDraw:
    """N days; made by `TrafficDays.sample`.

    `UncertainNetwork(network, **days.conditions())` takes them as scenarios.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> network = wdro.datasets.sioux_falls()
    >>> days = wdro.traffic.TrafficDays(network).sample(10, seed=0)
    >>> uncertain = wdro.traffic.UncertainNetwork(network, **days.conditions())
    >>> uncertain.count
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
        """The arguments of `UncertainNetwork` and of its `as_test` and `networks`.

        Examples
        --------
        >>> import wdro_model as wdro
        >>> days = wdro.traffic.TrafficDays(wdro.datasets.sioux_falls()).sample(10, seed=0)
        >>> sorted(days.conditions())
        ['capacity', 'demand_level', 'free_flow_time']
        """
        return {
            "capacity": self.capacity,
            "free_flow_time": self.free_flow_time,
            "demand_level": self.demand_level,
        }


@dataclass(frozen=True, eq=False)
class TrafficDays:
    """A law of days: each has its weather, incidents on some links, and a level of demand.

    Parameters
    ----------
    bad_weather
        The probability of a day with bad weather.
    weather_capacity, weather_time
        What is left of the capacities, and what the free-flow times are multiplied by, then. By
        default 0.85 and 1.1, the order of what heavy rain does.
    incident
        The probability of an incident on a link on a day, one number or (A,).
    incident_capacity
        What is left of the capacity of such a link.
    demand_deviation
        The standard deviation of the logarithm of the demand's level, whose median is 1.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> network = wdro.datasets.sioux_falls()
    >>> law = wdro.traffic.TrafficDays(network, incident=0.05, incident_capacity=0.4)
    >>> days = law.sample(100, seed=0)
    >>> days.capacity.shape, bool((days.capacity <= network.capacity).all())
    ((100, 76), True)
    """

    network: Network
    bad_weather: float = 0.2
    weather_capacity: float = 0.85
    weather_time: float = 1.1
    incident: Any = 0.02
    incident_capacity: float = 0.5
    demand_deviation: float = 0.1

    def __post_init__(self) -> None:
        if not isinstance(self.network, Network):
            raise ValueError(
                f"expected a wdro_model.traffic.Network, got {type(self.network).__name__}."
            )
        object.__setattr__(self, "incident", as_numbers(self.incident, "incident"))
        if self.incident.shape not in ((), (self.network.n_arcs,)):
            raise ValueError(
                f"incident must be a probability, or one for each of the {self.network.n_arcs} "
                f"links, got shape {self.incident.shape}."
            )
        for name in ("bad_weather", "incident"):
            values = as_numbers(getattr(self, name), name)
            if not ((values >= 0) & (values <= 1)).all():
                raise ValueError(f"{name} must be a probability from 0 to 1, got {values}.")
        for name in ("weather_capacity", "weather_time", "incident_capacity"):
            as_amount(getattr(self, name), name, positive=True)
        as_amount(self.demand_deviation, "demand_deviation")

    def sample(self, count: int, seed: int | None = None) -> DayDraw:
        """Draw `count` independent days.

        Examples
        --------
        >>> import wdro_model as wdro
        >>> days = wdro.traffic.TrafficDays(wdro.datasets.sioux_falls()).sample(5, seed=0)
        >>> days.demand_level.shape
        (5,)
        """
        check_count(count)
        rng = np.random.default_rng(as_seed(seed))
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
