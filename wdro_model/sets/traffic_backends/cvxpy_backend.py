"""All-or-nothing by CVXPY: one linear program over the flows of all origins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cvxpy as cp
import numpy as np

from wdro_model.sets.backends import LinearOracle, Vector
from wdro_model.sets.convex import ConvexSet
from wdro_model.sets.traffic_backends.origin_flows import refuse_large
from wdro_model.sets.traffic_backends.support import SupportLoading

if TYPE_CHECKING:
    from wdro_model.sets.traffic_flows import TrafficFlows


def with_cvxpy(flows: TrafficFlows) -> LinearOracle:
    """Conservation for one unit from each origin to each of its destinations, through HiGHS.

    Routes do not depend on how much travels on them. With whole supplies the vertices are whole,
    and what is in use is told from zero without a doubt.
    """
    graph, trips, split = flows.graph, flows.trips, flows.origin_flows()
    refuse_large(split, "backend 'cvxpy'", "use backend='scipy'")
    load = SupportLoading(graph, trips)
    if not split.count:
        return lambda weights: np.zeros(flows.dimension)
    y = cp.Variable(split.count)
    ends = np.diff(trips.starts)[split.rows]
    supply = split.supplies(trips, np.ones(trips.quantities.size))
    polytope = ConvexSet([split.conservation @ y == supply, y >= 0, y <= ends], y)
    tails, heads = graph.departure[trips.tails[split.arcs]], trips.heads[split.arcs]
    entries = graph.entry(tails, heads)

    def minimize(weights: Vector) -> Vector:
        chosen = polytope.minimize(weights[split.arcs]) > 0.5
        used = np.zeros((trips.origins.size, graph.entries), dtype=bool)
        used[split.rows[chosen], entries[chosen]] = True
        return graph.link_flows(load(used), weights)

    return minimize
