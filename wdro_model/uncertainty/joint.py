"""Joint samples of several uncertain parameters, and scenarios that are generated on demand."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from wdro_model.checks import whole_number
from wdro_model.errors import did_you_mean
from wdro_model.uncertainty.parameter import UncertainParameter
from wdro_model.uncertainty.samples import (
    CHUNK_ENTRIES,
    SampleShares,
    as_probabilities,
    chunks,
    in_row_blocks,
    in_row_order,
    index_of,
    read_only,
    row_orders,
    unless_equal,
)
from wdro_model.uncertainty.supports import Everywhere

OF_SAMPLES = ("matrix", "mean", "shares")
"""Cached properties of `JointSamples` that depend on the samples, not on the parameters alone."""


class JointSamples:
    """The N observed vectors xi_k in R^d: the parameters' samples, flattened and side by side.

    parameters: in the order of the coordinates; each is flattened row-major.
    size: N; dimension: d; slices: the coordinates of each parameter.
    probabilities: (N,), all positive; None where they are equal. Samples of probability zero are
        dropped.

    `take` and `replace` give the same parameters with other samples. `take` stores indices and
    copies no rows until `matrix` is read.
    """

    def __init__(self, parameters: Sequence[UncertainParameter]) -> None:
        self.parameters = tuple(parameters)
        self.size = _common_count(self.parameters)
        self.slices: dict[UncertainParameter, slice] = {}
        stop = 0
        for parameter in self.parameters:
            start, stop = stop, stop + math.prod(parameter.shape)
            self.slices[parameter] = slice(start, stop)
        self.dimension = stop
        self._replaced = False
        self._data = self._declared()
        self._rows: np.ndarray | None = None
        self.probabilities: np.ndarray | None = None
        self.left_out = 0
        """The number of samples that were given with the probability zero."""
        orders = self.row_orders([p.row_labels for p in self.parameters])
        self._weigh(_common_probabilities(self.parameters, orders))

    @property
    def labels(self) -> tuple[Any, ...] | None:
        """The label of each coordinate, or its name for messages; None where none has a label."""
        if not any(p.columns or (p.is_named and p.shape == ()) for p in self.parameters):
            return None
        return tuple(
            label
            for p, where in self.slices.items()
            for label in p.columns or map(self.coordinate, range(where.start, where.stop))
        )

    @property
    def index(self) -> Any:
        """The labels of the declared rows, an index of pandas; None where they have none."""
        own = [p.row_labels for p in self.parameters if p.row_labels is not None]
        if self._replaced or not own:
            return None
        return own[0] if self._rows is None else own[0][self._rows]

    @cached_property
    def shares(self) -> SampleShares:
        """The share of each sample in averages over all of them."""
        return SampleShares.full(self.size, self.probabilities)

    def shares_of(self, samples: np.ndarray | slice) -> SampleShares:
        """The shares of these samples (indices or a slice) in averages over them alone."""
        return self.shares.subset(samples).normalized()

    @cached_property
    def matrix(self) -> np.ndarray:
        """The samples (N, d), read-only; a view of the user's array for one parameter as declared.

        After `take` it is a copy, made when it is first read.
        """
        return self._data if self._rows is None else read_only(self._data[self._rows])

    @cached_property
    def mean(self) -> np.ndarray:
        """The average observation (d,)."""
        if self.probabilities is None and self._rows is None:
            return read_only(self._data.mean(axis=0))
        step = max(1, CHUNK_ENTRIES // self.dimension)
        parts = (
            self.shares.subset(slice(k * step, (k + 1) * step)).total(block)
            for k, block in enumerate(self.blocks(step))
        )
        return read_only(np.asarray(sum(parts)))

    def blocks(self, size: int) -> Iterator[np.ndarray]:
        """The samples in consecutive blocks of at most `size` rows."""
        for start in range(0, self.size, size):
            part = slice(start, min(start + size, self.size))
            yield self._data[part] if self._rows is None else self._data[self._rows[part]]

    def take(self, rows: np.ndarray) -> JointSamples:
        """The samples with these indices (n,), in this order; an index may occur several times.

        Their probabilities are rescaled to add up to one.
        """
        own = rows if self._rows is None else self._rows[rows]
        part = None if self.probabilities is None else self.probabilities[rows]
        return self._with(self._data, own, None if part is None else part / part.sum())

    def reweighted(self, probabilities: Any) -> JointSamples:
        """The same samples with other probabilities, (N,)."""
        what = "probabilities of the samples"
        given = as_probabilities(in_row_order(probabilities, self.index, what), self.size, what)
        return self._with(self._data, self._rows, given)

    def replace(self, scenarios: Any, probabilities: Any = None) -> JointSamples:
        """Other samples of the same parameters, in a form that `join` takes, checked as samples.

        probabilities: of the new samples, (N,); equal by default.
        """
        given = self.by_parameter(scenarios)
        indices = [index_of(given[parameter]) for parameter in self.parameters]
        data = self._paired([p.as_samples(given[p]) for p in self.parameters], indices)
        if probabilities is not None:
            what = "probabilities of the samples"
            for index in indices:
                probabilities = in_row_order(probabilities, index, what)
            probabilities = as_probabilities(probabilities, len(data), what)
        return self._with(data, None, probabilities, replaced=True)

    def with_rows(self, data: np.ndarray, probabilities: np.ndarray | None = None) -> JointSamples:
        """The same parameters with rows (N, d) and their probabilities, without any check."""
        twin = self._with(read_only(data), None, replaced=True)
        twin.probabilities = probabilities
        return twin

    @property
    def is_stored(self) -> bool:
        """True if all samples were given as Dask arrays, and none was dropped or replaced."""
        own = self._rows is None and not self._replaced
        return own and all(parameter.stored is not None for parameter in self.parameters)

    def on_workers(self, client: Any) -> tuple[list[Any], list[np.ndarray]]:
        """(blocks, indices): one block of rows for each worker of a Dask cluster, and its samples.

        A worker concatenates the rows that it has: no rows are sent between workers.
        """
        import dask.array as da
        from distributed import wait

        given: list[Any] = [parameter.stored for parameter in self.parameters]
        stored = [array.reshape(len(array), -1) for array in given]
        whole = in_row_blocks(stored[0] if len(stored) == 1 else da.concatenate(stored, axis=1))
        held = client.persist(whole.astype(np.float64))
        blocks = [client.compute(block) for block in held.to_delayed().ravel()]
        wait(blocks)
        places = client.who_has(blocks)
        groups: dict[str, list[int]] = {}
        for number, block in enumerate(blocks):
            groups.setdefault(next(iter(places[block.key]), ""), []).append(number)
        ends = np.concatenate([[0], np.cumsum(held.chunks[0])])
        futures = [
            client.submit(
                np.concatenate,
                [blocks[number] for number in group],
                workers=[place] if place else None,
                allow_other_workers=bool(place),
                pure=False,
            )
            for place, group in sorted(groups.items())
        ]
        which = [
            np.concatenate([np.arange(ends[number], ends[number + 1]) for number in group])
            for _, group in sorted(groups.items())
        ]
        return futures, which

    @cached_property
    def bounds(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Lower and upper bounds (d,) of the joint support; None if some support is not a box."""
        boxes = [parameter.support.bounds(parameter.shape) for parameter in self.parameters]
        if any(box is None for box in boxes):
            return None
        lower, upper = ([np.ravel(side) for side in sides] for sides in zip(*boxes))
        if len(boxes) == 1:
            return read_only(lower[0]), read_only(upper[0])
        return read_only(np.concatenate(lower)), read_only(np.concatenate(upper))

    @cached_property
    def width(self) -> np.ndarray | None:
        """The width (d,) of the joint support, infinite where it has no bound; None if no box."""
        return None if self.bounds is None else read_only(self.bounds[1] - self.bounds[0])

    @cached_property
    def everywhere(self) -> bool:
        """True if the joint support is all of R^d."""
        if all(isinstance(parameter.support, Everywhere) for parameter in self.parameters):
            return True
        return self.bounds is not None and bool(np.all(np.isinf(self.bounds)))

    def split(self, rows: np.ndarray) -> dict[UncertainParameter, np.ndarray]:
        """The rows (B, d) as one view (B, *shape) per parameter."""
        return {
            parameter: rows[:, where].reshape(len(rows), *parameter.shape)
            for parameter, where in self.slices.items()
        }

    def join(self, scenarios: Any) -> np.ndarray:
        """Scenarios of the user as rows (B, d).

        scenarios: {parameter or its name: (B, *shape)}, or the bare (B, *shape) if there is one
        parameter; arrays, nested lists, frames or `LazySamples`.
        """
        given = self.by_parameter(scenarios)
        blocks = [p.as_scenarios(given[p], f"scenarios of {p.name()!r}") for p in self.parameters]
        return self._paired(blocks, [index_of(given[p]) for p in self.parameters])

    def contains(self, rows: np.ndarray) -> np.ndarray:
        """The mask (B,) of the rows (B, d) that lie in the joint support."""
        inside = np.ones(len(rows), dtype=bool)
        for parameter, points in self.split(rows).items():
            if not isinstance(parameter.support, Everywhere):
                for start, block in chunks(points):
                    inside[start : start + len(block)] &= parameter.support.contains(block)
        return inside

    def coordinate(self, i: int) -> str:
        """The name of coordinate i for messages, such as "costs[3, 4]"."""
        for parameter, where in self.slices.items():
            if where.start <= i < where.stop:
                if parameter.columns is not None and parameter.ndim == 1:
                    return f"{parameter.name()}[{parameter.columns[i - where.start]!r}]"
                index = np.unravel_index(i - where.start, parameter.shape)
                return parameter.name() + (f"[{', '.join(map(str, index))}]" if index else "")
        raise IndexError(f"coordinate {i} of {self.dimension}")

    def __repr__(self) -> str:
        names = ", ".join(parameter.name() for parameter in self.parameters)
        return f"JointSamples({self.size} samples of ({names}) in R^{self.dimension})"

    def by_parameter(self, scenarios: Any) -> Mapping[UncertainParameter, Any]:
        """The given scenarios of each parameter; ValueError if one is missing or unknown."""
        names = ", ".join(repr(parameter.name()) for parameter in self.parameters)
        first = self.parameters[0]
        by_label = isinstance(scenarios, Mapping) and len(self.parameters) == 1
        if not isinstance(scenarios, Mapping) or (by_label and first.has_columns(scenarios)):
            if len(self.parameters) > 1:
                raise ValueError(
                    f"scenarios of several parameters must be given as {{parameter: array}} for "
                    f"{names}, got a {type(scenarios).__name__}; its columns as "
                    f"{{{self.parameters[0].name()!r}: data[[...]], ...}} if it is a frame."
                )
            return {first: scenarios}
        by_parameter: dict[UncertainParameter, Any] = {}
        for key, value in scenarios.items():
            parameter = self._named(key, names)
            if parameter in by_parameter:
                raise ValueError(
                    f"scenarios of {parameter.name()!r} are given twice, under the parameter and "
                    "under its name; give them once."
                )
            by_parameter[parameter] = value
        missing = [p.name() for p in self.parameters if p not in by_parameter]
        if missing:
            raise ValueError(f"scenarios are missing for {', '.join(map(repr, missing))}.")
        return by_parameter

    def _named(self, key: Any, names: str) -> UncertainParameter:
        """The parameter that is a key of a dictionary, or whose name is."""
        if isinstance(key, UncertainParameter) and key in self.slices:
            return key
        if isinstance(key, str):
            namesakes = [parameter for parameter in self.parameters if parameter.name() == key]
            if len(namesakes) == 1:
                return namesakes[0]
            if namesakes:
                raise ValueError(
                    f"{len(namesakes)} uncertain parameters are called {key!r}; use the parameters "
                    "themselves as keys, or give them names of their own."
                )
        name = key.name() if isinstance(key, UncertainParameter) else key
        hint = did_you_mean(
            key, [p.name() for p in self.parameters] if isinstance(key, str) else ()
        )
        raise ValueError(
            f"scenarios are given for {name!r}, which is not an uncertain parameter here.{hint} "
            f"The keys must be the parameters, or their names {names}."
        )

    def __getstate__(self) -> dict[str, Any]:
        """The state without arrays that follow from those of the parameters."""
        derived = OF_SAMPLES if self._replaced else (*OF_SAMPLES, "_data")
        return {key: value for key, value in self.__dict__.items() if key not in derived}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._data = read_only(self._data) if self._replaced else self._declared()

    def _declared(self) -> np.ndarray:
        """The samples that the parameters were declared with, (N, d)."""
        blocks = [np.asarray(parameter.samples) for parameter in self.parameters]
        return self._paired(blocks, [p.row_labels for p in self.parameters])

    def _paired(self, blocks: list[np.ndarray], indices: list[Any]) -> np.ndarray:
        """Arrays (N, *shape) side by side as one (N, d), read-only; a view of a single array.

        indices: the row labels of each array, by which rows are brought into the same order.
        """
        self.check_counts([len(block) for block in blocks])
        orders = self.row_orders(indices)
        flat = [
            b.reshape(len(b), -1)[slice(None) if o is None else o] for b, o in zip(blocks, orders)
        ]
        return read_only(flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1))

    def row_orders(self, indices: list[Any]) -> list[np.ndarray | None]:
        """For each parameter, the order of its rows that pairs them; None for the order given.

        indices: a pandas index for the data of each parameter, None for data without labels.
        """
        return row_orders([repr(p.name()) for p in self.parameters], indices)

    def _with(
        self,
        data: np.ndarray,
        rows: np.ndarray | None,
        probabilities: np.ndarray | None = None,
        *,
        replaced: bool = False,
    ) -> JointSamples:
        """The same parameters with other samples or other probabilities."""
        twin = object.__new__(JointSamples)
        twin.__dict__.update({k: v for k, v in self.__dict__.items() if k not in OF_SAMPLES})
        twin._data, twin._rows, twin._replaced = data, rows, self._replaced or replaced
        twin.size, twin.left_out = len(data) if rows is None else len(rows), 0
        twin._weigh(probabilities)
        return twin

    def _weigh(self, probabilities: np.ndarray | None) -> None:
        """Set the probabilities (N,) of the samples, and drop samples of probability zero."""
        if probabilities is not None and not probabilities.all():
            positive = np.flatnonzero(probabilities)
            self.left_out = self.size - len(positive)
            self._rows = positive if self._rows is None else self._rows[positive]
            self.size, probabilities = len(positive), probabilities[positive]
        uneven = unless_equal(probabilities)
        self.probabilities = None if uneven is None else read_only(uneven)

    def check_counts(self, counts: list[int]) -> None:
        """Raise a ValueError if the parameters have different numbers of scenarios."""
        if len(set(counts)) > 1:
            given = ", ".join(f"{p.name()!r}: {n}" for p, n in zip(self.parameters, counts))
            raise ValueError(
                f"scenarios of all parameters must have the same number of rows, got {given}."
            )


