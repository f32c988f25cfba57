"""Long calls of solvers: interrupted at a deadline or by Ctrl-C, with a progress bar.

CVXPY's compilation and solvers in C notice neither. They run in a thread of their own, and the
calling thread waits for them. A call that is asked to stop returns its answer so far; if that takes
more than `GRACE` seconds, its thread is left behind and ends by itself.

Large programs hold Python's global lock for seconds in C, so that no thread can look at the clock.
Under a time limit they run in a forked process, which is killed when it is late.

CVXPY takes a solver as an object. The solver objects here are CVXPY's own with one addition: after
the program was compiled, they are told how many seconds are left.
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
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

import clarabel
import highspy
import numpy as np
import scipy.sparse as sp
from cvxpy import settings
from cvxpy.error import SolverError
from cvxpy.reductions.solvers.conic_solvers.clarabel_conif import CLARABEL, dims_to_solver_cones
from cvxpy.reductions.solvers.conic_solvers.highs_conif import HIGHS
from cvxpy.reductions.solvers.solving_chain import resolve_and_build_chain

from wdro_model.compat import bounds_as_rows
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
    """Messages to a running call (stop), and from it (iterations, gap)."""

    title: str = ""
    show: bool = False
    """Is a bar shown?"""
    interrupted: bool = False
    """Was Ctrl-C pressed?"""
    stop: bool = False
    """Has the call been asked to end?"""
    cancel: Callable[[], Any] | None = None
    """Function that asks the call to end, where it does not look at `stop`."""
    iterations: int = 0
    gap: float | None = None

    def end(self) -> None:
        """Ask the call to end."""
        self.stop = True
        if self.cancel is not None:
            self.cancel()


_WATCH: ContextVar[Watch | None] = ContextVar("who watches the call", default=None)


def current_watch() -> Watch:
    """The watch over this call."""
    return _WATCH.get() or Watch()


def run_interruptible(work: Callable[[], Any], watch: Watch, *, is_large: bool = False) -> Any:
    """Run `work` in a thread of its own and return its answer.

    At Ctrl-C, and when the time of the solve is over, the call is asked to end; a KeyboardInterrupt
    or an OutOfTime where it does not.

    is_large: under a time limit the call runs in a process of its own, and its changes are lost.
    """
    apart = is_large and seconds_left() is not None and can_fork()
    call = _ForkedCall(work, watch) if apart else _Call(work, watch)
    try:
        return _wait_for_answer(call, watch)
    finally:
        call.abandon()


def _wait_for_answer(call: _Call, watch: Watch) -> Any:
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
        if watch.interrupted:  # the call was stopped before it had begun
            raise KeyboardInterrupt from None
        raise


def _wait(call: _Call, watch: Watch) -> None:
    """Wait until the call or the time is over, and show the bar."""
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
        self._work: Callable[[], Any] = work
        self._answer: Any = None
        self._error: BaseException | None = None
        self._start(watch)

    def _start(self, watch: Watch) -> None:
        context = contextvars.copy_context()
        context.run(_WATCH.set, watch)
        # A daemon: one that was left behind does not keep the process from ending.
        threading.Thread(target=context.run, args=(self._run,), daemon=True).start()

    def _run(self) -> None:
        try:
            self._answer = self._work()
        except BaseException as error:  # raised where the call is waited for
            self._error = error
        finally:
            self.done.set()

    def answer(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._answer

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
            answer: Any = (self._work(), None)
        except Exception as error:
            answer = (None, error)
        there.send(answer)

    def answer(self) -> Any:
        try:
            self._answer, self._error = self._answers.recv()
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


# ------------------------------
# Solvers behind CVXPY that end with the time of a solve; Clarabel and HiGHS at Ctrl-C as well


LEAST_SECONDS = 0.05
"""Seconds that a solver gets at least, also when the time is over."""
TIME_LIMIT_OPTIONS: dict[str, tuple[str, ...]] = {
    "SCS": ("time_limit_secs",),
    "OSQP": ("time_limit",),
    "HIGHS": ("time_limit",),
    "GLOP": ("time_limit_sec",),
    "PDLP": ("time_limit_sec",),
    "SCIPY": ("scipy_options", "time_limit"),
    "SCIP": ("scip_params", "limits/time"),
    "GUROBI": ("TimeLimit",),
    "COPT": ("TimeLimit",),
    "MOSEK": ("mosek_params", "MSK_DPAR_OPTIMIZER_MAX_TIME"),
    "CPLEX": ("cplex_params", "timelimit"),
    "XPRESS": ("maxtime",),
}
"""The option of each solver for its time limit."""


def patient(problem: Any, name: str) -> Any:
    """The solver of that name, for `problem.solve(solver=...)` and `get_problem_data`.

    Bounds of variables are rows like all others, see `bounds_as_rows`. Raises CVXPY's SolverError
    where the solver cannot take the problem.
    """
    if name == settings.CLARABEL:
        return PATIENT_CLARABEL
    if seconds_left() is None and name != settings.HIGHS:
        return bounds_as_rows(problem, name)
    kind: Any = type(resolve_and_build_chain(problem, solver=name, ignore_dpp=True).solver)
    return PATIENT_HIGHS if kind is HIGHS else _limited(kind)


class PatientClarabel(CLARABEL):
    """Clarabel with a time limit, stopped between its iterations where `Watch.stop` is set."""

    STATUS_MAP = CLARABEL.STATUS_MAP | {"CallbackTerminated": settings.USER_LIMIT}

    def name(self) -> str:
        # CVXPY refuses its own names to other solvers, and reads names in any case.
        return str(super().name()).lower()

    def solve_via_data(
        self,
        data: dict[str, Any],
        warm_start: bool,
        verbose: bool,
        solver_opts: dict[str, Any],
        solver_cache: dict[str, Any] | None = None,
    ) -> Any:
        """The raw answer that CVXPY reads."""
        if current_watch().stop:
            raise OutOfTime
        options = self.parse_solver_opts(verbose, solver_opts)
        if (left := seconds_left()) is not None:
            options.time_limit = min(options.time_limit, max(left, LEAST_SECONDS))
        cost, rows = data[settings.C], data[settings.A]
        quadratic = data.get(settings.P, sp.csc_array((cost.size, cost.size)))
        cones = dims_to_solver_cones(data[self.DIMS])
        watch = current_watch()

        def look(info: Any) -> bool:
            watch.iterations, watch.gap = info.iterations, info.gap_rel
            return watch.stop

        program = sp.triu(quadratic).tocsc(), cost, rows, data[settings.B], cones
        solver = clarabel.DefaultSolver(*program, options)
        solver.set_termination_callback(look)
        return solver.solve()


class PatientHighs(HIGHS):
    """HiGHS for linear and mixed-integer programs; bounds of variables are rows."""

    BOUNDED_VARIABLES = False
    STATUS_MAP = HIGHS.STATUS_MAP | {"kInterrupt": settings.USER_LIMIT}

    def name(self) -> str:
        return str(super().name()).lower()

    def solve_via_data(
        self,
        data: dict[str, Any],
        warm_start: bool,
        verbose: bool,
        solver_opts: dict[str, Any],
        solver_cache: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The raw answer that CVXPY reads."""
        if current_watch().stop:
            raise OutOfTime
        highs = highspy.Highs()
        highs.setOptionValue("log_to_console", verbose)
        given = {**solver_opts, **solver_opts.get("highs_options", {})}
        given.pop("highs_options", None)
        set_options(highs, _with_limit(given, TIME_LIMIT_OPTIONS["HIGHS"]))
        matrix, right = sp.csc_array(data[settings.A]), np.asarray(data[settings.B], dtype=float)
        cost, equalities = np.asarray(data[settings.C], dtype=float), data[self.DIMS].zero
        boolean = list(data[settings.BOOL_IDX])
        whole = [*boolean, *data[settings.INT_IDX]]
        program = highs_program(cost, matrix, equalities, right, whole)
        if boolean:
            lower, upper = np.array(program.col_lower_), np.array(program.col_upper_)
            lower[boolean], upper[boolean] = 0.0, 1.0
            program.col_lower_, program.col_upper_ = lower, upper
        highs.passModel(program)
        highs.HandleUserInterrupt = True
        current_watch().cancel = highs.cancelSolve
        highs.run()
        status = highs.getModelStatus().name
        answer = {
            "solution": highs.getSolution(),
            "info": highs.getInfo(),
            "model_status": status,
            "run_time": highs.getRunTime(),
        }
        if status == "kInfeasible":
            answer["dual_ray"] = highs.getDualRay()
        return answer


