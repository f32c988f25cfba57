"""Scenarios as they are taken in: finite float64 rows of one shape, copied only if needed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from wdro_model.uncertainty.supports import first_index

CHUNK_ENTRIES = 1 << 18
"""Checks look at about this many numbers at a time, so that they need no copy of the data."""


def as_scenarios(given: Any, shape: tuple[int, ...], what: str) -> np.ndarray:
    """Finite float64 C-contiguous scenarios (B, *shape), B >= 1, without a copy where possible.

    For a scalar (B, 1) is read as (B,), for shape (1,) the other way round.
    """
    array = _as_numbers(given, what)
    if array.ndim >= 1 and {array.shape[1:], shape} == {(), (1,)}:
        array = array.reshape(len(array), *shape)
    if array.ndim == 0 or array.shape[1:] != shape:
        expected = f"(N, {', '.join(map(str, shape))})" if shape else "(N,)"
        raise ValueError(
            f"{what} must have shape {expected}, one row per scenario, got {array.shape}"
            f"{_shape_hint(array.shape, shape)}."
        )
    if len(array) == 0:
        raise ValueError(f"{what} are empty (shape {array.shape}); give at least one.")
    array = np.require(array, dtype=np.float64, requirements=["C", "A"])
    for start, rows in chunks(array):
        finite = np.isfinite(rows)
        if not finite.all():
            at = first_index(~finite)
            index = (start + at[0], *at[1:])
            raise ValueError(
                f"{what} must be finite, got {float(rows[at])} at index {index}; "
                "drop or impute it first."
            )
    return array


def as_rows(given: Any, size: int, what: str) -> np.ndarray:
    """Indices (n,), n >= 1, into `size` samples, from indices, booleans, a range or a slice."""
    if isinstance(given, slice):
        given = range(*given.indices(size))
    rows = np.asarray(list(given) if isinstance(given, range) else given)
    if rows.dtype == bool and rows.shape == (size,):
        rows = np.flatnonzero(rows)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise ValueError(
            f"{what} must be a list of integers, or {size} booleans, one for each sample; got "
            f"shape {rows.shape} of {rows.dtype}."
        )
    if rows.size == 0:
        raise ValueError(f"{what} are empty; keep at least one of the {size} samples.")
    outside = (rows < 0) | (rows >= size)
    if outside.any():
        raise ValueError(
            f"{what} must lie between 0 and {size - 1}, got {int(rows[outside][0])}; there are "
            f"{size} samples, counted from 0."
        )
    return rows.astype(np.intp)


def chunks(array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Blocks of rows of bounded size, each with the index of its first row."""
    step = max(1, CHUNK_ENTRIES // max(1, math.prod(array.shape[1:])))
    return ((start, array[start : start + step]) for start in range(0, len(array), step))


def read_only(array: np.ndarray) -> np.ndarray:
    """A view that cannot be written through; the array itself stays as it is."""
    view = array.view()
    view.flags.writeable = False
    return view


def _as_numbers(given: Any, what: str) -> np.ndarray:
    if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):
        raise ValueError(f"{what} have masked entries; drop or impute them first.")
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise ValueError(f"{what} do not form a regular array: {error}") from error
    if array.dtype.kind in "fiub":
        return array
    odd = [v for v in array.flat if not isinstance(v, float | int | np.number)][:1]
    example = f", for example {odd[0]!r}" if array.dtype.kind == "O" and odd else ""
    way_out = "take .real" if array.dtype.kind == "c" else "convert with .astype(float)"
    raise ValueError(
        f"{what} must be real numbers, got a {type(given).__name__} of dtype {array.dtype}"
        f"{example}; {way_out} first."
    )


def _shape_hint(given: tuple[int, ...], shape: tuple[int, ...]) -> str:
    if given == shape:
        return "; for a single scenario write array[None]"
    if shape and given[:-1] == shape:
        return "; the sample axis comes first: np.moveaxis(array, -1, 0)"
    if len(shape) > 1 and len(given) == 2 and given[1] == math.prod(shape):
        return f"; reshape the flat rows with array.reshape(-1, {', '.join(map(str, shape))})"
    return ""
