"""The radius of the ball, chosen by what the decisions do on samples that they did not see."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wdro_model.evaluation.attempts import FAILED
from wdro_model.evaluation.folds import Fold, as_folds
from wdro_model.evaluation.parallel import Collected, check_jobs, collect
from wdro_model.evaluation.radius_checks import (
    check_arguments,
    check_problem,
    check_rule,
    check_test,
    sendable,
)
from wdro_model.evaluation.radius_fold import (
    Metric,
    RadiusTask,
    as_metric,
    metric_name,
    reasons,
)
from wdro_model.evaluation.radius_grid import check_radii, default_radii
from wdro_model.evaluation.selection import RadiusSelection, scores_of

if TYPE_CHECKING:
    from wdro_model.problem import Problem


def select_radius(
    problem: Problem,
    radii: Any = None,
    folds: Any = 5,
    *,
    metric: str | Metric = "mean",
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

    In each fold the problem is solved at every radius on the samples it may see, in order of the
    radii and each from the solution before, and the decisions are judged by their losses on the
    samples that were held out. Afterwards the variables hold the decision at the chosen radius,
    fitted on all samples; `problem` itself keeps its radius and its own last solution.

    Parameters
    ----------
    problem : Problem
        With an ambiguity set, whose cost is kept; its radius is not used.
    radii : increasing numbers, optional
        0 is ERM. By default 0 and ten radii from the scale of the data: see
        `wdro_model.evaluation.radius_grid.default_radii`.
    folds : int, object with `split(X)`, or pairs of indices (train, test)
        k folds, shuffled by the seed; 1 with `holdout`, the share of the samples that judges.
    metric : "mean", "cvar" (the mean of the worst 5%) or a function of the losses (n,)
        Small is good; the losses are minus the values of an objective that is maximised.
    rule : "min" or "one_standard_error"
        The smallest mean score, or the largest radius within one standard error of it.
    test : {parameter: array} or array, optional
        Scenarios that judge, instead of folds: the problem is fitted on all its samples.
    jobs : int, optional
        Processes, one fold in each; -1 for all cores. None is what `joblib.parallel_config` says
        (a Dask cluster, for example), and one process here without it.
    seed : int
        Shuffles the samples and seeds the solves; the same for any number of jobs.
    refit : bool
        False leaves the variables as they were and `result.problem` unsolved.
    progress : bool
        Show a bar on a terminal.
    **arguments
        Of `Problem.solve`: method, solver, time_limit, epsilon, ...

    Ctrl-C returns the folds that have finished (`complete` is then False, and the problem is not
    solved again), and is raised if there are none. A solve that fails leaves NaN and a message; an
    error if all do.
    """
    began = time.perf_counter()
    joint, cost = check_problem(problem)
    check_arguments(problem, seed, arguments)
    as_metric(metric)
    jobs = check_jobs(jobs)
    if radii is None:
        grid = default_radii(joint, cost, problem.ambiguity.cost.order)  # type: ignore[union-attr]
    else:
        grid = check_radii(radii)
    splits: list[Fold | None] = [None]
    if test is None:
        splits = [*as_folds(folds, joint.size, holdout, seed)]
    scenarios = check_test(joint, test, holdout)
    check_rule(rule, metric, len(splits))
    task = RadiusTask(
        problem=problem,
        radii=tuple(map(float, grid)),
        folds=tuple(splits),
        seeds=fold_seeds(seed, len(splits)),
        metric=metric,
        scenarios=scenarios,
        arguments=arguments,
    )
    found = collect(
        task, len(splits), sendable(task), jobs=jobs, progress=progress, title="select_radius"
    )
    selection = judged(task, found, rule, began)
    if refit and selection.complete:
        selection = refitted(selection, {**arguments, "seed": seed, "progress": progress})
    return replace(selection, seconds=time.perf_counter() - began)


def judged(task: RadiusTask, found: Collected, rule: str, began: float) -> RadiusSelection:
    """The selection from the folds that finished; an error if no radius has a score."""
    tables = scores_of(found.results, len(task.folds), len(task.radii))
    messages = reasons(list(found.results.values()))
    failed = int((tables["statuses"] == FAILED).sum())
    if not np.isfinite(tables["scores"]).any():
        raise RuntimeError(
            f"no radius could be scored: all {failed} solves failed. {' | '.join(messages[:3])}"
        )
    if failed:
        warnings.warn(
            f"{failed} solves of {len(found.results) * len(task.radii)} failed and have no score; "
            f"a radius is chosen among those with the most scores. {messages[0]}",
            stacklevel=3,
        )
    notes = [f"a solve failed: {message}" for message in messages]
    if found.interruption is not None:
        notes.append(
            f"{found.interruption}: {len(found.results)} of {len(task.folds)} folds have scores; "
            "the problem was not solved at the radius: call result.problem.solve()"
        )
    selection = RadiusSelection(
        radii=np.array(task.radii),
        scores=tables["scores"],
        errors=tables["errors"],
        statuses=tables["statuses"],
        fold_seconds=tables["seconds"],
        messages=tuple(messages),
        metric=metric_name(task.metric),
        rule=rule,
        seconds=time.perf_counter() - began,
        complete=found.interruption is None,
        problem=task.problem,
    )
    if len(task.radii) > 1 and selection.index == len(task.radii) - 1:
        notes.append("the largest radius was chosen: the best one may be larger still")
    return replace(
        selection, problem=task.problem.with_radius(selection.radius), notes=tuple(notes)
    )


def refitted(selection: RadiusSelection, arguments: Mapping[str, Any]) -> RadiusSelection:
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
