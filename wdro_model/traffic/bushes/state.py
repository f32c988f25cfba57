"""Bushes of all origins, their flows, and the costs of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from wdro_model.traffic.flows.paths import PathFlows, path_flow
from wdro_model.traffic.flows.road_graph import Demand, Roads, Trips

Array = np.ndarray

LINKS_PER_CALL = 3_000_000
"""Links that a kernel goes through between two looks at the clock and the keyboard: a fraction of a
second."""


@dataclass(frozen=True)
class Tolerances:
    """Thresholds of the sweeps over bushes."""

    fine: float = 0.05
    """Differences of costs below this part of the mean excess per trip are left for later sweeps;
    smaller numbers make each sweep slower."""
    fewest_passes: int = 4
    most_passes: int = 16
    """Times that a sweep balances all bushes: a larger first number gains on small networks only;
    where gaps shrink slowly it is doubled up to the second."""
    slow_share: float = 0.25
    """A sweep that leaves more than this part of the gap is slow: the next balances twice as
    often."""
    path_gap: float = 1e-14
    path_sweeps: int = 200
    """The relative gap, or the number of sweeps, after which the search for an equilibrium with
    given flows ends."""
    unused_cost: float = 10.0
    """The cost of an arc without flow in that search, in multiples of the largest weight."""


TOLERANCES = Tolerances()

Pause = Callable[[], None]
"""A function that is called between kernels; it may raise to end a run."""


class PowerCosts(NamedTuple):
    """t_a(x) = constant_a + weight_a (x scale_a)^power_a, each field (A,).

    scale > 0, weight >= 0, power > 0 where weight > 0.
    """

    constant: Array
    scale: Array
    weight: Array
    power: Array

    @classmethod
    def from_capacity(
        cls, constant: Array, capacity: Array, weight: Array | float, power: Array | float
    ) -> PowerCosts:
        """The costs constant + weight (x / capacity)^power; constant where the power is 0."""
        fields = np.broadcast_arrays(
            constant + np.where(np.equal(power, 0), weight, 0.0),
            1.0 / capacity,
            np.where(np.equal(power, 0), 0.0, weight),
            power,
        )
        return cls(*(np.array(field, dtype=np.float64) for field in fields))

    def on_links(self, links: Array) -> PowerCosts:
        """The costs of the arcs `links`, in their order."""
        return PowerCosts(*(field[links] for field in self))

    @property
    def are_nonnegative(self) -> bool:
        """Do all arcs cost at least nothing, at any flow?"""
        return bool(np.all(self.constant >= 0.0))

    def refuse_negative(self) -> None:
        """Raise ValueError where an arc without flow costs less than nothing."""
        if not self.are_nonnegative:
            arc = int(np.argmin(self.constant))
            raise ValueError(
                f"arc {arc} costs {self.constant[arc]:g} without flow, and bushes need costs >= 0; "
                "raise its fixed_cost, or use method='frank_wolfe'."
            )


class LinkState(NamedTuple):
    """The flows of all links, and their costs and slopes at these, each (M,)."""

    flow: Array
    cost: Array
    slope: Array


class BushEntries(NamedTuple):
    """Entries of the bushes: links and flows (O, room), of which row i has size[i]."""

    links: Array
    flows: Array
    size: Array


class BushData(NamedTuple):
    """The arrays that the kernels read and write."""

    roads: Roads
    demand: Demand
    costs: PowerCosts
    links: LinkState
    bushes: BushEntries


class Bushes:
    """Flows on the links of a network for each origin, without cycles, at costs of their own.

    Attributes
    ----------
    trips: the arcs, and the demand by origin.
    costs: those of the links, as functions of their flows.
    """

    def __init__(self, trips: Trips, costs: PowerCosts) -> None:
        self.trips, self.costs = trips, costs.on_links(trips.links)
        count, links, room = trips.origins.size, trips.links.size, _most_entries(trips)
        self._links = LinkState(np.zeros(links), np.empty(links), np.empty(links))
        self._entries = BushEntries(
            np.zeros((count, room), dtype=np.uint32),
            np.zeros((count, room)),
            np.zeros(count, dtype=np.int64),
        )
        self._gap_before, self._passes = np.inf, TOLERANCES.fewest_passes
        self._evaluate()

    @property
    def spent(self) -> float:
        """The cost of all trips, at the costs of the present flows."""
        return float(self._links.cost @ self._links.flow)

    @property
    def link_flows(self) -> Array:
        """The flow on each arc of the network (A,)."""
        return self._on_arcs(self._links.flow)

    # -------------------------------------------------------------- the steps of the algorithm
    def plant(self, weights: Array | None = None, pause: Pause = lambda: None) -> None:
        """Make the bushes shortest path trees; with weights (A,) of the arcs, at these alone."""
        from wdro_model.traffic.bushes import kernels

        trips, costs = self.trips, self.costs
        if weights is not None:
            costs = PowerCosts.from_capacity(weights[trips.links], np.ones(1), 0.0, 0.0)
        self._links.flow[:] = 0.0
        kernels.evaluate(costs, self._links)
        for first, last in self._chunks(pause):
            kernels.plant(first, last, self._data._replace(costs=costs))
        self._evaluate()

    def improve(self, pause: Pause = lambda: None) -> float:
        """Exchange links of the bushes for others that make paths shorter.

        Returns the relative gap that the flows had: the share of their cost that trips would save
        on shortest paths.
        """
        from wdro_model.traffic.bushes import kernels

        links, spent = self._links, self.spent
        total, least = np.zeros_like(links.flow), np.zeros(self.trips.origins.size)
        for first, last in self._chunks(pause):
            kernels.improve(first, last, self._data, total, least)
        links.flow[:] = total
        self._evaluate()
        return (spent - float(least.sum())) / spent if spent else 0.0

    def balance(self, gap: float, pause: Pause = lambda: None) -> None:
        """Shift flow to shorter segments, finer than the relative gap `gap` of the flows."""
        from wdro_model.traffic.bushes import kernels

        mean_cost = self.spent / (self.trips.total or 1.0)
        tolerance = TOLERANCES.fine * max(gap, 0.0) * mean_cost
        is_slow = gap > TOLERANCES.slow_share * self._gap_before
        self._gap_before = gap
        passes = 2 * self._passes if is_slow else self._passes // 2
        self._passes = min(max(passes, TOLERANCES.fewest_passes), TOLERANCES.most_passes)
        before = self._entries.flows.copy() if is_slow else None
        for _ in range(self._passes):
            shifts = 0
            for first, last in self._chunks(pause):
                shifts += kernels.balance(first, last, tolerance, self._data)
            if not shifts:
                break
        if before is not None:
            self._extrapolate(before)

    def _extrapolate(self, before: Array) -> None:
        """A line search in the direction that the flows have moved from `before`.

        Shifts in one bush can undo the shifts in another: of two origins that share two congested
        roads, one wants to leave the first and the other the second. Taking turns, they exchange
        little in each pass; the sum of all their shifts changes no shared flow.
        """
        x, flows = self._links.flow, self._entries.flows
        move = np.subtract(flows, before, out=before)
        change, longest = self._sum_over_bushes(move), np.inf
        for row, direction in zip(flows, move):
            shrinking = direction < 0.0
            longest = np.min(row[shrinking] / -direction[shrinking], initial=longest)

        def slope(step: float) -> float:
            """The derivative of Beckmann's objective."""
            return float(self._costs_at(self.costs, x + step * change) @ change)

        if longest in (0.0, np.inf) or slope(0.0) >= 0.0:
            return
        step = longest if slope(longest) <= 0.0 else float(brentq(slope, 0.0, longest))
        np.maximum(flows + step * move, 0.0, out=flows)
        np.maximum(x + step * change, 0.0, out=x)
        self._evaluate()

    def reprice(self, costs: PowerCosts) -> None:
        """Give the links other costs; flows stay."""
        self.costs = costs.on_links(self.trips.links)
        self._gap_before = np.inf
        self._evaluate()

    def adopt(self, other: Bushes, pause: Pause = lambda: None) -> None:
        """Copy the bushes of the same roads for other trips or costs: a warm start.

        The shares of the links into each node stay as they are; new origins get shortest path trees
        at the costs of the flows of the others.
        """
        mine, theirs = self.trips.origins, other.trips.origins
        _, new, old = np.intersect1d(mine, theirs, return_indices=True)
        if new.size < mine.size:
            self.plant(other.costs_of_arcs(self.costs))
        for entries, others in zip(self._entries, other._entries):
            entries[new] = others[old]
        self._links.flow[:] = self._sum_over_bushes(self._entries.flows)
        self._evaluate()
        self.improve(pause)  # which makes the flows meet the demand

    # -------------------------------------------------------------- results
    def path_flows(self) -> PathFlows:
        """Trips by pair of zones and path: few paths, the largest first to be taken."""
        from wdro_model.traffic.bushes import kernels

        trips, paths = self.trips, []
        for i in range(trips.origins.size):
            pairs, amounts, path_links = kernels.peel_paths(i, self._data)
            ends = np.flatnonzero(path_links == kernels.NONE)
            parts = np.split(path_links, ends + 1)
            for pair, amount, part in zip(pairs.tolist(), amounts.tolist(), parts):
                paths.append(path_flow(trips, pair, amount, trips.links[part[:-1]].tolist()))
        return PathFlows(paths, np.zeros(trips.tails.size))

    def costs_of_arcs(self, costs: PowerCosts) -> Array:
        """Other costs of the links at the present flows, by position in the network (A,)."""
        return self._on_arcs(self._costs_at(costs, self._links.flow))

    # -------------------------------------------------------------- parts
    @property
    def _data(self) -> BushData:
        trips = self.trips
        return BushData(trips.roads, trips.demand, self.costs, self._links, self._entries)

    def _evaluate(self) -> None:
        from wdro_model.traffic.bushes import kernels

        kernels.evaluate(self.costs, self._links)

    @staticmethod
    def _costs_at(costs: PowerCosts, flow: Array) -> Array:
        """The costs of the links (M,) at other flows."""
        from wdro_model.traffic.bushes import kernels

        state = LinkState(flow, np.empty_like(flow), np.empty_like(flow))
        kernels.evaluate(costs, state)
        return state.cost

    def _sum_over_bushes(self, values: Array) -> Array:
        """The sum on each link (M,) of values of the entries (O, room)."""
        total = np.zeros_like(self._links.flow)
        for links, row, size in zip(self._entries.links, values, self._entries.size):
            total += np.bincount(links[:size], row[:size], total.size)
        return total

    def _on_arcs(self, values: Array) -> Array:
        """Values of the links (M,) as values of the arcs (A,), 0 on self-loops."""
        spread = np.zeros(self.trips.tails.size)
        spread[self.trips.links] = values
        return spread

    def _chunks(self, pause: Pause) -> Iterator[tuple[int, int]]:
        """Ranges of origins, each of a fraction of a second, with pauses after them."""
        count = self.trips.origins.size
        step = 1 + LINKS_PER_CALL // (1 + self._links.flow.size)
        for first in range(0, count, step):
            yield first, min(first + step, count)
            pause()


