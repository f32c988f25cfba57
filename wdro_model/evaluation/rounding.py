"""A discrete decision in place of a fractional one: a tree, a path, a point of integers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import cvxpy as cp
import numpy as np
from cvxpy import settings

from wdro_model.evaluation.completion import Completed, Completion
from wdro_model.evaluation.criteria import Criterion, criterion_of
from wdro_model.model import Model
from wdro_model.sets.feasible_set import FeasibleSet
from wdro_model.sets.vertices import best_of, descend
from wdro_model.solve.certify import evaluations
from wdro_model.solve.solution import Solution

if TYPE_CHECKING:
    from wdro_model.problem import Problem

ROUNDED = "rounded"
"""The status of a decision that was rounded."""
PATTERNS, NEIGHBOURS = 8, 24
"""Discrete parts of a mixed decision whose continuous part is solved again: those of candidates,
and those of neighbours of the best."""
VERTICES = 100
"""Vertices of the solution, the heaviest first, that are looked at."""


@dataclass(frozen=True)
class Rounded:
    """A discrete decision beside the fractional one that it replaces."""

    decision: Mapping[cp.Variable, np.ndarray]
    criterion: str
    """What it was judged by: "worst-case risk", "smoothed worst-case risk", or after ERM "mean loss
    over the samples"."""
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
    """The best of x itself, if it is discrete, of vertices near x and of those reached from them.

    Where a part of the decision is continuous it is solved again for each discrete part.
    """
    oracle = model.feasible.oracle()
    oracle.check_rounds()
    criterion = criterion_of(model, solution, x)
    candidates = list(discrete_points(oracle, x, solution, criterion))
    discrete = oracle.discrete_coordinates()
    if discrete.all():
        best = oracle.round(x, criterion, candidates)
    else:
        near = oracle.discrete_near(x)
        candidates = [*candidates[:1], *near, *candidates[1:]]
        best = best_completed(model, criterion, x, candidates, discrete)
    found = Rounded(
        decision=model.feasible.layout.split(best),
        criterion=criterion.name,
        value=criterion(best),
        fractional_value=criterion(x),
        lower_bound=proven(solution, criterion),
    )
    return found, best


def discrete_points(
    oracle: FeasibleSet, x: np.ndarray, solution: Solution | None, criterion: Criterion
) -> Iterator[np.ndarray]:
    """The decision of a solve, the vertex of steepest descent, the heaviest of the active set."""
    if solution is not None and oracle.is_vertex(x):
        yield x
    yield oracle.minimize(criterion.slope(x))
    if solution is None or solution.vertices is None or solution.weights is None:
        return
    for k in np.argsort(-solution.weights, kind="stable")[: criterion.most or VERTICES]:
        if oracle.is_vertex(solution.vertices[k]):
            yield solution.vertices[k]


def best_completed(
    model: Model,
    criterion: Criterion,
    x: np.ndarray,
    candidates: list[np.ndarray],
    discrete: np.ndarray,
) -> np.ndarray:
    """The best decision whose discrete part is that of a candidate, or one reached from there."""
    completed = Completed(Completion(model, discrete, criterion), criterion)
    patterns: dict[bytes, np.ndarray] = {}
    for candidate in candidates:
        patterns.setdefault(completed.key(candidate), candidate)
    start = best_of(list(patterns.values())[:PATTERNS], completed)
    oracle = model.feasible.oracle()

    def neighbours(vertex: np.ndarray) -> Iterator[np.ndarray]:
        near = oracle.neighbours(completed.decision(vertex), x)
        return (other for other in near if not completed.knows(other))

    return completed.decision(descend(start, completed, neighbours, NEIGHBOURS))


def proven(solution: Solution | None, criterion: Criterion) -> float | None:
    """A lower bound over the hull, from a solve of the criterion itself."""
    if solution is None or not solution.convex or solution.method != criterion.method:
        return None
    if solution.lower_bound is not None or solution.status != settings.OPTIMAL:
        return solution.lower_bound
    return solution.value
