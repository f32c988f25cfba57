"""The set of link flows that carry the demand of a road network."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse.csgraph import dijkstra

from wdro_model import checks
from wdro_model.sets.arguments import as_direction, as_flat
from wdro_model.sets.backends import Vector
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.traffic.flows import paths
from wdro_model.traffic.flows.paths import OriginFlows, PathFlows
from wdro_model.traffic.flows.road_graph import (
    Indices,
    RoadGraph,
    Trips,
    check_reachable,
    flow_limits,
)
from wdro_model.traffic.network import Network

LARGEST_SUMMABLE = 1e290
"""Weights below this can be added up; larger ones are scaled, which changes no assignment."""
ROUNDING = 1e-12
"""Negative weights down to this part of the largest count as rounding errors, and as zero."""

TrafficBackend = Literal["scipy", "numba", "networkx", "ortools", "cvxpy"]
"""The built-in backends; `register_backend` adds others."""


def has_numba() -> bool:
    """Can Numba be imported? The first call imports it."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


def refuse_without_numba(what: str, instead: str) -> None:
    """Raise ImportError where Numba is not installed."""
    if not has_numba():
        raise ImportError(
            f"{what} needs Numba, which is not installed: pip install 'wdro_model[fast]', or use "
            f"{instead}."
        )