PATIENT_CLARABEL, PATIENT_HIGHS = PatientClarabel(), PatientHighs()
"""One object each: CVXPY compares the object with the one that it compiled the problem for."""


def highs_program(cost: Any, matrix: Any, equalities: int, right: Any, whole: Any = ()) -> Any:
    """HiGHS' form of min c'x, A x = b in the first rows and A x <= b in the others.

    whole: the indices of integer variables.
    """
    program, free = highspy.HighsLp(), np.full(cost.size, np.inf)
    program.num_row_, program.num_col_ = matrix.shape
    program.col_cost_, program.col_lower_, program.col_upper_ = cost, -free, free
    program.row_lower_ = np.where(np.arange(right.size) < equalities, right, -np.inf)
    program.row_upper_ = right
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    program.a_matrix_.start_ = matrix.indptr
    program.a_matrix_.index_ = matrix.indices
    program.a_matrix_.value_ = matrix.data
    if len(whole):
        kinds = np.full(cost.size, highspy.HighsVarType.kContinuous)
        kinds[list(whole)] = highspy.HighsVarType.kInteger
        program.integrality_ = list(kinds)
    return program


def set_options(highs: Any, options: Mapping[str, Any]) -> None:
    """Set options of HiGHS; a SolverError for one that it does not know."""
    for name, value in options.items():
        if highs.setOptionValue(name, value) == highspy.HighsStatus.kError:
            raise SolverError(f"HiGHS does not take the option {name!r} = {value!r}.")


@cache
def _limited(kind: Any) -> Any:
    """Another solver of CVXPY, without bounds of variables, told the seconds that are left."""
    where = TIME_LIMIT_OPTIONS.get(kind.name(kind), ())

    def solve_via_data(
        self: Any,
        data: Any,
        warm_start: bool,
        verbose: bool,
        solver_opts: dict[str, Any],
        solver_cache: Any = None,
    ) -> Any:
        if current_watch().stop:
            raise OutOfTime
        options = _with_limit(solver_opts, where)
        return kind.solve_via_data(self, data, warm_start, verbose, options, solver_cache)

    changes = {
        "BOUNDED_VARIABLES": False,
        "name": lambda self: kind.name(self).lower(),
        "solve_via_data": solve_via_data,
    }
    return type(kind.__name__, (kind,), changes)()


def _with_limit(options: dict[str, Any], where: tuple[str, ...]) -> dict[str, Any]:
    """The options with the seconds that are left, if there is a limit and the solver has one."""
    left = seconds_left()
    if left is None or not where:
        return options
    inner = dict(options if len(where) == 1 else options.get(where[0], {}))
    inner[where[-1]] = min(inner.get(where[-1], np.inf), max(left, LEAST_SECONDS))
    return inner if len(where) == 1 else {**options, where[0]: inner}