def _common_probabilities(
    parameters: tuple[UncertainParameter, ...], orders: list[Any]
) -> np.ndarray | None:
    """The probabilities of the joint samples; ValueError if those of two parameters differ."""
    given = [
        (p.name(), p.probabilities if order is None else p.probabilities[order])
        for p, order in zip(parameters, orders)
        if p.probabilities is not None
    ]
    if not given:
        return None
    name, first = given[0]
    for other, own in given[1:]:
        if not np.allclose(own, first, rtol=1e-8, atol=1e-15):
            k = int(np.argmax(np.abs(own - first)))
            raise ValueError(
                f"uncertain parameters share one sample axis and its probabilities, but sample {k} "
                f"has {float(first[k]):.6g} by {name!r} and {float(own[k]):.6g} by {other!r}; give "
                "probabilities= to one of them, or the same to all."
            )
    return first


def _common_count(parameters: tuple[UncertainParameter, ...]) -> int:
    """The shared number of samples; ValueError that names a parameter with another number."""
    if not parameters:
        raise ValueError("at least one uncertain parameter is needed to form joint samples.")
    for parameter in parameters:
        if not isinstance(parameter, UncertainParameter):
            raise ValueError(f"expected an UncertainParameter, got {parameter!r}.")
        if parameter.samples is None:
            raise ValueError(
                f"uncertain parameter {parameter.name()!r} has no samples; give them with "
                f"UncertainParameter({parameter.shape}, samples=...)."
            )
    if len({id(parameter) for parameter in parameters}) < len(parameters):
        raise ValueError("an uncertain parameter is listed twice; list each one once.")
    first = parameters[0]
    for parameter in parameters[1:]:
        if parameter.count != first.count:
            raise ValueError(
                f"uncertain parameters share one sample axis, but {first.name()!r} has "
                f"{first.count} samples and {parameter.name()!r} has {parameter.count}; "
                "pair the observations row by row."
            )
    return first.count


