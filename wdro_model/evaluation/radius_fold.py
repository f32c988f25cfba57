"""One fold of a radius selection: a path of solves, each judged on what it did not see."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model.errors import blaming, unknown_name
from wdro_model.evaluation.attempts import FAILED, warm, was_interrupted
from wdro_model.evaluation.folds import Fold
from wdro_model.evaluation.losses import losses_at
from wdro_model.evaluation.statistics import (
    TAIL,
    conditional_value_at_risk,
    standard_error,
    tail_error,
)
from wdro_model.model import RobustModel
from wdro_model.solve.solution import Solution

if TYPE_CHECKING:
    from wdro_model.problem import Problem

Metric = Callable[[np.ndarray], Any]

METRICS: dict[str, Metric] = {
    "mean": np.mean,
    "cvar": partial(conditional_value_at_risk, level=TAIL),
}
ERRORS: dict[str, Metric] = {
    "mean": standard_error,
    "cvar": partial(tail_error, level=TAIL),
}
"""Their standard errors over independent losses."""


def as_metric(given: Any) -> Metric:
    """A metric by name, or a function of the losses (n,) that is small for good decisions."""
    if callable(given):
        return given
    if not isinstance(given, str) or given not in METRICS:
        message = unknown_name("metric", given, METRICS)
        raise ValueError(f"{message} A function of the losses will do as well.")
    return METRICS[given]


def metric_name(metric: Any) -> str:
    """What a metric is called in tables."""
    return metric if isinstance(metric, str) else getattr(metric, "__name__", repr(metric))


@dataclass(frozen=True, eq=False)
class FoldScores:
    """The scores of one fold along the radii."""

    scores: np.ndarray
    """(K,); NaN where the solve failed."""
    errors: np.ndarray
    """Standard errors (K,) over the fold's own scenarios; NaN for a metric of the user."""
    statuses: tuple[str, ...]
    """Of the solves; "failed" where there is no decision."""
    messages: tuple[str, ...]
    """Why a radius has no score; empty where it has one."""
    seconds: float


@dataclass(frozen=True)
class Step:
    """One radius of one fold."""

    score: float
    error: float
    status: str
    message: str
    solution: Solution | None


@dataclass(frozen=True)
class RadiusTask:
    """The task of every fold: fit at each radius, start from the one before, judge."""

    problem: Problem
    radii: tuple[float, ...]
    folds: tuple[Fold | None, ...]
    """None fits on all samples, and judges on `scenarios`."""
    seeds: tuple[int, ...]
    metric: str | Metric
    scenarios: Any
    """Scenarios of the user for folds that are None."""
    arguments: Mapping[str, Any]
    """Of `Problem.solve`."""

    def __call__(self, index: int) -> FoldScores:
        """The scores of one fold. Variables and constraints get back the values they had."""
        began = time.perf_counter()
        feasible = self.problem._model.feasible
        with feasible.holding():
            for variable in feasible.layout.variables:
                variable.save_value(None)
            found = self._walk(self.folds[index], self.seeds[index])
        return FoldScores(
            scores=np.array([step.score for step in found]),
            errors=np.array([step.error for step in found]),
            statuses=tuple(step.status for step in found),
            messages=tuple(step.message for step in found),
            seconds=time.perf_counter() - began,
        )

    def _walk(self, fold: Fold | None, seed: int) -> list[Step]:
        try:
            fitted = self.problem if fold is None else self.problem.with_samples(rows=fold.train)
        except Exception as error:
            return [_failure(error)] * len(self.radii)
        fitted = fitted.with_radius(self.radii[0])
        fitted._warned = True  # of a loss that is not convex: the solve on all samples says so
        arguments = {**self.arguments, "seed": seed, "progress": False}
        found: list[Step] = []
        last: Solution | None = None
        for radius in self.radii:
            fitted = fitted.with_radius(radius)
            found.append(self._step(fitted, fold, warm(fitted, arguments, last)))
            last = found[-1].solution or last
        return found

    def _step(self, fitted: Problem, fold: Fold | None, arguments: Mapping[str, Any]) -> Step:
        """Solve at one radius and judge the decision."""
        try:
            fitted.solve(**arguments)
            solution = fitted.solution
            assert solution is not None
            losses = self._losses(solution, fold)
        except Exception as error:
            return _failure(error)
        if was_interrupted(solution):
            raise KeyboardInterrupt
        score = _score(self.metric, losses)
        if not np.isfinite(score):
            message = f"the metric {metric_name(self.metric)} is {score}"
            return Step(np.nan, np.nan, solution.status, message, solution)
        spread = ERRORS[self.metric](losses) if isinstance(self.metric, str) else np.nan
        return Step(score, spread, solution.status, "", solution)

    def _losses(self, solution: Solution, fold: Fold | None) -> np.ndarray:
        """The losses of a decision on what was held out, or on the user's scenarios.

        Small is good: they are minus the values of an objective that is maximised.
        """
        model = self.problem._model
        x = model.feasible.layout.join(solution.decision)
        if fold is None or not isinstance(model, RobustModel):
            return model.sign * losses_at(model, x, self.scenarios)
        return model.sign * losses_at(replace(model, joint=model.joint.take(fold.test)), x)


def _failure(error: Exception) -> Step:
    notes = getattr(error, "__notes__", ())
    message = " ".join([f"{type(error).__name__}: {error}", *notes])
    return Step(np.nan, np.nan, FAILED, message, None)


def _score(metric: str | Metric, losses: np.ndarray) -> float:
    with blaming(f"the metric {metric_name(metric)}"):
        value = as_metric(metric)(losses)
    if np.ndim(value) != 0 or not isinstance(np.asarray(value).item(), Real):
        raise TypeError(
            f"the metric {metric_name(metric)} must return one number for a vector of losses, got "
            f"{type(value).__name__} of shape {np.shape(value)}."
        )
    return float(value)


def reasons(folds: Sequence[FoldScores]) -> list[str]:
    """Why scores are missing, each reason once."""
    return list(dict.fromkeys(m for fold in folds for m in fold.messages if m))
