"""Tests in which drivers re-route: planned flows where the network turns out to be another one.

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

from wdro_model.display.html_tables import Column
from wdro_model.evaluation.tables import Tabular
from wdro_model.problem import Problem
from wdro_model.sets import In
from wdro_model.solvers import FrankWolfe, LineSearch
from wdro_model.traffic.beckmann import beckmann
from wdro_model.traffic.flows import TrafficFlows
from wdro_model.traffic.network import Network, as_flow

Array = np.ndarray
GAP, ITERATIONS, LINE_TOLERANCE = 1e-3, 2000, 0.1
TAIL = 0.95
COLUMNS = (
    Column("flow", "the plan", word=True),
    Column("share", "of the drivers that re-route", heading="re-routing", form=".0%"),
    Column("mean", "what all drivers spend together, on average over the scenarios"),
    Column("cvar95", "the mean of the worst 5% of the scenarios"),
    Column("worst", "in the worst scenario"),
)


def reroute(network: Network, flow: ArrayLike, share: float = 1.0, *, gap: float = GAP) -> Array:
    """The flow (A,) after a share of the drivers has settled anew on a network.

    The others stay where the flow has them. The flow must route the demand of the network; where
    demand has another level, multiply it first.

    Parameters
    ----------
    share
        From 0, nobody, to 1: then the result is the equilibrium, whatever the flow was.
    gap
        The relative gap, in Beckmann's objective, that is certified.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> network = wdro.datasets.sioux_falls()
    >>> flow, _ = wdro.traffic.equilibrium(network, gap=1e-3)
    >>> flooded = network.replace(capacity=0.7 * network.capacity)
    >>> after = wdro.traffic.reroute(flooded, flow, share=0.5)
    >>> flooded.beckmann(after) < flooded.beckmann(flow)
    True
    """
    planned = as_flow(flow, network, one=True)
    number = isinstance(share, int | float | np.number) and not isinstance(share, bool)
    if not number or not 0 <= share <= 1:
        raise ValueError(f"share must be a number from 0 to 1, got {share!r}.")
    if share == 0:
        return planned
    staying = (1.0 - float(share)) * planned
    feasible = TrafficFlows(network.replace(demand=network.demand * float(share)))
    x = cp.Variable(network.n_arcs, name="rerouted")
    loss = beckmann(x + staying, network.capacity, network.free_flow_time, network.b, network.power)
    problem = Problem(cp.Minimize(loss + network.fixed_cost @ x), [In(x, feasible)])
    solver = FrankWolfe(
        gap=gap,
        direction="biconjugate",
        step=LineSearch(LINE_TOLERANCE),
        max_iterations=ITERATIONS,
    )
    problem.solve(method="erm", solver=solver, progress=False)
    return np.maximum(x.value, 0.0) + staying


@dataclass(frozen=True, eq=False, repr=False)
class ReroutingTest(Tabular):
    """What plans cost in scenarios when some drivers re-route; made by `rerouting_test`.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> network = wdro.datasets.sioux_falls()
    >>> uncertain = wdro.traffic.UncertainNetwork(network, capacity=[0.7, 0.9])
    >>> flow, _ = wdro.traffic.equilibrium(network, gap=1e-2)
    >>> test = wdro.traffic.rerouting_test(uncertain.networks(), {"plan": flow}, shares=[0, 1])
    >>> test.costs["plan", 0.0].shape
    (2,)
    """

    costs: dict[tuple[str, float], Array]
    """(N,) what all drivers spend in each scenario, by plan and share."""

    @property
    def columns(self) -> Sequence[Column]:
        return COLUMNS

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "flow": name,
                "share": share,
                "mean": float(costs.mean()),
                "cvar95": _cvar(costs),
                "worst": float(costs.max()),
            }
            for (name, share), costs in self.costs.items()
        ]

    def _under_table(self) -> list[str]:
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
    gap: float = GAP,
) -> ReroutingTest:
    """What planned flows cost in scenarios where none, some or all of the drivers re-route.

    Parameters
    ----------
    networks
        The network of each scenario, such as `UncertainNetwork.networks(...)`. Flows are scaled to
        the demand that each has.
    flows
        {name: (A,)}, planned for a network with the same pairs of zones.
    shares
        Of the drivers that know the scenario and settle anew.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> network = wdro.datasets.sioux_falls()
    >>> cases = [network.replace(capacity=c * network.capacity) for c in (0.6, 0.8)]
    >>> plans = {"empty roads": wdro.traffic.all_or_nothing(network, network.free_flow_time)}
    >>> test = wdro.traffic.rerouting_test(cases, plans, shares=[0.0, 1.0], gap=1e-2)
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
    settled: list[float] | None = None
    for name, flow in flows.items():
        planned = [_at_level(case, flow) for case in cases]
        for share in parts:
            if share == 1.0 and settled is not None:
                found = settled  # the equilibrium, whatever the plan was
            else:
                found = [
                    case.total_cost(reroute(case, x, share, gap=gap))
                    for case, x in zip(cases, planned)
                ]
                settled = found if share == 1.0 else settled
            costs[str(name), share] = np.array(found)
    return ReroutingTest(costs)


def _at_level(network: Network, flow: ArrayLike) -> Array:
    """The flow scaled to the demand of a network, by what leaves its zones."""
    x = as_flow(flow, network, one=True)
    trips = TrafficFlows(network).trips
    n = network.n_nodes
    leaving = np.bincount(network.tails, x, n) - np.bincount(network.heads, x, n)
    wanted = np.zeros(n)
    np.add.at(wanted, trips.origins, trips.leaving)
    np.subtract.at(wanted, trips.destinations, trips.quantities)
    size = float(np.abs(leaving).sum())
    if size == 0.0:
        return x
    level = float(wanted @ leaving) / float(leaving @ leaving)
    if np.abs(level * leaving - wanted).max() > 1e-3 * max(1.0, float(np.abs(wanted).max())):
        raise ValueError(
            f"a flow does not route the demand of {network!r}, at any level; plan it for the same "
            "pairs of zones."
        )
    return level * x


def _cvar(costs: Array) -> float:
    """The mean of the worst 5%, the scenario at the border counted in part."""
    ordered = np.sort(costs)[::-1]
    left = (1.0 - TAIL) * len(ordered)
    weights = np.clip(left - np.arange(len(ordered)), 0.0, 1.0)
    return float(weights @ ordered / weights.sum())
