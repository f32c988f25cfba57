"""Labels of data: columns and rows of frames, indices of series, keys of dictionaries.

Labels match labels: where two sides have some, entries are brought into one order by them, and what
does not match is refused. Where one side has none, or but the numbers 0, 1, ... in their order,
entries are taken by position; the same numbers in another order are labels. Frames of pandas,
polars and others are known by what they offer, `columns` and `to_numpy`, series by their `index`:
none of these packages is imported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from numbers import Real
from typing import Any, Protocol, runtime_checkable

import numpy as np

SHOWN = 6
"""Names of columns that a message lists."""


@runtime_checkable
class NamesCoordinates(Protocol):
    """A feasible set, as far as labels go."""

    names: tuple[Any, ...] | None
    """The label of each coordinate; None where there are none."""
    coordinates: Mapping[Any, int]
    """The coordinate of each label, and of its other spellings."""


def is_frame(given: Any) -> bool:
    """Is it a frame, with columns and rows, or a dictionary of columns?"""
    return isinstance(given, Mapping) or (hasattr(given, "columns") and hasattr(given, "to_numpy"))


def column_names(
    given: Any,
    what: str,
    known: NamesCoordinates | tuple[Any, ...] | None = None,
    numbered: bool = False,
) -> tuple[Any, ...] | None:
    """The names of the columns; None if it is no frame, or they are 0, 1, ... and not `numbered`.

    known: labels that are expected; columns of several levels are read as tuples where these are.
    """
    if not is_frame(given):
        return None
    coordinates = known.coordinates if isinstance(known, NamesCoordinates) else {}
    labels = known.names if isinstance(known, NamesCoordinates) else known
    names = tuple(given) if isinstance(given, Mapping) else tuple(given.columns)
    levels = getattr(getattr(given, "columns", None), "nlevels", 1)
    if levels > 1 and not any(isinstance(label, tuple) for label in labels or ()):
        example = next(iter(names), ())
        raise ValueError(
            f"{what} have columns of several levels, such as {example!r}; give each one name first:"
            " frame.columns = ['_'.join(map(str, c)) for c in frame.columns]; or, where they are "
            "edges or pairs of a set, declare the parameter with labels=set."
        )
    if not names:
        raise ValueError(f"{what} are a frame without columns; select some of them.")
    names = tuple(labels[coordinates[n]] if labels and n in coordinates else n for n in names)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{what} have two columns called {twice!r}; drop or rename one of them.")
    return None if not numbered and is_numbering(names) else names


def as_labels(given: Any, what: str) -> tuple[Any, ...]:
    """The labels that a user gives as a list, or as a set whose coordinates have names."""
    if isinstance(given, NamesCoordinates):
        if given.names is None:
            raise ValueError(f"labels= of {what} is {given!r}, which has no labels; give a list.")
        return tuple(given.names)
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ValueError(f"labels= of {what} must be a set or a list of labels, got {given!r}.")
    labels = tuple(given)
    _refuse_twice(labels, f"labels= of {what}")
    return labels


def frame_numbers(
    given: Any, columns: tuple[Any, ...] | None, what: str, known: Any = None
) -> np.ndarray:
    """The numbers of a frame, (N, columns), in the order of known columns where it has names."""
    names = column_names(given, what, columns if known is None else known, numbered=True)
    order = label_order(names, columns, what, "column")
    array = _stacked(given, what) if isinstance(given, Mapping) else given.to_numpy()
    if array.dtype.kind not in "fiub":
        array = np.column_stack([_numbers(c, n, what) for n, c in zip(names or (), array.T)])
    return array if order is None or order == list(range(len(order))) else array[:, order]


def _stacked(columns: Mapping[Any, Any], what: str) -> np.ndarray:
    """The columns of a dictionary side by side, their rows paired by their labels."""
    arrays = [np.asarray(column) for column in columns.values()]
    if any(array.ndim != 1 or array.shape != arrays[0].shape for array in arrays):
        shapes = ", ".join(str(array.shape) for array in arrays[:SHOWN])
        raise ValueError(f"columns of {what} must be (N,) and of the same length, got {shapes}.")
    orders = row_orders([repr(n) for n in columns], [index_of(c) for c in columns.values()])
    return np.column_stack([a if o is None else a[o] for a, o in zip(arrays, orders)])


def _numbers(column: np.ndarray, name: Any, what: str) -> np.ndarray:
    """One column as floats; an error that names it where it holds anything else."""
    for k, value in enumerate(column):
        if not isinstance(value, Real | np.bool_):
            raise ValueError(
                f"{what} must be real numbers, but column {name!r} has {value!r} in row {k}; drop "
                "the column, or convert or impute it first."
            )
    return column.astype(float)


# ------------------------------------------------------------------ one order for two sides
def labels_of(given: Any) -> tuple[Any, ...] | None:
    """The labels of a series, of a frame's rows or of a dictionary; None of anything else."""
    if isinstance(given, Mapping):
        return tuple(given)
    return None if index_of(given) is None else tuple(given.index)


