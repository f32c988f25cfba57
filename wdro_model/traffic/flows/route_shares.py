"""Shares of the trips between two zones on each route: decisions that fit every demand."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from wdro_model.sets.matroids import Partition
from wdro_model.traffic.fields import as_numbers
from wdro_model.traffic.flows.paths import PathFlows
from wdro_model.traffic.flows.traffic_flows import TrafficFlows
from wdro_model.traffic.network import Network

AVERAGING_STEPS = 12
"""Steps of successive averages whose shortest paths are the default routes; more steps give more
routes."""


class RouteShares(Partition):
    """Shares x (P,) >= 0 of the trips between each pair of zones on each of its routes, 1 in all.

    Link flows route one demand; shares route every demand: if d_p is the demand of the pair of
    route p, the link flow is uses @ (d * x), so that the demand can be uncertain. The P routes are
    fixed beforehand.

    Parameters
    ----------
    network
        Trips travel between its pairs of zones with demand.
    routes
        `PathFlows` whose paths are the routes, or times (K, A), with the shortest paths at each row
        as routes. By default the shortest paths that a dozen steps of successive averages find on
        the way from free-flow times to an equilibrium.

    Examples
    --------
    >>> routes = wdro.traffic.RouteShares(network)
    >>> demand = wdro.UncertainParameter(
    ...     len(routes.pairs), "demand", samples=[routes.demand, 1.2 * routes.demand],
    ...     support=wdro.supports.Nonnegative(),
    ... )
    >>> x = cp.Variable(routes.dimension, nonneg=True)
    >>> loss = wdro.traffic.beckmann(
    ...     routes.link_flow(x, demand), network.capacity, network.free_flow_time, network.b,
    ...     network.power,
    ... )
    >>> problem = wdro.Problem(cp.Minimize(loss), [wdro.In(x, routes)])
    >>> problem.solve(solver=wdro.solvers.FrankWolfe(gap=0.1)) > 0
    True
    """

    def __init__(self, network: Network, routes: PathFlows | ArrayLike | None = None) -> None:
        routes_of = _routes_by_pair(network, routes)
        groups = {pair: [(*pair, arcs) for arcs in ways] for pair, ways in routes_of.items()}
        super().__init__(groups, 1, bases=True)
        self.network = network
        self.pairs: list[tuple[Any, Any]] = list(routes_of)
        """The names of the zones of each pair."""
        self.routes: list[tuple[int, ...]] = [arcs for ways in routes_of.values() for arcs in ways]
        """The links of each route."""
        columns = np.repeat(np.arange(len(self.routes)), [len(route) for route in self.routes])
        rows = np.array([arc for route in self.routes for arc in route], dtype=np.int64)
        shape = (network.n_arcs, len(self.routes))
        self.uses = sp.csr_array((np.ones(rows.size), (rows, columns)), shape=shape)
        """(A, P) sparse: 1 where a route uses a link."""
        zone = {network.nodes[node]: z for z, node in enumerate(network.zones)}
        self.zones = np.array([(zone[o], zone[d]) for o, d in self.pairs], dtype=np.int64)
        """(pairs, 2) the zones of each pair, as positions in the demand's matrix."""
        self.demand = self.demands(network.demand)
        """(pairs,) the trips between the zones of each pair."""

    def demands(self, matrices: Any) -> np.ndarray:
        """The demand (..., pairs) of the pairs, from matrices (..., Z, Z)."""
        if sp.issparse(matrices):
            return np.asarray(sp.csr_array(matrices)[self.zones[:, 0], self.zones[:, 1]]).ravel()
        array = as_numbers(matrices, "demand")
        count = self.network.n_zones
        if array.shape[-2:] != (count, count):
            raise ValueError(
                f"matrices of demand must have shape (..., {count}, {count}), got {array.shape}."
            )
        return array[..., self.zones[:, 0], self.zones[:, 1]]

    def link_flow(self, shares: Any, demand: Any = None) -> Any:
        """The flow (A,) on the links: an expression of CVXPY, or numbers for numbers.

        Parameters
        ----------
        shares
            (P,), a variable or numbers.
        demand
            (pairs,) in the order of `pairs`: an uncertain parameter, a parameter or numbers; the
            network's own if not given.
        """
        trips = self.demand if demand is None else demand
        shape = np.shape(trips) if not hasattr(trips, "shape") else trips.shape
        if shape != (len(self.pairs),):
            raise ValueError(
                f"demand must have shape ({len(self.pairs)},), one entry for each pair with "
                f"routes, got {shape}; routes.demands(matrix) has it from a matrix."
            )
        if np.shape(shares) != (self.dimension,):
            raise ValueError(
                f"shares must have shape ({self.dimension},), one entry for each route, got "
                f"{np.shape(shares)}."
            )
        is_expression = isinstance(trips, cp.Expression)
        of_route = (trips if is_expression else np.asarray(trips, dtype=float))[self.group_of]
        if is_expression or isinstance(shares, cp.Expression):
            return self.uses @ cp.multiply(of_route, shares)
        return self.uses @ (of_route * np.asarray(shares, dtype=float))

    def describe(self) -> str:
        return f"shares of {self.dimension} routes between {len(self.pairs)} pairs of zones"

    def __repr__(self) -> str:
        return f"RouteShares({self.dimension} routes, {len(self.pairs)} pairs of zones)"


def _routes_by_pair(network: Network, given: Any) -> dict[tuple[Any, Any], list[tuple[int, ...]]]:
    """The distinct routes of each pair."""
    flows = TrafficFlows(network)
    if isinstance(given, PathFlows):
        paths = list(given)
    else:
        if given is None:
            rows = _averaged_times(network, flows)
        else:
            rows = np.atleast_2d(as_numbers(given, "routes"))
        if rows.ndim != 2 or rows.shape[1] != network.n_arcs:
            raise ValueError(
                f"routes must be path flows, or times of shape (K, {network.n_arcs}), got shape "
                f"{rows.shape}."
            )
        paths = [path for row in rows for path in flows.shortest_paths(row)]
    routes: dict[tuple[Any, Any], dict[tuple[int, ...], None]] = {}
    for path in paths:
        routes.setdefault((path.origin, path.destination), {})[path.arcs] = None
    if not routes:
        raise ValueError(f"{network!r} has no demand between different zones: nothing to route.")
    missing = len(flows.trips.quantities) - len(routes)
    if missing:
        raise ValueError(
            f"{missing} pairs of zones with demand have no route among those given; give a route "
            "for each, or times."
        )
    return {pair: list(ways) for pair, ways in routes.items()}


def _averaged_times(network: Network, flows: TrafficFlows) -> np.ndarray:
    """Travel times (K, A) on the way from an empty network to an equilibrium."""
    times = [network.travel_time(np.zeros(network.n_arcs))]
    flow = flows.minimize(times[0])
    for k in range(1, AVERAGING_STEPS):
        times.append(network.travel_time(flow))
        flow = flow + 2.0 / (k + 2.0) * (flows.minimize(times[-1]) - flow)
    return np.array(times)
