"""A test of an oracle: are its answers minimisers, as far as its other answers can tell?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

from wdro_model.sets.backends import Vector, reference_solver
from wdro_model.sets.feasible_set import FeasibleSet, as_pair, cvxpy_form, refuse_incomplete


class OracleError(ValueError, AssertionError):
    """An oracle failed `check`; `report` has the details.

    Examples
    --------
    >>> upside_down = wdro.sets.Oracle(lambda direction: np.eye(3)[np.argmax(direction)], 3)
    >>> try:
    ...     wdro.sets.check(upside_down)
    ... except wdro.sets.OracleError as error:
    ...     print(error.report.passed)
    False
    """

    def __init__(self, report: OracleReport) -> None:
        super().__init__(str(report))
        self.report = report


@dataclass(frozen=True)
class OracleReport:
    """The report of `check`.

    name: the set; directions: how many were tried; compared: how many of them were also solved
    through the set's CVXPY form; failures: one sentence each.

    Examples
    --------
    >>> report = wdro.sets.check(wdro.sets.Simplex(3))
    >>> report.passed, report.directions, report.failures
    (True, 50, ())
    """

    name: str
    directions: int
    compared: int
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Was no failure found?"""
        return not self.failures

    def __str__(self) -> str:
        tried = f"{self.directions} directions, {self.compared} against its CVXPY form"
        if self.passed:
            return f"{self.name}: passed ({tried})"
        listed = "\n".join(f"  - {failure}" for failure in self.failures[:10])
        more = len(self.failures) - 10
        rest = f"\n  ... and {more} more" if more > 0 else ""
        return f"{self.name}: {len(self.failures)} failures ({tried})\n{listed}{rest}"


@dataclass(frozen=True)
class Answered:
    """A direction, the vertex returned for it, and its slack above the oracle's lower bound."""

    direction: Vector
    vertex: Vector
    slack: float


def check(set: FeasibleSet, directions: int = 50, seed: int = 0, compared: int = 5) -> OracleReport:
    """Test the oracle of a set; return the report, or raise OracleError with it.

    For directions g_i of several kinds (random, with ties and zeros, single coordinates, near one
    another) and the vertices v_i returned for them: shape, finiteness, declared bounds; the
    direction is left as it was; the same direction gives the same cost again, and twice the
    direction too (homogeneity); `<g_i, v_i>` (or the bound returned with v_i) `<= <g_i, v_j>` for
    all j; and, for `compared` directions of a set that has a CVXPY form, the same minimum. Sets
    for nonnegative directions are given such.

    Examples
    --------
    >>> print(wdro.sets.check(wdro.sets.SpanningTree(nx.complete_graph(4), backend="networkx")))
    SpanningTree(4 nodes, 6 edges): passed (50 directions, 5 against its CVXPY form)
    """
    if not isinstance(set, FeasibleSet):
        raise ValueError(
            f"check takes a feasible set, got {type(set).__name__}; wrap a function as "
            "Oracle(function, dimension)."
        )
    refuse_incomplete(set)
    tried = _directions(set, directions, np.random.default_rng(seed))
    failures: list[str] = []
    returned: list[Answered] = []
    for index, direction in enumerate(tried):
        answer, own_failures = _call(set, direction)
        failures.extend(f"direction {index}: {failure}" for failure in own_failures)
        if answer is not None:
            returned.append(answer)
    failures.extend(_not_optimal(returned))
    count = 0
    if set.has_constraints and returned:
        count = min(compared, len(returned))
        failures.extend(_against_cvxpy(set, returned[:count]))
    report = OracleReport(repr(set), len(tried), count, tuple(failures))
    if failures:
        raise OracleError(report)
    return report


def _directions(set: FeasibleSet, count: int, rng: np.random.Generator) -> list[Vector]:
    """Gaussian directions, small integers (ties and zeros), coordinates, large scales, in turn."""
    n = set.dimension
    kinds = [
        lambda: rng.standard_normal(n),
        lambda: rng.integers(-2, 3, n).astype(np.float64),
        lambda: np.eye(1, n, int(rng.integers(n))).ravel() * rng.choice([-1.0, 1.0]),
        lambda: 10.0 ** rng.uniform(-6, 6) * rng.standard_normal(n),
    ]
    drawn: list[Vector] = []
    for index in range(count):
        if index % 5 == 4:  # near the last Gaussian one: the vertices of both compete
            drawn.append(drawn[index - 4] + 0.3 * rng.standard_normal(n))
        else:
            drawn.append(kinds[index % 5]())
    return [np.abs(g) for g in drawn] if set.nonnegative_directions else drawn


