"""The ways to find a flow of least cost: a linear program, or solvers of whole data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cvxpy as cp
import numpy as np

from wdro_model.deferred import networkx as nx
from wdro_model.errors import InaccurateError, InfeasibleError
from wdro_model.sets.backends import Vector
from wdro_model.sets.edge_program import EdgeProgram
from wdro_model.sets.integer_costs import rounding_slack, scaled_to_integers
from wdro_model.sets.vertices import WHOLE, is_whole

if TYPE_CHECKING:
    from wdro_model.sets.flow import Flow


class FlowProgram:
    """HiGHS on N x = supply, kept warm; answers are held against a dual bound."""

    def __init__(self, flows: Flow) -> None:
        self._set = flows
        self._least, self._most = flows.own_bounds()
        self._program = EdgeProgram(
            flows._incidence, flows.supply, flows.supply, self._least, self._most
        )

    def __call__(self, direction: Vector) -> Vector:
        return self.within(direction, self._least, self._most)

    def within(self, direction: Vector, lower: Vector, upper: Vector) -> Vector:
        """The cheapest flow between some bounds."""
        x = self.point(direction, lower, upper)
        if x is None:
            raise InfeasibleError(f"{self._set!r} has no flow within these bounds.")
        np.clip(x, lower, upper, out=x)
        if self._set.integral and is_whole(lower) and is_whole(upper):
            np.rint(x, out=x)
        scale = float(np.abs(direction).max()) or 1.0
        cost, duals = direction / scale, self._program.row_duals()
        reduced = cost - duals @ self._set._incidence
        bound = duals @ self._set.supply + np.where(reduced > 0, lower, upper) @ reduced
        size = max(1.0, float(np.abs(x).max()))
        excess = float(np.abs(self._set._incidence @ x - self._set.supply).max())
        if excess > 1e-6 * size or cost @ x - bound > 1e-6 * (size + np.abs(cost) @ x):
            raise InaccurateError(
                f"HiGHS called a flow optimal that is off by {excess:.1e} at a node and costs "
                f"{scale * (cost @ x - bound):.1e} more than its dual bound; rescale supplies and "
                "capacities so that they have similar sizes."
            )
        return x

    def point(self, direction: Vector, lower: Vector, upper: Vector) -> Vector | None:
        """What HiGHS finds, None if there is no flow."""
        own = lower is self._least and upper is self._most
        sides = (None, None) if own else (lower, upper)
        return self._program.minimize(direction, *sides)

    def reset(self) -> None:
        """Forget the basis."""
        self._program.reset()


class _WholeFlows:
    """Solvers of whole data: lower bounds are taken off, costs are scaled to integers."""

    name = ""
    limit = 2**50
    slack = 0.0
    """What the rounding of costs may have cost in the last answer."""

    def __init__(self, flows: Flow) -> None:
        self._set = flows
        self._proper = flows.tails != flows.heads
        self._tails, self._heads = (end[self._proper] for end in (flows.tails, flows.heads))
        if not flows.integral:
            raise ValueError(
                f"backend {self.name!r} takes whole supplies and capacities, and those of "
                f"{flows!r} are not; scale them, or use backend='highs'."
            )

    def __call__(self, direction: Vector) -> Vector:
        return self.within(direction, *self._set.own_bounds())

    def within(self, direction: Vector, lower: Vector, upper: Vector) -> Vector:
        """The cheapest flow between some bounds; whole ones give the same flows."""
        low, high = np.ceil(lower - WHOLE), np.floor(upper + WHOLE)
        if not (is_whole(lower) and is_whole(upper)):
            self.slack = 0.0
            return FlowProgram(self._set).within(direction, lower, upper)
        costs, unit = scaled_to_integers(direction, self.limit)
        self.slack = rounding_slack(direction, costs, unit, high - low)
        supply = np.rint(self._set.supply - self._set._incidence @ low).astype(np.int64)
        proper, width = self._proper, (high - low).astype(np.int64)
        found = self._solve(costs[proper], width[proper], supply)
        if found is None:
            raise InfeasibleError(f"{self._set!r} has no flow within these bounds.")
        vertex = np.where(direction < 0, high, low)  # loops are full or as empty as can be
        vertex[proper] = low[proper] + found
        return vertex

    def _solve(self, costs: Any, capacity: Any, supply: Any) -> Any:
        raise NotImplementedError


def largest_cost(nodes: int) -> int:
    """The largest cost that OR-Tools takes: it multiplies by the nodes and sums in 64 bits."""
    return min(2**44, 2**60 // (nodes + 1) ** 2)


class OrToolsFlows(_WholeFlows):
    name = "ortools"

    def __init__(self, flows: Flow) -> None:
        super().__init__(flows)
        from ortools.graph.python import min_cost_flow

        self._module = min_cost_flow
        self._tails, self._heads = self._tails.astype(np.int32), self._heads.astype(np.int32)
        self._nodes = np.arange(len(flows.nodes), dtype=np.int32)
        self.limit = largest_cost(len(flows.nodes))
        if self.limit < 2**20:
            raise ValueError(
                f"backend 'ortools' rounds costs to integers and would keep fewer than 20 bits on "
                f"{len(flows.nodes)} nodes; use backend='highs'."
            )

    def _solve(self, costs: Any, capacity: Any, supply: Any) -> Any:
        solver = self._module.SimpleMinCostFlow()
        arcs = solver.add_arcs_with_capacity_and_unit_cost(
            self._tails, self._heads, capacity, costs
        )
        solver.set_nodes_supplies(self._nodes, supply)
        status = solver.solve()
        if status == solver.INFEASIBLE:
            return None
        if status != solver.OPTIMAL:
            raise cp.error.SolverError(f"OR-Tools stopped with status {status} on the flow.")
        return solver.flows(arcs).astype(np.float64)


class NetworkxFlows(_WholeFlows):
    name = "networkx"

    def _solve(self, costs: Any, capacity: Any, supply: Any) -> Any:
        graph: Any = nx.MultiDiGraph()
        for node, amount in enumerate(supply.tolist()):
            graph.add_node(node, demand=-amount)
        ends = zip(self._tails.tolist(), self._heads.tolist())
        for edge, ((tail, head), cost, most) in enumerate(
            zip(ends, costs.tolist(), capacity.tolist())
        ):
            graph.add_edge(tail, head, key=edge, weight=cost, capacity=most)
        try:
            _, flows = nx.network_simplex(graph)
        except nx.NetworkXUnfeasible:
            return None
        found = np.zeros(costs.size)
        for out in flows.values():
            for parallel in out.values():
                for edge, amount in parallel.items():
                    found[edge] = amount
        return found