class TrafficFlows(FeasibleSet):
    """The flows x (A,) on the arcs of a network that route all demand between its zones.

    x_a is the number of trips on arc a, in the network's order, summed over all pairs of zones. A
    vertex is an *all-or-nothing* assignment: under the weights w every trip takes a shortest path,

        min { <w, x> : x in the set } = sum over pairs (o, d) of demand(o, d) distance_w(o, d).

    Weights must be >= 0 (travel times are). Nodes with through=False are ends of trips, never
    passed; of parallel arcs the cheapest is used; self-loops carry nothing; demand within a zone is
    not loaded. A network without demand has one flow, zero.

    Backends: "numba" (compiled, 3 to 10 times as fast as the next; the default if Numba is there:
    `pip install 'wdro_model[fast]'`), "scipy" (the default otherwise: Dijkstra on arrays that are
    built once, loading by pointer doubling), "networkx", "ortools" (minimum cost flow,
    weights rounded to integers), "cvxpy" (a linear program through HiGHS, for small networks). All
    find the same cost; where several paths are shortest, the flows may differ.

    Parameters
    ----------
    network
        A `wdro_model.traffic.Network`, or any object with tails, heads, demand, zones, through
        and nodes.
    backend
        One of `TrafficFlows.backends()`.
    threads
        The number of threads that share the origins, for "numba" only; 1 if not given. Threads pay
        off if an assignment takes some milliseconds and cores are free.

    Examples
    --------
    >>> import cvxpy as cp, wdro_model as wdro
    >>> scenarios = wdro.datasets.training_scenarios(wdro.datasets.sioux_falls())
    >>> network = scenarios.network
    >>> flows = wdro.sets.TrafficFlows(network)
    >>> x = cp.Variable(flows.dimension)
    >>> time, alpha, beta = scenarios.parameters(10, seed=0)
    >>> loss = wdro.traffic.beckmann(x, network.capacity, time, alpha, beta)
    >>> problem = wdro.Problem(cp.Minimize(loss), [wdro.In(x, flows)])
    >>> value = problem.solve(solver=wdro.solvers.FrankWolfe(gap=1e-2))
    >>> flows.contains(x.value)
    True
    """

    default_backend = "scipy"
    has_constraints = True
    is_polytope = True
    nonnegative_directions = True
    rounds = False
    threaded_backends: ClassVar[tuple[str, ...]] = ("numba",)

    def __init__(
        self,
        network: Any,
        backend: TrafficBackend | str | None = None,
        *,
        threads: int | None = None,
    ) -> None:
        self.network = network
        self.trips = Trips.from_network(network)
        self.graph = RoadGraph(self.trips)
        self.dimension = int(self.trips.tails.size)
        check_reachable(self.graph)
        limits = flow_limits(self.graph)
        self.bounds = (np.zeros(self.dimension), limits)
        self._usable = np.flatnonzero(limits)
        self.threads = _checked_threads(threads)
        self.use_backend(backend)

    @cached_property
    def names(self) -> Any:
        """The arcs as pairs of nodes; None where two arcs join the same ones."""
        nodes = self.network.nodes
        arcs = tuple((nodes[u], nodes[v]) for u, v in zip(self.trips.tails, self.trips.heads))
        return arcs if len(set(arcs)) == len(arcs) else None

    @property
    def preferred_direction(self) -> str:  # type: ignore[override]
        """Newton directions with SciPy, whose shortest paths are fast; else biconjugate ones."""
        return "oracle_newton" if self.backend == "scipy" else "biconjugate"

    @property
    def own_direction(self) -> Any:
        """Directions towards equilibria, for the compiled backend; None for others."""
        if self.backend != "numba":
            return None
        from wdro_model.traffic.bushes.directions import TowardsEquilibrium

        return TowardsEquilibrium(self)

    def reset(self) -> None:
        """Forget the state of earlier solves, so that a run can be repeated exactly."""
        super().reset()
        if self.backend == "numba":
            self.memory.clear()

    def minimize(
        self, direction: ArrayLike, lower: ArrayLike | None = None, upper: ArrayLike | None = None
    ) -> Vector:
        """The all-or-nothing assignment for the given weights of the arcs, as a fresh array."""
        if lower is not None or upper is not None:
            raise ValueError(
                f"{self!r} cannot be minimised within bounds on the flows of its arcs: its oracle "
                "sends all trips along shortest paths; use sets.Flow for capacities."
            )
        weights = np.asarray(direction, dtype=np.float64)
        if weights.shape == (self.dimension,):
            least, largest = np.minimum.reduce(weights), np.maximum.reduce(weights)
            if least >= 0.0 and largest < LARGEST_SUMMABLE:
                return self._oracle(weights)
        weights = self._as_weights(weights)
        return self._oracle(weights / max(weights.max() / LARGEST_SUMMABLE, 1.0))

    def plot(self, x: ArrayLike, path: Any = None, *, ax: Any = None) -> Any:
        """A map of a flow, as `traffic.plot_flows` draws it; bars where there is no Network."""
        from wdro_model.traffic.maps import plot_flows

        if not isinstance(self.network, Network):
            return super().plot(x, path, ax=ax)
        return plot_flows(self.network, np.ravel(x), path, ax=ax)

    def shortest_costs(self, weights: ArrayLike) -> Vector:
        """The least cost of a trip between each pair of zones (Z, Z); inf where there is no way."""
        zones, graph = self.trips.zones, self.graph
        matrix = graph.matrix(graph.weights(self._as_weights(weights, graph.proper)))
        costs = np.empty((zones.size, zones.size))
        for part in graph.chunks(zones.size):
            costs[part] = dijkstra(matrix, indices=graph.departure[zones[part]])[:, zones]
        costs[zones[:, None] == zones] = 0.0
        return costs

    def shortest_paths(self, weights: ArrayLike) -> PathFlows:
        """The all-or-nothing assignment path by path: one path for each pair with demand.

        Mixtures are written `0.4 * flows.shortest_paths(v) + 0.6 * flows.shortest_paths(w)`.
        """
        return paths.shortest_routes(self.graph, self._as_weights(weights))

    def path_flows(
        self, x: ArrayLike, weights: ArrayLike | None = None, tolerance: float = 1e-6
    ) -> PathFlows:
        """Flows per pair of zones and path that add up to the link flows x.

        Path flows are not unique. Paths are preferred that keep moving away from their origin as
        `weights` measure it (1 for each arc if not given): with the travel times of an equilibrium
        these are shortest paths. Circulations of x, which no simple path carries, are left in the
        `remainder`. x is refused if no flow that routes the demand is closer to it than `tolerance`
        times the total demand. On small networks this solves a linear program. On large ones x must
        be the equilibrium of the weights, and bushes find its paths in seconds (with Numba); an
        `Assignment` of `equilibrium` has its own `path_flows()`.
        """
        point = as_direction(x, self.dimension, kind="x")
        metric = np.ones(self.dimension) if weights is None else self._as_weights(weights)
        if (
            weights is not None
            and has_numba()
            and self._count_flows() > paths.TOLERANCES.most_flows
        ):
            from wdro_model.traffic.bushes.state import paths_in_equilibrium

            return paths_in_equilibrium(self.trips, point, metric, tolerance)
        split = self.origin_flows(
            "taking a link flow apart",
            "keep the weights of the assignments that were mixed and add up their shortest_paths, "
            "give the times of an equilibrium as weights, or ask an Assignment for its path_flows",
        )
        return paths.decompose(self.graph, split, point, metric, tolerance)

    def constraints(self, x: Any) -> list[Any]:
        """Flow conservation for each origin o: x = sum_o y_o, y_o >= 0.

        With N the node-arc incidence matrix, N y_o = (the demand from o at node o, minus the demand
        from o to each destination), y_o <= the demand from o. Arcs into o, and arcs out of other
        nodes that may not be passed, carry no y_o. The program is in the shares y_o / demand of o.
        Beside all mixtures of path flows it admits circulations, which cost nothing less in
        nonnegative directions: minima of linear functions with nonnegative slopes are the same.
        """
        x = as_flat(x, self.dimension)
        split = self.origin_flows()
        if not split.count:
            return [x == 0]
        trips = self.trips
        shares = cp.Variable(split.count)
        supply = split.supplies(trips.quantities / trips.leaving[trips.rows])
        return [
            split.conservation @ shares == supply,
            shares >= 0,
            shares <= 1,
            x == split.collect(trips.leaving) @ shares,
        ]

    def contains(self, x: ArrayLike, tolerance: float = 1e-6) -> bool:
        """Is x within `tolerance` times the total demand of flows that route the demand?

        As in `constraints`, circulations of each origin are accepted up to its demand.
        """
        point = as_direction(x, self.dimension, kind="x")
        if self.is_unbalanced(point, tolerance):
            return False
        split = self.origin_flows(
            "telling whether flows route the demand, where they balance at every node,",
            "the flows of an Assignment, and mixtures of those of minimize, do",
        )
        return paths.distance_to_flows(split, point) <= tolerance

    def is_unbalanced(self, x: ArrayLike, tolerance: float = 1e-6) -> bool:
        """Are nodes so far out of balance that no flow within the tolerance routes the demand?

        Flows that differ by d, summed over the arcs, have nodes out of balance by up to 2 d. The
        test needs no linear program; flows that balance may still not route the demand.
        """
        x = as_direction(x, self.dimension, kind="x")
        trips, n = self.trips, len(self.trips.names)
        proper = trips.tails != trips.heads
        left = np.bincount(trips.tails[proper], x[proper], n)
        left -= np.bincount(trips.heads[proper], x[proper], n)
        left -= np.bincount(trips.origins, trips.leaving, n)
        left += np.bincount(trips.destinations, trips.quantities, n)
        allowed = tolerance * (trips.total or 1.0)
        apart = max(0.5 * float(np.abs(left).sum()), -float(np.minimum(x, 0.0).sum()))
        return apart > allowed * (1.0 + 1e-9)

    def origin_flows(self, purpose: str | None = None, way_out: str = "") -> OriginFlows:
        """The flows by origin of `constraints`; refused for a purpose if there are too many.

        purpose, way_out: words for the error; without them any number is accepted.
        """
        assert self.bounds is not None
        if purpose is not None:
            paths.refuse_large(self._count_flows(), purpose, way_out)
        return OriginFlows.from_limits(self.trips, self.bounds[1])

    def _count_flows(self) -> int:
        """The number of flows of one origin on one arc."""
        assert self.bounds is not None
        return paths.count_flows(self.trips, self.bounds[1])

    def with_backend(self, name: str, *, threads: int | None = None) -> Self:
        """The same set, minimised by another backend."""
        twin = self.__copy__()
        twin.threads = _checked_threads(threads)
        twin.use_backend(name)
        return twin

    def describe(self) -> str:
        """The set in one line."""
        trips = self.trips
        threads = "" if self.threads is None else f" on {self.threads} threads"
        return (
            f"link flows of {trips.total:.10g} trips between {trips.quantities.size} pairs of "
            f"zones, on {len(trips.names)} nodes and {self.dimension} arcs, minimised by "
            f"{self.backend}{threads}"
        )

    def use_backend(self, backend: str | None = None) -> None:
        """Build the oracle of a backend; threads are for those that have them."""
        name = self._default_backend() if backend is None else backend
        if self.threads is not None and name not in self.threaded_backends:
            raise ValueError(
                f"threads={self.threads} was given, but backend {name!r} runs on one thread; "
                f"use backend='numba' or leave threads out."
            )
        super().use_backend(name)
        if name == "numba":
            from wdro_model.traffic.bushes.directions import SolveMemory

            self.memory = SolveMemory()

    def _default_backend(self) -> str:
        """The default backend: Numba in place of SciPy where it is installed."""
        return "numba" if self.default_backend == "scipy" and has_numba() else self.default_backend

    def _as_weights(self, direction: ArrayLike, arcs: Indices | None = None) -> Vector:
        """Weights that are finite and >= 0; negative weights matter only on `arcs`."""
        weights = as_direction(direction, self.dimension)
        if weights.min() >= 0.0:
            return weights
        arcs = self._usable if arcs is None else arcs
        used = weights[arcs]
        if used.size and used.min() < -ROUNDING * np.abs(used).max():
            arc = int(arcs[np.argmin(used)])
            raise ValueError(
                f"arc {arc} ({self.trips.arc_name(arc)}) has the negative weight {weights[arc]:g}: "
                "traffic is assigned to shortest paths under nonnegative weights; keep the loss "
                "increasing in every flow (restrict samples of times to nonnegative ones)."
            )
        return np.maximum(weights, 0.0)  # rounding errors below zero

    def __repr__(self) -> str:
        trips = self.trips
        return (
            f"TrafficFlows({len(trips.names)} nodes, {self.dimension} arcs, "
            f"{trips.origins.size} origins)"
        )


def _checked_threads(threads: Any) -> int | None:
    return None if threads is None else checks.whole_number("threads", threads, low=1)
