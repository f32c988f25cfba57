"""Tolls that make the drivers' equilibrium the best for all."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from wdro_model.traffic.network import Network, as_flow


def marginal_tolls(network: Network, flow: ArrayLike) -> np.ndarray:
    """What one more trip on each link costs the others, x t'(x), in units of time (A,).

    Charged at the social optimum, as fixed costs, they make it an equilibrium (Pigou): drivers then
    pay what their trip costs all. With a value of time v, the tolls in money are v times these.

    Examples
    --------
    >>> import wdro_model as wdro
    >>> network = wdro.datasets.sioux_falls()
    >>> best, _ = wdro.traffic.social_optimum(network)
    >>> tolls = wdro.traffic.marginal_tolls(network, best)
    >>> tolled = network.replace(fixed_cost=network.fixed_cost + tolls)
    >>> settled, _ = wdro.traffic.equilibrium(tolled)
    >>> abs(network.total_cost(settled) / network.total_cost(best) - 1) < 1e-4
    True
    """
    x = as_flow(flow, network, one=True)
    rising = network.b * network.power * (x / network.capacity) ** network.power
    return network.free_flow_time * rising
