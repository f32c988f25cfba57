"""A series of solves, in one process or several, in which one failure does not lose the others."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

import numpy as np
from cvxpy.error import SolverError

from wdro_model import checks
from wdro_model.compat import cloudpickle, joblib
from wdro_model.display.bars import progress_bar
from wdro_model.errors import MissingRuleError
from wdro_model.evaluation.statistics import TRAINING
from wdro_model.model import RobustModel
from wdro_model.solve.certify import Solution
from wdro_model.solve.options import Options, check_solver, refuse_outside, user_start
from wdro_model.solve.plan import METHODS, program_key
from wdro_model.solvers import MomentumFrankWolfe
from wdro_model.solvers.driver import Stop
from wdro_model.uncertainty.ambiguity import nonnegative
from wdro_model.uncertainty.joint import scenario_batches
from wdro_model.uncertainty.samples import own_scenarios

if TYPE_CHECKING:
    from wdro_model.problem import Problem


REFUSED, FAILED, NOT_RUN = "refused", "failed", "not run"
FAILURES = (SolverError, FloatingPointError, np.linalg.LinAlgError)
REFUSALS = (MissingRuleError, ValueError)
BAR_DELAY = 3.0
"""Seconds until a progress bar shows."""


@dataclass(frozen=True)
class Failure:
    """A solve that gave no decision."""

    status: str
    message: str
    error: Exception


def attempt(problem: Problem, arguments: Mapping[str, Any]) -> Solution | Failure:
    """The solution, or the failure of a solver or refusal of the library; others are raised."""
    try:
        problem.solve(**arguments)
    except FAILURES as error:
        return Failure(FAILED, " ".join(str(error).split()), error)
    except REFUSALS as error:
        if not raised_here(error):
            raise
        return Failure(REFUSED, " ".join(str(error).split()), error)
    assert problem.solution is not None
    return problem.solution


def raised_here(error: Exception) -> bool:
    """Whether the error was raised by a statement of this library, not by one that it called."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    module = str(frame.f_globals.get("__name__", ""))
    return module.split(".")[0] == __name__.split(".")[0]


def solve_bar(title: str, count: int, options: Mapping[str, Any]) -> Any:
    """A bar over several solves, unless `progress=False` or `verbose=True` is among the options."""
    show = options.get("progress", True) and not options.get("verbose", False)
    return progress_bar(title, count, unit="solve", show=bool(show), delay=BAR_DELAY)


def was_interrupted(solution: Solution) -> bool:
    """Whether Ctrl-C ended the solve."""
    return solution.stop == Stop.INTERRUPT.value


def warm_arguments(
    problem: Problem, arguments: Mapping[str, Any], last: Solution | None
) -> dict[str, Any]:
    """The arguments of a solve, with the last decision as its start where a start is of use.

    The paper's stochastic method keeps its own start: its iterations are few, and their result
    would be that of the method before.
    """
    cold, model = dict(arguments), problem._model
    method, solver = cold.get("method", "auto"), cold.get("solver")
    if last is None or cold.get("start") is not None or isinstance(solver, MomentumFrankWolfe):
        return cold
    if model.feasible.uncertain:  # a program would have to check a start
        return cold
    key = program_key(method, check_solver(solver), cold.get("relax", False))
    if model.memory.programs.find(key) is not None:
        return cold  # a program that is solved again needs no start
    try:
        refuse_outside(model, user_start(model, last))
    except ValueError:
        return cold  # a conic solver's answer may lie outside by more than Frank-Wolfe accepts
    return {**cold, "start": last}


@contextmanager
def keep_decision(problem: Problem) -> Iterator[None]:
    """Restore the decision of the problem at the end; a problem without one keeps the last."""
    layout, names = problem._model.feasible.layout, ("value", "status", "solution", "_decided")
    before = {name: getattr(problem, name) for name in names}
    if problem._decided is None and any(v.value is None for v in layout.variables):
        yield
        return
    try:
        with problem._model.feasible.holding():
            yield
    finally:
        vars(problem).update(before)


