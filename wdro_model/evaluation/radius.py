"""`select_radius`: a radius chosen by cross-validation, and the result as table and picture."""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model import checks
from wdro_model.display.tables import Column, Tabular, brief_title, counted
from wdro_model.errors import unknown_name
from wdro_model.evaluation.attempts import (
    FAILED,
    NOT_RUN,
    Collected,
    check_jobs,
    check_radii,
    check_solving,
    collect,
)
from wdro_model.evaluation.cross_validation import (
    ERRORS,
    Fold,
    Metric,
    RadiusTask,
    as_folds,
    as_metric,
    metric_name,
    refuse_plain_metric,
)
from wdro_model.evaluation.statistics import mean_of, standard_error
from wdro_model.model import RobustModel
from wdro_model.model.sharing import one_thread_at_a_time
from wdro_model.model.uncertain_constraints import refuse_unpaired
from wdro_model.solve.certify import Solution
from wdro_model.solve.options import Options
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.joint import JointSamples, LazySamples
from wdro_model.uncertainty.samples import CHUNK_ENTRIES, index_of, read_only

if TYPE_CHECKING:
    from wdro_model.problem import Problem


CHOSEN = Column("chosen", "The radius that was chosen.", " ", word=True, flags=("<- chosen", ""))
COLUMNS = (
    Column("radius", "The radius of the Wasserstein ball."),
    Column("mean", "The mean of the folds' scores.", form=".6g"),
    Column("standard_error", "The standard error of the mean.", form=".3g"),
    Column("status", "How the solves ended.", word=True),
    CHOSEN,
)


@dataclass(frozen=True, eq=False)
class RadiusSelection(Tabular):
    """Scores of K radii on F folds, and the radius chosen by them.

    Examples
    --------
    >>> problem = problem.with_samples(np.random.default_rng(0).normal([1, 2], 0.5, size=(9, 2)))
    >>> selection = wdro.select_radius(problem, radii=[0.0, 0.1], folds=3, progress=False)
    >>> selection.scores.shape, selection.complete          # radii, folds
    ((2, 3), True)
    >>> figure = selection.plot()                           # or selection.plot("radii.png")
    """

    radii: np.ndarray
    """(K,), increasing."""
    scores: np.ndarray
    """The metric on what each fold held out, (K, F); NaN where a solve failed or was not run."""
    errors: np.ndarray
    """Standard errors over the scenarios within each fold, (K, F); NaN for a user's metric."""
    statuses: np.ndarray
    """Statuses of the solves, (K, F) strings; "failed" and "not run" have no score."""
    fold_seconds: np.ndarray
    """The time that each fold took where it ran, (F,); NaN where it did not."""
    messages: tuple[str, ...]
    """The reasons of failed solves, each once."""
    metric: str
    rule: str
    seconds: float
    """The time from call to return, the last solve included."""
    complete: bool
    """Whether every fold ran to its end."""
    problem: Problem
    """The user's problem at the chosen radius, solved on all samples unless refit=False, the run
    was interrupted, or the solve failed."""
    notes: tuple[str, ...] = ()
    fold_probabilities: np.ndarray | None = None
    """The probability of the samples that each fold judges on, (F,), its share in the mean. None
    where all folds count the same."""

    columns = COLUMNS
    __repr__ = brief_title

    @property
    def solution(self) -> Solution | None:
        """The decision at the chosen radius, fitted on all samples; None if that was not done."""
        return self.problem.solution

    @property
    def radius(self) -> float:
        """The chosen radius."""
        return float(self.radii[self.index])

    @cached_property
    def index(self) -> int:
        """The position of the chosen radius."""
        return choose(self.rule, self.mean, self.standard_error, self.counts)

    @cached_property
    def counts(self) -> np.ndarray:
        """The number of folds on which each radius has a score, (K,)."""
        return np.isfinite(self.scores).sum(axis=1)

    @cached_property
    def mean(self) -> np.ndarray:
        """The mean score over the folds, (K,)."""
        return self._over_folds(mean_of)

    @cached_property
    def standard_error(self) -> np.ndarray:
        """Standard error of the mean, (K,): between folds, or within the fold if there is one."""
        within = np.where(np.isfinite(self.scores), self.errors, 0.0).sum(axis=1)
        return np.where(self.counts == 1, within, self._over_folds(standard_error))

    def _over_folds(self, statistic: Callable[..., float]) -> np.ndarray:
        """A statistic of the scores of each radius, (K,), over the folds that have one."""
        numbers = np.full(len(self.radii), np.nan)
        for k in np.flatnonzero(self.counts):
            scored, shares = np.isfinite(self.scores[k]), self.fold_probabilities
            if shares is not None:
                shares = shares[scored] / shares[scored].sum()
            numbers[k] = statistic(self.scores[k][scored], shares)
        return numbers

    @property
    def erm(self) -> float | None:
        """The mean score of radius 0; None if it is not among the radii."""
        return float(self.mean[0]) if self.radii[0] == 0 else None

    def rows(self) -> list[dict[str, Any]]:
        """A row for each radius."""
        return [
            {
                "radius": float(radius),
                "mean": float(self.mean[k]),
                "standard_error": float(self.standard_error[k]),
                "chosen": k == self.index,
                "status": self._status(k),
                **{f"fold {j}": float(score) for j, score in enumerate(self.scores[k])},
            }
            for k, radius in enumerate(self.radii)
        ]

    def plot(self, path: Any = None, *, ax: Any = None) -> Any:
        """Scores against radii with their standard errors; saved if a path is given.

        Returns the figure, which notebooks show, or `ax`, Matplotlib's axes to draw on.
        """
        from wdro_model.evaluation.radius_pictures import plot_radii

        return plot_radii(self, path, ax=ax)

    def _footnotes(self) -> list[str]:
        return [f"note: {note}" for note in self.notes]

    @property
    def headline(self) -> str:
        """The chosen radius and the rule behind it, for a picture."""
        by = "smallest mean" if self.rule == "min" else self.rule.replace("_", " ")
        folds = counted(self.scores.shape[1], "fold")
        return f"radius {self.radius:.3g} has been chosen ({by}, {folds})"

    @property
    def title(self) -> str:
        done = int((self.statuses[0] != NOT_RUN).sum())
        folds = counted(self.scores.shape[1], "fold")
        finished = "" if self.complete else f" ({done} finished)"
        return f"radius {self.radius:.5g} by {self.rule!r}: {self.metric} over {folds}{finished}"

    def _status(self, k: int) -> str:
        """The status of all folds, with counts where they differ."""
        counts = Counter(str(status) for status in self.statuses[k] if status != NOT_RUN)
        if len(counts) == 1:
            return next(iter(counts))
        return ", ".join(f"{count} {status}" for status, count in counts.most_common())


