"""Demand that no route carries, left out with a report."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from wdro_model.traffic.demand_matrix import nonzero_demand
from wdro_model.traffic.flows.road_graph import RoadGraph, Trips, pairs_without_route
from wdro_model.traffic.network import Network

SHOWN = 3
"""Pairs that are named in the report."""


def drop_unreachable(network: Network) -> Network:
    """The network without the demand of pairs of zones that no route joins.

    What was left out is told in the last of its `repairs`: how many pairs, how many trips, and some
    of them by name. A network where every trip has a route is returned as it is.

    Examples
    --------
    >>> network = wdro.traffic.Network(                    # one road, from a to b
    ...     tails=[0], heads=[1], capacity=5.0, free_flow_time=1.0, b=0.15, power=4.0,
    ...     demand=[[0.0, 10.0], [2.0, 0.0]], nodes=("a", "b"),
    ... )
    >>> wdro.traffic.drop_unreachable(network).repairs
    ("left out the demand of 1 pair of zones without a route, 2 of 12 trips: 'b' -> 'a' (2)",)
    """
    trips = Trips.of(network)
    missed = pairs_without_route(RoadGraph(trips))
    if not missed.size:
        return network
    n = network.n_nodes
    lost = trips.origins[trips.rows[missed]] * n + trips.destinations[missed]
    origins, destinations, quantities = nonzero_demand(network.demand)
    kept = ~np.isin(network.zones[origins] * n + network.zones[destinations], lost)
    demand = sp.csr_array(
        (quantities[kept], (origins[kept], destinations[kept])), shape=network.demand.shape
    )
    return network.replace(
        demand=demand if sp.issparse(network.demand) else demand.toarray(),
        repairs=(*network.repairs, _report(trips, missed)),
    )


def _report(trips: Trips, missed: np.ndarray) -> str:
    """What is left out, in words."""
    names = trips.names
    named = [
        f"{names[trips.origins[trips.rows[pair]]]!r} -> {names[trips.destinations[pair]]!r} "
        f"({trips.quantities[pair]:.10g})"
        for pair in missed[:SHOWN].tolist()
    ]
    more = ", ..." if missed.size > SHOWN else ""
    pairs = "1 pair" if missed.size == 1 else f"{missed.size} pairs"
    return (
        f"left out the demand of {pairs} of zones without a route, "
        f"{trips.quantities[missed].sum():.10g} of {trips.total:.10g} trips: "
        f"{', '.join(named)}{more}"
    )
