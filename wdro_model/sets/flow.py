"""Flows in a directed graph from supplies to demands, and the ways to find a cheapest one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike

from wdro_model.compat import networkx as nx
from wdro_model.errors import InfeasibleError
from wdro_model.sets.arguments import as_direction, as_flat
from wdro_model.sets.backends import (
    Answer,
    BoundedOracle,
    Integers,
    OrToolsFlow,
    Side,
    Vector,
    register_backend,
    rounding_slack,
    scaled_to_integers,
)
from wdro_model.sets.choices import OnGraph
from wdro_model.sets.feasible_set import BoundedSet
from wdro_model.sets.hull import HullOracle
from wdro_model.sets.rounding import INTEGER_TOLERANCE, is_whole
from wdro_model.uncertainty.samples import labels_of

Amounts = float | str | Mapping[Any, float] | ArrayLike

FlowBackend = Literal["highs", "ortools", "networkx"]
"""The built-in backends; `register_backend` adds others."""


class Flow(OnGraph, BoundedSet):
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
        self.read_graph(graph, True, "graph.to_directed() has an edge each way")
        self.supply = self._as_supply(graph, supply)
        least = self._as_amounts(graph, lower, "lower")
        most = self._as_amounts(graph, np.inf if capacity is None else capacity, "capacity")
        most[self.positions(forbidden)] = 0.0
        most = self._bounded(graph, most)
        asked = self.positions(mandatory)
        least[asked] = np.maximum(least[asked], 1.0)
        crossed = np.flatnonzero(least > most)
        if crossed.size:
            edge = int(crossed[0])
            raise ValueError(
                f"edge {self.edges[edge]!r} must carry at least {least[edge]:g} and at most "
                f"{most[edge]:g}."
            )
        self.bounds = (least, most)
        self.integral = all(is_whole(side) for side in (self.supply, least, most))
        self.rounds = self.integral
        self.incidence = self.ends_matrix(self.tails) - self.ends_matrix(self.heads)
        self.use_backend(backend)
        self._check_feasible()

    def use_backend(self, backend: str | None = None) -> None:
        """Build the oracle of a backend; of the one that suits the data for None."""
        if backend is None and self.integral and len(self.nodes) < 2**14:  # costs keep 32 bits
            backend = "ortools"
        super().use_backend(backend)

    def answer(self, direction: Vector, lower: Side, upper: Side) -> Answer:
        """The cheapest flow within bounds, which take the place of capacities."""
        low, high = self.interval(lower, upper)
        oracle: Any = self._oracle
        if not isinstance(oracle, BoundedOracle):
            if lower is None and upper is None:
                return oracle(direction), 0.0
            oracle = _highs(self)
        flow, slack = oracle.answer(direction, low, high)
        if self.integral and is_whole(low) and is_whole(high):
            flow = np.rint(flow)
        return flow, slack

    def refusal(self, lower: Vector, upper: Vector) -> InfeasibleError:
        """The error where bounds leave no flow."""
        return InfeasibleError(f"{self!r} has no flow within these bounds.")

    def constraints(self, x: Any) -> list[Any]:
        """N x = supply, lower <= x <= capacity."""
        flat = as_flat(x, self.dimension)
        least, most = self.interval(None, None)
        return [self.incidence @ flat == self.supply, flat >= least, flat <= most]

    def selected(self, x: ArrayLike, threshold: float = 1e-6) -> dict[Any, float]:
        """Amounts by edge, for edges that carry more than the threshold."""
        values = as_direction(x, self.dimension, kind="x")
        return {self.edges[e]: float(values[e]) for e in np.flatnonzero(values > threshold)}

    def describe(self) -> str:
        total = float(self.supply[self.supply > 0].sum())
        return (
            f"flows of {total:g} in all through a graph with {len(self.nodes)} nodes and "
            f"{len(self.edges)} edges, minimised by {self.backend}"
        )

    def discrete_near(self, x: ArrayLike) -> list[Vector]:
        """The nearest whole flow among those that differ from x by less than 1 on each edge.

        For x in the hull there is one, as bounds floor(x) and ceil(x) are whole; in between,
        |v - x|^2 is linear in v.
        """
        point = as_direction(x, self.dimension, kind="x")
        close = np.abs(point - np.rint(point)) <= INTEGER_TOLERANCE
        point = np.where(close, np.rint(point), point)
        part = point - np.floor(point)
        try:
            return [self.minimize(1.0 - 2.0 * part, np.floor(point), np.ceil(point))]
        except InfeasibleError:
            return [self.minimize(-point)]

    def is_vertex(self, x: ArrayLike) -> bool:
        """Is x a whole flow?"""
        flow = as_direction(x, self.dimension, kind="x")
        excess = np.abs(self.incidence @ flow - self.supply).max()
        size = max(1.0, float(np.abs(flow).max()))
        return is_whole(flow) and bool(excess <= INTEGER_TOLERANCE * size)

    def _as_supply(self, graph: Any, supply: Any) -> Vector:
        """Amounts put in at the nodes, from a mapping or the name of an attribute."""
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
            amounts[self.node_position(node, "supply node")] = _as_number(
                amount, f"the supply of {node!r}"
            )
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
                amounts[self.position(edge)] = _as_number(amount, f"{what} of {edge!r}")
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

    def _check_feasible(self) -> None:
        """Raise an InfeasibleError that says how much of the supply the capacities can carry."""
        with suppress(InfeasibleError):
            self.minimize(np.zeros(self.dimension))
            return
        least, most = self.interval(None, None)
        x, served = cp.Variable(self.dimension), cp.Variable()
        rows = [self.incidence @ x == served * self.supply, x >= served * least, x <= most]
        problem = cp.Problem(cp.Maximize(served), [*rows, served <= 1])
        problem.solve(solver=cp.HIGHS)
        share = "" if problem.value is None else f" (only {100 * problem.value:.3g}% of it)"
        raise InfeasibleError(
            f"no flow meets the supply within the capacities{share}: raise capacities, lower the "
            "bounds below, or add edges."
        )


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


# ------------------------------------------------------------------ backends
def _highs(flows: Flow) -> HullOracle:
    return HullOracle(flows, flows.constraints, discrete=False)


class WholeFlows(BoundedOracle):
    """A solver of whole data: lower bounds are taken off, costs are scaled to integers."""

    name: str

    def __init__(self, flows: Flow) -> None:
        self._set = flows
        self._proper = flows.tails != flows.heads
        self._tails, self._heads = (end[self._proper] for end in (flows.tails, flows.heads))
        self._limit = 2**50
        if not flows.integral:
            raise ValueError(
                f"backend {self.name!r} takes whole supplies and capacities, and those of "
                f"{flows!r} are not; scale them, or use backend='highs'."
            )

    def answer(self, direction: Vector, lower: Vector, upper: Vector) -> Answer:
        flows, proper = self._set, self._proper
        if not (is_whole(lower) and is_whole(upper)):
            return _highs(flows).answer(direction, lower, upper)
        low, high = np.rint(lower), np.rint(upper)
        costs, unit = scaled_to_integers(direction, self._limit)
        supply = np.rint(flows.supply - flows.incidence @ low).astype(np.int64)
        width = (high - low).astype(np.int64)
        above = self._solve(costs[proper], width[proper], supply)
        if above is None:
            raise flows.refusal(lower, upper)
        vertex = np.where(direction < 0, high, low)  # loops are full or as empty as can be
        vertex[proper] = low[proper] + above
        return vertex, rounding_slack(direction, costs, unit, high - low)

    @abstractmethod
    def _solve(self, costs: Integers, capacity: Integers, supply: Integers) -> Vector | None:
        """A cheapest flow between 0 and capacities, None if there is no flow."""


class OrToolsFlows(WholeFlows):
    name = "ortools"

    def __init__(self, flows: Flow) -> None:
        super().__init__(flows)
        self._program = OrToolsFlow(len(flows.nodes), self._tails, self._heads, "highs")
        self._limit = self._program.largest_cost

    def _solve(self, costs: Integers, capacity: Integers, supply: Integers) -> Vector | None:
        return self._program.solve(costs, capacity, supply)


class NetworkxFlows(WholeFlows):
    name = "networkx"

    def _solve(self, costs: Integers, capacity: Integers, supply: Integers) -> Vector | None:
        graph: Any = nx.MultiDiGraph()
        for node, amount in enumerate(supply.tolist()):
            graph.add_node(node, demand=-amount)
        arcs = zip(self._tails.tolist(), self._heads.tolist(), costs.tolist(), capacity.tolist())
        for edge, (tail, head, cost, most) in enumerate(arcs):
            graph.add_edge(tail, head, key=edge, weight=cost, capacity=most)
        try:
            _, flows = nx.network_simplex(graph)
        except nx.NetworkXUnfeasible:
            return None
        parallel = [arcs for out in flows.values() for arcs in out.values()]
        amounts = {edge: amount for arcs in parallel for edge, amount in arcs.items()}
        return np.array([float(amounts[edge]) for edge in range(costs.size)])


register_backend(Flow, "highs", _highs)
register_backend(Flow, "ortools", OrToolsFlows)
register_backend(Flow, "networkx", NetworkxFlows)
