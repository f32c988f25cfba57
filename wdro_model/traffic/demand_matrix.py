"""Demand between zones as a matrix: dense where zones are few, sparse where they are many."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import scipy.sparse as sp

Array = np.ndarray
MANY_ZONES = 2000
"""From here on a matrix that is built here is sparse: dense ones take 8 bytes for each pair."""


def as_numbers(given: Any, field: str) -> Array:
    """Real numbers as an array of floats."""
    try:
        array = np.asarray(given)
        if array.dtype.kind not in "fiub":
            raise TypeError(f"it has dtype {array.dtype}")
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{field} must be real numbers: {error}.") from error


def as_demand(given: Any) -> Any:
    """Floats: an array, or a `csr_array` without zeros of what is sparse."""
    if sp.issparse(given):
        if given.dtype.kind not in "fiub":
            raise ValueError(f"demand must be real numbers: it has dtype {given.dtype}.")
        demand = sp.csr_array(given, dtype=np.float64, copy=True)
        demand.sum_duplicates()
        demand.eliminate_zeros()
        return demand
    return as_numbers(given, "demand")


def demand_of(entries: Iterable[tuple[int, int, float]], zones: int) -> Any:
    """The matrix with the given entries (origin, destination, trips), each pair at most once."""
    listed = list(entries)
    rows = np.array([o for o, _, _ in listed], dtype=np.int64)
    columns = np.array([d for _, d, _ in listed], dtype=np.int64)
    trips = as_numbers([q for _, _, q in listed], "demand") if listed else np.zeros(0)
    if zones >= MANY_ZONES:
        return as_demand(sp.coo_array((trips, (rows, columns)), shape=(zones, zones)))
    demand = np.zeros((zones, zones))
    demand[rows, columns] = trips
    return demand


def nonzero_demand(demand: Any) -> tuple[Array, Array, Array]:
    """Origins, destinations and trips of the pairs with demand, by origin, then destination."""
    if sp.issparse(demand):
        entries = sp.csr_array(demand)
        rows = np.repeat(np.arange(entries.shape[0]), np.diff(entries.indptr))
        return rows, entries.indices.astype(np.int64), entries.data
    rows, columns = np.nonzero(demand)
    return rows, columns, demand[rows, columns]


def frozen_demand(demand: Any) -> Any:
    """A read-only copy."""
    copy = demand.copy()
    for array in (copy.data, copy.indices, copy.indptr) if sp.issparse(copy) else (copy,):
        array.flags.writeable = False
    return copy
