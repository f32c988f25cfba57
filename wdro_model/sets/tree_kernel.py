"""Kruskal's loop, compiled by Numba. Imported only where Numba is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np


def compiled_tree(function: Callable[..., None], njit: Callable[..., Any] = numba.njit) -> Any:
    """The function as machine code, kept on disk where there is a place for it."""
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:
        # Neither the folder of this file nor the user's cache folder can be written.
        return njit(nogil=True)(function)


@compiled_tree
def join(order: Any, tails: Any, heads: Any, count: int, tree: Any) -> None:
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
