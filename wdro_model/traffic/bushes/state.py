"""Bushes of all origins, their flows, and the costs of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from wdro_model.traffic.flows.paths import PathFlow, PathFlows
from wdro_model.traffic.flows.road_graph import Trips


@dataclass(frozen=True, eq=False)
class PowerCosts:
    """t_a(x) = constant_a + sum_k weight_k (x scale_a)^power_k over the terms k of arc a.

    constant, scale (A,); terms (A + 1,): those of arc a are terms[a] to terms[a + 1];
    weight (K,) > 0; power (K,) > 0.
    """

    constant: Array
    scale: Array
    terms: Array
    weight: Array
    power: Array

    @classmethod
    def of(cls, constant: Array, capacity: Array, weight: Array, power: Array) -> PowerCosts:
        """From weights and powers (S, A) of S terms for each arc; terms without effect left out."""
        weight, power = np.atleast_2d(weight), np.atleast_2d(power)
        weight, power = np.broadcast_arrays(weight, power)
        constant = constant + np.where(power == 0, weight, 0.0).sum(axis=0)
        felt = ((weight > 0) & (power > 0)).T
        terms = np.concatenate([[0], np.cumsum(felt.sum(axis=1))])
        return cls(
            np.ascontiguousarray(constant, dtype=np.float64),
            np.ascontiguousarray(np.broadcast_to(1.0 / capacity, constant.shape)),
            terms.astype(np.int64),
            np.ascontiguousarray(weight.T[felt]),
            np.ascontiguousarray(power.T[felt]),
        )

    @classmethod
    def fixed(cls, constant: Array) -> PowerCosts:
        """Costs that no flow changes."""
        none = np.zeros(constant.size + 1, dtype=np.int64)
        return cls(constant, np.ones(constant.size), none, np.empty(0), np.empty(0))

    def taken(self, arcs: Array) -> PowerCosts:
        """The costs of some arcs, in their order."""
        counts = np.diff(self.terms)[arcs]
        terms = np.concatenate([[0], np.cumsum(counts)])
        of = np.repeat(self.terms[arcs] - terms[:-1], counts) + np.arange(terms[-1])
        return PowerCosts(
            self.constant[arcs], self.scale[arcs], terms, self.weight[of], self.power[of]
        )

    @property
    def nonnegative(self) -> bool:
        """Is there no flow at which an arc costs less than nothing?"""
        return bool(np.all(self.constant >= 0.0))

    def refuse_negative(self) -> None:
        """Raise ValueError where an arc without flow costs less than nothing."""
        if not self.nonnegative:
            arc = int(np.argmin(self.constant))
            raise ValueError(
                f"arc {arc} costs {self.constant[arc]:g} without flow, and bushes need costs >= 0; "
                "raise its fixed_cost, or use method='frank_wolfe'."
            )

    def arrays(self) -> tuple[Any, ...]:
        """As the kernels take them."""
        return self.constant, self.scale, self.terms, self.weight, self.power


# ------------------------------
# The bushes of all origins, their flows, and the costs that these bring about


Array = np.ndarray

ARCS_AT_ONCE = 3_000_000
"""A kernel goes through so many arcs before clocks and keyboards have their say."""
MARGIN = 1.3
"""Entries that the pool has room for, as a multiple of those that it must hold."""
PAIRS, LENGTH = 64, 64
"""Pairs of segments that are remembered, as a multiple of the nodes and origins; and the arcs of a
pair for which there is room on the mean. Where it ends, gaps shrink far more slowly."""
MOST_PAIRS = 400_000
FINE = 0.05
"""Differences of costs below this part of the mean excess per trip are left for later."""
PASSES, ROUNDS = 2, 20
"""Searches of all bushes for pairs of segments, and rounds over these after each, in a sweep."""
SLOW, LONGEST = 0.5, 4
"""Where a sweep leaves more than the first part of the gap, the bushes also take a step together;
one that leaves as much is not tried again before twice as many slow sweeps, this many at most."""
PRODUCTS, FEWEST, AT_MOST = 400, 10, 200_000_000
"""Products with the matrix of such a step: so many, fewer where they would go through more arcs."""
DAMPING, LEAST_DAMPING = 1e-6, 1e-12
"""Of such a step at first, as a part of the diagonal, and the least."""
SHORT, FAR = 0.25, 0.9
"""Steps that go less than the first part of their way are damped more, beyond the second less."""

Pause = Callable[[], None]
"""Called between kernels; it may raise."""


def no_pause() -> None:
    """Never ends a run."""


@dataclass(frozen=True, eq=False)
class Roads:
    """The arcs by their tails, without self-loops, and the trips, as the kernels take them.

    arcs (M,): the arc of the network that each of them is.
    """

    trips: Trips

    @cached_property
    def arcs(self) -> Array:
        trips = self.trips
        order = np.argsort(trips.tails, kind="stable")
        return order[trips.tails[order] != trips.heads[order]]

    @cached_property
    def tails(self) -> Array:
        return self.trips.tails[self.arcs].astype(np.uint32)

    @cached_property
    def heads(self) -> Array:
        return self.trips.heads[self.arcs].astype(np.uint32)

    @cached_property
    def indptr(self) -> Array:
        return np.searchsorted(self.tails, np.arange(self.nodes + 1)).astype(np.uint32)

    @property
    def nodes(self) -> int:
        return len(self.trips.names)

    @cached_property
    def demand(self) -> tuple[Array, Array, Array, Array]:
        """Origins, where their pairs start, destinations and quantities."""
        trips = self.trips
        return (
            trips.origins.astype(np.uint32),
            trips.starts.astype(np.int64),
            trips.destinations.astype(np.uint32),
            np.ascontiguousarray(trips.quantities),
        )

    def same_roads(self, other: Roads) -> bool:
        """Do both have the same arcs, and the same nodes that may not be passed?"""
        mine, others = self.trips, other.trips
        return (
            np.array_equal(mine.tails, others.tails)
            and np.array_equal(mine.heads, others.heads)
            and np.array_equal(mine.through, others.through)
        )


class Bushes:
    """Flows on the arcs of the network for each origin, without cycles, at costs of their own.

    Attributes
    ----------
    roads: arcs and trips.
    costs: those of the arcs, as functions of their flows.
    """

    def __init__(self, roads: Roads, costs: PowerCosts) -> None:
        self.roads = roads
        self.costs = costs.taken(roads.arcs)
        count = self.count
        self._place = np.zeros((count + 1, 3), dtype=np.int64)
        self._arcs, self._flows = np.empty(0, dtype=np.uint32), np.empty(0)
        self._x = np.zeros(roads.arcs.size)
        self._cost, self._slope = np.empty_like(self._x), np.empty_like(self._x)
        self._least = np.zeros(count)
        self._gap_before, self._damping = np.inf, DAMPING
        self._slow_sweeps, self._wait, self._joined = 0, 1, False
        self._pairs, self._path = self._notebook()
        self._evaluate()

    def _notebook(self) -> tuple[Array, Array]:
        """Room for pairs of segments."""
        rows = min(PAIRS * (self.roads.nodes + self.count), MOST_PAIRS)
        return np.zeros((rows + 1, 3), dtype=np.int64), np.empty(LENGTH * rows, dtype=np.uint32)

    def __getstate__(self) -> dict[str, Any]:
        # Pairs are found again, and the room that the pool has left is not sent.
        state = vars(self).copy()
        del state["_pairs"], state["_path"]
        used = int(self._place[-1, 0])
        return state | {"_arcs": self._arcs[:used], "_flows": self._flows[:used]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._pairs, self._path = self._notebook()

    def copy(self) -> Bushes:
        """The same flows on bushes of their own."""
        twin = copy(self)
        for name in ("_place", "_arcs", "_flows", "_x", "_cost", "_slope", "_least"):
            setattr(twin, name, getattr(twin, name).copy())
        return twin

    @property
    def entries_held(self) -> int:
        """The arcs of all bushes together."""
        return int(self._place[:-1, 1].sum())

    @property
    def count(self) -> int:
        """The number of origins."""
        return int(self.roads.trips.origins.size)

    @property
    def link_flows(self) -> Array:
        """The flow on each arc of the network (A,)."""
        flows = np.zeros(self.roads.trips.tails.size)
        flows[self.roads.arcs] = self._x
        return flows

    # -------------------------------------------------------------- the steps of the algorithm
    def plant(self, weights: Array | None = None, pause: Pause = no_pause) -> None:
        """Make the bushes shortest path trees; with weights (A,) of the arcs, at these alone."""
        from wdro_model.traffic.bushes import kernels

        roads, nodes = self.roads, self.roads.nodes
        self._room(int(self.count * nodes * MARGIN) + 16 * self.count + 1)
        self._x[:] = 0.0
        costs = self.costs
        if weights is not None:
            costs = PowerCosts.fixed(weights[roads.arcs])
        kernels.evaluate(self._x, *costs.arrays(), self._cost, self._slope)
        for first, last in self._chunks(pause):
            while first < last:
                first = kernels.plant(
                    first,
                    last,
                    *roads.demand,
                    roads.indptr,
                    roads.heads,
                    roads.tails,
                    roads.trips.through,
                    *costs.arrays(),
                    self._x,
                    self._cost,
                    self._slope,
                    self._arcs,
                    self._flows,
                    self._place,
                )
                if first < last:
                    self._grow(nodes)
        self._evaluate()

    def improve(self, pause: Pause = no_pause) -> float:
        """Exchange arcs for such that make paths shorter.

        Returns the relative gap that the flows had: what trips would save on shortest paths, as a
        share of what they spend.
        """
        from wdro_model.traffic.bushes import kernels

        roads, spent = self.roads, self.spent
        total = np.zeros_like(self._x)
        for first, last in self._chunks(pause):
            while first < last:
                first = kernels.improve(
                    first,
                    last,
                    *roads.demand,
                    roads.indptr,
                    roads.heads,
                    roads.tails,
                    roads.trips.through,
                    self._cost,
                    self._arcs,
                    self._flows,
                    self._place,
                    total,
                    self._least,
                )
                if first < last:
                    self._grow(roads.nodes)
        self._x = total
        self._evaluate()
        return (spent - float(self._least.sum())) / spent if spent else 0.0

    def balance(self, gap: float, pause: Pause = no_pause) -> None:
        """Shift flow to shorter segments, finer than the relative gap that there is."""
        from wdro_model.traffic.bushes import kernels

        roads = self.roads
        trips = roads.trips.total
        tolerance = FINE * max(gap, 0.0) * self.spent / trips if trips else 0.0
        state = (
            *self.costs.arrays(),
            self._x,
            self._cost,
            self._slope,
            self._arcs,
            self._flows,
        )
        self._pairs[-1] = 0
        for _ in range(PASSES):
            for first, last in self._chunks(pause):
                kernels.balance(
                    first,
                    last,
                    tolerance,
                    roads.demand[0],
                    roads.heads,
                    roads.tails,
                    *state,
                    self._place,
                    roads.nodes,
                    self._pairs,
                    self._path,
                )
            for rounds in self._rounds(pause):
                if not kernels.repeat(rounds, tolerance, *state, self._pairs, self._path):
                    break
        if self._is_time_to_join(gap):
            self._balance_jointly(state)
            pause()

    def _is_time_to_join(self, gap: float) -> bool:
        """Is a step of all bushes due? After one slow sweep where the last one helped."""
        slow = gap > SLOW * self._gap_before
        if self._joined:
            self._wait = min(2 * self._wait, LONGEST) if slow else 1
        self._slow_sweeps = self._slow_sweeps + 1 if slow else 0
        self._joined = self._slow_sweeps >= self._wait
        self._slow_sweeps = 0 if self._joined else self._slow_sweeps
        self._gap_before = gap
        return self._joined

    def _balance_jointly(self, state: tuple[Array, ...]) -> None:
        """One Newton step of all bushes together, damped more where the last went a short way."""
        from wdro_model.traffic.bushes import cycles

        roads, noted = self.roads, (self._pairs, self._path)
        trees = roads.demand[0], roads.heads, roads.tails, self._cost, self._arcs, self._flows
        cycles.note_cycles(*trees, self._place, roads.nodes, *noted)
        products = min(PRODUCTS, FEWEST + AT_MOST // (1 + int(self._pairs[-1, 1])))
        went = cycles.stride(products, self._damping, *state, *noted)
        if went < SHORT:
            self._damping = min(10.0 * self._damping, 1.0)
        elif went > FAR:
            self._damping = max(0.1 * self._damping, LEAST_DAMPING)

    def reprice(self, costs: PowerCosts) -> None:
        """The same flows at other costs."""
        self.costs = costs.taken(self.roads.arcs)
        self._gap_before = np.inf
        self._evaluate()

    # -------------------------------------------------------------- what there is
    @property
    def spent(self) -> float:
        """What all trips spend, at the costs of the present flows."""
        return float(self._cost @ self._x)

    def entries(self, origin: int) -> tuple[Array, Array]:
        """The arcs of the bush of an origin, by position, and the flows on them.

        The heads of the arcs are in an order in which each arc leads forwards.
        """
        begin, size, _ = self._place[origin]
        part = slice(begin, begin + size)
        return self.roads.arcs[self._arcs[part]], self._flows[part].copy()

    def path_flows(self) -> PathFlows:
        """Trips by pair of zones and path: few paths, the largest first to be taken."""
        from wdro_model.traffic.bushes import kernels

        trips, names = self.roads.trips, self.roads.trips.names
        origins, starts, ends, quantities = self.roads.demand
        paths: list[PathFlow] = []
        for i, origin in enumerate(trips.origins.tolist()):
            pair, amount, cuts, arcs = kernels.peel(
                origins[i],
                starts[i],
                starts[i + 1],
                ends,
                quantities,
                self.roads.heads,
                self.roads.tails,
                self._arcs[self._place[i, 0] : self._place[i, 0] + self._place[i, 1]],
                self._flows[self._place[i, 0] : self._place[i, 0] + self._place[i, 1]].copy(),
                self.roads.nodes,
            )
            own = self.roads.arcs[arcs]
            nodes = trips.heads[own].tolist()
            own = own.tolist()
            bounds = cuts.tolist()
            for k, (p, flow) in enumerate(zip(pair.tolist(), amount.tolist())):
                along = slice(bounds[k], bounds[k + 1])
                paths.append(
                    PathFlow(
                        names[origin],
                        names[trips.destinations[p]],
                        flow,
                        tuple(own[along]),
                        (names[origin], *(names[v] for v in nodes[along])),
                    )
                )
        return PathFlows(paths, np.zeros(trips.tails.size))

    def adopt(self, other: Bushes, pause: Pause = no_pause) -> None:
        """Take over the bushes of the same roads for other trips or costs: a warm start.

        Shares at each node stay as they are; origins that are new get shortest path trees at the
        costs of the flows of the others.
        """
        mine, theirs = self.roads.trips.origins, other.roads.trips.origins
        row = {origin: i for i, origin in enumerate(theirs.tolist())}
        found = [(i, row[origin]) for i, origin in enumerate(mine.tolist()) if origin in row]
        if len(found) < mine.size:
            self.plant(other.link_costs(self.costs))
        for i, j in found:
            begin, size, _ = other._place[j]
            part = slice(begin, begin + size)
            while not self._put(i, other._arcs[part], other._flows[part]):
                self._grow(int(size))
        self._x[:] = 0.0
        for begin, size, _ in self._place[:-1]:
            part = slice(begin, begin + size)
            self._x += np.bincount(self._arcs[part], self._flows[part], self._x.size)
        self._evaluate()
        self.improve(pause)  # which makes the flows meet the demand

    def link_costs(self, costs: PowerCosts) -> Array:
        """Other costs of the arcs, as they are at these flows; by position in the network (A,)."""
        from wdro_model.traffic.bushes import kernels

        cost, slope = np.empty_like(self._x), np.empty_like(self._x)
        kernels.evaluate(self._x, *costs.arrays(), cost, slope)
        found = np.zeros(self.roads.trips.tails.size)
        found[self.roads.arcs] = cost
        return found

    # -------------------------------------------------------------- parts
    def _evaluate(self) -> None:
        from wdro_model.traffic.bushes import kernels

        kernels.evaluate(self._x, *self.costs.arrays(), self._cost, self._slope)

    def _put(self, i: int, arcs: Array, flows: Array) -> bool:
        """Give an origin entries; False if there is no room."""
        size = arcs.size
        if size > self._place[i, 2]:
            free = self._place[-1, 0]
            if free + size > self._arcs.size:
                return False
            self._place[i] = free, size, size
            self._place[-1, 0] = free + size
        at = self._place[i, 0]
        self._arcs[at : at + size] = arcs
        self._flows[at : at + size] = flows
        self._place[i, 1] = size
        return True

    def _room(self, entries: int) -> None:
        """An empty pool."""
        self._place[:] = 0
        self._arcs, self._flows = np.empty(entries, dtype=np.uint32), np.empty(entries)

    def _grow(self, most: int) -> None:
        """A pool without gaps, and with room for more, at least for one bush of `most` arcs."""
        place = self._place.copy()
        held = int(place[:-1, 1].sum())
        left = int((place[:-1, 1] == 0).sum())
        arcs, flows = self._arcs, self._flows
        mean = held // max(1, self.count - left)
        needed = held + left * mean
        self._room(max(needed, int(needed * MARGIN)) + 2 * self.roads.arcs.size + most)
        at = 0
        for i, (begin, size, _) in enumerate(place[:-1].tolist()):
            self._arcs[at : at + size] = arcs[begin : begin + size]
            self._flows[at : at + size] = flows[begin : begin + size]
            self._place[i] = at, size, size
            at += size
        self._place[-1, 0] = at

    def _chunks(self, pause: Pause) -> Iterator[tuple[int, int]]:
        """Ranges of origins, each of a fraction of a second, with pauses after them."""
        step = 1 + ARCS_AT_ONCE // (1 + self._x.size)
        for first in range(0, self.count, step):
            yield first, min(first + step, self.count)
            pause()

    def _rounds(self, pause: Pause) -> Iterator[int]:
        """Numbers of rounds that add up to `ROUNDS`, with pauses after them."""
        step = 1 + ARCS_AT_ONCE // (1 + int(self._pairs[-1, 1]))
        for first in range(0, ROUNDS, step):
            yield min(step, ROUNDS - first)
            pause()