def _call(set: FeasibleSet, direction: Vector) -> tuple[Answered | None, list[str]]:
    """The answer for a direction, None if it is unusable, and what is wrong with it on its own."""
    given = direction.copy()
    try:
        answer, slack = as_pair(set, set.minimize_with_slack(given))
        again = set.minimize(direction.copy())
        doubled = set.minimize(2.0 * direction)
    except Exception as error:
        return None, [f"raised {type(error).__name__}: {error}"]
    for vertex in (answer, again, doubled):
        wrong = _shape_failure(vertex, set.dimension)
        if wrong is not None:
            return None, [wrong]
    failures = []
    if not np.array_equal(given, direction):
        failures.append("the oracle changed the direction it was given; it must work on a copy")
    if np.shares_memory(answer, again) or np.shares_memory(answer, given):
        failures.append("the vertex is not a fresh array: a later call would overwrite it")
        answer = np.array(again)
    tolerance = _tolerance(direction, answer)
    cost = direction @ answer
    if abs(direction @ again - cost) > tolerance:
        failures.append(
            f"not deterministic: the same direction gave the costs {cost:.6g} and "
            f"{direction @ again:.6g}"
        )
    if abs(direction @ doubled - cost) > tolerance:
        failures.append(
            f"not homogeneous: the vertex for twice the direction costs {direction @ doubled:.6g} "
            f"instead of {cost:.6g}"
        )
    failures.extend(_bound_failures(set, answer))
    return Answered(direction, answer, slack), failures


def _shape_failure(vertex: Any, dimension: int) -> str | None:
    if not isinstance(vertex, np.ndarray) or vertex.shape != (dimension,):
        shape = getattr(vertex, "shape", type(vertex).__name__)
        return f"the vertex must be an array of shape ({dimension},), got {shape}"
    if not np.isfinite(vertex).all():
        index = int(np.flatnonzero(~np.isfinite(vertex))[0])
        return f"the vertex must be finite, got {vertex[index]} at index {index}"
    return None


def _bound_failures(set: FeasibleSet, vertex: Vector) -> Iterator[str]:
    if set.bounds is None:
        return
    lower, upper = (np.broadcast_to(side, vertex.shape) for side in set.bounds)
    excess = np.maximum(lower - vertex, vertex - upper)
    index = int(np.argmax(excess))
    if excess[index] > 1e-9 * max(1.0, abs(vertex[index])):
        yield (
            f"coordinate {index} is {vertex[index]:g}, outside the declared bounds "
            f"[{lower[index]:g}, {upper[index]:g}]"
        )


def _not_optimal(returned: list[Answered]) -> Iterator[str]:
    """Directions for which a vertex returned for another direction is better."""
    if not returned:
        return
    slopes = np.array([answer.direction for answer in returned])
    points = np.array([answer.vertex for answer in returned])
    costs = slopes @ points.T
    own = np.diag(costs) - np.array([answer.slack for answer in returned])
    best = costs.argmin(axis=1)
    size = np.linalg.norm(slopes, axis=1) * np.linalg.norm(points, axis=1).max()
    worse = np.flatnonzero(own - costs.min(axis=1) > 1e-6 * size)
    reversed_sign = worse.size > 0 and np.all(own >= costs.max(axis=1) - 1e-6 * size)
    hint = "; every vertex is the worst one: does the oracle maximise?" if reversed_sign else ""
    what = lambda i: "bound is" if returned[i].slack else "vertex costs"  # noqa: E731
    for i in worse:
        yield (
            f"direction {i}: not optimal: its {what(i)} {own[i]:.6g}, the vertex returned for "
            f"direction {best[i]} costs {costs[i, best[i]]:.6g}{hint}"
        )


def _against_cvxpy(set: FeasibleSet, returned: list[Answered]) -> Iterator[str]:
    """Directions for which CVXPY finds another minimum over `set.constraints(x)`."""
    x = cp.Variable(set.dimension)
    constraints = cvxpy_form(set, x)
    size = max(float(np.linalg.norm(answer.vertex)) for answer in returned)
    for i, answer in enumerate(returned):
        direction, vertex = answer.direction, answer.vertex
        scale = float(np.abs(direction).max()) or 1.0
        problem = cp.Problem(cp.Minimize((direction / scale) @ x), constraints)
        problem.solve(solver=reference_solver(problem))
        if problem.status != cp.OPTIMAL:
            yield f"direction {i}: CVXPY found its form of the set {problem.status}"
            continue
        tolerance = 1e-5 * float(np.linalg.norm(direction)) * max(size, 1e-12)
        least, cost = scale * problem.value, float(direction @ vertex)
        if least > cost + tolerance or least < cost - answer.slack - tolerance:
            bound = f" and the bound is {cost - answer.slack:.6g}" if answer.slack else ""
            yield (
                f"direction {i}: the vertex costs {cost:.6g}{bound}, the minimum over the CVXPY "
                f"form is {least:.6g}"
            )


def _tolerance(direction: Vector, vertex: Vector) -> float:
    return 1e-6 * float(np.linalg.norm(direction)) * max(float(np.linalg.norm(vertex)), 1e-12)
