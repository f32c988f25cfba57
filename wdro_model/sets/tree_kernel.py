"""Kruskal's loop, compiled by Numba. Imported only where Numba is asked for."""

from __future__ import annotations

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)
def join(order, tails, heads, count, tree):  # type: ignore[no-untyped-def]
    """Set tree[e] = 1 for the edges of `order` that join two components."""
    parent = np.arange(count)
    missing = count - 1
    for edge in order:
        tail, head = tails[edge], heads[edge]
        while parent[tail] != tail:
            parent[tail] = parent[parent[tail]]
            tail = parent[tail]
        while parent[head] != head:
            parent[head] = parent[parent[head]]
            head = parent[head]
        if tail != head:
            parent[tail] = head
            tree[edge] = 1.0
            missing -= 1
            if missing == 0:
                break
