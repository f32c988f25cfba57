"""Samples from arrays, frames, memory maps and Dask arrays; labels; the share of each sample.

Two sides that both have labels are matched by them, and unmatched labels raise an error. Where one
side has no labels, or the labels 0, 1, ... in this order, entries are matched by position; the same
numbers in another order count as labels. Frames of pandas, polars and others are recognized by the
attributes `columns` and `to_numpy`, series by `index`: none of these packages is imported.

A Dask array becomes a memory map, written block by block, so that the samples are an array for all
other code. Where a Dask client is active the blocks stay on its workers too, which compute sums.

The reference distribution is sum_k p_k delta_{xi_k}. All averages over samples are computed by
`SampleShares`; where all p_k are 1/N they are plain means.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, Protocol, runtime_checkable

import cvxpy as cp
import numpy as np

from wdro_model.checks import real_array
from wdro_model.errors import nearest

LISTED_NAMES = 6
"""Labels that a message lists; dots replace the others."""


@runtime_checkable
class NamesCoordinates(Protocol):
    """An object with labelled coordinates, such as a feasible set."""

    names: tuple[Any, ...] | None
    """The label of each coordinate; None if they have none."""
    coordinates: Mapping[Any, int]
    """The coordinate of each label, and of its other spellings."""


def is_frame(given: Any) -> bool:
    """True for a frame and for a dictionary of columns."""
    return isinstance(given, Mapping) or (hasattr(given, "columns") and hasattr(given, "to_numpy"))


def column_names(
    given: Any,
    what: str,
    known: NamesCoordinates | tuple[Any, ...] | None = None,
    numbered: bool = False,
) -> tuple[Any, ...] | None:
    """The names of the columns of a frame; None for anything else.

    known: the expected labels; columns of several levels are tuples if these are tuples.
    numbered: False to return None also for the names 0, 1, ...
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
    """The labels in a list, or of the coordinates of a set."""
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
    """The numbers of a frame, (N, columns), in the order of `columns` if that is known."""
    names = column_names(given, what, columns if known is None else known, numbered=True)
    order = label_order(names, columns, what, "column")
    array = _stacked(given, what) if isinstance(given, Mapping) else given.to_numpy()
    if array.dtype.kind not in "fiub":
        array = np.column_stack([_numbers(c, n, what) for n, c in zip(names or (), array.T)])
    return array if order is None or order == list(range(len(order))) else array[:, order]


def _stacked(columns: Mapping[Any, Any], what: str) -> np.ndarray:
    """The columns of a dictionary side by side; rows of series are paired by their labels."""
    arrays = [np.asarray(column) for column in columns.values()]
    if any(array.ndim != 1 or array.shape != arrays[0].shape for array in arrays):
        shapes = ", ".join(str(array.shape) for array in arrays[:LISTED_NAMES])
        raise ValueError(f"columns of {what} must be (N,) and of the same length, got {shapes}.")
    orders = row_orders([repr(n) for n in columns], [index_of(c) for c in columns.values()])
    return np.column_stack([a if o is None else a[o] for a, o in zip(arrays, orders)])


def _numbers(column: np.ndarray, name: Any, what: str) -> np.ndarray:
    """A column as floats; ValueError that names the column if it has other values."""
    for k, value in enumerate(column):
        if not isinstance(value, Real | np.bool_):
            raise ValueError(
                f"{what} must be real numbers, but column {name!r} has {value!r} in row {k}; drop "
                "the column, or convert or impute it first."
            )
    return column.astype(float)


# ------------------------------------------------------------------ order by labels
def labels_of(given: Any) -> tuple[Any, ...] | None:
    """The labels of a series, of the rows of a frame or of a dictionary; None for others."""
    if isinstance(given, Mapping):
        return tuple(given)
    return None if index_of(given) is None else tuple(given.index)


def is_numbering(labels: Sequence[Any]) -> bool:
    """True if the labels are the numbers 0, 1, ... in their order."""
    return tuple(labels) == tuple(range(len(labels)))


def in_order(given: Any, labels: Sequence[Any] | None, what: str) -> Any:
    """The entries of a series or dictionary in the order of the labels; others unchanged."""
    values = list(given.values()) if isinstance(given, Mapping) else given
    return reorder(values, labels_of(given), labels, what)


def reorder(values: Any, own: Sequence[Any] | None, labels: Sequence[Any] | None, what: str) -> Any:
    """Values whose labels are `own`, in the order of `labels`."""
    order = label_order(own, labels, what)
    return values if order is None else np.asarray(values)[order]


