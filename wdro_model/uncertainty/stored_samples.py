"""Samples that do not fit into memory: Dask arrays, kept on disk and, where they are, on workers.

On this machine a Dask array becomes a memory map, written block by block: everything that reads the
samples in blocks works on it as on an array. Where a Dask client is active its blocks stay on the
workers as well, and sums over them are computed there.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from typing import Any

import numpy as np

MOST_ENTRIES = 2**24
"""A block has at most so many numbers, so that a few of them fit into memory."""


def is_dask_array(given: Any) -> bool:
    """Is it a Dask array? (Without Dask nothing is.)"""
    module = sys.modules.get("dask.array")
    return module is not None and isinstance(given, module.Array)


def on_disk(given: Any) -> np.ndarray:
    """A Dask array as a memory map of a file that is gone when nobody uses it."""
    if any(math.isnan(n) for n in given.shape):
        raise ValueError(
            f"samples have the unknown shape {given.shape}; call compute_chunk_sizes() first."
        )
    handle, path = tempfile.mkstemp(suffix=".wdro")
    os.close(handle)
    try:
        stored = np.memmap(path, dtype=np.float64, mode="w+", shape=given.shape)
        start = 0
        for block in in_row_blocks(given).partitions if given.ndim else []:
            rows = np.asarray(block.compute(), dtype=np.float64)
            stored[start : start + len(rows)] = rows
            start += len(rows)
        stored.flush()
        # Opened anew, its pages are those of the file, and can be dropped when memory is short.
        return np.memmap(path, dtype=np.float64, mode="r", shape=given.shape)
    finally:
        os.unlink(path)  # the map keeps the file until it is gone itself


def in_row_blocks(given: Any) -> Any:
    """The Dask array in blocks of whole rows, none too large."""
    rows = max(1, MOST_ENTRIES // max(1, math.prod(given.shape[1:])))
    whole = given.rechunk(dict.fromkeys(range(1, given.ndim), -1))
    return whole.rechunk({0: rows}) if max(whole.chunks[0]) > rows else whole


def active_client() -> Any | None:
    """The Dask client of this process, if there is one."""
    module = sys.modules.get("distributed")
    if module is None:
        return None
    try:
        return module.get_client()
    except ValueError:
        return None
