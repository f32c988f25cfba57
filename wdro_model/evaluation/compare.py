"""Decisions of several methods side by side, on the data they saw and on data they did not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from wdro_model.evaluation.attempts import (
    NOT_RUN,
    Failure,
    attempt,
    check_radii,
    check_solving,
    keep_decision,
    named_scenarios,
    radius_labels,
    solve_bar,
    warm_arguments,
    was_interrupted,
)
from wdro_model.evaluation.discrete import refuse_rounding, rounded_solution
from wdro_model.evaluation.report import Judged, Refused, Report
from wdro_model.evaluation.statistics import TRAINING, outcomes_by_set
from wdro_model.model.sharing import one_thread_at_a_time
from wdro_model.solve.certify import Solution
from wdro_model.uncertainty.samples import is_frame

if TYPE_CHECKING:
    from wdro_model.problem import Problem

Methods = str | Iterable[str] | Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Request:
    """A solve of a comparison."""

    label: str
    problem: Problem
    arguments: Mapping[str, Any]
    continues: bool = False
    """Whether the request before it is the same method at another radius."""
    group: str = ""
    """The label of the method, without its radius."""

    @property
    def radius(self) -> float:
        return 0.0 if self.arguments["method"] == "erm" else self.problem.radius


@one_thread_at_a_time
def compare(
    problem: Problem,
    methods: Methods = ("erm", "exact", "smoothed"),
    test: Any = None,
    radii: Iterable[float] | None = None,
    *,
    rounded: bool = False,
    warm: bool = False,
    **options: Any,
) -> Report:
    """Solve by each method and judge the decisions on the samples and on held-out scenarios.

    A method that does not apply to the problem, or whose solver fails, stays in the report with
    its message. An error is raised if no method gives a decision; wrong arguments are refused at
    once. Ctrl-C ends the comparison with the methods that are finished.

    Each method has a cold start, so that its decision and its time are its own; at further radii
    it starts from the decision at the radius before. A problem that has a decision keeps it; a
    problem without one ends with the decision of the last method.

    Parameters
    ----------
    methods : list of method names, or dict {label: arguments of `solve`}
    test : {parameter: array}, an array, or a dict {name: such scenarios}
    radii : list, optional
        Solve each robust method at each of these radii in place of the problem's own.
    rounded : bool
        Judge a discrete decision (a tree, a path) next to each fractional one as well.
    warm : bool
        Start each method from the decision of the previous one. This is faster, but a method
        returns its start where the start is within its tolerance.
    **options
        Further arguments of `solve`, for all methods.

    Examples
    --------
    >>> import cvxpy as cp, numpy as np, wdro_model as wdro
    >>> rng = np.random.default_rng(0)
    >>> x = cp.Variable(5, nonneg=True)
    >>> returns = wdro.UncertainParameter(5, samples=rng.normal(0.05, 0.3, size=(10, 5)))
    >>> ball = wdro.WassersteinBall(0.1)
    >>> problem = wdro.Problem(cp.Minimize(-returns @ x), [cp.sum(x) == 1], ball)
    >>> held_out = rng.normal(0.05, 0.3, size=(1000, 5))
    >>> report = wdro.compare(problem, methods=("erm", "exact"), test=held_out)
    >>> for judged in report.methods:
    ...     print(judged.name, judged.kept("test"))
    erm False
    exact True
    """
    if not hasattr(problem, "with_radius"):
        raise TypeError(f"compare needs a wdro Problem first, got {type(problem).__name__}.")
    labelled = arguments_by_label(methods)
    requests = list(requested_solves(problem, labelled, radii, options))
    sets = named_scenarios(problem, test)
    if rounded:
        refuse_rounding(problem)
    entries: list[Judged | Refused] = []
    errors: list[Exception] = []
    with keep_decision(problem), solve_bar("compare", len(requests), options) as bar:
        waiting = iter(requests)
        try:
            last: Solution | None = None
            for request in waiting:
                before = last if warm or request.continues else None
                arguments = warm_arguments(request.problem, request.arguments, before)
                answer = attempt(request.problem, arguments)
                bar.update()
                if isinstance(answer, Failure):
                    errors.append(answer.error)
                    status = answer.status
                    refused = Refused(request.label, answer.message, status, request.radius)
                    entries.append(refused)
                    continue
                last = answer
                entries.append(judge(request, answer, sets, answer.value))
                if was_interrupted(answer):
                    break
                if rounded:
                    entries.append(judge_rounded(request, answer, sets))
        except KeyboardInterrupt:
            if last is None:
                raise
            if request.label not in [entry.name for entry in entries]:
                waiting = chain([request], waiting)
        why = "the comparison was interrupted from the keyboard."
        entries += [Refused(request.label, why, NOT_RUN, request.radius) for request in waiting]
    if len(errors) == len(requests):
        first, *others = errors
        for other in others:
            first.add_note(str(other))
        raise first
    given = {"methods": labelled, "test": sets or None, "rounded": rounded, "warm": warm, **options}
    return Report(tuple(entries), (TRAINING, *sets), problem=problem, arguments=given)


def judge(
    request: Request, solution: Solution, sets: Mapping[str, Any], promise: float | None
) -> Judged:
    """The losses of a solution on the samples and on each set of scenarios."""
    outcomes = outcomes_by_set(request.problem._model, solution.everything, sets)
    return Judged(request.label, solution, outcomes, request.radius, promise, request.group)


def judge_rounded(request: Request, solution: Solution, sets: Mapping[str, Any]) -> Judged:
    """The losses of the discrete decision next to a solution."""
    discrete, promise = rounded_solution(request.problem, solution.as_loss())
    if solution.maximise:
        discrete, promise = discrete.turned(), None if promise is None else -promise
    label, group = (f"{name}, rounded" for name in (request.label, request.group))
    return judge(replace(request, label=label, group=group), discrete, sets, promise)


# ------------------------------------------------------------------ the solves
def requested_solves(
    problem: Problem, methods: Mapping[str, Any], radii: Any, options: Mapping[str, Any]
) -> Iterator[Request]:
    """The solves in their order; a ValueError for arguments that no problem accepts."""
    plans = {
        label: {"method": label, **options, **dict(arguments)}
        for label, arguments in methods.items()
    }
    if not plans:
        raise ValueError("compare needs at least one method.")
    for arguments in plans.values():
        check_solving(arguments)
    if radii is None:
        yield from (Request(label, problem, plan, group=label) for label, plan in plans.items())
        return
    values = check_radii(radii)
    twins = [problem.with_radius(radius) for radius in values]
    for label, plan in plans.items():
        if plan["method"] == "erm":
            yield Request(label, problem, plan, group=label)
            continue
        for k, (text, twin) in enumerate(zip(radius_labels(values), twins)):
            yield Request(f"{label}, radius {text}", twin, plan, k > 0, label)


def arguments_by_label(methods: Methods) -> dict[str, Mapping[str, Any]]:
    """Arguments of `solve` by label."""
    if isinstance(methods, str):
        return {methods: {}}
    if isinstance(methods, Mapping):
        if all(isinstance(arguments, Mapping) for arguments in methods.values()):
            return {str(label): arguments for label, arguments in methods.items()}
    elif isinstance(methods, Iterable) and not is_frame(methods):
        methods = list(methods)
        if all(isinstance(name, str) for name in methods):
            return {name: {} for name in methods}
    raise ValueError(
        f"methods must be a list of method names or a dict {{label: arguments}}, got "
        f"{methods!r:.60}; write methods=('erm', 'exact'). Held-out scenarios are "
        "test={parameter: array}."
    )
