"""Flows told apart by their origin: the linear form of traffic on a network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from wdro_model.sets.backends import Vector
from wdro_model.traffic.flows.trips import Indices, Trips

MOST_FLOWS = 200_000
"""Linear programs over more flows than this are refused: they take minutes."""


@dataclass(frozen=True, eq=False)
class OriginFlows:
    """y_k >= 0: the flow from one origin on one arc, for the K pairs that a route can use.

    A route from an origin does not return to it, does not leave another node that may not be
    passed, and enters one only to end there. At every node, for every origin,

        conservation @ y = out - in = what the origin sends into the node.

    rows (K,): the origin of each flow, as a position in `trips.origins`; arcs (K,): its arc;
    conservation (R, K), origin_of (R,), node_of (R,): its rows, the ones without an arc left out.
    """

    trips: Trips
    rows: Indices
    arcs: Indices
    conservation: sp.csr_array
    origin_of: Indices
    node_of: Indices

    @classmethod
    def of(cls, trips: Trips, limits: Vector) -> OriginFlows:
        """The flows on arcs with a positive limit."""
        n, count = len(trips.names), trips.origins.size
        ends_here = np.zeros((count, n), dtype=bool)
        ends_here[trips.rows, trips.destinations] = True
        origin = trips.origins[:, None]
        may_leave = trips.through[trips.tails] | (trips.tails == origin)
        may_enter = (trips.through | ends_here)[:, trips.heads] & (trips.heads != origin)
        rows, arcs = np.nonzero(may_leave & may_enter & (limits > 0))
        flows = np.arange(rows.size)
        ones = np.ones(rows.size)
        shape = (count * n, rows.size)
        leaves = sp.csr_array((ones, (rows * n + trips.tails[arcs], flows)), shape=shape)
        enters = sp.csr_array((ones, (rows * n + trips.heads[arcs], flows)), shape=shape)
        met = np.flatnonzero(np.diff(leaves.indptr) + np.diff(enters.indptr))
        return cls(trips, rows, arcs, sp.csr_array((leaves - enters)[met]), met // n, met % n)

    @property
    def count(self) -> int:
        """K."""
        return int(self.rows.size)

    def supplies(self, quantities: Vector) -> Vector:
        """What enters at each row of `conservation` (R,) when pair p sends quantities[p]."""
        trips = self.trips
        supply = np.zeros((trips.origins.size, len(trips.names)))
        supply[trips.rows, trips.destinations] = -quantities
        sent = np.bincount(trips.rows, quantities, trips.origins.size)
        supply[np.arange(trips.origins.size), trips.origins] += sent
        return supply[self.origin_of, self.node_of]

    def collect(self, scale: Vector) -> sp.csr_array:
        """The matrix (A, K) that sums scale[origin] y_k over the flows of each arc."""
        shape = (self.trips.tails.size, self.count)
        return sp.csr_array((scale[self.rows], (self.arcs, np.arange(self.count))), shape=shape)


def count_of(trips: Trips, limits: Vector) -> int:
    """K, origin by origin: their flows may be too many to be written down."""
    tails, heads, usable = trips.tails, trips.heads, limits > 0
    count = 0
    for row, origin in enumerate(trips.origins.tolist()):
        ends = trips.through.copy()
        ends[trips.destinations[trips.starts[row] : trips.starts[row + 1]]] = True
        ends[origin] = False
        leaves = trips.through[tails] | (tails == origin)
        count += int(np.count_nonzero(usable & leaves & ends[heads]))
    return count


def refuse_large(count: int, what: str, way_out: str) -> None:
    """Raise ValueError where a linear program over so many flows would be too large."""
    if count > MOST_FLOWS:
        raise ValueError(
            f"{what} is a linear program over the flow from each origin on each arc, here "
            f"{count} of them (at most {MOST_FLOWS}); {way_out}."
        )
