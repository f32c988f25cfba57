"""Cross-validation of radii: the folds, and the scores of the decisions of one fold.

A fold says which samples a decision is fitted on and which judge it: k-fold, hold-out, or given.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model import checks
from wdro_model.errors import blaming, unknown_name
from wdro_model.evaluation.attempts import FAILED, warm_arguments, was_interrupted
from wdro_model.evaluation.statistics import (
    TAIL,
    Outcome,
    conditional_value_at_risk,
    mean_of,
    outcome_of,
    standard_error,
    tail_error,
)
from wdro_model.model import RobustModel
from wdro_model.sets import In
from wdro_model.solve.certify import Solution
from wdro_model.uncertainty.joint import as_rows

if TYPE_CHECKING:
    from wdro_model.problem import Problem

Metric = Callable[..., Any]

METRICS: dict[str, Metric] = {
    "risk": mean_of,
    "mean": mean_of,
    "cvar": partial(conditional_value_at_risk, level=TAIL),
}
"""Functions of the losses, and of `probabilities=` where they have some. The risk is the mean of
the scenarios' contributions to the objective, which are known beside their losses."""
ERRORS: dict[str, Metric] = {
    "risk": standard_error,
    "mean": standard_error,
    "cvar": partial(tail_error, level=TAIL),
}
"""Standard errors of the metrics over independent losses."""


def as_metric(given: Any) -> Metric:
    """A metric by name, or a function of the losses (n,) that is small for good decisions."""
    if callable(given):
        return given
    if not isinstance(given, str) or given not in METRICS:
        message = unknown_name("metric", given, METRICS)
        raise ValueError(f"{message} A function of the losses will do as well.")
    return METRICS[given]


def refuse_plain_metric(metric: Any) -> None:
    """A ValueError for a metric that takes no probabilities, which the samples have."""
    try:
        inspect.signature(as_metric(metric)).bind(None, probabilities=None)
    except TypeError:
        raise ValueError(
            f"the samples have probabilities, which the metric {metric_name(metric)} does not "
            "take; write it as metric(losses, probabilities), or use 'mean' or 'cvar'."
        ) from None
    except ValueError:
        pass  # a function in C, whose signature is not known


def metric_name(metric: Any) -> str:
    """The name of a metric in tables."""
    return metric if isinstance(metric, str) else getattr(metric, "__name__", repr(metric))


@dataclass(frozen=True, eq=False)
class Fold:
    """Samples to fit on and samples to judge on."""

    train: np.ndarray
    """Indices (n,)."""
    test: np.ndarray
    """Indices (m,), none of them in `train`."""

    def __repr__(self) -> str:
        return f"Fold({len(self.train)} to fit on, {len(self.test)} to judge)"


def k_fold(size: int, count: int, seed: int = 0) -> tuple[Fold, ...]:
    """`count` folds of nearly equal size, shuffled by the seed; each sample judges once."""
    if size < count:
        way_out = (
            f"use folds={size} (leave one out), or test= with scenarios of their own"
            if size > 1
            else "give test= with scenarios of their own"
        )
        raise ValueError(
            f"folds={count} needs at least {count} samples, there are {size}; {way_out}."
        )
    parts = np.array_split(np.random.default_rng(seed).permutation(size), count)
    everyone = np.arange(size)
    return tuple(Fold(np.setdiff1d(everyone, part), np.sort(part)) for part in parts)


def hold_out(size: int, share: float, seed: int = 0) -> tuple[Fold, ...]:
    """A single fold, in which a share of the samples, drawn by the seed, judges."""
    share = checks.number("holdout", share, low=0, high=1, open=True, hint="write 0.3")
    if size < 2:
        raise ValueError(
            f"a hold-out needs at least 2 samples, there is {size}; give test= with scenarios of "
            "their own."
        )
    count = min(size - 1, max(1, round(share * size)))
    order = np.random.default_rng(seed).permutation(size)
    return (Fold(np.sort(order[count:]), np.sort(order[:count])),)


def as_folds(folds: Any, size: int, holdout: float | None = None, seed: int = 0) -> list[Fold]:
    """The folds of `size` samples that a user asks for.

    folds: a number (1 goes with a hold-out share), an object with scikit-learn's `split(X)`, or
        pairs of indices (train, test).
    """
    number = isinstance(folds, Integral) and not isinstance(folds, bool | np.bool_)
    if holdout is not None and not (number and folds == 1):
        raise ValueError(f"holdout={holdout!r} goes with folds=1, got folds={folds!r}.")
    if number and folds >= 1:
        count = int(folds)
        if count == 1 and holdout is None:
            raise ValueError(
                "folds=1 leaves nothing to judge on; give holdout=0.3 for the share of the samples "
                "that judges, folds=5 for cross-validation, or test= with scenarios of their own."
            )
        if holdout is not None:
            return list(hold_out(size, holdout, seed))
        return list(k_fold(size, count, seed))
    if hasattr(folds, "split") and not isinstance(folds, str):
        folds = folds.split(np.zeros((size, 1)))
    if number or isinstance(folds, str | bytes) or not isinstance(folds, Iterable):
        raise ValueError(
            f"folds must be a positive integer, an object with split(X), or pairs of indices "
            f"(train, test); got {folds!r}."
        )
    pairs = [_as_fold(pair, k, size) for k, pair in enumerate(folds)]
    if not pairs:
        raise ValueError("folds is empty; give at least one pair of indices (train, test).")
    return pairs


