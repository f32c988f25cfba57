"""The time that a solve may still take, for long calls of oracles and objectives that can stop.

A solver sets it around its run, `with deadline(seconds):`; a long call looks at `seconds_left()`
or asks `check_deadline()`; one that runs out of time raises `OutOfTime`, and the run ends with what
it has.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_END: ContextVar[float | None] = ContextVar("end of the time for a solve", default=None)


LATE = "the time limit passed before a decision was found; give a longer time_limit, or none."


class OutOfTime(TimeoutError):
    """The time limit of a solve has passed in the middle of a call."""

    def __init__(self, message: str = LATE) -> None:
        super().__init__(message)


class Unproven(OutOfTime):
    """The time has passed with a point that may not be the best one.

    slack: by how much at most it costs more than the minimiser.
    """

    def __init__(self, point: Any, slack: float) -> None:
        super().__init__()
        self.point, self.slack = point, slack


@contextmanager
def deadline(seconds: float | None) -> Iterator[None]:
    """Limit the time of a block, within the limit of an outer block; None for no other limit."""
    outer = _END.get()
    if seconds is None:
        yield
        return
    end = time.perf_counter() + seconds
    token = _END.set(end if outer is None else min(outer, end))
    try:
        yield
    finally:
        _END.reset(token)


@contextmanager
def more_time(seconds: float) -> Iterator[None]:
    """Replace the limit for a block: work that is due after the time of a solve is over."""
    token = _END.set(time.perf_counter() + seconds)
    try:
        yield
    finally:
        _END.reset(token)


def seconds_left() -> float | None:
    """Seconds until the end of the time, negative after it; None without a limit."""
    end = _END.get()
    return None if end is None else end - time.perf_counter()


def check_deadline(late: float = 0.0) -> None:
    """Raise an OutOfTime once the limit has passed by `late` seconds."""
    left = seconds_left()
    if left is not None and left < -late:
        raise OutOfTime
