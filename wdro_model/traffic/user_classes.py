"""Several classes of users on one network, each with its own value of time and charges.

Class k sees time + charge_k / value_of_time_k on a link. With y_k its flow in passenger cars (pce_k
vehicles' worth each) and v = sum_k y_k the volume that congests, the equilibrium minimises

    sum_a int_0^{v_a} t_a  +  sum_k <charge_k / value_of_time_k, y_k>,

which is convex: costs differ between classes by what does not depend on the flow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import cvxpy as cp
import numpy as np

from wdro_model import checks
from wdro_model.display.tables import Column, Tabular
from wdro_model.problem import Problem
from wdro_model.sets import In
from wdro_model.solve.certify import Solution
from wdro_model.solve.options import SolveOptions
from wdro_model.solvers import Solver
from wdro_model.traffic.assignment import biconjugate_solver
from wdro_model.traffic.beckmann import beckmann
from wdro_model.traffic.fields import FINITE, as_demand, check_rule, per_arc
from wdro_model.traffic.flows import TrafficFlows
from wdro_model.traffic.network import Network

Array = np.ndarray
CLASS_GAP = 1e-4
"""The relative gap that is certified by default."""


@dataclass(frozen=True, eq=False)
class UserClass:
    """Users who value their time alike and pay the same charges.

    Examples
    --------
    >>> trucks = wdro.traffic.UserClass("trucks", 0.1 * network.demand, 60.0, pce=2.5)
    >>> trucks.value_of_time
    60.0
    """

    name: str
    demand: Any
    """(Z, Z) vehicles between the zones of the network; dense or sparse."""
    value_of_time: float = 1.0
    """Money per unit of time."""
    fixed_cost: Any = 0.0
    """Money that each link costs, (A,) or one number: tolls, fuel."""
    pce: float = 1.0
    """Passenger car equivalents: the number of cars that congest as much as a vehicle."""

    def __post_init__(self) -> None:
        for field in ("value_of_time", "pce"):
            name = f"{field} of class {self.name!r}"
            checks.number(name, getattr(self, field), low=0, open=True)
        object.__setattr__(self, "demand", as_demand(self.demand))


@dataclass(frozen=True, eq=False, repr=False)
class ClassAssignment(Tabular):
    """The flows of several classes on one network; made by `class_equilibrium`.

    Examples
    --------
    >>> half = 0.5 * network.demand
    >>> classes = [wdro.traffic.UserClass(name, half) for name in ("red", "blue")]
    >>> result = wdro.traffic.class_equilibrium(network, classes, gap=1e-2)
    >>> result.flows["red"].shape, result.volume.shape
    ((76,), (76,))
    """

    network: Network
    classes: tuple[UserClass, ...]
    flows: dict[str, Array]
    """(A,) vehicles of each class."""
    gap: float
    """The share of their costs that users could save on their best paths."""
    solution: Solution

    @property
    def volume(self) -> Array:
        """(A,) the flow that congests, in passenger cars."""
        return np.sum([c.pce * self.flows[c.name] for c in self.classes], axis=0)

    @property
    def time(self) -> Array:
        """(A,) the travel times, fixed costs of the network included."""
        return self.network.travel_time(self.volume)

    def cost(self, name: str) -> Array:
        """(A,) the cost of each link to a class, in units of time."""
        for user in self.classes:
            if user.name == name:
                return self.time + _charges(user, self.network)
        known = ", ".join(repr(c.name) for c in self.classes)
        raise ValueError(f"there is no class {name!r}; the classes are {known}.")

    @property
    def columns(self) -> Sequence[Column]:
        return (
            Column("name", "the class", heading="class", word=True),
            Column("trips", "its vehicles"),
            Column("time", "the time that a trip takes, on average"),
            Column("paid", "the money that a trip costs, on average"),
            Column("cost", "time and money of a trip, in units of time"),
        )

    def rows(self) -> list[dict[str, Any]]:
        rows = []
        for user in self.classes:
            flow, trips = self.flows[user.name], float(user.demand.sum() - user.demand.trace())
            per_trip = 1.0 / trips if trips else np.nan
            charges = _charges(user, self.network)
            times = {"time": self.time, "cost": self.time + charges}
            averages = {key: float(values @ flow) * per_trip for key, values in times.items()}
            paid = user.value_of_time * float(charges @ flow) * per_trip
            rows.append({"name": user.name, "trips": trips, "paid": paid, **averages})
        return rows

    def _footnotes(self) -> list[str]:
        return [f"relative gap {self.gap:.1e}"]

    def __repr__(self) -> str:
        return f"ClassAssignment({', '.join(self.flows)} on {self.network.name!r})"


def class_equilibrium(
    network: Network,
    classes: Sequence[UserClass],
    *,
    gap: float = CLASS_GAP,
    solver: Solver | str | None = None,
    time_limit: float | None = None,
    **options: Unpack[SolveOptions],
) -> ClassAssignment:
    """The equilibrium of several classes: no user has a path of less cost for their class.

    All classes share the links, where a vehicle counts as `pce` passenger cars. The cost of a link
    for a class is its time plus the charge over the value of time. The demand of the network is not
    used. Volumes are unique; flows by class need not be: classes with equal costs can swap paths.

    Parameters
    ----------
    gap
        The relative gap to certify: the share of their costs that users could save on their
        cheapest paths, in passenger cars and units of time.
    solver
        By default Frank-Wolfe with biconjugate directions; another one has its own tolerance.
    **options
        Those of `Problem.solve`.

    Examples
    --------
    >>> toll = np.where(network.capacity > 2e4, 5.0, 0.0)             # on the motorways
    >>> poor = wdro.traffic.UserClass("poor", 0.5 * network.demand, 1.0, fixed_cost=toll)
    >>> rich = wdro.traffic.UserClass("rich", 0.5 * network.demand, 10.0, fixed_cost=toll)
    >>> result = wdro.traffic.class_equilibrium(network, [poor, rich], gap=1e-3)
    >>> bool(toll @ result.flows["rich"] > toll @ result.flows["poor"])
    True
    """
    users = _checked_classes(network, classes)
    variables = [cp.Variable(network.n_arcs, name=user.name) for user in users]
    sets = [TrafficFlows(network.replace(demand=user.pce * user.demand)) for user in users]
    charged = [
        (network.fixed_cost + _charges(user, network)) @ y for user, y in zip(users, variables)
    ]
    volume = sum(variables[1:], start=variables[0])
    loss = beckmann(
        volume, network.capacity, network.free_flow_time, network.b, network.power
    ) + sum(charged)
    solver = biconjugate_solver(gap) if solver is None else solver
    problem = Problem(cp.Minimize(loss), [In(y, flows) for y, flows in zip(variables, sets)])
    problem.solve(method="erm", solver=solver, time_limit=time_limit, **options)
    assert problem.solution is not None
    cars = [np.maximum(y.value, 0.0) for y in variables]
    times = network.travel_time(np.sum(cars, axis=0))
    costs = [times + _charges(user, network) for user in users]
    spent = sum(float(cost @ y) for cost, y in zip(costs, cars))
    least = sum(float(cost @ flows.minimize(cost)) for cost, flows in zip(costs, sets))
    return ClassAssignment(
        network,
        users,
        {user.name: y / user.pce for user, y in zip(users, cars)},
        (spent - least) / spent if spent else 0.0,
        problem.solution,
    )


def _charges(user: UserClass, network: Network) -> Array:
    """The charges of the links for a class, in units of time (A,)."""
    charged = per_arc(user.fixed_cost, "fixed_cost", network.n_arcs)
    return charged / user.value_of_time


def _checked_classes(network: Network, classes: Sequence[UserClass]) -> tuple[UserClass, ...]:
    users = (classes,) if isinstance(classes, UserClass) else tuple(classes)
    if not users or not all(isinstance(user, UserClass) for user in users):
        raise ValueError(
            "classes must be a list of at least one wdro_model.traffic.UserClass, got "
            f"{[type(user).__name__ for user in users]}."
        )
    names = [user.name for user in users]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"classes must have different names, got {name!r} twice.")
    for user in users:
        if user.demand.shape != network.demand.shape:
            raise ValueError(
                f"demand of class {user.name!r} must have shape {network.demand.shape}, one "
                f"row for each zone of the network, got {user.demand.shape}."
            )
        name = f"fixed_cost of class {user.name!r}"
        check_rule(name, per_arc(user.fixed_cost, name, network.n_arcs), FINITE)
    return users
