"""Tasks of one call through joblib: sent without copies of the data, kept when interrupted."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wdro_model.deferred import cloudpickle, joblib
from wdro_model.display.bars import progress_bar

SHARED_BYTES = 2**16
"""Read-only arrays from this size on travel beside the pickled object."""


@dataclass(frozen=True, eq=False)
class Parcel:
    """An object as bytes, with the large read-only arrays it holds beside them.

    Each `open()` gives a twin of its own, as two tasks may share a process. The arrays stay where
    they are: joblib maps them into its worker processes, threads read the same memory.
    """

    code: bytes
    arrays: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, content: Any) -> Parcel:
        """Pack an object; what pickle or cloudpickle raise if it cannot be packed."""
        arrays: list[np.ndarray] = []

        def keep_inside(buffer: pickle.PickleBuffer) -> bool:
            # Memory that tasks write to, such as the work space of an oracle, is not shared.
            view = buffer.raw()
            if not view.readonly or view.nbytes < SHARED_BYTES:
                return True
            arrays.append(np.frombuffer(view, dtype=np.uint8))
            return False

        code = cloudpickle.dumps(content, protocol=5, buffer_callback=keep_inside)
        return cls(code, tuple(arrays))

    def open(self) -> Any:
        """A twin of what was packed."""
        return pickle.loads(self.code, buffers=self.arrays)


def pack(content: Any, parts: Mapping[str, Any]) -> Parcel:
    """A parcel of the content; a TypeError that names the part which cannot be sent."""
    try:
        return Parcel.of(content)
    except Exception as error:
        name, reason = "the problem", error
        for label, part in parts.items():
            try:
                Parcel.of(part)
            except Exception as found:
                name, reason = label, found
                break
        raise TypeError(
            f"{name} cannot be sent to another process ({type(reason).__name__}: {reason}); make "
            "it picklable (no open files, locks or generators inside), or use jobs=1."
        ) from error


@dataclass
class Collected:
    """The results of the tasks that finished, by task, and why the others did not."""

    results: dict[int, Any] = field(default_factory=dict)
    interruption: str | None = None
    """What ended the run before its end; None where all tasks finished."""


def collect(
    task: Callable[[int], Any],
    count: int,
    parts: Mapping[str, Any],
    *,
    jobs: int | None,
    progress: bool,
    title: str,
    unit: str = "fold",
) -> Collected:
    """task(0), ..., task(count - 1), in parallel as joblib is told, with a progress bar.

    An interrupt from the keyboard, or the end of a worker process, keeps the results so far; it is
    raised where there are none.
    """
    found = Collected()
    with progress_bar(title, count, unit=unit, show=progress) as bar:
        try:
            for index, result in _results(task, range(count), parts, jobs):
                found.results[index] = result
                bar.update()
        except KeyboardInterrupt:
            if not found.results:
                raise
            found.interruption = "interrupted from the keyboard"
        except BrokenExecutor as error:
            if not found.results:
                raise
            found.interruption = f"a worker process ended ({str(error).splitlines()[0]})"
    return found


def _results(
    task: Callable[[int], Any], indices: Sequence[int], parts: Mapping[str, Any], jobs: int | None
) -> Iterator[tuple[int, Any]]:
    """Pairs (index, result) as they come."""
    if len(indices) == 1 or joblib.effective_n_jobs(jobs) == 1:
        yield from ((k, task(k)) for k in indices)
        return
    parcel = pack(task, parts)
    calls = (joblib.delayed(_opened)(parcel, k) for k in indices)
    settings: dict[str, Any] = {"n_jobs": jobs, "batch_size": 1}
    try:
        parallel = joblib.Parallel(return_as="generator_unordered", **settings)
    except ValueError:  # the multiprocessing backend gives all results at once
        parallel = joblib.Parallel(**settings)
    yield from parallel(calls)


def _opened(parcel: Parcel, index: int) -> tuple[int, Any]:
    return index, parcel.open()(index)


def check_jobs(jobs: Any) -> int | None:
    """None, or a number of jobs as joblib counts them: -1 is one for each core."""
    whole = isinstance(jobs, int | np.integer) and not isinstance(jobs, bool)
    if jobs is not None and (not whole or jobs == 0):
        raise ValueError(
            f"jobs must be a nonzero integer, or None for joblib's own setting, got {jobs!r}; -1 "
            "is one for each core."
        )
    return None if jobs is None else int(jobs)
