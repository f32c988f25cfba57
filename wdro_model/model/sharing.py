"""Locks that keep threads apart whose problems have something in common.

A solve writes into its variables, and into compiled programs and oracles that twins share. Every
variable, parameter and feasible set has a lock; a call holds those of all that its problem was
declared with, taken in one order. Problems with nothing in common do not wait for one another.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar, cast

from wdro_model.sets.deadlines import OutOfTime, seconds_left
from wdro_model.sets.feasible_set import FeasibleSet, In

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
BUSY = (
    "the time limit passed while another thread solved a problem that shares variables, parameters "
    "or sets with this one; give a longer time_limit, or each thread variables of its own."
)


class SharedLock:
    """A re-entrant lock; a pickled copy of it is a new lock, that of another variable or set."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def __reduce__(self) -> tuple[type[SharedLock], tuple[()]]:
        return SharedLock, ()


def locks_of(objective: Any, constraints: Iterable[Any]) -> tuple[SharedLock, ...]:
    """The locks of all variables, parameters and sets that a problem is declared with."""
    things: list[Any] = []
    for part in (objective, *constraints):
        if isinstance(part, In):
            things += [part.variable, *sets_within(part.set)]
        for leaves in (getattr(part, kind, ()) for kind in ("variables", "parameters")):
            things += leaves() if callable(leaves) else leaves
    locks = [vars(thing).setdefault("_lock_of_wdro", SharedLock()) for thing in things]
    return tuple({id(lock): lock for lock in locks}.values())


def sets_within(value: Any) -> Iterator[FeasibleSet]:
    """The set, and the sets that it is made of."""
    if isinstance(value, FeasibleSet):
        yield value
    parts = vars(value).values() if isinstance(value, FeasibleSet) else value
    for part in parts:
        if isinstance(part, FeasibleSet | list | tuple):
            yield from sets_within(part)


@contextmanager
def alone(locks: Sequence[SharedLock]) -> Iterator[None]:
    """Keep other threads out of the block; an OutOfTime where they stay in theirs for too long."""
    held: list[SharedLock] = []
    try:
        for shared in sorted(locks, key=id):
            left = seconds_left()
            if not shared.lock.acquire(timeout=-1 if left is None else max(left, 0.0)):
                raise OutOfTime(BUSY)
            held.append(shared)
        yield
    finally:
        for shared in held:
            shared.lock.release()


def one_thread_at_a_time(call: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A method of a problem, or a function of one, that holds the problem's locks."""

    @functools.wraps(call)
    def locked_call(*args: Arguments.args, **named: Arguments.kwargs) -> Result:
        problem = cast(Any, args[0] if args else named.get("problem"))
        with alone(getattr(problem, "_locks", ())):
            return call(*args, **named)

    return locked_call
