"""A network with scenarios of capacities, times and level of demand: costs with exact worst cases.

With the exponent fixed, a link of capacity c_k and free-flow time t_k that carries d_k x costs

    (t_k + fixed) d_k x + t_k b_k/(p+1) d_k x (d_k x / c_k)^p = time_k x + delay_k q(x),

    q = x (x/c)^p / (p+1),   time_k = (t_k + fixed) d_k,   delay_k = t_k b_k (c/c_k)^p d_k^(p+1),

which is affine in (time, delay): worst cases over a ball of these have an exact counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.traffic.beckmann import congestion
from wdro_model.traffic.fields import NONNEGATIVE, POSITIVE, as_numbers, check_rule
from wdro_model.traffic.network import Network, check_network
from wdro_model.uncertainty import UncertainParameter
from wdro_model.uncertainty.supports import Box, Nonnegative, Support

Array = np.ndarray
LEAST_CAPACITY = 0.01
"""Scenarios of capacity with a median below this part of the network's are taken for factors, and
refused."""


class UncertainNetwork:
    """A network with scenarios of its capacities, free-flow times, b, or its level of demand.

    `beckmann(x)` and `system_cost(x)` are losses that are affine in the data, so that the robust
    problem is solved exactly, however many links are uncertain. The uncertain parameters are
    `delay`, and `time` where it varies; a ball measures how far these move, not how far capacities
    do: `weights="standardize"` puts both in units of their own deviations.

    x is the flow at demand level 1; at level d the network carries d x. The exponents must be
    certain: with uncertain ones losses are not affine, and `beckmann` takes them as a parameter.

    Parameters
    ----------
    capacity
        (N, A) > 0, or (N,) factors for all links.
    free_flow_time
        (N, A) >= 0, or (N,) factors.
    b
        (N, A) >= 0, or (N,) factors.
    demand_level
        (N,) > 0, factors of the demand.

    Examples
    --------
    >>> left = np.random.default_rng(0).uniform(0.7, 1.0, size=(20, network.n_arcs))
    >>> uncertain = wdro.traffic.UncertainNetwork(network, capacity=left * network.capacity)
    >>> x = cp.Variable(network.n_arcs, nonneg=True)
    >>> problem = wdro.Problem(
    ...     cp.Minimize(uncertain.beckmann(x) / 1e5),
    ...     [wdro.In(x, wdro.sets.TrafficFlows(network))],
    ...     ambiguity=wdro.WassersteinBall(1.0, wdro.costs.SquaredEuclidean("standardize")),
    ... )
    >>> value = problem.solve("exact", solver=wdro.solvers.FrankWolfe(gap=1e-3))
    >>> problem.solution.method
    'exact'
    """

    def __init__(
        self,
        network: Network,
        *,
        capacity: Any = None,
        free_flow_time: Any = None,
        b: Any = None,
        demand_level: Any = None,
    ) -> None:
        self.network = check_network(network)
        given = {
            "capacity": capacity,
            "free_flow_time": free_flow_time,
            "b": b,
            "demand_level": demand_level,
        }
        self.varies = tuple(name for name, value in given.items() if value is not None)
        """The names of the uncertain fields."""
        if not self.varies:
            raise ValueError(
                "nothing is uncertain: give scenarios of capacity=, free_flow_time=, b= or "
                "demand_level=."
            )
        self._scenarios = _Conditions.from_arguments(network, given)
        self.count = self._scenarios.count
        """N."""
        time, delay = self._scenarios.coefficients(network)
        self._certain_time = _one_row(time)
        self.delay = UncertainParameter(
            network.n_arcs, "delay", samples=delay, support=_support(delay)
        )
        """(A,) the cost of a link beyond its free-flow time, per unit of q(x)."""
        self.time: UncertainParameter | None = None
        """(A,) the cost of an empty link per unit of flow; None if it is certain."""
        if self._certain_time is None:
            self.time = UncertainParameter(
                network.n_arcs, "time", samples=time, support=_support(time)
            )

    def beckmann(self, x: Any) -> Any:
        """Beckmann's objective, fixed costs included, affine in the uncertain parameters."""
        return self._cost(x, integrated=True)

    def system_cost(self, x: Any) -> Any:
        """Total cost of all drivers, affine in the uncertain parameters."""
        return self._cost(x, integrated=False)

    def as_test(self, **scenarios: Any) -> dict[UncertainParameter, Array]:
        """Other scenarios by parameter, as `problem.losses` takes them.

        Parameters
        ----------
        **scenarios
            Other scenarios of the arguments that were given at construction.
        """
        time, delay = self._read_scenarios(scenarios).coefficients(self.network)
        by_parameter = {self.delay: delay}
        if self.time is not None:
            by_parameter[self.time] = time
        return by_parameter

    def networks(self, **scenarios: Any) -> Iterator[Network]:
        """The network of each scenario.

        Parameters
        ----------
        **scenarios
            As for `as_test`; the scenarios of construction if none are given.
        """
        cases = self._read_scenarios(scenarios) if scenarios else self._scenarios
        return cases.networks(self.network)

    def _read_scenarios(self, scenarios: dict[str, Any]) -> _Conditions:
        if set(scenarios) != set(self.varies):
            raise ValueError(
                f"give scenarios of {', '.join(self.varies)}, which are uncertain here, "
                f"got {', '.join(scenarios) or 'none'}."
            )
        return _Conditions.from_arguments(self.network, scenarios)

    def _cost(self, x: Any, integrated: bool) -> Any:
        network = self.network
        flow = cp.Constant.cast_to_const(x)
        if flow.shape != (network.n_arcs,):
            raise ValueError(
                f"flows must have shape ({network.n_arcs},), one entry per link, got {flow.shape}."
            )
        queue = congestion(flow, network.capacity, network.power, integrated=integrated)
        time = self._certain_time if self.time is None else self.time
        return time @ flow + self.delay @ queue

    def __repr__(self) -> str:
        return (
            f"UncertainNetwork({self.network.name!r}: {self.count} scenarios of "
            f"{', '.join(self.varies)})"
        )


