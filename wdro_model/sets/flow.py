"""Flows in a directed graph from supplies to demands, and the ways to find a cheapest one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from wdro_model.compat import networkx as nx
from wdro_model.errors import InaccurateError, InfeasibleError
from wdro_model.sets.backends import Vector, register_backend, rounding_slack, scaled_to_integers
from wdro_model.sets.edge_program import EdgeProgram
from wdro_model.sets.feasible_set import FeasibleSet, as_direction, as_flat
from wdro_model.sets.graphs import OnGraph
from wdro_model.sets.vertices import WHOLE, is_whole
from wdro_model.uncertainty.samples import labels_of


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


# ------------------------------
# Flows in a directed graph, from supplies to demands within capacities


Amounts = float | str | Mapping[Any, float] | ArrayLike

FlowBackend = Literal["highs", "ortools", "networkx"]
"""Those that are built in; `register_backend` adds others."""


class Flow(OnGraph, FeasibleSet):
    """The flows x in a directed graph: what leaves a node less what enters it is its supply.

        N x = supply,   lower <= x <= capacity

    Costs may have any sign. With whole supplies and bounds the vertices are whole (and `integral`
    is true), and a unit supply with unit capacities is a path, perhaps with cycles beside it.

    Backends: "highs" (a linear program that stays warm), "ortools" (minimum cost flow, for whole
    supplies and bounds; costs are rounded to 44 bits or less on large graphs, and the slack says
    what that may cost), "networkx" (the same by the network simplex method, slow). By default
    "ortools" where data are whole and costs keep 32 bits, else "highs".

    Parameters
    ----------
    supply
        {node: amount}, negative where flow is taken out, zero for nodes that are left out; or
        the name of a node attribute. The amounts sum to zero.
    capacity
        For all edges a number, a {edge: number}, an array in their order, or the name of an
        edge attribute. Without one (or infinite), an acyclic graph has the total supply; on a graph
        with cycles flows would have no bound.
    lower
        What an edge carries at least, in the same forms; 0 by default.
    forbidden, mandatory
        Edges that carry nothing, and edges that carry at least 1.

    Examples
    --------
    >>> import networkx as nx, wdro_model as wdro
    >>> graph = nx.DiGraph([("mill", "shop"), ("mill", "store"), ("store", "shop")])
    >>> flow = wdro.sets.Flow(graph, supply={"mill": 3, "shop": -3}, capacity=2)
    >>> flow.selected(flow.minimize([1.0, 1.0, 1.0]))
    {('mill', 'shop'): 2.0, ('mill', 'store'): 1.0, ('store', 'shop'): 1.0}
    """

    default_backend = "highs"
    has_constraints = True

    def __init__(
        self,
        graph: Any,
        supply: Mapping[Any, float] | str,
        capacity: Amounts | None = None,
        backend: FlowBackend | str | None = None,
        *,
        lower: Amounts = 0.0,
        forbidden: Iterable[Any] | None = None,
        mandatory: Iterable[Any] | None = None,
    ) -> None:
        self.read_graph(graph)
        if not self.is_directed:
            raise ValueError(
                "Flow takes a directed graph, got an undirected one; graph.to_directed() has an "
                "edge each way."
            )
        self.supply = self._as_supply(graph, supply)
        least = self._as_amounts(graph, lower, "lower")
        most = self._as_amounts(graph, np.inf if capacity is None else capacity, "capacity")
        most[self._positions(forbidden)] = 0.0
        most = self._bounded(graph, most)
        asked = self._positions(mandatory)
        least[asked] = np.maximum(least[asked], 1.0)
        crossed = np.flatnonzero(least > most)
        if crossed.size:
            at = int(crossed[0])
            raise ValueError(
                f"edge {self.edges[at]!r} must carry at least {least[at]:g} and at most "
                f"{most[at]:g}."
            )
        self.bounds = (least, most)
        self.integral = all(is_whole(side) for side in (self.supply, least, most))
        self.rounds = self.integral
        self._incidence = self._as_incidence()
        self.use_backend(backend)
        self._check_feasible()

    def use_backend(self, backend: str | None = None) -> None:
        """Build the oracle of a backend; of the one that suits the data for None."""
        if backend is None and self.integral and largest_cost(len(self.nodes)) >= 2**32:
            backend = "ortools"
        super().use_backend(backend)

    def minimize_within(
        self, direction: ArrayLike, lower: ArrayLike | None, upper: ArrayLike | None
    ) -> Vector:
        """The cheapest flow within bounds, which take the place of capacities."""
        given = as_direction(direction, self.dimension)
        least, most = self.own_bounds()
        least = least if lower is None else np.maximum(least, as_side(lower, least.size, "lower"))
        most = most if upper is None else np.minimum(most, as_side(upper, most.size, "upper"))
        if np.any(least > most):
            at = int(np.flatnonzero(least > most)[0])
            raise InfeasibleError(
                f"edge {self.edges[at]!r} cannot carry at least {least[at]:g} and at most "
                f"{most[at]:g}."
            )
        within = getattr(self._oracle, "within", None) or FlowProgram(self).within
        return within(given, least, most)

    def minimize_with_slack(
        self, direction: ArrayLike, lower: ArrayLike | None = None, upper: ArrayLike | None = None
    ) -> tuple[Vector, float]:
        """The oracle's answer, and what the rounding of its costs may have cost."""
        vertex = self.minimize(direction, lower, upper)
        return vertex, float(getattr(self._oracle, "slack", 0.0))

    def constraints(self, x: Any) -> list[Any]:
        """N x = supply, lower <= x <= capacity."""
        flat = as_flat(x, self.dimension)
        least, most = self.own_bounds()
        return [self._incidence @ flat == self.supply, flat >= least, flat <= most]

    def selected(self, x: ArrayLike, threshold: float = 1e-6) -> dict[Any, float]:
        """What each edge carries, of those that carry more than the threshold.

        Examples
        --------
        >>> import networkx as nx, wdro_model as wdro
        >>> graph = nx.DiGraph([("mill", "shop"), ("mill", "store"), ("store", "shop")])
        >>> flow = wdro.sets.Flow(graph, supply={"mill": 3, "shop": -3}, capacity=2)
        >>> flow.selected([2.0, 1.0, 1.0])
        {('mill', 'shop'): 2.0, ('mill', 'store'): 1.0, ('store', 'shop'): 1.0}
        """
        values = as_direction(x, self.dimension, kind="x")
        return {self.edges[e]: float(values[e]) for e in np.flatnonzero(values > threshold)}

    def own_bounds(self) -> tuple[Vector, Vector]:
        """The least and the most that each edge carries."""
        assert self.bounds is not None
        return self.bounds

    def describe(self) -> str:
        """The set in one line."""
        total = float(self.supply[self.supply > 0].sum())
        return (
            f"flows of {total:g} in all through a graph with {len(self.nodes)} nodes and "
            f"{len(self.edges)} edges, minimised by {self.backend}"
        )

    def _near(self, x: Vector) -> list[Vector]:
        """The nearest whole flow among those that differ from x by less than 1 on each edge.

        For x in the hull there is one, as bounds floor(x) and ceil(x) are whole; in between,
        |v - x|^2 is linear in v.
        """
        close = np.abs(x - np.rint(x)) <= WHOLE
        point = np.where(close, np.rint(x), x)
        part = point - np.floor(point)
        try:
            return [self.minimize(1.0 - 2.0 * part, np.floor(point), np.ceil(point))]
        except InfeasibleError:
            return [self.minimize(-x)]

    def _is_discrete(self, vertex: Vector) -> bool:
        """Is it a whole flow?"""
        excess = np.abs(self._incidence @ vertex - self.supply)
        return is_whole(vertex) and bool(excess.max() <= WHOLE * max(1.0, np.abs(vertex).max()))

    def _as_incidence(self) -> Any:
        """N (nodes, edges): 1 where an edge leaves, -1 where it enters, 0 for a loop."""
        edges, ones = np.arange(self.dimension), np.ones(self.dimension)
        shape = (len(self.nodes), self.dimension)
        leaves = sp.csr_array((ones, (self.tails, edges)), shape=shape)
        return sp.csr_array(leaves - sp.csr_array((ones, (self.heads, edges)), shape=shape))

    def _as_supply(self, graph: Any, supply: Any) -> Vector:
        if isinstance(supply, str):
            _refuse_unknown(supply, "node", (data for _, data in graph.nodes(data=True)))
            given = dict(graph.nodes(data=supply, default=0.0))
        elif isinstance(supply, Mapping):
            given = dict(supply)
        else:
            raise ValueError(
                f"supply is {{node: amount}} or the name of a node attribute, got {supply!r}."
            )
        amounts = np.zeros(len(self.nodes))
        for node, amount in given.items():
            if node not in self._position:
                raise ValueError(
                    f"supply names {node!r}, which is not a node of the graph ({len(self.nodes)} "
                    f"nodes, such as {self.nodes[0]!r})."
                )
            amounts[self._position[node]] = _as_number(amount, f"the supply of {node!r}")
        if not np.isfinite(amounts).all():
            node = self.nodes[int(np.flatnonzero(~np.isfinite(amounts))[0])]
            raise ValueError(f"the supply of {node!r} must be finite, got {given[node]}.")
        total = float(amounts.sum())
        if abs(total) > 1e-9 * max(1.0, float(np.abs(amounts).sum())):
            raise ValueError(
                f"supplies must sum to 0, got {total:g}: what is put in at some nodes is taken out "
                "at others, where the supply is negative."
            )
        return amounts

    def _as_amounts(self, graph: Any, given: Any, what: str) -> Vector:
        """A bound for each edge, from a number, an array, a mapping or an attribute."""
        default = np.inf if what == "capacity" else 0.0
        if isinstance(given, str):
            _refuse_unknown(given, "edge", (edge[-1] for edge in graph.edges(data=True)))
            listed = graph.edges(data=given, default=default)
            amounts = np.array([_as_number(edge[-1], what) for edge in listed])
        elif isinstance(given, Mapping) or labels_of(given) is not None:
            amounts = np.full(self.dimension, default)
            for edge, amount in given.items():
                amounts[self._positions([edge])] = _as_number(amount, f"{what} of {edge!r}")
        else:
            try:
                values = np.asarray(given, dtype=np.float64)
                amounts = np.broadcast_to(values, (self.dimension,)).copy()
            except (TypeError, ValueError):
                raise ValueError(
                    f"{what} is a number, {{edge: number}}, an array of {self.dimension} numbers "
                    f"or the name of an edge attribute, got {given!r}."
                ) from None
        wrong = np.flatnonzero(np.isnan(amounts) | (amounts < 0))
        if wrong.size:
            edge = self.edges[int(wrong[0])]
            raise ValueError(
                f"{what} of edge {edge!r} must be at least 0, got {amounts[wrong[0]]:g}; flow the "
                "other way goes over an edge of its own."
            )
        return amounts

    def _bounded(self, graph: Any, most: Vector) -> Vector:
        """Capacities with the total supply for infinite ones, on an acyclic graph."""
        free = np.isinf(most)
        if not free.any():
            return most
        if not nx.is_directed_acyclic_graph(graph):
            raise ValueError(
                f"edge {self.edges[int(np.argmax(free))]!r} has no capacity, and flows round the "
                "cycles of the graph would have no bound; give capacity=."
            )
        return np.where(free, self.supply[self.supply > 0].sum(), most)

    def _positions(self, edges: Iterable[Any] | None) -> np.ndarray:
        known = self.coordinates
        found = []
        for edge in edges or ():
            if edge not in known:
                raise ValueError(f"{edge!r} is no edge of {self!r}, such as {self.edges[0]!r}.")
            found.append(known[edge])
        return np.array(found, dtype=np.int64)

    def _check_feasible(self) -> None:
        """A ValueError that says how much of the supply the capacities can carry."""
        least, most = self.own_bounds()
        if FlowProgram(self).point(np.zeros(self.dimension), least, most) is not None:
            return
        x, served = cp.Variable(self.dimension), cp.Variable()
        rows = [self._incidence @ x == served * self.supply, x >= served * least, x <= most]
        problem = cp.Problem(cp.Maximize(served), [*rows, served <= 1])
        problem.solve(solver=cp.HIGHS)
        share = "" if problem.value is None else f" (only {100 * problem.value:.3g}% of it)"
        raise InfeasibleError(
            f"no flow meets the supply within the capacities{share}: raise capacities, lower the "
            "bounds below, or add edges."
        )


def as_side(values: ArrayLike, size: int, name: str) -> Vector:
    """Bounds (n,) of numbers, infinite ones allowed."""
    side = np.asarray(values, dtype=np.float64)
    if side.shape != (size,):
        raise ValueError(f"{name} must have shape ({size},), got {side.shape}.")
    if np.isnan(side).any():
        raise ValueError(f"{name} is not a number at index {int(np.isnan(side).argmax())}.")
    return side


def _refuse_unknown(name: str, thing: str, attributes: Iterable[Mapping[Any, Any]]) -> None:
    """A ValueError where no node or edge has the attribute: a name mistyped."""
    known = {key for some in attributes for key in some}
    if name not in known:
        listed = ", ".join(sorted(map(repr, known))) or "none"
        raise ValueError(f"no {thing} of the graph has an attribute {name!r}; there are: {listed}.")


def _as_number(value: Any, what: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{what} must be a number, got {value!r}.") from None


register_backend(Flow, "highs", FlowProgram)
register_backend(Flow, "ortools", OrToolsFlows)
register_backend(Flow, "networkx", NetworkxFlows)
