"""How good an assignment is: its distance from equilibrium, and what equilibrium costs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from wdro_model.traffic.assignment import equilibrium, social_optimum
from wdro_model.traffic.congestion import as_flow
from wdro_model.traffic.network import Network


def all_or_nothing(network: Network, times: ArrayLike, flows: Any = None) -> np.ndarray:
    """The flow (A,) when all trips take a shortest path at fixed times (A,) >= 0.

    flows: the `sets.TrafficFlows` of the network, to choose its backend or to build it only once.
    """
    from wdro_model.sets import TrafficFlows

    return (TrafficFlows(network) if flows is None else flows).minimize(times)


def relative_gap(network: Network, flow: ArrayLike, flows: Any = None) -> float:
    """(<t, x> - <t, y>) / <t, x>, with t the times at the flow x, and y all-or-nothing at t.

    The share of their time that travellers would save if all took a shortest path and times stayed:
    0 at equilibrium.
    """
    x = as_flow(flow, network, one=True)
    times = network.travel_time(x)
    spent = float(times @ x)
    least = float(times @ all_or_nothing(network, times, flows))
    return (spent - least) / spent if spent else 0.0


def price_of_anarchy(network: Network, **options: Any) -> float:
    """The total cost of the user equilibrium over that of the social optimum, >= 1.

    options: those of `equilibrium` and `social_optimum`.
    """
    selfish = network.total_cost(equilibrium(network, **options).flow)
    best = network.total_cost(social_optimum(network, **options).flow)
    return selfish / best if best else 1.0