def _most_entries(trips: Trips) -> int:
    """The largest number of links in a bush: of a road, only one direction fits."""
    n = len(trips.names)
    tails, heads = trips.tails[trips.links], trips.heads[trips.links]
    directed, counts = np.unique(tails * n + heads, return_counts=True)
    u, v = np.divmod(directed, n)
    _, road = np.unique(np.minimum(u, v) * n + np.maximum(u, v), return_inverse=True)
    most = np.zeros(directed.size, dtype=np.int64)
    np.maximum.at(most, road, counts)
    return int(most.sum())


# ------------------------------------------------------------------ the paths of an equilibrium
def paths_in_equilibrium(trips: Trips, x: Array, weights: Array, tolerance: float) -> PathFlows:
    """Paths that add up to x, where x is an equilibrium at the weights w.

    At costs t_a(X) = w_a X_a / x_a, and prohibitive ones where x_a = 0, x is the equilibrium: its
    costs are w. No other flow is, where w > 0; bushes find it, and have its paths.
    """
    used = x > 0
    prohibitive = weights + TOLERANCES.unused_cost * max(float(weights.max(initial=0.0)), 1.0)
    costs = PowerCosts.from_capacity(
        np.where(used, 0.0, prohibitive), np.where(used, x, 1.0), np.where(used, weights, 0.0), 1.0
    )
    bushes = Bushes(trips, costs)
    bushes.plant(np.where(used, weights, prohibitive))
    for _ in range(TOLERANCES.path_sweeps):
        gap = bushes.improve()
        apart = float(np.abs(bushes.link_flows - x).sum())
        if gap <= TOLERANCES.path_gap or apart <= 0.01 * tolerance * trips.total:
            break
        bushes.balance(gap)
    if apart > tolerance * (trips.total or 1.0):
        raise ValueError(
            f"x is not the equilibrium of the weights: the flow that is differs from it by "
            f"{apart:.4g} in all (the demand is {trips.total:.10g}), and other flows are taken "
            "apart on small networks only; give the times at which x is an equilibrium as weights, "
            "find it to a smaller gap, or ask an Assignment for its path_flows."
        )
    paths = bushes.path_flows()
    return PathFlows(paths, x - paths.link_flows)
