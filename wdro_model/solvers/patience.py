"""A long call, watched while it runs: its time ends, Ctrl-C is heard, a bar is shown.

CVXPY's compilation and solvers in C hear of none of this. They run in a thread of their own, and
the thread that asked waits for them. One that is asked to stop ends with what it has; if it does
not do so soon, it is left behind, and ends by itself.

Large programs keep Python's lock for seconds in C, and nobody can look at the clock. Where there
is a limit they run in a forked process, which is killed when it is late.
"""

from __future__ import annotations

import contextvars
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from cvxpy.error import SolverError

from wdro_model.display.bars import progress_bar
from wdro_model.sets.deadlines import OutOfTime, seconds_left

TICK = 0.1
"""Seconds between two looks at the time."""
GRACE = 0.4
"""Seconds that a call has to end once it was asked to."""
SHOWN = 3.0
"""Seconds after which a bar is shown."""


@dataclass
class Watch:
    """What is said to a running call, and what it says."""

    title: str = ""
    show: bool = False
    """Is a bar shown?"""
    interrupted: bool = False
    """Was Ctrl-C heard?"""
    stop: bool = False
    """Is the call to end?"""
    cancel: Callable[[], Any] | None = None
    """How it is told so, where it does not look at `stop`."""
    iterations: int = 0
    gap: float | None = None

    def end(self) -> None:
        """Ask the call to end."""
        self.stop = True
        if self.cancel is not None:
            self.cancel()


_WATCH: ContextVar[Watch | None] = ContextVar("who watches the call", default=None)


def watched() -> Watch:
    """The watch over this call."""
    return _WATCH.get() or Watch()


def waited(work: Callable[[], Any], watch: Watch, *, is_large: bool = False) -> Any:
    """What `work` returns, in a thread of its own.

    It is asked to end at Ctrl-C and when the time of the solve is over; a KeyboardInterrupt or an
    OutOfTime where it does not.

    is_large: under a time limit it runs in a process of its own, and what it changes is lost.
    """
    apart = is_large and seconds_left() is not None and can_fork()
    call = _ForkedCall(work, watch) if apart else _Call(work, watch)
    try:
        return _awaited(call, watch)
    finally:
        call.abandon()


def _awaited(call: _Call, watch: Watch) -> Any:
    """The answer of a call that is asked to end when it is late."""
    try:
        _wait(call, watch)
    except KeyboardInterrupt:
        watch.interrupted = True
        watch.end()
        if not call.done.wait(GRACE):
            raise
    if not call.done.is_set():
        watch.end()
        if not call.done.wait(GRACE):
            raise OutOfTime
    try:
        return call.answer()
    except OutOfTime:
        if watch.interrupted:  # it ended before it had begun
            raise KeyboardInterrupt from None
        raise


def _wait(call: _Call, watch: Watch) -> None:
    """Until the call is over, or the time."""
    began, bar = time.monotonic(), None
    try:
        while True:
            left = seconds_left()
            if call.done.wait(TICK if left is None else min(TICK, max(left, 0.0))):
                return
            if left is not None and left <= 0:
                return
            if watch.show and time.monotonic() - began > SHOWN:
                if bar is None:
                    bar = progress_bar(watch.title, unit="iteration")
                if watch.gap is not None:
                    bar.set_postfix_str(f"gap {watch.gap:.1e}", refresh=False)
                bar.update(watch.iterations - bar.n)
    finally:
        if bar is not None:
            bar.close()


class _Call:
    """A function that runs in a thread, and its answer."""

    def __init__(self, work: Callable[[], Any], watch: Watch) -> None:
        self.done: Any = threading.Event()
        self._work, self._found = work, None
        self._error: BaseException | None = None
        self._start(watch)

    def _start(self, watch: Watch) -> None:
        context = contextvars.copy_context()
        context.run(_WATCH.set, watch)
        # A daemon: one that was left behind does not keep the process from ending.
        threading.Thread(target=context.run, args=(self._run,), daemon=True).start()

    def _run(self) -> None:
        try:
            self._found = self._work()
        except BaseException as error:  # raised where the call is waited for
            self._error = error
        finally:
            self.done.set()

    def answer(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._found

    def abandon(self) -> None:
        """Leave the call to itself."""


def can_fork() -> bool:
    """Can this process have children that begin with its memory?"""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


class _ForkedCall(_Call):
    """A function that runs in a forked process, and its answer."""

    def _start(self, watch: Watch) -> None:
        fork = multiprocessing.get_context("fork")
        self._answers, there = fork.Pipe(duplex=False)
        self._process = fork.Process(target=self._serve, args=(there, watch), daemon=True)
        with warnings.catch_warnings():  # threads of this process: a child that hangs is killed
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        there.close()
        self.done = _AnswerInPipe(self._answers)
        pid = self._process.pid or 0
        watch.cancel = lambda: os.kill(pid, signal.SIGINT) if self._process.is_alive() else None

    def _serve(self, there: Any, watch: Watch) -> None:
        """In the child: send the answer, or the error."""
        watch.cancel = None
        signal.signal(signal.SIGINT, lambda *_: watch.end())
        _WATCH.set(watch)
        try:
            found: Any = (self._work(), None)
        except Exception as error:
            found = (None, error)
        there.send(found)

    def answer(self) -> Any:
        try:
            self._found, self._error = self._answers.recv()
        except EOFError:
            raise SolverError("the process of the solver ended without an answer.") from None
        return super().answer()

    def abandon(self) -> None:
        """Kill the process, if it still runs."""
        self._process.kill()
        self._process.join()
        self._answers.close()


@dataclass(frozen=True)
class _AnswerInPipe:
    """Whether an answer has come, with the methods of an event."""

    pipe: Any

    def wait(self, seconds: float) -> bool:
        return bool(self.pipe.poll(seconds))

    def is_set(self) -> bool:
        return bool(self.pipe.poll())