def _as_fold(pair: Any, position: int, size: int) -> Fold:
    """A checked fold from a Fold or a pair of indices."""
    parts = (pair.train, pair.test) if isinstance(pair, Fold) else pair
    if not isinstance(parts, Iterable) or len(listed := list(parts)) != 2:
        raise ValueError(
            f"fold {position} must be a pair of indices (train, test), got {pair!r}; for a number "
            "of folds write folds=5."
        )
    train = as_rows(listed[0], size, f"training samples of fold {position}")
    test = as_rows(listed[1], size, f"test samples of fold {position}")
    common = np.intersect1d(train, test)
    if common.size:
        raise ValueError(
            f"fold {position} fits and judges on the same sample {int(common[0])}; a sample that "
            "was fitted on is no judge: take it out of one of the two."
        )
    return Fold(train, test)


# ------------------------------------------------------------------ one fold
@dataclass(frozen=True)
class Trial:
    """The solve at one radius in one fold, and its score on the samples held out."""

    status: str
    """The status of the solve; "failed" where there is no decision."""
    message: str
    """The reason where there is no score; empty where there is one."""
    score: float = np.nan
    error: float = np.nan
    """Standard error over the fold's own scenarios; NaN for a metric of the user."""
    promise: float = np.nan
    """The optimal value as a loss: minus the value of an objective that is maximised."""
    method: str = FAILED
    """The method of the solve; "failed" where there is no score."""


@dataclass(frozen=True)
class FoldScores:
    """The trials of one fold along the radii, and the time they took."""

    trials: list[Trial]
    seconds: float


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
            trials = self._trials(self.folds[index], self.seeds[index])
        return FoldScores(trials, time.perf_counter() - began)

    def parts(self) -> dict[str, Any]:
        """The user's own parts of the task by name, to say which of them cannot be sent."""
        problem = self.problem
        function = getattr(problem.objective, "function", None)
        parts: dict[str, Any] = {f"the metric {metric_name(self.metric)}": self.metric}
        if function is not None:
            parts[f"the loss function {getattr(function, '__name__', repr(function))}"] = function
        parts["the objective"] = problem.objective
        for constraint in problem.constraints:
            member = isinstance(constraint, In)
            name = f"the set {constraint.set!r}" if member else f"the constraint {constraint}"
            parts[name] = constraint.set if member else constraint
        for parameter in problem.uncertain_parameters():
            parts[f"the support of {parameter.name()!r}"] = parameter.support
        parts["the ground cost"] = problem.ambiguity
        parts["the test scenarios"] = self.scenarios
        for name, value in self.arguments.items():
            parts[f"the argument {name}={value!r}"] = value
        return parts

    def _trials(self, fold: Fold | None, seed: int) -> list[Trial]:
        """The trials at all radii, each started from the solution before."""
        try:
            fitted = self.problem if fold is None else self.problem.with_samples(rows=fold.train)
        except Exception as error:
            return [_failure(error)] * len(self.radii)
        fitted = fitted.with_radius(self.radii[0])
        fitted._warned = True  # of a loss that is not convex: the solve on all samples says so
        arguments = {**self.arguments, "seed": seed, "progress": False}
        trials: list[Trial] = []
        last: Solution | None = None
        for radius in self.radii:
            fitted = fitted.with_radius(radius)
            trials.append(self._trial(fitted, fold, warm_arguments(fitted, arguments, last)))
            last = fitted.solution or last
        return trials

    def _trial(self, fitted: Problem, fold: Fold | None, arguments: Mapping[str, Any]) -> Trial:
        """Solve at one radius and judge the decision."""
        try:
            fitted.solve(**arguments)
            solution = fitted.solution
            assert solution is not None
            outcome = self._outcome(solution, fold)
        except Exception as cause:
            return _failure(cause)
        if was_interrupted(solution):
            raise KeyboardInterrupt
        # Small is good: the values of an objective that is maximised are turned.
        costs = fitted._model.sign * (outcome.scores if self.metric == "risk" else outcome.losses)
        score = _score(self.metric, costs, outcome.probabilities)
        if not np.isfinite(score):
            return Trial(solution.status, f"the metric {metric_name(self.metric)} is {score}")
        error = np.nan
        if isinstance(self.metric, str):
            error = ERRORS[self.metric](costs, probabilities=outcome.probabilities)
        promise = fitted._model.sign * solution.value
        return Trial(solution.status, "", score, error, promise, solution.method)

    def _outcome(self, solution: Solution, fold: Fold | None) -> Outcome:
        """The losses of a decision on the samples held out, or on the user's scenarios."""
        model, scenarios = self.problem._model, self.scenarios
        x = model.feasible.layout.join(solution.everything)
        if fold is not None and isinstance(model, RobustModel):
            model, scenarios = replace(model, joint=model.joint.take(fold.test)), None
        return outcome_of(model, x, scenarios)

    def fold_probabilities(self) -> np.ndarray | None:
        """The probability of each fold's held-out samples; None where all count the same."""
        known = self.problem._model.shares.probabilities
        if known is None or any(fold is None for fold in self.folds):
            return None
        return np.array([known[fold.test].sum() for fold in self.folds if fold is not None])


def _failure(error: Exception) -> Trial:
    notes = getattr(error, "__notes__", ())
    message = " ".join([f"{type(error).__name__}: {error}", *notes])
    return Trial(FAILED, message)


def _score(metric: str | Metric, losses: np.ndarray, given: np.ndarray | None) -> float:
    more = {} if given is None else {"probabilities": given}
    with blaming(f"the metric {metric_name(metric)}"):
        value = as_metric(metric)(losses, **more)
    if np.ndim(value) != 0 or not isinstance(np.asarray(value).item(), Real):
        raise TypeError(
            f"the metric {metric_name(metric)} must return one number for a vector of losses, got "
            f"{type(value).__name__} of shape {np.shape(value)}."
        )
    return float(value)