def is_numbering(labels: Sequence[Any]) -> bool:
    """Are the labels the numbers 0, 1, ... in their order?"""
    return tuple(labels) == tuple(range(len(labels)))


def in_order(given: Any, labels: Sequence[Any] | None, what: str) -> Any:
    """The entries of a series or dictionary in the order of the labels; anything else as it is."""
    values = list(given.values()) if isinstance(given, Mapping) else given
    return reordered(values, labels_of(given), labels, what)


def reordered(
    values: Any, own: Sequence[Any] | None, labels: Sequence[Any] | None, what: str
) -> Any:
    """Values with labels of their own in the order of others."""
    order = label_order(own, labels, what)
    return values if order is None else np.asarray(values)[order]


def label_order(
    own: Sequence[Any] | None, labels: Sequence[Any] | None, what: str, thing: str = "entry"
) -> list[int] | None:
    """The position of each label among one's own; None where either side has none."""
    if own is None or (labels is not None and len(labels) == len(own) and own == labels):
        return None
    if labels is None or is_numbering(labels) or is_numbering(own):
        if set(own) != set(range(len(own)) if labels is None else labels):
            return None
        labels = range(len(own)) if labels is None else labels
    _refuse_twice(own, what)
    position = {label: i for i, label in enumerate(own)}
    wanted = set(labels)
    missing = [label for label in labels if label not in position]
    extra = [label for label in own if label not in wanted]
    if missing:
        near = nearest(missing[0], extra)
        others = f"; they have {listed(extra)}. .to_numpy() is taken by position." if extra else "."
        hint = others if near is None else f"; is it the one called {near!r}?"
        raise ValueError(f"{what} have no {thing} {listed(missing)}{hint}")
    if extra:
        near = nearest(extra[0], labels)
        hint = "" if near is None else f" (the nearest known one is {near!r})"
        raise ValueError(
            f"{what} have the {thing} {listed(extra)} too many{hint}; select the known ones: "
            "frame[list(parameter.columns)]."
        )
    return [position[label] for label in labels]


def index_of(given: Any) -> Any:
    """The row labels of a frame or a series of pandas; None for anything else."""
    index = getattr(given, "index", None)
    return index if hasattr(index, "equals") else None


def row_orders(names: Sequence[str], indices: Sequence[Any]) -> list[np.ndarray | None]:
    """The orders that bring rows with labels into that of the first that have some.

    names: of the data, for messages. indices: of pandas, one for each; None for no labels.
    """
    orders: list[np.ndarray | None] = [None] * len(indices)
    labelled = [k for k, index in enumerate(indices) if index is not None]
    for k in labelled[1:]:
        first, own = indices[labelled[0]], indices[k]
        if own is first or own.equals(first):
            continue
        what = f"the rows of {names[k]}, paired with those of {names[labelled[0]]},"
        known, own_ones = set(first), set(own)
        if own_ones != known:
            others = [label for label in own if label not in known]
            missing = [label for label in first if label not in own_ones]
            raise ValueError(
                f"{what} have the labels {listed(others)} in place of {listed(missing)}; select "
                "rows by .reindex(...), or pass .to_numpy() to pair them by position."
            )
        order = label_order(tuple(own), tuple(first), what, "label")
        if len(labelled) < len(indices):
            raise ValueError(
                f"{what} have the same labels in another order, and other data has none to be "
                "paired by; use .reindex(...), or .to_numpy() where positions are right."
            )
        orders[k] = np.asarray(order)
    return orders


def _refuse_twice(labels: Sequence[Any], what: str) -> None:
    if len(set(labels)) < len(labels):
        twice = next(label for label, count in Counter(labels).items() if count > 1)
        raise ValueError(f"{what} have the label {twice!r} twice; labels must tell entries apart.")


def nearest(name: Any, known: Iterable[Any]) -> Any | None:
    """The known name that looks most like one; capitals do not matter. None if none does."""
    lower = {str(other).lower(): other for other in known}
    near = get_close_matches(str(name).lower(), list(lower), n=1, cutoff=0.5)
    return lower[near[0]] if near else None


def listed(names: Sequence[Any]) -> str:
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
