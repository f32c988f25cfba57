"""The one loop behind all Frank-Wolfe methods.

Each iteration: a gradient, the oracle's vertex, the gap, a direction, a step. Rules say how each
of them is chosen; the loop keeps time, status, trace and callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from wdro_model.errors import blaming
from wdro_model.sets.deadlines import OutOfTime, deadline
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.solvers.directions import ActiveSet
from wdro_model.solvers.loop import Limits, Loop, Rules
from wdro_model.solvers.objective import Array
from wdro_model.solvers.outcome import ABSOLUTE_GAP, Outcome, State, Stop, relative_gap
from wdro_model.solvers.trace import Display

__all__ = [
    "ABSOLUTE_GAP",
    "Limits",
    "Outcome",
    "Rules",
    "State",
    "Stop",
    "relative_gap",
    "run",
]


def run(
    objective: Any,
    feasible: FeasibleSet,
    start: Array | None,
    rules: Rules,
    limits: Limits,
    *,
    rng: np.random.Generator,
    callbacks: Sequence[Callable[[State], bool | None]] = (),
    verbose: bool = False,
    progress: bool = True,
    title: str = "Frank-Wolfe",
    active_set: ActiveSet | None = None,
) -> Outcome:
    """Minimise an objective over a set from a point in it, or from the active set of a run."""
    loop = Loop(objective, feasible, starting_point(start, active_set, feasible), rules, limits)
    loop.prepare(rng, active_set)
    outcome: Outcome | None = None
    with Display(verbose, progress, limits.iterations, title) as display, deadline(limits.seconds):
        try:
            for t in range(limits.iterations + 1):
                here = loop.look(t)
                stop = loop.verdict(here) or asked_to_stop(callbacks, here.state)
                stride = loop.stride(here) if stop is None else None
                if stop is None and stride is None:
                    stop = Stop.STALLED
                outcome = loop.outcome(here, stop or Stop.INTERRUPT)
                record = here.record(stride)
                loop.trace.records.append(record)
                display.show(record, last=stop is not None)
                if stop is not None or stride is None:
                    break
                loop.take(stride)
        except KeyboardInterrupt:
            outcome = outcome or loop.unfinished()
            if outcome is None:
                raise
        except OutOfTime:
            outcome = outcome or loop.unfinished()
            if outcome is None:
                raise
            outcome = replace(outcome, stop=Stop.TIME)
        assert outcome is not None
        display.end(outcome.stop.value)
    if outcome.stop is Stop.INTERRUPT:
        return outcome
    return replace(outcome, active_set=loop.active_set)


def starting_point(start: Array | None, active: ActiveSet | None, feasible: FeasibleSet) -> Array:
    """A fresh copy of the starting point: that of the active set where there is one."""
    if active is not None:
        start = active.x
    if start is None:
        raise ValueError("a run needs a starting point: give start or active_set.")
    x = np.array(start, dtype=np.float64)
    if x.shape != (feasible.dimension,):
        raise ValueError(
            f"the starting point must have shape ({feasible.dimension},), got {x.shape}."
        )
    return x


def asked_to_stop(callbacks: Sequence[Callable[[State], bool | None]], state: State) -> Stop | None:
    """Call all callbacks; one that returns True stops the run."""
    answers = []
    for callback in callbacks:
        with blaming(f"the callback {getattr(callback, '__name__', repr(callback))}"):
            answers.append(callback(state))
    asked = any(isinstance(answer, (bool, np.bool_)) and answer for answer in answers)
    return Stop.CALLBACK if asked else None
