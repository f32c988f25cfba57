"""Data in frames of pandas, polars and others like them: columns that are matched by their names.

Frames are known by what they offer, `columns` and `to_numpy`: none of these packages is imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Real
from typing import Any

import numpy as np

SHOWN = 6
"""Names of columns that a message lists."""


def is_frame(given: Any) -> bool:
    """Is it a frame, with columns and rows?"""
    return hasattr(given, "columns") and hasattr(given, "to_numpy")


def column_names(given: Any, what: str) -> tuple[Any, ...] | None:
    """The names of the columns; None where they are but numbered 0, 1, ... or it is no frame."""
    if not is_frame(given):
        return None
    if getattr(given.columns, "nlevels", 1) > 1:
        example = next(iter(given.columns), ())
        raise ValueError(
            f"{what} have columns of several levels, such as {example!r}; give each one name first:"
            " frame.columns = ['_'.join(map(str, c)) for c in frame.columns]."
        )
    names = tuple(given.columns)
    if not names:
        raise ValueError(f"{what} are a frame without columns; select some of them.")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{what} have two columns called {twice!r}; drop or rename one of them.")
    return None if names == tuple(range(len(names))) else names


def frame_numbers(given: Any, columns: tuple[Any, ...] | None, what: str) -> np.ndarray:
    """The numbers of a frame, (N, columns), in the order of known columns where it has names."""
    names = column_names(given, what)
    order = None
    if names is not None and columns is not None:
        _refuse_other_columns(names, columns, what)
        order = [names.index(name) for name in columns]
    array = given.to_numpy()
    if array.dtype.kind not in "fiub":
        labels = range(array.shape[1]) if names is None else names
        array = np.column_stack([_numbers(array[:, i], n, what) for i, n in enumerate(labels)])
    return array if order is None or order == list(range(len(order))) else array[:, order]


def _numbers(column: np.ndarray, name: Any, what: str) -> np.ndarray:
    """One column as floats; an error that names it where it holds anything else."""
    for k, value in enumerate(column):
        if not isinstance(value, Real | np.bool_):
            raise ValueError(
                f"{what} must be real numbers, but column {name!r} has {value!r} in row {k}; drop "
                "the column, or convert or impute it first."
            )
    return column.astype(float)


def _refuse_other_columns(names: tuple[Any, ...], columns: tuple[Any, ...], what: str) -> None:
    """An error that names columns which are missing, or too many."""
    missing = [name for name in columns if name not in names]
    extra = [name for name in names if name not in columns]
    if missing:
        near = nearest(missing[0], extra)
        hint = "." if near is None else f"; is it the one called {near!r}?"
        raise ValueError(f"{what} have no column {_listed(missing)}{hint}")
    if extra:
        near = nearest(extra[0], columns)
        hint = "" if near is None else f" (the nearest known one is {near!r})"
        raise ValueError(
            f"{what} have the column {_listed(extra)} too many{hint}; select the known ones: "
            "frame[list(parameter.columns)]."
        )


def nearest(name: Any, known: Iterable[Any]) -> Any | None:
    """The known name that looks most like one; capitals do not matter. None if none does."""
    lower = {str(other).lower(): other for other in known}
    near = get_close_matches(str(name).lower(), list(lower), n=1, cutoff=0.5)
    return lower[near[0]] if near else None


def _listed(names: list[Any]) -> str:
    shown = ", ".join(map(repr, names[:SHOWN]))
    return f"{shown}, ..." if len(names) > SHOWN else shown


def refuse_other_index(samples: Any, probabilities: Any) -> None:
    """Probabilities with an index of their own must be in the order of the samples."""
    index: Any = getattr(samples, "index", None)
    own: Any = getattr(probabilities, "index", None)
    if not (hasattr(index, "equals") and hasattr(own, "equals")):
        return
    if len(index) == len(own) and not index.equals(own):
        raise ValueError(
            "the index of the probabilities is not that of the samples; bring them into one order "
            "first: probabilities.reindex(samples.index), or pass probabilities.to_numpy()."
        )
