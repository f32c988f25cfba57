"""All-or-nothing by flows of least cost from the origins: OR-Tools in integers, CVXPY by an LP.

Routes do not depend on how much travels on them: the programs send one unit from an origin to each
of its destinations, and the demand is then loaded on the arcs that they use.
"""

from __future__ import annotations

from collections.abc import Iterator

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import breadth_first_order

from wdro_model.sets.backends import LinearOracle, Vector
from wdro_model.sets.convex import ConvexSet
from wdro_model.traffic.flows.loading import tree_loadings
from wdro_model.traffic.flows.road_graph import RoadGraph
from wdro_model.traffic.flows.traffic_flows import TrafficFlows
from wdro_model.traffic.flows.trips import Indices

ACCEPTED_LOSS = 1e-6
"""The largest part of the cost that rounding weights to integers may hide."""


class SupportLoading:
    """The demand of each origin on a tree inside the support of an optimal flow from it.

    In a flow of least cost from an origin every arc in use is on a shortest path (or on a cycle of
    weight zero between nodes at the same distance), so that any tree of such arcs is a shortest
    path tree. Cycles are left behind, and the demand is loaded as it is, without a solver's
    rounding.
    """

    def __init__(self, graph: RoadGraph) -> None:
        self._graph, self._trips = graph, graph.trips
        self._loadings = list(tree_loadings(graph))

    def supplies(self) -> Iterator[Indices]:
        """For each origin, what enters the nodes (N,): one unit for each of its destinations."""
        trips = self._trips
        for row, source in enumerate(self._graph.sources):
            ends = trips.destinations[trips.starts[row] : trips.starts[row + 1]]
            supply = np.zeros(self._graph.size, dtype=np.int64)
            supply[ends] = -1
            supply[source] = ends.size
            yield supply

    def __call__(self, used: NDArray[np.bool_]) -> Vector:
        """Flows on the entries (E,), for the entries in use from each origin (O, E)."""
        flows, row = np.zeros(self._graph.entries), 0
        for load in self._loadings:
            rows = range(row, row + load.sources.size)
            flows += load(np.stack([self._tree(row, used[row]) for row in rows]))
            row = rows.stop
        return flows

    def _tree(self, row: int, used: NDArray[np.bool_]) -> NDArray[np.int32]:
        """The predecessors (N,) of a tree from one origin, < 0 for none."""
        graph, trips = self._graph, self._trips
        kept = np.flatnonzero(used)
        indptr = np.searchsorted(kept, graph.indptr).astype(np.int32)
        support = sp.csr_array(
            (np.ones(kept.size), graph.indices[kept], indptr), shape=(graph.size, graph.size)
        )
        _, before = breadth_first_order(support, graph.sources[row], return_predecessors=True)
        ends = trips.destinations[trips.starts[row] : trips.starts[row + 1]]
        missed = ends[before[ends] < 0]
        if missed.size:
            raise cp.error.SolverError(
                f"the flow found from {trips.names[trips.origins[row]]!r} does not reach "
                f"{trips.names[missed[0]]!r}; use backend='scipy'."
            )
        return np.asarray(before, dtype=np.int32)


def with_ortools(flows: TrafficFlows) -> LinearOracle:
    """A minimum cost flow per origin, in integers.

    Supplies are whole numbers whatever the demand. Weights are scaled to integers and rounded down:
    the integer optimum is a lower bound, and a cost that exceeds it by more than 1e-6 is refused.
    """
    from ortools.graph.python import min_cost_flow as module

    graph, trips = flows.graph, flows.trips
    load = SupportLoading(graph)
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


def with_cvxpy(flows: TrafficFlows) -> LinearOracle:
    """One linear program over the flows of all origins, through HiGHS.

    With whole supplies the vertices are whole: what is in use is told from zero without a doubt.
    """
    graph, trips = flows.graph, flows.trips
    split = flows.origin_flows("backend 'cvxpy'", "use backend='scipy'")
    load = SupportLoading(graph)
    if not split.count:
        return lambda weights: np.zeros(flows.dimension)
    y = cp.Variable(split.count)
    ends = np.diff(trips.starts)[split.rows]
    supply = split.supplies(np.ones(trips.quantities.size))
    polytope = ConvexSet([split.conservation @ y == supply, y >= 0, y <= ends], y)
    tails, heads = graph.departure[trips.tails[split.arcs]], trips.heads[split.arcs]
    entries = graph.entry(tails, heads)

    def minimize(weights: Vector) -> Vector:
        chosen = polytope.minimize(weights[split.arcs]) > 0.5
        used = np.zeros((trips.origins.size, graph.entries), dtype=bool)
        used[split.rows[chosen], entries[chosen]] = True
        return graph.link_flows(load(used), weights)

    return minimize