def check_solving(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of `solve` that no problem accepts: methods, options, their values."""
    checks.choice("method", arguments["method"], METHODS)
    own = ("method", "solver", "time_limit")
    Options.from_keywords({name: value for name, value in arguments.items() if name not in own})
    check_solver(arguments.get("solver"))


def check_radii(radii: Any) -> tuple[float, ...]:
    """A list of radii >= 0, in increasing order and each once."""
    wanted = "radii must be a list of finite numbers >= 0"
    if isinstance(radii, (str, bytes)) or not isinstance(radii, Iterable):
        raise ValueError(f"{wanted}, got {radii!r}; write radii=[0.01, 0.1, 1.0].")
    given = list(radii)
    if not given:
        raise ValueError(f"{wanted}, got none.")
    for position, radius in enumerate(given):
        try:
            given[position] = nonnegative(
                float(radius) if hasattr(radius, "assurance") else radius, "radius"
            )
        except ValueError:
            raise ValueError(f"{wanted}, got {radius!r} at position {position}.") from None
    return tuple(sorted(set(given)))


def radius_labels(radii: Iterable[float]) -> list[str]:
    """The radii as texts with as few digits as tell them apart."""
    radii = list(radii)
    for digits in (3, 4, 6, 9):
        texts = [f"{radius:.{digits}g}" for radius in radii]
        if len(set(texts)) == len(set(radii)):
            return texts
    return [repr(radius) for radius in radii]


def named_scenarios(problem: Problem, test: Any) -> dict[str, Any]:
    """Sets of scenarios by name, each of the right shape; one without a name is called "test"."""
    if test is None:
        return {}
    named = isinstance(test, Mapping) and test and all(isinstance(key, str) for key in test)
    named = named and not _by_parameter(problem, test)
    sets = own_scenarios(test if named else {"test": test})
    if TRAINING in sets:
        raise ValueError(
            f"a set of test scenarios is called {TRAINING!r}, which is the name of the samples of "
            "the problem; give it another name."
        )
    model = problem._model
    if isinstance(model, RobustModel):
        for scenarios in sets.values():
            scenario_batches(model.joint, model.scenarios_of(model.joint, scenarios), 1)
    return sets


def _by_parameter(problem: Problem, test: Mapping[str, Any]) -> bool:
    """Whether the keys of a dictionary are uncertain parameters' names, not names of sets."""
    names = [parameter.name() for parameter in problem.uncertain_parameters()]
    if any(isinstance(value, Mapping) for value in test.values()):
        return False
    matches = [key in names for key in test]
    return all(matches) or (any(matches) and len(names) > 1)


# ------------------------------
# Tasks of one call through joblib: sent without copies of the data, kept when interrupted


SHARED_ARRAY_BYTES = 2**16
"""Size from which read-only arrays travel beside the pickled object."""


@dataclass(frozen=True, eq=False)
class Parcel:
    """An object as bytes, with the large read-only arrays it holds beside them.

    Each `open()` gives a copy of its own, as two tasks may share a process. The arrays are not
    copied: joblib maps them into its worker processes, threads read the same memory.
    """

    code: bytes
    arrays: tuple[np.ndarray, ...]

    @classmethod
    def pack(cls, content: Any) -> Parcel:
        """Pack an object; the error of pickle or cloudpickle if it cannot be packed."""
        arrays: list[np.ndarray] = []

        def keep_inside(buffer: pickle.PickleBuffer) -> bool:
            # Memory that tasks write to, such as the work space of an oracle, is not shared.
            view = buffer.raw()
            if not view.readonly or view.nbytes < SHARED_ARRAY_BYTES:
                return True
            arrays.append(np.frombuffer(view, dtype=np.uint8))
            return False

        code = cloudpickle.dumps(content, protocol=5, buffer_callback=keep_inside)
        return cls(code, tuple(arrays))

    def open(self) -> Any:
        """A copy of the packed object."""
        return pickle.loads(self.code, buffers=self.arrays)


def pack(content: Any, parts: Mapping[str, Any]) -> Parcel:
    """A parcel of the content; a TypeError that names the part which cannot be sent."""
    try:
        return Parcel.pack(content)
    except Exception as error:
        name, reason = "the problem", error
        for label, part in parts.items():
            try:
                Parcel.pack(part)
            except Exception as cause:
                name, reason = label, cause
                break
        raise TypeError(
            f"{name} cannot be sent to another process ({type(reason).__name__}: {reason}); make "
            "it picklable (no open files, locks or generators inside), or use jobs=1."
        ) from error


@dataclass
class Collected:
    """Results by the number of the task, and the reason if some tasks did not finish."""

    results: dict[int, Any] = field(default_factory=dict)
    interruption: str | None = None
    """The reason of an early end; None where all tasks finished."""


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
    raised if there are none.
    """
    collected = Collected()
    with progress_bar(title, count, unit=unit, show=progress) as bar:
        try:
            for index, result in _results(task, range(count), parts, jobs):
                collected.results[index] = result
                bar.update()
        except KeyboardInterrupt:
            if not collected.results:
                raise
            collected.interruption = "interrupted from the keyboard"
        except BrokenExecutor as error:
            if not collected.results:
                raise
            collected.interruption = f"a worker process ended ({str(error).splitlines()[0]})"
    return collected


def _results(
    task: Callable[[int], Any], indices: Sequence[int], parts: Mapping[str, Any], jobs: int | None
) -> Iterator[tuple[int, Any]]:
    """Pairs (index, result) in the order in which they finish."""
    if len(indices) == 1 or joblib.effective_n_jobs(jobs) == 1:
        yield from ((k, task(k)) for k in indices)
        return
    parcel = pack(task, parts)
    calls = (joblib.delayed(_run_packed)(parcel, k) for k in indices)
    settings: dict[str, Any] = {"n_jobs": jobs, "batch_size": 1}
    try:
        parallel = joblib.Parallel(return_as="generator_unordered", **settings)
    except ValueError:  # the multiprocessing backend gives all results at once
        parallel = joblib.Parallel(**settings)
    yield from parallel(calls)


def _run_packed(parcel: Parcel, index: int) -> tuple[int, Any]:
    return index, parcel.open()(index)


def check_jobs(jobs: Any) -> int | None:
    """None, or a number of jobs as joblib counts them: -1 is one for each core."""
    hint = "-1 is one for each core, None is joblib's own setting"
    if jobs is None:
        return None
    if checks.whole_number("jobs", jobs, hint=hint) == 0:
        raise checks.refuse("jobs", "a nonzero integer", jobs, hint)
    return int(jobs)
