"""All-or-nothing compiled by Numba: one shortest path tree and its loading after the other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model.sets.backends import LinearOracle, Vector

if TYPE_CHECKING:
    from wdro_model.sets.traffic_flows import TrafficFlows

CHUNKS_PER_THREAD = 4
SCANS_PER_NODE = 10
"""Pape's algorithm may scan so many times the number of nodes; road networks take 1 to 2."""


def with_numba(flows: TrafficFlows) -> LinearOracle:
    """A compiled kernel over the origins; in chunks, on `flows.threads` threads, if asked for."""
    load = _kernel()
    trips = flows.trips
    order = np.argsort(trips.tails, kind="stable")
    tails, heads = trips.tails[order].astype(np.uint32), trips.heads[order].astype(np.uint32)
    indptr = np.searchsorted(tails, np.arange(len(trips.names) + 1)).astype(np.uint32)
    ends, quantities = trips.destinations.astype(np.uint32), trips.quantities.copy()
    through, scans = trips.through.copy(), np.uint32(SCANS_PER_NODE * len(trips.names))
    threads = flows.threads or 1
    ranges = _ranges(trips.origins.size, 1 if threads == 1 else CHUNKS_PER_THREAD * threads)
    chunks = [
        (trips.origins[i:j].astype(np.uint32), trips.starts[i : j + 1].astype(np.uint32))
        for i, j in ranges
    ]

    def minimize(weights: Vector) -> Vector:
        by_tail = weights[order]

        def run(chunk: tuple[Any, Any]) -> Vector:
            found = np.zeros(order.size)
            load(*chunk, ends, quantities, indptr, heads, tails, through, by_tail, scans, found)
            return found

        if threads == 1:
            total = run(chunks[0])
        else:
            # The sum is in the order of the chunks, whichever thread is done first.
            with ThreadPoolExecutor(threads) as pool:
                total = sum(pool.map(run, chunks), np.zeros(order.size))
        link_flows = np.empty(order.size)
        link_flows[order] = total
        return link_flows

    return minimize


def _kernel() -> Callable[..., None]:
    try:
        import numba  # noqa: F401
    except ImportError:
        raise ImportError(
            "backend 'numba' needs Numba, which is not installed: pip install 'wdro_model[fast]', "
            "or use backend='scipy'."
        ) from None
    from wdro_model.sets.traffic_backends.numba_kernel import load_shortest_trees

    return load_shortest_trees


def _ranges(count: int, parts: int) -> list[tuple[int, int]]:
    """About equal ranges that divide `count` origins; one empty range for none."""
    cuts = np.unique(np.linspace(0, count, parts + 1).astype(int)).tolist()
    return list(pairwise(cuts)) or [(0, 0)]