RULES = ("min", "one_standard_error")


def choose(rule: str, mean: np.ndarray, standard_error: np.ndarray, counts: np.ndarray) -> int:
    """The position of the radius that a rule chooses among those with a score on the most folds.

    Folds differ in difficulty: a mean over fewer of them is no match for a mean over all.

    min                 the smallest mean score; of equal ones the smaller radius
    one_standard_error  the largest radius within one standard error of the smallest mean score
    """
    eligible = np.where(counts == counts.max(), mean, np.nan)
    best = int(np.nanargmin(eligible))
    if rule == "min":
        return best
    margin = standard_error[best] if np.isfinite(standard_error[best]) else 0.0
    return int(np.flatnonzero(eligible <= eligible[best] + margin)[-1])


# ------------------------------
# The radius of the ball, chosen by the out-of-sample losses of the decisions


SET_BY_CALLER = ("start", "progress")
"""Arguments of `solve` that `select_radius` and `radius_for` set themselves."""
NAMES = ("radii", "folds", "metric", "rule", "test", "holdout", "jobs", "refit")
DEFAULT_RADII = 10
"""Number of positive radii in the default grid."""
SMALLEST_SHARE = 1e-2
"""The smallest positive radius of the grid, as a share of the sampling error of the mean."""


@one_thread_at_a_time
def select_radius(
    problem: Problem,
    radii: Any = None,
    folds: Any = 5,
    *,
    metric: str | Metric = "risk",
    rule: str = "min",
    test: Any = None,
    holdout: float | None = None,
    jobs: int | None = None,
    seed: int = 0,
    refit: bool = True,
    progress: bool = True,
    **arguments: Any,
) -> RadiusSelection:
    """Choose the radius of a problem by cross-validation, and solve it there on all samples.

    In each fold the problem is solved at all radii, in increasing order with warm starts, on the
    training samples of the fold. The decisions are judged by their losses on the samples held out.
    Afterwards the variables hold the decision at the chosen radius, fitted on all samples;
    `problem` itself keeps its radius and its last solution.

    Ctrl-C returns the folds that have finished (`complete` is then False, and the problem is not
    solved again); it is raised if there are none. A solve that fails leaves NaN and a message. If
    all fail, an error is raised.

    Parameters
    ----------
    problem : Problem
        A problem with an ambiguity set; its cost is used, its radius is not.
    radii : increasing numbers, optional
        0 is ERM. By default 0 and ten radii from the scale of the data: see
        `wdro_model.evaluation.radius.default_radii`.
    folds : int, object with `split(X)`, or pairs of indices (train, test)
        k folds, shuffled by the seed; 1 goes with `holdout`, the share of the samples held out.
    metric : "risk", "mean", "cvar" (the mean of the worst 5%) or a function of the losses (n,)
        Small scores are good; the losses are minus the values of an objective that is maximised.
        The risk is the objective on the scenarios, the mean if it has no risk measures. If the
        samples have probabilities, a function is called as metric(losses, probabilities=p).
    rule : "min" or "one_standard_error"
        The smallest mean score, or the largest radius within one standard error of it.
    test : {parameter: array} or array, optional
        Scenarios to judge on, instead of folds: the problem is fitted on all its samples.
    jobs : int, optional
        Processes, one fold in each; -1 for all cores. None takes the setting of
        `joblib.parallel_config` (a Dask cluster, for example); without one, this process.
    seed : int
        Shuffles the samples and seeds the solves; the same for any number of jobs.
    refit : bool
        False leaves the variables as they were and `result.problem` unsolved.
    progress : bool
        Show a bar; in a log, a line after a minute, after two, after four.
    **arguments
        Arguments of each `Problem.solve`: method, solver, time_limit, epsilon, ...

    Examples
    --------
    >>> import cvxpy as cp, numpy as np, wdro_model as wdro
    >>> rng = np.random.default_rng(0)
    >>> x = cp.Variable(5, nonneg=True)
    >>> returns = wdro.UncertainParameter(5, samples=rng.normal(0.05, 0.3, size=(20, 5)))
    >>> ball = wdro.WassersteinBall(0.01)
    >>> problem = wdro.Problem(cp.Minimize(-returns @ x), [cp.sum(x) == 1], ball)
    >>> selection = wdro.select_radius(problem, [0.0, 0.01, 0.1], folds=4, progress=False)
    >>> selection.radius in (0.0, 0.01, 0.1), selection.problem.status
    (True, 'optimal')
    """
    began = time.perf_counter()
    joint, cost = check_problem(problem, "select_radius")
    check_solve_arguments("select_radius", NAMES, seed, arguments)
    as_metric(metric)
    if metric == "risk" and problem._model.tails is None:
        metric = "mean"
    jobs = check_jobs(jobs)
    if radii is None:
        grid = default_radii(joint, cost, problem.ambiguity.cost.order)
    else:
        grid = increasing_radii(radii)
    splits: list[Fold | None] = [None]
    if test is None:
        if joint.probabilities is not None:
            refuse_plain_metric(metric)
        refuse_unpaired(problem._model)
        splits = [*as_folds(folds, joint.size, holdout, seed)]
    elif holdout is not None:
        raise ValueError(f"test= takes the place of a hold-out; drop holdout={holdout!r}.")
    checks.choice("rule", rule, RULES)
    if rule == "one_standard_error" and len(splits) == 1 and metric not in ERRORS:
        raise ValueError(
            "rule='one_standard_error' needs a standard error, and one fold has none for the "
            f"metric {metric_name(metric)!r}; use folds=5, metric='mean' or rule='min'."
        )
    task = RadiusTask(
        problem=problem,
        radii=tuple(map(float, grid)),
        folds=tuple(splits),
        seeds=fold_seeds(seed, len(splits)),
        metric=metric,
        scenarios=None if test is None else scenarios_by_parameter(problem, joint, test),
        arguments=arguments,
    )
    collected = collect(
        task, len(splits), task.parts(), jobs=jobs, progress=progress, title="select_radius"
    )
    selection = select(task, collected, rule, began)
    if refit and selection.complete:
        selection = solve_on_all_samples(
            selection, {**arguments, "seed": seed, "progress": progress}
        )
    return replace(selection, seconds=time.perf_counter() - began)


