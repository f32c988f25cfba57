"""A discrete decision in place of a fractional one: a tree, a path, a point of integers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy import settings

from wdro_model.errors import NoReformulationError
from wdro_model.execution import evaluations
from wdro_model.methods import empirical_with_convexity
from wdro_model.model import Model
from wdro_model.objectives import exact
from wdro_model.problem import Problem
from wdro_model.solution import Solution

ROUNDED = "rounded"
"""The status of a decision that was rounded."""
MEAN, ROBUST = "mean loss over the samples", "worst-case risk"


@dataclass(frozen=True)
class Criterion:
    """What discrete decisions are judged by."""

    name: str
    objective: Any

    def __call__(self, x: np.ndarray) -> float:
        return float(self.objective.evaluate(x).value)

    @property
    def gradient(self) -> Any:
        """The gradient as a function of the decision, if the criterion is convex."""
        return self._gradient if self.objective.convex else None

    def _gradient(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.objective.evaluate(x).gradient)


@dataclass(frozen=True)
class Rounded:
    """A discrete decision beside the fractional one that it replaces."""

    decision: Mapping[cp.Variable, np.ndarray]
    criterion: str
    """What it was judged by: "worst-case risk" or "mean loss over the samples"."""
    value: float
    fractional_value: float
    """The criterion at the fractional decision."""
    lower_bound: float | None
    """No discrete decision has a smaller value, where the fractional solve proved so much."""

    @property
    def gap(self) -> float | None:
        """A bound on how much better the best discrete decision could be."""
        return None if self.lower_bound is None else max(0.0, self.value - self.lower_bound)

    def __str__(self) -> str:
        text = (
            f"rounded: {self.criterion} {self.value:.8g}, "
            f"{self.fractional_value:.8g} for the fractional decision"
        )
        if self.gap is None:
            return text
        share = self.gap / max(abs(self.value), 1e-300)
        return f"{text}; at most {self.gap:.3g} ({share:.2%}) above the best discrete decision"


def refuse_rounding(problem: Problem) -> None:
    """A ValueError where the feasible set has no discrete points to round to."""
    problem._model.feasible.oracle().check_rounds()


def round_decision(problem: Problem) -> Rounded:
    """Take the best discrete decision that is found near the current one as the problem's own."""
    x = problem._decision()
    found, _ = rounded(problem._current_model(), x, problem._solution_at(x))
    problem._decide(found.decision)
    return found


def rounded_solution(problem: Problem, solution: Solution) -> tuple[Solution, float | None]:
    """A solution with its decision rounded, and what it then promises.

    That is the mean loss for ERM and the worst-case risk for the others, None if not known.
    """
    began = time.perf_counter()
    model = problem._current_model()
    found, vertex = rounded(model, model.feasible.layout.join(solution.decision), solution)
    values = evaluations(model, vertex)
    promise = values["empirical_value" if solution.method == "erm" else "robust_value"]
    discrete = replace(
        solution,
        status=ROUNDED,
        value=found.value,
        decision=found.decision,
        seconds=solution.seconds + time.perf_counter() - began,
        gap=found.gap,
        lower_bound=found.lower_bound,
        diagnostics=None,
        active_set=None,
        **values,
    )
    return discrete, promise


def rounded(model: Model, x: np.ndarray, solution: Solution | None) -> tuple[Rounded, np.ndarray]:
    """The best vertex among those next to x, those of its active set, and those reached from it.

    The vertex that minimises the criterion's linearisation at x is tried as well.
    """
    oracle = model.feasible.oracle()
    oracle.check_rounds()
    criterion = choose(model, solution)
    here = criterion.objective.evaluate(x)
    active = None if solution is None else solution.vertices
    known = [] if active is None else [v for v in active if oracle.is_vertex(v)]
    steepest = oracle.minimize(here.gradient)
    vertex = oracle.round(x, criterion, [*known, steepest])
    found = Rounded(
        decision=model.feasible.layout.split(vertex),
        criterion=criterion.name,
        value=criterion(vertex),
        fractional_value=float(here.value),
        lower_bound=proven(solution, criterion),
    )
    return found, vertex


def choose(model: Model, solution: Solution | None) -> Criterion:
    """The worst-case risk where it is a smooth formula; the mean loss for ERM, and elsewhere."""
    if model.radius > 0 and (solution is None or solution.method != "erm"):
        try:
            entry = exact.find_entry(model)
        except NoReformulationError:
            return Criterion(MEAN, empirical_with_convexity(model))
        if entry.has_objective(model):
            return Criterion(ROBUST, entry.objective(model))
    return Criterion(MEAN, empirical_with_convexity(model))


def proven(solution: Solution | None, criterion: Criterion) -> float | None:
    """A lower bound over the hull, from a solve of the criterion itself."""
    if solution is None or not solution.convex:
        return None
    if solution.method != {MEAN: "erm", ROBUST: "exact"}[criterion.name]:
        return None
    if solution.lower_bound is not None or solution.status != settings.OPTIMAL:
        return solution.lower_bound
    return solution.value
