"""One b and one power for all links that congest, as scenarios of both need them."""

from __future__ import annotations

from typing import Any

import numpy as np

from wdro_model.traffic.network import Network

FREE = 1e6
"""An arc that does not congest is given this many times the total demand as capacity."""


def with_common_b(network: Any) -> Network:
    """The network with one b on all arcs; those that do not congest get a capacity beyond reach.

    Refuses networks whose arcs have different b > 0.
    """
    if not isinstance(network, Network):
        raise ValueError(f"expected a wdro_model.traffic.Network, got {type(network).__name__}.")
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