@dataclass(frozen=True, eq=False)
class _Conditions:
    """N scenarios of all fields: capacity, time and b (N, A), level (N,)."""

    capacity: Array
    time: Array
    b: Array
    level: Array

    @property
    def count(self) -> int:
        return len(self.level)

    @classmethod
    def from_arguments(cls, network: Network, given: dict[str, Any]) -> _Conditions:
        read = {
            name: _read_values(network, name, value)
            for name, value in given.items()
            if value is not None
        }
        counts = {name: len(values) for name, values in read.items()}
        if len(set(counts.values())) > 1:
            said = ", ".join(f"{count} of {name}" for name, count in counts.items())
            raise ValueError(f"scenarios must be as many of each, got {said}.")
        count = next(iter(counts.values()))
        certain = {
            field: np.broadcast_to(getattr(network, field), (count, network.n_arcs))
            for field in ("capacity", "free_flow_time", "b")
        }
        return cls(*(certain | {"demand_level": np.ones(count)} | read).values())

    def coefficients(self, network: Network) -> tuple[Array, Array]:
        """time (N, A) and delay (N, A) of the module's formula."""
        level = self.level[:, None]
        with np.errstate(over="ignore"):
            stretch = (network.capacity / self.capacity) ** network.power
            delay = self.time * self.b * stretch * level ** (network.power + 1.0)
        if not np.isfinite(delay).all():
            k, a = map(int, np.argwhere(~np.isfinite(delay))[0])
            tail, head = network.arcs[a]
            raise ValueError(
                f"the capacity {self.capacity[k, a]:g} of link {a} ({tail!r} -> {head!r}) in "
                f"scenario {k} is too small for the power {network.power[a]:g}: its delay "
                "overflows."
            )
        time = (self.time + network.fixed_cost) * level
        if (time < 0).any():
            k, a = map(int, np.argwhere(time < 0)[0])
            raise ValueError(
                f"free-flow time and fixed cost of a link must be >= 0 together, got "
                f"{time[k, a]:g} on link {a} in scenario {k}."
            )
        return time, delay

    def networks(self, network: Network) -> Iterator[Network]:
        for k in range(self.count):
            yield network.replace(
                capacity=self.capacity[k],
                free_flow_time=self.time[k],
                b=self.b[k],
                demand=network.demand * float(self.level[k]),
            )


def _read_values(network: Network, name: str, given: Any) -> Array:
    """Scenarios (N, A) of a field of the links, or (N,) of the level."""
    values = as_numbers(given, name)
    allowed = (1,) if name == "demand_level" else (1, 2)
    fits = (
        values.ndim in allowed
        and len(values)
        and (values.ndim == 1 or values.shape[1] == network.n_arcs)
    )
    if not fits:
        wide = "" if name == "demand_level" else f", or (N, {network.n_arcs})"
        raise ValueError(
            f"scenarios of {name} must have shape (N,), factors{wide}, got {values.shape}."
        )
    hint = "a closed link has a small capacity, not none" if name == "capacity" else ""
    rule = POSITIVE if name in ("capacity", "demand_level") else NONNEGATIVE
    check_rule(f"scenarios of {name}", values, rule, hint=hint)
    if name == "demand_level":
        return values
    nominal = getattr(network, name)
    if values.ndim == 1 and len(values) == network.n_arcs > 1:
        raise ValueError(
            f"{name} of shape {values.shape} may be {network.n_arcs} factors or one scenario of "
            f"all links; write {name}=[values] for the scenario, or factors[:, None] * "
            f"network.{name} for the factors."
        )
    if values.ndim == 2:
        if name == "capacity" and np.median(values / nominal) < LEAST_CAPACITY:
            raise ValueError(
                f"scenarios of capacity (N, {network.n_arcs}) are capacities, and these are a "
                f"{np.median(values / nominal):.1g} of those of the network; multiply factors by "
                "network.capacity."
            )
        return values
    return values[:, None] * nominal


def _one_row(values: Array) -> Array | None:
    """The row that all rows equal; None if they differ."""
    return values[0] if (values == values[0]).all() else None


def _support(samples: Array) -> Support:
    """The nonnegative numbers; 0 alone for an entry that is 0 in all samples."""
    is_zero = (samples == 0).all(axis=0)
    return Box(0.0, np.where(is_zero, 0.0, np.inf)) if is_zero.any() else Nonnegative()