def select(task: RadiusTask, collected: Collected, rule: str, began: float) -> RadiusSelection:
    """The selection from the folds that finished; an error if no radius has a score."""
    shape = (len(task.radii), len(task.folds))
    scores, errors = np.full(shape, np.nan), np.full(shape, np.nan)
    statuses, seconds = np.full(shape, NOT_RUN, dtype=object), np.full(shape[1], np.nan)
    reasons: dict[str, None] = {}
    for fold, result in collected.results.items():
        seconds[fold] = result.seconds
        for k, trial in enumerate(result.trials):
            scores[k, fold], errors[k, fold] = trial.score, trial.error
            statuses[k, fold] = trial.status
            reasons.setdefault(trial.message)
    messages = [message for message in reasons if message]
    failed, finished = int((statuses == FAILED).sum()), len(collected.results)
    if not np.isfinite(scores).any():
        raise RuntimeError(
            f"no radius could be scored: all {failed} solves failed. {' | '.join(messages[:3])}"
        )
    if failed:
        warnings.warn(
            f"{failed} solves of {finished * len(task.radii)} failed and have no score; a radius "
            f"is chosen among those with the most scores. {messages[0]}",
            stacklevel=3,
        )
    notes = [f"a solve failed: {message}" for message in messages]
    if collected.interruption is not None:
        notes.append(
            f"{collected.interruption}: {finished} of {len(task.folds)} folds have scores; "
            "the problem was not solved at the radius: call result.problem.solve()"
        )
    selection = RadiusSelection(
        radii=np.array(task.radii),
        scores=scores,
        errors=errors,
        statuses=statuses,
        fold_seconds=seconds,
        messages=tuple(messages),
        metric=metric_name(task.metric),
        rule=rule,
        seconds=time.perf_counter() - began,
        complete=collected.interruption is None,
        problem=task.problem,
        fold_probabilities=task.fold_probabilities(),
    )
    if len(task.radii) > 1 and selection.index == len(task.radii) - 1:
        notes.append("the largest radius was chosen: the best one may be larger still")
    return replace(
        selection, problem=task.problem.with_radius(selection.radius), notes=tuple(notes)
    )


