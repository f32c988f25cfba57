"""Which scenarios are meant, and scenarios that are generated when they are read.

Those need little memory, however many they are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model.uncertainty.data_frames import index_of
from wdro_model.uncertainty.parameter import UncertainParameter

if TYPE_CHECKING:
    from wdro_model.uncertainty.joint import JointSamples


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


# ------------------------------------------------------------------ generated when they are read
class LazySamples:
    """A sequence of `count` scenarios, scenario k being `generate(k)`.

    generate: k -> array of the scenario's shape; the same k must give the same array each time.
    Indexing, slicing, `batches` and `np.asarray` read it like an array of shape (count, *shape).
    """

    dtype = np.dtype(np.float64)

    def __init__(
        self, generate: Callable[[int], np.ndarray], count: int, shape: tuple[int, ...]
    ) -> None:
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
            raise ValueError(f"count of scenarios must be a positive integer, got {count!r}.")
        self.generate = generate
        self.shape = (int(count), *shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        """One scenario for an integer; an array of scenarios for a slice or a list of integers."""
        if isinstance(index, slice):
            return self._fill(range(*index.indices(len(self))))
        if np.ndim(index) == 1:
            chosen = np.arange(len(self))[np.asarray(index)]
            return self._fill([int(k) for k in chosen])
        k = operator.index(index)
        if not -len(self) <= k < len(self):
            raise IndexError(f"scenario {k} of {len(self)}")
        return self._fill([k % len(self)])[0]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[k] for k in range(len(self)))

    def batches(self, size: int, *, reuse: bool = False) -> Iterator[np.ndarray]:
        """Consecutive blocks (at most `size`, *shape) that cover all scenarios in order.

        reuse: write every block into the same memory. A block is then valid until the next one is
        asked for; without it the caller may keep the blocks.
        """
        _check_size(size)
        buffer = np.empty((min(size, len(self)), *self.shape[1:])) if reuse else None
        for start in range(0, len(self), size):
            yield self._fill(range(start, min(start + size, len(self))), buffer)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("lazy scenarios have no memory of their own to share; allow a copy.")
        return self[:] if dtype is None else self[:].astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"LazySamples({len(self)} scenarios of shape {self.shape[1:]})"

    def _fill(self, indices: range | list[int], buffer: np.ndarray | None = None) -> np.ndarray:
        if buffer is None:
            buffer = np.empty((len(indices), *self.shape[1:]))
        block = buffer[: len(indices)]
        for row, k in enumerate(indices):
            scenario = np.asarray(self.generate(k))
            if scenario.shape != self.shape[1:]:
                raise ValueError(
                    f"scenario {k} was generated with shape {scenario.shape}, expected "
                    f"{self.shape[1:]}."
                )
            block[row] = scenario
        return block


def scenario_batches(
    joint: JointSamples, scenarios: Any, size: int, *, reuse: bool = False
) -> Iterator[np.ndarray]:
    """Blocks of at most `size` rows (B, d) that cover the scenarios in order.

    Takes what `JointSamples.join` takes. Lazy scenarios are generated block by block, so that
    memory holds a block at a time; with `reuse` their next block may overwrite the last one.
    """
    _check_size(size)
    if isinstance(scenarios, Mapping | LazySamples):
        given = joint.by_parameter(scenarios)
        if any(isinstance(value, LazySamples) for value in given.values()):
            return _lazy_batches(joint, given, size, reuse)
    rows = joint.join(scenarios)
    return (rows[start : start + size] for start in range(0, len(rows), size))


def _lazy_batches(
    joint: JointSamples, given: Mapping[UncertainParameter, Any], size: int, reuse: bool
) -> Iterator[np.ndarray]:
    arrays = {
        p: given[p]
        if isinstance(given[p], LazySamples)
        else p.as_scenarios(given[p], f"scenarios of {p.name()!r}")
        for p in joint.parameters
    }
    joint.row_orders([index_of(given[p]) for p in joint.parameters])
    counts = [len(array) for array in arrays.values()]
    joint.check_counts(counts)
    streams = {
        p: array.batches(size, reuse=reuse)
        if isinstance(array, LazySamples)
        else _slices(array, size)
        for p, array in arrays.items()
    }
    # zip(*streams) would keep hold of its first blocks.
    return (
        joint.join({p: next(stream) for p, stream in streams.items()})
        for _ in range(0, counts[0], size)
    )


def _slices(array: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (array[start : start + size] for start in range(0, len(array), size))


def _check_size(size: Any) -> None:
    """Refuse a batch size that is not a positive integer."""
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
        raise ValueError(f"size of a batch must be a positive integer, got {size!r}.")
