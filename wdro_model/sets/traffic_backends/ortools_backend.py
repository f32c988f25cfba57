"""All-or-nothing by OR-Tools: a minimum cost flow per origin, in integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cvxpy as cp
import numpy as np

from wdro_model.sets.backends import LinearOracle, Vector
from wdro_model.sets.traffic_backends.support import SupportLoading

if TYPE_CHECKING:
    from wdro_model.sets.traffic_flows import TrafficFlows

ACCEPTED_LOSS = 1e-6
"""The largest part of the cost that rounding weights to integers may hide."""


def with_ortools(flows: TrafficFlows) -> LinearOracle:
    """One unit from an origin to each of its destinations; then the demand on the arcs found.

    Routes do not depend on how much travels on them, so that supplies are whole numbers whatever
    the demand. Weights are scaled to integers and rounded down: the integer optimum is a lower
    bound, and a cost that exceeds it by more than 1e-6 is refused.
    """
    from ortools.graph.python import min_cost_flow as module

    graph, trips = flows.graph, flows.trips
    load = SupportLoading(graph, trips)
    tails, heads = graph.tails.astype(np.int32), graph.heads.astype(np.int32)
    most = int(np.diff(trips.starts).max(initial=0)) + 1
    capacity = np.full(graph.entries, most, dtype=np.int64)
    # The solver multiplies costs by the number of nodes, and their sums must fit 64 bits.
    largest = min(2.0**44, 2.0**60 / (graph.size + 1) ** 2)
    if largest < 2.0**20:
        raise ValueError(
            f"backend 'ortools' rounds weights to integers and would keep fewer than 20 bits on "
            f"{graph.size} nodes; use backend='scipy'."
        )

    def minimize(weights: Vector) -> Vector:
        entry_weights = graph.weights(weights)
        unit = entry_weights.max(initial=0.0) or 1.0
        costs = np.floor(entry_weights / unit * largest).astype(np.int64)
        solver = module.SimpleMinCostFlow()
        arcs = solver.add_arcs_with_capacity_and_unit_cost(tails, heads, capacity, costs)
        used = np.empty((trips.origins.size, graph.entries), dtype=bool)
        for row, supply in enumerate(load.supplies()):
            solver.set_nodes_supplies(np.arange(graph.size), supply)
            status = solver.solve()
            if status != solver.OPTIMAL:
                raise cp.error.SolverError(f"OR-Tools stopped with status {status} on the flow.")
            used[row] = solver.flows(arcs) > 0
        entry_flows = load(used)
        cost = float(entry_weights @ entry_flows)
        hidden = cost - float(costs @ entry_flows) / largest * unit
        if hidden > ACCEPTED_LOSS * cost:
            raise ValueError(
                f"backend 'ortools' rounds weights to integers, and those from "
                f"{entry_weights[entry_weights > 0].min():g} to {entry_weights.max():g} are too "
                f"far apart: {hidden / cost:.1e} of the cost {cost:g} would be lost; use "
                "backend='scipy'."
            )
        return graph.link_flows(entry_flows, weights)

    return minimize
