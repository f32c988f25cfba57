"""What `select_radius` is given, checked before anything is solved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from wdro_model.errors import unknown_name
from wdro_model.evaluation.radius_fold import ERRORS, RadiusTask, metric_name
from wdro_model.evaluation.selection import RULES
from wdro_model.model import RobustModel
from wdro_model.sets import In
from wdro_model.solve.options import Options, check_solver
from wdro_model.solve.plan import METHODS
from wdro_model.uncertainty.costs import BoundCost
from wdro_model.uncertainty.joint import JointSamples
from wdro_model.uncertainty.scenarios import LazySamples, as_scenarios, read_only

if TYPE_CHECKING:
    from wdro_model.problem import Problem

OWN = ("start", "progress")
"""Arguments of `solve` that the selection sets itself."""
NAMES = ("radii", "folds", "metric", "rule", "test", "holdout", "jobs", "refit")


def check_problem(problem: Any) -> tuple[JointSamples, BoundCost]:
    """The samples and the cost of a problem that has a radius to choose."""
    if not hasattr(problem, "with_radius"):
        raise TypeError(f"select_radius needs a wdro Problem, got {type(problem).__name__}.")
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


def check_arguments(problem: Problem, seed: Any, arguments: Mapping[str, Any]) -> None:
    """Refuse what `solve` would refuse, and what a selection has no use for."""
    solving = [f.name for f in fields(Options) if f.name not in OWN]
    known = [*NAMES, *solving, "method", "solver", "time_limit", "progress"]
    for name in arguments:
        if name in OWN:
            raise TypeError(
                f"select_radius sets {name}= itself: each solve starts from the radius before."
            )
        if name not in known:
            raise TypeError(unknown_name("argument", name, known))
    options = {name: value for name, value in arguments.items() if name in solving}
    problem._options({**options, "seed": seed})
    check_solver(arguments.get("solver"))
    method = arguments.get("method", "auto")
    if method not in METHODS:
        raise ValueError(unknown_name("method", method, METHODS))
    if method == "erm":
        raise ValueError(
            "method='erm' does not see the radius, there is nothing to choose; use 'auto', 'exact' "
            "or 'smoothed' (radius 0 among the radii is ERM)."
        )


def check_rule(rule: Any, metric: Any, folds: int) -> None:
    """A known rule, with a standard error where it needs one."""
    if rule not in RULES:
        raise ValueError(unknown_name("rule", rule, RULES))
    if rule == "one_standard_error" and folds == 1 and metric not in ERRORS:
        raise ValueError(
            "rule='one_standard_error' needs a standard error, and one fold has none for the "
            f"metric {metric_name(metric)!r}; use folds=5, metric='mean' or rule='min'."
        )


def check_test(joint: JointSamples, test: Any, holdout: Any) -> Any:
    """Scenarios that judge, by parameter; None if folds do."""
    if test is None:
        return None
    if holdout is not None:
        raise ValueError(f"test= takes the place of a hold-out; drop holdout={holdout!r}.")
    given = joint.by_parameter(test)
    found = {p: _scenarios(p, given[p]) for p in joint.parameters}
    joint.check_counts([len(scenarios) for scenarios in found.values()])
    return found


def _scenarios(parameter: Any, given: Any) -> Any:
    what = f"test scenarios of {parameter.name()!r}"
    if isinstance(given, LazySamples):
        if given.shape[1:] != parameter.shape:
            raise ValueError(f"{what} must have shape (n, *{parameter.shape}), got {given.shape}.")
        return given
    return read_only(as_scenarios(given, parameter.shape, what))


def sendable(task: RadiusTask) -> dict[str, Any]:
    """The user's own parts of a task by name, to say which of them cannot be sent."""
    problem = task.problem
    function = getattr(problem.objective, "function", None)
    parts: dict[str, Any] = {f"the metric {metric_name(task.metric)}": task.metric}
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
    parts["the test scenarios"] = task.scenarios
    for name, value in task.arguments.items():
        parts[f"the argument {name}={value!r}"] = value
    return parts