def solve_on_all_samples(
    selection: RadiusSelection, arguments: Mapping[str, Any]
) -> RadiusSelection:
    """The selection with its problem solved on all samples; scores are kept if that fails."""
    try:
        selection.problem.solve(**arguments)
        return selection
    except KeyboardInterrupt:
        note = "interrupted before the problem was solved on all samples"
    except Exception as error:
        note = f"the solve on all samples failed ({type(error).__name__}: {error})"
        warnings.warn(note, stacklevel=3)
    note += "; call result.problem.solve()"
    return replace(selection, notes=(*selection.notes, note))


def fold_seeds(seed: int, count: int) -> tuple[int, ...]:
    """A seed for the solves of each fold."""
    words = np.random.SeedSequence(seed).generate_state(count, np.uint64)
    return tuple(int(word >> np.uint64(1)) for word in words)


# ------------------------------------------------------------------ what is given
def check_problem(problem: Any, caller: str) -> tuple[JointSamples, BoundCost]:
    """The samples and the cost of a problem that has a radius to choose."""
    if not hasattr(problem, "with_radius"):
        raise TypeError(f"{caller} needs a wdro Problem, got {type(problem).__name__}.")
    model = problem._model
    if not isinstance(model, RobustModel):
        raise ValueError(
            "there is no radius to choose: the loss has no uncertain parameter; declare one with "
            "UncertainParameter(..., samples=...)."
        )
    if not model.has_ball:
        raise ValueError(
            "there is no radius to choose: the problem has no ambiguity set; pass "
            "ambiguity=WassersteinBall(radius=..., cost=...), whose cost the radii are measured in."
        )
    return model.joint, model.cost