def label_order(
    own: Sequence[Any] | None, labels: Sequence[Any] | None, what: str, thing: str = "entry"
) -> list[int] | None:
    """The position in `own` of each label; None where entries are matched by position.

    thing: the word for an entry in messages.
    """
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
    """For each table, the order of its rows that pairs them with the first labelled table.

    None for rows that are in order already. names: of the tables, for messages. indices: the
    pandas index of each table; None for a table without labels.
    """
    orders: list[np.ndarray | None] = [None] * len(indices)
    labelled = [k for k, index in enumerate(indices) if index is not None]
    for k in labelled[1:]:
        first, own = indices[labelled[0]], indices[k]
        if own is first or own.equals(first):
            continue
        what = f"the rows of {names[k]}, paired with those of {names[labelled[0]]},"
        known, given = set(first), set(own)
        if given != known:
            others = [label for label in own if label not in known]
            missing = [label for label in first if label not in given]
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


def listed(names: Sequence[Any]) -> str:
    """The first names, for a message."""
    shown = ", ".join(map(repr, names[:LISTED_NAMES]))
    return f"{shown}, ..." if len(names) > LISTED_NAMES else shown


def in_row_order(given: Any, index: Any, what: str) -> Any:
    """The entries of a series in the order of rows with this index; others unchanged."""
    _, order = row_orders(["the samples", what], [index, index_of(given)])
    return given if order is None else np.asarray(given)[order]


# ------------------------------------------------------------------ arrays of the user
CHUNK_ENTRIES = 1 << 18
"""Numbers in a block of a check, whose temporary arrays stay small for any data."""


def as_scenarios(given: Any, shape: tuple[int, ...], what: str, own: bool = False) -> np.ndarray:
    """Finite float64 C-contiguous scenarios (B, *shape), B >= 1, without a copy where possible.

    For a scalar (B, 1) is read as (B,), for shape (1,) the other way round.
    own: True to copy arrays that the user may write into.
    """
    array = read = _as_numbers(given, what)
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
    if own and not isinstance(given, list | tuple) and np.may_share_memory(array, read):
        array = own_copy(array)
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


