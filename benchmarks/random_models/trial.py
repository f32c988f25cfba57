"""The contract of a family, and the outcomes of a model."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import wdro_model as wdro

OK, UNFINISHED, OFF, REFUSED = "optimal", "unfinished", "off", "refused"
WRONG, OVER_TIME, BARE, NO_REFERENCE = "wrong", "over time", "bare", "no reference"
FAILURES = (WRONG, OVER_TIME, BARE)
"""`off` is an answer that is wrong and does not claim to be optimal: listed, and no failure."""

BARE_ERRORS = (
    IndexError,
    KeyError,
    AttributeError,
    UnboundLocalError,
    AssertionError,
    np.linalg.LinAlgError,
    ZeroDivisionError,
    RecursionError,
    MemoryError,
)
LEAST_WORDS = 8
"""Fewer words than this are no message with a way out."""

LIBRARY = str(Path(wdro.__file__).parent)


class NoReferenceError(Exception):
    """The judge's own computations disagree or fail: nothing is said about the library."""


@dataclass(frozen=True)
class Answer:
    """The result of one solve, as plain numbers."""

    value: float
    status: str
    decision: np.ndarray | None = None
    gap: float | None = None
    lower_bound: float | None = None
    standard_error: float | None = None
    more: dict[str, Any] = field(default_factory=dict)
    """Anything else that the family's judge looks at."""

    @property
    def is_optimal(self) -> bool:
        """Does the library claim an optimum?"""
        return self.status == "optimal"


def read_answer(problem: Any, decision: np.ndarray | None, **more: Any) -> Answer:
    """The answer that a solved `wdro.Problem` gives, with the decision in units of the judge."""
    solution = problem.solution
    return Answer(
        value=float(problem.value),
        status=str(problem.status),
        decision=None if decision is None else np.array(decision, dtype=float),
        gap=solution.gap,
        lower_bound=solution.upper_bound if solution.maximise else solution.lower_bound,
        standard_error=solution.standard_error,
        more=more,
    )


@dataclass
class Trial:
    """One random model: how the library solves it, and how its answer is judged.

    `judge` returns the list of all that is wrong with an answer; `expected_error` is the class of
    the error that is the right answer, for models that are infeasible; `must_be_refused` is True
    where any refusal with a way out is right.
    """

    text: str
    solve: Callable[[float], Answer]
    judge: Callable[[Answer], list[str]]
    expected_error: type[Exception] | None = None
    must_be_refused: bool = False
    solves: int = 1
    """How many solves there are, each with the limit of its own."""


@dataclass(frozen=True)
class Outcome:
    """The verdict on one model."""

    family: str
    seed: int
    kind: str
    seconds: float
    text: str
    reason: str = ""

    def __str__(self) -> str:
        line = f"[{self.kind}] {self.family} seed {self.seed}: {self.text}"
        return f"{line}\n    {self.reason}" if self.reason else line


def classify_error(
    error: BaseException, expected: type[Exception] | None = None, must_be_refused: bool = False
) -> tuple[str, str]:
    """The outcome of a solve that raised `error`, and the reason in words."""
    said = " ".join(str(error).split())
    shown = f"{type(error).__name__}: {said[:300]}"
    frames = traceback.extract_tb(error.__traceback__)
    where = frames[-1].filename if frames else ""
    if isinstance(error, BARE_ERRORS):
        return BARE, f"{shown} ({Path(where).name}:{frames[-1].lineno})"
    if must_be_refused:
        pass
    elif expected is not None:
        if isinstance(error, expected):
            return OK, ""
        if isinstance(error, (wdro.errors.InfeasibleError, wdro.errors.UnboundedError)):
            return WRONG, f"expected {expected.__name__}, got {shown}"
    elif isinstance(error, wdro.errors.InfeasibleError):
        return WRONG, f"feasible, but called infeasible: {shown}"
    elif isinstance(error, wdro.errors.UnboundedError):
        return WRONG, f"bounded, but called unbounded: {shown}"
    if isinstance(error, (TypeError, ValueError)) and not where.startswith(LIBRARY):
        return BARE, f"{shown} ({Path(where).name}:{frames[-1].lineno})"
    if len(said.split()) < LEAST_WORDS:
        return BARE, f"no way out in the message: {shown}"
    return (OK, "") if must_be_refused else (REFUSED, shown)


def compare_values(what: str, found: float, true: float, tolerance: float) -> list[str]:
    """A complaint if `found` is not `true` within `tolerance`."""
    if np.isfinite(found) and abs(found - true) <= tolerance:
        return []
    return [f"{what} {found:.8g}, by the judge {true:.8g} (tolerance {tolerance:.1g})"]
