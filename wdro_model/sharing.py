"""Locks that keep threads apart whose problems have something in common.

A solve writes into its variables, and into compiled programs and oracles that twins share. Every
variable, parameter and feasible set therefore has a lock, and a call holds those of all that its
problem was declared with. Problems with nothing in common do not wait for one another.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ParamSpec, TypeVar, cast

from wdro_model.sets.deadlines import OutOfTime, seconds_left
from wdro_model.sets.feasible_set import FeasibleSet, In

LOCK = "_lock_of_wdro"
"""The attribute of a variable, a parameter or a set that holds its lock."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class SharedLock:
    """A re-entrant lock; its pickled and its deep copies are new locks, of things of their own."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[type[SharedLock], tuple[()]]:
        return SharedLock, ()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock in the block; an OutOfTime where another thread has it for too long."""
        left = seconds_left()
        if not self._lock.acquire(timeout=-1 if left is None else max(left, 0.0)):
            raise OutOfTime(
                "the time limit passed while another thread solved a problem that shares "
                "variables, parameters or sets with this one; give a longer time_limit, or build "
                "a problem with variables of its own for each thread."
            )
        try:
            yield
        finally:
            self._lock.release()


def locks_of(objective: Any, constraints: Iterable[Any]) -> tuple[SharedLock, ...]:
    """The locks of all variables, parameters and sets of a problem, each once, in their order."""
    things: list[Any] = []
    for part in (objective, *constraints):
        if isinstance(part, In):
            things += [part.variable, *sets_within(part.set)]
            continue
        for found in (getattr(part, kind, ()) for kind in ("variables", "parameters")):
            things += found() if callable(found) else found
    found = {id(lock): lock for lock in (vars(t).setdefault(LOCK, SharedLock()) for t in things)}
    return tuple(found[key] for key in sorted(found))


def sets_within(value: Any) -> Iterator[FeasibleSet]:
    """The set, and the sets that it is made of."""
    if isinstance(value, FeasibleSet):
        yield value
        value = list(vars(value).values())
    if isinstance(value, list | tuple):
        for part in value:
            if isinstance(part, FeasibleSet | list | tuple):
                yield from sets_within(part)


@contextmanager
def alone(locks: Sequence[SharedLock]) -> Iterator[None]:
    """Keep other threads out of what the locks stand for; all threads take locks in one order."""
    with ExitStack() as stack:
        for lock in sorted(locks, key=id):
            stack.enter_context(lock.held())
        yield


def one_thread_at_a_time(call: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A method of a problem, or a function of one, that holds the problem's locks."""

    @functools.wraps(call)
    def held(*args: Arguments.args, **named: Arguments.kwargs) -> Result:
        problem = cast(Any, args[0] if args else named.get("problem"))
        with alone(getattr(problem, "_locks", ())):
            return call(*args, **named)

    return held