def chunks(array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Blocks of rows of bounded size, each with the index of its first row."""
    step = max(1, CHUNK_ENTRIES // max(1, math.prod(array.shape[1:])))
    return ((start, array[start : start + step]) for start in range(0, len(array), step))


def one_if_equal(values: np.ndarray) -> float | np.ndarray:
    """The common value of the entries as a number; the array if they differ."""
    return float(values[0]) if np.all(values == values[0]) else values


def own_copy(array: np.ndarray) -> np.ndarray:
    """A read-only copy; memory maps, and arrays that are read-only already, are not copied."""
    owner, frozen = array, not array.flags.writeable
    while isinstance(owner.base, np.ndarray) and not isinstance(owner, np.memmap):
        owner = owner.base
        frozen = frozen and not owner.flags.writeable
    if isinstance(owner, np.memmap) or (frozen and owner.base is None):
        return array
    array = array.copy()
    array.flags.writeable = False
    return array


def own_scenarios(given: Any) -> Any:
    """Scenarios of the user, in any form, with copies of their arrays and frames."""
    if isinstance(given, Mapping):
        return {key: own_scenarios(value) for key, value in given.items()}
    if isinstance(given, np.ndarray):
        return own_copy(given)
    return given.copy() if index_of(given) is not None else given


def read_only(array: np.ndarray) -> np.ndarray:
    """A view that cannot be written through; the array itself stays as it is."""
    view = array.view()
    view.flags.writeable = False
    return view


def _as_numbers(given: Any, what: str) -> np.ndarray:
    if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):
        raise ValueError(f"{what} have masked entries; drop or impute them first.")
    try:
        array = on_disk(given) if is_dask_array(given) else np.asarray(given)
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
    if shape == () and len(given) == 2:
        return (
            f"; for {given[1]} numbers in each scenario declare UncertainParameter({given[1]}, ...)"
        )
    if given == shape:
        return "; for a single scenario write array[None]"
    if shape and given[:-1] == shape:
        return "; the sample axis comes first: np.moveaxis(array, -1, 0)"
    if len(shape) > 1 and len(given) == 2 and given[1] == math.prod(shape):
        return f"; reshape the flat rows with array.reshape(-1, {', '.join(map(str, shape))})"
    return ""


def first_index(mask: np.ndarray) -> tuple[int, ...]:
    """The index of the first True entry; () for a zero-dimensional mask."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), np.shape(mask)))


# ------------------------------------------------------------------ Dask arrays
MOST_ENTRIES = 2**24
"""Largest number of entries of a block, of which a few must fit into memory."""


def is_dask_array(given: Any) -> bool:
    """True for a Dask array; False while Dask is not imported."""
    module = sys.modules.get("dask.array")
    return module is not None and isinstance(given, module.Array)


def on_disk(given: Any) -> np.ndarray:
    """A Dask array as a memory map of a temporary file, deleted when the map is."""
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
        # Pages of a map that is opened for reading can be dropped when memory is short.
        return np.memmap(path, dtype=np.float64, mode="r", shape=given.shape)
    finally:
        os.unlink(path)  # the file exists as long as the map


def in_row_blocks(given: Any) -> Any:
    """The Dask array in blocks of whole rows, of at most MOST_ENTRIES numbers."""
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


# ------------------------------------------------------------------ shares of the samples
SUM_TOLERANCE = 1e-8
"""Distance of the sum of probabilities from 1 up to which it is rounding; else an error."""


@dataclass(frozen=True, eq=False)
class SampleShares:
    """The shares of n samples in an average over N samples: 1/N each, or their probabilities.

    The shares of all samples add up to one, those of a part to its probability.
    """

    count: int
    """n, the number of these samples."""
    divisor: int
    """N, the number of all samples."""
    probabilities: np.ndarray | None = None
    """(n,); None where all shares are 1/N."""

    @classmethod
    def full(cls, size: int, probabilities: np.ndarray | None = None) -> SampleShares:
        """The shares of all samples."""
        return cls(size, size, probabilities)

    @cached_property
    def array(self) -> np.ndarray:
        """The shares, (n,)."""
        if self.probabilities is not None:
            return self.probabilities
        return np.full(self.count, 1.0 / self.divisor)

    @property
    def mass(self) -> float:
        """The sum of the shares."""
        return self.count / self.divisor if self.probabilities is None else float(self.array.sum())

    @property
    def square(self) -> float:
        """sum_k p_k^2: the variance of an average of independent terms of variance 1."""
        return float(self.array @ self.array)

    @property
    def effective_size(self) -> float:
        """1 / sum_k p_k^2, the number of equal shares with this sum of squares; N if equal."""
        return float(self.divisor) if self.probabilities is None else 1.0 / self.square

    def total(self, values: np.ndarray) -> Any:
        """sum_k p_k values_k over the first axis of values (n, ...): their average."""
        if self.probabilities is None:
            return values.sum(axis=0) / self.divisor
        return np.tensordot(self.probabilities, values, axes=1)

    def error(self, variances: np.ndarray) -> float:
        """The standard error of an average of independent terms with these variances (n,)."""
        return float(np.sqrt(self.array**2 @ variances))

    def times(self, values: np.ndarray) -> np.ndarray:
        """p_k values_k for values (n, ...)."""
        return values * self.array.reshape(-1, *([1] * (np.ndim(values) - 1)))

    def multiple(self, values: np.ndarray) -> np.ndarray:
        """N p_k values_k for values (n, ...): the values where all shares are 1/N."""
        return values if self.probabilities is None else self.divisor * self.times(values)

    def expression(self, values: Any) -> Any:
        """sum_k p_k values_k for a CVXPY vector (n,), or for one value of all samples."""
        if values.size != self.count:
            return self.mass * cp.sum(values)
        if self.probabilities is None:
            return cp.sum(values) / self.divisor
        return self.probabilities @ (values if values.ndim == 1 else cp.vec(values, order="C"))

    def repeat(self, times: int) -> SampleShares:
        """The shares where each sample occurs `times` times in a row."""
        repeated = None if self.probabilities is None else np.repeat(self.probabilities, times)
        return SampleShares(self.count * times, self.divisor, repeated)

    def normalized(self) -> SampleShares:
        """The shares of the same samples in averages over them alone, which add up to one."""
        if self.probabilities is None:
            return SampleShares.full(self.count)
        return SampleShares.full(self.count, self.probabilities / self.probabilities.sum())

    def subset(self, index: Any) -> SampleShares:
        """The shares of the samples with these indices, which add up to their probability."""
        if self.probabilities is not None:
            part = self.probabilities[index]
            return SampleShares(len(part), self.divisor, part)
        count = len(range(self.count)[index] if isinstance(index, slice) else index)
        return SampleShares(count, self.divisor)


def as_probabilities(given: Any, size: int, what: str) -> np.ndarray:
    """The given probabilities as a read-only array (size,), checked to add up to one."""
    given = np.ravel(given) if np.shape(given) == (size, 1) else given
    hint = "leave that sample out, or give it 0"
    array = real_array(what, given, (size,), hint=f"one for each of the {size} samples; {hint}")
    if (array < 0).any():
        k = int(np.argmin(array))
        raise ValueError(f"{what} must be at least 0, got {float(array[k])} at index {k}; {hint}.")
    total = float(array.sum())
    if abs(total - 1.0) > SUM_TOLERANCE:
        way_out = "p / p.sum() does" if total > 0 else "some sample must have a positive one"
        raise ValueError(f"{what} must add up to 1, got a sum of {total:.10g}; {way_out}.")
    array = array / total
    array.flags.writeable = False
    return array


def unless_equal(probabilities: np.ndarray | None) -> np.ndarray | None:
    """The probabilities; None if they are all equal, so that averages are plain means."""
    if probabilities is None or np.ptp(probabilities) <= 1e-13 * probabilities.max():
        return None
    return probabilities