def check_solve_arguments(
    caller: str, names: Iterable[str], seed: Any, arguments: Mapping[str, Any]
) -> None:
    """Refuse arguments that neither `solve` nor the caller has, with the nearest of their names."""
    solving = [f.name for f in fields(Options) if f.name not in SET_BY_CALLER]
    known = [*names, *solving, "method", "solver", "time_limit", "progress"]
    for name in arguments:
        if name in SET_BY_CALLER:
            raise TypeError(f"{caller} sets {name}= itself: it starts from the radius before.")
        if name not in known:
            raise TypeError(unknown_name("argument", name, known))
    check_solving({"method": "auto", **arguments, "seed": seed})
    if arguments.get("method") == "erm":
        raise ValueError(
            "method='erm' does not see the radius, there is nothing to choose; use 'auto', 'exact' "
            "or 'smoothed' (radius 0 among the radii is ERM)."
        )


def scenarios_by_parameter(problem: Problem, joint: JointSamples, test: Any) -> dict[Any, Any]:
    """The user's scenarios by parameter, in one order of their rows."""
    given = joint.by_parameter(problem._model.scenarios_of(joint, test))
    scenarios: dict[Any, Any] = {}
    orders = joint.row_orders([index_of(given[p]) for p in joint.parameters])
    for parameter, order in zip(joint.parameters, orders):
        rows, name = given[parameter], f"test scenarios of {parameter.name()!r}"
        if not isinstance(rows, LazySamples):
            rows = read_only(parameter.as_scenarios(rows, name))
        elif rows.shape[1:] != parameter.shape:
            shape = f"(n, *{parameter.shape})"
            raise ValueError(f"{name} must have shape {shape}, got {rows.shape}.")
        scenarios[parameter] = rows if order is None else rows[order]
    joint.check_counts([len(rows) for rows in scenarios.values()])
    return scenarios


# ------------------------------------------------------------------ radii to try
def default_radii(
    joint: JointSamples, cost: BoundCost, order: float | None, count: int = DEFAULT_RADII
) -> np.ndarray:
    """0 (ERM) and `count` radii, evenly spaced in their logarithm, from 0.01 S N^(-p/2) to S.

    S = mean_k c(xi_k, mean of the samples) is the cost of moving all samples to their mean, the
    total variance for the squared cost. p is the order of the cost, 2 where it is not known. The
    error of the mean of N samples is about S N^(-p/2), total variance / N for the squared cost. A
    much smaller ball is ERM; a ball of radius S contains a distribution in one point.
    """
    scale = transport_scale(joint, cost)
    size = joint.shares.effective_size
    first = SMALLEST_SHARE * scale * size ** (-(2.0 if order is None else order) / 2)
    return np.concatenate([[0.0], np.geomspace(first, scale, count)])


def transport_scale(joint: JointSamples, cost: BoundCost) -> float:
    """mean_k c(xi_k, mean of the samples), over the coordinates that may move."""
    if np.all(cost.frozen):
        raise ValueError(
            "every coordinate of the data has an infinite weight and is held fixed, so that the "
            "radius changes nothing; give a finite weight to what is uncertain."
        )
    total, varies, first = 0.0, False, None
    step = max(1, CHUNK_ENTRIES // joint.dimension)
    for number, rows in enumerate(joint.blocks(step)):
        first = rows[0] if first is None else first
        # Rounding of the mean gives constant data a tiny spread.
        varies = varies or bool(np.any((rows != first) & ~cost.frozen))
        costs = cost(rows, np.where(cost.frozen, rows, joint.mean))
        shares = joint.shares.subset(slice(number * step, number * step + len(rows)))
        total += float(shares.multiple(costs).sum())
    scale = total / joint.size
    if varies and 0 < scale < math.inf:
        return scale
    reason = (
        f"carrying the samples to their mean costs {scale}"
        if varies
        else "all samples are the same"
    )
    raise ValueError(f"the data has no scale for radii ({reason}); give radii=[...].")


def increasing_radii(given: Any) -> np.ndarray:
    """Radii of the user: finite, at least 0, increasing."""
    listed = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else given
    check_radii(listed)
    values = [float(radius) for radius in listed]
    for before, after in pairwise(values):
        if before == after:
            raise ValueError(f"the radius {after:g} is listed twice; list each radius once.")
        if before > after:
            raise ValueError(
                f"radii must increase, got {after:g} after {before:g}: scores keep their order, "
                "and each solve starts from the one before; write sorted(radii)."
            )
    return np.array(values)