# ------------------------------------------------------------------ indices of samples
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


# ------------------------------------------------------------------ scenarios on demand
class LazySamples:
    """A sequence of `count` scenarios, scenario k being `generate(k)`.

    generate: k -> array of the scenario's shape; the same k must give the same array each time.
    Indexing, slicing, `batches` and `np.asarray` read it like an array of shape (count, *shape).
    """

    dtype = np.dtype(np.float64)

    def __init__(
        self, generate: Callable[[int], np.ndarray], count: int, shape: tuple[int, ...]
    ) -> None:
        self.generate = generate
        self.shape = (whole_number("count of scenarios", count, low=1), *shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        """Scenario k for an integer; an array of scenarios for a slice or a list of integers."""
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

        reuse: True to write all blocks into the same memory; the next block overwrites the last.
        """
        whole_number("size of a batch", size, low=1)
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

    scenarios: in a form that `JointSamples.join` takes. Lazy scenarios are generated block by
    block; with `reuse` the next block may overwrite the last one.
    """
    whole_number("size of a batch", size, low=1)
    if not isinstance(scenarios, Mapping | LazySamples):
        return _slices(joint.join(scenarios), size)
    given = joint.by_parameter(scenarios)
    if not any(isinstance(value, LazySamples) for value in given.values()):
        return _slices(joint.join(scenarios), size)
    arrays = {
        p: value
        if isinstance(value := given[p], LazySamples)
        else p.as_scenarios(value, f"scenarios of {p.name()!r}")
        for p in joint.parameters
    }
    joint.row_orders([index_of(given[p]) for p in joint.parameters])
    counts = [len(array) for array in arrays.values()]
    joint.check_counts(counts)
    streams = {
        p: a.batches(size, reuse=reuse) if isinstance(a, LazySamples) else _slices(a, size)
        for p, a in arrays.items()
    }
    # zip(*streams) would not free its first blocks.
    return (
        joint.join({p: next(stream) for p, stream in streams.items()})
        for _ in range(0, counts[0], size)
    )


def _slices(values: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Consecutive blocks of at most `size` values."""
    return (values[start : start + size] for start in range(0, len(values), size))
